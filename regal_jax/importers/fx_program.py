"""An FX graph of ATen ops as one flat list of calls: subgraphs are inlined, aliases and dead code removed."""

import dataclasses
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import torch
from torch.fx.node import map_arg

from regal_jax.errors import FormatError

__all__ = ["PHASE", "Call", "Program", "Value", "flatten", "is_view", "tensor_bytes"]

PHASE: Final = "regal_jax.phase"
"""Key in a node's ``meta["custom"]``: the part of the program after the forward pass that it belongs to."""
_INLINED: Final = frozenset({
    "wrap_with_set_grad_enabled", "wrap_with_autocast", "tag_activation_checkpoint",
    "wrap_activation_checkpoint", "invoke_subgraph", "wrap", "hints_wrapper",
})  # fmt: skip
"""Higher-order ops that are equivalent to their body."""
_SAME: Final = frozenset({"aten.detach", "aten.alias", "aten.lift_fresh", "aten.detach_"})
"""Ops that return their operand itself; the graph omits them."""
_UNDECLARED_VIEWS: Final = frozenset({
    "aten._unsafe_view", "aten.unsafe_split", "aten.unsafe_chunk", "aten.unsafe_split_with_sizes",
    "aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty",
})  # fmt: skip
"""Ops that do nothing at run time though their schemas declare no alias."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor of the program. It is equal only to itself.

    Attributes:
      tensor: A fake or meta tensor of its shape and dtype.
    """

    tensor: Any


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Call:
    """One op.

    Attributes:
      kind: Its name without the overload, e.g. ``"aten.addmm"``.
      target: The `torch._ops.OpOverload`, or a higher-order op.
      scope: Path of the module that it belongs to, ``"layer1.0.conv1"``; ``"backward"`` or ``"adam"``
        after the forward pass.
      args: Its arguments, with fake tensors.
      kwargs: Its keyword arguments.
      result: What it returns: fake tensors, or lists of them.
      inputs: The distinct values that it reads.
      outputs: The values that it makes, used or not.
      bodies: Sub-programs that it runs (``torch.cond``).
      operands: ``args`` with values instead of fake tensors.
      keywords: ``kwargs`` with values instead of fake tensors.
      structure: ``result`` with values instead of fake tensors.
      owners: For each output the value whose memory it shares, `None` if it has memory of its own. A
        ``clone`` with an owner need not copy.
    """

    kind: str
    target: Any
    scope: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    bodies: tuple["Program", ...] = ()
    operands: tuple[Any, ...] = ()
    keywords: dict[str, Any] = dataclasses.field(default_factory=dict)
    structure: Any = None
    owners: tuple[Value | None, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A flat program; calls stand in program order.

    Attributes:
      constants: Tensors in the graph itself that are read.
      calls: Only those that an output needs.
      outputs: What it returns, in order: a `Value` for each tensor, other results as they are.
    """

    constants: tuple[Value, ...]
    calls: tuple[Call, ...]
    outputs: tuple[Any, ...]


def flatten(module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Program:
    """The flat program of an FX graph whose nodes are ATen ops.

    Args:
      module: The graph; every node has ``meta["val"]``.
      inputs: The placeholders: a `Value` for each tensor, other arguments as they are.

    Raises:
      FormatError: A size that depends on data.
    """
    constants: list[Value] = []
    state = _Flattener(constants, inputs)
    outputs = tuple(_flat(state.run(module, inputs)))
    needed = {v for v in outputs if isinstance(v, Value)}
    live: list[Call] = []
    for call in reversed(state.calls):
        if not needed.isdisjoint(call.outputs):
            live.append(call)
            needed.update(call.inputs)
    read = tuple(v for v in constants if v in needed)
    return Program(read, tuple(_without_copies(live[::-1], outputs)), outputs)


def _without_copies(calls: Iterable[Call], outputs: Sequence[Any]) -> Iterator[Call]:
    """The calls; a ``clone`` whose copy is not needed gets the owner of its operand.

    No op of the program writes over an operand that is read afterwards. So a copy is needed only if the
    program returns it or a view of it.
    """
    calls = list(calls)
    root = {
        value: owner
        for call in calls
        for value, owner in zip(call.outputs, call.owners, strict=True)
        if owner is not None
    }
    returned = {root.get(value, value) for value in outputs if isinstance(value, Value)}
    copied: dict[Value, Value] = {}
    for call in calls:
        owners = tuple(None if owner is None else copied.get(owner, owner) for owner in call.owners)
        first = call.operands[0] if call.operands else None
        if call.kind == "aten.clone" and isinstance(first, Value) and call.outputs[0] not in returned:
            old, new = first.tensor, call.outputs[0].tensor
            if old.layout is new.layout is torch.strided and old.stride() == new.stride():
                base = root.get(first, first)
                copied[call.outputs[0]] = copied.get(base, base)
                owners = (copied[call.outputs[0]],)
        yield dataclasses.replace(call, owners=owners)


class _Flattener:
    """Collects calls, and the constants that they read."""

    def __init__(self, constants: list[Value], inputs: Sequence[Any]) -> None:
        self.constants = constants
        self.calls: list[Call] = []
        self.of_attribute: dict[int, Value] = {}
        self.of_storage: dict[int, Value] = {}
        for value in inputs:
            self.own(value)

    def own(self, value: Any) -> Value | None:
        """The value whose storage ``value`` shares; `None` if it is the first with its storage."""
        if not isinstance(value, Value) or value.tensor.layout is not torch.strided:
            return None
        owner = self.of_storage.setdefault(value.tensor.untyped_storage()._cdata, value)
        return None if owner is value else owner

    def stands_for(self, value: Any, placeholder: Any) -> None:
        """Notes that the storage of a placeholder, of which the graph has views, is that of ``value``."""
        known = isinstance(value, Value) and isinstance(placeholder, torch.Tensor)
        if known and placeholder.layout is torch.strided:
            owner = self.own(value) or value
            self.of_storage.setdefault(placeholder.untyped_storage()._cdata, owner)

    def run(self, module: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        """Adds the calls of ``module``; returns its results, with values instead of tensors."""
        env: dict[torch.fx.Node, Any] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
                self.stands_for(env[node], node.meta.get("val"))
            elif node.op == "get_attr":
                env[node] = self.attribute(module, str(node.target))
            elif node.op == "output":
                return map_arg(node.args[0], env.__getitem__)
            elif node.target is operator.getitem:
                env[node] = env[node.args[0]][node.args[1]]
            else:
                env[node] = self.call(node, env)
        return ()

    def attribute(self, module: torch.fx.GraphModule, path: str) -> Any:
        """A subgraph, or the value of a constant tensor."""
        found = operator.attrgetter(path)(module)
        if not isinstance(found, torch.Tensor):
            return found
        if id(found) not in self.of_attribute:
            self.of_attribute[id(found)] = Value(found)
            self.own(self.of_attribute[id(found)])
            self.constants.append(self.of_attribute[id(found)])
        return self.of_attribute[id(found)]

    def call(self, node: torch.fx.Node, env: dict[torch.fx.Node, Any]) -> Any:
        kind = _kind(node.target)
        args: Any = map_arg(node.args, env.__getitem__)
        keywords: Any = map_arg(node.kwargs, env.__getitem__)
        graphs = [a for a in _flat(args) if isinstance(a, torch.fx.GraphModule)]
        if kind in _INLINED and len(graphs) == 1:
            operands = list(_flat((args, keywords)))
            count = sum(n.op == "placeholder" for n in graphs[0].graph.nodes)
            return self.run(graphs[0], operands[len(operands) - count :])
        result = node.meta.get("val")
        if kind in _SAME and isinstance(args[0], Value):
            return args[0]
        values = _values(result, str(node.name), kind)
        read = [v for n in node.all_input_nodes for v in _flat(env[n]) if isinstance(v, Value)]
        outputs = tuple(v for v in _flat(values) if isinstance(v, Value))
        call = Call(
            kind=kind,
            target=node.target,
            scope=_scope(node),
            args=tuple(_tensors(args)),
            kwargs=_tensors(dict(keywords)),
            result=result,
            inputs=tuple(dict.fromkeys(read)),
            outputs=outputs,
            bodies=tuple(self.body(graph) for graph in graphs),
            operands=tuple(args),
            keywords=dict(keywords),
            structure=values,
            owners=tuple(self.own(value) for value in outputs),
        )
        if call.outputs:
            self.calls.append(call)
        return values

    def body(self, graph: torch.fx.GraphModule) -> Program:
        holes = [n.meta.get("val") for n in graph.graph.nodes if n.op == "placeholder"]
        return flatten(graph, [Value(v) if isinstance(v, torch.Tensor) else v for v in holes])


def _kind(target: Any) -> str:
    packet = getattr(target, "overloadpacket", None)
    if packet is not None:
        return str(packet)
    name = getattr(target, "name", None)
    return str(name() if callable(name) else getattr(target, "__name__", target))


def _scope(node: torch.fx.Node) -> str:
    """Name of the innermost module of the node, as in the user's ``named_modules``."""
    stack = node.meta.get("nn_module_stack") or {}
    path = next((str(entry[0]) for entry in reversed(list(stack.values()))), "")
    path = path.removeprefix("L['self']").lstrip(".")
    return "/".join(filter(None, (str((node.meta.get("custom") or {}).get(PHASE, "")), path)))


def _values(result: Any, name: str, kind: str) -> Any:
    """``result`` with a new `Value` for each tensor."""
    if isinstance(result, torch.Tensor):
        if not all(isinstance(size, int) for size in result.shape):
            raise FormatError(
                f"the size of {name!r} ({kind}) depends on the data: {tuple(result.shape)}; "
                "only static shapes have a graph, so rewrite that part of the module"
            )
        return Value(result)
    if isinstance(result, (tuple, list)):
        return [_values(item, name, kind) for item in result]
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise FormatError(
            f"{name!r} ({kind}) is a number that depends on the data; "
            "only static programs have a graph, so rewrite that part of the module"
        )
    return result


def _tensors(args: Any) -> Any:
    if isinstance(args, Value):
        return args.tensor
    if isinstance(args, (tuple, list)):
        return [_tensors(item) for item in args]
    if isinstance(args, dict):
        return {key: _tensors(item) for key, item in args.items()}
    return args


def _flat(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for item in tree:
            yield from _flat(item)
    else:
        yield tree


def is_view(call: Call) -> bool:
    """Whether the op is a view, by the aliases that its schema declares."""
    if call.kind in _UNDECLARED_VIEWS:
        return True
    schema = getattr(call.target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    aliases = [r.alias_info is not None and not r.alias_info.is_write for r in schema.returns]
    first = call.args[0] if call.args and isinstance(call.args[0], torch.Tensor) else None
    # `to` and similar ops may return their operand, but copy if anything changes.
    same = all(first is None or v.tensor.dtype == first.dtype for v in call.outputs)
    return all(aliases) and (same or call.kind in ("aten.view", "aten.view_as_real", "aten.view_as_complex"))


def tensor_bytes(value: Value) -> int:
    """Exact size in bytes: elements times the size of the dtype."""
    return value.tensor.numel() * value.tensor.element_size()
