"""Why a module cannot be traced, in words: what, where in the module, and how to mend it."""

import os
import traceback
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from regal_jax.errors import FormatError

__all__ = ["check_apart", "reason"]

_ANY: Final = (
    "torch.export must take it on these arguments: no control flow that depends on data; see the cause"
)
_ON_DATA: Final = frozenset({"DataDependentOutputException", "GuardOnDataDependentSymNode"})
_NO_BUFFER: Final = "Expected a real tensor, not a FakeTensor"
_SHARED: Final = "expected compiled_fn to be GraphModule"
_APART: Final = "give each memory of its own"
_SIZE: Final = "DynamicOutputShapeException"
_WORK: Final[Any] = 10**6
"""Steps in which `numpy.shares_memory` must find out whether tensors overlap."""


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
        remedy = _APART
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


def check_apart(tensors: Iterable[tuple[str, Any, bool]]) -> None:
    """Refuses a tensor of a module that gets a new value and has elements in common with another.

    A trace does not show that the other one changes with it.

    Args:
      tensors: The name of each tensor, the tensor (others are skipped), and whether it gets a new value.

    Raises:
      FormatError: There is one.
    """
    storages: dict[int, list[tuple[int, int, str, torch.Tensor, bool]]] = {}
    for name, tensor, changed in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided and tensor.numel():
            begin, end = _extent(tensor)
            key = tensor.untyped_storage()._cdata
            storages.setdefault(key, []).append((begin, end, name, tensor, changed))
    for rows in storages.values():
        before: list[tuple[int, int, str, torch.Tensor, bool]] = []
        for row in sorted(rows, key=lambda each: each[:2]):
            before = [each for each in before if each[1] > row[0]]
            for other in before:
                if other[3] is not row[3] and (other[4] or row[4]) and _overlap(other[3], row[3]):
                    raise FormatError(
                        f"{other[2]!r} and {row[2]!r} share memory, and the program changes one of them: "
                        f"{_APART}, or make them one parameter or buffer"
                    )
            before.append(row)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the one after its last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    begin = int(tensor.storage_offset()) * tensor.element_size()
    return begin, begin + (last + 1) * tensor.element_size()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of one storage have bytes in common."""
    try:
        return np.shares_memory(_Bytes(one), _Bytes(other), max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


class _Bytes:
    """The bytes of a tensor as an array of NumPy, from which nothing can be read: it begins at its offset."""

    def __init__(self, tensor: torch.Tensor) -> None:
        size = tensor.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (1 + _extent(tensor)[0], True),
            "shape": (*tensor.shape, size),
            "strides": (*(stride * size for stride in tensor.stride()), 1),
        }
