"""Random graphs of a few shapes, with the costs of REGAL's synthetic data."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["FAMILIES", "generate"]

_Predecessors = Callable[[np.random.Generator, int, float], list[np.ndarray]]


def _erdos_renyi(rng: np.random.Generator, n: int, degree: float) -> list[np.ndarray]:
    # A binomial number of distinct predecessors is the same as a coin for each, and n large is no problem.
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


def _chain(rng: np.random.Generator, n: int, _: float) -> list[np.ndarray]:
    del rng
    return [np.arange(max(0, v - 1), v) for v in range(n)]


def _fork_join(rng: np.random.Generator, n: int, width: float) -> list[np.ndarray]:
    # Op 0 forks; then blocks of `width` branches and the op that joins them and forks the next block.
    del rng
    block = int(width) + 1
    rows = [np.arange(0)]
    for v in range(1, n):
        fork = (v - 1) // block * block
        joins = v == fork + block or (v == n - 1 and v > fork + 1)
        rows.append(np.arange(fork + 1, v) if joins else np.array([fork]))
    return rows[:n]


_FAMILIES: Final[Mapping[str, tuple[_Predecessors, float]]] = {
    "erdos-renyi": (_erdos_renyi, 2.0),
    "layered": (_layered, 16),
    "chain": (_chain, 1),
    "fork-join": (_fork_join, 8),
}

FAMILIES: Final[Mapping[str, float]] = MappingProxyType(
    {name: shape for name, (_, shape) in _FAMILIES.items()}
)
"""The families that `generate` knows, and the default of its ``shape`` for each."""


def generate(family: str, n: int, seed: int, *, shape: float | None = None) -> ComputationGraph:
    """A random graph of ``n`` ops.

    Every op has one output; runtimes (microseconds) and sizes (bytes) are drawn from N(50, 10), rounded
    and at least 1, as in REGAL's synthetic data; whole numbers, so that every file format can carry them.

    Args:
      family: ``erdos-renyi`` (every pair joined with equal probability), ``layered`` (two or three inputs
        from the two layers above), ``chain``, or ``fork-join`` (blocks of parallel ops, one after another).
      n: Number of ops, at least 1.
      seed: Zero or more; the same seed makes the same graph.
      shape: Average number of consumers of an op (``erdos-renyi``), ops a layer (``layered``), branches a
        block (``fork-join``); the default is in `FAMILIES`.

    Returns:
      The graph, named ``FAMILY-N-SEED``.

    Raises:
      ConfigError: An unknown family, or an impossible number.
    """
    if family not in _FAMILIES:
        raise ConfigError(f"family: unknown {family!r}; use one of {', '.join(_FAMILIES)}")
    for what, value, least in (("n", n, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ConfigError(f"{what}: must be a whole number of at least {least}, got {value!r}")
    draw, default = _FAMILIES[family]
    shape = default if shape is None else shape
    least = 0 if family == "erdos-renyi" else 1
    if isinstance(shape, bool) or not isinstance(shape, (int, float)) or not least <= shape <= 2**31:
        raise ConfigError(f"shape: must be a number of at least {least} for {family!r}, got {shape!r}")
    rng = np.random.default_rng(seed)
    predecessors = draw(rng, n, shape)
    source = np.concatenate(predecessors).astype(np.int64)
    target = np.repeat(np.arange(n), [len(p) for p in predecessors])
    order = np.lexsort((target, source))
    runtime, size = np.maximum(1.0, np.rint(rng.normal(50.0, 10.0, size=(2, n))))
    none = np.zeros(0, dtype=np.int64)
    return ComputationGraph(
        name=f"{family}-{n}-{seed}",
        op_names=tuple(f"op{o}" for o in range(n)),
        op_kinds=("",) * n,
        runtime=runtime,
        temp_bytes=np.zeros(n, dtype=np.int64),
        allowed_devices=(None,) * n,
        colocation_group=(None,) * n,
        tensor_op=np.arange(n),
        tensor_bytes=size.astype(np.int64),
        tensor_keep=np.zeros(n, dtype=bool),
        edge_tensor=source[order],
        edge_op=target[order],
        control_source=none,
        control_target=none,
        time_unit="us",
    )
