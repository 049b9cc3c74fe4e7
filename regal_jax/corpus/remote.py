"""Traces on the workers of an engine: each of them runs the processes that a build runs here."""

import functools
import os
import pathlib
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from regal_jax.corpus.engine import Engine as Build
from regal_jax.corpus.engine import Tally
from regal_jax.corpus.pool import available_memory
from regal_jax.corpus.sources import Source
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.corpus_files import GRAPHS
from regal_jax.engines import Engine, Item, Message
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.interrupts import first_interrupt_waits
from regal_jax.storage.atomic import write_atomically

__all__ = ["trace_models", "trace_remotely"]

_WORK: Final = "regal_jax.corpus.remote:trace_models"
_PARCEL: Final = 100
"""Most models that a worker gets at once. For each parcel it starts processes, which takes some seconds."""


def trace_remotely(
    engine: Engine,
    build: Build,
    tasks: Sequence[tuple[Source, Sequence[TraceSpec]]],
    packages: Mapping[str, Mapping[str, Any]],
    tally: Tally,
) -> None:
    """Traces all specs on the workers of ``engine`` and writes graphs and lists here.

    Args:
      engine: The engine.
      build: The build, whose folder gets the results.
      tasks: Sources and their specs.
      packages: Source -> versions of its packages.
      tally: Counts the results.
    """
    pairs = [(source, spec) for source, specs in tasks for spec in specs]

    def message(source: Source, spec: TraceSpec) -> Message:
        where = [source.name, source.module, source.packages]
        versions = packages.get(source.name, {})
        return Message({"spec": spec.to_json(), "source": where, "versions": versions})

    items = [Item(source.name, functools.partial(message, source, spec)) for source, spec in pairs]

    def answer(index: int, message: Message, last: bool) -> None:
        del last
        source, spec = pairs[index]
        if message.blobs:
            path = build.root / GRAPHS / f"{spec.key}.json.gz"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, message.blobs[0])
        unusable = message.head.get("unusable", "it does not start on a worker of the engine")
        if message.head and "unusable" not in message.head:
            build.write_down(spec, source, packages.get(source.name, {}), message.head, tally)
        elif source.name not in build.skipped and not build.interrupted():
            build.skipped.add(source.name)
            warnings.warn(
                f"source {source.name!r} is given up: {unusable}; install its packages there",
                stacklevel=2,
            )

    common = Message({"timeout": build.timeout, **build.settings})
    lost = engine.run(_WORK, common, items, answer, most=_PARCEL, interrupted=build.interrupted)
    for index, reason in lost.items():
        source, spec = pairs[index]
        failure = {"failure": "died", "reason": reason}
        build.write_down(spec, source, packages.get(source.name, {}), failure, tally)


def trace_models(
    common: Message, messages: Sequence[Message], tell: Callable[[int, Message, bool], None]
) -> None:
    """Traces models of one source in processes of their own; reports each graph as soon as it is made.

    Args:
      common: Time limit of a graph, and settings of the build.
      messages: For each graph its spec, its source, and the versions of the source's packages.
      tell: Called with the position of a graph, its record or the reason of a failure, and the graph's file.
        A graph whose source cannot be used, or whose trace was interrupted, has an empty answer, or one
        that says that a package has another version here.
    """
    settings = dict(common.head)
    timeout = settings.pop("timeout")
    name, module, packages = messages[0].head["source"]
    source = Source(name, module, tuple(packages))
    specs = [TraceSpec.from_json(message.head["spec"]) for message in messages]
    place = {spec.key: position for position, spec in enumerate(specs)}
    told: set[str] = set()
    there, here = messages[0].head["versions"], source.versions()
    differ = [package for package in there if here[package] not in (None, there[package])]
    if differ:
        text = f"a worker of the engine has {differ[0]} {here[differ[0]]}, not {there[differ[0]]}"
        for position in range(len(specs)):
            tell(position, Message({"unusable": text}), True)
        return

    class Telling(Build):
        """A build that reports its results instead of writing them to files."""

        def write_down(
            self,
            spec: TraceSpec,
            source: Source,
            packages: Mapping[str, Any],
            message: Mapping[str, Any],
            tally: Tally,
        ) -> None:
            del source, packages, tally
            file = self.root / GRAPHS / f"{spec.key}.json.gz"
            blobs = [file.read_bytes()] if "record" in message else []
            told.add(spec.key)
            tell(place[spec.key], Message(message, blobs), True)
            file.unlink(missing_ok=True)

    with tempfile.TemporaryDirectory(prefix="regal-jax-") as folder, first_interrupt_waits() as interrupted:
        build = Telling(pathlib.Path(folder), settings, available_cores(), timeout, interrupted, None)
        # Other workers of this machine use the rest of its cores, and of its memory.
        build.memory = 0.8 * available_memory() / max(os.cpu_count() or 1, build.jobs)
        build.run([(source, specs)], {})
    for spec in specs:
        if spec.key not in told:
            tell(place[spec.key], Message(), True)
