"""`GflownetConfig`: the architecture of a network that samples schedules."""

import dataclasses
from typing import Final

from regal_jax.checks import check_number, check_setting, flag
from regal_jax.ordering.config import TopoformerConfig, checked_heads

__all__ = ["STATE_FEATURES", "GflownetConfig"]

STATE_FEATURES: Final = ("runtime", "start time", "device", "may be added", "may be removed", "scheduled")
"""Features of an op in a state, in their order; ``device`` is one-hot (appendix E.1)."""


@dataclasses.dataclass(frozen=True)
class GflownetConfig:
    """Architecture of a `SchedulePolicy`. Hashable: static under jit.

    The paper states the form of the network but none of its sizes. The defaults are our choice.

    Attributes:
      devices: ``D``, the largest number of devices; 4 in the paper. On a cluster with fewer devices the
        others are never chosen.
      layers: Number of layers of the encoder.
      width: ``W``, the width of embeddings and hidden layers.
      head_width: Width of the queries, keys and values of a head.
      heads: Seven numbers: the heads for each `regal_jax.ordering.Relation` from 1 to 7; 0 disables it. By
        default several heads attend to ops that can be scheduled before the op, so that they can tell the
        chains of the devices apart.
      temperature_width: Width of the embedding of the temperature.
      indicator_gain: Factor of the initial weights of the features that are 0 or 1. A factor above 1 keeps
        them visible beside start times, which can be much larger.
      lookahead: Whether features also contain the start time of an op on each device if it were added next,
        and the longest path behind it. The paper does not have these features.
      partition: Whether there is a second encoder that estimates log Z, for the loss of trajectory balance.
      value: Whether there is a head that estimates the return of a state, for PPO.

    Raises:
      ConfigError: A value is not allowed.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, section 3.3 and appendix D.
    """

    devices: int = 4
    layers: int = 2
    width: int = 64
    head_width: int = 16
    heads: tuple[int, ...] = (1, 1, 2, 1, 1, 1, 4)
    temperature_width: int = 64
    indicator_gain: float = 3.0
    lookahead: bool = False
    partition: bool = False
    value: bool = False

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        ranges = (("devices", 1, 256), ("layers", 0, 100), ("width", 1, 4096), ("head_width", 1, 4096))
        for field, low, high in (*ranges, ("temperature_width", 1, 4096)):
            set_(self, field, check_setting("gflownet", field, getattr(self, field), low, high))
        gain = check_number("gflownet: indicator_gain", self.indicator_gain, 0.0, 1e3)
        set_(self, "indicator_gain", gain)
        for field in ("lookahead", "partition", "value"):
            flag("gflownet", field, getattr(self, field))
        set_(self, "heads", checked_heads("gflownet", self.heads))

    @property
    def encoder(self) -> TopoformerConfig:
        """The architecture of the layers, which are those of Topoformer."""
        return TopoformerConfig(
            layers=self.layers,
            width=self.width,
            head_width=self.head_width,
            heads=self.heads,
            eigenvectors=0,
        )

    @property
    def features(self) -> int:
        """``F``, the number of features of an op in a state."""
        return len(STATE_FEATURES) - 1 + self.devices + (self.devices + 1 if self.lookahead else 0)

    @property
    def indicators(self) -> slice:
        """The features that are 0 or 1: those after the two times, without lookahead."""
        return slice(2, len(STATE_FEATURES) - 1 + self.devices)
