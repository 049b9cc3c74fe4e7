"""Capacities relative to an even split of a graph's memory over the devices."""

import math
from collections.abc import Sequence

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.registry import heuristic_plans
from regal_jax.plan import Objective, lower_bound

__all__ = ["even_split", "one_device_peak", "possible_capacity"]


def one_device_peak(graph: ComputationGraph) -> float:
    """Smallest peak that any heuristic finds on one device, in bytes."""
    plans = heuristic_plans(graph, Cluster.uniform(1), Objective.PEAK_MEMORY)
    return min(plan.objective_value for plan in plans)


def possible_capacity(graph: ComputationGraph, devices: int, wanted: float) -> float:
    """``wanted`` bytes, rounded up, or the lower bound of the peak, below which no plan fits."""
    least = lower_bound(graph, Cluster.uniform(devices), Objective.PEAK_MEMORY)
    return float(math.ceil(max(wanted, least)))


def even_split(
    graph: ComputationGraph, devices: int, share: float, transfer: str, ratio: Sequence[float] = ()
) -> Cluster:
    """Devices with ``share`` times an even split of the graph's memory each.

    Args:
      graph: The graph.
      devices: Number of devices ``D``.
      share: Capacity of each device in units of `one_device_peak` over ``D``; see also `possible_capacity`.
      transfer: Transfer model, as `Cluster.uniform` takes it.
      ratio: ``[D]``, the same memory in sum in this ratio; equal devices without it. The largest device has
        at least the lower bound of the peak.
    """
    wanted = share * one_device_peak(graph) / devices
    if not ratio:
        return Cluster.uniform(devices, possible_capacity(graph, devices, wanted), transfer)
    memory = [float(math.ceil(wanted * devices * part / sum(ratio))) for part in ratio]
    largest = memory.index(max(memory))
    memory[largest] = possible_capacity(graph, devices, memory[largest])
    return Cluster(memory, transfer)
