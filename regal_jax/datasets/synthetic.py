"""Every synthetic family by name: `generate`."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_whole
from regal_jax.datasets.gflownet import GFLOWNET_TOPOLOGIES, gflownet_graph
from regal_jax.datasets.layered import layered_graph, layered_topology
from regal_jax.datasets.plain import PLAIN_SHAPES, plain_graph
from regal_jax.datasets.regal import regal_graph
from regal_jax.datasets.topologies import TOPOLOGIES
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.runtime.interrupts import interruptible

__all__ = ["FAMILIES", "Family", "generate"]


@dataclasses.dataclass(frozen=True)
class Family:
    """One row of `FAMILIES`.

    Attributes:
      make: Function ``make(rng, n, name=..., **parameters)`` -> graph.
      parameters: Parameters and their defaults.
      source: Source of the family.
    """

    make: Callable[..., ComputationGraph]
    parameters: Mapping[str, Any]
    source: str


def _defaults(*functions: Callable[..., Any]) -> Mapping[str, Any]:
    found = {
        p.name: p.default
        for function in functions
        for p in inspect.signature(function).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.name != "name"
    }
    return MappingProxyType(found)


def _named(make: Callable[..., ComputationGraph], which: str) -> Callable[..., ComputationGraph]:
    return functools.partial(_call, make, which)


def _call(
    make: Callable[..., ComputationGraph], which: str, rng: np.random.Generator, n: int, **options: Any
):
    return make(rng, which, n, **options)


def _families() -> dict[str, Family]:
    rows = {
        name: Family(
            _named(plain_graph, name),
            MappingProxyType({} if shape is None else {"shape": shape}),
            "tests and benchmarks",
        )
        for name, shape in PLAIN_SHAPES.items()
    }
    rows |= {
        f"regal-{name}": Family(_named(regal_graph, name), _defaults(topology, regal_graph), "REGAL, A.1.4")
        for name, topology in TOPOLOGIES.items()
    }
    rows["ordering-layered"] = Family(
        layered_graph, _defaults(layered_topology, layered_graph), "Neural Topological Ordering, appendix A"
    )
    draws = {**TOPOLOGIES, "layered": layered_topology}
    rows |= {
        f"gflownet-{name}": Family(_named(gflownet_graph, name), _defaults(draws[name]), "GFlowNets, E.5")
        for name in GFLOWNET_TOPOLOGIES
    }
    return rows


_MOST_OPS: Final = 10**7
FAMILIES: Final[Mapping[str, Family]] = MappingProxyType(_families())
"""The families that `generate` knows."""


@interruptible()
def generate(family: str, n: int, seed: int, **parameters: Any) -> ComputationGraph:
    """A random graph of ``n`` ops.

    The name of a family tells its source. ``regal-*`` (`regal_graph`), ``ordering-layered`` (`layered_graph`)
    and ``gflownet-*`` (`gflownet_graph`) are the data of these papers. Names without a prefix (`plain_graph`)
    are plain graphs for tests and benchmarks; ``layered``, for example, is from no paper. Runtimes are in
    microseconds and, except for ``gflownet-*``, whole, so that every file format can hold them.

    Args:
      family: A key of `FAMILIES`.
      n: Number of ops, from 1 to ten million; ``regal-*`` adds a source and a sink.
      seed: Non-negative seed; the same seed gives the same graph.
      **parameters: Parameters of the family, see `Family.parameters`; ``None`` for the default.

    Returns:
      The graph, named ``FAMILY-N-SEED``.

    Raises:
      ConfigError: The family or a parameter is unknown, or a value is invalid.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> print(generate("chain", 3, seed=0))
      graph 'chain-3-0': 3 ops, 3 tensors, 2 data edges, 0 control edges
    """
    if not isinstance(family, str) or family not in FAMILIES:
        raise ConfigError(f"family: unknown {family!r}; use one of {', '.join(FAMILIES)}")
    check_whole("n", n, 1, _MOST_OPS)
    check_whole("seed", seed, 0)
    found = FAMILIES[family]
    for name in parameters:
        if name not in found.parameters:
            raise ConfigError(
                f"{family}: no parameter {name!r}; it has {', '.join(found.parameters) or 'none'}"
            )
    given = {name: value for name, value in parameters.items() if value is not None}
    return found.make(np.random.default_rng(seed), n, name=f"{family}-{n}-{seed}", **given)
