"""Graphs of REGAL's synthetic data: four classical topologies with Gaussian costs."""

import inspect
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_number, check_whole
from regal_jax.datasets.topologies import TOPOLOGIES, orient
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["COST_MEAN", "COST_STD", "gaussian_costs", "regal_graph", "undirected"]

COST_MEAN: Final = 50.0
COST_STD: Final = 10.0


def gaussian_costs(rng: np.random.Generator, count: int) -> np.ndarray:
    """``[count]`` float64 draws of N(50, 10), rounded, at least 1: runtimes and sizes of REGAL's data."""
    return np.maximum(1.0, np.rint(rng.normal(COST_MEAN, COST_STD, size=count)))


def undirected(rng: np.random.Generator, topology: str, n: int, **parameters: Any) -> np.ndarray:
    """Edges ``[E, 2]`` of the named topology.

    Raises:
      ConfigError: The topology or a parameter is unknown, or a value is invalid.
    """
    if topology not in TOPOLOGIES:
        raise ConfigError(f"topology: unknown {topology!r}; use one of {', '.join(TOPOLOGIES)}")
    known = list(inspect.signature(TOPOLOGIES[topology]).parameters)[2:]
    for name in parameters:
        if name not in known:
            raise ConfigError(f"{topology}: no parameter {name!r}; it has {', '.join(known)}")
    return TOPOLOGIES[topology](rng, n, **parameters)


def regal_graph(
    rng: np.random.Generator,
    topology: str,
    n: int,
    *,
    control: float = 0.1,
    name: str = "graph",
    **parameters: Any,
) -> ComputationGraph:
    """One graph as in REGAL's synthetic data.

    An undirected random graph is directed along a random order of its nodes. Every node is an op with one
    output. Runtimes (microseconds) and sizes (bytes) are independent draws of N(50, 10), rounded, at least 1.
    Each edge is a control edge with probability ``control``; otherwise it reads its source's output.
    There are two further ops with runtime 0. ``_SOURCE`` has no output and has control edges to all ops
    without predecessors (as in the release's example). ``_SINK`` follows all ops without successors; the
    edges into it are drawn like all others.

    Args:
      rng: Generator, consumed.
      topology: A name of `regal_jax.datasets.topologies.TOPOLOGIES`.
      n: Number of ops without source and sink, at least 1.
      control: Probability that an edge is a control edge.
      name: Name of the graph.
      **parameters: Parameters of the topology.

    Returns:
      A graph of ``n + 2`` ops; op 0 is the source, the last one the sink.

    Raises:
      ConfigError: The topology or a parameter is unknown, or a value is invalid.

    References:
      Paliwal et al. 2020, ICLR, "Tasks and datasets" and A.1.4; the release's README for the source. Details
      in neither (ids in topological order, no runtime of source and sink, which edges may be control edges)
      are our choice.
    """
    check_whole("n", n, 1)
    check_number("control", control, 0, 1)
    source, target = orient(rng, n, undirected(rng, topology, n, **parameters))
    ends = np.arange(n)
    tails = np.setdiff1d(ends, source)
    # The source has index 0, so all other ops move up by one.
    source = np.concatenate([source, tails]) + 1
    target = np.concatenate([target, np.full(len(tails), n)]) + 1
    order = np.lexsort((target, source))
    source, target = source[order], target[order]
    heads = np.setdiff1d(ends + 1, target)
    is_control = rng.random(len(source)) < control
    runtime, size = gaussian_costs(rng, n), gaussian_costs(rng, n)
    control_source = np.concatenate([np.zeros(len(heads), dtype=np.int64), source[is_control]])
    return ComputationGraph(
        name=name,
        op_names=("_SOURCE", *(f"node_{i}" for i in range(n)), "_SINK"),
        op_kinds=("",) * (n + 2),
        runtime=np.concatenate([[0.0], runtime, [0.0]]),
        temp_bytes=np.zeros(n + 2, dtype=np.int64),
        allowed_devices=(None,) * (n + 2),
        colocation_group=(None,) * (n + 2),
        tensor_op=ends + 1,
        tensor_bytes=size.astype(np.int64),
        tensor_keep=np.zeros(n, dtype=bool),
        edge_tensor=source[~is_control] - 1,
        edge_op=target[~is_control],
        control_source=control_source,
        control_target=np.concatenate([heads, target[is_control]]),
        time_unit="us",
    )
