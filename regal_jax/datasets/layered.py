"""Layered graphs, shaped like neural networks (Gagrani et al., NeurIPS 2022, appendix A)."""

import dataclasses
from typing import Final

import numpy as np

from regal_jax.checks import check_number, check_whole
from regal_jax.datasets.one_output import one_output_graph
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = [
    "MIXTURE_MEANS",
    "MIXTURE_STDS",
    "MIXTURE_WEIGHTS",
    "LayeredTopology",
    "layered_graph",
    "layered_topology",
    "memory_costs",
]

MIXTURE_WEIGHTS: Final = (0.3, 0.3, 0.3, 0.1)
MIXTURE_MEANS: Final = (0.5, 1.0, 3.0, 5.0)
MIXTURE_STDS: Final = (0.5, 1.0, 1.0, 1.0)
_MOST_UNIT: Final = 2**40
"""Bytes. The sizes of a graph must add up to less than 2**63."""


@dataclasses.dataclass(frozen=True, eq=False)
class LayeredTopology:
    """Nodes in layers and the edges between them.

    Attributes:
      layer: ``[n]`` layer of each node, ascending from 0.
      adjacent: ``[E, 2]`` edges from a layer to the next, ascending.
      skip: ``[S, 2]`` distinct edges that skip at least one layer, ascending.
      skips_drawn: ``N_S`` of eq. 14, which counts repeated draws.
      target_layers: ``L`` of eq. 11, which may differ from the number of layers.
    """

    layer: np.ndarray
    adjacent: np.ndarray
    skip: np.ndarray
    skips_drawn: int
    target_layers: int


def layered_topology(
    rng: np.random.Generator,
    n: int,
    *,
    width_low: float = 0.25,
    width_high: float = 0.5,
    layer_spread: float = 0.75,
    edge_density: float = 0.2,
    skip_density: float = 0.14,
) -> LayeredTopology:
    """Algorithms 1 to 3 of the paper.

    Where the paper leaves details open, these choices apply: if the interval of eq. 12 is empty (fewer than
    about one node per layer), a layer has one node; numbers halfway are rounded up; an edge drawn twice, by
    the repeated loop of algorithm 2 or as two skip connections, is one edge.

    Args:
      rng: Generator, consumed.
      n: Number of nodes, at least 1.
      width_low: Lower end of the uniform distribution of the width factor ``W``.
      width_high: Upper end of that distribution; a width near 0 gives a chain, 1 a single layer.
      layer_spread: Variability of the number of nodes in a layer, ``sigma_N``.
      edge_density: ``rho_E``: 0 for the fewest edges between adjacent layers that leave no node isolated, 1
        for all edges.
      skip_density: ``rho_S``, the share of skip connections among all edges.

    Raises:
      ConfigError: A parameter is invalid.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix A, eqs. 11 to 14.
    """
    check_whole("n", n, 1)
    named = {"layer_spread": layer_spread, "edge_density": edge_density, "skip_density": skip_density}
    for what, value in (named | {"width_low": width_low, "width_high": width_high}).items():
        check_number(what, value, 0, 1)
    if not 0 < width_low <= width_high or skip_density == 1:
        raise ConfigError(
            f"width_low {width_low}, width_high {width_high}, skip_density {skip_density}: widths must rise "
            "from above 0, and a density of skip connections must be below 1"
        )
    target = _target_layers(n, float(rng.uniform(width_low, width_high)))
    sizes = _layer_sizes(rng, n, target, layer_spread)
    first = np.concatenate([[0], np.cumsum(sizes)])
    adjacent = [
        first[i : i + 2] + _edges_between(rng, sizes[i], sizes[i + 1], edge_density)
        for i in range(len(sizes) - 1)
    ]
    edges = np.concatenate([np.zeros((0, 2), dtype=np.int64), *adjacent])
    drawn, skip = _skip_connections(rng, sizes, first, len(edges), skip_density)
    return LayeredTopology(
        np.repeat(np.arange(len(sizes)), sizes), np.unique(edges, axis=0), skip, drawn, target
    )


def _target_layers(n: int, width: float) -> int:
    """Eq. 11; a width of 1 gives a single layer, as in the text, not the 0 of the formula."""
    return max(1, int(np.ceil(np.sqrt(n * (1 / width - 1)))))


