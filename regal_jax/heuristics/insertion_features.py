"""What is known about an insertion move before it is tried, in the order in which the loops compute it."""

from typing import Final

__all__ = ["MOVE_FEATURES", "PLACE_FEATURES"]

MOVE_FEATURES: Final = (
    "slack",
    "slack_there",
    "attraction",
    "runtime_there",
    "transfers_saved",
    "transfers_added",
    "transfers_change",
    "saved_count",
    "added_count",
    "position",
    "inputs",
    "successors",
    "ops",
    "runtime",
    "tries",
    "excess",
    "relief",
)
"""Features of ops that change their device: of the first op, and where the text says so of all that move.

Times are in units of the makespan, times the devices, divided by the events; of times and of numbers of edges
and tries the logarithm of one plus the value is taken, with its sign.

- ``slack``, ``slack_there``: How much later its device, and the other one, could be busy before it.
- ``attraction``: How many more neighbours of all are on the other device, from -5 to 5.
- ``runtime``, ``runtime_there``: The runtime of all on their device, and on the other one.
- ``transfers_saved``, ``transfers_added``, ``transfers_change``: The time of transfers that are no longer
  needed, of those that the move needs, and the difference.
- ``saved_count``, ``added_count``: Their numbers.
- ``position``: When it may begin, as a share of the makespan.
- ``inputs``, ``successors``: Its numbers of inputs, and of edges to others.
- ``ops``: The logarithm of the number of ops that move.
- ``tries``: How often it has been tried elsewhere since the schedule became shorter.
- ``excess``: By how much the runtime of all there, and the transfers that are added, exceed ``slack_there``.
- ``relief``: By how much their runtime on their device, and the transfers that are saved, exceed ``slack``.
"""

PLACE_FEATURES: Final = (
    "transfer",
    "duration",
    "least_slack",
    "largest_slack",
    "skew",
    "position",
    "before",
    "behind",
    "least_room",
    "fixed",
    "tries",
)
"""Features of an event that changes its place alone, in the same units.

- ``transfer``: 1 for a transfer, 0 for an op.
- ``duration``: The time that it takes.
- ``least_slack``, ``largest_slack``: Over its devices, how much later they could be busy before it.
- ``skew``: The difference of its devices' clocks before it.
- ``position``: When it may begin, as a share of the makespan.
- ``before``, ``behind``, ``least_room``: How many places earlier or later it can be, and the smaller number.
- ``fixed``: 1 if it can be nowhere else, 0 if it can.
- ``tries``: How often it has been tried elsewhere since the schedule became shorter.
"""
