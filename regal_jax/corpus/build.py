"""`build_corpus`: traces models in worker processes; may be killed and resumed at any time."""

import collections
import contextlib
import fnmatch
import hashlib
import os
import pathlib
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from regal_jax.checks import check_callback, check_kind, check_whole, is_list, real, shown
from regal_jax.corpus.engine import Engine
from regal_jax.corpus.family_splits import read_family_splits
from regal_jax.corpus.finish import NEW_FAMILIES, brought_up_to_date
from regal_jax.corpus.sources import SOURCES, Source
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.candidates import check_split
from regal_jax.datasets.corpus_files import (
    CORPUS,
    FAILURES,
    FORMS,
    GRAPHS,
    INDEX,
    read_corpus,
    read_failures,
    read_index,
    write_corpus,
)
from regal_jax.engines import Engine as RemoteEngine
from regal_jax.engines import opened
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.importers.files import read_bytes
from regal_jax.importers.roofline import find_profile
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.interrupts import first_interrupt_waits
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.locks import locked
from regal_jax.storage.paths import folder_path

__all__ = ["Settings", "build_corpus"]

_ROUND: Final = 100
"""Graphs of one source per turn. Each turn starts new workers, which takes some seconds."""

Settings = dict[str, Any]
"""Settings that determine the content of a graph, besides its spec; the same for a whole corpus."""


def build_corpus(
    folder: str | os.PathLike[str],
    *,
    sources: Sequence[str] | None = None,
    forms: Sequence[str] = FORMS,
    only: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    jobs: int | None = None,
    timeout: float = 300.0,
    profile: str = "h200",
    min_ops: int = 57,
    max_ops: int = 60_000,
    retry_failures: bool = False,
    new_families: bool = False,
    progress: Callable[..., Any] | None = None,
    engine: "str | RemoteEngine" = "local",
) -> Mapping[str, Any]:
    """Traces real models into ``folder``, or resumes an earlier build there.

    Graphs are traced from shapes: no weights are made or fetched. Each graph is traced in a worker process. A
    model that raises, hangs, dies or takes too much memory becomes a line in ``failures.jsonl`` and does not
    affect the others. Finished graphs are written at once, so a killed build loses only those that were being
    traced. What is selected again and has a file that is missing or damaged is traced again.

    Each run may select other graphs, which are added to the corpus. The settings that determine the content
    of a graph must stay the same.

    Args:
      folder: Folder of the corpus; created if missing.
      sources: Names from `SOURCES`; by default all whose packages are installed, with a warning for others.
      forms: Some of `FORMS`.
      only: A pattern such as ``"timm/resnet*"`` that ``SOURCE/MODEL.FORM`` must match.
      split: Only models of families that have this split in the table (`read_family_splits`).
      limit: Most graphs of each source and form, taken from the families in turn.
      jobs: Worker processes; the number of cores by default.
      timeout: Time limit per graph, in seconds. It is checked four times a second, and a graph that is
        finished by then is kept.
      profile: Device that runtimes are estimated for (`regal_jax.importers.PROFILES`).
      min_ops: Smaller graphs are left out.
      max_ops: Larger graphs are left out.
      retry_failures: Whether to retry what failed before.
      new_families: Only models of families that the table of splits lacks (`read_family_splits`); all graphs
        are test graphs. The folder is for such builds only.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.
      engine: Where models are traced, as in `regal_jax.optimize_many`. On Ray, every machine needs the
        packages of the sources, of the same versions, and ``jobs`` is not used. The corpus is written on this
        machine.

    Returns:
      The document ``corpus.json``, with ``"complete"``: whether all selected graphs were handled; and
      ``"skipped"``: the sources that did not start, so that graphs of theirs were not.

    Raises:
      ConfigError: An option is invalid, the folder has other settings or another build in it, or the disk is
        full.
      MissingExtraError: A source that ``sources`` names lacks its package.
      FormatError: The folder is not a corpus, or it is damaged.
    """
    sources = None if sources is None else _named("sources", sources, SOURCES)
    forms = _named("forms", forms, FORMS)
    limit = None if limit is None else check_whole("limit", limit, 1)
    jobs = available_cores() if jobs is None else check_whole("jobs", jobs, 1)
    if (seconds := real(timeout, above=0, infinite=True)) is None:
        raise ConfigError(f"timeout: must be a number of seconds of more than 0, got {shown(timeout)}")
    min_ops, max_ops = check_whole("min_ops", min_ops, 1), check_whole("max_ops", max_ops, 1)
    if max_ops < min_ops:
        raise ConfigError(f"max_ops: {max_ops} is below min_ops {min_ops}; raise it")
    check_callback("progress", progress)
    if split is not None:
        check_split(split)
    if split is not None and new_families:
        raise ConfigError("split, new_families: new families have no split in the table; give one of the two")
    if only is not None:
        check_kind("only", only, str)
    find_profile(profile)
    root = folder_path(folder)
    with (
        _one_line_for_the_disk(root),
        locked(root),
        opened(engine) as remote,
        first_interrupt_waits() as interrupted,
    ):
        (root / GRAPHS).mkdir(exist_ok=True)
        chosen = [source for name, source in SOURCES.items() if sources is None or name in sources]
        present = _installed(chosen, explicit=sources is not None)
        settings = {"profile": profile, "min_ops": min_ops, "max_ops": max_ops}
        if new_families:
            settings[NEW_FAMILIES] = True
        splits = read_family_splits() if split is not None or new_families else None
        begun = _settled(root, settings, present)
        work = Engine(root, settings, jobs, seconds, interrupted, progress, remote)
        listed = {source.name: work.specs(source) for source in present}
        if only is not None and not interrupted():
            _check_some([spec for found in listed.values() for spec in found or ()], forms, only)
        specs = {
            name: choose(_of_split(found, splits, split), forms, only, limit)
            for name, found in listed.items()
            if found is not None
        }
        # Nothing is recorded of a build that is refused.
        write_corpus(root, begun)
        pending = _pending(root, specs, retry_failures=retry_failures)
        work.run(_rounds(pending), begun["packages"])
        document = brought_up_to_date(root)
        complete = not interrupted() and not work.skipped
        return {**document, "complete": complete, "skipped": sorted(work.skipped)}


