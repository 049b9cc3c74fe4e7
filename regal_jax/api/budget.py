"""How ``method="auto"`` divides the budget of a graph, by what pays there; all of it is decided here."""

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any, Final

from regal_jax.heuristics import HostSearch
from regal_jax.plan import Plan
from regal_jax.search import AnnealingConfig, BrkgaConfig, Status
from regal_jax.solve import Part

__all__ = [
    "RACE",
    "WORTH_CONTRACTING",
    "Turn",
    "Who",
    "accelerator_parts",
    "improves",
    "is_settled",
    "most_steps",
    "next_turn",
    "pays",
    "step_evaluations",
]

_STEPS: Final = 10
"""Decisions are made after every tenth of the budget, so that few graphs have different budgets left."""
RACE: Final = 2
"""Steps of each graph, contracted or not, after which the one with the better plan goes on."""
_MOST_CONTRACTED: Final = 7
"""Steps after which a search of the contracted graph ends: the original has its turn, too."""
_WINDOW: Final = 3
"""Steps without a gain after which a search gives the rest away."""
_PROBE: Final = 1
"""Steps of the accelerator, after which it has to have gained."""
_GAIN: Final = 1e-3
"""Relative improvement that counts as one."""
_BRKGA_SHARE: Final = 0.8
WORTH_CONTRACTING: Final = 0.8
"""A contraction that leaves a larger share of the ops is not searched."""


class Who(enum.StrEnum):
    """Who searches."""

    HOST = "host"
    ACCELERATOR = "accelerator"


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """What came of a search of one graph, which had a share of the budget.

    Attributes:
      who: Where it ran.
      budget: Evaluations that it had.
      evaluations: That it spent.
      plans: What it found, best first.
      gained: Was that any better than what was known?
      history: The incumbent's objective whenever it improved, as in a plan's provenance, from 0 on.
      status: Why it ended.
      seconds: That it took.
      told: More for the provenance.
      shown: More for its part in there.
    """

    who: Who
    budget: int
    evaluations: int
    plans: tuple[Plan, ...]
    gained: bool
    history: dict[str, list[Any]]
    status: Status
    seconds: float
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    shown: dict[str, Any] = dataclasses.field(default_factory=dict)


def next_turn(
    turns: Sequence[Turn], evaluations: int, who: Sequence[Who], *, settled: bool = False
) -> tuple[Who, int] | None:
    """Who searches a graph next, and its budget; ``None`` if there is nothing more to do.

    The host begins, and goes on for as long as that pays. Then the accelerator tries, unless nothing that it
    finds could count as a gain; whether it has gained decides which of the two has the rest.

    Args:
      turns: That the graph has had.
      evaluations: Its budget.
      who: The places where the method has a search, the host first.
      settled: Is what is known too close to the bound for a gain (`is_settled`)?
    """
    left = evaluations - sum(turn.budget for turn in turns)
    if not turns:
        return (who[0], left) if who else None
    last = turns[-1]
    if left <= 0 or last.status in (Status.TARGET, Status.TIME, Status.INTERRUPTED) or len(who) == 1:
        return None
    if any(turn.who is Who.HOST and not turn.budget for turn in turns):
        # It cannot begin with so little.
        return Who.ACCELERATOR, left
    # The host can make use of what it could not spend before.
    rest = Who.HOST, evaluations - sum(turn.evaluations for turn in turns)
    if last.who is Who.HOST:
        # A second turn of the host ends with the budget, or where the caller wants it to end.
        if len(turns) > 1:
            return None
        probe = min(left, step_evaluations(evaluations, _PROBE) or left)
        return rest if settled else (Who.ACCELERATOR, probe)
    if last.status is Status.STALL or len(turns) > 2:
        return None
    return (Who.ACCELERATOR, left) if last.gained else rest


def is_settled(best: Plan | None) -> bool:
    """Is the best plan known so close to its lower bound that no other could be a gain (`improves`)?"""
    return best is not None and best.feasible and best.lower_bound >= best.objective_value * (1 - _GAIN)


def improves(before: Plan | None, after: Plan | None) -> bool:
    """Is one plan better than the other by what counts?"""
    if before is None or after is None:
        return after is not None
    if before.feasible and after.feasible:
        return after.objective_value < before.objective_value * (1 - _GAIN)
    return after.sort_key < before.sort_key


def step_evaluations(evaluations: int, step: int) -> int:
    """Evaluations that have been spent when ``step`` of the steps are done."""
    return evaluations * step // _STEPS


def most_steps(*, contracted: bool) -> int:
    """Of the search on the host, of the contracted graph or then of the original."""
    return _MOST_CONTRACTED if contracted else _STEPS


def pays(search: HostSearch, evaluations: int) -> bool:
    """Has the search gained anything in its last steps, or has it not had so many?"""
    since = search.evaluations - step_evaluations(evaluations, _WINDOW)
    before = [value for done, value in search.history if done <= since]
    if not before:
        return True
    now = search.history[-1][1]
    if now is None:
        return search.history[-1][0] > since
    return before[-1] is None or now < before[-1] * (1 - _GAIN)


def accelerator_parts(config: BrkgaConfig, *, alone: bool) -> tuple[Part, ...]:
    """What shares a turn on the accelerator: BRKGA, which a policy guides.

    ``alone``, without a search on the host before it (one device, or no compiled loops), also annealing of
    the best, as the last part. After a search on the host annealing gained nothing in any of 24 turns
    (development cases of `regal_jax.evaluation`), where BRKGA gained in four.
    """
    return (Part(_BRKGA_SHARE, config), Part(1.0, AnnealingConfig())) if alone else (Part(1.0, config),)
