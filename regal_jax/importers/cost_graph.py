"""TensorFlow ``CostGraphDef`` protobuf text (``.pbtxt``): the format of REGAL's published data.

Protobuf is imported on first use, so that other formats do not need it.
"""

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.refusals import ACCEPT_LOSS, refuse_constraints

__all__ = ["format_cost_graph", "parse_cost_graph"]

_MICROSECONDS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0, "μs": 1.0, "ns": 1e-3}


def parse_cost_graph(text: str, *, name: str = "graph") -> ComputationGraph:
    """The graph in a ``CostGraphDef`` in protobuf text form.

    - A node becomes an op, in file order, named by `name` (``node_ID`` if it has none; a name that
      another node has already gets ``_ID`` appended).
    - `compute_cost` becomes the runtime, the number unchanged, in microseconds.
    - Temporary memory (`temporary_memory_size` and the older `host_temp_memory_size` and
      `device_temp_memory_size`) becomes `temp_bytes`.
    - Persistent memory (`persistent_memory_size` and the older `device_persistent_memory_size`)
      becomes one more output, after the others, that has no readers and is kept: it stays in memory
      from the op on.
    - The outputs of an `is_final` node are kept.
    - A size of -1, which TensorFlow writes for an unknown size, counts as 0 bytes.
    - An output that aliases an input counts with its full size, which a transfer needs; memory is then
      overestimated, never underestimated.
    - `device`, `shape`, `dtype`, `compute_time`, `memory_time`, `inaccurate` and `cost` are not used.

    Args:
      text: The file's content.
      name: Name of the graph.

    Raises:
      FormatError: The text is not of this format, an id occurs twice, or an edge has no source; names the
        node.
      GraphError: The graph breaks a rule, e.g. has a cycle.
    """
    from google.protobuf import text_format

    from regal_jax.importers.cost_graph_proto import new_cost_graph

    check_kind("text", text, str)
    message = new_cost_graph()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        where = f"line {error.GetLine()}: " if error.GetLine() else ""
        reason = str(error).rsplit(" : ", 1)[-1].splitlines()[0][:200]
        raise FormatError(
            f"{where}not a CostGraphDef in protobuf text: {reason}; is the file complete?"
        ) from None
    except (RecursionError, ValueError) as error:
        raise FormatError(f"not a CostGraphDef in protobuf text ({type(error).__name__})") from None
    if not message.node:
        raise FormatError("a CostGraphDef without nodes; add at least one 'node { ... }'")
    index: dict[int, int] = {}
    for o, node in enumerate(message.node):
        if node.id in index:
            raise FormatError(f"node {node.name!r}: id {node.id} is taken already; give every node its own")
        index[node.id] = o
    names = _names(message.node)
    builder = GraphBuilder(name, "us")
    for o in range(len(message.node)):
        _add_node(builder, message.node, o, names, index)
    return builder.build()


def _names(nodes) -> list[str]:
    taken: set[str] = {node.name for node in nodes}
    seen: set[str] = set()
    names = []
    for node in nodes:
        name = node.name
        if not name or name in seen:
            name = f"{name or 'node'}_{node.id}"
            while name in taken:
                name += "_"
            taken.add(name)
        seen.add(name)
        names.append(name)
    return names


def _add_node(builder: GraphBuilder, nodes, o: int, names: list[str], index: dict[int, int]) -> None:
    node = nodes[o]

    def op(field: str, node_id: int) -> int:
        if node_id not in index:
            raise FormatError(f"node {names[o]!r}: {field} {node_id} is no node; add it or drop the edge")
        return index[node_id]

    def size(*fields: str) -> int:
        return sum(_size(names[o], field, getattr(node, field)) for field in fields)

    inputs = []
    for info in node.input_info:
        producer, port = op("preceding_node", info.preceding_node), info.preceding_port
        if not 0 <= port < len(nodes[producer].output_info):
            raise FormatError(
                f"node {names[o]!r}: preceding_port {port}: {names[producer]!r} has "
                f"{len(nodes[producer].output_info)} outputs; mend the port"
            )
        inputs.append((producer, port))
    if node.compute_cost < 0:
        raise FormatError(f"node {names[o]!r}: compute_cost {node.compute_cost} must be zero or more")
    outputs = [_size(names[o], "output_info size", info.size) for info in node.output_info]
    keep = list(range(len(outputs))) if node.is_final else []
    persistent = size("persistent_memory_size", "device_persistent_memory_size")
    if persistent:
        keep.append(len(outputs))
        outputs.append(persistent)
    builder.add_op(
        names[o],
        runtime=node.compute_cost,
        outputs=outputs,
        inputs=inputs,
        control_inputs=[op("control_input", u) for u in node.control_input],
        temp_bytes=size("temporary_memory_size", "host_temp_memory_size", "device_temp_memory_size"),
        keep=keep,
    )


