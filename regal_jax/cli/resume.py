"""Plans of earlier runs in a folder: ``--out-dir`` never replaces a plan by a worse one.

A folder has the plans of one question. A file that answers another question (another graph, cluster,
objective or choice of pins), or is no plan, is an error before the search and is not overwritten.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Self

from regal_jax.errors import ConfigError, FormatError, PlanError
from regal_jax.runtime.deadline import Deadline

if TYPE_CHECKING:
    from regal_jax.api import Improvement
    from regal_jax.graph import Cluster, ComputationGraph
    from regal_jax.plan import Plan

__all__ = ["Previous", "Question", "SoFar", "previous_results"]


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """The question that a plan of a graph answers.

    Attributes:
      cluster: Cluster on which the graph runs.
      objective: Objective that is minimised.
      pin: Devices for ops, as `optimize` takes them.
      colocate: Patterns whose ops share a device.
    """

    cluster: "Cluster"
    objective: str
    pin: Mapping[str, Sequence[int]]
    colocate: Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Previous:
    """A plan of an earlier run.

    Attributes:
      plan: The plan with the figures of its replay.
      holds: Whether the figures in the file are those of the replay. If not, the file is rewritten.
    """

    plan: "Plan"
    holds: bool

    @property
    def finished(self) -> bool:
        """Whether the search of the plan came to its end."""
        return not _INTERRUPTED.items() <= self.plan.provenance.items()


def previous_results(
    graphs: Sequence["ComputationGraph"], question: Question, paths: Sequence[str]
) -> list[Previous | None]:
    """The plans in the files ``paths`` for the graphs; ``None`` where there is no file.

    Raises:
      ConfigError: A file holds anything else.
    """
    return [
        _previous(graph, question, path) if os.path.exists(path) else None
        for graph, path in zip(graphs, paths, strict=True)
    ]


def _previous(graph: "ComputationGraph", question: Question, path: str) -> Previous:
    from regal_jax.plan import Plan

    def refuse(what: str) -> ConfigError:
        return ConfigError(
            f"--out-dir: {path!r} holds {what}, and is left as it is; name another folder, or move it away"
        )

    try:
        plan = Plan.load(path)
    except FormatError:
        raise refuse("no plan that can be read") from None
    for what, differs in (
        ("graph", plan.graph_hash != graph.content_hash),
        ("cluster", plan.cluster != question.cluster),
        ("objective", plan.objective != question.objective),
        ("choice of pins", _pins(plan.pin, plan.colocate) != _pins(question.pin, question.colocate)),
    ):
        if differs:
            raise refuse(f"a plan for another {what}")
    try:
        plan.verify(graph)
    except PlanError:
        try:
            return Previous(_replayed(plan, graph, question), holds=False)
        except PlanError:
            raise refuse("a plan that is not valid for its graph") from None
    return Previous(plan, holds=True)


def _pins(pin: Mapping[str, Sequence[int]], colocate: Sequence[str]) -> tuple[object, ...]:
    """Pins in a form that compares equal whatever the order of devices and patterns."""
    return {pattern: sorted(set(devices)) for pattern, devices in pin.items()}, sorted(set(colocate))


def _replayed(plan: "Plan", graph: "ComputationGraph", question: Question) -> "Plan":
    """``plan`` with the figures of its replay."""
    from regal_jax.api.pinned import Pinned
    from regal_jax.plan import adapt_plan

    pinned = Pinned([graph], [question.cluster], question.pin, question.colocate)
    restricted = pinned.restrict([plan])[0]
    return pinned.release(0, adapt_plan(restricted, pinned.graphs[0], question.cluster))


_INTERRUPTED: Final = {"stopped": "interrupted"}
"""What the provenance of a plan says whose search did not come to its end."""
_SHARE: Final = 0.05
"""Largest share of the time that is spent on saving plans during a search."""


class SoFar:
    """Saves the best plans so far during a search, so that a killed run keeps them.

    A file that was there before is replaced only by a better plan for the same question, and else not before
    the end of the search. Where a refusal ends the context, such as that of a setting by a method, a new file
    that has no more than the plan of a heuristic is removed.

    Args:
      outs: The file of each graph's plan, or ``None``, and the plan of an earlier run in it.
    """

    def __init__(self, outs: Sequence[tuple[str | None, Previous | None]]) -> None:
        self._outs = outs
        self._during = [
            (path if path and (previous or not os.path.lexists(path)) else None, previous)
            for path, previous in outs
        ]
        self._pause = Deadline(0.0)
        self._begun: set[str] = set()
        """New files with the plan of a heuristic."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, (ValueError, ImportError)):
            for path in self._begun:
                with contextlib.suppress(OSError):
                    os.unlink(path)

    @property
    def callback(self) -> "Callable[[int, Improvement], None] | None":
        """`see`; ``None`` if no file is written during the search, which then makes no plans for it."""
        return self.see if any(path for path, _ in self._during) else None

    def see(self, member: int, improvement: "Improvement") -> None:
        """Saves an improvement of a graph, unless one has just been saved."""
        path, previous = self._during[member]
        if not self._pause.over or (previous and previous.plan.sort_key <= improvement.plan.sort_key):
            return
        clock = Deadline()
        # The next command has to know that this is not the end of the search.
        said = {**improvement.plan.provenance, "evaluations": improvement.evaluations, **_INTERRUPTED}
        # The end of the search reports what cannot be written.
        with contextlib.suppress(FormatError, OSError):
            _save_better(dataclasses.replace(improvement.plan, provenance=said), path, None)
        if path and previous is None and not improvement.evaluations:
            self._begun.add(path)
        elif path:
            self._begun.discard(path)
        self._pause = Deadline(clock.spent / _SHARE)

    def save(self, member: int, plan: "Plan") -> tuple["Plan", str]:
        """Saves the plan of a graph at the end of its search; returns as `_save_better` does."""
        path, previous = self._outs[member]
        self._begun.discard(path or "")
        return _save_better(plan, path, previous)


def _save_better(plan: "Plan", path: str | None, previous: Previous | None) -> tuple["Plan", str]:
    """Saves ``plan`` unless ``path`` holds one as good; returns the better plan and a line of report."""
    if path is None:
        return plan, ""
    # Of equal plans, that of a finished search replaces that of an interrupted one.
    kept = previous is not None and (previous.plan.sort_key, not previous.finished) <= (plan.sort_key, False)
    if previous is not None and kept:
        plan = previous.plan
    if previous is None or not (kept and previous.holds):
        plan.save(path)
        return plan, f"plan saved to {path}"
    return plan, f"kept the plan in {path}: nothing better was found"
