"""A call of a JAX function as a function of flat arrays, the state of Flax NNX objects included."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.core

from regal_jax.checks import shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.importers.nnx_objects import NnxObjects, is_nnx, is_nnx_method, is_variable

__all__ = ["ArgName", "FlatCall", "Leaf", "array_type", "is_array", "parameter_names", "static_key"]

ArgName = int | str
"""A positional argument by its index, or a keyword argument by its name."""
_SETTINGS: Final = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_default_prng_impl",
    "jax_threefry_partitionable", "jax_random_seed_offset", "jax_numpy_rank_promotion",
)  # fmt: skip
"""Settings of JAX on which the trace of a function depends."""


def static_key(where: str, values: Mapping[int, Any] | Mapping[ArgName, Any]) -> tuple[Any, ...]:
    """A key of static arguments and of the settings of JAX, under which programs are kept.

    ``1``, ``1.0`` and ``True`` differ.

    Args:
      where: The function that is called, for the message.
      values: The static arguments by their index or name.

    Raises:
      ConfigError: An argument has no hash.
    """
    for i, value in values.items():
        try:
            hash(value)
        except TypeError:
            raise ConfigError(
                f"{where}: static argument {i!r} is a {type(value).__name__}, which has no hash; give a "
                "tuple or another value that cannot change"
            ) from None
    settings = tuple(getattr(jax.config, name) for name in _SETTINGS)
    return settings, *((i, _typed(x)) for i, x in sorted(values.items(), key=lambda item: str(item[0])))


def _typed(value: Any) -> Any:
    return type(value), tuple(map(_typed, value)) if isinstance(value, tuple) else value


def array_type(where: str, leaf: Any) -> Any:
    """JAX's type of an argument: its shape and dtype.

    Args:
      where: The function that is called, for the message.
      leaf: An array or a number.

    Raises:
      ConfigError: It is neither, or JAX has no type for the number.
    """
    if is_array(leaf) and not isinstance(leaf, jax.ShapeDtypeStruct):
        try:
            return jax.typeof(leaf)
        except OverflowError as error:
            raise ConfigError(f"{where}: the argument {shown(leaf)}: {error}; give an array") from None
    raise ConfigError(
        f"{where}: the argument {shown(leaf)} is no array; name what is static in static_argnums"
    )


def is_array(leaf: Any) -> bool:
    """Whether this is an array, a number, or the shape of an array."""
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return True
    try:
        return jax.typeof(leaf) is not None
    except TypeError:
        return False
    except OverflowError:  # A number, which JAX has no type for.
        return True


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """An array argument of the call.

    Attributes:
      arg: The argument to which it belongs; `None` if the function itself contains it (a bound method, a
        `functools.partial`).
      name: A readable path to it.
      value: The array, shape or number.
      state: Whether an NNX object holds it.
      loose: Whether that object is a single variable, as in an `nnx.State`, and not part of a module.
    """

    arg: ArgName | None
    name: str
    value: Any
    state: bool = False
    loose: bool = False


class FlatCall:
    """``fn(*args, **kwargs)`` as a function of flat arrays that changes nothing in place.

    NNX objects (modules, optimisers, metrics, `nnx.Rngs`, variables) are split into their arrays, rebuilt
    from traced arrays for the call, and split again afterwards; their new arrays are returned after the
    results. An object that several arguments share stays one object.

    Args:
      fn: The function; also a module, a method of one, or a `functools.partial` that holds some.
      args: Its positional arguments.
      kwargs: Its keyword arguments.
      static: The arguments that are passed as they are, by index or by keyword.

    Attributes:
      leaves: The arrays, in the order of the arguments; those that come with ``fn`` first.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        static: frozenset[ArgName],
    ) -> None:
        self._fn, bound_args, bound_kwargs = _unbound(fn)
        names = ["model" if n == "self" else n for n in _names(self._fn, len(bound_args))]
        slots = [_Slot(None, name, tree) for name, tree in zip(names, bound_args, strict=True)]
        slots += [_Slot(None, key, bound_kwargs[key]) for key in sorted(bound_kwargs)]
        self._bound = len(slots)
        names = _names(fn, len(args))
        slots += [_Slot(i, names[i], tree, i in static) for i, tree in enumerate(args)]
        slots += [_Slot(key, key, kwargs[key], key in static) for key in sorted(kwargs)]
        self._slots = slots
        self._positional = len(bound_args), len(args)
        self._keys = sorted(bound_kwargs), sorted(kwargs)
        self._objects = NnxObjects([(name, x) for slot in slots for name, x in slot.objects()])
        state = iter(self._objects.leaves())
        self.leaves = [leaf for slot in slots for leaf in slot.leaves(state)]

    def __call__(self, *values: Any) -> tuple[Any, list[Any]]:
        """The results, and the new arrays of all NNX objects."""
        pairs = list(zip(self.leaves, values, strict=True))
        objects = self._objects.merge([value for leaf, value in pairs if leaf.state])
        rest = iter(objects), iter([value for leaf, value in pairs if not leaf.state])
        trees = [slot.fill(*rest) for slot in self._slots]
        bound, given = trees[: self._bound], trees[self._bound :]
        (few, count), (bound_keys, keys) = self._positional, self._keys
        args = (*bound[:few], *given[:count])
        named = dict(zip(bound_keys, bound[few:], strict=True)) | dict(zip(keys, given[count:], strict=True))
        before = [jax.tree.leaves(tree, is_leaf=is_nnx) for tree in trees]
        results = self._fn(*args, **named)
        for slot, tree, leaves in zip(self._slots, trees, before, strict=True):
            slot.check(tree, leaves)
        return results, self._objects.split(objects)

    @property
    def fixed(self) -> Any:
        """A key of what the NNX objects hold besides arrays, on which the program depends."""
        return self._objects.fixed

    def check_kept(self) -> None:
        """Checks, after a call, that it has changed no more than the arrays of NNX objects.

        Raises:
          FormatError: It has.
        """
        self._objects.check_kept()

    def update(self, arrays: Sequence[Any]) -> None:
        """Writes the new arrays of all NNX objects, as a call returns them, to the user's objects."""
        self._objects.update(arrays)


