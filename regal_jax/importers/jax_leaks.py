"""Detection of traced arrays that a function stores outside of its results."""

import collections
import contextlib
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any, Final

import jax
import jax.core

from regal_jax.errors import FormatError

__all__ = ["refusing_leaks"]

_DEPTH: Final = 4
"""Largest depth of nested containers, objects and functions that is searched."""
_OWN: Final = ("builtins", "flax", "jax", "jaxlib", "numpy")


@contextlib.contextmanager
def refusing_leaks(fn: Any) -> Iterator[None]:
    """A context that raises an error if ``fn`` stores a traced array in something that it closes over.

    The search covers variables of enclosing functions and globals that ``fn`` names, and within these lists,
    dicts, sets, deques, objects with attributes, and functions of the same package.

    Args:
      fn: The function that is traced.

    Raises:
      FormatError: ``fn`` has stored one.
    """
    before = [
        x for _, x in _tracers(fn)
    ]  # Tracers of an earlier trace; they are kept alive so that no id is used again.
    known = set(map(id, before))
    yield
    for where, x in _tracers(fn):
        if id(x) not in known:
            raise FormatError(
                f"the function stores an array that it computes in {where!r}, which it closes over, and no "
                "trace of it shows that: return the array instead"
            )


def _tracers(fn: Any) -> Iterator[tuple[str, Any]]:
    fn = inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn)
    package = str(getattr(fn, "__module__", "")).partition(".")[0]
    seen: set[int] = set()
    todo: collections.deque[tuple[str, Any, int]] = collections.deque([("", fn, 0)])
    while todo:
        where, x, depth = todo.popleft()
        if id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, jax.core.Tracer):
            yield where, x
        elif depth < _DEPTH:
            todo.extend((name, inner, depth + 1) for name, inner in _inside(where, x, package))


def _inside(where: str, x: Any, package: str) -> Iterator[tuple[str, Any]]:
    """The objects inside ``x``, each with a name."""
    if isinstance(x, types.MethodType):
        yield where, x.__func__
        yield where or "self", x.__self__
    elif isinstance(x, types.FunctionType):
        if str(x.__module__).partition(".")[0] == package:
            yield from _closed_over(x)
    elif isinstance(x, dict):
        yield from ((f"{where}[{key!r}]", value) for key, value in list(x.items()))
    elif isinstance(x, (list, tuple, set, frozenset, collections.deque)):
        yield from ((where, value) for value in list(x))
    elif not isinstance(x, (type, types.ModuleType)) and _may_keep_arrays(type(x)):
        yield from ((f"{where}.{key}", value) for key, value in list(getattr(x, "__dict__", {}).items()))


def _may_keep_arrays(kind: type) -> bool:
    """Whether ``x`` is searched: objects of JAX and Flax keep tracers for their own purposes."""
    return kind.__module__.partition(".")[0] not in _OWN


def _closed_over(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # The cell is empty.
            yield name, cell.cell_contents
    codes = [fn.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        yield from ((name, fn.__globals__[name]) for name in code.co_names if name in fn.__globals__)
