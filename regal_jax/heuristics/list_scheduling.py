"""List scheduling that chooses the next op and its device together, on simulated clocks."""

import dataclasses
import functools
import math
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.list_state import Layout, State
from regal_jax.heuristics.ranks import shortest_paths, upward_rank
from regal_jax.heuristics.work import note
from regal_jax.plan import makespan_upper_bound, outcome, overflow_of
from regal_jax.runtime.compiling import run_loops

__all__ = [
    "MEMORY_RULES",
    "QUICK_RULES",
    "TIME_RULES",
    "Rule",
    "Schedule",
    "kernel_arguments",
    "layout_of",
    "list_schedule",
    "placement_and_events",
    "prices_of",
    "prohibitive_price",
    "quick_schedule",
]

_STEPS: Final = 2**26
"""Times are rounded to this fraction of the longest path, so that the time unit does not matter."""
_GOALS: Final = ("time", "fit", "peak")


@dataclasses.dataclass(frozen=True)
class Rule:
    """The cost by which `list_schedule` chooses; lower is better.

    Attributes:
      look: Compare this many ready ops, those of highest rank.
      waste: Cost of a unit of device time lost to waiting and transfers.
      behind: Cost of a unit of the device's clock. It favours devices that are behind the others, whose idle
        time may be lost anyway.
      rank: Reward for a unit of the op's rank.
      finish: Count the time at which the op would finish rather than that at which it would start.
      goal: ``"time"`` ignores memory; ``"fit"`` first avoids overflow of the devices' capacities;
        ``"peak"`` first avoids a new peak, then holds as little as it can.
    """

    look: int = 1
    waste: float = 0.0
    behind: float = 0.0
    rank: float = 1.0
    finish: bool = True
    goal: Literal["time", "fit", "peak"] = "time"

    @property
    def numbers(self) -> tuple[int, float, float, float, bool, int]:
        """As `regal_jax.heuristics.list_kernel.schedule` takes them."""
        goal = _GOALS.index(self.goal)
        return self.look, float(self.waste), float(self.behind), float(self.rank), self.finish, goal


# Chosen on random and layered graphs under all transfer models, see docs/ablations/host_searches.md.
TIME_RULES: Final = (
    Rule(),
    Rule(look=32, rank=0.1, waste=0.1, behind=0.3, finish=False),
    Rule(look=32, rank=0.1, waste=0.0, behind=0.1, finish=False),
    Rule(look=32, rank=0.25, waste=0.1, behind=1.0, finish=False),
    Rule(look=32, rank=1.0, waste=0.1, behind=1.0, finish=False),
    Rule(look=32, rank=1.0, behind=0.3),
)
"""Rules for the makespan."""
QUICK_RULES: Final = (
    Rule(),
    Rule(look=8, rank=0.1, waste=0.1, behind=0.3, finish=False),
    Rule(look=8, rank=1.0, waste=0.1, behind=1.0, finish=False),
)
"""Rules for the makespan of large graphs."""
_QUICK_RULE: Final = Rule(look=16, rank=0.1, waste=0.1, behind=0.3, finish=False)
"""The best single rule on training and validation graphs, see docs/ablations/host_searches.md."""
_FITTING_RULE: Final = dataclasses.replace(_QUICK_RULE, goal="fit")
"""The same where a limit of memory binds."""
MEMORY_RULES: Final = (
    Rule(look=32, finish=False, goal="fit"),
    Rule(look=32, goal="peak"),
)
"""Rules for peak memory and for limited memory."""


class Schedule(NamedTuple):
    """Placement and order of the events.

    Attributes:
      placement: ``[N]`` int64.
      order: ``[N]`` int64, the ops; a topological order.
      sent: ``[T, D]`` int64, number of ops before the transfer of the tensor to the device; -1 for none.
    """

    placement: np.ndarray
    order: np.ndarray
    sent: np.ndarray

    @property
    def events(self) -> np.ndarray:
        """``[M]`` int64 event ids, as `regal_jax.plan.replay` takes them."""
        tensor, device = np.nonzero(self.sent >= 0)
        ops, devices = len(self.order), self.sent.shape[1]
        before = np.concatenate([np.arange(ops) + 1, self.sent[tensor, device]])
        # A transfer with ``k`` ops before it comes after the ``k``-th op.
        return np.concatenate([self.order, ops + tensor * devices + device])[
            np.argsort(before, kind="stable")
        ]


