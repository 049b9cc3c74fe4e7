"""`contract`: a smaller graph in place of a large one, and conversion of plans between the two."""

import dataclasses
from collections.abc import Collection
from typing import Final

import numpy as np

from regal_jax.checks import check_kind, check_number, check_whole, shown, whole
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.merging import ANCHOR_KINDS, merge_labels
from regal_jax.graph.quotient import quotient
from regal_jax.plan.bounds import Objective
from regal_jax.plan.decode import decode_order, decode_placement
from regal_jax.plan.plan import Plan, without_proof
from regal_jax.plan.verify import check_graph
from regal_jax.runtime.interrupts import interruptible

__all__ = ["MAX_SHARE", "Contraction", "contract", "contract_for"]

MAX_SHARE: Final = 0.03
"""Largest share of all work in the light ops of a set."""


@dataclasses.dataclass(frozen=True, eq=False)
class Contraction:
    """A graph, and the smaller graph in which sets of its ops are merged into one op each.

    Attributes:
      original: The graph, of ``N`` ops.
      graph: ``N'`` ops, the contracted graph; each has the name and kind of its heavy member, or of
        the one that runs longest.
      op: ``[N]`` int64: the op of `graph` that contains each original op.
      members: ``[N']`` int64 arrays: the original ops of each op of `graph`, in the order in which they run.
      tensor: ``[T']`` int64: the original tensor of each tensor of `graph`.
    """

    original: ComputationGraph
    graph: ComputationGraph
    op: np.ndarray
    members: tuple[np.ndarray, ...]
    tensor: np.ndarray

    @interruptible()
    def expand(self, plan: Plan) -> Plan:
        """The plan of `original` in which the members of each op run one after another on its device.

        Every transfer of ``plan`` is a transfer of the same tensor between the same devices, in the
        same place of the order, and the result is replayed exactly on `original`.

        It is never worse than ``plan`` in any of the three transfer models. *Time*: event by event, no clock
        of a device, no finish and no arrival is later. A member starts when the member before it, its inputs
        and its control predecessors have finished. The merged op waits for the inputs and predecessors of all
        members, and takes the sum of their runtimes. A transfer takes the same time, and holds or waits for
        the same devices. (Sums of floats are rounded differently, so the makespan may differ in the last
        bits.) *Memory*: between merged ops each device holds exactly the same. A tensor that is kept or read
        outside its merged op is a tensor of `graph` too; any other is freed by the time the last member has
        run. While a merged op runs, its ``temp_bytes`` cover the most that its members hold
        (`regal_jax.graph.quotient`). No peak is therefore higher, and no overflow is larger.

        Args:
          plan: A plan of `graph`, on any cluster.

        Returns:
          The plan of `original`; ``provenance["contraction"]`` describes the contracted graph. ``plan``
          itself if nothing was merged. A proof for the contracted graph is none for `original`, and is left
          out.

        Raises:
          ConfigError: ``plan`` is no plan.
          PlanError: ``plan`` is of another graph.
        """
        check_kind("plan", plan, Plan)
        small, n = self.graph, self.original.num_ops
        if plan.graph_hash != small.content_hash:
            raise PlanError(
                f"the plan is for graph {plan.graph_name!r} ({plan.graph_hash[:12]}), not for the contracted "
                f"{small.name!r} ({small.content_hash[:12]}); expand it with the contraction it was made with"
            )
        if small is self.original:
            return plan
        line, d = plan.timeline, plan.cluster.num_devices
        index = np.array([small.op_index[name] for name in plan.op_names], dtype=np.int64)
        placement = np.empty_like(plan.placement)
        placement[index] = plan.placement
        events: list[int] = []
        for op, port, device in zip(index[line.op], line.port.tolist(), line.device.tolist(), strict=True):
            if port < 0:
                events += self.members[op].tolist()
            else:
                events.append(n + int(self.tensor[small.output_offset[op] + port]) * d + device)
        said = {"ops": small.num_ops, "of": n, "objective_value": plan.objective_value}
        return Plan.from_events(
            self.original,
            plan.cluster,
            placement[self.op],
            events,
            objective=plan.objective,
            provenance={**without_proof(plan.provenance), "contraction": said},
        )

    def project(self, plan: Plan) -> Plan:
        """The plan of `graph` that is most like ``plan`` of `original`; the inverse of `expand`.

        An op runs on the device where its members, with those of its colocation group, spend most time. It
        takes the place of its last member in the order, as far as edges allow. Projecting a plan that
        `expand` returned gives back the plan that was expanded.

        Args:
          plan: A plan of `original`, on any cluster.

        Raises:
          ConfigError: ``plan`` is no plan.
          PlanError: ``plan`` is of another graph.
        """
        check_graph(plan, self.original)
        small, cluster, line = self.graph, plan.cluster, plan.timeline
        if small is self.original:
            return plan
        index = np.array([self.original.op_index[name] for name in plan.op_names], dtype=np.int64)
        took = (line.finish - line.start) + (line.makespan or 1.0) * 1e-9
        place = np.zeros((small.num_ops, cluster.num_devices))
        ran = line.port < 0
        member = index[line.op]
        np.add.at(place, (small.colocation_leader[self.op[member[ran]]], line.device[ran]), took[ran])
        placement = decode_placement(small, cluster, place)
        # Priorities fall along the order; an op that was not merged keeps its own.
        falling = -np.arange(line.num_events, dtype=np.float64)
        priority = np.full(small.num_ops, np.inf)
        np.minimum.at(priority, self.op[member[ran]], falling[ran])
        new = np.full(self.original.num_tensors, -1)
        new[self.tensor] = np.arange(small.num_tensors)
        # A new transfer has the priority of the first reader of its tensor.
        urgent = np.full(small.num_tensors, -np.inf)
        np.maximum.at(urgent, small.edge_tensor, priority[small.edge_op] + 0.5)
        transfer = np.repeat(urgent[:, None], cluster.num_devices, axis=1)
        moved = new[self.original.output_offset[member[~ran]] + line.port[~ran]]
        transfer[moved[moved >= 0], line.device[~ran][moved >= 0]] = falling[~ran][moved >= 0]
        events = decode_order(small, cluster, placement, priority, transfer)
        return Plan.from_events(
            small,
            cluster,
            placement,
            events,
            objective=plan.objective,
            provenance=without_proof(plan.provenance),
        )

    def __str__(self) -> str:
        return f"{self.original.num_ops:,} ops contracted to {self.graph.num_ops:,}"


