"""How a portfolio divides the budget of a graph among its stages, by the improvements that they make."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from regal_jax.heuristics import HostSearch, Work
from regal_jax.plan import Plan
from regal_jax.search import Status
from regal_jax.solvers import Agenda, HostStage

__all__ = [
    "RACE",
    "WORTH_CONTRACTING",
    "Turn",
    "improves",
    "is_settled",
    "most_steps",
    "next_turn",
    "pays",
    "step_evaluations",
]

_STEPS: Final = 10
"""Decisions are made after every tenth of the budget, so that many graphs have equal budgets left."""
RACE: Final = 2
"""Steps on the original and on the contracted graph, after which only the better one continues."""
_MOST_CONTRACTED: Final = 7
"""Steps after which a search of the contracted graph ends, to leave time for the original."""
_WINDOW: Final = 3
"""Steps without improvement after which a search leaves the rest to other stages."""
_PROBE: Final = 1
"""Steps of a stage in compiled programs within which it must improve the plan."""
_GAIN: Final = 1e-3
"""Least relative improvement that counts."""
WORTH_CONTRACTING: Final = 0.8
"""A contraction that keeps a larger share of the ops is not searched."""


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """The result of one search of one graph with a share of the budget.

    Attributes:
      stage: Index of the stage in the agenda.
      budget: Evaluations that it could spend.
      evaluations: Evaluations that it spent.
      plans: Plans that it found, best first.
      gained: Whether it improved on the known plans.
      history: The incumbent's objective whenever it improved, as in a plan's provenance; evaluations count
        from the start of this turn.
      status: Why it ended.
      seconds: Wall-clock time.
      work: Schedules and placements that it made in addition to its evaluations.
      told: Further entries of the provenance.
      shown: Further entries of its part of the provenance.
    """

    stage: int
    budget: int
    evaluations: int
    plans: tuple[Plan, ...]
    gained: bool
    history: dict[str, list[Any]]
    status: Status
    seconds: float
    work: Work = dataclasses.field(default_factory=Work)
    told: dict[str, Any] = dataclasses.field(default_factory=dict)
    shown: dict[str, Any] = dataclasses.field(default_factory=dict)


def next_turn(
    turns: Sequence[Turn], evaluations: int, agenda: Agenda, *, settled: bool = False
) -> tuple[int, int] | None:
    """The stage that searches a graph next, and its budget; ``None`` at the end.

    See `regal_jax.solvers.Agenda`.

    Args:
      turns: Turns that the graph has had.
      evaluations: Its budget.
      agenda: The stages.
      settled: Whether the best plan is too close to the bound to improve (`is_settled`).
    """
    left = evaluations - sum(turn.budget for turn in turns)
    last = turns[-1] if turns else None
    if left <= 0 or (last and last.status in (Status.TARGET, Status.TIME, Status.INTERRUPTED)):
        return None
    if agenda.shares is not None:
        return _next_share(turns, left, agenda.shares)
    if last is None:
        return _first_turn(left, agenda)
    if len(agenda.stages) == 1:
        return None
    tried = 1 + max(turn.stage for turn in turns)
    if isinstance(agenda.stages[0], HostStage) and any(not turn.budget for turn in turns if turn.stage == 0):
        # The budget is too small for a start.
        return (1, left) if tried == 1 else None
    # The first stage can use the rest that it could not spend before.
    rest = 0, evaluations - sum(turn.evaluations for turn in turns)
    if sum(turn.stage == last.stage for turn in turns) > 1 or (last.stage and last.status is Status.STALL):
        return None
    if last.stage and last.gained:
        return last.stage, left
    if settled or tried == len(agenda.stages):
        return rest
    return tried, min(left, step_evaluations(evaluations, _PROBE) or left)


def _next_share(turns: Sequence[Turn], left: int, shares: Sequence[float]) -> tuple[int, int] | None:
    """The next stage whose share is enough for a start."""
    for stage in range(1 + turns[-1].stage if turns else 0, len(shares)):
        budget = left if stage == len(shares) - 1 else int(left * shares[stage])
        if budget:
            return stage, budget
    return None


def _first_turn(left: int, agenda: Agenda) -> tuple[int, int] | None:
    if not agenda.stages:
        return None
    # A search in compiled programs spends its whole budget, so nothing would be left for others.
    alone = len(agenda.stages) == 1 or isinstance(agenda.stages[0], HostStage)
    return 0, left if alone else max(1, left // len(agenda.stages))


def is_settled(best: Plan | None) -> bool:
    """Whether the best plan is so close to its lower bound that no other counts as better (`improves`)."""
    return best is not None and best.feasible and best.lower_bound >= best.objective_value * (1 - _GAIN)


def improves(before: Plan | None, after: Plan | None) -> bool:
    """Whether one plan is better than the other by more than the least improvement that counts."""
    if before is None or after is None:
        return after is not None
    if before.feasible and after.feasible:
        return after.objective_value < before.objective_value * (1 - _GAIN)
    return after.sort_key < before.sort_key


def step_evaluations(evaluations: int, step: int) -> int:
    """Evaluations that have been spent when ``step`` of the steps are done."""
    return evaluations * step // _STEPS


def most_steps(*, contracted: bool) -> int:
    """Largest number of steps of a search on the host, on the contracted graph or on the original."""
    return _MOST_CONTRACTED if contracted else _STEPS


def pays(search: HostSearch, evaluations: int) -> bool:
    """Whether the search has improved in its last steps, or has had fewer steps than that."""
    since = search.evaluations - step_evaluations(evaluations, _WINDOW)
    before = [value for done, value in search.history if done <= since]
    if not before:
        return True
    now = search.history[-1][1]
    if now is None:
        return search.history[-1][0] > since
    return before[-1] is None or now < before[-1] * (1 - _GAIN)
