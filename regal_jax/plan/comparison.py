"""`PlanComparison`: two plans of the same ops side by side."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from regal_jax.errors import PlanError
from regal_jax.graph.html import html_table
from regal_jax.graph.units import TIME_UNITS, format_bytes, format_time

if TYPE_CHECKING:
    from regal_jax.plan.plan import Plan

__all__ = ["PlanComparison", "compare_plans"]

_SHOWN = 5


@dataclasses.dataclass(frozen=True, eq=False)
class PlanComparison:
    """The differences between two plans.

    Attributes:
      first: The first plan.
      second: The second plan.
      moved: Op name to its devices in the first and in the second, for ops whose device differs.
    """

    first: "Plan"
    second: "Plan"
    moved: dict[str, tuple[int, int]]

    @property
    def speed_up(self) -> float:
        """Makespan of the first over that of the second; above 1 the second is faster."""
        a, b = self.first, self.second
        # The time units may differ, for instance after the graph was traced again.
        return _seconds(a) / _seconds(b) if b.makespan else (1.0 if not a.makespan else float("inf"))

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Rows of a table: quantity, its value in the first and the second plan, and the difference."""
        a, b = self.first, self.second
        peaks = float(a.peak_memory.max()), float(b.peak_memory.max())
        over = float(a.overflow.sum()), float(b.overflow.sum())
        rows = [
            _row("makespan", _seconds(a), _seconds(b), lambda value: format_time(value, "s")),
            _row("peak memory", *peaks, format_bytes),
            _row("transfers", a.num_transfers, b.num_transfers, lambda value: f"{value:,.0f}"),
            _row("moved", a.transfer_bytes, b.transfer_bytes, format_bytes),
        ]
        if any(over):
            rows.append(_row("overflow", *over, format_bytes))
        count = len(a.op_names)
        said = ", ".join(f"{op} {i} to {j}" for op, (i, j) in list(self.moved.items())[:_SHOWN])
        more = f", and {len(self.moved) - _SHOWN:,} more" if len(self.moved) > _SHOWN else ""
        return [*rows, ("other device", f"{len(self.moved):,} of {count:,} ops", "", said + more)]

    def __repr__(self) -> str:
        title = f"two plans for {self.first.graph_name!r}: the first, the second, the difference"
        widths = [max(len(row[i]) for row in self.rows) for i in range(3)]
        lines = ("  ".join(c.ljust(w) for c, w in zip(row, [*widths, 0], strict=True)) for row in self.rows)
        return "\n".join([title, *(f"  {line}".rstrip() for line in lines)])

    def _repr_html_(self) -> str:
        head = ("", "first", "second", "difference")
        return html_table(f"two plans for {self.first.graph_name!r}", head, self.rows)


def compare_plans(first: "Plan", second: "Plan") -> PlanComparison:
    """See `Plan.compare`."""
    before = dict(zip(first.op_names, first.placement.tolist(), strict=True))
    after = dict(zip(second.op_names, second.placement.tolist(), strict=True))
    if before.keys() != after.keys():
        raise PlanError(
            f"the plans for {first.graph_name!r} and {second.graph_name!r} place different ops; "
            "compare plans of the same graph"
        )
    moved = {name: (k, after[name]) for name, k in before.items() if after[name] != k}
    return PlanComparison(first, second, moved)


def _seconds(plan: "Plan") -> float:
    return plan.makespan * TIME_UNITS[plan.time_unit]


def _row(label: str, a: float, b: float, show: Callable[[float], str]) -> tuple[str, str, str, str]:
    if a == b:
        difference = "the same"
    elif a:
        difference = f"{100 * (b / a - 1):+.1f} %"
    else:
        difference = f"+{show(b)}"
    return label, show(a), show(b), difference
