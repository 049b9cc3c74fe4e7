"""Conversion to and from graphs of networkx (extra ``interop``), without loss.

A ``MultiDiGraph`` whose nodes are ops, by name and in the graph's order:

- of the graph ``name`` and ``time_unit``;
- of a node ``kind``, ``runtime`` (a number, or a list with one per device), ``temp_bytes``, ``outputs`` (a
  list of ``{"bytes": ..., "keep": ...}``, one for each tensor), and where there are any
  ``allowed_devices`` (a list) and ``colocation_group``;
- of an edge either ``port``, which output of its source is read, and its ``bytes``; or ``control`` (true).
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from regal_jax.checks import check_kind
from regal_jax.errors import GraphError, MissingExtraError
from regal_jax.graph.builder import GraphBuilder, is_per_device
from regal_jax.graph.computation_graph import ComputationGraph

if TYPE_CHECKING:
    import networkx

__all__ = ["from_networkx", "to_networkx"]


def to_networkx(graph: ComputationGraph) -> "networkx.MultiDiGraph":
    """``graph`` for networkx; see the module.

    Raises:
      MissingExtraError: networkx is not installed.
    """
    check_kind("graph", graph, ComputationGraph)
    try:
        import networkx
    except ImportError:
        raise MissingExtraError("networkx", "interop") from None
    made = networkx.MultiDiGraph(name=graph.name, time_unit=graph.time_unit)
    output = graph.output_offset.tolist()
    size, keep = graph.tensor_bytes.tolist(), graph.tensor_keep.tolist()
    for o, name in enumerate(graph.op_names):
        fields: dict[str, Any] = {
            "kind": graph.op_kinds[o],
            "runtime": graph.runtime[o].tolist(),
            "temp_bytes": int(graph.temp_bytes[o]),
            "outputs": [{"bytes": size[t], "keep": keep[t]} for t in range(output[o], output[o + 1])],
        }
        allowed, group = graph.allowed_devices[o], graph.colocation_group[o]
        if allowed is not None:
            fields["allowed_devices"] = list(allowed)
        if group is not None:
            fields["colocation_group"] = group
        if graph.resident[o]:
            fields["resident"] = True
        made.add_node(name, **fields)
    port = graph.tensor_port.tolist()
    for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
        source = graph.op_names[graph.tensor_op[t]]
        made.add_edge(source, graph.op_names[o], port=port[t], bytes=size[t])
    for u, v in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
        made.add_edge(graph.op_names[u], graph.op_names[v], control=True)
    return made


def from_networkx(graph: "networkx.DiGraph") -> ComputationGraph:
    """The graph that `to_networkx` converted, or that of any directed graph.

    Attributes that a node lacks are empty: no kind, runtime 0, no scratch memory. If a node has no
    ``outputs``, every edge that leaves it is a tensor of its own, with the edge's ``bytes`` (0 by default).
    If it has them, an edge without ``port`` reads the first. Ops are named by ``str`` of their nodes.

    Raises:
      GraphError: The argument is not a directed graph, has a cycle or a meaningless value; the message names
        the node.
    """
    if not callable(getattr(graph, "is_directed", None)) or not graph.is_directed():
        raise GraphError(f"networkx: give a DiGraph or MultiDiGraph, got {type(graph).__name__}")
    name, unit = str(graph.graph.get("name", "networkx")), graph.graph.get("time_unit", "s")
    builder = GraphBuilder(name, time_unit=unit)
    index = {node: o for o, node in enumerate(graph)}
    # What each node reads, as (op, port), and what it waits for.
    reads: dict[Any, list[tuple[int, int]]] = {node: [] for node in graph}
    waits: dict[Any, list[int]] = {node: [] for node in graph}
    runtimes = [data.get("runtime", 0.0) for _, data in graph.nodes(data=True)]
    outputs: dict[Any, Any] = {node: data.get("outputs") for node, data in graph.nodes(data=True)}
    own: dict[Any, list[Any]] = {node: [] for node, listed in outputs.items() if listed is None}
    for source, target, data in graph.edges(data=True):
        if data.get("control"):
            waits[target].append(index[source])
        elif source in own:
            reads[target].append((index[source], len(own[source])))
            own[source].append({"bytes": data.get("bytes", 0)})
        else:
            reads[target].append((index[source], data.get("port", 0)))
    for node, data in graph.nodes(data=True):
        try:
            tensors = own[node] if node in own else list(outputs[node])
            builder.add_op(
                str(node),
                kind=data.get("kind", ""),
                runtime=data.get("runtime", 0.0),
                outputs=[tensor["bytes"] for tensor in tensors],
                keep=[port for port, tensor in enumerate(tensors) if tensor.get("keep")],
                inputs=reads[node],
                control_inputs=waits[node],
                temp_bytes=data.get("temp_bytes", 0),
                allowed_devices=data.get("allowed_devices"),
                colocation_group=data.get("colocation_group"),
                resident=data.get("resident", False),
            )
        except (AttributeError, LookupError, TypeError) as error:
            raise GraphError(f"networkx: node {node!r} cannot be read: {error!r}") from None
    built = builder.build()
    if built.runtime.ndim == 1 and any(map(is_per_device, runtimes)):
        # The builder reads a list of one runtime as a plain number, but here it means one device.
        return dataclasses.replace(built, runtime=built.runtime[:, None])
    return built