@dataclasses.dataclass(frozen=True, slots=True)
class _Slot:
    """One argument. If it is part of the function, only its NNX objects are flattened."""

    arg: ArgName | None
    name: str
    tree: Any
    static: bool = False

    def _flat(self) -> tuple[list[tuple[str, Any]], Any]:
        if self.static:
            return [], None
        flat, treedef = jax.tree_util.tree_flatten_with_path(self.tree, is_leaf=is_nnx)
        return [(_join(self.name, _text(path)), x) for path, x in flat], treedef

    def objects(self) -> list[tuple[str, Any]]:
        return [(name, x) for name, x in self._flat()[0] if is_nnx(x)]

    def leaves(self, state: Iterator[list[tuple[str, Any]]]) -> list[Leaf]:
        """The arrays; ``state`` yields those of each NNX object."""
        found: list[Leaf] = []
        for name, x in self._flat()[0]:
            if is_nnx(x):
                loose = is_variable(x)
                found += [Leaf(self.arg, _join(name, p), array, True, loose) for p, array in next(state)]
            elif self.arg is not None:
                found.append(Leaf(self.arg, name, x))
        return found

    def fill(self, objects: Iterator[Any], arrays: Iterator[Any]) -> Any:
        """The argument, with its own objects and arrays replaced by the next ones."""
        if self.static:
            return self.tree
        flat, treedef = self._flat()
        filled = (next(objects) if is_nnx(x) else x if self.arg is None else next(arrays) for _, x in flat)
        return jax.tree_util.tree_unflatten(treedef, filled)

    def check(self, tree: Any, before: list[Any]) -> None:
        """Refuses an argument into which the function has stored a traced array."""
        if self.static:
            return
        known = set(map(id, before))
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_nnx):
            if id(leaf) not in known and (isinstance(leaf, jax.core.Tracer) or is_nnx(leaf)):
                where = _join(self.name, _text(path))
                raise FormatError(
                    f"the function changes its argument {where!r} in place, which no trace of it shows: "
                    "return the new value instead (only NNX objects are followed)"
                )


def _text(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _join(*parts: str) -> str:
    return "/".join(filter(None, parts))


def _unbound(fn: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """``fn`` without the NNX objects that it holds, and the arguments to put before the others."""
    if isinstance(fn, functools.partial):
        inner, args, kwargs = _unbound(fn.func)
        args, kwargs = (*args, *fn.args), {**kwargs, **fn.keywords}
        held = any(map(is_nnx, jax.tree.leaves((args, kwargs), is_leaf=is_nnx)))
        return (inner, args, kwargs) if held else (fn, (), {})
    if is_nnx(fn):
        return (lambda model, *args, **kwargs: model(*args, **kwargs)), (fn,), {}
    if is_nnx_method(fn):
        name = fn.__name__
        return (lambda model, *args, **kwargs: getattr(model, name)(*args, **kwargs)), (fn.__self__,), {}  # pyright: ignore
    return fn, (), {}


def parameter_names(fn: Callable[..., Any]) -> list[str]:
    """Names of the parameters that ``fn`` takes by place; none if Python does not know them."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _names(fn: Callable[..., Any], count: int) -> list[str]:
    """Names of the first ``count`` arguments."""
    plain = parameter_names(fn)
    return (plain + [f"arg{i}" for i in range(len(plain), count)])[:count]
