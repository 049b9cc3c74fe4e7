"""The quotient of a graph by sets of ops that become one op each."""

import dataclasses

import numpy as np

from regal_jax.errors import GraphError
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.roots import root_of
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["Quotient", "quotient"]


@dataclasses.dataclass(frozen=True, eq=False)
class Quotient:
    """A graph whose ops are sets of ops of another: ``N'`` sets of ``N`` ops.

    Attributes:
      graph: ``N'`` ops; each has the name and kind of its leader.
      op: ``[N]`` int64: the set that each original op is in, an op of `graph`.
      members: ``[N']`` int64 arrays: the original ops of each set, in an order that respects every edge.
      tensor: ``[T']`` int64: the original tensor of each tensor of `graph`.
    """

    graph: ComputationGraph
    op: np.ndarray
    members: tuple[np.ndarray, ...]
    tensor: np.ndarray


def quotient(graph: ComputationGraph, leader: np.ndarray) -> Quotient:
    """Makes one op of all ops with the same leader.

    A set stands for its members run one after another, in the topological order of ``graph``:

    - its runtime is the sum of theirs, on each device;
    - its outputs are the members' tensors that are kept, resident or read by an op outside; tensors that only
      members read, or no op, are not in the graph;
    - its ``temp_bytes`` make up for those: see `_scratch`;
    - it is resident if its members are;
    - its colocation group ties together every group that a member is in, and it may run where all of them
      may.

    Args:
      graph: The graph.
      leader: ``[N]`` int64: the op that gives its name and kind to the set that each op is in, one of its
        members.

    Raises:
      GraphError: The sets form a cycle, no device may run all members of a set, or only some members of a set
        are resident.
    """
    op, leaders = _number(leader)
    if len(leaders) == graph.num_ops:
        return Quotient(graph, op, tuple(op[:, None]), np.arange(graph.num_tensors))
    order = graph.topological_order
    order = order[np.argsort(op[order], kind="stable")]
    members = np.split(order, np.searchsorted(op[order], np.arange(1, len(leaders))))
    cross = op[graph.edge_producer] != op[graph.edge_op]
    # The output of an unread resident is in memory, too, until its op has run.
    outside = graph.tensor_keep | graph.tensor_resident
    outside[graph.edge_tensor[cross]] = True
    tensor = np.flatnonzero(outside)
    tensor = tensor[np.argsort(op[graph.tensor_op[tensor]], kind="stable")]
    new = np.empty(graph.num_tensors, dtype=np.int64)
    new[tensor] = np.arange(len(tensor))
    edge_tensor, edge_op = _pairs(new[graph.edge_tensor[cross]], op[graph.edge_op[cross]])
    before, after = op[graph.control_source], op[graph.control_target]
    control_source, control_target = _pairs(before[before != after], after[before != after])
    runtime = np.zeros((len(leaders), *graph.runtime.shape[1:]))
    np.add.at(runtime, op, graph.runtime)
    groups, allowed = _constraints(graph, op)
    resident = graph.resident[leaders]
    mixed = resident[op] != graph.resident
    if mixed.any():
        o = int(np.argmax(mixed))
        names = f"{graph.op_names[o]!r} and {graph.op_names[leaders[op[o]]]!r}"
        raise GraphError(
            f"graph {graph.name!r}: ops {names} cannot be merged: one of them is resident, there before "
            "anything runs; leave it by itself"
        )
    merged = ComputationGraph(
        name=graph.name,
        op_names=tuple(graph.op_names[o] for o in leaders),
        op_kinds=tuple(graph.op_kinds[o] for o in leaders),
        runtime=runtime,
        temp_bytes=np.array(_scratch(graph, op, members, outside), dtype=np.int64),
        allowed_devices=allowed,
        colocation_group=groups,
        tensor_op=op[graph.tensor_op[tensor]],
        tensor_bytes=graph.tensor_bytes[tensor],
        tensor_keep=graph.tensor_keep[tensor],
        edge_tensor=edge_tensor,
        edge_op=edge_op,
        control_source=control_source,
        control_target=control_target,
        time_unit=graph.time_unit,
        resident=resident,
    )
    return Quotient(merged, op, tuple(members), tensor)


