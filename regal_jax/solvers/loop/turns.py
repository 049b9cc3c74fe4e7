"""How ``method="auto"`` divides the budget of a graph, by what pays there; all of it is decided here."""

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
WORTH_CONTRACTING: Final = 0.8
"""A contraction that leaves a larger share of the ops is not searched."""


@dataclasses.dataclass(frozen=True, eq=False)
class Turn:
    """What came of a search of one graph, which had a share of the budget.

    Attributes:
      stage: Which one of the agenda, from 0 on.
      budget: Evaluations that it had.
      evaluations: That it spent.
      plans: What it found, best first.
      gained: Was that any better than what was known?
      history: The incumbent's objective whenever it improved, as in a plan's provenance, from 0 on.
      status: Why it ended.
      seconds: That it took.
      work: What it made beside its evaluations.
      told: More for the provenance.
      shown: More for its part in there.
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
    """Which stage searches a graph next, and its budget; ``None`` if there is nothing more to do.

    See `regal_jax.solvers.Agenda`.

    Args:
      turns: That the graph has had.
      evaluations: Its budget.
      agenda: The stages.
      settled: Is what is known too close to the bound for a gain (`is_settled`)?
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
        # It cannot begin with so little.
        return (1, left) if tried == 1 else None
    # The first stage can make use of what it could not spend before.
    rest = 0, evaluations - sum(turn.evaluations for turn in turns)
    if sum(turn.stage == last.stage for turn in turns) > 1 or (last.stage and last.status is Status.STALL):
        return None
    if last.stage and last.gained:
        return last.stage, left
    if settled or tried == len(agenda.stages):
        return rest
    return tried, min(left, step_evaluations(evaluations, _PROBE) or left)


def _next_share(turns: Sequence[Turn], left: int, shares: Sequence[float]) -> tuple[int, int] | None:
    """The next stage that its share pays for."""
    for stage in range(1 + turns[-1].stage if turns else 0, len(shares)):
        budget = left if stage == len(shares) - 1 else int(left * shares[stage])
        if budget:
            return stage, budget
    return None


def _first_turn(left: int, agenda: Agenda) -> tuple[int, int] | None:
    if not agenda.stages:
        return None
    # A search in compiled programs spends all that it has, so that others would come to nothing.
    alone = len(agenda.stages) == 1 or isinstance(agenda.stages[0], HostStage)
    return 0, left if alone else max(1, left // len(agenda.stages))


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
