"""Models of the peak memory for CP-SAT: one device, or several with blocking transfers."""

from typing import Any

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.arrays import all_edges
from regal_jax.heuristics.exact_steps import Steps, place, size_units
from regal_jax.plan import Plan

__all__ = ["PeakOnDevices", "PeakOnOne"]


class PeakOnOne:
    """Positions of ops on one device; a tensor occupies memory from its producer to its last reader."""

    resolution = 0.0
    relaxed = False

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        n, model = graph.num_ops, cp.CpModel()
        self.model, self.graph, self.cluster = model, graph, cluster
        self.unit, total = size_units(graph)
        step = [model.new_int_var(0, n - 1, f"step {o}") for o in range(n)]
        self.step = step
        for position, o in enumerate(hint.timeline.op.tolist()):
            model.add_hint(step[o], position)
        model.add_all_different(step)
        for u, v in zip(*(ops.tolist() for ops in all_edges(graph)), strict=True):
            model.add(step[v] > step[u])
        peak = model.new_int_var(0, total, "peak")
        spans, bytes_ = [], []
        for o, temp in enumerate(graph.temp_bytes.tolist()):
            spans.append(model.new_fixed_size_interval_var(step[o], 1, f"temp {o}"))
            bytes_.append(temp // self.unit)
        for t, size in enumerate(graph.tensor_bytes.tolist()):
            made, end = step[int(graph.tensor_op[t])], model.new_int_var(1, n, f"end of {t}")
            begin = 0 if graph.tensor_resident[t] else made
            readers = graph.edge_op[graph.consumer_offset[t] : graph.consumer_offset[t + 1]].tolist()
            model.add(end == n if graph.tensor_keep[t] else end >= made + 1)
            for v in readers:
                model.add(end >= step[v] + 1)
            life = model.new_int_var(1, n, f"life of {t}")
            spans.append(model.new_interval_var(begin, life, end, f"tensor {t}"))
            bytes_.append(size // self.unit)
        model.add_cumulative(spans, bytes_, peak)
        model.minimize(peak)

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [N])``."""
        step = [solver.value(s) for s in self.step]
        return np.zeros(len(step), dtype=np.int64), np.argsort(step).tolist()

    def bound(self, value: float) -> float:
        """The solver's bound in bytes."""
        return value * self.unit


class PeakOnDevices:
    """Placement and one order of all ops and blocking transfers, as in `Steps`."""

    resolution = 0.0
    relaxed = False

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        self.model = cp.CpModel()
        self.at = place(self.model, graph, cluster, hint, alike=True)
        self.steps = Steps(self.model, graph, cluster, self.at)
        self.steps.hint(hint)
        self.scale = 1 / self.steps.unit
        self.peak = self.model.new_int_var(0, self.steps.total, "peak")
        self.steps.limit(self.peak)
        self.model.minimize(self.peak)

    def require_below(self, peak: int) -> None:
        """Only plans with a lower peak, in units of the model, are solutions."""
        self.model.add(self.peak < peak)

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [M])``."""
        placement = np.array([next(k for k, x in row.items() if solver.boolean_value(x)) for row in self.at])
        return placement, self.steps.events(solver)

    def bound(self, value: float) -> float:
        """The solver's bound in bytes."""
        return value * self.steps.unit
