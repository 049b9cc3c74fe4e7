"""The memory that the body of a loop or branch needs beside its inputs, by the lives of its values."""

import dataclasses
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

__all__ = ["BodyStep", "body_peak"]


@dataclasses.dataclass(frozen=True, slots=True)
class BodyStep:
    """One op of a body.

    Attributes:
      reads: The distinct values that it reads, from outside of the body as well.
      makes: The values that it makes, with their bytes.
      temp_bytes: Its scratch memory.
    """

    reads: Collection[Hashable]
    makes: Mapping[Any, int]
    temp_bytes: int = 0


def body_peak(steps: Sequence[BodyStep], results: Collection[Hashable], *, count_results: bool = True) -> int:
    """Peak memory of the values that a body itself makes, if its ops run in the given order.

    Args:
      steps: Its ops.
      results: Values that it returns, which stay in memory until its end.
      count_results: Whether to count them.
    """
    last = {value: i for i, step in enumerate(steps) for value in step.reads}
    last |= dict.fromkeys(results, len(steps))
    outside = frozenset() if count_results else frozenset(results)
    size: dict[Hashable, int] = {}
    held = peak = 0
    for i, step in enumerate(steps):
        new = {value: made for value, made in step.makes.items() if value not in outside}
        size.update(new)
        held += sum(new.values())
        peak = max(peak, held + step.temp_bytes)
        over = [value for value in step.reads if last[value] == i and value in size]
        over += [value for value in new if value not in last]
        held -= sum(size[value] for value in over)
    return peak
