"""Which graphs may become members of a synthetic set: each a function of its own numbers alone."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_whole
from regal_jax.datasets.regal import regal_graph, undirected
from regal_jax.datasets.topologies import TOPOLOGIES
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["SPLITS", "Candidate", "Recipe", "draw_candidate"]

SPLITS: Final = ("train", "validation", "test")
"""Of every set and corpus; the later one is the further from training."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """What candidates are drawn from; the defaults are REGAL's synthetic set.

    Attributes:
      topologies: Names of `TOPOLOGIES`, all as likely.
      least_ops: The number of ops (source and sink not counted) is uniform from this ...
      most_ops: ... to this.
      control: Probability that an edge is a control edge.
      parameters: Topology -> its parameters that are not the default.

    Raises:
      ConfigError: An unknown topology or parameter, or an impossible number.
    """

    topologies: tuple[str, ...] = tuple(TOPOLOGIES)
    least_ops: int = 50
    most_ops: int = 200
    control: float = 0.1
    parameters: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("least_ops", self.least_ops, 1)
        check_whole("most_ops", self.most_ops, self.least_ops)
        if not self.topologies:
            raise ConfigError(f"topologies: none; use some of {', '.join(TOPOLOGIES)}")
        for name in self.parameters:
            if name not in self.topologies:
                raise ConfigError(f"parameters: for {name!r}, which is none of the topologies; leave it out")
        # Drawn once now, so that what cannot be is refused before a build begins.
        for name in self.topologies:
            undirected(np.random.default_rng(0), name, 1, **self.parameters.get(name, {}))
            regal_graph(np.random.default_rng(0), name, 1, control=self.control)

    def as_document(self) -> dict[str, Any]:
        """For a manifest: plain values."""
        return {
            "topologies": list(self.topologies),
            "least_ops": int(self.least_ops),
            "most_ops": int(self.most_ops),
            "control": float(self.control),
            "parameters": {name: dict(row) for name, row in sorted(self.parameters.items())},
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A drawn graph, before anybody has said whether it stays.

    Attributes:
      index: Of the member that it may become.
      attempt: Which try, from 0.
      topology: Its kind.
      graph: The graph.
    """

    index: int
    attempt: int
    topology: str
    graph: ComputationGraph


def draw_candidate(recipe: Recipe, seed: int, split: str, index: int, attempt: int) -> Candidate:
    """The ``attempt``-th try for member ``index`` of ``split``.

    Its random numbers come from a Philox generator of its own, keyed by all four numbers: no other candidate,
    and nothing about who draws it or when, has a part in it.

    Args:
      recipe: What to draw from.
      seed: Of the set.
      split: One of `SPLITS`.
      index: From 0.
      attempt: From 0.
    """
    key = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split), index, attempt))
    rng = np.random.Generator(np.random.Philox(key))
    topology = recipe.topologies[int(rng.integers(len(recipe.topologies)))]
    ops = int(rng.integers(recipe.least_ops, recipe.most_ops, endpoint=True))
    parameters = recipe.parameters.get(topology, MappingProxyType({}))
    name = f"{split}-{index}-{attempt}"
    graph = regal_graph(rng, topology, ops, control=recipe.control, name=name, **parameters)
    return Candidate(index, attempt, topology, graph)
