"""Custom calls of XLA that are functions compiled by Numba, without C code.

XLA hands a custom call one pointer to its call frame (``xla/ffi/api/c_api.h``, shipped with jaxlib, whose
layout is stable across versions; `tests/test_host.py` compares the numbers below with that header). A frame
is read here as an array of 64-bit words. The work is divided into chunks, which the calling thread and
tasks on XLA's own thread pool take one after another, so no second thread pool is needed.
"""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import cfunc, njit, types
from numba.core import cgutils, typing
from numba.extending import intrinsic

from regal_jax.runtime.compiling import load_array_functions, pipeline

__all__ = [
    "API_VERSION",
    "allocate",
    "answer_metadata",
    "c_function",
    "free",
    "leading_zeros",
    "operand",
    "pointer",
    "result",
    "share",
    "size_of",
    "take",
    "task_of",
]

API_VERSION: Final = (0, 1)
"""The requested version of the interface; XLA refuses versions that it does not support."""

# These are never called from Python; the wrappers for that would double the time of compilation.
_compiled = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **pipeline(scalar=True))

# Offsets of the words that are read, see c_api.h. A struct begins with its size and its extensions.
_EXTENSION: Final = 1
_API: Final = 2
_CONTEXT: Final = 3
_ARGS: Final = 9
_RESULTS: Final = 14
_BUFFER_DATA: Final = 3
_BUFFER_RANK: Final = 4
_BUFFER_DIMS: Final = 5
_API_ERROR_DESTROY: Final = 8
_API_SCHEDULE: Final = 17
_API_NUM_THREADS: Final = 18


@intrinsic
def pointer(_: Any, address: Any, dtype: Any) -> Any:
    """A typed pointer from an address: ``pointer(address, np.int32)``."""
    kind = types.CPointer(dtype.instance_type)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(kind))

    return kind(types.int64, dtype), build


@intrinsic
def leading_zeros(_: Any, word: Any) -> Any:
    """Zero bits above the highest one of a uint64 that is not 0."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), build


@intrinsic
def _call(_: Any, function: Any, argument: Any) -> Any:
    """Calls ``int64 function(int64)`` at an address."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = ir.IntType(64)
        return builder.call(builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer()), [args[1]])

    return types.int64(types.int64, types.int64), build


@intrinsic
def _fetch_add(_: Any, address: Any, value: Any) -> Any:
    """Adds to the 64-bit word at an address atomically; returns its previous value."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), build


@intrinsic
def allocate(_: Any, size: Any) -> Any:
    """Allocates this number of bytes; returns the address, to be freed."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(context.nrt.allocate(builder, args[0]), ir.IntType(64))

    return types.int64(types.int64), build


@intrinsic
def free(_: Any, address: Any) -> Any:
    """Frees memory of `allocate`."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        context.nrt.free(builder, builder.inttoptr(args[0], cgutils.voidptr_t))
        return args[0]

    return types.int64(types.int64), build


def c_function(answer: Callable[[int], int]) -> Any:
    """``answer`` as a C function ``int64 (int64 frame)``, compiled or from Numba's cache."""
    signature = types.int64(types.int64)
    load_array_functions()
    try:
        return cfunc(signature, cache=True, **pipeline(scalar=True))(answer)
    except RuntimeError:  # There is no folder for the cache.
        return cfunc(signature, **pipeline(scalar=True))(answer)


