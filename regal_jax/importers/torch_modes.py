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

__all__ = ["Shown", "differentiable"]

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

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func == torch.Tensor.data.__get__:  # pyright: ignore[reportAttributeAccessIssue]
            return args[0].detach()
        if self._gradient and func == torch.Tensor.detach_:
            raise FormatError("the module calls detach_(), which no trace shows: write y = y.detach()")
        made = func(*args, **(kwargs or {}))
        if not self._gradient or torch.is_grad_enabled():
            return made
        given = set(map(id, pytree.tree_leaves((args, kwargs))))  # An op in place returns its operand.
        return pytree.tree_map_only(torch.Tensor, lambda t: t if id(t) in given else t.detach(), made)