def _size(name: str, field: str, value: int) -> int:
    if value < -1:
        raise FormatError(f"node {name!r}: {field} {value} must be zero or more (or -1 for unknown)")
    return max(value, 0)


def format_cost_graph(graph: ComputationGraph, *, lossy: bool = False) -> str:
    """``graph`` as a ``CostGraphDef`` in protobuf text form.

    Runtimes are written in microseconds, as the format defines `compute_cost`, whatever the graph's unit.
    Op kinds have no field and are left out. A kept output without readers that is the last one of its op
    is written as persistent memory, unless all outputs are kept (`is_final`).

    Args:
      graph: The graph.
      lossy: Write a graph that the format cannot hold exactly: round runtimes to whole microseconds, leave
        out allowed devices, colocation groups and `resident`, and keep all outputs of an op if one is kept.

    Raises:
      FormatError: The format cannot hold the graph; names the op, the field and the remedy.
    """
    from google.protobuf import text_format

    from regal_jax.importers.cost_graph_proto import new_cost_graph

    refuse_constraints(graph, "a CostGraphDef", lossy)
    if graph.resident.any() and not lossy:
        name = graph.op_names[int(np.argmax(graph.resident))]
        raise FormatError(
            f"graph {graph.name!r}: op {name!r}: resident has no place in a CostGraphDef; "
            f"{ACCEPT_LOSS} to leave it out, or write JSON"
        )
    costs = _compute_costs(graph, lossy)
    message = new_cost_graph()
    outputs, (offset, tensor) = graph.output_offset.tolist(), graph.inputs
    control_offset, control = (a.tolist() for a in graph.control_predecessors)
    bounds, inputs = offset.tolist(), tensor.tolist()
    producer, port = graph.tensor_op.tolist(), graph.tensor_port.tolist()
    size = graph.tensor_bytes.tolist()
    for o, name in enumerate(graph.op_names):
        first, last = outputs[o : o + 2]
        final, persistent = _permanence(graph, o, first, last, lossy)
        node = message.node.add(
            name=name,
            id=o,
            compute_cost=costs[o],
            temporary_memory_size=int(graph.temp_bytes[o]),
            is_final=final,
            control_input=control[control_offset[o] : control_offset[o + 1]],
        )
        if persistent:
            last -= 1
            node.persistent_memory_size = size[last]
        for t in inputs[bounds[o] : bounds[o + 1]]:
            node.input_info.add(preceding_node=producer[t], preceding_port=port[t])
        for t in range(first, last):
            # 0, the default, would say that the output aliases input 0.
            node.output_info.add(size=size[t], alias_input_port=-1)
    return text_format.MessageToString(message, as_utf8=True)


def _compute_costs(graph: ComputationGraph, lossy: bool) -> list[int]:
    exact = graph.runtime * _MICROSECONDS[graph.time_unit]
    costs = np.rint(exact)
    # Conversion of units may add an ulp or two, which is not a fraction.
    bad = (np.abs(exact - costs) > 1e-9 * np.maximum(1.0, costs)) & (not lossy)
    if bad.any():
        o = int(np.argmax(bad))
        raise FormatError(
            f"graph {graph.name!r}: op {graph.op_names[o]!r}: runtime {float(exact[o])!r} us is not "
            f"whole, and compute_cost is; {ACCEPT_LOSS} to round, or write JSON"
        )
    if (costs >= 2.0**63).any():
        o = int(np.argmax(costs))
        raise FormatError(
            f"graph {graph.name!r}: op {graph.op_names[o]!r}: runtime {exact[o]:.6g} us does not fit "
            "compute_cost; check the time unit"
        )
    return [int(cost) for cost in costs]


def _permanence(graph: ComputationGraph, o: int, first: int, last: int, lossy: bool) -> tuple[bool, bool]:
    """(all outputs are kept, the last one is persistent memory)."""
    keep = graph.tensor_keep[first:last]
    if not keep.any():
        return False, False
    if keep.all():
        return True, False
    unread = graph.consumer_offset[last - 1] == graph.consumer_offset[last]
    if keep[-1] and keep.sum() == 1 and unread and graph.tensor_bytes[last - 1] > 0:
        return False, True
    if lossy:
        return True, False
    raise FormatError(
        f"graph {graph.name!r}: op {graph.op_names[o]!r}: keep on {int(keep.sum())} of {len(keep)} outputs; "
        f"a CostGraphDef keeps all or none: split the op, {ACCEPT_LOSS} to keep all, or write JSON"
    )
