"""What is in force while PyTorch exports a module, so that the trace shows what the module does."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from regal_jax.errors import FormatError

__all__ = ["Shown", "check_branches", "check_hooks", "differentiable"]

_HOOK: Final = (
    "the module {}, and no trace shows what a hook does to a gradient: remove it, or use form='forward'"
)
_IN_PLACE: Final = frozenset({"add__", "sub__", "mul__", "truediv__", "floordiv__", "mod__", "pow__"})
"""Ends of the names of Python's operators in place, such as ``__iadd__``."""
_DETACH: Final = (torch.Tensor.detach, torch.Tensor.data.__get__)  # pyright: ignore[reportAttributeAccessIssue]
_LOCK: Final = threading.RLock()
"""Held while a class of PyTorch is changed."""


@contextlib.contextmanager
def differentiable() -> Iterator[None]:
    """A context for the trace of a forward pass that is to be differentiated.

    Raises:
      FormatError: It calls a `torch.autograd.Function`, whose ``backward`` would be lost.
    """
    base, here = torch.autograd.Function, threading.get_ident()
    plain: Any = None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here:
            if cls is torch.utils.checkpoint.CheckpointFunction:
                inner, _, *operands = args  # Its gradient is that of the ops in it.
                return inner(*operands)
            if cls.__module__.partition(".")[0] != "torch":
                raise FormatError(
                    f"the module calls the torch.autograd.Function {cls.__name__!r}, and no trace shows its "
                    "backward: write it with ops that PyTorch differentiates, or use form='forward'"
                )
        return plain.__get__(None, cls)(*args, **kwargs)

    with _LOCK:
        plain = vars(base)["apply"]
        base.apply = classmethod(apply)  # pyright: ignore[reportAttributeAccessIssue]
        try:
            with torch.enable_grad():
                yield
        finally:
            base.apply = plain


class Shown(TorchFunctionMode):
    """Makes a trace show what is detached, which `torch.export` does not do in every case.

    Args:
      gradient: Whether the trace will be differentiated: what is computed under `torch.no_grad` is detached.
    """

    def __init__(self, gradient: bool) -> None:
        super().__init__()
        self._gradient = gradient
        # What is detached shares its memory with what it was: id -> both, which keeps the ids unique.
        self._shared: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func in _DETACH:
            made = args[0].detach()
            self._shared[id(made)] = made, args[0]
            return made
        kwargs = kwargs or {}
        if not self._gradient:
            return func(*args, **kwargs)
        if func == torch.Tensor.register_hook:
            raise FormatError(_HOOK.format("calls register_hook() of a tensor"))
        if func == torch.Tensor.detach_:
            raise FormatError("the module calls detach_(), which no trace shows: write y = y.detach()")
        changed = _changed(func, args, kwargs)
        if torch.is_grad_enabled() and not any(id(t) in self._shared for t in changed):
            return func(*args, **kwargs)
        memory = [self._shared.get(id(t), (t, t))[1] for t in changed]
        if any(t.requires_grad and not t.is_leaf for t in memory):
            raise FormatError(
                f"the module changes a tensor, without its gradient, by {func.__name__}, which no trace "
                "shows: write y = y + change.detach(), or use form='forward'"
            )
        if changed:
            args, kwargs = _detached((args, kwargs), changed)
            return func(*args, **kwargs)
        return _detached(func(*args, **kwargs), pytree.tree_leaves((args, kwargs)))


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an op in place, or one with a given result, changes."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    if in_place or name == "__setitem__" or name.removeprefix("__i") in _IN_PLACE:
        found: Any = args[:1]
    else:
        found = kwargs.get("out")
    return [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def _detached(tree: Any, but: Any) -> Any:
    """``tree`` with its tensors detached, but for those that are in ``but``."""
    same = set(map(id, but))  # Some ops return their operand.
    return pytree.tree_map_only(torch.Tensor, lambda t: t if id(t) in same else t.detach(), tree)


def check_hooks(module: torch.nn.Module) -> None:
    """Refuses a module whose gradients its hooks may change.

    Raises:
      FormatError: A parameter or a part of the module has a hook of its backward pass.
    """
    hooked = [
        name for name, part in module.named_modules() if part._backward_hooks or part._backward_pre_hooks
    ]
    hooked += [name for name, parameter in module.named_parameters() if parameter._backward_hooks]
    if hooked:
        raise FormatError(_HOOK.format(f"has a hook of the backward pass at {hooked[0]!r}"))


def check_branches(graph: torch.fx.GraphModule, inside: bool = False) -> None:
    """Refuses an exported program that switches gradients off within a branch.

    Args:
      graph: The program.
      inside: Whether it is a branch itself.

    Raises:
      FormatError: It does.
    """
    for node in graph.graph.nodes:
        if inside and node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
            raise FormatError(
                "the module uses torch.no_grad within a branch of torch.cond, whose gradient no trace shows: "
                "write y.detach() there, or use form='forward'"
            )
        for argument in node.all_input_nodes:
            part = getattr(graph, str(argument.target), None) if argument.op == "get_attr" else None
            if isinstance(part, torch.fx.GraphModule):
                check_branches(part, inside or node.target is torch.ops.higher_order.cond)
