"""Why PyTorch cannot trace a module, in words: what, where in the module, and how to mend it."""

import os
import traceback
from typing import Any, Final

import torch

__all__ = ["reason"]

_ANY: Final = (
    "torch.export must take it on these arguments: no control flow that depends on data; see the cause"
)
_ON_DATA: Final = frozenset({"DataDependentOutputException", "GuardOnDataDependentSymNode"})
_NO_BUFFER: Final = "Expected a real tensor, not a FakeTensor"
_SHARED: Final = "expected compiled_fn to be GraphModule"
_SIZE: Final = "DynamicOutputShapeException"


def reason(error: BaseException, module: torch.nn.Module) -> str:
    """The reason for an error of a trace, in one line.

    Args:
      error: The error.
      module: The module that was traced.
    """
    kind = type(error).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text, remedy = (lines or [""])[0][:200], _ANY
    if kind in _ON_DATA:
        part, where = _place(error, module)
        text = f"a Python number, a size or a branch depends on the values of tensors, {where}"
        remedy = "compute with tensors, as by torch.where or torch.cond, or let the number be an argument"
        if getattr(part, "momentum", 0) is None:
            remedy = "give it a momentum; with momentum=None it divides by the number of batches so far"
    elif kind == _SIZE:
        _, where = _place(error, module)
        text = f"{text} makes a tensor whose size depends on the values of others, {where}"
        remedy = "use ops whose results have sizes that shapes tell"
        if "ctc_loss" in text:
            remedy = "return the log-probabilities, and compute the loss outside of the module"
    elif text.startswith(_SHARED):
        text = "the module changes a tensor that shares memory with a buffer, parameter or argument beside it"
        remedy = "give each memory of its own"
    elif text == _NO_BUFFER:
        text = "the module computes with several tensors that are neither parameters nor buffers"
        remedy = "register them with register_buffer, and modules in lists as parts (torch.nn.ModuleList)"
    return f"{kind}: {text} ({remedy})"


def _place(error: BaseException, module: torch.nn.Module) -> tuple[torch.nn.Module, str]:
    """The innermost part of the module in which an error was raised, and a description of the place."""
    names = {id(part): name for name, part in module.named_modules()}
    found: Any = None
    line = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module) and id(owner) in names:
            found = owner
            if frame.f_code.co_name not in ("_call_impl", "_wrapped_call_impl", "__call__"):
                line = f" at {os.path.basename(frame.f_code.co_filename)}:{number}"
    if found is None:
        return module, "outside of its parts"
    path = names[id(found)]
    return found, f"in {f'{path!r} ' if path else 'the module '}({type(found).__name__}){line}"
