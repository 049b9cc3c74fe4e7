"""A PyTorch module as an FX graph of ATen ops: forward, with its gradient, or with a step of Adam."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
import torch.fx.traceback
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from regal_jax.errors import FormatError
from regal_jax.importers.fx_program import PHASE
from regal_jax.importers.torch_modes import Shown, check_control_flow, check_hooks, differentiable
from regal_jax.importers.torch_quiet import quiet
from regal_jax.importers.torch_refusals import check_apart, reason
from regal_jax.importers.torch_state import Attributes, check_same, owners, tracing

__all__ = [
    "ADAM", "ADAM_RATE", "FIRST_STEP", "FORMS", "Held", "Result", "Trace", "step_numbers", "trace",
]  # fmt: skip

FORMS: Final = ("forward", "gradient", "training-step")

ADAM: Final = "adam"
"""Phase of the ops that update parameters and moments."""
ADAM_RATE: Final = 1e-3
"""Learning rate of a traced training step."""
_ADAM_BETA1, _ADAM_BETA2, _ADAM_EPS = 0.9, 0.999, 1e-8


def step_numbers(step: int, rate: float = ADAM_RATE) -> tuple[float, float]:
    """The two numbers by which a step of Adam differs from other steps, as in `torch.optim.Adam`.

    Args:
      step: Number of the step, from 1.
      rate: Learning rate.

    Returns:
      The divisor of the square root of the second moment, and the factor of the update.
    """
    return (1 - _ADAM_BETA2**step) ** 0.5, -(rate / (1 - _ADAM_BETA1**step))


FIRST_STEP: Final = step_numbers(1)
"""The numbers in a traced training step."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A placeholder of the traced graph.

    Attributes:
      name: Path of a parameter or buffer, name of an input.
      tensor: A fake tensor of its shape; the value itself of an argument that is no tensor, e.g. a number.
      leaf: Index of an input among the flattened arguments; `None` for parameters, buffers, constants.
      replaced: Whether the program returns a new value of it.
      actual: The module's own tensor for the fake one; `None` for inputs and moments.
    """

    name: str
    tensor: Any
    leaf: int | None = None
    replaced: bool = False
    actual: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """The role of one result of the traced graph.

    Attributes:
      role: ``"output"`` of the module, ``"loss"``, ``"gradient"`` of a parameter, or the new value of a
        placeholder: ``"argument"`` if it is an input, else ``"state"``.
      name: `Held.name` of the parameter or of the replaced placeholder; empty for the others.
    """

    role: str
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """An FX graph of functional ATen ops, with its placeholders and results.

    Attributes:
      module: The graph.
      held: Its placeholders.
      results: Its results.
      out_spec: Structure of what the module returns.
    """

    module: torch.fx.GraphModule
    held: tuple[Held, ...]
    results: tuple[Result, ...]
    out_spec: Any


def trace(
    module: torch.nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    form: str,
    loss: Callable[[Any], Any] | None,
    name: str,
) -> Trace:
    """Traces ``module``; nothing is computed, and the module is not changed.

    Args:
      module: The module.
      args: Its positional arguments; tensors may be on any device, ``meta`` included.
      kwargs: Its keyword arguments.
      form: One of `FORMS`.
      loss: Function of what the module returns; its scalar result is differentiated.
      name: Name of the module in messages.

    Raises:
      FormatError: PyTorch cannot trace it (the cause is kept).
    """
    twin: Any = None
    with quiet():
        try:
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            with mode:
                twin, actual = _twin(module)
                fake_args, fake_kwargs = pytree.tree_map(_fake, (tuple(args), dict(kwargs)))
            derived = form != "forward"
            if derived:
                check_hooks(module)
                _check_layouts([*actual.values(), *pytree.tree_leaves((args, kwargs))])
            exported = _exported(twin, fake_args, fake_kwargs, derived, mode)
            if derived:
                check_control_flow(exported.graph_module)
            # With no other decompositions this only makes in-place ops functional.
            exported = exported.run_decompositions(_DERIVED if derived else _FUNCTIONAL)
            held = _held(exported, twin, pytree.tree_leaves((fake_args, fake_kwargs)), actual)
            if derived:
                with mode:
                    made = _with_gradient(exported, held, loss, form == "training-step")
            else:
                results = tuple(_results(exported))
                made = Trace(exported.graph_module, tuple(held), results, exported.call_spec.out_spec)
            check_apart([(h.name, h.actual, h.replaced) for h in made.held])
            return made
        except FormatError:
            raise
        # Tracing runs the user's code, which may raise anything.
        except Exception as error:
            raise FormatError(f"cannot trace {name!r}: {reason(error, twin or module)}") from error


def _check_layouts(tensors: Sequence[Any]) -> None:
    """Refuses tensors whose layout a trace does not show; gradients run other ops on these."""
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided:
            raise FormatError(
                f"a tensor of shape {list(tensor.shape)} has the layout {tensor.layout}, whose gradients no "
                "trace shows: give it as a dense tensor, or use form='forward'"
            )


def _exported(twin: Any, args: Any, kwargs: Any, derived: bool, mode: FakeTensorMode) -> Any:
    """The exported program of a call.

    Raises:
      FormatError: The call changes plain attributes, and the next one runs another program.
    """

    def export() -> Any:
        shown = Shown(derived, attributes.tensors())
        returned = twin.register_forward_hook(lambda _, __, results: shown.check_read(results))
        try:
            with differentiable() if derived else contextlib.nullcontext(), shown:
                return torch.export.export(twin, args, kwargs, strict=False)
        finally:
            returned.remove()

    attributes = Attributes(twin)
    with attributes.watched():
        exported = export()
    if not attributes.changes:
        return exported
    with mode:
        attributes.apply(_fake)
    try:
        check_same(exported, export(), attributes)
    except Exception as error:
        # A cache that the module does without where PyTorch traces it is no state.
        refusal = attributes.refusal()
        attributes.undo()
        with contextlib.suppress(Exception), attributes.watched(), tracing():
            exported = export()
            if not attributes.changes:
                return exported
        raise refusal from error
    return exported


def _copy(old: torch.Tensor, new: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    del non_blocking
    new = new if new.dtype == old.dtype else new.to(old.dtype)
    return (new if new.shape == old.shape else new.expand(old.shape)).clone()


def _scatter(
    old: torch.Tensor, new: torch.Tensor, size: Any, stride: Any, offset: int | None = None
) -> torch.Tensor:
    if not old.is_contiguous():
        raise FormatError(
            "the module changes a part of a tensor (as_strided) that is not contiguous, and PyTorch's "
            "derivative of that is wrong: change tensor.contiguous(), or use form='forward'"
        )
    places = torch.arange(old.numel(), device=old.device).as_strided(size, stride, offset or 0)
    return old.reshape(-1).index_put((places.reshape(-1),), new.reshape(-1)).view(old.shape)


_FUNCTIONAL: Final[dict[Any, Any]] = {torch.ops.aten.copy.default: _copy}
"""The functional form of an assignment (``y[0] = x``). PyTorch has no derivative of it, and leaves it out
where the whole of a buffer gets a new value, which then shares the memory of another tensor."""
_DERIVED: Final[dict[Any, Any]] = {**_FUNCTIONAL, torch.ops.aten.as_strided_scatter.default: _scatter}
"""That, and the functional form of ``y.fill_diagonal_(0)``, of which PyTorch's derivative is wrong."""


