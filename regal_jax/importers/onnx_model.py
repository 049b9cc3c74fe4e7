"""ONNX models (optional extra ``onnx``)."""

import dataclasses
import itertools
import os
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind, is_list, shown, whole
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.files import PathLike, at_path, graph_name, read_bytes
from regal_jax.importers.onnx_bodies import constants_of
from regal_jax.importers.onnx_cost import CostModel, node_cost
from regal_jax.importers.onnx_nodes import kind_of, node_reads, version
from regal_jax.importers.onnx_shapes import infer_values
from regal_jax.importers.onnx_sharing import shared_buffers
from regal_jax.importers.onnx_values import Value, import_onnx
from regal_jax.importers.roofline import DeviceProfile, find_profile
from regal_jax.runtime.interrupts import interruptible

__all__ = ["MAX_MODEL_BYTES", "OnnxOps", "check_model", "from_onnx", "onnx_ops", "parse_onnx", "read_onnx"]

MAX_MODEL_BYTES: Final = 2**31
"""Largest ``.onnx`` file, the limit of protobuf. Larger models have external weights, which are not read."""


@interruptible()
def from_onnx(model: PathLike | Any, **options: Any) -> ComputationGraph:
    """The graph of an ONNX model.

    - A node becomes an op, named by its own name, or ``TYPE_NUMBER`` if it has none. Values of the model's
      outputs are kept. One with bodies, such as ``If``, ``Loop`` or ``Scan``, is a single op, whose
      `temp_bytes` is an estimate: the largest peak of the bodies' own values in the order of their nodes.
    - Each initializer, ``Constant``, and ``ConstantOfShape`` of a constant is a parameter: an op of kind
      ``parameter`` with runtime 0 and one kept output, colocated with its first reader. Parameters
      without readers are left out. Those in bodies are parameters, too, named ``NODE/NAME``.
    - An input is an op of kind ``input`` with runtime 0 and one output.
    - One op of kind ``start`` (runtime 0, no output) waits for all inputs and parameters, and every
      op that reads nothing else waits for it. Inputs and parameters are resident: in memory from time 0.
    - Only shapes are read: external data may be missing.

    Args:
      model: Path of an ``.onnx`` file, or a ``ModelProto``.
      **options: As `parse_onnx`.

    Raises:
      FormatError: The file is not a model, or the model is inconsistent; names the place and the remedy.
      GraphError: The graph breaks a rule, e.g. has a cycle.
      MissingExtraError: `onnx` is not installed.

    Examples:
      >>> from onnx import TensorProto, helper
      >>> from regal_jax import from_onnx
      >>> x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 8]) for name in "xy")
      >>> node = helper.make_node("Relu", ["x"], ["y"], name="relu")
      >>> from_onnx(helper.make_model(helper.make_graph([node], "net", [x], [y]))).op_names
      ('x', 'start', 'relu')
    """
    if not isinstance(model, (str, os.PathLike)):
        return onnx_ops(model, **options).graph
    with at_path(model):
        return parse_onnx(read_bytes(model, MAX_MODEL_BYTES), **{"name": graph_name(model), **options})


def check_model(model: Any) -> None:
    """Checks that ``model``, which is no path, is a ``ModelProto``.

    Raises:
      FormatError: It is something else.
      MissingExtraError: `onnx` is not installed.
    """
    if not isinstance(model, import_onnx().ModelProto):
        raise FormatError(
            f"model: got {type(model).__name__}; give the path of an .onnx file, or a ModelProto"
        )


def read_onnx(path: PathLike) -> Any:
    """The ``ModelProto`` in a file. External data is not read.

    Raises:
      FormatError, MissingExtraError: As `from_onnx`.
    """
    with at_path(path):
        return _decode(read_bytes(path, MAX_MODEL_BYTES))


