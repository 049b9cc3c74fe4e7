"""Calls of compiled loops by their address, so that the caller's code does not contain theirs.

Numba optimises the functions that a function calls together with it. For two large ones, the second is then
compiled twice. A function that gets the other one's address as an argument is compiled without it.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from regal_jax.runtime import compiling
from regal_jax.runtime.interrupts import uninterrupted

__all__ = ["address_of", "call", "caller"]


_addresses: Final[dict[Callable[..., Any], dict[Any, int]]] = {}
"""Function -> index of the result and kinds of arguments -> address."""


def caller() -> Callable[[Any, tuple[Any, ...], int], Any]:
    """A function ``call(address, arguments, returned)`` for `loops`.

    It calls the function with this address, which returns the argument at index ``returned``, a constant.
    Nothing checks that the function at the address takes these arguments.
    """
    return _intrinsic() if compiling.usable() else call


def address_of(function: Callable[..., Any], returned: int, *arguments: Any) -> Any:
    """The address of a function of `loops`, compiled for such arguments; in Python's loops the function.

    Args:
      function: One that `only_borrows`; it may not raise exceptions.
      returned: Index of the argument that it returns.
      *arguments: As from `for_loops`; not changed.
    """
    if not compiling.usable():
        return function
    if not compiling.borrows(function):
        raise TypeError(f"{function.__name__} counts references; decorate it with only_borrows")
    compiling.loops(function)  # It waits for another process that compiles the function.
    return uninterrupted(_address)(function, returned, arguments)


def call(function: Callable[..., Any], arguments: tuple[Any, ...], returned: int) -> Any:
    """What `caller` returns in Python's loops."""
    del returned
    return function(*arguments)


def _address(function: Callable[..., Any], returned: int, arguments: tuple[Any, ...]) -> int:
    kept = _addresses.setdefault(function, {})
    kind = returned, _kind(arguments)
    if kind not in kept:
        kept[kind] = _compiled_address(function, returned, arguments)
    return kept[kind]


def _kind(argument: Any) -> Any:
    """What decides on the compiled version, at a fraction of the cost of Numba's own types."""
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim, argument.flags.c_contiguous
    if isinstance(argument, tuple):
        return type(argument), *map(_kind, argument)
    return type(argument)


def _compiled_address(function: Callable[..., Any], returned: int, arguments: tuple[Any, ...]) -> int:
    dispatcher, kinds = compiling.compile_for(function, *arguments)
    made = dispatcher.overloads[kinds]
    if made.signature.return_type != kinds[returned]:
        raise TypeError(f"{function.__name__} does not return its argument {returned}")
    code = made._asdict()["library"]
    return code.get_pointer_to_function(made.fndesc.llvm_func_name)


def _intrinsic() -> Any:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    counted = not compiling.counts_no_references()

    @intrinsic(prefer_literal=True)
    def call_at(context: Any, address: Any, arguments: Any, returned: Any) -> Any:
        del context, address
        if not isinstance(returned, types.IntegerLiteral):
            return None
        given = tuple(map(types.unliteral, arguments))
        result = given[returned.literal_value]

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            there = context.cast(builder, values[0], signature.args[0], types.intp)
            kind = context.call_conv.get_function_type(result, given)
            function = builder.inttoptr(there, ir.PointerType(kind))
            parts = [
                context.cast(builder, value, *kinds)
                for value, *kinds in zip(
                    cgutils.unpack_tuple(builder, values[1]), arguments, given, strict=True
                )
            ]
            _, answer = context.call_conv.call_function(builder, function, result, given, parts)
            # A function that counts no references has not counted this one.
            return answer if counted else impl_ret_borrowed(context, builder, result, answer)

        return result(types.intp, types.Tuple(tuple(arguments)), returned), generate

    return call_at
