"""`OrderSearchConfig`, in a module of its own so that reading settings loads no compiled loops."""

import dataclasses
import math
from collections.abc import Iterable, Mapping

from regal_jax.checks import check_setting, real, shown, whole
from regal_jax.errors import ConfigError

__all__ = ["OrderSearchConfig"]


@dataclasses.dataclass(frozen=True)
class OrderSearchConfig:
    """How `OrderSearchRun` widens its beams.

    The defaults were chosen on training graphs, see docs/ablations/host_searches.md.

    Attributes:
      width: Partial orders of each length, in the first beams.
      growth: Factor by which beams widen when no beam gets below the limit.
      most_width: Largest width. Beams of this width also add random amounts to the bytes that they compare.
      steps: Shares of the peak by which the limit is set below it; the next is tried when one fails.
      noise: Standard deviation of the random amount of an op, as a share of the mean bytes that ops allocate.
      guide: Weight of `OrderSearchRun`'s priorities, likewise.
      guide_after: Partial orders before priorities are computed, if they have to be: a network takes seconds.
      windows: Sizes of windows, in steps around the peak, whose ops are ordered anew before the whole graph
        is. Sizes larger than half of the graph are left out. ``()`` for no windows.

    Raises:
      ConfigError: A value is out of range.
    """

    width: int = 16
    growth: int = 4
    most_width: int = 65536
    steps: tuple[float, ...] = (0.02, 0.004)
    noise: float = 0.1
    guide: float = 0.1
    guide_after: int = 10_000_000
    windows: tuple[int, ...] = (64, 256, 1024)

    def __post_init__(self) -> None:
        for name, least in (("width", 1), ("growth", 2), ("most_width", self.width), ("guide_after", 0)):
            value = check_setting(type(self).__name__, name, getattr(self, name), least)
            object.__setattr__(self, name, value)
        for name, kind, example in (
            ("steps", "numbers", (0.02, 0.004)),
            ("windows", "whole numbers", (64, 256)),
        ):
            given = getattr(self, name)
            if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
                raise ConfigError(
                    f"{type(self).__name__}: {name} is {shown(given)}; give a sequence of {kind}, e.g. "
                    f"{name}={example}"
                )
            object.__setattr__(self, name, tuple(given))
        object.__setattr__(self, "windows", tuple(whole(size, 1) or size for size in self.windows))
        if any(whole(size, 1) is None for size in self.windows):
            given = shown(self.windows)
            raise ConfigError(f"{type(self).__name__}: windows has {given}; give whole numbers of at least 1")
        shares = [("steps", step, 1) for step in self.steps]
        for name, given, most in (*shares, ("noise", self.noise, math.inf), ("guide", self.guide, math.inf)):
            if real(given, 0, most) is None:
                raise ConfigError(
                    f"{type(self).__name__}: {name} has {shown(given)}; give a number from 0 to {most:g}"
                )
        object.__setattr__(self, "steps", tuple(map(real, self.steps)))
        for name in ("noise", "guide"):
            object.__setattr__(self, name, real(getattr(self, name)))