def list_schedule(
    graph: ComputationGraph,
    cluster: Cluster,
    rule: Rule,
    price: np.ndarray | None = None,
    rank: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Takes op after op, each on the device where it costs least at that moment.

    In the blocking model the cost of a candidate includes the transfers that it needs, each of which starts
    when both of its devices are idle. A transfer that takes no time is inserted where the clocks of its two
    devices were last equal, if the tensor existed then, so that no device waits for it.

    Args:
      graph: The graph.
      cluster: The cluster.
      rule: The cost.
      price: ``[N, D]``, added to the rule's cost of each op on each device; see `prices_of`.
      rank: ``[N]``, priorities of the ready ops; `regal_jax.heuristics.ranks.upward_rank` by default.

    Returns:
      ``(placement [N], events [M])``, as `regal_jax.plan.replay` takes them.
    """
    # Its import may load Numba, which takes longer than most heuristics.
    from regal_jax.heuristics.list_kernel import schedule

    rank = upward_rank(graph, cluster) if rank is None else rank
    prices = np.zeros(graph.num_ops * cluster.num_devices) if price is None else price.ravel()
    numbers = np.array(rank), np.array(prices), *rule.numbers, math.inf
    # Roughly the time that it takes in Python.
    seconds = 1e-6 * (4 + 2.2 * rule.look) * graph.num_ops * cluster.num_devices
    space = kernel_arguments(graph, cluster)
    done = run_loops(schedule, *space, *numbers, seconds=seconds, copies=False)
    note(schedules=1)
    return placement_and_events(done)


def prohibitive_price(graph: ComputationGraph, cluster: Cluster) -> float:
    """A price above any difference between two choices: an op takes such a device only if it has no other."""
    return 8 * makespan_upper_bound(graph, cluster) or 1.0


def prices_of(graph: ComputationGraph, cluster: Cluster, wanted: np.ndarray) -> np.ndarray:
    """``[N, D]`` prices that send each op to ``wanted`` (``[N, D]`` bool) devices, if it may run there."""
    return np.where(wanted, 0.0, prohibitive_price(graph, cluster))


def quick_schedule(graph: ComputationGraph, cluster: Cluster, numbers: np.ndarray) -> Schedule:
    """The schedule of a single rule: a reference that is fast to compute for thousands of graphs.

    If all ops on the fastest device, in the rule's order, take less time, the schedule is that. If it exceeds
    the memory of a device, the rule is tried again such that it first avoids overflow, and the schedule with
    less overflow is taken. The result depends neither on the time unit nor on the indices of ops.

    Args:
      graph: The graph.
      cluster: The cluster.
      numbers: ``[N]``, a permutation that is a topological order; it decides between ops of equal rank.
    """
    schedule = _quick(graph, cluster, numbers, _QUICK_RULE)
    overflow = _overflow(graph, cluster, schedule)
    if overflow:
        other = _quick(graph, cluster, numbers, _FITTING_RULE)
        schedule = other if _overflow(graph, cluster, other) < overflow else schedule
    return schedule


def _overflow(graph: ComputationGraph, cluster: Cluster, schedule: Schedule) -> float:
    """Bytes beyond the devices' memory, summed over devices."""
    # No device holds a tensor twice, so most graphs need no replay.
    if graph.tensor_bytes.sum(dtype=np.float64) + graph.temp_bytes.max(initial=0) <= min(cluster.memory):
        return 0.0
    return overflow_of(outcome(graph, cluster, schedule.placement, schedule.events)[1], cluster)


def _quick(graph: ComputationGraph, cluster: Cluster, numbers: np.ndarray, rule: Rule) -> Schedule:
    """The schedule of a rule in whole steps of time, or that of a single device."""
    # Its import may load Numba, which takes longer than most heuristics.
    from regal_jax.heuristics.list_kernel import schedule

    n, d = graph.num_ops, cluster.num_devices
    rank = upward_rank(graph, cluster)
    longest = float(rank.max())

    def steps(time: np.ndarray) -> np.ndarray:
        # Sums of whole numbers are exact, so that equal times are equal in every unit.
        return np.floor(time / longest * _STEPS + 0.3) if longest > 0 else np.zeros_like(time)

    layout, state = kernel_arguments(graph, cluster)
    runtime, cost = steps(layout.runtime), steps(layout.cost)
    span = float(runtime[layout.allowed].sum() + d * cost.sum())
    layout = layout._replace(runtime=runtime, cost=cost, position=np.asarray(numbers, np.int64), span=span)
    free = np.zeros(n * d)
    done = run_loops(schedule, layout, state, steps(rank), free, *rule.numbers, math.inf)
    note(schedules=1)
    placement, events = placement_and_events(done)
    computes = events < n
    sent = np.full(graph.num_tensors * d, -1)
    # Where transfers take long, a rule that looks at single ops may do worse than a single device.
    alone = np.where(
        layout.allowed.reshape(n, d).all(axis=0), layout.runtime.reshape(n, d).sum(axis=0), np.inf
    )
    if rule.goal == "time" and alone.min() < max(done.clock):
        placement = np.full(n, alone.argmin())
    else:
        sent[events[~computes] - n] = np.cumsum(computes)[~computes]
    return Schedule(placement, events[computes], sent.reshape(-1, d))


def placement_and_events(state: Any) -> tuple[np.ndarray, np.ndarray]:
    """Placement and events from the final `regal_jax.heuristics.list_state.State`."""
    events = state.counts[0]
    # An inserted transfer comes after the events that were in its slot before.
    order = np.argsort(np.array(state.slot[:events]), kind="stable")
    return np.array(state.place), np.array(state.event[:events])[order]


@once_a_pair
def layout_of(graph: ComputationGraph, cluster: Cluster) -> Any:
    """The input of the loops but for ranks and prices, as writable arrays."""
    runtime, cost, devices = (
        runtime_matrix(graph, cluster), transfer_times(graph, cluster), cluster.num_devices,
    )  # fmt: skip
    allowed = allowed_matrix(graph, cluster)[graph.colocation_leader]
    layout = Layout(
        *graph.inputs,
        np.bincount(graph.successors[1], minlength=graph.num_ops),
        *graph.successors,
        graph.output_offset,
        graph.tensor_op,
        graph.consumer_offset,
        graph.edge_op,
        np.diff(graph.consumer_offset),
        graph.tensor_bytes,
        graph.temp_bytes,
        graph.tensor_keep,
        runtime.ravel(),
        cost.ravel(),
        cluster.link_index.ravel().astype(np.int64),
        len(cluster.links),
        graph.colocation_leader,
        allowed.ravel(),
        np.array(cluster.memory, np.float64),
        np.argsort(graph.topological_order),
        cluster.transfer is TransferModel.BLOCKING,
        graph.resident,
        *shortest_paths(graph, cluster),
        float(runtime[allowed].sum() + devices * cost.sum()),
    )
    return Layout(*(np.array(each) if isinstance(each, np.ndarray) else each for each in layout))


def kernel_arguments(graph: ComputationGraph, cluster: Cluster) -> tuple[Any, Any]:
    """`regal_jax.heuristics.list_state`: ``(Layout, State)``."""
    n, d, t = graph.num_ops, cluster.num_devices, graph.num_tensors
    ids = functools.partial(np.zeros, dtype=np.int64)
    most_events = n + len(graph.edge_op)
    state = State(
        clock=np.zeros(d),
        place=ids(n),
        finish=np.zeros(n),
        copied=ids(t * d),
        made=ids(n),
        meet=ids(d * d),
        left=ids(t),
        held=ids(d),
        most=ids(d),
        lag=np.zeros(d),
        moves=ids(t),
        bound=ids(n),
        waiting=ids(n),
        release=np.zeros(n),
        begins=np.zeros(n * d),
        owed=np.zeros(n * d),
        newest=ids(n * d),
        sender=ids(n * d),
        senders=ids(n * d),
        vague=ids(n * d),
        fixed=np.zeros(n * d),
        base=np.zeros(n),
        pick=ids(2 * n * d),
        lowest=np.zeros(n * d),
        key=np.zeros(n),
        ranked=graph.topological_order.astype(np.int64),
        spot=ids(n),
        words=ids(n // 32 + 1),
        near=ids(n),
        fresh=ids(n),
        event=ids(most_events),
        slot=ids(most_events),
        path=ids(n),
        homes=ids(n),
        changed=ids(n),
        level=np.zeros(4),
        counts=ids(3),
    )
    return layout_of(graph, cluster), state
