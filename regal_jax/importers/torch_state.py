"""Detection of plain attributes that a PyTorch module changes when it is called, which no trace shows."""

import collections
import contextlib
import copy
import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from regal_jax.checks import shown
from regal_jax.errors import FormatError

__all__ = ["Attributes", "check_same", "owners", "tracing"]

_OWN: Final = frozenset(vars(torch.nn.Module())) | {"_initialize_hook", "_load_hook"}
"""Attributes of every module: parameters, buffers, parts, hooks."""
_CONTAINERS: Final = frozenset({set, collections.Counter, np.ndarray})
"""Containers that PyTorch takes for leaves."""
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, set})
_FOREIGN: Final = (sys.stdlib_module_names | {"torch", "numpy"}) - {"__main__"}
"""Packages whose objects hold no state of a module that could be told from their attributes."""
_LONGEST: Final = 60


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """One changed attribute.

    Attributes:
      part: The part of the module, or the object in one, that has it.
      path: Its path.
      key: Its name in ``part``.
      before: Its value before the call.
      after: Its value after the call.
    """

    part: Any
    path: str
    key: str
    before: Any
    after: Any


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final = _Missing()


def owners(module: torch.nn.Module) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """What has attributes: the parts of a module, then objects of users' classes that these hold.

    Args:
      module: The module. Its attributes may hold objects in lists and dicts, and modules that are no parts.

    Yields:
      A path, a part or object, and its attributes.
    """
    seen: set[int] = set()
    waiting: collections.deque[tuple[str, Any]] = collections.deque(module.named_modules())
    while waiting:
        path, owner = waiting.popleft()
        if id(owner) in seen:
            continue
        seen.add(id(owner))
        attributes = _attributes(owner)
        yield path, owner, attributes
        plain = {key: value for key, value in attributes.items() if key not in _OWN}
        held = [
            (key, *row) for key, value in plain.items() for row in pytree.tree_flatten_with_path(value)[0]
        ]
        for key, steps, leaf in held:
            if isinstance(leaf, torch.nn.Module) or _is_users(leaf):
                place = ".".join(filter(None, (path, f"{key}{pytree.keystr(steps)}")))
                parts = leaf.named_modules() if isinstance(leaf, torch.nn.Module) else [("", leaf)]
                waiting.extend((".".join(filter(None, (place, name))), part) for name, part in parts)


def _attributes(owner: Any) -> dict[str, Any]:
    slots = [name for cls in type(owner).__mro__ for name in _names(vars(cls).get("__slots__", ()))]
    found = {name: getattr(owner, name) for name in slots if hasattr(owner, name)}
    return found | dict(getattr(owner, "__dict__", {}))