def _layer_sizes(rng: np.random.Generator, n: int, layers: int, spread: float) -> list[int]:
    """Algorithm 1: layers with the sizes of eq. 12 until all nodes are used."""
    low = max(1, int(np.ceil(n / layers * (1 - spread))))
    high = max(low, int(np.floor(n / layers * (1 + spread))))
    sizes: list[int] = []
    left = n
    while left > 0:
        sizes.append(min(left, int(rng.integers(low, high, endpoint=True))))
        left -= sizes[-1]
    return sizes


def _edges_between(rng: np.random.Generator, upper: int, lower: int, density: float) -> np.ndarray:
    """Algorithm 2 for one pair of layers: ``[E, 2]``, nodes counted from the first of their layer."""
    large, small = max(upper, lower), min(upper, lower)
    budget = int(np.floor(upper * lower * density + (1 - density) * large + 0.5))
    # Repeated assignment to a node with fewest edges, ties at random, gives all nodes equal numbers and
    # the rest at random.
    count = np.full(large, budget // large)
    count[rng.permutation(large)[: budget % large]] += 1
    node = np.arange(large)
    centre = np.floor(node * (small - 1) / max(large - 1, 1) + 0.5).astype(np.int64)
    begin = np.minimum(np.maximum(centre - (count - 1) // 2, 0), small - count)
    start = np.cumsum(count) - count
    other = np.arange(count.sum()) - np.repeat(start - begin, count)
    edges = np.stack([np.repeat(node, count), other], axis=1)
    return edges if upper >= lower else edges[:, ::-1]


def _skip_connections(
    rng: np.random.Generator, sizes: list[int], first: np.ndarray, edges: int, density: float
) -> tuple[int, np.ndarray]:
    """Algorithm 3: number of skip connections drawn (eq. 14), and the distinct ones."""
    layers = len(sizes)
    if layers < 3:
        return 0, np.zeros((0, 2), dtype=np.int64)
    drawn = int(np.ceil(edges * density / (1 - density)))
    rows = np.zeros((drawn, 2), dtype=np.int64)
    for i in range(drawn):
        source = int(rng.integers(0, layers - 2))
        target = int(rng.integers(source + 2, layers))
        x, y = rng.random(2).tolist()
        below = min(x + 0.2 * y, 0.999)
        rows[i] = first[source] + int(x * sizes[source]), first[target] + int(below * sizes[target])
    return drawn, np.unique(rows, axis=0)


def memory_costs(rng: np.random.Generator, count: int) -> np.ndarray:
    """``[count]`` float64 draws of the Gaussian mixture of eq. 16, restricted to the positive reals.

    The paper's "projected on to the positive reals" is taken as a restriction: a draw that is not positive is
    repeated, including the choice of its component. (With a projection to zero, a tenth of the costs would be
    0.)
    """
    costs = np.zeros(count)
    bad = np.ones(count, dtype=bool)
    while bad.any():
        component = rng.choice(len(MIXTURE_WEIGHTS), size=int(bad.sum()), p=MIXTURE_WEIGHTS)
        costs[bad] = rng.normal(np.array(MIXTURE_MEANS)[component], np.array(MIXTURE_STDS)[component])
        bad = costs <= 0
    return costs


def layered_graph(
    rng: np.random.Generator,
    n: int,
    *,
    unit_bytes: int = 2**20,
    name: str = "graph",
    **parameters: float,
) -> ComputationGraph:
    """A layered graph with the paper's memory costs: every node is an op with one output.

    All ops of a layer have the same output memory and the same parameter memory, each a draw of eq. 16. The
    parameter memory is `temp_bytes`, held only while the op runs (eq. 15). The paper orders for memory and
    has no runtimes, so every op takes 1 us.

    Args:
      rng: Generator, consumed.
      n: Number of ops, at least 1.
      unit_bytes: Bytes per unit of cost, at most 2**40; sizes are rounded to whole bytes, at least 1.
      name: Name of the graph.
      **parameters: Parameters of `layered_topology`.

    Raises:
      ConfigError: A parameter is invalid.

    References:
      Gagrani et al. 2022, appendix A, eqs. 15 and 16.
    """
    check_whole("unit_bytes", unit_bytes, 1, _MOST_UNIT)
    topology = layered_topology(rng, n, **parameters)
    layers = int(topology.layer[-1]) + 1
    costs = np.stack([memory_costs(rng, layers), memory_costs(rng, layers)])
    output, parameter = np.maximum(1, np.rint(costs * unit_bytes)).astype(np.int64)[:, topology.layer]
    edges = np.concatenate([topology.adjacent, topology.skip])
    return one_output_graph(name, edges, np.ones(n), output, temp_bytes=parameter)
