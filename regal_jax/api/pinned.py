"""Graphs with the pins of a call, and conversion of their plans to the original graphs."""

import dataclasses
from collections.abc import Callable, Sequence

from regal_jax.graph import Cluster, Colocate, ComputationGraph, Pin, constrain
from regal_jax.graph.constraints import plain_constraints
from regal_jax.plan import Plan
from regal_jax.solvers.loop.watch import Improvement

__all__ = ["Pinned"]


class Pinned:
    """Graphs that `constrain` makes, whose plans are also valid for the original graphs.

    Args:
      originals: The original graphs.
      clusters: One cluster per graph.
      pin: As in `constrain`.
      colocate: As in `constrain`.

    Attributes:
      graphs: The restricted graphs, which are searched.

    Raises:
      ConfigError: An error of `constrain`.
    """

    def __init__(
        self,
        originals: Sequence[ComputationGraph],
        clusters: Sequence[Cluster],
        pin: Pin | None,
        colocate: Colocate,
    ) -> None:
        self._originals = originals
        self._pin, self._colocate = plain_constraints(pin, colocate)
        self.graphs = [
            constrain(graph, self._pin, self._colocate, devices=cluster.num_devices)
            for graph, cluster in zip(originals, clusters, strict=True)
        ]

    def restrict(self, plans: Sequence[Plan]) -> list[Plan]:
        """Plans of the original graphs as plans of `graphs`; `adapt_plan` moves ops to allowed devices."""
        searched = {
            original.content_hash: graph.content_hash
            for original, graph in zip(self._originals, self.graphs, strict=True)
        }
        return [
            dataclasses.replace(plan, graph_hash=searched.get(plan.graph_hash, plan.graph_hash))
            for plan in plans
        ]

    def release(self, member: int, plan: Plan) -> Plan:
        """The plan of ``graphs[member]`` as a plan of the original graph that obeys the pins."""
        original = self._originals[member]
        if original is self.graphs[member]:
            return plan
        return dataclasses.replace(
            plan, graph_hash=original.content_hash, pin=self._pin, colocate=self._colocate
        )

    def releasing(
        self, on_plan: Callable[[int, Plan], object] | None
    ) -> Callable[[int, Plan], object] | None:
        """``on_plan`` for plans of `graphs`."""
        return on_plan and (lambda member, plan: on_plan(member, self.release(member, plan)))

    def releasing_improvements(
        self, on_improvement: Callable[[int, Improvement], object] | None
    ) -> Callable[[int, Improvement], object] | None:
        """``on_improvement`` for plans of `graphs`."""

        if on_improvement is None:
            return None

        def tell(member: int, improvement: Improvement) -> None:
            plan = self.release(member, improvement.plan)
            on_improvement(member, dataclasses.replace(improvement, plan=plan))

        return tell