@interruptible()
def contract(
    graph: ComputationGraph,
    *,
    max_share: float = MAX_SHARE,
    max_members: int | None = None,
    devices: int = 2,
    anchors: Collection[str] = ANCHOR_KINDS,
    spare_memory: bool = False,
) -> Contraction:
    """Merges ops that a compiler would fuse: chains and trees of light ops with at most one heavy op.

    An op is *heavy* if its kind is one of ``anchors`` or it has more than ``max_share`` of all work. Two
    sets of ops ``u``, ``v`` (``v`` reads a tensor of ``u``) become one where a rule applies:

    1. ``v`` is the only successor of ``u``, over data and control edges. If, with unlimited devices, all
       other predecessors of ``v`` could finish before ``u`` begins, the merge delays nothing. Otherwise it
       delays ``u``. Then ``u`` must be light, and the path through both must be no longer than the longest
       path, or than an even share of all work for each of ``devices``.
    2. ``u`` is the only predecessor of ``v``, ``v`` is light, and ``v`` makes no more bytes than are freed
       when it has run. Such an op can run at once, and running it at once saves memory.
    3. Both are resident (parameters, inputs), on the same device in every plan, with a reader in common: they
       are in memory together from the beginning. A resident is merged with nothing else.

    **No cycle**: a cycle through the merged set needs a second path from ``u`` to ``v``. It would begin with
    another successor of ``u``, which rule 1 excludes, or end with another predecessor of ``v``, which rule 2
    excludes. Two sources (rule 3) have no path between them. So every step leaves a DAG.

    A set has at most one heavy op, and light ops of at most ``max_share`` of all work, so that ops that can
    run in parallel mostly stay apart. Two sets must be allowed on the same devices. Two colocation groups
    become one only if one of them has no heavy op and the light ops of both have at most ``max_share`` of all
    work.

    An expanded plan is never worse than the contracted one, see `Contraction.expand`. Merging only removes
    choices: members run one after another on one device.

    Args:
      graph: The graph.
      max_share: Largest share of all work in the light ops of a set; an op with a larger share is heavy.
      max_members: Largest number of ops in a set; no limit by default.
      devices: Number of devices that plans will use; with few, less parallelism has to be preserved.
      anchors: Kinds of heavy ops, whatever their runtime; case, ``aten.`` and ``.default`` are ignored.
      spare_memory: Merge by rule 1 only if delaying ``u`` keeps no more bytes than it saves, or if ``v`` can
        run at once as in rule 2. Fewer ops are merged, and peaks are closer to those of the original.

    Returns:
      The contraction; its ``graph`` is ``graph`` itself if nothing was merged.

    Raises:
      ConfigError: An argument is out of range.

    Examples:
      >>> from regal_jax import contract
      >>> from regal_jax.datasets import generate
      >>> made = contract(generate("chain", 5, seed=0), max_share=1.0)
      >>> print(made)
      5 ops contracted to 1
    """
    check_kind("graph", graph, ComputationGraph)
    share = check_number("max_share", max_share, 0, 1)
    if max_members is not None and whole(max_members, 1) is None:
        raise ConfigError(
            f"max_members: must be a whole number of at least 1, or None, got {shown(max_members)}"
        )
    count = check_whole("devices", devices, 1)
    if (
        isinstance(anchors, str)
        or not isinstance(anchors, Collection)
        or not all(isinstance(kind, str) for kind in anchors)
    ):
        raise ConfigError(f"anchors: give a collection of kinds of ops, got {anchors!r}")
    leader = merge_labels(
        graph,
        max_share=share,
        max_members=whole(max_members),
        devices=count,
        anchors=anchors,
        spare_memory=spare_memory,
    )
    made = quotient(graph, leader)
    small = graph if made.graph.num_ops == graph.num_ops else made.graph
    return Contraction(graph, small, made.op, made.members, made.tensor)


