"""Detection of plain attributes that a PyTorch module changes when it is called, which no trace shows."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from regal_jax.checks import shown
from regal_jax.errors import FormatError

__all__ = ["Attributes", "check_same"]

_OWN: Final = frozenset(vars(torch.nn.Module())) | {"_initialize_hook", "_load_hook"}
"""Attributes of every module: parameters, buffers, parts, hooks."""
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes})
_LONGEST: Final = 60


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """One changed attribute.

    Attributes:
      part: The part of the module that has it.
      path: Its path.
      key: Its name in ``part``.
      before: Its value before the call.
      after: Its value after the call.
    """

    part: torch.nn.Module
    path: str
    key: str
    before: Any
    after: Any


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


_MISSING: Final = _Missing()


class Attributes:
    """The plain attributes of a module, in lists and dicts as well, before and after its last call.

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
        # Containers are copied.
        self._before = {key: pytree.tree_map(lambda x: x, value) for key, _, value in self._attributes()}

    def _end(self) -> None:
        self.changes = []
        for key, part, value in self._attributes():
            before = self._before.get(key, _MISSING)
            if not _same(before, value):
                after = pytree.tree_map(lambda x: x, value)
                self.changes.append(_Change(part, ".".join(filter(None, key)), key[1], before, after))

    def _attributes(self) -> Iterator[tuple[tuple[str, str], torch.nn.Module, Any]]:
        for name, part in self._module.named_modules():
            for key, value in list(vars(part).items()):
                if key not in _OWN:
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
            setattr(
                change.part,
                change.key,
                pytree.tree_map(lambda x, old=before: x if id(x) in old else fake(x), change.after),
            )

    def refusal(self) -> FormatError:
        """The error for the first change."""
        change = self.changes[0]
        old, new = (_short(value) for value in (change.before, change.after))
        return FormatError(
            f"the module changes its attribute {change.path!r} from {old} to {new}, on which its next call "
            "depends, and no trace shows that: keep what changes in a buffer (register_buffer); if it is "
            "only set by the first call, call the module once before"
        )


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal: numbers and texts by value, anything else by identity."""
    if one is other:
        return True
    (left, spec), (right, other_spec) = pytree.tree_flatten(one), pytree.tree_flatten(other)
    if spec != other_spec:
        return False
    pairs = zip(left, right, strict=True)
    return all(a is b or (type(a) is type(b) and type(a) in _PLAIN and a == b) for a, b in pairs)


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
