"""Cost of one ONNX node: floating-point operations, bytes moved, and seconds."""

import math
from collections import ChainMap
from collections.abc import Mapping
from typing import Any, Final

from regal_jax.importers.einsum import einsum_flops
from regal_jax.importers.onnx_shapes import Value, subgraphs, values_of
from regal_jax.importers.roofline import DeviceProfile

__all__ = ["node_seconds"]


# Ops that take no time, since they only rename memory.
_VIEWS: Final = {
    "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Constant", "Shape", "Size",
}  # fmt: skip
# Ops that read only the part of their first input that they return.
_PICKS: Final = {
    "Gather", "GatherElements", "GatherND", "Slice", "Split", "Compress", "ConstantOfShape", "Range",
}  # fmt: skip
_MATRIX: Final = {
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "FusedConv", "Gemm",
    "GRU", "LSTM", "MatMul", "MatMulInteger", "QLinearConv", "QLinearMatMul", "RNN",
}  # fmt: skip
_UNKNOWN: Final = Value()


def _attribute(node: Any, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            if attribute.ints:
                return list(attribute.ints)
            return attribute.i if attribute.HasField("i") else attribute.s
    return default


def _flops(node: Any, inputs: list[Value], outputs: list[Value]) -> float:
    """Flops of a node: one per element, unless the kind of the node says otherwise.

    Convolutions and products have two per multiply-add. Pools have one per element of each window.
    """
    op = node.op_type
    out = outputs[0].elements if outputs else 0
    if op in ("QLinearConv", "QLinearMatMul"):  # Inputs: (x, scale, zero point, w, ...).
        inputs, op = [inputs[0], *inputs[3:4]], {"QLinearConv": "Conv"}.get(op, "MatMul")
    shapes = [value.shape for value in inputs]
    if op in ("Conv", "ConvInteger", "FusedConv", "DeformConv") and len(shapes) > 1:
        return 2.0 * out * math.prod(shapes[1][1:])
    if op == "ConvTranspose" and len(shapes) > 1:
        return 2.0 * inputs[0].elements * math.prod(shapes[1][1:])
    if op in ("MatMul", "MatMulInteger") and shapes and shapes[0]:
        return 2.0 * out * shapes[0][-1]
    if op == "Gemm" and shapes and len(shapes[0]) == 2:
        return 2.0 * out * shapes[0][0 if _attribute(node, "transA", 0) else 1]
    if op in ("LSTM", "GRU", "RNN") and len(shapes) > 2 and len(shapes[0]) == 3:
        return 2.0 * shapes[0][0] * shapes[0][1] * (inputs[1].elements + inputs[2].elements)
    if op == "Einsum":
        return einsum_flops(_attribute(node, "equation", b"").decode("latin-1"), shapes)
    if op == "Attention" and not node.domain and len(shapes) > 2 and len(shapes[1]) > 1:
        # Scores, and sums of values weighted by them. Past keys, if any, are input 4.
        keys = shapes[1][-2] + (shapes[4][-2] if len(shapes) > 4 and len(shapes[4]) > 1 else 0)
        return 2.0 * keys * (inputs[0].elements + out)
    if op in ("AveragePool", "MaxPool", "LpPool"):
        return float(out * math.prod(_attribute(node, "kernel_shape", [1])))
    if op in _PICKS:
        return 0.0
    return float(max((value.elements for value in (*inputs, *outputs)), default=0))


def node_seconds(node: Any, values: Mapping[str, Value], model: DeviceProfile, loop_trips: int) -> float:
    """Runtime of one node.

    A node with bodies takes as long as their nodes, one after another: an ``If`` its slowest branch, a
    ``Scan`` its body times its length, a ``Loop`` its body times ``loop_trips``. Ops that only rename
    memory take no time. Nothing is fused.

    Args:
      node: A ``NodeProto``.
      values: Shapes and types of all values in scope.
      model: The device that runtimes are estimated for.
      loop_trips: Iterations of a ``Loop``, whose length is not in the model.

    Returns:
      Seconds.
    """
    bodies = [_body_seconds(body, values, model, loop_trips) for body in subgraphs(node)]
    inputs = [values.get(name, _UNKNOWN) for name in node.input]
    if bodies:
        trips = {"Loop": loop_trips, "Scan": _scan_length(node, inputs)}.get(node.op_type, 1)
        return max(bodies) * trips
    if node.op_type in _VIEWS:
        return 0.0
    outputs = [values.get(name, _UNKNOWN) for name in node.output]
    written = sum(value.size_bytes for value in outputs)
    picked = node.op_type in _PICKS and bool(inputs)
    read = sum(value.size_bytes for value in (inputs[1:] if picked else inputs)) + (written if picked else 0)
    dtype = next((value.dtype for value in (*inputs, *outputs) if value.item_bits), "float32")
    flops = _flops(node, inputs, outputs)
    return model.seconds(flops, float(read + written), dtype, matrix=node.op_type in _MATRIX)


def _body_seconds(body: Any, values: Mapping[str, Value], model: DeviceProfile, loop_trips: int) -> float:
    scope = ChainMap(values_of(body), dict(values))
    return sum(node_seconds(inner, scope, model, loop_trips) for inner in body.node)


def _scan_length(node: Any, inputs: list[Value]) -> int:
    """Iterations of a `Scan`: the size of its last input along the axis that is scanned."""
    scanned = inputs[-1].shape if inputs else ()
    axes = _attribute(node, "scan_input_axes", [])
    axis = axes[-1] if axes else 0
    return scanned[axis] if -len(scanned) <= axis < len(scanned) else 1
