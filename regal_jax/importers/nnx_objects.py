"""Conversion of Flax NNX objects to their arrays and back. This module does not import Flax."""

import functools
import inspect
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

import jax

from regal_jax.errors import FormatError

__all__ = ["NnxObjects", "is_nnx", "is_nnx_method", "is_variable"]

_SCOPE: Final = "_regal_jax_scope"
_SCOPED_METHODS: Final = ("__call__", "update")
"""Methods whose ops are named after the object: calls of modules, updates of optimisers and metrics."""

_entered = threading.local()


def _nnx() -> Any:
    """The module ``flax.nnx`` if it has been loaded; otherwise there are no NNX objects."""
    return sys.modules.get("flax.nnx")


def is_nnx(x: Any) -> bool:
    """Whether ``x`` is a module, optimiser, metric, `nnx.Rngs` or the like, or an `nnx.Variable`."""
    nnx = _nnx()
    return nnx is not None and (isinstance(x, nnx.Pytree) or is_variable(x))


def is_variable(x: Any) -> bool:
    """Whether ``x`` is an `nnx.Variable`."""
    nnx = _nnx()
    return nnx is not None and isinstance(x, nnx.Variable)


def is_nnx_method(fn: Any) -> bool:
    """Whether ``fn`` is a method that is bound to an NNX object."""
    owner = getattr(fn, "__self__", None)
    return is_nnx(owner) and hasattr(type(owner), getattr(fn, "__name__", ""))


class NnxObjects:
    """NNX objects that are split together, so that shared variables stay shared.

    Ops inside a method of `_SCOPED_METHODS` are named after the path of the object (``encoder/layers_0``),
    which begins with the argument's name unless there is only one module.

    Args:
      named: A name for each object.
    """

    def __init__(self, named: Sequence[tuple[str, Any]]) -> None:
        self._count = len(named)
        self._graphdef: Any = None
        self._after: Any = None
        if not named:
            return
        nnx = _nnx()
        self._originals = tuple(x for _, x in named)
        # A copy shares only the arrays, so that the user's objects do not change.
        copy = nnx.merge(*nnx.split(tuple(x for _, x in named), graph=True))
        variables = [x for _, x in nnx.iter_graph(copy, graph=True) if is_variable(x)]
        if any(v.get_metadata().get(kind) for v in variables for kind in ("hijax", "ref")):
            copy = nnx.with_vars(copy, hijax=False, ref=False)
        _give_scopes(copy, [name for name, _ in named])
        self._graphdef, self._state = nnx.split(copy, graph=True)
        self._after = self._graphdef
        self._treedef = jax.tree.structure(self._state)

    @property
    def fixed(self) -> Any:
        """A key of all that the objects hold besides arrays: their variables, numbers, flags, functions."""
        try:
            hash(self._graphdef)
        except TypeError:  # They hold something that can be changed, such as a dict.
            return repr(self._graphdef)
        return self._graphdef

    def leaves(self) -> list[list[tuple[str, Any]]]:
        """For each object its arrays with their paths; a shared array is listed for the first object only."""
        found: list[list[tuple[str, Any]]] = [[] for _ in range(self._count)]
        if not self._count:
            return found
        for path, x in jax.tree_util.tree_leaves_with_path(self._state, is_leaf=is_variable):
            for inner, value in jax.tree_util.tree_leaves_with_path(x):
                # The first key of a variable only marks its value.
                keys = (*path, *(inner[1:] if is_variable(x) else inner))
                index, *names = [jax.tree_util.keystr((key,), simple=True) for key in keys]
                found[int(index)].append((_path(names), value))
        return found

    def merge(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """New objects with the arrays ``values``, in the order of `leaves`."""
        if not self._count:
            return ()
        return _nnx().merge(self._graphdef, jax.tree.unflatten(self._treedef, values))

    def split(self, objects: tuple[Any, ...]) -> list[Any]:
        """All arrays that ``objects`` hold after the call."""
        if not self._count:
            return []
        self._after, state = _nnx().split(objects, graph=True)
        return jax.tree.leaves(state)

    def check_kept(self) -> None:
        """Refuses a call that has changed more than arrays.

        Raises:
          FormatError: The objects that were split last differ from those before the call.
        """
        if self._after != self._graphdef:
            raise FormatError(
                "the function changes an NNX object in more than its arrays, which a planned call cannot "
                "repeat: keep numbers that change in an nnx.Variable, and create variables before the call"
            )

    def update(self, values: Sequence[Any]) -> None:
        """Writes ``values``, in the order of `split`, to the user's objects."""
        if self._count:
            nnx = _nnx()
            tree = jax.tree.structure(nnx.split(self._originals, graph=True)[1])
            nnx.update(self._originals, jax.tree.unflatten(tree, values))


def _path(names: Sequence[Any]) -> str:
    """``("layers", "0", "kernel")`` as ``"layers_0/kernel"``."""
    parts: list[str] = []
    for name in map(str, names):
        if name.isdecimal() and parts:
            parts[-1] += f"_{name}"
        else:
            parts.append(name)
    return "/".join(parts)


def _give_scopes(objects: tuple[Any, ...], names: Sequence[str]) -> None:
    nnx = _nnx()
    modules = {id(x) for x in objects if isinstance(x, nnx.Module)}
    for path, x in nnx.iter_graph(objects, graph=True):
        if not isinstance(x, nnx.Pytree) or not _methods(type(x)):
            continue
        index, *rest = path
        alone = isinstance(objects[index], nnx.Module) and len(modules) == 1
        scope = _path(rest if alone else [names[index], *rest])
        x.__class__ = _scoped(type(x))
        setattr(x, _SCOPE, scope)


def _methods(cls: type) -> dict[str, Any]:
    """Those of `_SCOPED_METHODS` that instances of ``cls`` have; the class itself can always be called."""
    found = {name: inspect.getattr_static(cls, name, None) for name in _SCOPED_METHODS}
    found = {name: x for name, x in found.items() if any(name in vars(c) for c in cls.__mro__)}
    plain = (
        name for name, x in found.items() if callable(x) and not isinstance(x, (staticmethod, classmethod))
    )
    return {name: getattr(cls, name) for name in plain}


@functools.cache
def _scoped(cls: type) -> type:
    """A subclass of ``cls`` whose methods name their ops; cached, since JAX keeps it."""
    methods = {name: _in_scope(method) for name, method in _methods(cls).items()}
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    # The class may have set another value than Flax's default.
    pytree = getattr(cls, "_pytree__is_pytree", True)
    return type(cls)(cls.__name__, (cls,), {**methods, **names}, pytree=pytree)  # pyright: ignore


def _in_scope(method: Any) -> Any:
    @functools.wraps(method)
    def scoped(self: Any, *args: Any, **kwargs: Any) -> Any:
        outer, own = getattr(_entered, "scope", ""), getattr(self, _SCOPE, "")
        # Scopes of JAX nest, so only the new part of the path is entered.
        new = own.removeprefix(outer).removeprefix("/") if own.startswith(f"{outer}/") or not outer else own
        if not new or own == outer:
            return method(self, *args, **kwargs)
        _entered.scope = own
        try:
            with jax.named_scope(new):
                return method(self, *args, **kwargs)
        finally:
            _entered.scope = outer

    return scoped
