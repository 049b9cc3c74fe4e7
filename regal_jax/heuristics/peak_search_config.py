"""`PeakSearchConfig`, in a module of its own so that reading settings loads no compiled loops."""

import dataclasses
from collections.abc import Iterable, Mapping

from regal_jax.checks import check_setting, real, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.heuristics.host_search import MOST_COUNT

__all__ = ["PeakSearchConfig"]


@dataclasses.dataclass(frozen=True)
class PeakSearchConfig:
    """How `PeakSearchRun` perturbs a placement and lowers the peaks again.

    The defaults were chosen on training and validation graphs, see docs/ablations/host_searches.md.

    Attributes:
      tries: Moves to evaluate after each perturbation.
      reorder_share: Probability that the moves after a perturbation also change the order of the ops.
      resend_share: Probability that they also change when tensors are sent: just before their first reader on
        a device, or just after their producer.
      blocks: Each perturbation draws one of these numbers and changes a block of consecutive ops of the
        order. The block has at most ``2 / number`` of all ops, and half as many on average.
      class_share: Probability that a perturbation also changes all ops that are like one of the block
        (`regal_jax.graph.op_classes`).
      connected_share: Probability that the block has ops that tensors connect instead of consecutive ones.
        The logarithm of their number is uniform up to the number of the latter.
      peak_share: Probability that the block is around the producer of a tensor that is held at the highest
        peak. A tensor is drawn by its bytes.

    Raises:
      ConfigError: A value is out of range.
    """

    tries: int = 80
    reorder_share: float = 0.25
    resend_share: float = 0.25
    blocks: tuple[int, ...] = (4, 16, 64)
    class_share: float = 0.5
    connected_share: float = 0.5
    peak_share: float = 0.5

    def __post_init__(self) -> None:
        owner, given = type(self).__name__, self.blocks
        object.__setattr__(self, "tries", check_setting(owner, "tries", self.tries, 1, MOST_COUNT))
        if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
            raise ConfigError(
                f"{owner}: blocks is {shown(given)}; give a sequence of whole numbers, e.g. blocks=(4, 16)"
            )
        blocks = tuple(given)
        found = tuple(whole(value, 1, MOST_COUNT) for value in blocks)
        if not found or None in found:
            raise ConfigError(
                f"{owner}: blocks has {shown(blocks)}; "
                f"give whole numbers from 1 to {MOST_COUNT}, at least one"
            )
        object.__setattr__(self, "blocks", found)
        for field in ("reorder_share", "resend_share", "class_share", "connected_share", "peak_share"):
            share = real(getattr(self, field), 0, 1)
            if share is None:
                value = shown(getattr(self, field))
                raise ConfigError(f"{owner}: {field} is {value}; give a number from 0 to 1")
            object.__setattr__(self, field, share)
