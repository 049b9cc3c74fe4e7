"""Words that identify settings, functions and the content of modules in every process."""

import dataclasses
import functools
import hashlib
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any, Final

import jax
import numpy as np

from regal_jax.runtime.versions import version_of

__all__ = ["UnnamedError", "module_word", "module_words", "source_word", "tree_word", "word"]

_PACKAGE: Final = __name__.partition(".")[0]
_FOLDER: Final = pathlib.Path(__file__).resolve().parents[1]
_ROOMS: Final = (
    "encoding",
    "gflownet",
    "learning",
    "ordering",
    "policies",
    "problem",
    "search",
    "simulate",
    "solve",
)
"""Top-level packages with traced functions."""
_LIBRARIES: Final = ("jax", "jaxlib", "flax", "numpy", "numba")
"""Libraries on which a traced program depends, besides our own source."""
_DESCRIBING: Final = ("__doc__", "__module__", "__qualname__")


class UnnamedError(Exception):
    """A value has no word that means the same in another process."""


def word(value: Any) -> str:
    """A word for a static argument of a program, or for a part of one.

    Args:
      value: A number, a string, ``None``; a tuple, list, set or dictionary of values with words; a named
        function or type in a module of ours, of JAX, Flax or NumPy; a `functools.partial` of such a function;
        one of our dataclasses; the structure of a pytree.

    Raises:
      UnnamedError: The value is or contains anything else, such as a function of the caller.
    """
    if value is None or value is type(None) or isinstance(value, (bool, int, float, str, bytes)):
        return f"{type(value).__qualname__}:{value!r}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__qualname__}({','.join(map(word, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__qualname__}({','.join(sorted(map(word, value)))})"
    if isinstance(value, Mapping):
        return f"dict({','.join(sorted(f'{word(key)}={word(each)}' for key, each in value.items()))})"
    if isinstance(value, jax.tree_util.PyTreeDef):
        return tree_word(value)
    if isinstance(value, functools.partial):
        return f"partial({word(value.func)},{word(value.args)},{word(value.keywords)})"
    name = _name(value)
    if name is not None:
        return name
    kind = _name(type(value))
    if dataclasses.is_dataclass(value) and kind is not None and kind.startswith(f"{_PACKAGE}."):
        return f"{kind}({word({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})})"
    raise UnnamedError(f"{type(value).__qualname__} {value!r:.80}")


def _name(value: Any) -> str | None:
    """Qualified name of ``value`` in a module that every process has; ``None`` if there is none."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not (isinstance(module, str) and isinstance(name, str)):
        return None
    if module.partition(".")[0] not in (_PACKAGE, "builtins", *_LIBRARIES):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    # The name of a program's function refers to a wrapper around it.
    return f"{module}.{name}" if found is value or getattr(found, "__wrapped__", None) is value else None


def tree_word(tree: Any) -> str:
    """A word for the structure of a pytree.

    Raises:
      UnnamedError: The auxiliary data of a node have no word.
    """
    node = tree.node_data()
    if node is None:
        return "*" if tree.num_leaves else "None"
    return f"{word(node[0])}[{word(node[1])}]({','.join(map(tree_word, tree.children()))})"


@functools.cache
def source_word() -> str:
    """A word for our source and the versions of its libraries.

    Raises:
      OSError: The source is not in a folder.
    """
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.rglob("*.py")):
        digest.update(f"{path.relative_to(_FOLDER)}\0".encode())
        digest.update(path.read_bytes())
    for library in _LIBRARIES:
        digest.update(f"{library} {version_of(library) or 'none'}\0".encode())
    digest.update(sys.version.encode())
    return digest.hexdigest()


def module_words() -> dict[str, str]:
    """Name to word (`module_word`) of each loaded module in `_ROOMS`."""
    return {name: module_word(name) for name in sorted(sys.modules) if _is_traced(name)}


def _is_traced(name: str) -> bool:
    """Whether a module is in one of `_ROOMS`."""
    return any(name == room or name.startswith(f"{room}.") for room in (f"{_PACKAGE}.{r}" for r in _ROOMS))


def module_word(name: str) -> str:
    """A word for the content of a module; empty if it is not loaded.

    The word changes when a function or a constant is replaced, since a trace then gives another program.
    """
    module = sys.modules.get(name)
    if module is None:
        return ""
    held = (
        f"{key}={_held(value)}\0"
        for key, value in sorted(vars(module).items())
        if key[:2] != "__" and not isinstance(value, types.ModuleType)
    )
    return hashlib.sha256("".join(held).encode()).hexdigest()


def _held(value: Any) -> str:
    """A description of the value of a name in a module, as precise as possible."""
    if isinstance(value, types.FunctionType):
        inner = getattr(value, "__wrapped__", None)
        return _defined(value) if inner is None else f"{_defined(value)}({_held(inner)})"
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value)
    if isinstance(value, type):
        name = f"{value.__module__}.{value.__qualname__}"
        return f"{name}({_members(value)})" if value.__module__.startswith(f"{_PACKAGE}.") else name
    if isinstance(value, (tuple, list)):
        return f"({','.join(map(_held, value))})"
    if isinstance(value, (set, frozenset)):
        return f"{{{','.join(sorted(map(_held, value)))}}}"
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{_held(key)}={_held(each)}' for key, each in value.items()))}}}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    wrapped = getattr(value, "__wrapped__", None)  # The case of `functools.cache` and `Program`.
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"{name}({getattr(value, '__qualname__', '') if wrapped is None else _held(wrapped)})"


def _members(kind: type) -> str:
    """The functions and the constants of a class."""
    held = []
    for key, value in vars(kind).items():
        value = getattr(value, "__func__", value)  # The case of a class method.
        if isinstance(value, property):
            held += [f"{key}={_held(each)}" for each in (value.fget, value.fset) if each is not None]
        elif isinstance(value, (types.FunctionType, bool, int, float, str)) and key not in _DESCRIBING:
            held.append(f"{key}={_held(value)}")
    return ",".join(sorted(held))


def _defined(function: types.FunctionType) -> str:
    """Place of a function's definition, which together with the source identifies it."""
    code = function.__code__
    return f"{_relative(code.co_filename)}:{code.co_firstlineno}:{function.__qualname__}"


@functools.cache
def _relative(file: str) -> str:
    path = pathlib.Path(file)
    return str(path.relative_to(_FOLDER)) if path.is_relative_to(_FOLDER) else file
