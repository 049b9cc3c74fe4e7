"""`select`: the best plan on a target."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np

from regal_jax.checks import check_whole, real, shown
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
        """Measurement of the best plan by the proxy over that of `plan`; at least 1.

        It is infinite if only the first is infinite, or only the second is 0.
        """
        first = float(self.measured[0])
        if self.best > 0:
            return first / self.best
        return math.inf if first > 0 else 1.0

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
      ConfigError: There are no plans, a number is not allowed, the target is unknown or returns no number, or
        it can run none of the plans.

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
    tried = tuple(_ordered(plans)[:k])
    if not tried:
        raise ConfigError("plans: there are none; give at least one")
    measured = _measured(target, tried)
    if np.isinf(measured).all():
        raise ConfigError(
            f"target: it can run none of the {len(tried)} plans that were tried, all measurements are "
            "infinite; try more plans with k=, or propose with other settings"
        )
    index = int(measured.argmin())
    return Selection(tried[index], index, tried, measured)


def _ordered(plans: Any) -> Sequence[Plan]:
    """The plans in the order in which they are tried."""
    if isinstance(plans, Proposals):
        return plans.plans
    if not isinstance(plans, Iterable):
        raise ConfigError(f"plans: give the result of propose, or a list of plans, got {_short(plans)}")
    given = list(plans)
    for plan in given:
        if not isinstance(plan, Plan):
            raise ConfigError(f"plans: give plans only, got {_short(plan)} among them")
    return sorted(given, key=lambda plan: plan.sort_key)


def _measured(target: Any, plans: Sequence[Plan]) -> np.ndarray:
    if isinstance(target, type):
        raise ConfigError(f"target: {target.__name__} is a class; give an object of it")
    if isinstance(target, Target) and callable(target.measure):
        values = _listed(target.measure(plans))
        if len(values) != len(plans):
            raise ConfigError(f"target: {len(values)} measurements of {len(plans)} plans; return one each")
    elif callable(target):
        values = []
        for plan in plans:
            check_interrupt()
            values.append(target(plan))
    else:
        raise ConfigError(
            "target: give a function of a plan, or an object with a method measure(plans), got "
            f"{_short(target)}"
        )
    return np.array([_seconds(value, i) for i, value in enumerate(values)], np.float64)


def _listed(values: Any) -> list[Any]:
    """The measurements that a method returned."""
    unordered = isinstance(values, (Mapping, Set, str, bytes)) or not isinstance(values, Iterable)
    if unordered or getattr(values, "ndim", 1) != 1:
        raise ConfigError(
            f"target: the method measure returned {_short(values)}; return a sequence of numbers, one per "
            "plan"
        )
    return list(values)


def _seconds(value: Any, plan: int) -> float:
    # Arrays without axes are numbers, too.
    number = value.item() if getattr(value, "ndim", None) == 0 else value
    found = real(number, 0, infinite=True)
    if found is None:
        raise ConfigError(
            f"target: the function returned {_short(value)} for plan {plan}; return seconds, or infinity"
        )
    return found


def _short(value: Any) -> str:
    """A value in one short line."""
    text = " ".join(shown(value).split())
    return text if len(text) <= 60 else f"{text[:40]}..."
