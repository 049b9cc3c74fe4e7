"""What a candidate decides: the inputs of a simulator."""

from typing import NamedTuple

import jax

__all__ = ["Decisions", "Preferences"]


class Decisions(NamedTuple):
    """Decisions of ``P`` candidates for each of ``B`` graphs; keys are uint16, larger goes first.

    Attributes:
      placement: ``[B, P, N]`` int32, device of each op.
      priority: ``[B, P, N]`` uint16, key of each compute.
      transfer_priority: ``[B, P, T, D]`` uint16, key of each transfer; ``[B, P, 0, D]`` unless blocking.
    """

    placement: jax.Array
    priority: jax.Array
    transfer_priority: jax.Array


class Preferences(NamedTuple):
    """Preferences of ``P`` candidates for each of ``B`` graphs, from which schedules are generated.

    They are float32 and in the graph's time unit (docs/design.md, part 2, "Schedule generation").

    Attributes:
      urgency: ``[B, P, N]``, taken off the earliest start of an op.
      price: ``[B, P, N, D]``, added to the finish of an op on a device.
      early: ``[B, P]``, whether prices count in the choice of the op: 0 or 1.
      waste: ``[B, P]``, cost of a unit of time that other devices lose to transfers: 0 or a power of two.
      behind: ``[B, P]``, cost of a unit of a device's clock: 0 or a power of two.
    """

    urgency: jax.Array
    price: jax.Array
    early: jax.Array
    waste: jax.Array
    behind: jax.Array
