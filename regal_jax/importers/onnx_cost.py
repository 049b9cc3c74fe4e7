"""Cost of one ONNX node: floating-point operations, bytes moved, seconds, and scratch memory."""

import dataclasses
import math
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from regal_jax.importers.body_peak import BodyStep, body_peak
from regal_jax.importers.einsum import einsum_flops
from regal_jax.importers.onnx_bodies import iterations
from regal_jax.importers.onnx_nodes import attribute, kind_of, node_reads, subgraphs
from regal_jax.importers.onnx_values import Value, values_of
from regal_jax.importers.roofline import DeviceProfile

__all__ = ["CostModel", "NodeCost", "node_cost"]


# Ops that take no time, since they only rename memory.
_VIEWS: Final = {
    "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Constant", "Shape", "Size",
}  # fmt: skip
# Ops that read only the part of their first input that they return.
_PICKS: Final = {
    "Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress", "ConstantOfShape", "Range",
}  # fmt: skip
_FUSED: Final = {
    "com.microsoft.FusedConv": "Conv",
    "com.microsoft.FusedGemm": "Gemm",
    "com.microsoft.FusedMatMul": "MatMul",
}
"""Ops of ONNX Runtime that do more than an op of ONNX, which has most of their work."""
_MATRIX: Final = {
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "Gemm", "GRU", "LSTM",
    "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN", *_FUSED,
}  # fmt: skip
_UNKNOWN: Final = Value()
_SCAN_WITHOUT_BATCH: Final = 9
"""Version of ONNX's ops from which the inputs of a `Scan` have no batch axis."""


@dataclasses.dataclass(frozen=True, slots=True)
class CostModel:
    """What the costs of nodes depend on.

    Attributes:
      profile: The device that runtimes are estimated for.
      loop_trips: Iterations of a ``Loop`` whose length is not in the model.
      opset: Version of ONNX's own ops in the model.
    """

    profile: DeviceProfile
    loop_trips: int
    opset: int


class NodeCost(NamedTuple):
    """Runtime in seconds, and scratch memory in bytes."""

    seconds: float
    temp_bytes: int


def _flops(node: Any, inputs: list[Value], outputs: list[Value]) -> float:
    """Flops of a node: one per element, unless the kind of the node says otherwise.

    Convolutions and products have two per multiply-add. Pools have one per element of each window.
    """
    op = _FUSED.get(kind_of(node), kind_of(node))
    out = outputs[0].elements if outputs else 0
    if op in ("QLinearConv", "QLinearMatMul"):  # Inputs: (x, scale, zero point, w, ...).
        inputs, op = [inputs[0], *inputs[3:4]], {"QLinearConv": "Conv"}.get(op, "MatMul")
    shapes = [value.shape for value in inputs]
    if op in ("Conv", "ConvInteger", "DeformConv") and len(shapes) > 1:
        return 2.0 * out * math.prod(shapes[1][1:])
    if op == "ConvTranspose" and len(shapes) > 1:
        return 2.0 * inputs[0].elements * math.prod(shapes[1][1:])
    if op in ("MatMul", "MatMulInteger") and shapes and shapes[0]:
        return 2.0 * out * shapes[0][-2 if attribute(node, "transA", 0) and len(shapes[0]) > 1 else -1]
    if op == "Gemm" and shapes and len(shapes[0]) == 2:
        return 2.0 * out * shapes[0][0 if attribute(node, "transA", 0) else 1]
    if op in ("LSTM", "GRU", "RNN") and len(shapes) > 2 and len(shapes[0]) == 3:
        return 2.0 * shapes[0][0] * shapes[0][1] * (inputs[1].elements + inputs[2].elements)
    if op == "Einsum":
        return einsum_flops(attribute(node, "equation", b"").decode("latin-1"), shapes)
    if op == "Attention" and len(shapes) > 2 and len(shapes[1]) > 1:
        # Scores, and sums of values weighted by them. Past keys, if any, are input 4.
        keys = shapes[1][-2] + (shapes[4][-2] if len(shapes) > 4 and len(shapes[4]) > 1 else 0)
        return 2.0 * keys * (inputs[0].elements + out)
    if op in ("AveragePool", "MaxPool", "LpPool"):
        return float(out * math.prod(attribute(node, "kernel_shape", [1])))
    if op in _PICKS:
        return 0.0
    return float(max((value.elements for value in (*inputs, *outputs)), default=0))


def node_cost(node: Any, values: Mapping[str, Value], model: CostModel) -> NodeCost:
    """Runtime and scratch memory of one node.

    A node with bodies takes as long as their nodes, one after another: an ``If`` its slowest branch, a
    ``Scan`` its body times its length, a ``Loop`` its body times its `iterations`. Ops that only rename
    memory take no time. Nothing is fused.

    Scratch memory is the largest peak of the values that a body makes, in the order of its nodes. A
    loop needs memory for the results of an iteration in addition to its outputs, which hold the previous
    state. The results of a branch are the outputs of the node.

    Args:
      node: A ``NodeProto``.
      values: Shapes and types of all values in scope.
      model: What the cost depends on.
    """
    kind = kind_of(node)
    bodies = [_body_cost(body, values, model, kind != "If") for body in subgraphs(node)]
    inputs = [values.get(name, _UNKNOWN) for name in node.input]
    if bodies:
        trips = 1
        if kind == "Loop":
            trips = iterations(node, values, model.loop_trips)
        elif kind == "Scan":
            trips = _scan_length(node, inputs, model.opset)
        seconds, temps = zip(*bodies, strict=True)
        return NodeCost(max(seconds) * trips, max(temps))
    if kind in _VIEWS:
        return NodeCost(0.0, 0)
    outputs = [values.get(name, _UNKNOWN) for name in node.output]
    written = sum(value.size_bytes for value in outputs)
    picked = kind in _PICKS and bool(inputs)
    read = sum(value.size_bytes for value in (inputs[1:] if picked else inputs)) + (written if picked else 0)
    dtype = next((value.dtype for value in (*inputs, *outputs) if value.item_bits), "float32")
    flops = _flops(node, inputs, outputs)
    return NodeCost(model.profile.seconds(flops, float(read + written), dtype, matrix=kind in _MATRIX), 0)


def _body_cost(body: Any, values: Mapping[str, Value], model: CostModel, count_results: bool) -> NodeCost:
    scope = ChainMap(values_of(body), dict(values))
    costs = [node_cost(inner, scope, model) for inner in body.node]
    steps = [
        BodyStep(node_reads(inner), _made(inner, scope), cost.temp_bytes)
        for inner, cost in zip(body.node, costs, strict=True)
    ]
    peak = body_peak(steps, [output.name for output in body.output], count_results=count_results)
    return NodeCost(sum(cost.seconds for cost in costs), peak)


def _made(node: Any, scope: Mapping[str, Value]) -> dict[str, int]:
    """The values that a node in a body makes, with their bytes. A constant is not made by a run."""
    if kind_of(node) == "Constant":
        return {}
    return {name: scope.get(name, _UNKNOWN).size_bytes for name in node.output if name}


def _scan_length(node: Any, inputs: list[Value], opset: int) -> int:
    """Runs of the body of a `Scan`: the size of its last input along the axis that is scanned.

    In version 8, the body runs for each sequence of a batch; the axes are those of batch and sequence.
    """
    scanned = inputs[-1].shape if inputs else ()
    if opset < _SCAN_WITHOUT_BATCH:
        return math.prod(scanned[:2])
    axes = attribute(node, "scan_input_axes", [])
    axis = axes[-1] if axes else 0
    return scanned[axis] if -len(scanned) <= axis < len(scanned) else 1
