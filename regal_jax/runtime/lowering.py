"""Numba's translation to LLVM, with less code for functions that count no references.

Numba keeps a variable that occurs in several blocks in memory, an array as a structure of seven fields, and
copies the structure to memory again at every access to an item. A loop over a range takes four more places.
LLVM finds the values of all these places again, in time that grows with the product of their number and the
number of blocks. Here a variable with one assignment is a value, and so is an array. Nor does an access ask
whether the index is negative, so that the size of the array is not needed.
"""

from collections import defaultdict
from typing import Any, Final

from llvmlite.ir import Constant
from numba.core import cgutils, ir, types
from numba.core.analysis import compute_cfg_from_blocks, must_use_alloca
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering

__all__ = ["ScalarLowering", "assigned_once"]

_REPLACED: Final = (
    *("init", "delvar", "loadvar", "lower_expr", "lower_getitem", "lower_setitem", "storevar"),
    *("_alloca_var", "_cast_var", "_disable_sroa_like_opt", "_find_singly_assigned_variable"),
)
for _name in _REPLACED:
    getattr(Lower, _name)  # A Numba without one of them compiles as it does by default.


def assigned_once(blocks: dict[Any, Any]) -> set[str]:
    """The variables with one assignment, which comes before all uses, whatever way a call takes.

    Args:
      blocks: Label -> block of Numba's intermediate representation, without phi nodes.

    Returns:
      The names of those whose assignment also comes first in the order of labels.
    """
    where: dict[str, Any] = {}
    times, readers = defaultdict(int), defaultdict(set)
    for label, block in blocks.items():
        for statement in block.body:
            value = statement.value if isinstance(statement, ir.Assign) else statement
            for variable in [value] if isinstance(value, ir.Var) else _variables(value):
                if where.get(variable.name) != label:
                    readers[variable.name].add(label)
            if isinstance(statement, ir.Assign):
                times[statement.target.name] += 1
                where[statement.target.name] = label
    before = compute_cfg_from_blocks(blocks).dominators()
    once = {name for name, count in times.items() if count == 1} - must_use_alloca(blocks)
    return {
        name
        for name in once
        if all(where[name] < label and where[name] in before[label] for label in readers[name])
    }


def _variables(value: Any) -> list[Any]:
    return value.list_vars() if isinstance(value, ir.Inst) else []


