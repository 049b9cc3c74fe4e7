"""The heuristics by the names under which the command line knows them; each makes a `Plan`."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.heuristics.heft import graham_schedule, heft_schedule
from regal_jax.heuristics.list_scheduling import MEMORY_RULES, QUICK_RULES, TIME_RULES, Rule, list_schedule
from regal_jax.heuristics.orders import bfs_order, dfs_order, given_order, lpmf_order, random_order
from regal_jax.heuristics.peaks import PeakBalance, least_peak_balance
from regal_jax.heuristics.placements import partition_placement, single_device_placement
from regal_jax.heuristics.xla import xla_dfs_order, xla_list_order, xla_post_order
from regal_jax.interrupts import check_interrupt, interruptible
from regal_jax.plan import Objective, Plan, insert_transfers

__all__ = ["HEURISTICS", "Heuristic", "best_heuristic", "heuristic_plans", "run_heuristic"]


class Heuristic(Protocol):
    """``seed`` matters to those with a random choice or a graph partition in them."""

    def __call__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        objective: Objective | str = Objective.MAKESPAN,
        *,
        seed: int = 0,
    ) -> Plan: ...


_Draft = tuple[np.ndarray, np.ndarray, dict[str, Any]]
"""Placement ``[N]``, events ``[M]``, and what to say about them in the provenance."""

_SMALL: Final = 5000
"""Up to this many ops a heuristic tries all of its variants."""


def _best(
    name: str,
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str,
    seed: int,
    drafts: Iterable[_Draft],
) -> Plan:
    """The best of ``drafts`` by exact replay, the first on ties."""
    plans = []
    for placement, events, details in drafts:
        check_interrupt()
        provenance = {"method": name, "seed": seed, **details}
        plans.append(
            Plan.from_events(graph, cluster, placement, events, objective=objective, provenance=provenance)
        )
    return min(plans, key=lambda plan: plan.sort_key)


def _with_transfers(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, order: np.ndarray, where: str
) -> Iterable[_Draft]:
    """One draft, or two where transfers are events: sent early, and sent late."""
    late = insert_transfers(graph, cluster, placement, order)
    yield placement, late, {"placement": where, "transfers": "late"}
    if len(late) > graph.num_ops:
        early = insert_transfers(graph, cluster, placement, order, eager=True)
        yield placement, early, {"placement": where, "transfers": "early"}


def _memory_matters(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> bool:
    return objective is Objective.PEAK_MEMORY or bool(min(cluster.memory) < graph.tensor_bytes.sum())


def _placements(
    graph: ComputationGraph, cluster: Cluster, objective: Objective, seed: int
) -> Iterable[tuple[str, np.ndarray]]:
    """Partitions that may serve ``objective``: of equal runtime, of equal bytes, or both."""
    if objective is Objective.MAKESPAN:
        yield "partition", partition_placement(graph, cluster, seed=seed)
    if cluster.num_devices > 1 and _memory_matters(graph, cluster, objective):
        yield "partition by bytes", partition_placement(graph, cluster, by_bytes=True, seed=seed)


def single_device(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """Everything on the fastest device, as far as allowed, in topological order."""
    placement = single_device_placement(graph, cluster)
    drafts = _with_transfers(graph, cluster, placement, graph.topological_order, "single device")
    return _best("single-device", graph, cluster, objective, seed, drafts)


def partition_dfs(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """A graph partition, one part a device, in depth-first topological order (REGAL's "GP + DFS")."""
    order = dfs_order(graph)
    drafts = (
        draft
        for where, placement in _placements(graph, cluster, Objective(objective), seed)
        for draft in _with_transfers(graph, cluster, placement, order, where)
    )
    if cluster.num_devices == 1:
        drafts = _with_transfers(
            graph, cluster, single_device_placement(graph, cluster), order, "single device"
        )
    return _best("partition-dfs", graph, cluster, objective, seed, drafts)


def peak_balance(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """An order of little memory, placed so that all devices have alike peaks in it (`PeakBalance`).

    Where memory matters in the best of a few orders and in the graph's own, from a cut of the order, blocks
    of it, a graph partition and a single device, each improved by single moves. Elsewhere LPMF's order, cut.
    """
    matters = cluster.num_devices > 1 and _memory_matters(graph, cluster, Objective(objective))

    def drafts() -> Iterable[_Draft]:
        starts: dict[str, np.ndarray] = {}
        if matters:
            least, _ = least_peak_balance(graph, cluster, np.arange(graph.num_ops))
            balances = {"least memory": least, "given": PeakBalance(graph, cluster, given_order(graph))}
            starts["partition"] = partition_placement(graph, cluster, by_bytes=True, seed=seed)
            starts["single device"] = single_device_placement(graph, cluster)
        else:
            balances = {"lpmf": PeakBalance(graph, cluster, lpmf_order(graph))}
        for name, balance in balances.items():
            placements = {"cut of the order": balance.cut(), **starts}
            if matters:
                placements = {where: balance.refine(start) for where, start in placements.items()}
                placements["blocks"] = balance.blocks()
            for where, placement in placements.items():
                late = insert_transfers(graph, cluster, placement, balance.order)
                yield placement, late, {"placement": where, "order": name, "transfers": "late"}

    return _best("peak-balance", graph, cluster, objective, seed, drafts())


def _ordered(name: str, order_of: Callable[[ComputationGraph, int], np.ndarray]) -> Heuristic:
    """A heuristic from an order of ops: on a single device, and on a graph partition; the better one."""

    def heuristic(
        graph: ComputationGraph,
        cluster: Cluster,
        objective: Objective | str = Objective.MAKESPAN,
        *,
        seed: int = 0,
    ) -> Plan:
        order = order_of(graph, seed)
        placements = [("single device", single_device_placement(graph, cluster))]
        if cluster.num_devices > 1:
            placements += _placements(graph, cluster, Objective(objective), seed)
        drafts = (
            draft
            for where, placement in placements
            for draft in _with_transfers(graph, cluster, placement, order, where)
        )
        return _best(name, graph, cluster, objective, seed, drafts)

    heuristic.__name__ = name.replace("-", "_")
    heuristic.__doc__ = order_of.__doc__
    return heuristic


def critical_path(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """List scheduling by critical path; the best of a few rules.

    Blocking transfers: op and device are chosen together on the true clocks. Otherwise also HEFT with
    insertion and, where transfers are free, Graham's list scheduling. Rules that watch memory join in when
    the others do not fit, or when memory is the objective.
    """
    name = "critical-path"
    plans: list[Plan] = []

    def add(drafts: Iterable[_Draft]) -> None:
        plans.append(_best(name, graph, cluster, objective, seed, drafts))

    if Objective(objective) is Objective.MAKESPAN:
        add(_time_drafts(graph, cluster))
    if not plans or not plans[0].feasible:
        add(_rule_drafts(graph, cluster, MEMORY_RULES))
    return min(plans, key=lambda plan: plan.sort_key)


def heft(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """HEFT (Topcuoglu, Hariri and Wu 2002), as if transfers held nobody; the replay has them as they are."""
    placement, order = heft_schedule(graph, cluster)
    drafts = _with_transfers(graph, cluster, placement, order, "HEFT")
    return _best("heft", graph, cluster, objective, seed, drafts)


def _rule_drafts(graph: ComputationGraph, cluster: Cluster, rules: Iterable[Rule]) -> Iterable[_Draft]:
    for rule in rules:
        details: dict[str, Any] = {"rule": dataclasses.asdict(rule)}
        placement, events = list_schedule(graph, cluster, rule)
        yield placement, events, {**details, "transfers": "as scheduled"}
        if len(events) > graph.num_ops:
            # The scheduler sends a tensor when its reader is placed; the sender may be busy by then.
            early = insert_transfers(graph, cluster, placement, events[events < graph.num_ops], eager=True)
            yield placement, early, {**details, "transfers": "early"}


def _time_drafts(graph: ComputationGraph, cluster: Cluster) -> Iterable[_Draft]:
    if cluster.transfer is not TransferModel.BLOCKING:
        yield *heft_schedule(graph, cluster), {"rule": "HEFT"}
    if cluster.transfer is TransferModel.FREE:
        yield *graham_schedule(graph, cluster), {"rule": "Graham"}
    rules = TIME_RULES if graph.num_ops <= _SMALL else QUICK_RULES
    # On one device every order takes the same time.
    yield from _rule_drafts(graph, cluster, rules[: 1 if cluster.num_devices == 1 else None])


_XLA: Final = {
    "xla-list": _ordered("xla-list", lambda graph, _: xla_list_order(graph)),
    "xla-dfs": _ordered("xla-dfs", lambda graph, _: xla_dfs_order(graph)),
    "xla-post-order": _ordered("xla-post-order", lambda graph, _: xla_post_order(graph)),
}


def xla_best(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """The best of XLA's three memory orders, as its default scheduler takes."""
    plans = [make(graph, cluster, objective, seed=seed) for make in _XLA.values()]
    return min(plans, key=lambda plan: plan.sort_key)


_HEURISTICS: Final[dict[str, Heuristic]] = {
    "critical-path": critical_path,
    "heft": heft,
    "partition-dfs": partition_dfs,
    **_XLA,
    "xla-best": xla_best,
    "peak-balance": peak_balance,
    "lpmf": _ordered("lpmf", lambda graph, _: lpmf_order(graph)),
    "bfs": _ordered("bfs", lambda graph, _: bfs_order(graph)),
    "random-topological": _ordered("random-topological", random_order),
    "single-device": single_device,
    "given": _ordered("given", lambda graph, _: given_order(graph)),
}

HEURISTICS: Final[dict[str, Heuristic]] = {name: interruptible()(make) for name, make in _HEURISTICS.items()}
"""Name to heuristic, as in ``regal-jax optimize --method NAME``."""


def run_heuristic(
    name: str,
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """Runs the heuristic called ``name``.

    Raises:
      ConfigError: No such heuristic.
      ClusterError: The cluster does not fit the graph.
    """
    if name not in HEURISTICS:
        raise ConfigError(f"method: unknown heuristic {name!r}; use one of {', '.join(HEURISTICS)}")
    return HEURISTICS[name](graph, cluster, objective, seed=seed)


def heuristic_plans(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Iterator[Plan]:
    """The plans of `best_heuristic`, each when it is made."""
    for name, make in HEURISTICS.items():
        # On one device "given" is "single-device".
        if name != "xla-best" and (name != "given" or cluster.num_devices > 1):
            yield make(graph, cluster, objective, seed=seed)


@interruptible()
def best_heuristic(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> list[Plan]:
    """The plans of all heuristics, best first, without repetitions (``xla-best``; on one device ``given``).

    Args:
      graph: The graph.
      cluster: The cluster.
      objective: What to minimise.
      seed: For those that need one.
    """
    return sorted(heuristic_plans(graph, cluster, objective, seed=seed), key=lambda plan: plan.sort_key)
