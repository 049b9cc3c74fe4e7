"""Predicted temporary memory, and that which XLA assigns, for three orders of each program."""

import argparse
import dataclasses
import pathlib
import statistics
from collections.abc import Sequence
from typing import Any, Final

import jax
from tqdm import tqdm

from benchmarks.compile_programs import Program, Settings, read_settings
from benchmarks.resume import Rows, chosen_names
from benchmarks.table import aligned
from regal_jax.execution.xla import hook
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.prediction import Predictor
from regal_jax.execution.xla.program import OTHER_SCHEDULER, QUICK, alias_of, memory_use, realise
from regal_jax.execution.xla.schedule import Schedule
from regal_jax.execution.xla.search import SearchSettings, find_candidates
from regal_jax.execution.xla.sequence import complete_orders
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import parse_module

__all__ = ["Row", "add_arguments", "run", "summary"]

_HEAD: Final = ("program", "instructions", "order", "XLA, bytes", "predicted", "deviation", "peak")


@dataclasses.dataclass(frozen=True)
class Row:
    """One order of one program.

    Attributes:
      program: Its name.
      instructions: Number of instructions of the module.
      order: ``"default"`` and ``"other"`` for XLA's schedulers, ``"searched"`` for the order of the search.
      temp: Temporary memory that XLA assigned, bytes.
      predicted: The prediction.
      peak: Largest sum of the sizes of live buffers, which the search minimises; ``None`` for other orders.
    """

    program: str
    instructions: int
    order: str
    temp: int
    predicted: int
    peak: int | None

    @property
    def deviation(self) -> float:
        """Relative deviation of the prediction."""
        return self.predicted / self.temp - 1 if self.temp else float(self.predicted > 0)


def measure(program: Program, settings: Settings) -> list[Row]:
    """Predicts the memory of a program in three orders and compiles it, without optimising machine code.

    Args:
      program: The program.
      settings: Settings of the file of programs.
    """
    fn = jax.jit(lambda *args: program.fn(*args), donate_argnums=program.donate)
    lowered = fn.lower(*program.args)
    plain = hook.compile_recorded(lowered, QUICK, program.name)
    other = hook.compile_lowered(lowered, {**QUICK, **OTHER_SCHEDULER})
    rows = []
    for order, compiled in (("default", plain), ("other", other)):
        parsed = parse_module(compiled.as_text() or "")
        count = sum(len(c.instructions) for c in parsed.computations.values())
        predicted = TempModel(parsed).temp_bytes()
        rows.append(Row(program.name, count, order, memory_use(compiled).temp, predicted, None))
    module = hook.module_of(plain)
    alias = alias_of(module)
    elide_copies(module)
    parsed = parse_module(hook.text_of(module))
    predictor = Predictor(module, parsed, hook.can_repack(lowered))
    search = SearchSettings("order-search", settings.evaluations, None, 0, settings.candidates)
    for found in find_candidates(parsed, search)[: settings.candidates]:
        orders = complete_orders(module, found.steps)
        predicted = predictor.temp_bytes(orders, 0)
        schedule = Schedule(program.name, orders, alias, memory_use(plain), 0, 0, "")
        temp = memory_use(realise(lowered, QUICK, schedule).compiled).temp
        rows.append(Row(program.name, rows[0].instructions, "searched", temp, predicted, found.predicted))
    return rows


def _measured(program: Program, settings: Settings) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in measure(program, settings)]


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Magnitudes of the deviations in percent, for the orders of XLA and for all orders."""
    made: dict[str, float] = {"programs": len({row.program for row in rows})}
    for label, chosen in (("XLA's order", [r for r in rows if r.order == "default"]), ("all orders", rows)):
        sizes = [100 * abs(row.deviation) for row in chosen]
        made |= {f"{label}, median %": statistics.median(sizes), f"{label}, largest %": max(sizes)}
        made[f"{label}, exact"] = sum(row.temp == row.predicted for row in chosen)
        made[f"{label}, orders"] = len(chosen)
    return made


def _line(row: Row) -> tuple[str, ...]:
    peak = "" if row.peak is None else str(row.peak)
    numbers = (str(row.temp), str(row.predicted), f"{100 * row.deviation:.2f} %", peak)
    return (row.program, str(row.instructions), row.order, *numbers)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of programs (default: all)")
    parser.add_argument(
        "--programs",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_name("prediction_programs.toml"),
        metavar="FILE",
        help="file of programs (default prediction_programs.toml)",
    )
    parser.add_argument("--out", metavar="FILE", help="save the rows, and continue an earlier run")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks prediction``."""
    settings = read_settings(args.programs)
    stored = Rows(args.out, "prediction", {"evaluations": settings.evaluations})
    rows: list[Row] = []
    for name in tqdm(chosen_names(settings.programs, args.patterns)):
        made = stored.get(name, lambda name=name: _measured(settings.programs[name](), settings))
        rows += [Row(**row) for row in made]
        every = [Row(**row) for row in stored.every()]
        stored.save(summary(every) if every else {})
    print(aligned([_HEAD, *map(_line, rows)]))
    if rows:
        print("\n".join(f"{name}: {value:.4g}" for name, value in summary(rows).items()))
    return stored.report()
