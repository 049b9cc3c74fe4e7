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
import numpy as np

from regal_jax.errors import FormatError
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["refusing_leaks"]

_OWN: Final = ("builtins", "flax", "jax", "jaxlib", "numpy")
_VARIABLE: Final = "._value"
"""End of the path of the array of a Keras variable."""
_ANY: Final = "return the array instead"
_KERAS: Final = (
    "return the array instead; if it is a variable of Keras that gets its first value there, call "
    "keras.utils.clear_session(free_memory=False) before, or build the model outside of StatelessScope"
)
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})


@contextlib.contextmanager
def refusing_leaks(fn: Any) -> Iterator[None]:
    """A context that raises an error if ``fn`` stores a traced array in something that it closes over.

    The search covers variables of enclosing functions, default arguments, globals that ``fn`` names, and
    whatever is within these: in lists, dicts, sets, deques and arrays of objects, in attributes of objects,
    and in functions and classes of the same package.

    Args:
      fn: The function that is traced.

    Raises:
      FormatError: ``fn`` has stored one.
    """
    # Tracers of an earlier trace; they are kept alive so that no id is used again.
    before = [x for _, x in _tracers(fn)]
    known = set(map(id, before))
    yield
    for where, x in _tracers(fn):
        if id(x) not in known:
            raise FormatError(
                f"the function stores an array that it computes in {where!r}, which it closes over, and no "
                f"trace of it shows that: {_KERAS if where.endswith(_VARIABLE) else _ANY}"
            )


def _tracers(fn: Any) -> Iterator[tuple[str, Any]]:
    package = _package(inspect.unwrap(fn.func if isinstance(fn, functools.partial) else fn))
    seen: set[int] = set()
    todo: collections.deque[tuple[str, Any]] = collections.deque([("", fn)])
    while todo:
        check_interrupt()
        where, x = todo.popleft()
        if type(x) in _PLAIN or id(x) in seen:
            continue
        seen.add(id(x))
        if isinstance(x, jax.core.Tracer):
            yield where, x
        else:
            todo.extend(_inside(where, x, package))


def _inside(where: str, x: Any, package: str) -> Iterator[tuple[str, Any]]:
    """The objects inside ``x``, each with a name."""
    if isinstance(x, types.MethodType):
        yield where, x.__func__
        yield where or "self", x.__self__
    elif isinstance(x, functools.partial):
        yield where, x.func
        yield from _attributes(where, {"args": x.args, "keywords": x.keywords})
    elif isinstance(x, types.FunctionType):
        if _package(x) == package not in _OWN:
            yield from _closed_over(x, package)
    elif isinstance(x, dict):
        yield from ((f"{where}[{key!r}]", value) for key, value in list(x.items()))
    elif isinstance(x, (list, tuple, set, frozenset, collections.deque)):
        yield from ((where, value) for value in list(x))
    elif isinstance(x, np.ndarray):
        yield from ((where, value) for value in (x.flat if x.dtype == object else ()))
    elif isinstance(x, type):
        if _package(x) == package not in _OWN:
            yield from _attributes(where, vars(x))
    elif isinstance(x, (staticmethod, classmethod)):
        yield where, x.__func__
    elif isinstance(x, property):
        yield from ((where, part) for part in (x.fget, x.fset))
    elif _may_keep_arrays(type(x)):
        yield from _attributes(where, getattr(x, "__dict__", {}))
        yield from _slots(where, x)
        yield where, type(x)
    elif callable(x):
        # What `jax.jit` makes of a function.
        yield where, getattr(x, "__wrapped__", None)


def _package(x: Any) -> str:
    return str(getattr(x, "__module__", "")).partition(".")[0]


def _attributes(where: str, held: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f"{where}.{key}".lstrip("."), value) for key, value in list(held.items()))


def _slots(where: str, x: Any) -> Iterator[tuple[str, Any]]:
    for cls in type(x).__mro__:
        for name, slot in list(vars(cls).items()):
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # It is empty.
                    yield f"{where}.{name}".lstrip("."), slot.__get__(x)


def _may_keep_arrays(kind: type) -> bool:
    """Whether ``x`` is searched: objects of JAX and Flax keep tracers for their own purposes."""
    return _package(kind) not in _OWN


def _closed_over(fn: types.FunctionType, package: str) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # The cell is empty.
            yield name, cell.cell_contents
    yield from _attributes(fn.__name__, vars(fn))
    count = fn.__code__.co_argcount
    defaults = fn.__defaults__ or ()
    yield from zip(fn.__code__.co_varnames[count - len(defaults) : count], defaults, strict=True)
    yield from (fn.__kwdefaults__ or {}).items()
    codes = [fn.__code__]
    while codes:
        code = codes.pop()
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
        for name in code.co_names:
            found = fn.__globals__.get(name)
            yield name, found
            if isinstance(found, types.ModuleType) and found.__name__.partition(".")[0] == package:
                inner = (key for key in code.co_names if key in vars(found))
                yield from ((f"{name}.{key}", vars(found)[key]) for key in inner)
