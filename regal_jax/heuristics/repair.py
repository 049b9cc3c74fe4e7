"""Partitions whose peaks are equal, and moves of ops, or peak search, until they fit the memory."""

import math
import sys
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, transfer_times
from regal_jax.heuristics.insertion import Insertion, Schedule
from regal_jax.heuristics.list_scheduling import kernel_arguments
from regal_jax.heuristics.list_search_config import ListSearchConfig
from regal_jax.heuristics.orders import dfs_order, given_order
from regal_jax.heuristics.peaks import PeakBalance
from regal_jax.heuristics.placements import partition_placement
from regal_jax.heuristics.schedule_peaks import make_room
from regal_jax.heuristics.time_left import time_is_over
from regal_jax.heuristics.work import note
from regal_jax.heuristics.xla import xla_post_order
from regal_jax.plan import insert_transfers, outcome, overflow_of, why_impossible
from regal_jax.runtime.compiling import for_loops, usable
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["Partition", "fitting_partitions"]

_ORDERS: Final = {"dfs": dfs_order, "post-order": xla_post_order, "given": given_order}
_ROUNDS: Final = 5
"""Graph partitions of each order, each with shares that follow from the peaks of the one before."""
_STEP: Final = 0.7
"""Exponent of the ratio of the mean peak to that of a device, by which its share is multiplied."""
_POLICY: Final = "by-hand"
"""No trained weights, since the searches that a trained policy is compared with begin here, too."""
_BEST: Final = 2
"""Number of partitions that are repaired."""
_INSERTIONS: Final = 1000
"""Insertions after which a repair is given up."""
_AT_ONCE: Final = 8
"""Moves with the same weight of the excess."""
_WEIGHT: Final = 0.05
"""The first weight: an excess of a device's whole memory costs this share of the makespan."""
_GROWTH: Final = 1.5
"""The next weights grow by this factor."""
_PLACEMENTS: Final = 6000
"""Largest number of placements of the peak search."""
_OPS_PLACED: Final = 12_000_000
"""Largest number of ops in all of these placements: of a large graph there are fewer."""
_ANY_PEAK: Final = sys.float_info.max
"""Goal of a search that ends at the first placement that fits."""


class Partition(NamedTuple):
    """A schedule of a partition.

    Attributes:
      placement: ``[N]``, the device of each op.
      events: ``[M]``, the events in their order.
      makespan: Its makespan.
      excess: By how many bytes it exceeds the memory.
      details: What it was made from, for the provenance of a plan.
    """

    placement: np.ndarray
    events: np.ndarray
    makespan: float
    excess: float
    details: dict[str, str]


def fitting_partitions(graph: ComputationGraph, cluster: Cluster, seed: int) -> Iterator[Partition]:
    """The best partitions that fit the memory, or that do once some ops have changed their device.

    If there are none, the result of a short peak search, which may not fit either.

    Short schedules that fit little memory often have few transfers: each device has a part of an order, or of
    the graph. Parts of equal bytes do not have equal peaks. So orders are cut where peaks are equal, and the
    graph is partitioned a few times with shares that make them more equal. The best of these schedules are
    repaired by insertion moves.

    Args:
      graph: The graph.
      cluster: A cluster with several devices, whose memory is limited.
      seed: Of the graph partitions and the moves.
    """
    least = _least_memory(cluster)
    every = sorted(_partitions(graph, cluster, seed), key=lambda one: one.makespan * (1 + one.excess / least))
    found = False
    for number, partition in enumerate(every[:_BEST]):
        if partition.excess > 0:
            partition = _repaired(graph, cluster, partition, (seed, number))
        if partition.excess == 0:
            found = True
            yield partition
    if not found and usable() and not why_impossible(graph, cluster):
        yield from _searched(graph, cluster, seed)


def _least_memory(cluster: Cluster) -> float:
    """The smallest capacity, at least one byte."""
    return max(1.0, min(cluster.memory))


def _partitions(graph: ComputationGraph, cluster: Cluster, seed: int) -> Iterator[Partition]:
    for name, order_of in _ORDERS.items():
        check_interrupt()
        if time_is_over():
            return
        balance = PeakBalance(graph, cluster, order_of(graph))
        for where, placement in (
            ("cut of the order", balance.cut()),
            ("partition by peaks", _by_peaks(graph, cluster, balance, seed)),
        ):
            for transfers in ("late", "early"):
                events = insert_transfers(
                    graph, cluster, placement, balance.order, eager=transfers == "early"
                )
                makespan, peaks = outcome(graph, cluster, placement, events)
                details = {"placement": where, "order": name, "transfers": transfers}
                yield Partition(placement, events, makespan, overflow_of(peaks, cluster), details)


def _by_peaks(graph: ComputationGraph, cluster: Cluster, balance: PeakBalance, seed: int) -> np.ndarray:
    """``[N]``: of a few graph partitions the one with the lowest peak."""
    share = np.ones(cluster.num_devices)
    best, least = np.zeros(0, np.int64), (math.inf, math.inf)
    for _ in range(_ROUNDS):
        placement = partition_placement(graph, cluster, by_bytes=True, seed=seed, share=tuple(share.tolist()))
        peaks = balance.peaks(placement)
        value = overflow_of(peaks, cluster), float(peaks.max())
        if value < least:
            best, least = placement, value
        counted = peaks + balance.penalty(peaks)
        share = share * (counted.mean() / np.maximum(counted, 1)) ** _STEP
        share /= share.sum()
    return best


def _searched(graph: ComputationGraph, cluster: Cluster, seed: int) -> Iterator[Partition]:
    """The placement, order and transfers of a peak search, which ends when they fit."""
    # Its import may load Numba, which takes longer than most heuristics.
    from regal_jax.heuristics.peak_search import PeakSearchRun

    search = PeakSearchRun(graph, cluster, seed)
    search.run(min(_PLACEMENTS, _OPS_PLACED // graph.num_ops), time_is_over, _ANY_PEAK)
    note(placements=search.evaluations)
    plan = search.plan()
    if plan is not None:
        details = {"placement": "peak search", "transfers": plan.provenance["transfers"]}
        excess = overflow_of(plan.peak_memory, cluster)
        yield Partition(plan.placement, plan.event_ids(graph), plan.makespan, excess, details)


def _repaired(
    graph: ComputationGraph, cluster: Cluster, partition: Partition, seed: tuple[int, ...]
) -> Partition:
    """The partition after insertion moves, which end when it fits."""
    if not usable() or not transfer_times(graph, cluster).any():
        return partition
    given, state = kernel_arguments(graph, cluster)
    layout, room = for_loops(given), for_loops(make_room(given, state))
    config, random = ListSearchConfig(insertion_policy=_POLICY), np.random.default_rng(seed)
    ops = config.most_ops(graph.num_ops)
    moves = Insertion(graph, layout, room, random, config.chosen_policy, ops=ops)
    moves.begin(Schedule(partition.placement, partition.events, partition.makespan))
    weight, used = _WEIGHT * partition.makespan / _least_memory(cluster), 0
    while used < _INSERTIONS and not time_is_over():
        check_interrupt()
        count, _ = moves.run(_AT_ONCE, _INSERTIONS - used, -math.inf, weight=weight)
        weight, used = _GROWTH * weight, used + count
        if moves.best is not None:
            details = {**partition.details, "transfers": "moved"}
            partition = Partition(*moves.best, 0.0, details)
            break
    note(schedules=used)
    return partition