class _ScalarLower(Lower):
    """Numba's translation, in which variables with one assignment, arrays and ranges are values.

    Only literal indices may be negative.

    Functions whose values have counts of references, generators, and code for a debugger are translated as by
    Numba.
    """

    def init(self) -> None:
        """Begins with a function."""
        models = self.context.data_model_manager
        counts = self.context.enable_nrt and any(
            models[kind].contains_nrt_meminfo() for kind in self.fndesc.typemap.values()
        )
        # A generator keeps its variables between two calls.
        generates = self.func_ir.func_id.is_generator
        self._as_values = not (counts or generates or self._disable_sroa_like_opt)
        self._bounds: dict[Any, tuple[Any, Any]] = {}  # LLVM's value of a range with step 1: start and stop.
        super().init()

    def _find_singly_assigned_variable(self) -> None:
        super()._find_singly_assigned_variable()
        if self._as_values:
            self._singly_assigned_vars |= assigned_once(self.func_ir.blocks)

    def storevar(self, value: Any, name: str, argidx: int | None = None) -> None:
        """Assigns a value to a variable."""
        if not self._as_values or name in self._singly_assigned_vars:
            super().storevar(value, name, argidx)
            return
        self._alloca_var(name, self.typeof(name))
        self.builder.store(value, self.getvar(name))

    def delvar(self, name: str) -> None:
        """Gives back the reference of a variable, if there are any."""
        if not self._as_values:
            super().delvar(name)

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """The value of ``value[index]``."""
        if not self._is_plain(value, index):
            return super().lower_getitem(resty, expr, value, index, signature)
        kind = self.typeof(value.name).dtype
        item = self.context.unpack_value(self.builder, kind, self._address(value, index))
        return self.context.cast(self.builder, item, kind, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """Stores a value: ``target_var[index_var] = value_var``."""
        if not self._is_plain(target_var, index_var):
            return super().lower_setitem(target_var, index_var, value_var, signature)
        kind = self.typeof(target_var.name).dtype
        value = self._cast_var(value_var, kind)
        return self.context.pack_value(self.builder, kind, value, self._address(target_var, index_var))

    def _is_plain(self, array: Any, index: Any) -> bool:
        """Whether the variables are numbers one after another, and a signed index that nothing checks."""
        kind, at = self.typeof(array.name), self.typeof(index.name)
        return (
            self._as_values
            and isinstance(kind, types.Array)
            and (kind.ndim, kind.layout, kind.aligned) == (1, "C", True)
            and isinstance(kind.dtype, types.Number | types.Boolean)
            and isinstance(at, types.Integer)
            and at.signed  # pyright: ignore[reportAttributeAccessIssue]
            and not self.context.enable_boundscheck
        )

    def _address(self, array: Any, index: Any) -> Any:
        """The address of an item of an array; only a literal index may be negative."""
        kind, at = self.typeof(index.name), self._cast_var(index, types.intp)
        value, array = self.loadvar(array.name), self.typeof(array.name)
        if getattr(kind, "literal_value", 0) < 0:
            at = self.builder.add(at, self.builder.extract_value(self._get(array, value, "shape"), 0))
        return self.builder.gep(self._get(array, value, "data"), [at], inbounds=True)

    def lower_expr(self, resty: Any, expr: Any) -> Any:
        """The value of an expression."""
        if not self._as_values:
            return super().lower_expr(resty, expr)
        if expr.op == "call" and isinstance(resty, types.RangeType) and not (expr.kws or expr.vararg):
            return self._range(resty, expr)
        if expr.op in ("pair_first", "pair_second", "getiter", "iternext"):
            kind, value = self.typeof(expr.value.name), self.loadvar(expr.value.name)
            if isinstance(kind, types.Pair):
                return self._get(kind, value, expr.op.removeprefix("pair_"))
            if isinstance(kind, types.RangeIteratorType) and expr.op == "iternext":
                return self._next(resty, kind, value)
            if value in self._bounds:
                return self._iterator(resty, *self._bounds[value])
        return super().lower_expr(resty, expr)

    def _range(self, kind: Any, expr: Any) -> Any:
        """The value of a call of ``range``."""
        if len(expr.args) > 2:
            return super().lower_expr(kind, expr)
        given = [self._cast_var(each, kind.dtype) for each in expr.args]
        zero, one = (Constant(given[0].type, number) for number in (0, 1))
        start, stop = (zero, *given)[-2:]
        value = self._make(kind, start=start, stop=stop, step=one)
        self._bounds[value] = start, stop
        return value

    def _iterator(self, kind: Any, start: Any, stop: Any) -> Any:
        """An iterator over a range with step 1."""
        zero, one = (Constant(start.type, number) for number in (0, 1))
        count = self.builder.sub(stop, start)
        count = self.builder.select(self.builder.icmp_signed(">", count, zero), count, zero)
        places = [cgutils.alloca_once(self.builder, start.type) for _ in range(2)]
        for value, place in zip((start, count), places, strict=True):
            self.builder.store(value, place)
        return self._make(kind, iter=places[0], stop=stop, step=one, count=places[1])

    def _next(self, kind: Any, of: Any, iterator: Any) -> Any:
        """The next number of an iterator over a range, and whether there is one."""
        place, left = (self._get(of, iterator, name) for name in ("iter", "count"))
        number, count = self.builder.load(place), self.builder.load(left)
        valid = self.builder.icmp_signed(">", count, Constant(count.type, 0))
        self.builder.store(self.builder.sub(count, Constant(count.type, 1)), left)
        self.builder.store(self.builder.add(number, self._get(of, iterator, "step")), place)
        return self._make(kind, first=number, second=valid)

    def _get(self, kind: Any, value: Any, name: str) -> Any:
        """A field of a value."""
        return self.context.data_model_manager[kind].get(self.builder, value, name)

    def _make(self, kind: Any, **fields: Any) -> Any:
        """A value with these fields."""
        value = self.context.get_constant_undef(kind)
        for name, field in fields.items():
            value = self.context.data_model_manager[kind].set(self.builder, value, field, name)
        return value


@register_pass(mutates_CFG=True, analysis_only=False)
class ScalarLowering(NativeLowering):
    """Numba's pass that translates a function, with less code where that is possible."""

    _name = "native_lowering"

    @property
    def lowering_class(self) -> Any:
        """What translates a function."""
        return _ScalarLower