def task_of(work: Callable[..., int]) -> Any:
    """An intrinsic that gives the address of ``work`` as a C function ``int64 (int64 block)``.

    Args:
      work: The function to compile: ``int64 work(block, *flags)``.

    Returns:
      An intrinsic to be called with the flags; each combination of their types is a separate function.
    """

    @intrinsic
    def task(_: Any, first: Any, second: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            word = ir.IntType(64)
            name = builder.module.get_unique_name("task")
            function = ir.Function(builder.module, ir.FunctionType(word, [word]), name=name)
            function.linkage = "internal"
            inner = ir.IRBuilder(function.append_basic_block())
            inside = typing.signature(types.int64, types.int64, first, second)
            compiled = context.compile_subroutine(inner, work, inside)
            flags = [context.get_constant_undef(flag) for flag in (first, second)]
            _, done = context.call_internal_no_propagate(
                inner, compiled.fndesc, inside, [function.args[0], *flags]
            )
            inner.ret(done)
            return builder.ptrtoint(function, word)

        return types.int64(first, second), build

    return task


@_compiled
def _words(address):
    return pointer(address, np.int64)


@_compiled
def _buffer(frame, list_at, i):
    return _words(_words(_words(frame)[list_at])[i])


@_compiled
def size_of(frame, i, axis):
    """Size of operand ``i`` along an axis."""
    return _words(_buffer(frame, _ARGS, i)[_BUFFER_DIMS])[axis]


@_compiled
def operand(frame, i):
    """Address of operand ``i``."""
    return _buffer(frame, _ARGS, i)[_BUFFER_DATA]


@_compiled
def result(frame, i):
    """Address of result ``i``, 0 if it is empty."""
    dims, rank = _words(_buffer(frame, _RESULTS, i)[_BUFFER_DIMS]), _buffer(frame, _RESULTS, i)[_BUFFER_RANK]
    for axis in range(rank):
        if dims[axis] == 0:
            return 0
    return _buffer(frame, _RESULTS, i)[_BUFFER_DATA]


@_compiled
def answer_metadata(frame):
    """Answers a request of XLA for the version of the interface; returns whether the call was one."""
    extension = _words(frame)[_EXTENSION]
    # The only extension so far; its struct ends with the address of the result.
    if extension == 0 or pointer(extension + 8, np.int32)[0] != 1:
        return False
    version = pointer(_words(extension)[3] + 24, np.int32)
    version[0] = API_VERSION[0]
    version[1] = API_VERSION[1]
    return True


@_compiled
def _ask(frame, function, arguments, size):
    """Calls a function of XLA with its struct of arguments; returns whether it succeeded."""
    words, api = _words(arguments), _words(frame)[_API]
    words[0], words[1], words[2] = size, 0, _words(frame)[_CONTEXT]
    error = _call(_words(api)[function], arguments)
    if error != 0:
        words[0], words[2] = 24, error
        _call(_words(api)[_API_ERROR_DESTROY], arguments)
    return error == 0


@_compiled
def _threads(frame, arguments):
    """Number of threads in XLA's pool."""
    words = _words(arguments)
    words[3], words[4] = arguments + 32, 1
    return words[4] if _ask(frame, _API_NUM_THREADS, arguments, 32) else 1


@_compiled
def _schedule(frame, task, block, arguments):
    """Asks XLA's pool to run ``task(block)``; returns whether it will."""
    words = _words(arguments)
    words[3], words[4] = task, block
    return _ask(frame, _API_SCHEDULE, arguments, 40)


# The block that the threads of one call share: the next chunk, chunks done, threads that hold the block, the
# frame, chunks in all. A task may start when all chunks are done and the frame is gone. So the block
# outlives the frame, and a thread may read the frame only while it has a chunk.
_NEXT: Final = 0
_DONE: Final = 8
_HOLDERS: Final = 16
_FRAME: Final = 24
_CHUNKS: Final = 32
_BLOCK_BYTES: Final = 40
_ARGUMENT_BYTES: Final = 40
"""Size of the largest struct of arguments."""


@_compiled
def take(block, finished):
    """Takes a chunk.

    Args:
      block: The argument of the task.
      finished: Whether this thread has just done a chunk.

    Returns:
      The number of the chunk, and the frame. If none is left, -1 and no frame; this thread must then not use
      the block again.
    """
    if finished:
        _fetch_add(block + _DONE, 1)
    words = _words(block)
    chunk = _fetch_add(block + _NEXT, 1)
    if chunk < words[_CHUNKS >> 3]:
        return chunk, words[_FRAME >> 3]
    if _fetch_add(block + _HOLDERS, -1) == 1:
        free(block)
    return -1, 0


@_compiled
def share(frame, task, chunks, alone):
    """Runs a task on as many threads as are useful, including this one, until all chunks are done.

    Args:
      frame: The call frame.
      task: Address of a function that calls `take` until nothing is left.
      chunks: Number of chunks.
      alone: Whether to use no other thread.
    """
    block, arguments = allocate(_BLOCK_BYTES), allocate(_ARGUMENT_BYTES)
    words = _words(block)
    helpers = 0 if alone else min(_threads(frame, arguments), chunks) - 1
    # This function holds the block, too, until all chunks are done.
    words[0], words[1], words[2], words[3], words[4] = 0, 0, helpers + 2, frame, chunks
    for _ in range(helpers):
        if not _schedule(frame, task, block, arguments):
            _fetch_add(block + _HOLDERS, -1)
    _call(task, block)
    while _fetch_add(block + _DONE, 0) < chunks:
        pass
    if _fetch_add(block + _HOLDERS, -1) == 1:
        free(block)
    free(arguments)