def _fake(leaf: Any) -> Any:
    """A tensor of the same shape on the CPU without data; called under the fake mode."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu")
    if isinstance(leaf, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=leaf.requires_grad)
    return made


def _twin(module: torch.nn.Module) -> tuple[torch.nn.Module, dict[int, Any]]:
    """A copy of ``module`` with fake tensors, all on one device: no weight is copied.

    Returns:
      The copy, and the module's own tensor for the `id` of each fake one.
    """
    memo: dict[int, Any] = {}
    actual: dict[int, Any] = {}
    for _, _, attributes in owners(module):
        # Parameters, buffers and plain attributes, in lists and dicts as well.
        for tensor in pytree.tree_leaves(attributes):
            if isinstance(tensor, torch.Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = _fake(tensor)
                actual[id(memo[id(tensor)])] = tensor
    return copy.deepcopy(module, memo), actual


def _results(exported: torch.export.ExportedProgram) -> Iterator[Result]:
    """The roles of the results of an exported program, in order."""
    for spec in exported.graph_signature.output_specs:
        if spec.kind.name == "USER_OUTPUT":
            yield Result("output")
        else:
            # An input may have the name of a parameter or buffer.
            role = "argument" if spec.kind.name == "USER_INPUT_MUTATION" else "state"
            yield Result(role, str(spec.target))


def _held(
    exported: torch.export.ExportedProgram,
    twin: torch.nn.Module,
    leaves: Sequence[Any],
    actual: Mapping[int, Any],
) -> list[Held]:
    """Names and tensors of the placeholders, in order."""
    signature = exported.graph_signature
    results = list(_results(exported))
    changed, replaced = ({r.name for r in results if r.role == role} for role in ("argument", "state"))
    # Tied parameters are listed under each of their names, as the same tensor.
    state = dict(twin.named_buffers(remove_duplicate=False))
    state |= dict(twin.named_parameters(remove_duplicate=False))
    held, leaf = [], 0
    for spec in signature.input_specs:
        target, name = spec.target, getattr(spec.arg, "name", "")
        if spec.kind.name == "USER_INPUT":
            held.append(Held(name, leaves[leaf], leaf, name in changed))
            leaf += 1
        elif spec.kind.name in ("PARAMETER", "BUFFER"):
            tensor = state[str(target)]
            held.append(Held(str(target), tensor, None, target in replaced, actual.get(id(tensor))))
        else:
            tensor = exported.constants.get(str(target))
            if isinstance(tensor, FakeTensor) and id(tensor) not in actual:
                raise FormatError(
                    f"the module computes a tensor of shape {list(tensor.shape)} in a way that no trace "
                    "shows, for example by torch.autograd.grad for an input, or in a module that is no part "
                    "of it (keep it in a torch.nn.ModuleList): rewrite that part of the module"
                )
            held.append(Held(str(target or name), tensor, actual=actual.get(id(tensor), tensor)))
    return held


def _with_gradient(
    exported: torch.export.ExportedProgram,
    held: list[Held],
    loss: Callable[[Any], Any] | None,
    step: bool,
) -> Trace:
    """The exported forward pass, run under autograd and traced once more."""
    first: dict[int, int] = {}  # id of a tensor -> its first placeholder: tied parameters are one
    for i, h in enumerate(held):
        first.setdefault(id(h.tensor), i)
    tensors = {i: first[id(h.tensor)] for i, h in enumerate(held) if isinstance(h.tensor, torch.Tensor)}
    trained = [
        i
        for i, j in tensors.items()
        if i == j and isinstance(held[i].tensor, torch.nn.Parameter) and held[i].tensor.requires_grad
    ]
    if not trained:
        raise FormatError("the module has no parameter that requires a gradient; use form='forward'")

    names = [held[i].name for i in trained]
    changed = [result for result in _results(exported) if result.role in ("argument", "state")]
    for result in changed:
        if result.role == "state" and result.name in names:
            raise FormatError(
                f"the module changes its parameter {result.name!r} in place, and has no gradient for it: "
                "switch its requires_grad off, or use form='forward'"
            )
    own = {id(held[i].actual): held[i].name for i in trained}
    results: list[Result] = []

    def program(*flat: Any) -> list[Any]:
        given = [flat[tensors[i]] if i in tensors else h.tensor for i, h in enumerate(held)]
        parameters = [flat[i] for i in trained]
        scalar, gradients, state = _differentiate(exported, given, parameters, loss, own)
        if not step:
            results[:] = [Result("loss"), *(Result("gradient", name) for name in names), *changed]
            return [scalar, *gradients, *state]
        updated = [name for name, gradient in zip(names, gradients, strict=True) if gradient is not None]
        new = [(name, f"{ADAM}/m/{name}", f"{ADAM}/v/{name}") for name in updated]
        results[:] = [Result("loss"), *(Result("state", name) for row in new for name in row), *changed]
        return [scalar, *_updates(parameters, gradients, flat[len(flat) - 2 * len(trained) :]), *state]

    moments = [torch.empty_like(held[i].tensor, requires_grad=False) for i in trained for _ in "mv"]
    graph = _traced_again(program, [h.tensor for h in held] + (moments if step else []))
    if step:
        moment_names = [f"{ADAM}/{which}/{name}" for name in names for which in "mv"]
        # A parameter without a gradient stays as it is, and so do its moments.
        new = {result.name for result in results if result.role == "state"}
        for i in trained:
            held[i] = dataclasses.replace(held[i], replaced=held[i].name in new)
        held += [Held(n, t, replaced=n in new) for n, t in zip(moment_names, moments, strict=True)]
    return Trace(graph, tuple(held), tuple(results), exported.call_spec.out_spec)


def _traced_again(program: Callable[..., Any], flat: Sequence[Any]) -> torch.fx.GraphModule:
    with torch.fx.traceback.preserve_node_meta():
        graph = make_fx(program)(*flat)
        if any(_mutates(node) for node in graph.graph.nodes):
            with torch.no_grad():  # Not all ops that are made then have a derivative.
                graph = make_fx(torch.func.functionalize(torch.fx.Interpreter(graph).run))(*flat)
    return graph


def _differentiate(
    exported: torch.export.ExportedProgram,
    given: Sequence[Any],
    parameters: Sequence[Any],
    loss: Callable[[Any], Any] | None,
    own: Mapping[int, str],
) -> tuple[Any, Sequence[Any], list[Any]]:
    """The loss, a gradient for each parameter (`None`: it has none), and new values of buffers.

    ``own`` has the names of the module's own parameters by their id.
    """
    kinds = [spec.kind.name for spec in exported.graph_signature.output_specs]
    # An op may have another layout where it is differentiated, so that what was a view has to be copied.
    for node in exported.graph.find_nodes(op="call_function", target=torch.ops.aten.view.default):
        node.target = torch.ops.aten.reshape.default
    with torch.enable_grad():
        results = list(torch.fx.Interpreter(exported.graph_module).run(*given))
        user = [r for r, kind in zip(results, kinds, strict=True) if kind == "USER_OUTPUT"]
        state = [r for r, kind in zip(results, kinds, strict=True) if kind != "USER_OUTPUT"]
        with _marked("loss"):
            scalar = _scalar(user, loss, exported.call_spec.out_spec, own)
        with _marked("backward"):
            gradients = torch.autograd.grad(scalar, parameters, allow_unused=True)
    return scalar.detach(), gradients, state


def _updates(parameters: Sequence[Any], gradients: Sequence[Any], moments: Sequence[Any]) -> list[Any]:
    """New parameters and moments."""
    with torch.no_grad(), _marked(ADAM):
        return [
            new
            for k, (p, g) in enumerate(zip(parameters, gradients, strict=True))
            if g is not None
            for new in _adam(p, g, moments[2 * k], moments[2 * k + 1])
        ]


def _scalar(
    outputs: list[Any], loss: Callable[[Any], Any] | None, spec: Any, own: Mapping[int, str]
) -> torch.Tensor:
    if loss is not None:
        with _OnOneDevice(own):
            scalar = loss(pytree.tree_unflatten(outputs, spec))
        if not isinstance(scalar, torch.Tensor) or scalar.numel() != 1 or not scalar.requires_grad:
            raise FormatError("loss: must return a tensor of one element that depends on the parameters")
        return scalar.reshape(())
    means = [o.mean() for o in outputs if isinstance(o, torch.Tensor) and o.is_floating_point()]
    means = [mean for mean in means if mean.requires_grad]
    if not means:
        raise FormatError("no floating output depends on a parameter: give a loss, or use form='forward'")
    return sum(means[1:], start=means[0])


class _OnOneDevice(TorchFunctionMode):
    """Replaces outside tensors, such as a target on the ``meta`` device, by fake ones on the CPU.

    Refuses the module's own parameters, whose gradients would lack what the loss does with them.
    """

    def __init__(self, own: Mapping[int, str]) -> None:
        super().__init__()
        self._own = own
        self._made: dict[int, tuple[torch.Tensor, Any]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = args, dict(kwargs or {})
        args, kwargs = pytree.tree_map(self._here, given)
        result = func(*args, **kwargs)
        name = next((self._own[id(x)] for x in pytree.tree_leaves(given) if id(x) in self._own), None)
        if name is not None and any(isinstance(x, torch.Tensor) for x in pytree.tree_leaves(result)):
            raise FormatError(
                f"loss: it computes with the parameter {name!r} of the module, whose gradient would lack it: "
                "compute this part of the loss in the module, and return it"
            )
        return result

    def _here(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        if not isinstance(leaf, torch.Tensor) or leaf.device.type == "cpu":
            return leaf
        with disable_proxy_modes_tracing():
            made = self._made.setdefault(id(leaf), (leaf, _fake(leaf)))
        return made[1]


def _adam(p: Any, g: Any, m: Any, v: Any) -> tuple[Any, ...]:
    """New parameter and moments, by the ops of `torch.optim.Adam` for one tensor, at its first step."""
    if p.is_complex():  # As two real numbers each.
        return tuple(map(torch.view_as_complex, _adam(*map(torch.view_as_real, (p, g, m, v)))))
    m = torch.lerp(m, g, 1 - _ADAM_BETA1)
    v = (v * _ADAM_BETA2).addcmul(g, g, value=1 - _ADAM_BETA2)
    correction, factor = FIRST_STEP
    root = (v.sqrt() / correction) + _ADAM_EPS
    return p.addcdiv(m, root, value=factor), m, v


@contextlib.contextmanager
def _marked(phase: str) -> Iterator[None]:
    """Marks the nodes that are traced in the context with the phase, and with no module."""
    meta = torch.fx.traceback.current_meta
    before = dict(meta)
    meta.pop("nn_module_stack", None)
    # A tracer copies only metadata fields that it knows; "custom" is the field for others' data.
    meta["custom"] = {**meta.get("custom", {}), PHASE: phase}
    try:
        yield
    finally:
        meta.clear()
        meta.update(before)


def _mutates(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable
