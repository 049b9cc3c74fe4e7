"""Four classical random graphs, and the orientation of undirected graphs as DAGs.

Edges are arrays ``[E, 2]`` of pairs of nodes ``0`` to ``n - 1``, each pair once and none with itself.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from regal_jax.checks import check_number, check_whole
from regal_jax.errors import ConfigError
from regal_jax.runtime.memory import check_memory, machine_memory

__all__ = [
    "TOPOLOGIES",
    "Topology",
    "barabasi_albert",
    "erdos_renyi",
    "orient",
    "stochastic_block",
    "watts_strogatz",
]

Topology = Callable[..., np.ndarray]
"""``topology(rng, n, **parameters)`` -> undirected edges ``[E, 2]``."""


def erdos_renyi(rng: np.random.Generator, n: int, *, probability: float = 0.05) -> np.ndarray:
    """G(n, p): every pair is joined with the same probability.

    Args:
      rng: Generator, consumed.
      n: Number of nodes.
      probability: Probability of an edge.

    Returns:
      ``[E, 2]`` int64; ``E`` is binomial with mean ``p n (n - 1) / 2``.

    Raises:
      ConfigError: ``probability`` is not between 0 and 1, or all pairs do not fit into the memory.
    """
    check_number("probability", probability, 0, 1)
    _check_pairs(n, 41)
    first, second = np.triu_indices(n, 1)
    return np.stack([first, second], axis=1)[rng.random(len(first)) < probability]


def watts_strogatz(
    rng: np.random.Generator, n: int, *, neighbours: int = 4, rewiring: float = 0.3
) -> np.ndarray:
    """A ring lattice of nearest neighbours in which some edges are rewired.

    Each edge of the ring lattice in turn keeps its first node. With probability ``rewiring`` it gets a new
    second node, uniform among the nodes not adjacent to the first. The number of edges does not change.

    Args:
      rng: Generator, consumed.
      n: Number of nodes.
      neighbours: Even number ``k``; each node is first joined to ``k / 2`` nodes on either side.
      rewiring: Probability that an edge is rewired.

    Returns:
      ``[E, 2]`` int64; ``E = n k / 2`` where ``n > k``, all pairs where ``n`` is less.

    Raises:
      ConfigError: ``neighbours`` is odd or negative, ``rewiring`` is not between 0 and 1, or all pairs do not
        fit into the memory.

    References:
      Watts and Strogatz 1998, "Collective dynamics of 'small-world' networks", Nature 393, methods.
    """
    check_whole("neighbours", neighbours, 0)
    check_number("rewiring", rewiring, 0, 1)
    if neighbours % 2:
        raise ConfigError(
            f"neighbours: half of them are on either side, got {neighbours}; give an even number"
        )
    _check_pairs(n, 6)
    joined = np.zeros((n, n), dtype=bool)
    lattice = []
    # Further offsets join the same pairs again.
    for step in range(1, min(neighbours // 2, n) + 1):
        for u in range(n):
            v = (u + step) % n
            if u != v and not joined[u, v]:  # In a small ring, two offsets may give the same edge.
                joined[u, v] = joined[v, u] = True
                lattice.append((u, v))
    coins = rng.random(len(lattice))
    for (u, v), coin in zip(lattice, coins.tolist(), strict=True):
        free = np.flatnonzero(~joined[u])
        free = free[free != u]
        if coin < rewiring and len(free):
            w = int(rng.choice(free))
            joined[u, v] = joined[v, u] = False
            joined[u, w] = joined[w, u] = True
    return np.argwhere(np.triu(joined))


def barabasi_albert(rng: np.random.Generator, n: int, *, links: int = 2) -> np.ndarray:
    """Nodes are added one by one and are preferably joined to nodes of high degree.

    The first ``links`` nodes have no edges at first. The next node is joined to all of them. Every later node
    is joined to ``links`` distinct nodes, drawn one after another in proportion to their degrees.

    Args:
      rng: Generator, consumed.
      n: Number of nodes.
      links: Number of edges ``m`` of each new node.

    Returns:
      ``[E, 2]`` int64; ``E = m (n - m)`` if ``n > m``, else 0.

    Raises:
      ConfigError: ``links`` is below 1.

    References:
      Barabási and Albert 1999, "Emergence of scaling in random networks", Science 286.
    """
    check_whole("links", links, 1)
    degree = np.zeros(max(n, 1))
    edges = []
    for v in range(links, n):
        weights = degree[:v] if v > links else np.ones(v)
        others = rng.choice(v, size=links, replace=False, p=weights / weights.sum())
        degree[others] += 1
        degree[v] = links
        edges += [(int(u), v) for u in np.sort(others)]
    return np.array(edges, dtype=np.int64).reshape(-1, 2)


def stochastic_block(
    rng: np.random.Generator, n: int, *, blocks: int = 4, p_in: float = 0.3, p_out: float = 0.001
) -> np.ndarray:
    """Blocks of nodes with many edges inside and few between them.

    Args:
      rng: Generator, consumed.
      n: Number of nodes; node ``i`` is in block ``i * blocks // n``, so that sizes differ by one at most.
      blocks: Number of blocks.
      p_in: Probability of an edge within a block.
      p_out: Probability of an edge between blocks.

    Returns:
      ``[E, 2]`` int64.

    Raises:
      ConfigError: ``blocks`` is below 1, a probability is not between 0 and 1, or all pairs do not fit into
        the memory.

    References:
      Holland, Laskey and Leinhardt 1983, "Stochastic blockmodels: first steps", Social Networks 5.
    """
    check_whole("blocks", blocks, 1)
    check_number("p_in", p_in, 0, 1)
    check_number("p_out", p_out, 0, 1)
    _check_pairs(n, 49)
    # With more blocks than nodes each node is alone, too.
    block = np.arange(n) * min(blocks, max(n, 1)) // max(n, 1)
    first, second = np.triu_indices(n, 1)
    probability = np.where(block[first] == block[second], p_in, p_out)
    return np.stack([first, second], axis=1)[rng.random(len(first)) < probability]


def _check_pairs(n: int, each: int) -> None:
    """Refuses arrays that do not fit into memory; ``each`` is the bytes of a pair, as measured."""
    size = each * n * (n - 1) // 2
    remedy = "give fewer, or take the topology barabasi-albert"
    check_memory(f"n: all pairs of {n:,} ops", size, machine_memory(), remedy)


TOPOLOGIES: Final[Mapping[str, Topology]] = MappingProxyType(
    {
        "erdos-renyi": erdos_renyi,
        "watts-strogatz": watts_strogatz,
        "barabasi-albert": barabasi_albert,
        "stochastic-block": stochastic_block,
    }
)
"""Name -> topology; the defaults of the parameters are those of REGAL's synthetic data."""


def orient(rng: np.random.Generator, n: int, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sources and targets of ``edges`` under a random order of the nodes, renumbered in that order.

    Every edge points from the earlier node to the later one, so ``source < target`` holds and there is no
    cycle.
    """
    rank = rng.permutation(n)
    ends = np.sort(rank[edges.reshape(-1, 2)], axis=1)
    ends = ends[np.lexsort((ends[:, 1], ends[:, 0]))]
    return ends[:, 0], ends[:, 1]
