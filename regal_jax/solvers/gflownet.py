"""Schedules that a trained network samples in proportion to a reward: the GFlowNet paper's method."""

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from regal_jax.checks import check_field, real, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import TransferModel
from regal_jax.plan import BestDraft, Objective, Plan, insert_transfers
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers.protocol import Constructive, Instance
from regal_jax.solvers.weights import network_of

if TYPE_CHECKING:
    from regal_jax.gflownet import SchedulePolicy

__all__ = ["Gflownet", "GflownetLike", "gflownet_of"]

GflownetLike = Any
"""A `regal_jax.gflownet.SchedulePolicy`, a file of its weights, or ``"default"`` for those that ship."""


def gflownet_of(given: GflownetLike) -> "SchedulePolicy":
    """The network that ``given`` names.

    Raises:
      ConfigError: There is no such file, or ``given`` is of another type.
      FormatError: The file holds no network.
    """
    from regal_jax.gflownet import SchedulePolicy, load_gflownet, shipped_gflownet
    from regal_jax.gflownet.shipped import SHIPPED

    return network_of(given, SchedulePolicy, SHIPPED, shipped_gflownet, load_gflownet)


@dataclasses.dataclass(frozen=True)
class Gflownet(Constructive):
    """The best of some schedules that a GFlowNet samples.

    The network considers neither transfers nor memory. If transfers are not free or memory is limited, every
    schedule is replayed, and the best plan is taken.

    Attributes:
      samples: Number of schedules; the paper takes 1000.
      temperature: The lower, the higher the mean speed-up and the lower the diversity. The default is the
        paper's.
      weights: ``"default"`` for the weights that ship, a file of weights or a `SchedulePolicy`. The cluster
        may have no more devices than the network.

    Raises:
      ConfigError: A value is out of range.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, sections 3.3 and 5.

    Examples:
      >>> from regal_jax import Cluster, Gflownet, optimize
      >>> from regal_jax.datasets import generate
      >>> graph = generate("gflownet-layered", 12, seed=0)
      >>> optimize(graph, Cluster.uniform(4, transfer="free"), method=Gflownet(samples=8)).feasible
      True
    """

    name: ClassVar[str] = "gflownet"
    objective: ClassVar[Objective | None] = Objective.MAKESPAN
    samples: int = 100
    temperature: float = 0.005
    weights: GflownetLike = "default"

    def __post_init__(self) -> None:
        check_field(self, "samples", 1)
        temperature = real(self.temperature, 1e-6, 1e6)
        if temperature is None:
            raise ConfigError(
                f"Gflownet: temperature is {shown(self.temperature)}; give a number from 1e-06 to 1e+06"
            )
        object.__setattr__(self, "temperature", temperature)

    @property
    def most_devices(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Largest number of devices of the network."""
        return gflownet_of(self.weights).config.devices

    def construct(self, instance: Instance) -> Plan:
        """The best of the schedules that are sampled within the time limit."""
        import jax

        from regal_jax.gflownet import sample_schedules
        from regal_jax.solve import graph_keys

        key = graph_keys(jax.random.key(instance.number % 2**32), [instance.graph])[0]
        found = sample_schedules(
            gflownet_of(self.weights),
            instance.graph,
            instance.cluster,
            key,
            count=self.samples,
            temperature=self.temperature,
            seconds=instance.seconds,
        )
        graph, cluster = instance.graph, instance.cluster
        best = BestDraft(graph, cluster, instance.objective)
        # By the network's own makespans, where memory and transfers do not count.
        alone = cluster.transfer is TransferModel.FREE and np.isinf(cluster.memory).all()
        for i in [int(found.speedup.argmax())] if alone else range(len(found.sequence)):
            check_interrupt()
            placement = found.devices[i].astype(np.int64)
            events = insert_transfers(graph, cluster, placement, found.sequence[i])
            best.offer(placement, events, {"method": self.name, "seed": instance.number})
        return best.plan()
