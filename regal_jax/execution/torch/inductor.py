"""A planned PyTorch program compiled by Inductor, which emits its kernels in the order of the plan."""

import functools
import heapq
import importlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.fx.traceback
from torch import library
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import _pytree as pytree

from regal_jax.execution.torch.program import Key, TorchProgram
from regal_jax.importers.fx_program import Call, Value
from regal_jax.importers.torch_graph import overwritten
from regal_jax.importers.torch_quiet import quiet
from regal_jax.importers.torch_trace import FIRST_STEP

__all__ = ["compile_program"]

_INEXACT: Final = ("aten.mkldnn_rnn_layer", "aten.mkldnn_rnn_layer_backward")
"""Kinds of ops whose results have other sizes and strides than PyTorch traces, which Inductor relies on."""

_POSITION: Final = "regal_jax.position"
"""Key in a node's ``meta["custom"]``: index of the action that it belongs to."""


def compile_program(
    program: TorchProgram,
    tensors: Mapping[Value, Any],
    written: Mapping[Value, Sequence[Value]],
    options: Mapping[str, Any],
) -> Callable[[dict[Key, Any], tuple[float, float]], None]:
    """A function like `TorchProgram.run`, for a program of one device, compiled by Inductor.

    Inductor decomposes and fuses ops. A kernel runs at the place of the last op that it computes, or as
    soon afterwards as its inputs have been computed.

    Args:
      program: The program.
      tensors: For each source a tensor of its shape, type and device.
      written: Results -> the sources whose new values they are; the function writes them in place.
      options: Options of Inductor. Its own reordering is off unless they say otherwise.

    Returns:
      A function of the tensors of sources, to which it adds the results, and of the numbers of the step.
    """
    sources = program.ops.sources
    device = next((tensors[v].device for v in sources), torch.device("cpu"))
    results = [v for v in program.ops.program.outputs if isinstance(v, Value) and v not in written]
    results = list(dict.fromkeys(results))
    module = _graph_module(program, written, results, device)
    chosen = {"reorder_for_peak_memory": False, "_post_fusion_custom_pass": _in_order, **options}
    with quiet(), torch.fx.traceback.preserve_node_meta(), torch.no_grad():
        given = [*(tensors[v] for v in sources), *_as_tensors(FIRST_STEP, device)]
        compiled: Any = importlib.import_module("torch._inductor").compile(module, given, options=chosen)

    def run(values: dict[Key, Any], numbers: tuple[float, float]) -> None:
        made = compiled(*(values[v, 0] for v in sources), *_as_tensors(numbers, device))
        values.update({(value, 0): tensor for value, tensor in zip(results, made, strict=True)})
        values.update({(value, 0): values[olds[0], 0] for value, olds in written.items()})

    return run


def _as_tensors(numbers: Sequence[float], device: torch.device) -> list[torch.Tensor]:
    return [torch.tensor(number, device=device, dtype=torch.float64) for number in numbers]


