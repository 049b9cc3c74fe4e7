"""Candidates for a synthetic set: each graph is a function of its own numbers alone."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind, check_whole, plain_values, shown
from regal_jax.datasets.regal import regal_graph, undirected
from regal_jax.datasets.topologies import TOPOLOGIES
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["SPLITS", "Candidate", "Recipe", "check_split", "draw_candidate"]

SPLITS: Final = ("train", "validation", "test")
"""Splits of every set and corpus, in ascending distance from training."""


def check_split(split: Any) -> None:
    """Refuses what is none of `SPLITS`.

    Raises:
      ConfigError: It is something else.
    """
    if not isinstance(split, str) or split not in SPLITS:
        raise ConfigError(f"split: there is no {shown(split)}; use one of {', '.join(SPLITS)}")


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Distribution of candidates; the defaults are those of REGAL's synthetic set.

    Attributes:
      topologies: Names of `TOPOLOGIES`, all equally likely.
      least_ops: Lower end of the uniform distribution of the number of ops, without source and sink.
      most_ops: Upper end of that distribution, inclusive.
      control: Probability that an edge is a control edge.
      parameters: Topology -> parameters that differ from the defaults.

    Raises:
      ConfigError: A topology or parameter is unknown, or a value is invalid.
    """

    topologies: tuple[str, ...] = tuple(TOPOLOGIES)
    least_ops: int = 50
    most_ops: int = 200
    control: float = 0.1
    parameters: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("least_ops", self.least_ops, 1)
        check_whole("most_ops", self.most_ops, self.least_ops)
        check_kind("topologies", self.topologies, Sequence)
        check_kind("parameters", self.parameters, Mapping)
        if not self.topologies:
            raise ConfigError(f"topologies: none; use some of {', '.join(TOPOLOGIES)}")
        for name in self.topologies:
            check_kind("topologies", name, str)
        for name, row in self.parameters.items():
            if name not in self.topologies:
                raise ConfigError(f"parameters: for {name!r}, which is none of the topologies; leave it out")
            check_kind(f"parameters of {name}", row, Mapping)
        # Draw once now, so that invalid parameters raise an error before a build begins.
        for name in self.topologies:
            parameters = {str(key): value for key, value in self.parameters.get(name, {}).items()}
            undirected(np.random.default_rng(0), name, 1, **parameters)
            regal_graph(np.random.default_rng(0), name, 1, control=self.control)
        object.__setattr__(self, "parameters", plain_values("parameters", self.parameters))

    def as_document(self) -> dict[str, Any]:
        """Plain values, for a manifest."""
        return {
            "topologies": list(self.topologies),
            "least_ops": int(self.least_ops),
            "most_ops": int(self.most_ops),
            "control": float(self.control),
            "parameters": {name: dict(row) for name, row in sorted(self.parameters.items())},
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Candidate:
    """A drawn graph that may become a member.

    Attributes:
      index: Index of the member that it may become.
      attempt: Number of the attempt, from 0.
      topology: Kind of its topology.
      graph: The graph.
    """

    index: int
    attempt: int
    topology: str
    graph: ComputationGraph


def draw_candidate(recipe: Recipe, seed: int, split: str, index: int, attempt: int) -> Candidate:
    """The ``attempt``-th candidate for member ``index`` of ``split``.

    Its random numbers come from a Philox generator keyed by seed, split, index and attempt. So it depends
    neither on other candidates nor on the process that draws it.

    Args:
      recipe: Distribution of candidates.
      seed: Seed of the set.
      split: One of `SPLITS`.
      index: Index of the member, from 0.
      attempt: Number of the attempt, from 0.

    Raises:
      ConfigError: An argument is invalid.
    """
    check_kind("recipe", recipe, Recipe)
    check_split(split)
    seed, index = check_whole("seed", seed, 0), check_whole("index", index, 0)
    attempt = check_whole("attempt", attempt, 0)
    key = np.random.SeedSequence(seed, spawn_key=(SPLITS.index(split), index, attempt))
    rng = np.random.Generator(np.random.Philox(key))
    topology = recipe.topologies[int(rng.integers(len(recipe.topologies)))]
    ops = int(rng.integers(recipe.least_ops, recipe.most_ops, endpoint=True))
    parameters = recipe.parameters.get(topology, MappingProxyType({}))
    name = f"{split}-{index}-{attempt}"
    graph = regal_graph(rng, topology, ops, control=recipe.control, name=name, **parameters)
    return Candidate(index, attempt, topology, graph)
