"""`from_torch`: a PyTorch module, traced with shapes only, as a `ComputationGraph` (extra ``torch``)."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regal_jax.checks import check_kind, shown, whole
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.graph import Colocate, ComputationGraph, Pin, constrain
from regal_jax.importers.roofline import DeviceProfile, find_profile, profile_list
from regal_jax.runtime.interrupts import interruptible

if TYPE_CHECKING:
    import torch

    from regal_jax.importers.torch_graph import TorchOps

__all__ = ["from_torch", "torch_ops"]


@interruptible()
def from_torch(
    module: "torch.nn.Module",
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    form: str = "forward",
    loss: Callable[[Any], Any] | None = None,
    donate_state: bool = True,
    in_place: bool = False,
    input_devices: int | Mapping[int | str, int] = 0,
    pin: Pin | None = None,
    colocate: Colocate = (),
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
    name: str | None = None,
) -> ComputationGraph:
    """Traces ``module`` and returns its graph, one op for each ATen op, in program order.

    Nothing is allocated or executed: the module and its arguments may be on any device, ``meta``
    included. `torch.export` traces the forward pass. Only those of its
    decompositions run that make in-place ops functional, so composite ops (``aten.linear``, ``aten.conv2d``,
    ``aten.layer_norm``) stay whole. For a gradient that trace is run under autograd and traced once
    more, which splits them (``aten.t`` and ``aten.addmm``). The module's training mode is respected.

    Ops are named after their module (``layer1.0.conv1/conv2d``), those after the forward pass below
    ``backward/`` and ``adam/``. Dead code is dropped. A module that keeps what it computes for its next call,
    but not where `torch.jit.is_tracing` is true, is traced as it is there. An ATen op with several results is
    one op with several outputs. Views (``view``, ``t``, ``expand``) take no time, but their output counts as
    memory unless ``in_place``; ``detach`` and similar calls are not ops. ``torch.cond`` is one op,
    whose `temp_bytes` is the largest peak of its branches' own values in program order;
    activation checkpoints are inlined, and a gradient does not compute them again. A gradient leaves out
    what ran under `torch.no_grad`, as autograd does.

    Every parameter, buffer and constant is a resident op of kind ``"parameter"``, in memory from time 0,
    named as in ``state_dict``, read or not; tied parameters are one. It shares a colocation group with its
    first reader. Every tensor of the arguments is one of kind ``"input"`` and stands on its device. The
    caller holds all of them, so they are never freed unless donated. One op ``"start"`` comes after all of
    them and before everything that computes. What the module returns is kept, and new values of buffers
    (statistics of a batch normalisation in training mode) are results as well.

    Args:
      module: The module.
      *args: Its positional arguments: tensors, pytrees of them, and other values.
      kwargs: Its keyword arguments.
      form: ``"forward"``; ``"gradient"``: forward and backward, the results being the loss and the
        gradient of every parameter that requires one; ``"training-step"``: that and a step of Adam, by
        the ops of `torch.optim.Adam`, the results being the loss, new parameters and new moments.
      loss: Function of what the module returns, with a scalar result; parameters of the module that it
        computes with must be among that. By default the sum of the means of all floating outputs that depend
        on a parameter.
      donate_state: Whether the old values of parameters, moments and buffers of which the program returns
        new ones are freed after their last reader.
      in_place: Count tensors that share storage as one buffer, as PyTorch does: a view has no bytes, and
        its readers keep the whole buffer in memory. For plans of one device, such as those of
        `regal_jax.apply_to_torch`; a transfer of a view would have no bytes.
      input_devices: Device of every input, or of each argument by index or name (those not named: 0).
      pin: Devices for ops by name or pattern, e.g. ``{"encoder/*": 0}``; see `regal_jax.graph.constrain`.
      colocate: Patterns over op names; the ops of each share a device.
      profile: The device (`regal_jax.importers.roofline.PROFILES` or your own) that runtimes are
        estimated for; a sequence gives one runtime for each device.
      name: Name of the graph; by default the class of the module.

    Returns:
      The graph, times in seconds.

    Raises:
      FormatError: ``module`` is not a module, or PyTorch cannot trace it on these arguments (the cause is
        kept), or its next call depends on a plain attribute that this one changes, or a parameter or buffer
        that gets a new value has elements in common with another tensor of ``module``, or a gradient is asked
        for and no trace shows it: ``module`` calls a `torch.autograd.Function` of the user's own, has a hook
        of the backward pass, or changes a tensor outside of autograd, or ``loss`` computes with parameters
        of ``module`` itself.
      ConfigError: An option is out of range.
      MissingExtraError: PyTorch is not installed.

    Examples:
      >>> import torch
      >>> from regal_jax import from_torch
      >>> with torch.device("meta"):  # no weight needs memory
      ...     graph = from_torch(torch.nn.Linear(4, 2), torch.empty(8, 4))
      >>> graph.op_names
      ('weight', 'bias', 'input', 'start', 'linear')
    """
    ops = torch_ops(
        module,
        args,
        kwargs,
        form=form,
        loss=loss,
        donate_state=donate_state,
        in_place=in_place,
        input_devices=input_devices,
        profile=profile,
        name=name,
    )
    return constrain(ops.graph, pin, colocate)


def torch_ops(
    module: "torch.nn.Module",
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    form: str = "forward",
    loss: Callable[[Any], Any] | None = None,
    donate_state: bool = True,
    in_place: bool = False,
    input_devices: int | Mapping[int | str, int] = 0,
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
    name: str | None = None,
) -> "TorchOps":
    """The graph of a module with the source or call of each op; for the rest see `from_torch`.

    Raises:
      FormatError, ConfigError, MissingExtraError: As `from_torch`.
    """
    torch = _import_torch()
    # These import torch themselves.
    from torch.utils import _pytree as pytree

    from regal_jax.importers.torch_graph import ops_of
    from regal_jax.importers.torch_trace import FORMS, trace

    if not isinstance(module, torch.nn.Module):
        raise FormatError(f"module: got {type(module).__name__}; give a torch.nn.Module")
    if form not in FORMS:
        raise ConfigError(f"form: {form!r} is unknown; use one of {', '.join(FORMS)}")
    if loss is not None and form == "forward":
        raise ConfigError("loss: has no meaning in form='forward'; use form='gradient'")
    check_kind("kwargs", kwargs or {}, Mapping)
    kwargs = dict(kwargs or {})
    devices = _devices(input_devices, [*range(len(args)), *kwargs])
    profiles = profile_list(profile)
    found = [find_profile(p) for p in profiles]
    name = name or type(module).__name__
    arguments = [*range(len(args)), *kwargs]
    trees = (*args, *kwargs.values())
    owners = [a for a, tree in zip(arguments, trees, strict=True) for _ in pytree.tree_leaves(tree)]
    traced = trace(module, args, kwargs, form, loss, name)
    leaf_devices = [devices[owner] for owner in owners]
    return ops_of(name, traced, leaf_devices, donate_state, in_place, found)


def _import_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtraError("torch", "torch") from None
    return torch


def _devices(given: int | Mapping[int | str, int], known: Sequence[int | str]) -> dict[int | str, int]:
    by_arg = dict(given) if isinstance(given, Mapping) else dict.fromkeys(known, given)
    if not isinstance(given, Mapping) and not known:
        by_arg = {}
    result = dict.fromkeys(known, 0)
    for arg, device in by_arg.items():
        if arg not in known:
            raise ConfigError(f"input_devices: there is no argument {arg!r}; the arguments are {list(known)}")
        index = whole(device, 0)
        if index is None:
            raise ConfigError(f"input_devices: {shown(device)} must be the index of a device, from 0")
        result[arg] = index
    return result
