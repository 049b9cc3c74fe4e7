"""A plan as a few readable lines."""

from typing import TYPE_CHECKING, Any

import numpy as np

from regal_jax.checks import counted
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.plan.bounds import Objective
from regal_jax.plan.limits import meets_bound

if TYPE_CHECKING:
    from regal_jax.plan.plan import Plan

__all__ = ["figures", "headline", "shortage", "summary", "title"]

_MOST_DEVICES = 8


def summary(plan: "Plan") -> str:
    """The plan's figures, aligned, in human units."""
    return "\n".join([title(plan), *(f"  {label:<12} {text}" for label, text in figures(plan))])


def title(plan: "Plan") -> str:
    """The graph and cluster of the plan in one line."""
    ops = counted(len(plan.op_names), "op")
    return f"plan for {plan.graph_name!r}: {ops} on {counted(plan.cluster.num_devices, 'device')}"


def figures(plan: "Plan") -> list[tuple[str, str]]:
    """Labels and values in human units; a row without a label continues the one above."""
    over = plan.cluster.over
    moved = f"{plan.num_transfers:,} ({format_bytes(plan.transfer_bytes)})" if plan.num_transfers else "none"
    rows = [
        ("objective", f"{plan.objective}: {_distance(plan)}"),
        ("makespan", f"{format_time(plan.makespan, plan.time_unit)}{_speed_up(plan)}"),
        *(("peak memory" if i == 0 else "", text) for i, text in enumerate(_peaks(plan))),
        ("transfers", f"{moved}, {plan.cluster.transfer}{f' over {over}' if over else ''}"),
    ]
    impossible = _impossible(plan)
    if impossible:
        rows.append(("impossible", f"no plan fits the memory{impossible}"))
    made = _made_by(plan)
    if made:
        rows.append(("made by", made))
    return rows


def headline(plan: "Plan") -> str:
    """The objective, the overflow, and what ended the search early, in one line."""
    if plan.objective is Objective.MAKESPAN:
        value = format_time(plan.makespan, plan.time_unit)
    else:
        value = format_bytes(plan.objective_value)
    parts = [f"{plan.objective} {value}", _distance(plan)]
    if not plan.feasible:
        parts.append(f"OVERFLOW by {format_bytes(float(plan.overflow.sum()))}")
    stopped = plan.provenance.get("stopped")
    if stopped in ("interrupted", "time"):
        parts.append(
            f"stopped after {counted(plan.provenance.get('evaluations', 0), 'evaluation')}: {stopped}"
        )
    return ", ".join(parts)


def shortage(plan: "Plan", where: str = "", *, starts: bool = True) -> str:
    """The overflow of a plan that does not fit the memory, and whether it is known that no plan fits.

    Args:
      plan: The plan.
      where: What it is a plan of, as a part of the sentence.
      starts: Whether what made the plan takes warm starts.
    """
    excess = ", ".join(
        f"device {k} by {format_bytes(b)} ({b:.0f} bytes)" for k, b in enumerate(plan.overflow.tolist()) if b
    )
    impossible = _impossible(plan)
    if impossible:
        return f"no plan{where} can fit the memory{impossible}; the least overflow found is {excess}"
    several = plan.objective is Objective.MAKESPAN and plan.cluster.num_devices > 1
    more = f"; one for peak-memory may fit{', and can be a warm start' if starts else ''}" if several else ""
    return f"no plan found{where} fits the memory; the best overflows {excess}{more}"


def _impossible(plan: "Plan") -> str:
    """Why no plan can fit the memory, as the end of a clause; empty if that is not known."""
    if plan.impossible:
        return f": {plan.impossible}"
    return ", as the solver has proven" if plan.provenance.get("status") == "impossible" else ""


def _made_by(plan: "Plan") -> str:
    said = plan.provenance
    part = f" ({said['found_by']})" if "found_by" in said else ""
    parts = [f"{said['method']}{part}"] if "method" in said else []
    if "evaluations" in said:
        count = said["evaluations"]
        parts.append(f"{count:,} evaluations" if isinstance(count, int) else f"{count} evaluations")
    runs = said.get("runs")
    if isinstance(runs, list):
        parts.append(f"the best of {len(runs)} runs")
    if "seed" in said:
        parts.append(f"seed {said['seed']}")
    made = ", ".join(parts)
    return f"{said['best_from']}; nothing better came of {made}" if "best_from" in said else made


def _distance(plan: "Plan") -> str:
    value, bound = plan.objective_value, plan.lower_bound
    makespan = plan.objective is Objective.MAKESPAN
    shown = format_time(bound, plan.time_unit) if makespan else format_bytes(bound)
    meets = meets_bound(value, bound, plan.objective)
    if meets and not plan.feasible:
        return f"the lower bound is {shown}"
    if meets:
        return f"optimal, it meets the lower bound of {shown}"
    if plan.feasible and plan.provenance.get("status") == "optimal":
        return "optimal, as the solver has proven" + _up_to(plan, plan.provenance.get("bound"))
    if plan.gap is None:
        return f"the lower bound is {shown}"
    gap = 100 * plan.gap
    if gap >= 1000:
        return f"{value / bound:.3g} x the lower bound of {shown}"
    digits = ".1f" if gap >= 0.05 else ".4f" if gap >= 5e-5 else ".1g"
    return f"{gap:{digits}} % above the lower bound of {shown}"


def _up_to(plan: "Plan", bound: Any) -> str:
    """How far a proof leaves open whether there is a better plan, where its times were rounded."""
    value = plan.objective_value
    if not isinstance(bound, float | int) or not bound or meets_bound(value, bound, plan.objective):
        return ""
    return f" up to {100 * (value / bound - 1):.1g} %"


def _speed_up(plan: "Plan") -> str:
    if plan.cluster.num_devices == 1 or not plan.makespan or not plan.one_device_makespan:
        return ""
    one = format_time(plan.one_device_makespan, plan.time_unit)
    return f", {plan.one_device_makespan / plan.makespan:.3g} x the speed of one device ({one})"


def _peaks(plan: "Plan") -> list[str]:
    """One line per device; of many devices only those with the highest peaks."""
    peaks, capacities, overflow = plan.peak_memory.tolist(), plan.cluster.memory, plan.overflow.tolist()
    fullest = np.lexsort([-plan.peak_memory, -plan.overflow])[:_MOST_DEVICES]
    width = max(len(format_bytes(peaks[k])) for k in fullest)
    lines = []
    for k in sorted(fullest.tolist()):
        line = f"device {k:<{len(str(len(peaks) - 1))}}  {format_bytes(peaks[k]):>{width}}"
        if np.isfinite(capacities[k]):
            share = f", {100 * peaks[k] / capacities[k]:.0f} %" if capacities[k] and not overflow[k] else ""
            line += f" of {format_bytes(capacities[k])}{share}"
        if overflow[k]:
            line += f"  OVERFLOW by {format_bytes(overflow[k])}"
        lines.append(line)
    if len(peaks) > _MOST_DEVICES:
        lines.append(f"and less on the other {len(peaks) - _MOST_DEVICES}")
    return lines
