"""What a planned function did, and when."""

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regal_jax.plan import Plan
from regal_jax.storage.atomic import write_atomically, writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ExecutionRecord"]


@dataclasses.dataclass(frozen=True, eq=False)
class ExecutionRecord:
    """The segments and transfers of one call, by the host's clock.

    ``A`` actions. Every action is waited for before the next of its device begins, so a recorded call may
    take longer than others.

    Attributes:
      plan: The plan that was executed.
      device: ``[A]`` int64, the device of a segment, or the receiver of a transfer.
      source: ``[A]`` int64, the sender of a transfer; -1 for a segment.
      ops: ``[A]`` tuples: the ops of a segment, or the op whose output is transferred.
      start: ``[A]`` float64, seconds since the first action began.
      finish: ``[A]`` float64, seconds.
    """

    plan: Plan
    device: np.ndarray
    source: np.ndarray
    ops: tuple[tuple[int, ...], ...]
    start: np.ndarray
    finish: np.ndarray

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last finish."""
        return float(self.finish.max(initial=0.0))

    @property
    def segments(self) -> np.ndarray:
        """``[A]`` bool: whether the action is a segment."""
        return self.source < 0

    def __repr__(self) -> str:
        segments = int(self.segments.sum())
        return (
            f"<ExecutionRecord of {self.plan.graph_name!r}: {segments} segments, "
            f"{len(self.ops) - segments} transfers, {self.makespan:.6g} s>"
        )

    def to_chrome_trace(self) -> dict[str, Any]:
        """The planned and the measured timeline as Chrome trace events, times in microseconds.

        Devices of the plan are the first processes, those of the measurement the next.
        """
        trace = self.plan.to_chrome_trace()
        events, d = trace["traceEvents"], self.plan.cluster.num_devices
        for k in range(d):
            pid = d + k + 1
            names = (("process_name", f"device {k}, measured"), ("thread_name", "actions"))
            events += [
                {"ph": "M", "pid": pid, "tid": 1, "name": what, "args": {"name": name}}
                for what, name in names
            ]
            events.append(
                {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": d + k}}
            )
        columns = (self.device.tolist(), self.source.tolist(), self.start.tolist(), self.finish.tolist())
        for ops, device, source, start, finish in zip(self.ops, *columns, strict=True):
            name = self.plan.op_names[ops[0]]
            event: dict[str, Any] = {"ph": "X", "tid": 1, "ts": start * 1e6, "dur": (finish - start) * 1e6}
            event["pid"] = d + device + 1
            if source < 0:
                named = [self.plan.op_names[op] for op in ops]
                title = name if len(ops) == 1 else f"{name} and {len(ops) - 1} more"
                event |= {"name": title, "cat": "segment", "args": {"ops": named}}
            else:
                route = {"from": f"device {source}", "to": f"device {device}"}
                event |= {"name": f"transfer {name}", "cat": "transfer", "args": route}
            events.append(event)
        return trace

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_chrome_trace`, which ui.perfetto.dev shows; the file is written atomically.

        Raises:
          FormatError: The file cannot be written.
        """
        with writing(path):
            write_atomically(path, json.dumps(self.to_chrome_trace()).encode())

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the planned timeline above the measured one (`regal_jax.viz.plot_execution`)."""
        from regal_jax.viz import plot_execution

        return plot_execution(self.plan, self.device, self.source, self.start, self.finish, path)
