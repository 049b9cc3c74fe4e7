"""`CompiledProgram`, the result of `regal_jax.compile`."""

import dataclasses
import functools
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import jax

from regal_jax.execution.xla.schedule import MemoryUse, Schedule
from regal_jax.graph.units import format_bytes, format_time

__all__ = ["CompileStatistics", "CompiledProgram", "run_seconds"]

_SOURCES: Final = {
    "searched": "the order was searched",
    "kept": "the order was loaded from disk",
    "given": "the order was given",
}
_ROUNDS: Final = 5


@dataclasses.dataclass(frozen=True)
class CompileStatistics:
    """The memory of a compiled program, compared with that of the same program in XLA's own order.

    Attributes:
      before: Memory in XLA's order, as XLA reports it.
      after: Memory of the program, as XLA reports it.
      predicted_before: Temporary memory of XLA's order as predicted from the order, in bytes.
      predicted: The same for the program; equal if XLA's order was kept.
      reordered: Whether the order differs from that of XLA's default scheduler.
      reason: Why XLA's order was kept; empty if it was not.
      source: Origin of the order: ``"searched"``, ``"kept"`` on disk, or ``"given"``.
      search_seconds: Seconds of the search for orders.
      compile_seconds: Seconds of the whole call, including the search.
    """

    before: MemoryUse
    after: MemoryUse
    predicted_before: int
    predicted: int
    reordered: bool
    reason: str
    source: str
    search_seconds: float
    compile_seconds: float


class CompiledProgram:
    """A compiled function, made by `regal_jax.compile`.

    It is called with the arguments for which it was compiled, without the static ones. It has the methods of
    `jax.stages.Compiled` (`memory_analysis`, `cost_analysis`, `as_text`, ...).

    Attributes:
      compiled: The program of JAX.
      schedule: The order of its instructions.
      statistics: Memory and compile time.
    """

    def __init__(
        self,
        compiled: jax.stages.Compiled,
        schedule: Schedule,
        after: MemoryUse,
        compile_plain: Callable[[], jax.stages.Compiled],
        source: str,
        search_seconds: float,
        compile_seconds: float,
    ) -> None:
        self.compiled, self.schedule = compiled, schedule
        self._compile_plain = compile_plain
        self.statistics = CompileStatistics(
            schedule.before,
            after,
            schedule.predicted_before,
            schedule.predicted if schedule.changes else schedule.predicted_before,
            schedule.changes,
            schedule.reason,
            source,
            search_seconds,
            compile_seconds,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "compiled":
            raise AttributeError(name)
        return getattr(self.compiled, name)

    @functools.cached_property
    def plain(self) -> jax.stages.Compiled:
        """The same program in XLA's own order; compiled at the first access."""
        return self._compile_plain() if self.statistics.reordered else self.compiled

    def save_schedule(self, path: str | os.PathLike[str]) -> None:
        """Writes the order to a file, which `regal_jax.compile` accepts as ``plan``.

        Raises:
          FormatError: The file cannot be written.
        """
        self.schedule.save(path)

    def report(self, *args: Any, **kwargs: Any) -> str:
        """The memory of the program and of the same program in XLA's order, as lines of text.

        Args:
          *args: Arguments with which both programs are run in turn to report their median seconds. Donated
            arguments are copied. Without arguments, nothing is run.
          **kwargs: Their keyword arguments.
        """
        stats = self.statistics
        rows: list[tuple[str, ...]] = [("", "XLA's order", "this program")]
        for label, name in (
            ("temporary", "temp"),
            ("arguments", "argument"),
            ("outputs", "output"),
            ("aliased", "alias"),
            ("total", "total"),
        ):
            rows.append((label, *(format_bytes(getattr(m, name)) for m in (stats.before, stats.after))))
        predicted = (format_bytes(p) if p else "-" for p in (stats.predicted_before, stats.predicted))
        rows.append(("predicted temporary", *predicted))
        if args or kwargs:
            seconds = run_seconds([self.plain, self.compiled], args, kwargs=kwargs)
            rows.append(("median run", *(format_time(s, "s") for s in seconds)))
        widths = [max(len(row[c]) for row in rows) for c in range(3)]
        lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]
        order = _SOURCES[stats.source] if stats.reordered else f"XLA's order remains: {stats.reason}"
        compiled = f"compiled in {format_time(stats.compile_seconds, 's')}"
        searched = f", of which {format_time(stats.search_seconds, 's')} were the search"
        return "\n".join([*lines, order, compiled + (searched if stats.search_seconds else "")])


def run_seconds(
    programs: list[jax.stages.Compiled],
    args: tuple[Any, ...],
    rounds: int = _ROUNDS,
    kwargs: Mapping[str, Any] | None = None,
) -> list[float]:
    """Median seconds of programs that are run in turn with copies of the same arguments.

    Args:
      programs: Programs compiled for the arguments.
      args: Concrete arguments.
      rounds: Number of timed runs of each program.
      kwargs: Concrete keyword arguments.
    """
    seconds: list[list[float]] = [[] for _ in programs]
    for turn in range(rounds + 1):
        for row, program in zip(seconds, programs, strict=True):
            given, named = jax.block_until_ready(jax.tree.map(_copy, (args, dict(kwargs or {}))))
            began = time.perf_counter()
            jax.block_until_ready(program(*given, **named))
            if turn:  # The first run includes initialisation and is not timed.
                row.append(time.perf_counter() - began)
    return [statistics.median(row) for row in seconds]


def _copy(x: Any) -> jax.Array:
    return jax.numpy.array(x, copy=True)