def _graph_module(
    program: TorchProgram,
    written: Mapping[Value, Sequence[Value]],
    results: Sequence[Value],
    device: torch.device,
) -> torch.fx.GraphModule:
    """An FX graph with the calls in the order of the plan; its nodes have their positions."""
    graph = torch.fx.Graph()
    env: dict[Value, torch.fx.Node] = {
        value: graph.placeholder(f"source_{i}") for i, value in enumerate(program.ops.sources)
    }
    sources = set(env)
    numbers = [graph.placeholder(name) for name in ("correction", "factor")]
    position_of: dict[Value, int] = {}
    root = torch.nn.Module()

    def node(position: int, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        made = graph.call_function(target, args, kwargs)
        made.meta["custom"] = {_POSITION: position}
        return made

    def actual(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return env[leaf]
        if isinstance(leaf, torch.fx.GraphModule):
            name = f"body_{len(list(root.children()))}"
            root.add_module(name, leaf)
            return graph.get_attr(name)
        return device if isinstance(leaf, torch.device) else leaf

    def bind(structure: Any, made: torch.fx.Node, position: int) -> None:
        if isinstance(structure, Value):
            env[structure], position_of[structure] = made, position
        elif isinstance(structure, (tuple, list)):
            for i, item in enumerate(structure):
                bind(item, node(position, operator.getitem, made, i), position)

    for position, action in enumerate(program.actions):
        call = action.call
        if call is not None:
            args, kwargs = pytree.tree_map(actual, (call.operands, call.keywords))
            made = _of_this_step(call, args, kwargs, numbers, lambda *a, p=position: node(p, *a))
            target = _exact(call.target) if call.kind in _INEXACT else call.target
            bind(call.structure, made or node(position, target, *args, **kwargs), position)
    for value, olds in written.items():
        for old in olds:
            # Written at the end, after all ops that read the old value.
            node(
                position_of.get(value, len(program.actions)),
                torch.ops.aten.copy_.default,
                env[old],
                env[value],
            )
    # A result that is a source is copied: it must not share memory with what is written.
    outputs = [node(-1, torch.ops.aten.clone.default, env[x]) if x in sources else env[x] for x in results]
    graph.output(tuple(outputs))
    return torch.fx.GraphModule(root, graph)


@functools.cache
def _exact(own: Any) -> Any:
    """An op like ``own`` whose traced results have the sizes and strides of its real ones.

    It also keeps what the backward op reads, which PyTorch does only where gradients are enabled.
    """
    kind, _, signature = str(own._schema).partition("(")
    name = kind.replace("aten::", "regal_jax::")
    library.define(name, f"({signature}")

    def real(*args: Any) -> Any:
        with torch.enable_grad():
            return own(*args)

    def traced(*args: Any) -> Any:
        like = next(arg for arg in args if isinstance(arg, torch.Tensor))
        with unset_fake_temporarily():
            found = real(*pytree.tree_map_only(torch.Tensor, _zeros_like, args))
            forms = [(tuple(one.shape), one.stride(), one.dtype) for one in found]
        return tuple(like.new_empty_strided(size, stride, dtype=dtype) for size, stride, dtype in forms)

    library.impl(name, "CPU")(real)
    library.register_fake(name)(traced)
    return getattr(torch.ops.regal_jax, name.partition("::")[2]).default


def _zeros_like(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype)
    return made.zero_()


def _of_this_step(
    call: Call, args: Sequence[Any], kwargs: Mapping[str, Any], numbers: Sequence[torch.fx.Node], node: Any
) -> torch.fx.Node | None:
    """The op of a step of Adam with the numbers of the step as tensors; `None` if it has none of them."""
    if overwritten(call) is None:
        return None
    aten = torch.ops.aten
    if call.kind == "aten.div" and args[1] == FIRST_STEP[0]:
        return node(aten.div.Tensor, args[0], numbers[0])
    if call.kind == "aten.addcdiv" and kwargs.get("value") == FIRST_STEP[1]:
        quotient = node(aten.div.Tensor, args[1], args[2])
        return node(aten.add.Tensor, args[0], node(aten.mul.Tensor, quotient, numbers[1]))
    return None


def _in_order(nodes: list[Any]) -> list[Any]:
    """Inductor's scheduler nodes, each after those that it depends on, by position."""
    maker = {name: node for node in nodes for name in node.get_buffer_names()}
    after: dict[int, list[int]] = {i: [] for i in range(len(nodes))}
    index = {id(node): i for i, node in enumerate(nodes)}
    waiting = [0] * len(nodes)
    for i, node in enumerate(nodes):
        names = {dependency.name for dependency in node.unmet_dependencies}
        before = {index[id(maker[name])] for name in names if name in maker} - {i}
        waiting[i] = len(before)
        for j in before:
            after[j].append(i)
    keys = [_position(node) for node in nodes]
    ready = [(keys[i], i) for i, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, i = heapq.heappop(ready)
        order.append(nodes[i])
        for j in after[i]:
            waiting[j] -= 1
            if not waiting[j]:
                heapq.heappush(ready, (keys[j], j))
    return order if len(order) == len(nodes) else nodes


def _position(node: Any) -> int:
    """The last position among the ops that a scheduler node computes."""
    origins = (
        origin for part in node.get_nodes() if part.node is not None for origin in part.node.get_origins()
    )
    found = (origin.meta.get("custom") or {} for origin in origins)
    return max((custom[_POSITION] for custom in found if _POSITION in custom), default=-1)