def _number(leader: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """``[N]`` the set of each op, and the leader of each set, in the order of their first members.

    That keeps the order of the program, where there is one.
    """
    leaders, first, op = np.unique(leader, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    return np.argsort(order, kind="stable")[op], leaders[order].tolist()


def _pairs(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each pair once, sorted."""
    first, second = np.unique(np.stack([a, b], axis=1), axis=0).T
    return first, second


def _scratch(
    graph: ComputationGraph, op: np.ndarray, members: list[np.ndarray], outside: np.ndarray
) -> list[int]:
    """``temp_bytes`` of each set, so that a merged op needs at least the memory of its members.

    The merged op holds its inputs until its end and its outputs from its start. Relative to the memory held
    when the first member starts, the members hold the tensors that they have made and that are still to be
    read, minus the inputs that have certainly been freed: those that are not kept and have no reader outside.
    The scratch memory is the largest such sum over all members, minus all outputs. It is exact unless an
    input with readers outside is freed while the members run; then they need less. The peak of a plan of the
    merged graph therefore bounds that of its expansion.
    """
    size, temp = graph.tensor_bytes.tolist(), graph.temp_bytes.tolist()
    output, (offset, tensor) = graph.output_offset.tolist(), graph.inputs
    bounds, inputs = offset.tolist(), tensor.tolist()
    readers = np.diff(graph.consumer_offset)
    # Tensors that only this set reads and that are not kept: freed when the last member has read them.
    low, high = np.full(graph.num_tensors, len(members)), np.full(graph.num_tensors, -1)
    np.minimum.at(low, graph.edge_tensor, op[graph.edge_op])
    np.maximum.at(high, graph.edge_tensor, op[graph.edge_op])
    leaves = ((low == high) & ~graph.tensor_keep).tolist()
    dead = ((readers == 0) & ~graph.tensor_keep).tolist()
    stays, left = outside.tolist(), readers.tolist()
    scratch: list[int] = []
    for ops in members:
        check_interrupt()
        held = peak = made = 0
        for o in ops.tolist():
            outputs = range(output[o], output[o + 1])
            held += sum(size[t] for t in outputs)
            made += sum(size[t] for t in outputs if stays[t])
            peak = max(peak, held + temp[o])
            held -= sum(size[t] for t in outputs if dead[t])
            for t in inputs[bounds[o] : bounds[o + 1]]:
                left[t] -= 1
                if left[t] == 0 and leaves[t]:
                    held -= size[t]
        scratch.append(max(0, peak - made))
    return scratch


def _constraints(
    graph: ComputationGraph, op: np.ndarray
) -> tuple[tuple[str | None, ...], tuple[tuple[int, ...] | None, ...]]:
    """``[N']`` colocation groups and allowed devices."""
    count = int(op.max()) + 1
    parent = {group: group for group in graph.colocation_group if group is not None}
    groups: list[str | None] = [None] * count
    allowed: list[set[int] | None] = [None] * count
    for o, i in enumerate(op.tolist()):
        group, devices = graph.colocation_group[o], graph.allowed_devices[o]
        if group is not None:
            mine = groups[i]
            if mine is None:
                groups[i] = group
            else:
                parent[root_of(parent, group)] = root_of(parent, mine)
        if devices is not None:
            here = allowed[i]
            allowed[i] = set(devices) if here is None else here & set(devices)
    if any(devices is not None and not devices for devices in allowed):
        raise GraphError(f"graph {graph.name!r}: ops to merge have no allowed device in common")
    return (
        tuple(None if group is None else root_of(parent, group) for group in groups),
        tuple(None if devices is None else tuple(sorted(devices)) for devices in allowed),
    )
