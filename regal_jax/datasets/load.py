"""`load_graphs`: the graphs of a set, a corpus or the sample."""

import itertools
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Final

from regal_jax.checks import check_whole, shown
from regal_jax.datasets.candidates import SPLITS, check_split
from regal_jax.datasets.corpus_files import CORPUS, INDEX
from regal_jax.datasets.corpus_reader import load_corpus
from regal_jax.datasets.shipped import BEGUN, SAMPLE, load_sample
from regal_jax.datasets.store import read_set
from regal_jax.errors import ConfigError
from regal_jax.examples import load_example
from regal_jax.graph import Cluster, ComputationGraph, without_residents
from regal_jax.plan import Objective, contract, contract_for
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.paths import folder_path

__all__ = [
    "NAMED_PATHS",
    "SAMPLE_PATH",
    "chosen_graphs",
    "computing_graphs",
    "load_graphs",
    "one_graph",
    "sample_folder",
]

_MOST_MERGED: Final = 8
"""Largest ratio of ops before contraction to ``max_ops``; larger graphs of a corpus are not read.

Contraction merges two to five ops into one.
"""
SAMPLE_PATH: Final = "sample"
"""Name that stands for the graphs of the package in place of a path."""
ONE_PATH: Final = "one"
"""Name that stands for `one_graph` in place of a path."""
NAMED_PATHS: Final = (SAMPLE_PATH, ONE_PATH)
"""Names that are no paths."""


@interruptible()
def load_graphs(
    path: str | os.PathLike[str],
    split: str,
    *,
    contracted_for: tuple[Cluster, Objective] | None = None,
    max_ops: int = 0,
) -> list[ComputationGraph]:
    """Graphs of a set, of a corpus or of a sample.

    Args:
      path: A folder, archive or file as `regal_jax.datasets.read_set` takes it, the folder of a corpus or of
        a sample of one, ``"sample"`` for the graphs that come with the package, or ``"one"`` for the real
        graph of Table 1 of the suite of robust scheduling, which is in every split.
      split: ``"train"``, ``"validation"`` or ``"test"``. From a corpus, from a sample, and from a folder
        with folders or archives of these names, only that split is read; from anything else, all graphs.
      contracted_for: Return the graphs that `regal_jax.plan.contract_for` makes for this.
      max_ops: Leave out graphs that are larger after contraction; 0 for no limit. Graphs of a corpus that are
        eight times as large are left out without contraction.

    Raises:
      FormatError: No file can be read.
      ConfigError: There is no such split, a folder has it twice, another argument is invalid, or no graph is
        left.
    """
    return list(chosen_graphs(path, split, contracted_for, max_ops))


def chosen_graphs(
    path: str | os.PathLike[str],
    split: str,
    contracted_for: tuple[Cluster, Objective] | None,
    max_ops: int,
) -> Iterator[ComputationGraph]:
    """The graphs of `load_graphs` one after another, each read on demand."""
    max_ops = check_whole("max_ops", max_ops, 0)
    if contracted_for is not None and not (isinstance(contracted_for, tuple) and len(contracted_for) == 2):
        raise ConfigError(f"contracted_for: give a cluster and an objective, got {shown(contracted_for)}")
    least, found = 0, False
    most = max_ops * _MOST_MERGED if contracted_for else max_ops
    for graph in _read(path, split, most):
        if contracted_for:
            graph = contract_for(graph, *contracted_for).graph
        least = min(least, graph.num_ops) if least else graph.num_ops
        if not max_ops or graph.num_ops <= max_ops:
            found = True
            yield graph
    if not found and least:
        raise ConfigError(f"{path}: max_ops is {max_ops}, but the smallest graph has {least} ops; raise it")
    if not found:
        what = f"graph of at most {most} ops" if most else "graph"
        raise ConfigError(f"{path}: no {what} in its split {split!r}; finish building it, or change max_ops")


def computing_graphs(
    path: str | os.PathLike[str], split: str, cluster: Cluster, max_ops: int
) -> Iterator[ComputationGraph]:
    """Graphs for cost models of runtimes alone: contracted for ``cluster``, without residents.

    Args:
      path: See `load_graphs`.
      split: See `load_graphs`.
      cluster: The cluster on which the graphs run, for the makespan.
      max_ops: Leave out larger graphs; 0 for no limit.
    """
    # Residents are up to half of a graph's ops.
    for graph in chosen_graphs(path, split, (cluster, Objective.MAKESPAN), 2 * max_ops):
        if graph.runtime.any() and (~graph.resident).any():
            graph = without_residents(graph)
        if not max_ops or graph.num_ops <= max_ops:
            yield graph


def one_graph() -> ComputationGraph:
    """The contracted training step of the example ``mlp`` without residents, 59 ops."""
    return without_residents(contract(load_example("mlp")).graph)


def sample_folder(path: str | os.PathLike[str]) -> pathlib.Path | None:
    """The folder of the sample that ``path`` names, if it names one: `SAMPLE_PATH` is that of the package.

    A path object, or a text such as ``"./sample"``, is the folder of that name.
    """
    folder = folder_path(path)
    if path == SAMPLE_PATH:
        return SAMPLE
    # A corpus has an index, too.
    if os.path.exists(folder / CORPUS):
        return None
    return folder if any(os.path.exists(folder / name) for name in (INDEX, BEGUN)) else None


def _read(path: str | os.PathLike[str], split: str, max_ops: int) -> Iterable[ComputationGraph]:
    """Graphs one after another; from a corpus, those of at most ``max_ops`` ops, or all if there are none."""
    folder = folder_path(path)
    check_split(split)
    sample = sample_folder(path)
    if sample is not None:
        return (graph for _, graph in load_sample(split, folder=sample))
    if path == ONE_PATH:
        return (one_graph(),)
    if not os.path.exists(folder / INDEX):
        return read_set(_part(folder, split)).graphs
    return (graph for _, graph in load_corpus(path, split, max_ops=max_ops))


def _part(folder: pathlib.Path, split: str) -> pathlib.Path:
    """The part of a set for ``split``, or all of a set without splits; test graphs must not be mixed in."""
    parts: dict[str, pathlib.Path] = {}
    for name, ending in itertools.product(SPLITS, ("", ".tar.gz", ".tgz", ".tar")):
        part = folder / f"{name}{ending}"
        if os.path.exists(part):
            if name == split and name in parts:
                raise ConfigError(
                    f"{folder}: {parts[name].name} and {part.name} both hold {split!r}; drop one"
                )
            parts[name] = part
    if parts and split not in parts:
        raise ConfigError(
            f"{folder}: has no split {split!r}; name one of {', '.join(map(str, parts.values()))}"
        )
    return parts.get(split, folder)