def _of_split(
    specs: Sequence[TraceSpec], splits: Mapping[str, str] | None, split: str | None
) -> list[TraceSpec]:
    """Without a table all specs, else those of families with this split, or (``None``) that it lacks."""
    return [spec for spec in specs if splits is None or splits.get(spec.family) == split]


def choose(
    specs: Sequence[TraceSpec], forms: Sequence[str], only: str | None, limit: int | None
) -> list[TraceSpec]:
    """The specs of one source that a build makes, form by form, taken from the families in turn.

    Within a family the order is a fixed shuffle, since models with similar names often have one topology.
    """
    chosen: list[TraceSpec] = []
    for form in FORMS:
        found = [spec for spec in specs if spec.form == form and form in forms]
        found = [spec for spec in found if only is None or fnmatch.fnmatchcase(spec.key, only)]
        found.sort(key=lambda spec: hashlib.sha256(spec.key.encode()).digest())
        turns: collections.Counter[str] = collections.Counter()
        places: list[int] = []
        for spec in found:
            places.append(turns[spec.family])
            turns[spec.family] += 1
        chosen += [found[i] for i in sorted(range(len(found)), key=places.__getitem__)][:limit]
    return chosen


def _check_some(specs: Sequence[TraceSpec], forms: Sequence[str], only: str) -> None:
    """Refuses a pattern that no graph of these forms matches, unless there is none at all."""
    keys = [spec.key for spec in specs if spec.form in forms]
    if keys and not any(fnmatch.fnmatchcase(key, only) for key in keys):
        raise ConfigError(
            f"only: {only!r} matches none of {len(keys)} graphs; write SOURCE/MODEL.FORM, such as {keys[0]!r}"
        )


def _rounds(pending: Mapping[str, Sequence[TraceSpec]]) -> list[tuple[Source, Sequence[TraceSpec]]]:
    """Tasks form by form with the sources in turn, so that a stopped build covers all sources."""
    rounds: list[tuple[Source, Sequence[TraceSpec]]] = []
    for form in FORMS:
        left = {name: [spec for spec in specs if spec.form == form] for name, specs in pending.items()}
        for start in range(0, max(map(len, left.values()), default=0), _ROUND):
            rounds += [
                (SOURCES[name], specs[start : start + _ROUND])
                for name, specs in left.items()
                if start < len(specs)
            ]
    return rounds


