"""`check_corpus`: checks that each graph of a corpus agrees with its record and split and can be searched."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from regal_jax.checks import check_callback, check_whole
from regal_jax.corpus.family_splits import read_family_splits
from regal_jax.corpus.splits import partition
from regal_jax.datasets.corpus_reader import corpus_records
from regal_jax.errors import FormatError, GraphError, PlanError
from regal_jax.graph import Cluster, ComputationGraph, topology_hash
from regal_jax.importers import load_graph
from regal_jax.runtime.interrupts import interrupt_at_end
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.storage.paths import folder_path

__all__ = ["check_corpus"]

_TOGETHER: Final = 64
"""Graphs of similar size that are read and searched together, since a corpus may not fit in memory."""


def check_corpus(
    folder: str | os.PathLike[str],
    *,
    evaluations: int = 200,
    progress: Callable[..., Any] | None = None,
) -> dict[str, str]:
    """Reads every graph of a corpus, compares it with its record, searches it and replays the plan.

    Each graph is validated as it is read. Its sizes and hashes must be those in the index. Its split must be
    that of the table of families; the table of an older ``regal-jax`` may differ. Plain BRKGA (no heuristics,
    two devices, blocking transfers at no cost) must find a plan, and the plan must pass `Plan.verify`.

    Args:
      folder: Folder of a corpus that `build_corpus` made.
      evaluations: Budget of each search.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.

    Returns:
      One line with the reason for each graph that fails, by path.

    Raises:
      ConfigError: ``evaluations`` is out of range, or ``progress`` is no function.
      FormatError: There is no corpus, or its index is damaged.
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    check_whole("evaluations", evaluations, 1, MAX_EVALUATIONS)
    check_callback("progress", progress)
    root = folder_path(folder)
    records = sorted(corpus_records(root), key=lambda record: (record["ops"], record["path"]))
    splits = partition(records, read_family_splits()).topologies
    failures: dict[str, str] = {}
    bar = None if progress is None else progress(total=len(records), unit="graph", desc="check")
    with contextlib.closing(bar) if bar is not None else contextlib.nullcontext():
        for first in range(0, len(records), _TOGETHER):
            together = records[first : first + _TOGETHER]
            failures |= _check(root, together, splits, evaluations)
            if bar is not None:
                bar.update(len(together))
    return failures


def _check(
    root: pathlib.Path, records: Sequence[Mapping[str, Any]], splits: Mapping[str, str], evaluations: int
) -> dict[str, str]:
    # Workers that trace with other libraries also load this package and should not wait for JAX.
    from regal_jax.api import optimize_many

    failures: dict[str, str] = {}
    graphs: dict[str, ComputationGraph] = {}
    for record in records:
        try:
            graph = load_graph(root / record["path"])
        except (FormatError, GraphError) as error:
            failures[record["path"]] = str(error).removeprefix(f"{root / record['path']}: ")
            continue
        wrong = _differences(graph, record)
        split = splits[record["topology_hash"]]
        if wrong:
            failures[record["path"]] = wrong
        elif split != record["split"]:
            failures[record["path"]] = (
                f"split {split}, recorded {record['split']}; run 'regal-jax corpus show {root}'"
            )
        else:
            graphs[record["path"]] = graph
    with interrupt_at_end():
        plans = optimize_many(
            list(graphs.values()),
            Cluster.uniform(2, transfer="blocking"),
            method="brkga",
            evaluations=evaluations,
            warm_start=False,
            progress=False,
        )
    for (path, graph), plan in zip(graphs.items(), plans, strict=True):
        try:
            plan.verify(graph)
        except PlanError as error:
            failures[path] = str(error)
    return failures


def _differences(graph: ComputationGraph, record: Mapping[str, Any]) -> str:
    """The differences between a graph and its record, in one line; empty if there are none."""
    found = {
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": len(graph.edge_op),
        "content_hash": graph.content_hash,
        "topology_hash": topology_hash(graph),
    }
    # A corpus built before residents were marked has the hashes of graphs without marks.
    if record.get("content_hash") == dataclasses.replace(graph, resident=()).content_hash:
        del found["content_hash"]
    wrong = [f"{name} {value}, recorded {record.get(name)}" for name, value in found.items()
             if value != record.get(name)]  # fmt: skip
    return "; ".join(wrong)
