"""Temporary memory of a module of XLA in other orders, before it is compiled in them."""

from collections.abc import Callable
from typing import Any

from regal_jax.execution.xla.donation import alias_instructions
from regal_jax.execution.xla.hook import text_of
from regal_jax.execution.xla.module_proto import new_module
from regal_jax.execution.xla.sequence import Orders, orders_of
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import Module, parse_module

__all__ = ["Predictor"]


class Predictor:
    """Predicts the memory of a module, in XLA's hands and with orders from the hook.

    With donated arguments, the module that the hook returns has other instructions: see
    `regal_jax.execution.xla.donation`. Nothing is raised: a prediction that fails must not prevent a
    compilation.

    Args:
      module: An ``HloModuleProto`` with a schedule; it is not changed.
      text: Its parsed text.
    """

    def __init__(self, module: Any, text: Module) -> None:
        self._entry, self._last = "", ""
        self._copies: list[str] = []
        self._own = self._ordered = _model(lambda: TempModel(text))
        if module.input_output_alias.entries:
            # If this fails, the order is compiled, and XLA or the hook says why it is refused.
            self._ordered = _model(lambda: self._aliased(module))

    def _aliased(self, module: Any) -> TempModel:
        changed = new_module()
        changed.CopyFrom(module)
        alias_instructions(changed)
        changed.ClearField("input_output_alias")  # XLA loses it.
        self._entry = next(c.name for c in module.computations if c.id == module.entry_computation_id)
        old, new = (orders_of(m)[self._entry] for m in (module, changed))
        held = set(old)
        self._copies = [name for name in new if name not in held]
        self._last = new[-1] if new[-1] in held else ""
        return TempModel(parse_module(text_of(changed)))

    def own_bytes(self, orders: Orders, otherwise: int) -> int:
        """Temporary memory in bytes if XLA itself made an order.

        Args:
          orders: Computation -> names of all its instructions in order; those without one keep theirs.
          otherwise: The result if there is no prediction.
        """
        return _bytes(self._own, orders, otherwise)

    def temp_bytes(self, orders: Orders, otherwise: int) -> int:
        """Temporary memory in bytes if the hook writes the order; arguments as for `own_bytes`."""
        if self._copies and self._entry in orders:
            row = [name for name in orders[self._entry] if name != self._last]
            row += [*self._copies, *([self._last] if self._last else [])]
            orders = {**orders, self._entry: row}
        return _bytes(self._ordered, orders, otherwise)


def _model(make: Callable[[], TempModel]) -> TempModel | None:
    try:
        return make()
    except Exception:
        return None


def _bytes(model: TempModel | None, orders: Orders, otherwise: int) -> int:
    try:
        return otherwise if model is None else model.temp_bytes(orders)
    except Exception:
        return otherwise
