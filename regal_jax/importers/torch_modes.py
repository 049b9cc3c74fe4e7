"""What is in force while PyTorch exports a module, so that the trace shows what the module does."""

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from regal_jax.errors import FormatError

__all__ = ["Shown", "check_control_flow", "check_hooks", "differentiable"]

_HOOK: Final = (
    "the module {}, and no trace shows what a hook does to a gradient: remove it, or use form='forward'"
)
_LOST: Final = (
    "the module changes a tensor, without its gradient, by {}, which no trace shows: write "
    "y = y + change.detach(), or use form='forward'"
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
      plain: Tensors that the module holds as plain attributes, by their paths.
    """

    def __init__(self, gradient: bool, plain: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._gradient = gradient
        self._plain = {_storage(t): path for path, t in plain.items()}
        # By their memory, which is not given away while they are here: results with a gradient, what such
        # results were computed from, what is detached, and what was computed without gradients.
        self._graded: dict[int, torch.Tensor] = {}
        self._read: dict[int, torch.Tensor] = {}
        self._aliases: dict[int, torch.Tensor] = {}
        self._plainly: dict[int, torch.Tensor] = {}
        # What is detached, and its views, by their ids; those of them that have a gradient of their own since
        # their memory was changed, unlike what was detached.
        self._apart: dict[int, torch.Tensor] = {}
        self._stale: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        func = _EXPLICIT.get(func, func)
        if func in _DETACH:
            made = args[0].detach()
            if not torch.compiler.is_dynamo_compiling():
                self._aliases[_storage(made)] = made
                self._apart[id(made)] = made
            return made
        kwargs = kwargs or {}
        if self._gradient and func == torch.Tensor.register_hook:
            raise FormatError(_HOOK.format("calls register_hook() of a tensor"))
        if self._gradient and func == torch.Tensor.detach_:
            raise FormatError("the module calls detach_(), which no trace shows: write y = y.detach()")
        if torch.compiler.is_dynamo_compiling():  # A branch, see `check_control_flow`.
            return func(*args, **kwargs)
        changed = _changed(func, args, kwargs)
        self._check_plain(changed)
        if not self._gradient:
            return func(*args, **kwargs)
        operands = pytree.tree_leaves((args, kwargs))
        self.check_read(operands)
        made = self._called(func, args, kwargs, changed, operands)
        apart = {_storage(t) for t in _tensors(operands) if id(t) in self._apart}
        self._apart |= {id(t): t for t in _tensors(made) if _storage(t) in apart}
        return made

    def check_read(self, tree: Any) -> None:
        """Refuses to read, or return, what is detached and has a gradient of its own.

        Raises:
          FormatError: A tensor is such a one.
        """
        if any(id(t) in self._stale for t in _tensors(tree)):
            raise FormatError(_LOST.format("an op on what is detached"))

    def _called(
        self, func: Any, args: Any, kwargs: Any, changed: Sequence[torch.Tensor], operands: Sequence[Any]
    ) -> Any:
        """Calls an op of a trace that will be differentiated."""
        apart = self._check_graded(func, changed, operands)
        if torch.is_grad_enabled() and not apart:
            made = func(*args, **kwargs)
            found = [t for t in _tensors((made, changed)) if t.requires_grad and not t.is_leaf]
            self._graded |= {_storage(t): t for t in found}
            self._read |= {_storage(t): t for t in _tensors(operands)} if found else {}
            return made
        if changed:
            args, kwargs = _detached((args, kwargs), changed)
            memories = set(map(_storage, changed)) if apart else set()
            self._stale |= {key for key, t in self._apart.items() if _storage(t) in memories}
            return func(*args, **kwargs)
        made = _detached(func(*args, **kwargs), operands)
        self._plainly |= {_storage(t): t for t in _tensors(made)}
        return made

    def _check_graded(self, func: Any, changed: Sequence[torch.Tensor], operands: Sequence[Any]) -> bool:
        """Refuses a change of memory in which something else has, or then has, a gradient.

        Returns:
          Whether what is detached is changed by something with a gradient, which what it was does not get.
        """
        lost = [t for t in changed if not (torch.is_grad_enabled() and t.requires_grad)]
        others = [t for t in _tensors(operands) if not any(t is c for c in changed)]
        given = torch.is_grad_enabled() and any(t.requires_grad for t in others)
        memories = set(map(_storage, lost))
        aliases = memories & self._aliases.keys()
        if memories & self._graded.keys() or aliases & self._read.keys():
            raise FormatError(_LOST.format(func.__name__))
        if given and not aliases and memories & self._plainly.keys():
            raise FormatError(_LOST.format(func.__name__))
        return given and bool(aliases)

    def _check_plain(self, changed: Sequence[torch.Tensor]) -> None:
        for tensor in changed:
            path = self._plain.get(_storage(tensor))
            if path is not None:
                raise FormatError(
                    f"the module changes its tensor {path!r} in place, which is no buffer, and no trace "
                    "shows that: register it with register_buffer"
                )


def _instance_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """`torch.nn.functional.instance_norm` by the ops that it consists of where it changes statistics.

    It does so without saying so, so that a trace would lose the change.
    """
    stats = (running_mean, running_var)
    if not use_input_stats or running_mean is None or running_var is None:
        return F.instance_norm(input, *stats, weight, bias, use_input_stats, momentum, eps)
    batch, channels = input.shape[:2]
    mean, var = (stat.repeat(batch) for stat in (running_mean, running_var))
    scale, shift = (None if x is None else x.repeat(batch) for x in (weight, bias))
    rows = input.reshape(1, batch * channels, *input.shape[2:])
    made = F.batch_norm(rows, mean, var, scale, shift, training=True, momentum=momentum, eps=eps)
    running_mean.copy_(mean.view(batch, channels).mean(0))
    running_var.copy_(var.view(batch, channels).mean(0))
    return made.view(input.shape)


_EXPLICIT: Final[Mapping[Any, Any]] = {F.instance_norm: _instance_norm}
"""Functions that change something that a trace does not show, and what is traced instead."""


def _storage(tensor: torch.Tensor) -> int:
    """A number that tensors which share memory share."""
    try:
        return tensor.untyped_storage()._cdata
    except NotImplementedError:  # A sparse tensor, or one within `torch.vmap`.
        return id(tensor)


def _changed(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an op in place, or one with a given result, changes."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    in_place = in_place or name == "__setitem__" or name.removeprefix("__i") in _IN_PLACE
    if in_place or kwargs.get("inplace") is True:
        found: Any = args[:1]
    else:
        found = kwargs.get("out")
    return _tensors(found)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


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


def check_control_flow(graph: torch.fx.GraphModule, inside: bool = False) -> None:
    """Refuses an exported program with a loop, or a branch that switches gradients off or changes what is
    detached.

    Args:
      graph: The program.
      inside: Whether it is a branch itself.

    Raises:
      FormatError: It does.
    """
    for node in graph.graph.nodes:
        if node.target is torch.ops.higher_order.while_loop:
            raise FormatError(
                "the module uses while_loop, of which PyTorch traces no gradient: write a Python loop of a "
                "fixed number of steps, or use form='forward'"
            )
        if inside and _changes_detached(node):
            raise FormatError(_LOST.format(node.target))
        if inside and node.target is torch.ops.higher_order.wrap_with_set_grad_enabled and not node.args[0]:
            raise FormatError(
                "the module uses torch.no_grad within a branch of torch.cond, whose gradient no trace shows: "
                "write y.detach() there, or use form='forward'"
            )
        for argument in node.all_input_nodes:
            part = getattr(graph, str(argument.target), None) if argument.op == "get_attr" else None
            if isinstance(part, torch.fx.GraphModule):
                check_control_flow(part, inside or node.target is torch.ops.higher_order.cond)


def _changes_detached(node: torch.fx.Node) -> bool:
    """Whether an op writes into a tensor that is detached, or into a view of one."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable or not node.args:
        return False
    tensor: Any = node.args[0]
    while isinstance(tensor, torch.fx.Node) and tensor.target is not torch.ops.aten.detach.default:
        returns = getattr(getattr(tensor.target, "_schema", None), "returns", ())
        tensor = tensor.args[0] if tensor.args and any(r.alias_info for r in returns) else None
    return tensor is not None
