"""`apply_to_torch`: a PyTorch module that runs in the order of a plan (extra ``torch``)."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regal_jax.checks import shown
from regal_jax.errors import ConfigError
from regal_jax.importers.torch_module import torch_ops
from regal_jax.plan import Plan
from regal_jax.runtime.interrupts import interruptible

if TYPE_CHECKING:
    import torch

    from regal_jax.execution.torch.module import PlannedModule

__all__ = ["apply_to_torch"]


@interruptible()
def apply_to_torch(
    plan: Plan | str | os.PathLike[str],
    module: "torch.nn.Module",
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    form: str = "forward",
    loss: Callable[[Any], Any] | None = None,
    devices: "Sequence[str | torch.device] | None" = None,
) -> "PlannedModule":
    """A module that runs the ops of ``module`` in the order of ``plan``, each where the plan places it.

    The module is traced as `regal_jax.from_torch` traces it, and every op of the plan is one ATen op. They
    run one after another, eagerly; a tensor is released after its last reader. Results are those of the
    module, bit for bit, except that ops which draw random numbers (dropout) draw them in the order of the
    plan. Ops that the module runs in place are run out of place.

    Args:
      plan: A plan of ``from_torch(module, *args, kwargs=kwargs, form=form, loss=loss)``, or the name of its
        file. The other options of `regal_jax.from_torch` may differ.
      module: The module. Its parameters and buffers move to the devices where the plan places them, and are
        shared, not copied.
      *args: Its positional arguments, of the shapes and types that it will be called with.
      kwargs: Its keyword arguments.
      form: ``"forward"``, ``"gradient"`` or ``"training-step"``, see `regal_jax.execution.PlannedModule`.
      loss: Function of what the module returns, with a scalar result. Tensors that it refers to keep the
        values of the trace in every call; give what changes between calls, such as labels, to the module
        as an argument.
      devices: The PyTorch device of each device of the plan; by default, for one device, that of the
        module's first parameter.

    Returns:
      The module.

    Raises:
      PlanError: The plan is for another program or is invalid.
      ConfigError: There are too few devices, or an option has an impossible value.
      FormatError: ``plan`` is not a plan, or PyTorch cannot trace the module on these arguments.
      MissingExtraError: PyTorch is not installed.

    Examples:
      >>> import torch
      >>> from regal_jax import apply_to_torch, from_torch, order
      >>> module, x = torch.nn.Linear(4, 2), torch.ones(8, 4)
      >>> plan = order(from_torch(module, x, in_place=True))
      >>> planned = apply_to_torch(plan, module, x)
      >>> bool((planned(x) == module(x)).all())
      True
    """
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    ops = torch_ops(module, args, kwargs, form=form, loss=loss, name=plan.graph_name)
    from regal_jax.execution.torch.arguments import Arguments
    from regal_jax.execution.torch.module import PlannedModule

    arguments = Arguments(module, args, kwargs or {})
    return PlannedModule(plan, module, ops, form, _devices(plan, module, devices), arguments)


def _devices(
    plan: Plan, module: "torch.nn.Module", given: "Sequence[str | torch.device] | None"
) -> "list[torch.device]":
    import torch

    count = plan.cluster.num_devices
    if given is None:
        first = next(iter((*module.parameters(), *module.buffers())), None)
        given = [torch.device("cpu") if first is None else first.device]
    if isinstance(given, (str, torch.device)):
        given = [given]
    if not isinstance(given, Sequence):
        raise ConfigError(f"apply_to_torch: devices: {shown(given)} is no list of devices; give one")
    if len(given) < count:
        raise ConfigError(
            f"apply_to_torch: the plan is for {count} devices and there are {len(given)}; "
            'give devices=["cuda:0", "cuda:1", ...], one for each'
        )
    try:
        # PyTorch says only here that it has no such device: with an assertion where it has none of its kind.
        return [torch.empty(0, device=torch.device(device)).device for device in given[:count]]
    except (RuntimeError, TypeError, AssertionError) as error:
        raise ConfigError(f"apply_to_torch: devices: {str(error).splitlines()[0]}") from None
