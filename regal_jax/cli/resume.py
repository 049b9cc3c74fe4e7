"""What a folder of results holds from before: ``--out-dir`` never loses a better plan.

A folder has the plans of one question. A file that answers another one (another graph, cluster, objective
or choice of pins), or is no plan, is refused before the search: neither overwritten nor silently left.
"""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from regal_jax.errors import ConfigError, FormatError, PlanError

if TYPE_CHECKING:
    from regal_jax.graph import Cluster, ComputationGraph
    from regal_jax.plan import Plan

__all__ = ["Previous", "Question", "previous_results", "save_better"]


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """What a plan of a graph is to answer.

    Attributes:
      cluster: What it is to run on.
      objective: What it is to minimise.
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
      plan: As it is replayed now.
      holds: Are the figures in the file those of the replay? Otherwise the file is written anew.
    """

    plan: "Plan"
    holds: bool


def previous_results(
    graphs: Sequence["ComputationGraph"], question: Question, paths: Sequence[str]
) -> list[Previous | None]:
    """What the files of ``paths`` hold for the graphs; ``None`` where there is no file.

    Raises:
      ConfigError: A file that holds anything else.
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
    except (FormatError, OSError):
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
            raise refuse("a plan that does not hold") from None
    return Previous(plan, holds=True)


def _pins(pin: Mapping[str, Sequence[int]], colocate: Sequence[str]) -> tuple[object, ...]:
    """To be compared: the order of devices and of patterns does not matter."""
    return {pattern: sorted(set(devices)) for pattern, devices in pin.items()}, sorted(set(colocate))


def _replayed(plan: "Plan", graph: "ComputationGraph", question: Question) -> "Plan":
    """``plan`` with the figures that it has."""
    from regal_jax.api.pinned import Pinned
    from regal_jax.plan import adapt_plan

    pinned = Pinned([graph], [question.cluster], question.pin, question.colocate)
    restricted = pinned.restrict([plan])[0]
    return pinned.release(0, adapt_plan(restricted, pinned.graphs[0], question.cluster))


def save_better(plan: "Plan", path: str | None, previous: Previous | None) -> tuple["Plan", str]:
    """Saves ``plan``, unless ``path`` holds one that is as good; the better one, and what was done."""
    if path is None:
        return plan, ""
    kept = previous is not None and previous.plan.sort_key <= plan.sort_key
    if previous is not None and kept:
        plan = previous.plan
    if previous is None or not (kept and previous.holds):
        plan.save(path)
        return plan, f"plan saved to {path}"
    return plan, f"kept the plan in {path}: nothing better was found"