def parse_onnx(data: bytes, **options: Any) -> ComputationGraph:
    """The graph of a serialised ONNX model.

    Args:
      data: A serialised ``ModelProto``.
      name: Name of the graph; the model's own name by default.
      dims: Sizes of symbolic input dimensions by name, e.g. ``{"batch": 32}``. Those that are not given,
        or have no name, are taken as 1, with a warning.
      profile: The device that runtimes are estimated for (`regal_jax.importers.roofline.PROFILES`, or your
        own).
      input_devices: Devices on which inputs may start; ``None`` allows all.
      loop_trips: Iterations of every ``Loop`` for which the model has no constant number of them.
      in_place: Let values share buffers as ONNX Runtime does on a CPU, for plans of one device: results of
        ``Reshape`` and similar ops, and results that ``Relu`` and similar ops write over their only input.
        Such a value has 0 bytes, and its readers also read the value whose buffer it shares. A value that
        nothing reads is held to the end.

    Raises:
      ConfigError: An option is out of range or of another type.
      FormatError, GraphError, MissingExtraError: As `from_onnx`.
    """
    return onnx_ops(_decode(data), **options).graph


def _decode(data: bytes) -> Any:
    onnx = import_onnx()
    try:
        return onnx.load_model_from_string(data)
    # The decoder's own error class moves between versions of protobuf; RuntimeError is upb's depth limit.
    except (ValueError, TypeError, RuntimeError, _decode_error()) as error:
        reason = (str(error).splitlines() or [""])[0][:120]
        raise FormatError(f"not an ONNX model ({reason}); is the file complete?") from None


def _decode_error() -> type[Exception]:
    from google.protobuf.message import DecodeError

    return DecodeError


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxOps:
    """The graph of a model, and the node of each of its ops.

    Attributes:
      graph: Its graph, as `from_onnx` makes it.
      node: ``[N]`` int64: for each op the index of its node, -1 for inputs, parameters and the op ``start``.
        Nodes are counted after local functions have been inlined; see
        `regal_jax.importers.onnx_nodes.callers`.
      nodes: Number of these nodes, constants included.
    """

    graph: ComputationGraph
    node: np.ndarray
    nodes: int


def onnx_ops(
    model: Any,
    *,
    name: str | None = None,
    dims: Mapping[str, int] | None = None,
    profile: str | DeviceProfile = "h200",
    input_devices: Iterable[int] | None = (0,),
    loop_trips: int = 1,
    in_place: bool = False,
) -> OnnxOps:
    """The graph of a ``ModelProto`` and the nodes of its ops; for the rest see `parse_onnx`.

    Raises:
      ConfigError, FormatError, GraphError, MissingExtraError: As `parse_onnx`.
    """
    check_model(model)
    check_kind("dims", dims or {}, Mapping)
    if whole(loop_trips, 0) is None:
        raise ConfigError(f"loop_trips: {shown(loop_trips)} must be a whole number of at least 0")
    if input_devices is not None and not is_list(input_devices):
        raise ConfigError(
            f"input_devices: {shown(input_devices)} must be indices of devices, e.g. (0, 1), or None for all"
        )
    if not model.graph.node:
        raise FormatError("an ONNX model without nodes; is this the right file?")
    graph, values, assumed, contradiction = infer_values(model, dims or {}, loop_trips)
    _warn_of_assumed(assumed)
    parameters: set[str] = set()
    for tensor in (*model.graph.initializer, *(t.values for t in model.graph.sparse_initializer)):
        _add_parameter(tensor.name, parameters)
    inputs = [i.name for i in model.graph.input if i.name not in parameters]
    left = _fold_constants(graph.node, parameters)
    nodes = [graph.node[i] for i in left]
    inside, sizes = _constants_inside(nodes, {*values, *parameters, *inputs})
    values |= sizes
    parameters |= sizes.keys()
    layout = _Layout(nodes, inputs, parameters, {o.name for o in graph.output}, inside)
    for value in (o.name for o in graph.output):
        if value not in layout.source:
            raise FormatError(
                f"the ONNX model has an output {value!r}, which no node produces; mend the name"
            )
    _warn_of_unknown([value for value in layout.source if layout.matters(value)], values)
    builder = GraphBuilder(name or model.graph.name or "graph")
    _add_sources(builder, layout, values, None if input_devices is None else tuple(input_devices))
    given = {*layout.inputs, *layout.parameters}
    owner = shared_buffers(nodes, layout.reads, layout.results, given, values) if in_place else {}
    kept = set(layout.results)
    if in_place:
        read = {value for reads in layout.reads for value in reads}
        kept |= {value for node in nodes for value in node.output if value not in read}
    model_cost = CostModel(find_profile(profile), loop_trips, version(model))
    for o, node in enumerate(nodes):
        outputs = [value for value in node.output if value]
        # A reader of a value that shares a buffer keeps that buffer in memory.
        bases = [owner[value] for value in layout.reads[o] if value in owner]
        producers = [layout.producer(o, value) for value in dict.fromkeys([*layout.reads[o], *bases])]
        waits = layout.roots > 0 and all(op < layout.roots for op, _ in producers)
        cost = node_cost(node, values, model_cost)
        builder.add_op(
            layout.names[o],
            kind=node.op_type,
            runtime=cost.seconds,
            temp_bytes=cost.temp_bytes,
            outputs=[0 if value in owner else _size(value, values) for value in outputs],
            keep=[port for port, value in enumerate(outputs) if value in kept],
            inputs=producers,
            control_inputs=[layout.roots] if waits else [],
            colocation_group=layout.names[o] if o in layout.hosts else None,
        )
    made = builder.build()
    _warn_of_contradiction(contradiction)
    place = np.full(made.num_ops, -1, dtype=np.int64)
    place[made.num_ops - len(nodes) :] = left
    return OnnxOps(made, place, len(graph.node))


