"""The heuristics by their names on the command line; each makes a `Plan`."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import numpy as np

from regal_jax.checks import check_kind, check_whole, known_name
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.heuristics.heft import graham_schedule, heft_schedule
from regal_jax.heuristics.list_scheduling import (
    MEMORY_RULES,
    QUICK_RULES,
    TIME_RULES,
    Rule,
    list_schedule,
    prices_of,
)
from regal_jax.heuristics.numbering import neutral_numbers
from regal_jax.heuristics.orders import bfs_order, dfs_order, given_order, lpmf_order, random_order
from regal_jax.heuristics.peaks import PeakBalance, least_peak_balance
from regal_jax.heuristics.placements import device_subsets, partition_placement, single_device_placement
from regal_jax.heuristics.repair import fitting_partitions
from regal_jax.heuristics.time_left import time_is_over
from regal_jax.heuristics.xla import xla_dfs_order, xla_list_order, xla_post_order
from regal_jax.plan import BestDraft, Objective, Plan, insert_transfers
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["HEURISTICS", "XLA_ORDERS", "Heuristic", "best_heuristic", "heuristic_plans", "run_heuristic"]


class Heuristic(Protocol):
    """A function that makes a plan; ``seed`` matters if it has a random choice or a graph partition."""

    def __call__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        objective: Objective | str = Objective.MAKESPAN,
        *,
        seed: int = 0,
    ) -> Plan: ...


_Draft = tuple[np.ndarray, np.ndarray, dict[str, Any]]
"""Placement ``[N]``, events ``[M]``, and entries of the provenance."""

_SMALL: Final = 5000
"""Largest number of ops for which a heuristic tries all of its variants."""
_SINGLE: Final = "single device"
"""Name of a placement."""
_PARTITION_RULES: Final = 2
"""Number of rules that are tried on each partition."""


def _best(
    name: str,
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str,
    seed: int,
    drafts: Iterable[_Draft],
    for_memory: Iterable[_Draft] = (),
) -> Plan:
    """The best of ``drafts`` by exact replay, the first on ties.

    Drafts ``for_memory`` are made only if memory is the objective, or if no other draft fits.
    """
    best = BestDraft(graph, cluster, objective)
    for some in (drafts, for_memory):
        if best.feasible and Objective(objective) is Objective.MAKESPAN:
            break
        for placement, events, details in some:
            check_interrupt()
            best.offer(placement, events, {"method": name, "seed": seed, **details})
            if time_is_over():
                break
    return best.plan()


def _with_transfers(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, order: np.ndarray, where: str
) -> Iterable[_Draft]:
    """One draft, or two if transfers are events: early and late transfers."""
    late = insert_transfers(graph, cluster, placement, order)
    yield placement, late, {"placement": where, "transfers": "late"}
    if len(late) > graph.num_ops:
        early = insert_transfers(graph, cluster, placement, order, eager=True)
        yield placement, early, {"placement": where, "transfers": "early"}


def _partitions(
    graph: ComputationGraph, cluster: Cluster, objective: Objective, seed: int, *, for_memory: bool
) -> Iterator[tuple[str, np.ndarray]]:
    """Partitions for ``objective``: equal bytes for memory, equal runtime for the makespan."""
    if for_memory and cluster.num_devices > 1:
        yield "partition by bytes", partition_placement(graph, cluster, by_bytes=True, seed=seed)
    if not for_memory and objective is Objective.MAKESPAN:
        yield "partition", partition_placement(graph, cluster, seed=seed)


def single_device(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """All ops on the fastest device, as far as allowed, in topological order."""
    placement = single_device_placement(graph, cluster)
    drafts = _with_transfers(graph, cluster, placement, graph.topological_order, _SINGLE)
    return _best("single-device", graph, cluster, objective, seed, drafts)


def partition_dfs(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """A graph partition, one part per device, in depth-first topological order (REGAL's "GP + DFS")."""
    order = dfs_order(graph)
    if cluster.num_devices == 1:
        placement = single_device_placement(graph, cluster)
        drafts = _with_transfers(graph, cluster, placement, order, _SINGLE)
        return _best("partition-dfs", graph, cluster, objective, seed, drafts)
    drafts, for_memory = (
        _on_partitions(graph, cluster, objective, seed, order, for_memory=late) for late in (False, True)
    )
    return _best("partition-dfs", graph, cluster, objective, seed, drafts, for_memory)


def _on_partitions(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str,
    seed: int,
    order: np.ndarray,
    *,
    for_memory: bool,
) -> Iterator[_Draft]:
    for where, placement in _partitions(graph, cluster, Objective(objective), seed, for_memory=for_memory):
        yield from _with_transfers(graph, cluster, placement, order, where)


def peak_balance(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """An order of low peak memory, placed so that the peaks of all devices are balanced (`PeakBalance`).

    The first draft is a cut of the LPMF order. If memory is the objective, or if that draft does not fit,
    more are made for the best of a few orders and for the graph's own. They start from a cut of the order,
    blocks of it, a graph partition and a single device, and are improved by single moves.
    """

    def draft(balance: PeakBalance, placement: np.ndarray, where: str, order: str) -> _Draft:
        late = insert_transfers(graph, cluster, placement, balance.order)
        return placement, late, {"placement": where, "order": order, "transfers": "late"}

    def cut() -> Iterator[_Draft]:
        balance = PeakBalance(graph, cluster, lpmf_order(graph))
        yield draft(balance, balance.cut(), "cut of the order", "lpmf")

    def refined() -> Iterator[_Draft]:
        least, _ = least_peak_balance(graph, cluster, neutral_numbers(graph, cluster))
        starts = {
            "partition": partition_placement(graph, cluster, by_bytes=True, seed=seed),
            _SINGLE: single_device_placement(graph, cluster),
        }
        balances = {"least memory": least, "given": PeakBalance(graph, cluster, given_order(graph))}
        for order, balance in balances.items():
            for where, start in {"cut of the order": balance.cut(), **starts}.items():
                yield draft(balance, balance.refine(start), where, order)
            yield draft(balance, balance.blocks(), "blocks", order)

    # On one device only the order matters.
    first = cut() if cluster.num_devices == 1 or Objective(objective) is Objective.MAKESPAN else ()
    second = refined() if cluster.num_devices > 1 else ()
    return _best("peak-balance", graph, cluster, objective, seed, first, second)


def repaired_partition(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """Partitions with equal peaks, and moves of ops until they fit; a single device if it has the memory.

    Repairs are for the makespan where transfers take time. Where no partition fits, a short peak search
    follows. Both need Numba.
    """
    placement = single_device_placement(graph, cluster)
    drafts = _with_transfers(graph, cluster, placement, graph.topological_order, _SINGLE)
    fitting: Iterable[_Draft] = ()
    if cluster.num_devices > 1 and Objective(objective) is Objective.MAKESPAN:
        found = fitting_partitions(graph, cluster, seed)
        fitting = ((one.placement, one.events, one.details) for one in found)
    return _best("repaired-partition", graph, cluster, objective, seed, drafts, fitting)


def _ordered(name: str, order_of: Callable[[ComputationGraph, int], np.ndarray]) -> Heuristic:
    """The heuristic of an order of ops: the better of a single device and a graph partition."""

    def heuristic(
        graph: ComputationGraph,
        cluster: Cluster,
        objective: Objective | str = Objective.MAKESPAN,
        *,
        seed: int = 0,
    ) -> Plan:
        order, single = order_of(graph, seed), single_device_placement(graph, cluster)
        drafts = _with_transfers(graph, cluster, single, order, _SINGLE)
        if cluster.num_devices == 1:
            return _best(name, graph, cluster, objective, seed, drafts)
        more, for_memory = (
            _on_partitions(graph, cluster, objective, seed, order, for_memory=late) for late in (False, True)
        )
        return _best(name, graph, cluster, objective, seed, itertools.chain(drafts, more), for_memory)

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

    Op and device are chosen together on simulated clocks. Unless transfers block, it also tries HEFT with
    insertion and, if transfers are free, Graham's list scheduling. Rules that consider memory are tried if
    memory is the objective or if no other draft fits.
    """
    drafts = _time_drafts(graph, cluster) if Objective(objective) is Objective.MAKESPAN else ()
    for_memory = _rule_drafts(graph, cluster, MEMORY_RULES)
    return _best("critical-path", graph, cluster, objective, seed, drafts, for_memory)


def partition_list(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """List scheduling on graph partitions, for 2, 4, 8, ... and all of the devices; the best of a few rules.

    Where transfers take long, list scheduling by itself rarely leaves the first device, and the orders that
    other heuristics use with partitions make devices wait for each other.
    """
    rules = TIME_RULES if graph.num_ops <= _SMALL else QUICK_RULES

    def drafts(*, for_memory: bool) -> Iterator[_Draft]:
        for devices in device_subsets(graph, cluster) or [np.arange(1)]:
            here = np.zeros((graph.num_ops, cluster.num_devices), bool)
            here[:, devices] = True
            wanted = {"list schedule": here} if not for_memory else {}
            for by_bytes in (False, True):
                part = partition_placement(graph, cluster, by_bytes=by_bytes, seed=seed, devices=devices)
                wanted["partition by bytes" if by_bytes else "partition"] = _one_hot(part, here.shape[1])
            for where, places in wanted.items():
                price = prices_of(graph, cluster, places)
                for rule in MEMORY_RULES[:1] if for_memory else rules[:_PARTITION_RULES]:
                    placement, events = list_schedule(graph, cluster, rule, price)
                    details = {"placement": where, "devices": len(devices), "transfers": "as scheduled"}
                    yield placement, events, {**details, "rule": dataclasses.asdict(rule)}

    first = drafts(for_memory=False)
    return _best("partition-list", graph, cluster, objective, seed, first, drafts(for_memory=True))


def _one_hot(placement: np.ndarray, devices: int) -> np.ndarray:
    return placement[:, None] == np.arange(devices)


def heft(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Plan:
    """HEFT (Topcuoglu, Hariri and Wu 2002). It ignores that transfers block; the replay does not."""
    placement, order = heft_schedule(graph, cluster)
    drafts = _with_transfers(graph, cluster, placement, order, "HEFT")
    return _best("heft", graph, cluster, objective, seed, drafts)


def _rule_drafts(graph: ComputationGraph, cluster: Cluster, rules: Iterable[Rule]) -> Iterable[_Draft]:
    for rule in rules:
        details: dict[str, Any] = {"rule": dataclasses.asdict(rule)}
        placement, events = list_schedule(graph, cluster, rule)
        yield placement, events, {**details, "transfers": "as scheduled"}
        if len(events) > graph.num_ops:
            # The scheduler sends a tensor when its reader is placed, at which time the sender may be busy.
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
    "partition-list": partition_list,
    **_XLA,
    "xla-best": xla_best,
    "peak-balance": peak_balance,
    "lpmf": _ordered("lpmf", lambda graph, _: lpmf_order(graph)),
    "bfs": _ordered("bfs", lambda graph, _: bfs_order(graph)),
    "random-topological": _ordered("random-topological", random_order),
    "single-device": single_device,
    "repaired-partition": repaired_partition,
    "given": _ordered("given", lambda graph, _: given_order(graph)),
}

HEURISTICS: Final[dict[str, Heuristic]] = {name: interruptible()(make) for name, make in _HEURISTICS.items()}
"""Name to heuristic, as in ``regal-jax optimize --method NAME``."""

XLA_ORDERS: Final = tuple(_XLA)
"""Names of the three orders of which ``xla-best`` takes the best."""


@interruptible()
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
      ConfigError: There is no such heuristic.
      ClusterError: The cluster does not fit the graph.

    Examples:
      >>> from regal_jax import Cluster
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.heuristics import run_heuristic
      >>> run_heuristic("critical-path", generate("chain", 3, seed=0), Cluster.uniform(2)).makespan
      156.0
    """
    found = HEURISTICS.get(known_name(name, HEURISTICS)) if isinstance(name, str) else None
    if found is None:
        raise ConfigError(f"method: unknown heuristic {name!r}; use one of {', '.join(HEURISTICS)}")
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    return found(graph, cluster, objective, seed=check_whole("seed", seed, 0))


def heuristic_plans(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> Iterator[Plan]:
    """Yields the plans of `best_heuristic` as they are made; on one device those of XLA's orders first."""
    first = XLA_ORDERS if cluster.num_devices == 1 else ()
    for name in (*first, *(name for name in HEURISTICS if name not in first)):
        make = HEURISTICS[name]
        # On one device "given" is "single-device".
        if name != "xla-best" and (name != "given" or cluster.num_devices > 1):
            plan = make(graph, cluster, objective, seed=seed)
            # Where a single device has the memory, "repaired-partition" is "single-device", too.
            if name != "repaired-partition" or plan.provenance["placement"] != _SINGLE:
                yield plan


@interruptible()
def best_heuristic(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    seed: int = 0,
) -> list[Plan]:
    """The plans of all heuristics, best first, without those that equal another one's.

    These are ``xla-best``, on one device ``given``, and ``repaired-partition`` where that is a single device.

    Args:
      graph: The graph.
      cluster: The cluster.
      objective: The quantity by which plans are ranked; plans that exceed the memory come last.
      seed: Seed of heuristics with random choices.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    check_whole("seed", seed, 0)
    return sorted(heuristic_plans(graph, cluster, objective, seed=seed), key=lambda plan: plan.sort_key)
