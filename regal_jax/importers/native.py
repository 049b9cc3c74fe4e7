"""regal_jax's own graph format: JSON, versioned, lossless (docs/graph_format.md)."""

import dataclasses
import json
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.graph.units import TIME_UNITS
from regal_jax.importers.strict_json import Field
from regal_jax.storage.documents import parse_json

__all__ = ["FORMAT", "VERSION", "format_native", "graph_from_document", "parse_native"]

FORMAT: Final = "regal_jax.graph"
VERSION: Final = 2

_OP_KEYS: Final = (
    "name", "kind", "runtime", "temp_bytes", "allowed_devices", "colocation_group", "outputs", "inputs",
    "control_inputs", "resident",
)  # fmt: skip


def format_native(graph: ComputationGraph) -> str:
    """``graph`` as a document of the format, one op per line, without members that have their default.

    Args:
      graph: Any graph.

    Returns:
      JSON text from which `parse_native` makes a graph of the same name and content hash.
    """
    check_kind("graph", graph, ComputationGraph)
    offset, tensor = graph.inputs
    control_offset, control = graph.control_predecessors
    inputs, controls = tensor.tolist(), control.tolist()
    bounds, control_bounds, outputs = offset.tolist(), control_offset.tolist(), graph.output_offset.tolist()
    size, keep = graph.tensor_bytes.tolist(), graph.tensor_keep.tolist()
    tensor_names = [graph.tensor_name(t) for t in range(graph.num_tensors)]
    lines = []
    for o, (name, runtime) in enumerate(zip(graph.op_names, graph.runtime.tolist(), strict=True)):
        members = {
            "kind": graph.op_kinds[o] or None,
            "runtime": runtime,
            "temp_bytes": int(graph.temp_bytes[o]) or None,
            "allowed_devices": graph.allowed_devices[o],
            "colocation_group": graph.colocation_group[o],
            "outputs": [
                {"size_bytes": size[t], "keep": True} if keep[t] else {"size_bytes": size[t]}
                for t in range(outputs[o], outputs[o + 1])
            ],
            "inputs": [tensor_names[t] for t in inputs[bounds[o] : bounds[o + 1]]],
            "control_inputs": [
                graph.op_names[u] for u in controls[control_bounds[o] : control_bounds[o + 1]]
            ],
            "resident": bool(graph.resident[o]) or None,
        }
        op = {"name": name, **{key: value for key, value in members.items() if value not in (None, [])}}
        lines.append(json.dumps(op, ensure_ascii=False))
    head = {"format": FORMAT, "version": VERSION, "name": graph.name, "time_unit": graph.time_unit}
    text = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in head.items()
    )
    return "{" + text + ',\n"ops": [\n' + ",\n".join(lines) + "\n]}\n"


def parse_native(text: str) -> ComputationGraph:
    """The graph in a document of the format.

    Args:
      text: JSON.

    Raises:
      FormatError: The text is not such a document; names the place and the remedy.
      GraphError: The graph breaks a rule, e.g. has a cycle.
    """
    return graph_from_document(parse_json(text))


def graph_from_document(document: Any) -> ComputationGraph:
    """`parse_native` of JSON that is parsed already."""
    root = Field(document)
    # First, since other documents, such as plans, have other keys.
    if root.get("format").value != FORMAT:
        raise root.get("format").error(f"expected {FORMAT!r}, got {root.get('format').text()!r}")
    version = root.get("version").count()
    if not 1 <= version <= VERSION:
        raise FormatError(
            f"version {version} of {FORMAT} is not known, only 1 to {VERSION}; update regal-jax"
        )
    root.only("format", "version", "name", "time_unit", "ops")
    time_unit = root.get("time_unit")
    if time_unit.text() not in TIME_UNITS:
        raise time_unit.error(f"unknown unit {time_unit.value!r}; use one of {', '.join(TIME_UNITS)}")
    ops = root.get("ops").items()
    counts = [len(op.find("outputs", []).items()) for op in ops]
    index: dict[str, int] = {}
    for o, op in enumerate(ops):
        name = op.get("name")
        if index.setdefault(name.text(), o) != o:
            raise name.error(f"{name.value!r} is the name of another op, too; rename one of the two")
    builder = GraphBuilder(root.get("name").text(), time_unit.text())
    for op in ops:
        _add_op(builder, op, index, counts)
    graph = builder.build()
    if graph.runtime.ndim == 1 and any(isinstance(op.value.get("runtime"), list) for op in ops):
        # The builder reads a list of one runtime as a plain number, but the document means one device.
        graph = dataclasses.replace(graph, runtime=graph.runtime[:, None])
    return _with_residents(graph) if version == 1 else graph


def _with_residents(graph: ComputationGraph) -> ComputationGraph:
    """``graph`` of a document of version 1, which has no field `resident`, with its residents marked.

    Importers wrote a resident as an op of kind ``parameter`` or ``input`` that costs nothing and waits for
    nothing, and for which an op of kind ``start`` waits.
    """
    kinds = np.array(graph.op_kinds)
    awaited = np.zeros(graph.num_ops, dtype=bool)
    awaited[graph.control_source[kinds[graph.control_target] == "start"]] = True
    costs = graph.runtime.reshape(graph.num_ops, -1).any(axis=1) | (graph.temp_bytes > 0)
    waits = (np.diff(graph.inputs[0]) > 0) | (np.diff(graph.control_predecessors[0]) > 0)
    resident = np.isin(kinds, ("parameter", "input")) & awaited & ~costs & ~waits
    return dataclasses.replace(graph, resident=resident) if resident.any() else graph


def _add_op(builder: GraphBuilder, op: Field, index: dict[str, int], counts: list[int]) -> None:
    op.only(*_OP_KEYS)
    outputs = op.find("outputs", []).items()
    for output in outputs:
        output.only("size_bytes", "keep")
    runtime = op.find("runtime", 0.0)
    devices, group = op.find("allowed_devices", None), op.find("colocation_group", None)
    builder.add_op(
        op.get("name").text(),
        kind=op.find("kind", "").text(),
        runtime=[item.number() for item in runtime.items()]
        if isinstance(runtime.value, list)
        else runtime.number(),
        outputs=[output.get("size_bytes").count() for output in outputs],
        keep=[port for port, output in enumerate(outputs) if output.find("keep", False).flag()],
        inputs=[_tensor(item, index, counts) for item in op.find("inputs", []).items()],
        control_inputs=[_op(item, item.text(), index) for item in op.find("control_inputs", []).items()],
        temp_bytes=op.find("temp_bytes", 0).count(),
        allowed_devices=None
        if devices.value is None
        else [item.count(2**31 - 1) for item in devices.items()],
        colocation_group=None if group.value is None else group.text(),
        resident=op.find("resident", False).flag(),
    )


def _op(item: Field, name: str, index: dict[str, int]) -> int:
    if name not in index:
        raise item.error(f"no op is called {name!r}; add it or drop the edge")
    return index[name]


def _tensor(item: Field, index: dict[str, int], counts: list[int]) -> tuple[int, int]:
    name, colon, port = item.text().rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or len(port) > 9:
        raise item.error(f"{item.value!r} names no tensor; write OP:PORT, with the port a number")
    o = _op(item, name, index)
    if int(port) >= counts[o]:
        raise item.error(f"op {name!r} has {counts[o]} outputs, so no port {port}; mend the port")
    return o, int(port)
