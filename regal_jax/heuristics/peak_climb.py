"""The loops of `PeakSearchRun`: perturbations of a placement, and descents from them."""

from collections import namedtuple
from typing import Any, Final

from regal_jax.heuristics.peaks_kernel import penalise
from regal_jax.runtime.compiling import only_borrows, part
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

DRAWS: Final = 11
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
_penalise = part(penalise)

Perturbation = namedtuple(
    "Perturbation",
    "blocks class_of class_share connected_share peak_share reorder_share resend_share tries",
)
"""The distribution of perturbations.

Attributes:
  blocks: ``[B]`` int64, as in `PeakSearchConfig`.
  class_of: ``[N]`` int64, the class of each op.
  class_share, connected_share, peak_share, reorder_share, resend_share, tries: As in `PeakSearchConfig`.
"""

Placed = namedtuple("Placed", "place order early at_peak value")
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
      state: Space for ``refine``; overwritten. Its penalties are those of ``now``.
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
    (
        blocks, class_of, class_share, connected_share, peak_share, reorder_share, resend_share, tries,
    ) = perturbation  # fmt: skip
    kept, kept_order, kept_early, kept_at_peak, value = now
    place, order, early = state.place, state.order, state.early
    found, found_order, found_early = state.found, state.found_order, state.found_early
    peaks, at_peak, block, seen = state.peaks, state.at_peak, state.moved, state.chosen
    group, allowed, begin, rows, readers = (
        layout.group, layout.allowed, layout.begin, layout.rows, layout.readers,
    )  # fmt: skip
    touched_rows, touched, memory = layout.touched_rows, layout.touched, layout.memory
    n, d = len(kept), len(memory)
    used, count = 0, len(values) // 3

    def drawn(held, at):
        """The position of an op; with ``held`` one that makes a tensor that is held at the peak."""
        if held:
            total = 0.0
            for t in range(len(begin)):
                total += kept_at_peak[t]
            left = at * total
            for t in range(len(begin)):
                left -= kept_at_peak[t]
                if left < 0:
                    for i in range(n):
                        if kept_order[i] == begin[t]:
                            return i
        return min(int(at * n), n - 1)

    def connected(o, length):
        """Writes the nearest ops that tensors connect with an op to ``block``; returns their number."""
        for i in range(n):
            seen[i] = 0
        seen[o], block[0], many, taken = 1, o, 1, 0
        while taken < many and many < length:
            o = block[taken]
            taken += 1
            for i in range(touched_rows[o], touched_rows[o + 1]):
                t = touched[i]
                for j in range(rows[t] - 1, rows[t + 1]):
                    v = begin[t] if j < rows[t] else readers[j]
                    if seen[v] == 0 and many < length:
                        seen[v], block[many] = 1, v
                        many += 1
        return many

    for s in range(count):
        u = s * DRAWS
        # A block of connected ops, or of consecutive ops of the order.
        share = 2 * uniform[u] / blocks[int(uniform[u + 1] * len(blocks))]
        length = min(max(int(share * n), 1), n)
        at = drawn(uniform[u + 8] < peak_share, uniform[u + 2])
        if uniform[u + 9] < connected_share:
            length = connected(kept_order[at], int(length ** uniform[u + 10]))
        else:
            first = min(max(at - int(uniform[u + 10] * length), 0), n - length)
            for i in range(length):
                block[i] = kept_order[first + i]
        alike, rotated = uniform[u + 3] < class_share, uniform[u + 4] < 0.5
        by = 1 + int(uniform[u + 5] * (d - 1)) if rotated else int(uniform[u + 5] * d)
        for i in range(n):
            order[i], place[i] = kept_order[i], kept[i]
        for i in range(length):
            o = block[i]
            place[o] = (kept[o] + by) % d if rotated else by
            hit[class_of[o]] = alike
        for o in range(n if alike else 0):
            if hit[class_of[o]] == 1:
                place[o] = (kept[o] + by) % d if rotated else by
        for i in range(length):
            hit[class_of[block[i]]] = 0
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
            _penalise(peaks, memory, state.penalty)
            for i in range(n):
                kept[i], kept_order[i] = found[i], found_order[i]
            for t in range(len(early)):
                kept_early[t], kept_at_peak[t] = found_early[t], at_peak[t]
        values[3 * s], values[3 * s + 1], values[3 * s + 2] = used, value[0], value[1]
        if used + tries + MOST_OVER > most or (value[0] == 0 and value[1] <= goal):
            return s + 1
    return count
