"""What a folder of results holds from before: ``--out-dir`` never loses a better plan.

A folder has the plans of one question. A file that answers another one (another graph, cluster or
objective), or is no plan, is refused before the search: neither overwritten nor silently left.
"""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regal_jax.errors import ConfigError, FormatError, PlanError

if TYPE_CHECKING:
    from regal_jax.graph import Cluster, ComputationGraph
    from regal_jax.plan import Plan

__all__ = ["Previous", "previous_results", "save_better"]


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
    graphs: Sequence["ComputationGraph"], cluster: "Cluster", objective: str, paths: Sequence[str]
) -> list[Previous | None]:
    """What the files of ``paths`` hold for the graphs; ``None`` where there is no file.

    Raises:
      ConfigError: A file that holds anything else.
    """
    return [
        _previous(graph, cluster, objective, path) if os.path.exists(path) else None
        for graph, path in zip(graphs, paths, strict=True)
    ]


def _previous(graph: "ComputationGraph", cluster: "Cluster", objective: str, path: str) -> Previous:
    from regal_jax.plan import Plan, adapt_plan

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
        ("cluster", plan.cluster != cluster),
        ("objective", plan.objective != objective),
    ):
        if differs:
            raise refuse(f"a plan for another {what}")
    try:
        plan.verify(graph)
    except PlanError:
        try:
            return Previous(adapt_plan(plan, graph, cluster), holds=False)
        except PlanError:
            raise refuse("a plan that does not hold") from None
    return Previous(plan, holds=True)


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