def _fold_constants(nodes: Iterable[Any], parameters: set[str]) -> list[int]:
    """Turns constants into parameters, which are added to the set; returns the indices of the other nodes."""
    left = []
    for i, node in enumerate(nodes):
        constant = kind_of(node) == "Constant" or (
            kind_of(node) == "ConstantOfShape" and all(value in parameters for value in node.input)
        )
        if constant:
            for value in node.output:
                _add_parameter(value, parameters)
        else:
            left.append(i)
    if not left:
        raise FormatError("an ONNX model of constants alone; nothing is left to run")
    return left


def _constants_inside(
    nodes: Sequence[Any], taken: Collection[str]
) -> tuple[list[list[str]], dict[str, Value]]:
    """For each node the names of the parameters in its bodies, and shape and type of each."""
    inside: list[list[str]] = []
    found: dict[str, Value] = {}
    make = _Namer(set(taken).union(*(node.output for node in nodes)))
    for o, node in enumerate(nodes):
        made = {make(f"{_name_of(o, node)}/{name}"): value for name, value in constants_of(node)}
        inside.append(list(made))
        found |= made
    return inside, found


def _add_parameter(value: str, parameters: set[str]) -> None:
    if value in parameters:
        raise _produced_twice(value)
    parameters.add(value)


def _produced_twice(value: str) -> FormatError:
    return FormatError(f"ONNX value {value!r} is produced twice; rename one of the two")


class _Layout:
    """The op that makes each value, and the names of ops: inputs, parameters, ``start``, then nodes.

    Attributes:
      reads: For each node, the values that it reads, and the parameters in its bodies.
      results: Values that are outputs of the model.
      inputs: Inputs of the model.
      parameters: Parameters that a node reads or that are results.
      first: Value -> first node that reads it.
      hosts: Nodes that are the first reader of some parameter.
      roots: Number of inputs and parameters; also the index of the start op, if there are any.
      source: Value -> (op, port).
      start: Name of the start op.
      names: For each node, the name of its op.
    """

    def __init__(
        self,
        nodes: list[Any],
        inputs: list[str],
        parameters: set[str],
        results: set[str],
        inside: Sequence[Sequence[str]],
    ) -> None:
        self.reads = [[*node_reads(node), *own] for node, own in zip(nodes, inside, strict=True)]
        self.results = results
        self.inputs = list(dict.fromkeys(inputs))
        self.first: dict[str, int] = {}
        for o, values in enumerate(self.reads):
            for value in values:
                self.first.setdefault(value, o)
        self.parameters = sorted(v for v in parameters if v in self.first or v in results)
        self.parameters.sort(key=lambda v: self.first.get(v, len(nodes)))
        self.hosts = {self.first[v] for v in self.parameters if v in self.first}
        roots = self.inputs + self.parameters
        self.roots = len(roots)
        self.source = {value: (o, 0) for o, value in enumerate(roots)}
        base = self.roots + (self.roots > 0)
        for o, node in enumerate(nodes):
            for port, value in enumerate(v for v in node.output if v):
                if value in self.source:
                    raise _produced_twice(value)
                self.source[value] = (base + o, port)
        names = _distinct([*roots, "start", *itertools.starmap(_name_of, enumerate(nodes))])
        self.start, self.names = names[self.roots], names[self.roots + 1 :]

    def producer(self, node: int, value: str) -> tuple[int, int]:
        """The op and port that make ``value``, which ``node`` reads."""
        if value not in self.source:
            raise FormatError(
                f"ONNX node {self.names[node]!r} reads {value!r}, which no node produces; mend the name"
            )
        return self.source[value]

    def matters(self, value: str) -> bool:
        """Whether the value is read or is a result."""
        return value in self.first or value in self.results


