"""How Numba compiles functions with closures, without the most expensive parts of it.

Numba inlines closures where they are called. It then removes dead code, for which it keeps the sets of all
names that may stand for the same array. That takes time quadratic in the size of the function, about half of
the compilation of a large one. What is dead after inlining is simpler: the closures themselves, and what only
they read.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

from llvmlite.binding import create_pass_builder, create_pipeline_tuning_options
from numba.core import analysis, codegen, config, inline_closurecall, ir, postproc, ssa, types, untyped_passes
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering
from numba.core.untyped_passes import InlineClosureLikes

from regal_jax.runtime.compiling import load_array_functions
from regal_jax.runtime.lowering import ScalarLowering
from regal_jax.runtime.numba_parts import (
    define_in_scopes,
    live_at_entry,
    one_assignment_each,
    post_processed,
    remembered,
    variables_of,
)

__all__ = ["Compiler", "ScalarCompiler", "remove_closures"]

_get_call_type = types.BaseFunction.get_call_type


def _reads(statement: Any) -> Iterator[str]:
    """The names of the variables that a statement reads, and of those that it changes in place."""
    value: Any = statement.value if isinstance(statement, ir.Assign) else statement
    if isinstance(value, ir.Del):
        return
    if isinstance(value, ir.Var):
        yield value.name
    elif hasattr(value, "list_vars"):
        yield from (variable.name for variable in value.list_vars())


def _has_no_effect(value: Any) -> bool:
    if isinstance(value, ir.Expr):
        return value.op in ("make_function", "build_tuple")
    return isinstance(value, (ir.Var, ir.Global, ir.FreeVar, ir.Const))


def remove_closures(func_ir: Any) -> None:
    """Removes assignments without effect to variables that are never read, in linear time."""
    blocks = list(func_ir.blocks.values())
    found = True
    while found:
        found = False
        read = {name for block in blocks for statement in block.body for name in _reads(statement)}
        for block in blocks:
            kept = []
            for statement in block.body:
                unread = isinstance(statement, ir.Assign) and statement.target.name not in read
                if unread and _has_no_effect(statement.value):
                    found = True
                # Numba inserts deletions anew.
                elif not isinstance(statement, ir.Del):
                    kept.append(statement)
            block.body = kept


@register_pass(mutates_CFG=True, analysis_only=False)
class _InlineClosures(InlineClosureLikes):
    """Numba's pass, with `remove_closures`."""

    _name = "inline_closures"

    def run_pass(self, state: Any) -> Literal[True]:
        with _replaced(inline_closurecall, "dead_code_elimination", remove_closures):
            return super().run_pass(state)


@contextlib.contextmanager
def _replaced(module: Any, name: str, ours: Any) -> Iterator[None]:
    """Numba compiles under a lock, so no other compilation meets the replacement."""
    before = getattr(module, name)
    setattr(module, name, ours)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Without garbage collection, which would look through all that a large process holds many times."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


_PARTS: Final = (
    (analysis, "compute_live_map", live_at_entry),
    (ssa, "_run_ssa", one_assignment_each),
    (untyped_passes, "fixup_var_define_in_scope", define_in_scopes),
    (ir.Inst, "_rec_list_vars", variables_of),
    (postproc.PostProcessor, "run", post_processed),
)
"""What replaces parts of Numba: where, the name there, and ours."""


class Compiler(CompilerBase):
    """Numba's compiler with this pass and faster analyses; the argument ``pipeline_class`` of ``njit``.

    Attributes:
      replaced: Passes of Numba, and what is used instead of each.
    """

    replaced: ClassVar[Mapping[Any, Any]] = {InlineClosureLikes: _InlineClosures}

    def __init__(self, *args: Any) -> None:
        """As Numba's."""
        load_array_functions()
        super().__init__(*args)

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """Numba's own method, with the parts in `regal_jax.runtime.numba_parts`."""
        if types.BaseFunction.get_call_type is not _get_call_type:
            return super().compile_extra(func)  # Part of another function, whose compilation replaced them.
        with contextlib.ExitStack() as stack:
            stack.enter_context(_without_collection())
            for where, name, ours in _PARTS:
                stack.enter_context(_replaced(where, name, ours))
            stack.enter_context(_replaced(types.BaseFunction, "get_call_type", remembered(_get_call_type)))
            return super().compile_extra(func)

    def define_pipelines(self) -> list[Any]:
        """Numba's own passes, but for these."""
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [(self.replaced.get(each, each), text) for each, text in manager.passes]
        manager.finalize()
        return [manager]


def _lay_out(library: Any, module: Any) -> None:
    """Numba's ``_optimize_functions`` without optimisation, which `_optimize_once` repeats."""
    module.data_layout = library._codegen._data_layout


def _optimize_once(library: Any) -> None:
    """Numba's ``_optimize_final_module`` for short loops.

    It has no first half, which prepares counts of references, and unrolls no loop.
    """
    tuning = create_pipeline_tuning_options(speed_level=int(config.OPT))  # pyright: ignore[reportAttributeAccessIssue]
    tuning.loop_vectorization = tuning.slp_vectorization = tuning.loop_unrolling = False
    builder = create_pass_builder(library._codegen._tm, tuning)
    builder.getModulePassManager().run(library._final_module, builder)


def _has_no_array(func_ir: Any) -> None:
    """Numba's ``_fix_nested_array``, which looks for arrays that the function makes of lists."""


_SCALAR_PARTS: Final = (
    (codegen.CPUCodeLibrary, "_optimize_functions", _lay_out),
    (codegen.CPUCodeLibrary, "_optimize_final_module", _optimize_once),
    (inline_closurecall, "_fix_nested_array", _has_no_array),
)
"""What replaces other parts in functions that make no arrays and count no references."""
for _where, _name, _ in (*_PARTS, *_SCALAR_PARTS):
    getattr(_where, _name)  # A Numba without one of them compiles as it does by default.


class ScalarCompiler(Compiler):
    """For functions that make no arrays and count no references, whose loops are short.

    Loops have no vector instructions and are not unrolled: the preparation of either takes longer than a few
    iterations.
    """

    replaced: ClassVar[Mapping[Any, Any]] = {**Compiler.replaced, NativeLowering: ScalarLowering}

    def compile_extra(self, func: Callable[..., Any]) -> Any:
        """As that of `Compiler`."""
        with contextlib.ExitStack() as stack:
            for where, name, ours in _SCALAR_PARTS:
                stack.enter_context(_replaced(where, name, ours))
            return super().compile_extra(func)
