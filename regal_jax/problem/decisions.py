"""`Decisions`: decoded chromosomes, the input of a simulator."""

from typing import NamedTuple

import jax

__all__ = ["Decisions"]


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
