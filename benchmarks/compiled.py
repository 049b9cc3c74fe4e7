"""Effect of `regal_jax.compile`: memory by XLA's own measure, seconds of programs and of compilation."""

import argparse
import contextlib
import dataclasses
import math
import os
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from tqdm import tqdm

from benchmarks.compile_programs import Program, Settings, concrete, read_settings
from benchmarks.resume import Rows, chosen_names
from benchmarks.table import aligned
from regal_jax.errors import ConfigError
from regal_jax.execution import CompiledProgram, MemoryUse, compile
from regal_jax.execution.xla.compiled import run_seconds
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.hook import module_of, text_of
from regal_jax.execution.xla.program import OTHER_SCHEDULER, QUICK, memory_use
from regal_jax.importers.hlo_bound import memory_bound
from regal_jax.importers.hlo_text import parse_module

__all__ = ["Row", "add_arguments", "run", "summary"]

_SETTINGS: Final = {
    "jax_compilation_cache_dir": None,
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.05,  # As `regal_jax.programs.use_cache` sets it.
}
"""JAX's cache during the measurement."""

_RUN_SECONDS: Final = 4.0
_MOST_RUNS: Final = 200

_HEAD: Final = (
    *("program", "XLA", "XLA, other", "ours", "bound", "total", "least", "temp"),
    *("run", "first", "next", "XLA, next", "order"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One program.

    Attributes:
      program: Its name.
      instructions: Number of instructions of the entry computation.
      default: Memory under XLA's default scheduler for CPUs.
      other: Memory under its scheduler for little memory.
      ours: Memory of the program of `regal_jax.compile`.
      bound: Bytes of the total that every order needs, with copies of donated arguments or without.
      predicted: Predicted temporary memory of its order, in bytes.
      predicted_default: The same of the default order.
      order: ``"ours"``, or why the default program was kept.
      equal: All results are equal to those of the default program, bit by bit; ``None`` if not run.
      seconds: Medians of runs in turns, default and ours; ``None`` if not run.
      compile_seconds: Seconds for the default program, for ours with the search, and for both again, read
        from disk, ours first; ``None`` if only memory was measured.
    """

    program: str
    instructions: int
    default: MemoryUse
    other: MemoryUse
    ours: MemoryUse
    bound: int
    predicted: int
    predicted_default: int
    order: str
    equal: bool | None
    seconds: tuple[float, float] | None
    compile_seconds: tuple[float, float, float, float] | None

    @property
    def better(self) -> MemoryUse:
        """The memory under the better one of XLA's two schedulers."""
        return min(self.default, self.other, key=lambda m: m.total)


def _timed(make: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    made = make()
    return made, time.perf_counter() - began


def measure(program: Program, settings: Settings, method: Any, memory: bool) -> Row:
    """Compiles a program in four ways, and runs two of the results.

    Args:
      program: The program.
      settings: Settings of the file of programs.
      method: As `regal_jax.compile` takes it.
      memory: Whether seconds are not measured, so that XLA may hurry.
    """
    hurry = QUICK if memory else {}

    def plain(options: dict[str, Any]) -> jax.stages.Compiled:
        fn = jax.jit(lambda *args: program.fn(*args), donate_argnums=program.donate)
        return fn.lower(*program.args).compile({**hurry, **options})

    def ours() -> CompiledProgram:
        return compile(
            program.fn,
            *program.args,
            donate_argnums=program.donate,
            method=method,
            evaluations=settings.evaluations,
            candidates=settings.candidates,
            compiler_options=dict(hurry),
        )

    default, plain_seconds = _timed(lambda: plain({}))
    other = memory_use(plain(OTHER_SCHEDULER))
    made, first = _timed(ours)
    again, following = _timed(ours) if not memory else (made, first)
    _, plain_following = _timed(lambda: plain({})) if not memory else (None, plain_seconds)
    if not memory and again.statistics.source != "kept" and made.statistics.reordered:
        raise ConfigError(f"{program.name}: the schedule was not kept; set REGAL_JAX_CACHE to a folder")
    equal = seconds = None
    if program.run:
        args = concrete(program)
        held = [jax.device_get(x(*jax.tree.map(lambda a: a.copy(), args))) for x in (default, made.compiled)]
        pairs = zip(*map(jax.tree.leaves, held), strict=True)
        equal = all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)
        if not memory:
            seconds = _run_seconds([default, made.compiled], args, settings.rounds)
    stats, schedule = made.statistics, made.schedule
    return Row(
        program.name,
        sum(1 for line in (default.as_text() or "").split("ENTRY")[-1].splitlines() if " = " in line),
        memory_use(default),
        other,
        stats.after,
        _bound(default),
        stats.predicted,
        stats.predicted_before,
        "ours" if schedule.orders else stats.reason,
        equal,
        seconds,
        None if memory else (plain_seconds, first, following, plain_following),
    )


def _run_seconds(programs: list[jax.stages.Compiled], args: Any, rounds: int) -> tuple[float, float]:
    """Medians of at least ``rounds`` runs in turn, and of more if they are short: medians of few runs of
    some milliseconds vary by tens of percent."""
    once = sum(run_seconds(programs, args, 1))
    before, after = run_seconds(programs, args, max(rounds, min(_MOST_RUNS, math.ceil(_RUN_SECONDS / once))))
    return before, after


def _bound(default: jax.stages.Compiled) -> int:
    module = module_of(default)
    plain = memory_bound(parse_module(default.as_text() or ""))
    elide_copies(module)
    return min(plain, memory_bound(parse_module(text_of(module))))


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _ratio(a: float, b: float) -> float:
    return a / b if b else 1.0


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """Ratios of ours to XLA's: geometric means, and the largest."""
    total = [_ratio(r.ours.total, r.better.total) for r in rows]
    temp = [_ratio(max(r.ours.temp, 1), max(r.better.temp, 1)) for r in rows]
    default = [_ratio(r.ours.total, r.default.total) for r in rows]
    runs = [r.seconds[1] / r.seconds[0] for r in rows if r.seconds]
    compiled = [r.compile_seconds for r in rows if r.compile_seconds]
    return {
        "total, better of two": _mean(total),
        "largest": max(total),
        "total, bound": _mean([_ratio(r.bound, r.better.total) for r in rows]),
        "above the bound": _mean([_ratio(r.ours.total, r.bound) for r in rows]),
        "within 1 % of the bound": sum(r.ours.total <= 1.01 * r.bound for r in rows),
        "temp, better of two": _mean(temp),
        "largest temp": max(temp),
        "total, default": _mean(default),
        "run": _mean(runs),
        "slowest run": max(runs, default=math.nan),
        "first compilation": _mean([first / plain for plain, first, *_ in compiled]),
        "next compilation": _mean([following / plain for plain, _, following, _ in compiled]),
        "next compilation of XLA": _mean([following / plain for plain, _, _, following in compiled]),
        "not equal": sum(r.equal is False for r in rows),
    }


def _line(row: Row) -> tuple[str, ...]:
    plain, *others = row.compile_seconds or (1, 1, 1, 1)
    return (
        row.program,
        *(
            f"{total / 2**20:.2f}"
            for total in (row.default.total, row.other.total, row.ours.total, row.bound)
        ),
        *(f"{_ratio(total, row.better.total):.3f}" for total in (row.ours.total, row.bound)),
        f"{_ratio(row.ours.temp, row.better.temp):.3f}",
        f"{row.seconds[1] / row.seconds[0]:.2f}" if row.seconds else "",
        *(f"{other / plain:.2f}" if row.compile_seconds else "" for other in others),
        row.order if row.order == "ours" else row.order[-16:].lower(),
    )


def _set_cache(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # JAX reads the settings only once.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of programs (default: all)")
    parser.add_argument(
        "--programs",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_name("compile_programs.toml"),
        metavar="FILE",
        help="file of programs (default compile_programs.toml)",
    )
    parser.add_argument(
        "--method", default="order-search", help="method of the search (default order-search)"
    )
    parser.add_argument(
        "--memory", action="store_true", help="measure memory only: machine code is made in a hurry"
    )
    parser.add_argument("--out", metavar="FILE", help="save the rows, and continue an earlier run")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks compile``."""
    settings = read_settings(args.programs)
    chosen = chosen_names(settings.programs, args.patterns)
    kept = {"method": args.method, "evaluations": settings.evaluations, "candidates": settings.candidates}
    if not args.memory:
        kept |= {"caches": "used", "run seconds": _RUN_SECONDS}
    stored = Rows(args.out, "compile", {**kept, "rounds": settings.rounds, "memory": args.memory})
    rows: list[Row] = []
    with _fresh_caches():
        _warm_up()
        for name in tqdm(chosen):
            made = stored.get(
                name,
                lambda name=name: [
                    dataclasses.asdict(measure(settings.programs[name](), settings, args.method, args.memory))
                ],
            )
            rows += map(_row, made)
            every = [_row(row) for row in stored.every()]
            stored.save(summary(every) if every else {})
    print(aligned([_HEAD, *map(_line, rows)]))
    if rows:
        print("\n".join(f"{name}: {value:.3f}" for name, value in summary(rows).items()))
    return stored.report()


def _warm_up() -> None:
    """Loads modules and compiles the loops of the search, once in an environment; this is not timed."""

    def step(w: jax.Array, x: jax.Array) -> Any:
        parts = [jnp.sin(jnp.tanh(x * i) @ w) @ w for i in range(1, 6)]
        return w + sum(part.sum() for part in parts), parts[0]

    compile(step, *[jax.ShapeDtypeStruct((48, 48), "float32")] * 2, donate_argnums=0)


def _row(stored: dict[str, Any]) -> Row:
    memory = {key: MemoryUse(**stored[key]) for key in ("default", "other", "ours")}
    pairs = {key: stored[key] and tuple(stored[key]) for key in ("seconds", "compile_seconds")}
    return Row(**{**stored, **memory, **pairs})


@contextlib.contextmanager
def _fresh_caches() -> Iterator[None]:
    """A context with empty folders for orders and programs, so that nothing of earlier runs is reused."""
    named, settings = os.environ.get("REGAL_JAX_CACHE"), {s: getattr(jax.config, s) for s in _SETTINGS}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REGAL_JAX_CACHE"] = folder
        _set_cache({**_SETTINGS, "jax_compilation_cache_dir": f"{folder}/jax"})
        try:
            yield
        finally:
            _set_cache(settings)
            if named is None:
                del os.environ["REGAL_JAX_CACHE"]
            else:
                os.environ["REGAL_JAX_CACHE"] = named