def _names(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_users(leaf: Any) -> bool:
    """Whether this is an object whose attributes may be state of a module."""
    cls = type(leaf)
    if cls is types.SimpleNamespace:
        return True
    return not isinstance(leaf, (type, torch.Tensor)) and cls.__module__.partition(".")[0] not in _FOREIGN


class Attributes:
    """The plain attributes of a module and of the objects in it, before and after its last call.

    They are seen in lists and dicts as well.

    Args:
      module: The module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._before: dict[tuple[str, str], Any] = {}
        self.changes: list[_Change] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """A context in which calls of the module are watched; `torch.export` restores attributes later."""
        hooks = [
            self._module.register_forward_pre_hook(lambda *_: self._begin()),
            self._module.register_forward_hook(lambda *_: self._end()),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _begin(self) -> None:
        self._before = {key: _content(value) for key, _, value in self._attributes()}

    def _end(self) -> None:
        self.changes = []
        for key, part, value in self._attributes():
            before = self._before.get(key, _MISSING)
            if not _same(before, value):
                path = ".".join(filter(None, key))
                self.changes.append(_Change(part, path, key[1], before, _content(value)))

    def _attributes(self) -> Iterator[tuple[tuple[str, str], Any, Any]]:
        for name, part, attributes in owners(self._module):
            for key, value in attributes.items():
                if key not in _OWN or not isinstance(part, torch.nn.Module):
                    yield (name, key), part, value

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors among them that are no parameters or buffers, by the path of the attribute."""
        registered = {id(t) for t in (*self._module.parameters(), *self._module.buffers())}
        return {
            ".".join(filter(None, key)): leaf
            for key, _, value in self._attributes()
            for leaf in pytree.tree_leaves(value)
            if isinstance(leaf, torch.Tensor) and id(leaf) not in registered
        }

    def apply(self, fake: Callable[[Any], Any]) -> None:
        """Gives the module the attributes that it had after its last call.

        Args:
          fake: Makes the tensor that stands for one that the call has computed.
        """
        for change in self.changes:
            before = set(map(id, pytree.tree_leaves(change.before)))
            after = _content(change.after)  # The next call may change it.
            after = pytree.tree_map(lambda x, old=before: x if id(x) in old else fake(x), after)
            _set(change, after)

    def undo(self) -> None:
        """Gives the module the attributes that it had before its last call."""
        for change in self.changes:
            if change.before is not _MISSING:
                _set(change, change.before)
            elif hasattr(change.part, change.key):
                object.__delattr__(change.part, change.key)

    def refusal(self) -> FormatError:
        """The error for the first change."""
        change = self.changes[0]
        old, new = (_short(value) for value in (change.before, change.after))
        return FormatError(
            f"the module changes its attribute {change.path!r} from {old} to {new}, on which its next call "
            "depends, and no trace shows that: keep what changes in a buffer (register_buffer); if it is "
            "only set by the first call, call the module once before"
        )


def _set(change: _Change, value: Any) -> None:
    if isinstance(change.part, torch.nn.Module):
        setattr(change.part, change.key, value)
    else:  # Its class may be frozen.
        object.__setattr__(change.part, change.key, value)


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """A context in which `torch.jit.is_tracing` is true. Many modules with caches do not use them then."""
    jit: Any = torch.jit
    before, jit.is_tracing = jit.is_tracing, lambda: True
    try:
        yield
    finally:
        jit.is_tracing = before


def _content(value: Any) -> Any:
    """The value with copies of its containers."""
    return pytree.tree_map(lambda leaf: copy.copy(leaf) if type(leaf) in _CONTAINERS else leaf, value)


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal: numbers, texts and containers by value, anything else by identity."""
    if one is other:
        return True
    (left, spec), (right, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    return spec == other_spec and all(map(_same_leaf, left, right))


def _same_leaf(one: Any, other: Any) -> bool:
    if one is other or type(one) is not type(other):
        return one is other
    if type(one) is collections.Counter:
        return _same(dict(one), dict(other))
    if type(one) is np.ndarray:
        key = one.dtype, one.shape, one.tobytes()
        return key == (other.dtype, other.shape, other.tobytes())
    return type(one) in _PLAIN and one == other


def _short(value: Any) -> str:
    if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value)):
        return "a tensor" if isinstance(value, torch.Tensor) else f"a {type(value).__name__} of tensors"
    text = " ".join(shown(value).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_same(
    one: torch.export.ExportedProgram, other: torch.export.ExportedProgram, attributes: Attributes
) -> None:
    """Refuses a module whose next call runs another program.

    Args:
      one: The program of a call.
      other: That of the next one.
      attributes: What the first call has changed.

    Raises:
      FormatError: The programs differ.
    """
    if _text(one) != _text(other) or not _same_constants(one.constants, other.constants):
        raise attributes.refusal()


def _text(program: torch.export.ExportedProgram) -> list[str]:
    graphs = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    signature = program.graph_signature
    specs = [(spec.kind.name, spec.target) for spec in (*signature.input_specs, *signature.output_specs)]
    return [*(graph.code for graph in graphs), repr(specs)]


def _same_constants(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(x is other[name] or _equal(x, other[name]) for name, x in one.items())


def _equal(one: Any, other: Any) -> bool:
    """Whether two constants are equal; fake ones are only if they are the same."""
    both = isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor)
    fake = isinstance(one, FakeTensor) or isinstance(other, FakeTensor)
    return both and not fake and torch.equal(one, other)
