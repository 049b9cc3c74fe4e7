"""`OrderSearchConfig`, apart from the search: who reads settings need not load compiled loops."""

import dataclasses
import math

from regal_jax.checks import real, shown, whole
from regal_jax.errors import ConfigError

__all__ = ["OrderSearchConfig"]


@dataclasses.dataclass(frozen=True)
class OrderSearchConfig:
    """How `OrderSearchRun` widens its beams.

    The defaults were chosen on training graphs, see docs/ablations.md.

    Attributes:
      width: Partial orders of each length, in the first beams.
      growth: Beams become so many times as wide when the limit can be lowered no more.
      most_width: Beams become no wider; then sets are compared by random amounts as well.
      steps: Shares of the peak by which the limit is lowered below it, one after the other fails.
      noise: Standard deviation of the random amount of an op, as a share of the mean bytes that ops allocate.
      guide: Weight of `OrderSearchRun`'s priorities, likewise.
      guide_after: Partial orders before priorities are computed, if they have to be: a network takes seconds.

    Raises:
      ConfigError: An impossible value.
    """

    width: int = 16
    growth: int = 4
    most_width: int = 65536
    steps: tuple[float, ...] = (0.02, 0.004)
    noise: float = 0.1
    guide: float = 0.1
    guide_after: int = 10_000_000

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("growth", 2), ("most_width", self.width), ("guide_after", 0)):
            value = whole(getattr(self, name), least)
            if value is None:
                given = shown(getattr(self, name))
                raise ConfigError(
                    f"{type(self).__name__}: {name} is {given}; give a whole number of at least {least}"
                )
            object.__setattr__(self, name, value)
        object.__setattr__(self, "steps", tuple(self.steps))
        shares = [("steps", step, 1) for step in self.steps]
        for name, given, most in (*shares, ("noise", self.noise, math.inf), ("guide", self.guide, math.inf)):
            if real(given, 0, most) is None:
                raise ConfigError(
                    f"{type(self).__name__}: {name} has {shown(given)}; give a number from 0 to {most:g}"
                )
