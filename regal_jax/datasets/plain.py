"""Plain random graphs for tests and benchmarks, not from any paper."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from regal_jax.checks import real, shown
from regal_jax.datasets.one_output import one_output_graph
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["PLAIN_SHAPES", "plain_graph"]

_Predecessors = Callable[[np.random.Generator, int, Any], list[np.ndarray]]


def _erdos_renyi(rng: np.random.Generator, n: int, degree: float) -> list[np.ndarray]:
    # A binomial number of distinct predecessors has the same distribution as a coin flip per pair, and is
    # fast for large n.
    p = min(1.0, 2 * degree / max(1, n - 1))
    counts = rng.binomial(np.arange(n), p)
    return [
        np.sort(rng.choice(v, size=k, replace=False)) if k else np.arange(0) for v, k in enumerate(counts)
    ]


def _layered(rng: np.random.Generator, n: int, width: float) -> list[np.ndarray]:
    w = int(width)
    rows = [np.arange(0)] * min(n, w)
    for v in range(w, n):
        layer = v // w
        above = np.arange(max(0, layer - 2) * w, layer * w)
        rows.append(np.sort(rng.choice(above, size=min(len(above), int(rng.integers(2, 4))), replace=False)))
    return rows


def _chain(rng: np.random.Generator, n: int, _: None) -> list[np.ndarray]:
    del rng
    return [np.arange(max(0, v - 1), v) for v in range(n)]


def _fork_join(rng: np.random.Generator, n: int, width: float) -> list[np.ndarray]:
    # Op 0 forks. Each block has `width` branches and an op that joins them and forks the next block.
    del rng
    block = int(width) + 1
    rows = [np.arange(0)]
    for v in range(1, n):
        fork = (v - 1) // block * block
        joins = v == fork + block or (v == n - 1 and v > fork + 1)
        rows.append(np.arange(fork + 1, v) if joins else np.array([fork]))
    return rows[:n]


_PREDECESSORS: Final[Mapping[str, tuple[_Predecessors, float | None]]] = MappingProxyType(
    {
        "erdos-renyi": (_erdos_renyi, 2.0),
        "layered": (_layered, 16),
        "chain": (_chain, None),
        "fork-join": (_fork_join, 8),
    }
)

PLAIN_SHAPES: Final[Mapping[str, float | None]] = MappingProxyType(
    {name: shape for name, (_, shape) in _PREDECESSORS.items()}
)
"""Plain family -> default of ``shape``; ``None`` where the family has no such parameter."""


def plain_graph(
    rng: np.random.Generator, family: str, n: int, *, shape: float | None = None, name: str = "graph"
) -> ComputationGraph:
    """A plain graph with Gaussian costs, each op with one output.

    Args:
      rng: Generator, consumed.
      family: A key of `PLAIN_SHAPES`: ``erdos-renyi`` (every pair joined with equal probability),
        ``layered`` (two or three inputs from the two layers above), ``chain``, or ``fork-join`` (blocks of
        parallel ops, one after another).
      n: Number of ops, at least 1.
      shape: Average number of consumers of an op (``erdos-renyi``), ops per layer (``layered``), or branches
        per block (``fork-join``).
      name: Name of the graph.

    Raises:
      ConfigError: The shape is invalid, or the family has none.
    """
    draw, default = _PREDECESSORS[family]
    if shape is not None:
        _check_shape(family, shape)
    predecessors = draw(rng, n, default if shape is None else shape)
    source = np.concatenate(predecessors).astype(np.int64)
    target = np.repeat(np.arange(n), [len(p) for p in predecessors])
    runtime, size = np.maximum(1.0, np.rint(rng.normal(50.0, 10.0, size=(2, n))))
    return one_output_graph(name, np.stack([source, target], axis=1), runtime, size)


def _check_shape(family: str, shape: Any) -> None:
    if PLAIN_SHAPES[family] is None:
        raise ConfigError(f"shape: {family!r} has none; leave it out")
    fractions = family == "erdos-renyi"
    least = 0 if fractions else 1
    given = real(shape, least, 2**31)
    if given is None or not (fractions or given.is_integer()):
        what = "number" if fractions else "whole number"
        raise ConfigError(f"shape: must be a {what} of at least {least} for {family!r}, got {shown(shape)}")
