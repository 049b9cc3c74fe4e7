"""Orders on one device that a trained network proposes: Topoformer's samples, and its beam."""

import abc
import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regal_jax.checks import check_field
from regal_jax.plan import Objective, Plan
from regal_jax.solvers.protocol import Constructive, Instance
from regal_jax.solvers.weights import network_of, weights_stamp

if TYPE_CHECKING:
    from regal_jax.ordering import Topoformer

__all__ = [
    "TopoformerBeam",
    "TopoformerLike",
    "TopoformerSamples",
    "check_topoformer",
    "plan_of_order",
    "topoformer_of",
]

TopoformerLike = Any
"""A `regal_jax.ordering.Topoformer`, a file of its weights, or the name of shipped weights:
``"default"``, trained with the paper's loss, or ``"standardised"``, trained with peaks that are standardised
over the orders of a graph."""


def topoformer_of(given: TopoformerLike) -> "Topoformer":
    """The network that ``given`` names.

    Raises:
      ConfigError: There is no such file, or ``given`` is of another type.
      FormatError: The file holds no network.
    """
    from regal_jax.ordering import Topoformer, load_topoformer, shipped_topoformer
    from regal_jax.ordering.shipped import SHIPPED

    return network_of(given, Topoformer, SHIPPED, shipped_topoformer, load_topoformer)


def check_topoformer(given: TopoformerLike) -> None:
    """Refuses what names no network; a file is not read yet.

    Raises:
      ConfigError: There is no such file, or ``given`` is of another type.
    """
    from regal_jax.ordering.shipped import SHIPPED

    if not isinstance(given, (str, os.PathLike)):
        topoformer_of(given)
    elif os.fspath(given) not in SHIPPED:
        weights_stamp(os.fspath(given), SHIPPED)


def plan_of_order(solver: Constructive, instance: Instance, order: np.ndarray) -> Plan:
    """The plan of an order on the single device."""
    placement = np.zeros(instance.graph.num_ops, np.int64)
    said = {"method": solver.name, "seed": instance.number}
    return Plan.from_events(
        instance.graph, instance.cluster, placement, order, objective=instance.objective, provenance=said
    )


class _Neural(Constructive):
    """Orders by priorities, in batches."""

    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    most_devices: ClassVar[int | None] = 1
    together: ClassVar[int] = 64
    weights: TopoformerLike

    @abc.abstractmethod
    def _decoding(self) -> tuple[str, int]:
        """Name of the decoder, and number of candidates."""

    def construct(self, instance: Instance) -> Plan:
        """The plan of the best decoded order."""
        return self.construct_all([instance])[0]

    def construct_all(self, instances: Sequence[Instance]) -> Sequence[Plan]:
        """The plan of the best decoded order of each graph."""
        import jax

        from regal_jax.ordering import decode_orders
        from regal_jax.solve import graph_keys

        if not instances:
            return []
        model, (decoding, candidates) = topoformer_of(self.weights), self._decoding()
        graphs = [instance.graph for instance in instances]
        # All instances of a call have its seed.
        keys = graph_keys(jax.random.key(instances[0].number % 2**32), graphs)
        left = [instance.seconds for instance in instances if instance.seconds is not None]
        orders = decode_orders(
            model, graphs, keys, decoding=decoding, candidates=candidates, seconds=min(left, default=None)
        )
        return [plan_of_order(self, *pair) for pair in zip(instances, orders, strict=True)]


@dataclasses.dataclass(frozen=True)
class TopoformerSamples(_Neural):
    """The best of some orders that are drawn from Topoformer's priorities, with one network call per graph.

    Attributes:
      samples: Number of orders to draw; 0 takes the greedy order only.
      weights: ``"default"`` for the shipped weights, a file of weights or a `Topoformer`.

    Raises:
      ConfigError: A value is out of range.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", section 4.2.
    """

    name: ClassVar[str] = "topoformer"
    samples: int = 16
    weights: TopoformerLike = "default"

    def __post_init__(self) -> None:
        check_field(self, "samples", 0)

    def _decoding(self) -> tuple[str, int]:
        return ("sample", self.samples) if self.samples else ("greedy", 1)


@dataclasses.dataclass(frozen=True)
class TopoformerBeam(_Neural):
    """Beam search for the likeliest orders under Topoformer; the result is the one with the lowest peak.

    Attributes:
      width: Number of partial orders kept for each length.
      weights: As in `TopoformerSamples`.

    Raises:
      ConfigError: A value is out of range.

    References:
      Gagrani et al. 2022, section 4.2, "beam search with state-collapsing".
    """

    name: ClassVar[str] = "beam"
    width: int = 16
    weights: TopoformerLike = "default"

    def __post_init__(self) -> None:
        check_field(self, "width", 1)

    def _decoding(self) -> tuple[str, int]:
        return "beam", self.width