def _name_of(index: int, node: Any) -> str:
    return node.name or f"{node.op_type}_{index}"


def _distinct(names: list[str]) -> list[str]:
    """The names, in order; a repeated name gets the suffix ``_2``, ``_3``, ..."""
    make = _Namer(names)
    seen: set[str] = set()
    distinct = []
    for name in names:
        distinct.append(make(name) if name in seen else name)
        seen.add(name)
    return distinct


class _Namer:
    """Makes names that are not taken: a name that is gets the suffix ``_2``, ``_3``, ..."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._last: dict[str, int] = {}  # name -> the last number given to a repetition

    def __call__(self, name: str) -> str:
        """The name, or one with a suffix; it is taken then."""
        new, k = name, self._last.get(name, 1)
        while new in self._taken:
            k += 1
            new = f"{name}_{k}"
        self._last[name] = k
        self._taken.add(new)
        return new


def _add_sources(
    builder: GraphBuilder, layout: _Layout, values: Mapping[str, Value], devices: tuple[int, ...] | None
) -> None:
    for value in layout.inputs:
        builder.add_op(
            value,
            kind="input",
            outputs=[_size(value, values)],
            keep=[0] if value in layout.results else [],
            allowed_devices=devices,
            resident=True,
        )
    for value in layout.parameters:
        builder.add_op(
            value,
            kind="parameter",
            outputs=[_size(value, values)],
            keep=[0],
            colocation_group=layout.names[layout.first[value]] if value in layout.first else None,
            resident=True,
        )
    if layout.roots:
        builder.add_op(layout.start, kind="start", control_inputs=range(layout.roots))


def _size(value: str, values: Mapping[str, Value]) -> int:
    return values[value].size_bytes if value in values else 0


def _warn_of_assumed(assumed: Mapping[str, str]) -> None:
    """Warns of dimensions that were taken as 1: name -> an input that has it; `""` if it has no name."""
    named = [name for name in assumed if name]
    if named:
        given = ", ".join(f"{name!r}: SIZE" for name in named)
        warnings.warn(
            f"ONNX input {assumed[named[0]]!r}: the symbolic dimension {named[0]!r} is taken as 1"
            f"{f', and so are {len(named) - 1} others' if named[1:] else ''}; "
            f"give sizes with dims={{{given}}} (in the command --dim {named[0]}=SIZE)",
            stacklevel=4,
        )
    if "" in assumed:
        warnings.warn(
            f"ONNX input {assumed['']!r}: a dimension without size or name is taken as 1; name it in the "
            "model to give it a size",
            stacklevel=4,
        )


def _warn_of_contradiction(contradiction: str) -> None:
    if contradiction:
        warnings.warn(
            f"ONNX shape inference reports an error: {contradiction}; sizes may be wrong, so check the "
            "shapes in the model and the sizes of symbolic dimensions",
            stacklevel=4,
        )


def _warn_of_unknown(names: list[str], values: Mapping[str, Value]) -> None:
    unknown = [name for name in names if name not in values or not values[name].exact]
    if unknown:
        warnings.warn(
            f"ONNX shape inference leaves {len(unknown)} values open, the first {unknown[0]!r}: unknown "
            "dimensions are taken as 1, and those of unknown rank or no tensors as 0 bytes",
            stacklevel=4,
        )
