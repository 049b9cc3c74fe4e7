"""Temporary memory of a module of XLA in other orders, before it is compiled in them."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from regal_jax.execution.xla.donation import alias_instructions
from regal_jax.execution.xla.hook import text_of
from regal_jax.execution.xla.module_proto import new_module
from regal_jax.execution.xla.sequence import Orders, orders_of
from regal_jax.importers.hlo_pieces import Piece, live_bytes, pack_pieces
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import Module, parse_module
from regal_jax.importers.hlo_values import Values, read_values

__all__ = ["Predictor", "predicted_bytes"]

_T = TypeVar("_T")


class Predictor:
    """Predicts the memory of a module, in XLA's hands and with orders from the hook.

    With donated arguments, the module that the hook returns has other instructions: see
    `regal_jax.execution.xla.donation`. Nothing is raised: a prediction that fails must not prevent a
    compilation.

    Args:
      module: An ``HloModuleProto`` with a schedule; it is not changed.
      text: Its parsed text.
      repacked: Whether the buffers of the compiled program are moved (`regal_jax.execution.xla.repacking`).
    """

    def __init__(self, module: Any, text: Module, repacked: bool) -> None:
        self._entry, self._last = "", ""
        self._copies: list[str] = []
        self._ordered = _tried(lambda: TempModel(text), None)
        self._values = _tried(lambda: read_values(text), None) if repacked else None
        if module.input_output_alias.entries:
            # If this fails, the order is compiled, and XLA or the hook says why it is refused.
            self._ordered, self._values = _tried(lambda: self._aliased(module), (None, None))

    def _aliased(self, module: Any) -> tuple[TempModel, Values]:
        changed = new_module()
        changed.CopyFrom(module)
        alias_instructions(changed)
        self._entry = next(c.name for c in module.computations if c.id == module.entry_computation_id)
        old, new = (orders_of(m)[self._entry] for m in (module, changed))
        held = set(old)
        self._copies = [name for name in new if name not in held]
        self._last = new[-1] if new[-1] in held else ""
        text = parse_module(text_of(changed))
        lost = {k: v for k, v in text.attributes.items() if k != "input_output_alias"}  # XLA loses it.
        return TempModel(dataclasses.replace(text, attributes=lost)), read_values(text)

    def temp_bytes(self, orders: Orders, otherwise: int) -> int:
        """Temporary memory in bytes if the hook writes the order.

        Args:
          orders: Computation -> names of all its instructions in order; those without one keep theirs.
          otherwise: The result if there is no prediction.
        """
        if self._values is None:
            return _tried(lambda: _given(self._ordered).temp_bytes(self._complete(orders)), otherwise)
        packed = _tried(lambda: pack_pieces(self._pieces(orders)).heap, otherwise)
        if self._values.donated:
            return packed
        return min(packed, _tried(lambda: _given(self._ordered).temp_bytes(orders), packed))

    def least_bytes(self, orders: Orders, otherwise: int) -> int:
        """A lower bound of the same, up to a constant for the program; it takes less time."""
        if self._values is None:
            return self.temp_bytes(orders, otherwise)
        return _tried(lambda: live_bytes(self._pieces(orders)), otherwise)

    def _pieces(self, orders: Orders) -> Sequence[Piece]:
        return _given(self._ordered).pieces(self._complete(orders), _given(self._values))

    def _complete(self, orders: Orders) -> Orders:
        """Orders of the module that the hook returns."""
        if not self._copies or self._entry not in orders:
            return orders
        row = [name for name in orders[self._entry] if name != self._last]
        return {**orders, self._entry: [*row, *self._copies, *([self._last] if self._last else [])]}


def predicted_bytes(text: str) -> int:
    """Temporary memory in bytes that XLA assigns in the order of a text; 0 if there is no prediction."""
    return _tried(lambda: TempModel(parse_module(text)).temp_bytes(), 0)


def _given(part: _T | None) -> _T:
    if part is None:
        raise ValueError("there is no prediction")
    return part


def _tried(make: Callable[[], _T], otherwise: _T) -> _T:
    try:
        return make()
    except Exception:
        return otherwise
