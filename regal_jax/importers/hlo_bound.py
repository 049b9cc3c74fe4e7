"""A bound on the memory of a program for a CPU, for every order of its instructions. No jax.

The bound is `regal_jax.plan.least_peak` of the values of the entry computation, and of the values of each
computation that it runs, together with what must be in memory while it runs. Values are those of
`regal_jax.importers.hlo_values`, by which the prediction of temporary memory goes, and are counted with everything that
XLA may do to save memory: no gaps between buffers, any value in the memory of a result or a donated argument that is free, and results over
operands that end there.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from regal_jax.importers.hlo_shapes import Array
from regal_jax.importers.hlo_sharing import callees
from regal_jax.importers.hlo_temp import can_share
from regal_jax.importers.hlo_text import Module, names_in
from regal_jax.importers.hlo_values import Node, Values, read_values
from regal_jax.plan import Lives, least_peak

__all__ = ["live_bound"]


def live_bound(module: Module, orders: Mapping[str, Sequence[str]] | None = None) -> int:
    """Bytes that are in memory at some moment, in every order of a program's instructions.

    Arguments that are not donated, and constants, do not count.

    Args:
      module: A scheduled module.
      orders: Computation -> names of all its instructions in an order of little memory; by default the order of
        the text. The bound may be higher for it.
    """
    values = read_values(module)
    return _Bound(values, orders or {}).of(module.entry.name, frozenset())


class _Bound:
    def __init__(self, values: Values, orders: Mapping[str, Sequence[str]]) -> None:
        self.values, self.orders = values, orders