def _named(what: str, given: Any, known: Collection[str]) -> list[str]:
    """``given`` as a list of some of ``known``."""
    if not is_list(given):
        raise ConfigError(f"{what}: is {shown(given)}; give a list of some of {', '.join(known)}")
    names = list(given)
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise ConfigError(f"{what}: there is no {shown(name)}; use one of {', '.join(known)}")
    if not names:
        raise ConfigError(f"{what}: none; name at least one of {', '.join(known)}")
    return names


def _installed(chosen: Sequence[Source], *, explicit: bool) -> list[Source]:
    """The sources whose packages are installed; others are skipped, or an error if ``explicit``."""
    present = []
    for source in chosen:
        absent = [package for package, version in source.versions().items() if version is None]
        if not absent:
            present.append(source)
        elif explicit:
            raise MissingExtraError(absent[0], source.extra)
        else:
            warnings.warn(
                f"source {source.name!r} is skipped: it needs the package {absent[0]!r}; "
                f"install it with pip install 'regal-jax[{source.extra}]'",
                stacklevel=4,
            )
    return present


def _settled(root: pathlib.Path, settings: Settings, present: Sequence[Source]) -> dict[str, Any]:
    """``corpus.json`` with these settings and versions; raises an error if recorded ones differ."""
    document = read_corpus(root)
    if document is None:
        document = {"settings": settings, "packages": {}}
    for name in {**document["settings"], **settings}:
        old, value = document["settings"].get(name), settings.get(name)
        if old != value:
            raise ConfigError(
                f"{root / CORPUS}: built with {name} {old!r}, not {value!r}; "
                "use the same, or build into another folder"
            )
    packages = document["packages"]
    for source in present:
        versions = source.versions()
        for package, version in versions.items():
            old = packages.get(source.name, {}).get(package, version)
            if old != version:
                raise ConfigError(
                    f"{root / CORPUS}: source {source.name!r} was built with {package} {old}, not {version}; "
                    "install that, leave the source out, or build into another folder"
                )
        packages[source.name] = versions
    return {**document, "packages": {name: packages[name] for name in sorted(packages)}}


def _pending(
    root: pathlib.Path, specs: Mapping[str, Sequence[TraceSpec]], *, retry_failures: bool
) -> dict[str, list[TraceSpec]]:
    """The specs still to trace, after repair of what a killed build left."""
    index, failures = JsonLines(root / INDEX), JsonLines(root / FAILURES)
    for lines in (index, failures):
        lines.mend()
    for leftover in (root / GRAPHS).glob("*/.*.tmp"):
        leftover.unlink(missing_ok=True)
    records = read_index(root)
    there = [record for record in records if _whole(root / record["path"])]
    if len(there) < len(records):
        index.replace(there)
    done = {_key(record) for record in there}
    wanted = {spec.key for tasks in specs.values() for spec in tasks}
    failed = read_failures(root)
    kept = [f for f in failed if _key(f) not in done and not (retry_failures and _key(f) in wanted)]
    if len(kept) < len(failed):
        failures.replace(kept)
    done |= {_key(failure) for failure in kept}
    return {name: [spec for spec in tasks if spec.key not in done] for name, tasks in specs.items()}


def _whole(path: pathlib.Path) -> bool:
    """Whether the file of a graph is there and unpacks to JSON. Only `check_corpus` reads all of it."""
    try:
        return read_bytes(path).startswith(b"{")
    except FormatError:
        return False


def _key(record: Mapping[str, Any]) -> str:
    return TraceSpec.from_json(record).key


@contextlib.contextmanager
def _one_line_for_the_disk(root: pathlib.Path) -> Any:
    try:
        yield
    except OSError as error:
        if isinstance(error, ImportError):
            raise
        where = error.filename if error.filename is not None else root
        raise ConfigError(
            f"{where}: {error.strerror or error}; make room or mend the folder, then run the same again"
        ) from None
