"""`select`: the best plan on a target."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from regal_jax.checks import check_whole, is_number
from regal_jax.errors import ConfigError
from regal_jax.graph.html import html_rows
from regal_jax.plan import Plan
from regal_jax.robust.propose import Proposals
from regal_jax.robust.targets import Target, make_target
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["Selection", "select"]


@dataclasses.dataclass(frozen=True, eq=False)
class Selection:
    """The plans that were tried on a target, and their measurements.

    Attributes:
      plan: The plan with the smallest measurement; the first of equal ones.
      index: Index of `plan` in `tried`.
      tried: ``[K]`` plans in the order in which they were tried; the first is the best by the proxy.
      measured: ``[K]`` float64, measurements of `tried`.
    """

    plan: Plan
    index: int
    tried: tuple[Plan, ...]
    measured: np.ndarray

    @property
    def best(self) -> float:
        """The smallest measurement."""
        return float(self.measured[self.index])

    @property
    def gain(self) -> float:
        """Measurement of the best plan by the proxy over that of `plan`; at least 1."""
        first = float(self.measured[0])
        return first / self.best if self.best > 0 else 1.0

    def _figures(self) -> list[tuple[str, str]]:
        return [
            ("tried", f"{len(self.tried)}"),
            ("best", f"{self.best:.6g}, number {self.index}"),
            ("best by the proxy", f"{self.measured[0]:.6g}"),
            ("gain", f"{self.gain:.3f}"),
        ]

    def __repr__(self) -> str:
        return (
            f"<Plan {self.index} of {len(self.tried)}: {self.best:.6g} on the target, gain {self.gain:.3f}>"
        )

    def _repr_html_(self) -> str:
        return html_rows(f"plan of {self.plan.graph_name!r} by a target", self._figures())


@interruptible()
def select(
    plans: Proposals | Sequence[Plan],
    target: Target | Callable[[Plan], float] | str,
    k: int | None = None,
) -> Selection:
    """Tries the first ``k`` plans on ``target``, and returns the best of them.

    Args:
      plans: The result of `regal_jax.propose`, whose plans are tried in its order; or any plans, which are
        tried in the order of their objective by the proxy.
      target: Measures plans; smaller is better. It is a function ``target(plan) -> seconds``; an object
        with a method ``measure(plans) -> [K] seconds``; or, for plans of `propose`, ``"noisy"``,
        ``"bandwidth"`` or ``"latency"`` of `regal_jax.robust.make_target`. Infinity means that a plan
        cannot be run.
      k: Number of plans to try; all by default.

    Raises:
      ConfigError: There are no plans, a number is not allowed, or the target is unknown or returns no number.

    Examples:
      >>> from regal_jax import Cluster, propose, select
      >>> from regal_jax.datasets import generate
      >>> graph = generate("gflownet-layered", 20, seed=0)
      >>> plans = propose(graph, Cluster.uniform(4, transfer="free"), count=20, source="list-scheduling")
      >>> fewest = select(plans, lambda plan: plan.num_transfers)
      >>> fewest.plan.num_transfers == min(plan.num_transfers for plan in plans)
      True
    """
    if isinstance(target, str):
        if not isinstance(plans, Proposals):
            raise ConfigError(
                f"target: the name {target!r} needs the plans of propose; give a function of a plan, or "
                "regal_jax.robust.make_target(name, graph, cluster)"
            )
        target = make_target(target, plans.graph, plans.candidates.cluster)
    k = None if k is None else check_whole("k", k, 1)
    order = list(plans) if isinstance(plans, Proposals) else sorted(plans, key=lambda plan: plan.sort_key)
    tried = tuple(order[:k])
    if not tried:
        raise ConfigError("plans: there are none; give at least one")
    measured = _measured(target, tried)
    index = int(measured.argmin())
    return Selection(tried[index], index, tried, measured)


def _measured(target: Target | Callable[[Plan], float], plans: Sequence[Plan]) -> np.ndarray:
    if isinstance(target, Target):
        values = list(target.measure(plans))
        if len(values) != len(plans):
            raise ConfigError(f"target: {len(values)} measurements of {len(plans)} plans; return one each")
    else:
        values = []
        for plan in plans:
            check_interrupt()
            values.append(target(plan))
    for i, value in enumerate(values):
        if not is_number(value) or math.isnan(value) or value < 0:
            raise ConfigError(
                f"target: the function returned {value!r} for plan {i}; return seconds, or infinity"
            )
    return np.array(values, np.float64)
