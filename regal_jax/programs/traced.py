"""Traced programs on disk, which a process need not trace and lower again.

A file is a line of JSON followed by the output of `jax.export`. The line identifies the program: the function
and its static arguments, the kinds of the other arguments, our source, versions, and the content of the
modules whose functions were traced. A program is used only if all of this agrees, so that only the time
changes.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import pathlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import jax.export

from regal_jax.programs.stored import trace_folder
from regal_jax.programs.words import UnnamedError, module_word, module_words, source_word, word
from regal_jax.runtime.compiling import installed
from regal_jax.storage.atomic import write_atomically

__all__ = ["call_needs", "custom_call", "traced"]

_FORMAT: Final = 1
_custom_calls: dict[str, Callable[[], object]] = {}
"""Name of each custom call -> function that registers it with XLA."""
_needed = threading.local()
"""State of this thread; ``names`` are those of the custom calls in the current trace."""


def custom_call(name: str, register: Callable[[], object]) -> None:
    """Declares a custom call; ``register``, which may be called repeatedly, registers it with XLA."""
    _custom_calls[name] = register


def call_needs(name: str) -> None:
    """Records that the current trace has this custom call."""
    names = getattr(_needed, "names", None)
    if names is not None:
        names.add(name)


@contextlib.contextmanager
def _noting() -> Iterator[set[str]]:
    before, _needed.names = getattr(_needed, "names", None), set()
    try:
        yield _needed.names
    finally:
        _needed.names = before


def traced(
    function: Callable[..., Any],
    statics: Sequence[Any],
    tree: Any,
    leaves: Sequence[Any],
    call: Callable[..., Any],
) -> tuple[Callable[..., Any], Any]:
    """A traced ``call``, read from the disk, or traced now and written there.

    Args:
      function: Function that ``call`` runs; its name and static arguments identify the program.
      statics: Static arguments of the function.
      tree: Structure of its other arguments.
      leaves: Leaves of the other arguments; only shapes and dtypes matter.
      call: Function of the leaves.

    Returns:
      A function of the leaves, to be compiled, and the shapes of its results; ``call`` itself and ``None`` if
      there is no folder, or no word that identifies this program.
    """
    folder = trace_folder()
    if folder is None:
        return call, None
    try:
        about = {
            "function": word(function),
            "statics": word(tuple(statics)),
            "tree": word(tree),
            "leaves": [f"{leaf.dtype}{list(leaf.shape)}" for leaf in leaves],
            "source": source_word(),
            "numba": installed(),
            "modes": [str(getattr(jax.config, name, None)) for name in _MODES],
            "prefix": sys.prefix,
            "format": _FORMAT,
        }
    except (UnnamedError, OSError):
        return call, None
    name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{function.__name__}-{name}.traced"
    found = _read(path, about) or _export(path, about, leaves, call)
    if found is None:
        return call, None
    run = found.call

    def known(*leaves: Any) -> Any:
        return run(*leaves)

    known.__name__ = known.__qualname__ = call.__name__
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in found.out_avals]
    return known, jax.tree.unflatten(found.out_tree, shapes)


_MODES: Final = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable")
"""Settings of JAX that change the meaning of a trace."""


def _read(path: pathlib.Path, about: dict[str, Any]) -> jax.export.Exported | None:
    """The program in a file, if it is identical to what would be traced now; else ``None``."""
    try:
        line, _, body = path.read_bytes().partition(b"\n")
        head = json.loads(line)
        if head["about"] != about or head["digest"] != hashlib.sha256(body).hexdigest():
            return None
        for name in head["calls"]:
            _custom_calls[name]()  # This may load modules.
        if any(module_word(module) != held for module, held in head["modules"].items()):
            return None
        for kind in head["types"]:
            _serializable(kind)
        return jax.export.deserialize(bytearray(body))
    except Exception:  # A damaged file, or one of another JAX, is traced again.
        return None


def _export(
    path: pathlib.Path, about: dict[str, Any], leaves: Sequence[Any], call: Callable[..., Any]
) -> jax.export.Exported | None:
    """Exports ``call`` with `jax.export` and writes it to a file; ``None`` if it cannot be written."""
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves]
    checks = [jax.export.DisabledSafetyCheck.custom_call(name) for name in _custom_calls]
    with _noting() as calls:
        exported = jax.export.export(jax.jit(call), disabled_checks=checks)(*shapes)
    kinds = sorted({_kind_name(kind) for kind in _kinds(exported.out_tree)})
    try:
        for kind in kinds:
            _serializable(kind)
        body = bytes(exported.serialize())
    except (ValueError, AttributeError):  # An output has a type that cannot be written.
        return None
    head = {"about": about, "modules": module_words(), "calls": sorted(calls), "types": kinds}
    head["digest"] = hashlib.sha256(body).hexdigest()
    with contextlib.suppress(OSError):
        write_atomically(path, json.dumps(head).encode() + b"\n" + body)
    # Return a copy, since the exported object holds the whole trace.
    return jax.export.deserialize(bytearray(body))


def _kinds(tree: Any) -> Iterator[type]:
    """Types of ours in the structure of a pytree."""
    node = tree.node_data()
    if node is None:
        return
    if node[0].__module__ != "builtins":
        yield node[0]
    for child in tree.children():
        yield from _kinds(child)


def _kind_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


@functools.cache
def _serializable(name: str) -> None:
    """Registers the serialization of one of our types with JAX: a dataclass of arrays or a named tuple."""
    module, _, qualified = name.partition(":")
    kind: Any = importlib.import_module(module)
    for part in qualified.split("."):
        kind = getattr(kind, part)
    if hasattr(kind, "__dataclass_fields__"):
        jax.export.register_pytree_node_serialization(
            kind,
            serialized_name=name,
            serialize_auxdata=_plain,
            deserialize_auxdata=lambda fields: tuple(json.loads(fields)),
        )
    else:
        jax.export.register_namedtuple_serialization(kind, serialized_name=name)


def _plain(fields: tuple[Any, ...]) -> bytes:
    """Static fields of a dataclass as JSON."""
    for field in fields:
        if type(field) not in (bool, int, float, str, type(None)):
            raise ValueError(f"a static field is {field!r}")
    return json.dumps(fields).encode()
