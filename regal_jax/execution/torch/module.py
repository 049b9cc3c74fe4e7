"""`PlannedModule`: a PyTorch module whose ops run in the order of a plan."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn, Self

import torch
from torch import nn
from torch.utils import _pytree as pytree

from regal_jax.errors import ConfigError
from regal_jax.execution.torch.arguments import Arguments
from regal_jax.execution.torch.program import Key, TorchProgram
from regal_jax.importers.fx_program import Value
from regal_jax.importers.torch_graph import TorchOps
from regal_jax.importers.torch_trace import ADAM_RATE, step_numbers
from regal_jax.plan import Plan

__all__ = ["PlannedModule"]

_SHARED: Final = frozenset(
    {"plan", "_program", "_arguments", "_held", "_inputs", "_names", "_fixed", "_compiled", "_roles"}
)
"""Attributes that never change, which copies share."""


class PlannedModule(nn.Module):
    """A module whose ops run in the order of a plan; made by `regal_jax.apply_to_torch`.

    It is called with arguments of the same shapes and types as those that it was made with, in the mode
    (`eval` or `train`) in which the module was then. An argument with other strides is copied. Parameters and
    buffers are those of the module: load them, save them and change them there. Or save and load the
    `state_dict` of this one, which includes the state of Adam.

    - ``form="forward"``: returns what the module returns. No gradient is recorded.
    - ``form="gradient"``: returns the loss, and a dict with the gradient of each parameter that requires one,
      by name; `None` where the loss does not depend on it. No two gradients share memory.
    - ``form="training-step"``: returns the loss. Parameters, `moments` and `steps` are updated as
      `torch.optim.Adam` does, each as soon as its new value has been computed. A call that raises may leave
      some of them updated.

    In every form buffers that the module changes are changed.

    Attributes:
      module: The module.
      plan: The plan.
      form: What a call runs.
      predicted_bytes: For each device of the plan, the most bytes by which a call makes the memory grow,
        according to the plan.
      moments: ``"adam/m/NAME"`` and ``"adam/v/NAME"`` -> the first and second moment of a parameter, zero
        before the first training step; empty in other forms.
      steps: Number of training steps so far.
      rate: Learning rate.
    """

    def __init__(
        self,
        plan: Plan,
        module: nn.Module,
        ops: TorchOps,
        form: str,
        devices: Sequence[torch.device],
        arguments: Arguments,
    ) -> None:
        super().__init__()
        program = TorchProgram(plan, ops, devices)
        self.module = module
        self.plan, self.form = plan, form
        self.predicted_bytes = _growth(plan, ops)
        self.moments: dict[str, torch.Tensor] = {}
        self.steps, self.rate = 0, ADAM_RATE
        self._program, self._devices, self._arguments = program, list(devices), arguments
        self._modes = self._modes_now()
        self._held: list[tuple[str, Value]] = []
        self._inputs: list[tuple[int, Any]] = []
        self._fixed: dict[Key, torch.Tensor] = {}
        for held, value in zip(ops.trace.held, ops.placeholders, strict=True):
            if held.leaf is not None:
                self._inputs.append((held.leaf, value))
            elif isinstance(value, Value):
                self._hold(held.name, held.actual, value)
        for value in ops.program.constants:
            self._fix(value, value.tensor)
        self._names: dict[str, Value] = dict(self._held)
        self._roles = self._roles_in(self._state())
        self._compiled: Callable[[dict[Key, Any], tuple[float, float]], None] | None = None

    def __copy__(self) -> Self:
        """A module with the same parameters, buffers and moments."""
        made = type(self).__new__(type(self))
        made.__dict__.update(vars(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A module with parameters, buffers and moments of its own, that runs the same program."""
        made = memo[id(self)] = self.__copy__()
        own = {name: x for name, x in vars(self).items() if name not in _SHARED}
        made.__dict__.update(copy.deepcopy(own, memo))
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Raises `ConfigError`: a program of PyTorch cannot be pickled."""
        raise ConfigError(
            "PlannedModule: cannot be pickled, as torch.save does; save its state_dict() and the plan, and "
            "load the state into what apply_to_torch makes of the plan"
        )

    def _modes_now(self) -> list[bool]:
        return [part.training for part in self.module.modules()]

    def _home(self, value: Value) -> torch.device:
        return self._devices[self._program.homes[value]]

    def _fix(self, value: Value, tensor: torch.Tensor) -> None:
        self._fixed[value, self._program.homes[value]] = tensor.detach().to(self._home(value))

    def _hold(self, name: str, actual: torch.Tensor | None, value: Value) -> None:
        if name in self._state():
            tensor, home = self._state()[name].detach(), self._home(value)
            if tensor.is_meta and home.type != "meta":
                raise ConfigError(
                    f"apply_to_torch: {name!r} is on the meta device and has no data; load the module first"
                )
            self._held.append((name, value))
            _put(self.module, name, tensor.to(home))
        elif actual is None:
            like = value.tensor
            made = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=self._home(value))
            self._held.append((name, value))
            self.moments[name] = made.zero_()
        else:
            self._fix(value, actual)

    def _state(self) -> dict[str, torch.Tensor]:
        return {
            **dict(self.module.named_buffers(remove_duplicate=False)),
            **dict(self.module.named_parameters(remove_duplicate=False)),
        }

    def _roles_in(self, state: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, bool]]:
        """For each parameter and buffer the first name of its memory, and whether a gradient is asked for."""
        first: dict[Any, str] = {}
        found = [(name, state[name]) for name, _ in self._held if name in state]
        return {
            name: (first.setdefault(_memory(tensor), name), self.form != "forward" and tensor.requires_grad)
            for name, tensor in found
        }

    def _check_roles(self, state: Mapping[str, torch.Tensor]) -> None:
        """Refuses a module whose parameters or buffers are not those that were traced."""
        now = self._roles_in(state)
        for name, traced in self._roles.items():
            if name not in now:
                what = "is no parameter or buffer of the module any more"
            elif now[name][0] != traced[0]:
                what = "was traced with other names for it (tied parameters) than it has now"
            elif now[name] != traced:
                what = f"was traced with requires_grad={traced[1]} and has {now[name][1]} now"
            else:
                continue
            raise ConfigError(f"PlannedModule: {name!r} {what}; apply a plan for the module as it is")

    def compile(self, options: Mapping[str, Any] | None = None) -> None:
        """Compiles the program with Inductor; later calls run the compiled program.

        Inductor fuses ops, so that fewer tensors exist, and results differ in their last bits. A kernel
        runs at the place of the last op that it computes, unless `regal_jax.execution.inductor_options`
        are given, which order the kernels anew. A training step writes parameters and moments in place.

        Args:
          options: Options of Inductor, such as `regal_jax.execution.inductor_options()`.

        Raises:
          ConfigError: The plan is for several devices.
        """
        if len(self._devices) > 1:
            raise ConfigError(
                f"PlannedModule.compile: the plan is for {len(self._devices)} devices; plan for one device"
            )
        from regal_jax.execution.torch.inductor import compile_program

        state = {**self._state(), **self.moments}
        tensors = {value: tensor for (value, _), tensor in self._fixed.items()}
        tensors |= {value: state[name].detach() for name, value in self._held}
        for _, value in self._inputs:
            if isinstance(value, Value):
                like = value.tensor
                tensors[value] = torch.empty_strided(
                    like.shape, like.stride(), dtype=like.dtype, device=self._home(value)
                )
        written = {value: [self._names[name] for name in names] for value, names in self._written().items()}
        self._compiled = compile_program(self._program, tensors, written, dict(options or {}))

    def get_extra_state(self) -> dict[str, Any]:
        """State of Adam, which `state_dict` includes."""
        return {"moments": dict(self.moments), "steps": self.steps, "rate": self.rate}

    def set_extra_state(self, state: Mapping[str, Any]) -> None:
        """Takes over the state of Adam, when `load_state_dict` calls this.

        Raises:
          ConfigError: It is of another module or form.
        """
        moments = state.get("moments", {})
        shapes = {name: tuple(moment.shape) for name, moment in self.moments.items()}
        same = {name: tuple(moment.shape) for name, moment in moments.items()} == shapes
        if not (same and {"steps", "rate"} <= state.keys()):
            raise ConfigError("PlannedModule: state of another module or form; load the state of this one")
        with torch.no_grad():
            for name, moment in self.moments.items():
                moment.copy_(moments[name])
        self.steps, self.rate = int(state["steps"]), float(state["rate"])

    def _written(self) -> dict[Value, list[str]]:
        """The results that are new values of parameters, buffers or moments."""
        ops = self._program.ops
        written: dict[Value, list[str]] = {}
        for result, value in zip(ops.trace.results, ops.program.outputs, strict=True):
            if result.role == "state" and isinstance(value, Value) and result.name in self._names:
                written.setdefault(value, []).append(result.name)
        return written

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the ops in the order of the plan.

        Raises:
          ConfigError: An argument has another shape or type than the one that the module was traced with,
            one that the module changes in place shares memory with another, the module has been put into
            another mode (``eval``, ``train``), or parameters have been frozen, tied or removed since then.
        """
        if self._modes_now() != self._modes:
            raise ConfigError(
                "PlannedModule: the module was traced in another mode (train or eval) than it is in now; "
                "apply a plan for this mode"
            )
        leaves = self._arguments.leaves(args, kwargs)
        numbers = step_numbers(self.steps + 1, self.rate)
        self._check_apart(leaves)
        values = self._given(leaves)
        written = self._written()

        def made(value: Value, tensor: torch.Tensor) -> None:
            for name in written.get(value, ()):
                self._write(name, tensor)

        # Nothing requires a gradient; but some ops keep what their backward op reads only where one may.
        # What a call of inference mode makes could not be state of a module that is trained later.
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(self.form != "forward"),
            self._without_autocast(),
        ):
            if self._compiled is None:
                self._program.run(values, numbers, made)
            else:
                self._compiled(values, numbers)
            results = self._results(values, leaves)
        if self.form == "training-step":
            self.steps += 1
        return results

    def _without_autocast(self) -> contextlib.ExitStack:
        """A context without autocast: its casts are ops of the trace."""
        stack = contextlib.ExitStack()
        for kind in {device.type for device in self._devices} - {"meta"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        return stack

    def _check_apart(self, leaves: Sequence[Any]) -> None:
        """Refuses an argument that the module changes in place and that shares memory with another."""
        places: dict[int, int] = {}
        changed = {held.leaf for held in self._program.ops.trace.held if held.replaced}
        for number, leaf in enumerate(leaves):
            if not isinstance(leaf, torch.Tensor):
                continue
            other = places.setdefault(_storage(leaf), number)
            if other != number and {number, other} & changed:
                raise ConfigError(
                    f"PlannedModule: arguments {other} and {number} share memory, and the module changes one "
                    "of them in place; give it a copy"
                )

    def _given(self, leaves: Sequence[Any]) -> dict[Key, Any]:
        """The tensors of sources."""
        values: dict[Key, Any] = dict(self._fixed)
        for leaf, (number, expected) in zip(leaves, self._inputs, strict=True):
            _check(f"argument {number}", leaf, expected)
            if isinstance(expected, Value):
                home = self._home(expected)
                if leaf.is_meta and home.type != "meta":
                    raise ConfigError(
                        f"PlannedModule: argument {number} is on the meta device and has no data"
                    )
                given = _laid_out(leaf.detach().to(home), expected.tensor)
                values[expected, self._program.homes[expected]] = given
        state = self._state()
        self._check_roles(state)
        for name, value in self._held:
            tensor = self.moments[name] if name in self.moments else state[name].detach()
            _check(repr(name), tensor, value)
            values[value, self._program.homes[value]] = tensor
        return values

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        tensor = tensor.detach().to(self._home(self._names[name]))
        if name in self.moments:
            self.moments[name] = tensor
        else:
            _put(self.module, name, tensor)

    def _results(self, values: Mapping[Key, Any], leaves: Sequence[Any]) -> Any:
        ops, homes = self._program.ops, self._program.homes
        rows = [
            (result, values[value, homes[value]] if isinstance(value, Value) else value)
            for result, value in zip(ops.trace.results, ops.program.outputs, strict=True)
        ]
        places = {held.name: held.leaf for held in ops.trace.held if held.leaf is not None}
        for result, tensor in rows:
            if result.role == "argument":
                leaves[places[result.name]].detach().copy_(tensor)
        if self.form == "forward":
            outputs = [tensor for result, tensor in rows if result.role == "output"]
            return pytree.tree_unflatten(outputs, ops.trace.out_spec)
        loss = next(tensor for result, tensor in rows if result.role == "loss")
        if self.form == "training-step":
            return loss
        gradients = {result.name: tensor for result, tensor in rows if result.role == "gradient"}
        return loss, self._apart(gradients, leaves)

    def _apart(self, gradients: Mapping[str, Any], leaves: Sequence[Any]) -> dict[str, Any]:
        """The gradients, of which each element has memory of its own, as autograd's have."""
        taken = {_storage(x) for x in (*leaves, *self._state().values()) if isinstance(x, torch.Tensor)}
        apart = dict(gradients)
        for name, gradient in gradients.items():
            if gradient is None or gradient.layout is not torch.strided:
                continue
            overlaps = gradient.untyped_storage().nbytes() < gradient.numel() * gradient.element_size()
            if overlaps or _storage(gradient) in taken:
                apart[name] = gradient.clone(memory_format=torch.contiguous_format)
            taken.add(_storage(gradient))
        return apart


def _storage(tensor: torch.Tensor) -> int:
    """Identifies the memory of a tensor; a sparse one has no storage."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Identifies the elements of a tensor."""
    if tensor.layout is not torch.strided:
        return (_storage(tensor),)
    return _storage(tensor), tensor.storage_offset(), tensor.shape, tensor.stride()


def _growth(plan: Plan, ops: TorchOps) -> tuple[int, ...]:
    """Peak memory of each device less that of the sources, which are there before a call."""
    peaks = plan.peak_memory.tolist()
    graph = ops.graph
    for tensor in range(graph.num_tensors):
        if graph.tensor_resident[tensor]:
            peaks[int(plan.placement[graph.tensor_op[tensor]])] -= int(graph.tensor_bytes[tensor])
    return tuple(peaks)


def _put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Gives a parameter or buffer a new value, in the same object if its device allows that."""
    path, _, last = name.rpartition(".")
    owner = module.get_submodule(path)
    old = getattr(owner, last)
    if old is tensor:
        return
    if old.device.type == tensor.device.type or "meta" not in (old.device.type, tensor.device.type):
        old.data = tensor
        return
    new: Any = (
        nn.Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, nn.Parameter) else tensor
    )
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for key, held in table.items():
                if held is old:
                    table[key] = new


def _laid_out(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it with the strides of the one that was traced, on which views depend."""
    if not (tensor.layout is like.layout is torch.strided and tensor.numel()):
        return tensor
    rows = zip(like.shape, tensor.stride(), like.stride(), strict=True)
    strides = [(here, there) for size, here, there in rows if size > 1]
    # Nothing can be written to a tensor that has the same element twice.
    if all(here == there for here, there in strides) or any(not there for _, there in strides):
        return tensor
    made = torch.empty_strided(like.shape, like.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _check(name: str, given: Any, expected: Any) -> None:
    """Refuses an argument, or a tensor of the module, that differs from the one that was traced."""
    if not isinstance(expected, Value):
        here, there = repr(given), repr(expected)
        if type(given) is type(expected) and here == there:  # As texts, since nan does not equal nan.
            return
    elif not isinstance(given, torch.Tensor):
        here, there = f"of type {type(given).__name__}", "a tensor"
    else:
        like = expected.tensor
        if (given.dtype, given.shape) == (like.dtype, like.shape):
            return
        here, there = (f"{t.dtype}{list(t.shape)}" for t in (given, like))
    raise ConfigError(f"PlannedModule: {name} is {here} and was {there} when traced; apply a plan for it")
