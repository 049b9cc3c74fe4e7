"""Temporary memory of a module of XLA in other orders, before it is compiled in them."""

from typing import Any

from regal_jax.execution.xla.donation import DonationLost, alias_instructions
from regal_jax.execution.xla.hook import text_of
from regal_jax.execution.xla.module_proto import new_module
from regal_jax.execution.xla.sequence import Orders, orders_of
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import parse_module

__all__ = ["Predictor"]


class Predictor:
    """Predicts the memory of a module that the hook reorders.

    With donated arguments, the module that the hook returns has other instructions: see
    `regal_jax.execution.xla.donation`.

    Args:
      module: An ``HloModuleProto`` with a schedule; it is not changed.
      model: The model of its text.
    """

    def __init__(self, module: Any, model: TempModel) -> None:
        self._model: TempModel | None = model
        self._entry, self._last = "", ""
        self._copies: list[str] = []
        if module.input_output_alias.entries:
            self._model = None
            try:
                self._alias(module)
            except DonationLost:  # The order is compiled, and XLA or the hook says why it is refused.
                return

    def _alias(self, module: Any) -> None:
        changed = new_module()
        changed.CopyFrom(module)
        alias_instructions(changed)
        changed.ClearField("input_output_alias")  # XLA loses it.
        self._entry = next(c.name for c in module.computations if c.id == module.entry_computation_id)
        old, new = (orders_of(m)[self._entry] for m in (module, changed))
        held = set(old)
        self._copies = [name for name in new if name not in held]
        self._last = new[-1] if new[-1] in held else ""
        self._model = TempModel(parse_module(text_of(changed)))

    def temp_bytes(self, orders: Orders, otherwise: int) -> int:
        """Temporary memory in bytes.

        Args:
          orders: Computation -> names of all its instructions in order; those without one keep theirs.
          otherwise: The result for a module that cannot be reordered.
        """
        if self._model is None:
            return otherwise
        if self._copies and self._entry in orders:
            row = [name for name in orders[self._entry] if name != self._last]
            row += [*self._copies, *([self._last] if self._last else [])]
            orders = {**orders, self._entry: row}
        return self._model.temp_bytes(orders)
