"""The loops of `PeakSearchRun`: perturbations of a placement, and descents from them."""

from collections import namedtuple
from typing import Any, Final

from regal_jax.runtime.compiling import only_borrows
from regal_jax.runtime.pointers import caller

__all__ = [
    "DRAWS",
    "LEAST_GAIN",
    "MOST_OVER",
    "REORDERED",
    "RESENT",
    "WIDTHS",
    "Perturbation",
    "Placed",
    "climb",
]

DRAWS: Final = 8
"""Uniform numbers per perturbation."""
WIDTHS: Final = (1,) * 3
"""In a descent: numbers of moves to other devices to try in a step, one after another."""
RESENT: Final = 1
"""In a descent: number of transfers to try at another time with each of `WIDTHS`."""
REORDERED: Final = 2
"""In a descent: number of moves in the order to try with each of `WIDTHS`."""
MOST_OVER: Final = sum(width + RESENT + REORDERED + 1 for width in WIDTHS)
"""A descent and the initial placement exceed the number of tries by at most this."""
LEAST_GAIN: Final = 1e-9
"""Least relative improvement of a step of a descent."""

_call = caller()

Perturbation = namedtuple(
    "Perturbation", "blocks class_of class_share reorder_share resend_share tries memory"
)
"""The distribution of perturbations.

Attributes:
  blocks: ``[B]`` int64, as in `PeakSearchConfig`.
  class_of: ``[N]`` int64, the class of each op.
  class_share, reorder_share, resend_share, tries: As in `PeakSearchConfig`.
  memory: ``[D]`` float64 bytes, the capacities.
"""

Placed = namedtuple("Placed", "place order early value")
"""A placement and an order, as in `regal_jax.heuristics.peaks_kernel.State`, and times of transfers.

``value`` is ``[2]``: overflow and peak in bytes.
"""


@only_borrows
def climb(
    refine: Any, layout: Any, state: Any, perturbation: Any, now: Any, hit: Any, uniform: Any, values: Any,
    most: int, goal: float,
) -> int:  # fmt: skip
    """Perturbs the current placement and lowers the peaks again; keeps the result if it is no worse.

    Args:
      refine: Address of `regal_jax.heuristics.peaks_kernel.refine`.
      layout: The graph, as ``refine`` takes it.
      state: Space for ``refine``; overwritten.
      perturbation: The distribution of perturbations.
      now: The current placement and order.
      hit: ``[N]`` int64 zeros, for classes that a perturbation changes.
      uniform: ``[S * DRAWS]`` from [0, 1), of ``S`` perturbations.
      values: ``[3 * S]``, set after each perturbation to the number of placements and orders evaluated so
        far, and the value of ``now``.
      most: Largest number of evaluations. The first perturbation is not checked.
      goal: The loop ends at a placement that fits the memory and whose largest peak is at most this.

    Returns:
      Number of perturbations, at most ``S``.
    """
    blocks, class_of, class_share, reorder_share, resend_share, tries, memory = perturbation
    kept, kept_order, kept_early, value = now
    place, order, early = state.place, state.order, state.early
    found, found_order, found_early = state.found, state.found_order, state.found_early
    peaks, group, allowed = state.peaks, layout.group, layout.allowed
    begin = layout.begin
    n, d = len(kept), len(memory)
    used, count = 0, len(values) // 3
    for s in range(count):
        u = s * DRAWS
        # A block of consecutive ops of the order.
        share = 2 * uniform[u] / blocks[int(uniform[u + 1] * len(blocks))]
        length = min(max(int(share * n), 1), n)
        first = int(uniform[u + 2] * (n - length + 1))
        alike, rotated = uniform[u + 3] < class_share, uniform[u + 4] < 0.5
        by = 1 + int(uniform[u + 5] * (d - 1)) if rotated else int(uniform[u + 5] * d)
        for i in range(first, first + length):
            hit[class_of[kept_order[i]]] = 1
        for i in range(n):
            o = kept_order[i]
            order[i], place[o] = o, kept[o]
            if hit[class_of[o]] == 1 if alike else first <= i < first + length:
                place[o] = (kept[o] + by) % d if rotated else by
        for i in range(first, first + length):
            hit[class_of[kept_order[i]]] = 0
        # A colocation group goes to the device of its first op, or else to the first allowed one.
        for o in range(n):
            k = place[group[o]]
            if not allowed[o * d + k]:
                k = 0
                while not allowed[o * d + k]:
                    k += 1
            place[o] = k
        for t in range(len(early)):
            early[t] = kept_early[t] if place[begin[t]] == kept[begin[t]] else 0
        reorder = REORDERED if uniform[u + 6] < reorder_share else 0
        resend = RESENT if uniform[u + 7] < resend_share else 0
        left = _call(refine, (layout, state, tries, WIDTHS, resend, reorder, LEAST_GAIN), 2)
        used += 1 + tries - left
        over = peak = 0.0
        for k in range(d):
            over += max(0.0, peaks[k] - memory[k])
            peak = max(peak, peaks[k])
        if (over, peak) <= (value[0], value[1]):
            value[0], value[1] = over, peak
            for i in range(n):
                kept[i], kept_order[i] = found[i], found_order[i]
            for t in range(len(early)):
                kept_early[t] = found_early[t]
        values[3 * s], values[3 * s + 1], values[3 * s + 2] = used, value[0], value[1]
        if used + tries + MOST_OVER > most or (value[0] == 0 and value[1] <= goal):
            return s + 1
    return count
