"""Plans as Chrome trace events, which chrome://tracing and ui.perfetto.dev show.

The format: "Trace Event Format" of the Chromium project; ``X`` complete events, ``C`` counters, ``M`` names.
"""

from typing import TYPE_CHECKING, Any

from regal_jax.graph.units import TIME_UNITS

if TYPE_CHECKING:
    from regal_jax.plan.plan import Plan

__all__ = ["chrome_trace"]


def chrome_trace(plan: "Plan") -> dict[str, Any]:
    """``plan`` as a JSON-ready trace: one process per device, times in microseconds, memory as a counter.

    A blocking transfer holds both of its devices and is shown on both.
    """
    # Some viewers take process 0 for the idle process, so device k is process k + 1.
    scale = TIME_UNITS[plan.time_unit] * 1e6
    line = plan.timeline
    events: list[dict[str, Any]] = []
    for k in range(plan.cluster.num_devices):
        for what, name in (("process_name", f"device {k}"), ("thread_name", "events")):
            events.append({"ph": "M", "pid": k + 1, "tid": 1, "name": what, "args": {"name": name}})
        events.append({"ph": "M", "pid": k + 1, "name": "process_sort_index", "args": {"sort_index": k}})
    columns = (line.op, line.port, line.device, line.source, line.start, line.finish)
    for i, (op, port, device, source, start, finish) in enumerate(
        zip(*(c.tolist() for c in columns), strict=True)
    ):
        name = plan.op_names[op]
        event: dict[str, Any] = {"ph": "X", "tid": 1, "ts": start * scale, "dur": (finish - start) * scale}
        if port < 0:
            kind = plan.op_kinds[op] or "compute"
            events.append({**event, "pid": device + 1, "name": name, "cat": kind, "args": {"event": i}})
            continue
        route = {"event": i, "from": f"device {source}", "to": f"device {device}"}
        event |= {"name": f"transfer {name}:{port}", "cat": "transfer", "args": route}
        events += [{**event, "pid": source + 1}, {**event, "pid": device + 1}]
    for k, (times, held) in enumerate(zip(line.memory_time, line.memory_bytes, strict=True)):
        for time, held_bytes in zip(times.tolist(), held.tolist(), strict=True):
            sample = {"ph": "C", "pid": k + 1, "name": "memory", "ts": time * scale}
            events.append({**sample, "args": {"bytes": held_bytes}})
    return {
        "traceEvents": events,
        "displayTimeUnit": "ns",
        "otherData": {"graph": plan.graph_name, "hash": plan.graph_hash, "objective": str(plan.objective)},
    }
