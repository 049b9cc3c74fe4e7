"""`compare`: a comparison of several methods on one graph."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax

from regal_jax.api.names import MethodName, ObjectiveName
from regal_jax.api.optimize import optimize
from regal_jax.errors import ConfigError, InfeasiblePlanWarning
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.constraints import plain_constraints
from regal_jax.graph.html import html_table
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import interrupt_at_end
from regal_jax.solvers import Solver, solver
from regal_jax.solvers.loop.earlier import earlier_plans

__all__ = ["Comparison", "compare"]

_DEFAULT: Final[tuple[MethodName, ...]] = ("single-device", "partition-dfs", "critical-path", "brkga", "auto")
_SEARCHES: Final = ("warm_start", "policy", "runs")
"""Arguments that `optimize` refuses for other methods than searches."""
_HEAD: Final = ("method", "makespan", "peak memory", "above the bound", "transfers", "evaluations", "seconds")


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """Plans of one graph on one cluster by several methods, shown as a table.

    Attributes:
      plans: Method -> plan, in the given order.
      seconds: Method -> seconds, including compilation.
    """

    plans: dict[str, Plan]
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        """The method with the best plan; plans that fit the memory precede others."""
        return min(self.plans, key=lambda method: self.plans[method].sort_key)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per method: ``method``, ``makespan`` in the graph's unit, ``peak_memory`` (bytes, the
        largest), ``overflow`` (bytes, summed over devices), ``above_bound`` (a share of the objective's lower
        bound; ``None`` if that is 0), ``transfers``, ``evaluations``, ``schedules`` and
        ``placements`` (made beside these, by heuristics, features and starts), ``seconds``."""
        return [
            {
                "method": method,
                "makespan": plan.makespan,
                "peak_memory": int(plan.peak_memory.max()),
                "overflow": float(plan.overflow.sum()),
                "above_bound": plan.gap,
                "transfers": plan.num_transfers,
                "evaluations": plan.provenance.get("evaluations", 0),
                **plan.provenance.get("work", {"schedules": 0, "placements": 0}),
                "seconds": self.seconds[method],
            }
            for method, plan in self.plans.items()
        ]

    def _texts(self) -> list[tuple[str, ...]]:
        unit = next(iter(self.plans.values())).time_unit
        return [
            (
                f"{row['method']}{' (best)' if row['method'] == self.best else ''}",
                format_time(row["makespan"], unit),
                format_bytes(row["peak_memory"])
                + (f", OVERFLOW by {format_bytes(row['overflow'])}" if row["overflow"] else ""),
                "" if row["above_bound"] is None else f"{100 * row['above_bound']:.1f} %",
                f"{row['transfers']:,}",
                f"{row['evaluations']:,}",
                f"{row['seconds']:.2f}",
            )
            for row in self.rows
        ]

    def _title(self) -> str:
        plan = next(iter(self.plans.values()))
        return f"{plan.objective} of {plan.graph_name!r} on {plan.cluster}"

    def __repr__(self) -> str:
        table = [_HEAD, *self._texts()]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table)
        return "\n".join([self._title(), *(f"  {line}" for line in lines)])

    def _repr_html_(self) -> str:
        return html_table(self._title(), _HEAD, self._texts())


def compare(
    graph: ComputationGraph,
    cluster: Cluster,
    methods: Sequence[MethodName | Solver] | Mapping[str, MethodName | Solver] = _DEFAULT,
    *,
    objective: Objective | ObjectiveName = Objective.MAKESPAN,
    evaluations: int | None = None,
    seed: int | jax.Array = 0,
    **options: Any,
) -> Comparison:
    """Runs `regal_jax.optimize` with each method; every search has the same budget.

    Plans that do not fit the memory are marked in the table; there is no warning.

    Args:
      graph: The graph.
      cluster: Cluster on which the graph runs.
      methods: Values of ``method`` of `optimize`, or a table with names of your own to compare settings of a
        solver: ``{"small": Brkga(population=50), "large": Brkga(population=200)}``.
      objective: As in `optimize`.
      evaluations: Budget of each search, as in `optimize`; heuristics spend none.
      seed: As in `optimize`.
      **options: Further arguments of `optimize`; ``warm_start``, ``policy`` and ``runs`` are for searches
        alone.

    Raises:
      ConfigError: There is no method, a method is named twice, or an argument is invalid.
      ClusterError: The cluster cannot run the graph.
      KeyboardInterrupt: Ctrl-C was pressed.

    Examples:
      >>> from regal_jax import Cluster, compare
      >>> from regal_jax.datasets import generate
      >>> graph, cluster = generate("layered", 12, seed=0), Cluster.uniform(2, transfer="free")
      >>> comparison = compare(graph, cluster, ["single-device", "critical-path"])
      >>> comparison.best, [row["method"] for row in comparison.rows]
      ('critical-path', ['single-device', 'critical-path'])
    """
    if isinstance(methods, str) or not isinstance(methods, (Sequence, Mapping)) or not methods:
        raise ConfigError(f"methods: give a list of at least one method, got {methods!r}")
    made = list(map(solver, methods.values() if isinstance(methods, Mapping) else methods))
    names = list(methods) if isinstance(methods, Mapping) else [one.name for one in made]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ConfigError(f"methods: {twice!r} occurs twice; name it once, or give a table of your own names")
    pin, colocate = plain_constraints(options.pop("pin", None), options.pop("colocate", ()))
    # Read once: every method gets them, and an iterator has them once.
    if earlier := earlier_plans(options.get("warm_start", True)):
        options["warm_start"] = earlier
    plans: dict[str, Plan] = {}
    seconds: dict[str, float] = {}
    for name, method in zip(names, made, strict=True):
        clock = Deadline()
        given = {k: v for k, v in options.items() if method.searches or k not in _SEARCHES}
        with interrupt_at_end(), warnings.catch_warnings():
            warnings.simplefilter("ignore", InfeasiblePlanWarning)
            plans[name] = optimize(
                graph,
                cluster,
                objective=objective,
                evaluations=evaluations,
                seed=seed,
                method=method,
                pin=pin,
                colocate=colocate,
                **given,
            )
        seconds[name] = clock.spent
    return Comparison(plans, seconds)