def contract_for(
    graph: ComputationGraph, cluster: Cluster, objective: Objective | str, *, max_share: float = MAX_SHARE
) -> Contraction:
    """`contract` for a search of plans on ``cluster``, with ``spare_memory`` if memory matters.

    Memory matters if it is the objective, or if no device could run the whole graph in topological order
    within its capacity. Larger capacities never bind.

    Raises:
      ConfigError: As `contract`, or the cluster is none, or there is no such objective.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    counts = Objective(objective) is Objective.PEAK_MEMORY or min(cluster.memory) < _alone(graph)
    return contract(graph, devices=cluster.num_devices, spare_memory=counts, max_share=max_share)


def _alone(graph: ComputationGraph) -> int:
    """Peak memory in bytes of a device that runs all ops in topological order."""
    n = graph.num_ops
    position = np.empty(n, dtype=np.int64)
    position[graph.topological_order] = np.arange(n)
    begin = np.where(graph.tensor_resident, 0, position[graph.tensor_op])
    end = position[graph.tensor_op]
    np.maximum.at(end, graph.edge_tensor, position[graph.edge_op])
    end[graph.tensor_keep] = n - 1
    change = np.zeros(n + 1, dtype=np.int64)
    np.add.at(change, begin, graph.tensor_bytes)
    np.subtract.at(change, end + 1, graph.tensor_bytes)
    return int((np.cumsum(change)[:n] + graph.temp_bytes[graph.topological_order]).max())
