"""Runs the contenders of a benchmark and makes its record."""

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import jax
import numpy as np

from benchmarks import compilation, fresh, loops, padding, python_peers
from benchmarks.cases import Benchmark, GraphCase
from benchmarks.on_cpu import on_cpu
from benchmarks.peers import peer
from benchmarks.phases import copied_bytes_per_second, phases
from benchmarks.results import OF_BANDWIDTH, Record, speed_ratio
from benchmarks.searches import search
from benchmarks.throughput import runnable, solver
from benchmarks.timing import Contender, Series, Skipped, interleaved
from benchmarks.training import training
from regal_jax.simulate import IMPLEMENTATIONS

__all__ = ["Options", "measure"]

_OURS: Final = "regal_jax"
_PEERS: Final = ("peer", "cpu", *python_peers.PEERS)


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of measurements.

    Attributes:
      repeats: Number of repeats, after a warm-up.
      implementations: Names of simulators; empty for the default one.
      peer: Path of a program to run in turns with ours, see `benchmarks.peers`.
      cpu: Also run every whole search in turns on the CPU of this machine, in a process of its own.
      profile: Folder for traces of `jax.profiler`.
      fresh: Give up all compiled programs before every benchmark.
    """

    repeats: int = 5
    implementations: tuple[str, ...] = ()
    peer: str | None = None
    cpu: bool = False
    profile: pathlib.Path | None = None
    fresh: bool = True


@dataclasses.dataclass(frozen=True)
class _Found:
    series: dict[str, Series]
    derived: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)


def _label(variant: str, contender: str) -> str:
    return f"{variant} {contender}" if variant else contender


def _implementations(benchmark: Benchmark, options: Options) -> tuple[dict[str, str | None], dict[str, str]]:
    """Label -> name of a simulator, and the simulators that cannot run."""
    every = tuple(IMPLEMENTATIONS) if benchmark.section == "implementations" else ()
    names = options.implementations or every
    able, skipped = runnable(names)
    return ({name: name for name in able} if names else {_OURS: None}), skipped


def _peers(benchmark: Benchmark, case: GraphCase, options: Options) -> dict[str, Callable[[], Contender]]:
    found: dict[str, Callable[[], Contender]] = {}
    if options.peer is not None:
        binary = options.peer
        found["peer"] = lambda: peer(binary, case)
    if options.cpu:
        found["cpu"] = lambda: on_cpu(case)
    if benchmark.section == "python":
        found |= {name: lambda make=make: make(case) for name, make in python_peers.PEERS.items()}
    return found


def _contenders(benchmark: Benchmark, options: Options) -> tuple[list[Contender], dict[str, str]]:
    ours, skipped = _implementations(benchmark, options)
    contenders = []
    for variant, case in benchmark.cases.items():
        for label, name in ours.items():
            contenders.append(solver(case, name, _label(variant, label)))
        for label, make in _peers(benchmark, case, options).items():
            try:
                contenders.append(dataclasses.replace(make(), label=_label(variant, label)))
            except Skipped as reason:
                skipped[_label(variant, label)] = str(reason)
    return contenders, skipped


def _solves(benchmark: Benchmark, options: Options) -> _Found:
    contenders, skipped = _contenders(benchmark, options)
    try:
        series = interleaved(contenders, options.repeats)
        _profile(benchmark, contenders, options)
    finally:
        for contender in contenders:
            contender.close()
    return _Found(series, _ratios(benchmark, series), skipped)


def _ratios(benchmark: Benchmark, series: Mapping[str, Series]) -> dict[str, float]:
    """Ratios of our series to the peers, the first variant and the first implementation."""
    derived = {}
    for variant in benchmark.cases:
        names = {label: _label(variant, label) for label in (_OURS, *IMPLEMENTATIONS, *_PEERS)}
        names = {label: name for label, name in names.items() if name in series}
        ours = [label for label in names if label not in _PEERS]
        for label in ours:
            others = [names[p] for p in names if p in _PEERS]
            others += [_label(next(iter(benchmark.cases)), label), names[ours[0]]]
            for other in dict.fromkeys(others):
                if other != names[label] and benchmark.section != "scaling":
                    derived[f"{names[label]} vs {other}"] = speed_ratio(series[names[label]], series[other])
    return derived


def _scaling(benchmark: Benchmark, options: Options) -> _Found:
    """Whole runs, and the growth of their cost per evaluation."""
    found = _solves(benchmark, options)
    ours, _ = _implementations(benchmark, options)
    derived = dict(found.derived)
    for label in ours:
        each = [found.series[_label(variant, label)] for variant in benchmark.cases]
        n = np.array([case.ops for case in benchmark.cases.values()], np.float64)
        cost = np.array([s.median / (s.evaluations or 1) for s in each])
        derived[f"{label} exponent"] = float(np.polyfit(np.log(n), np.log(cost), 1)[0])
        growth = n[-1] * math.log(n[-1]) / (n[0] * math.log(n[0]))
        derived[f"{label} growth over n log n"] = float(cost[-1] / cost[0] / growth)
    return dataclasses.replace(found, derived=derived)


def _phases(benchmark: Benchmark, options: Options) -> _Found:
    ours, skipped = _implementations(benchmark, options)
    series, derived = {}, {}
    for label, name in ours.items():
        parts = phases(benchmark.case, name)
        _profile(benchmark, parts, options)
        prefix = "" if name is None else label
        found = interleaved(parts, options.repeats)
        series |= {_label(prefix, k): s for k, s in found.items()}
        for part in parts:
            share = (part.moved or 0) / found[part.label].median / copied_bytes_per_second()
            derived[f"{_label(prefix, part.label)}{OF_BANDWIDTH}"] = share
    return _Found(series, derived, skipped)


def _training(benchmark: Benchmark, options: Options) -> _Found:
    ours, skipped = _implementations(benchmark, options)
    contenders = [training(benchmark.case, name, label) for label, name in ours.items()]
    _profile(benchmark, contenders, options)
    return _Found(interleaved(contenders, options.repeats), {}, skipped)


def _searches(benchmark: Benchmark, options: Options) -> _Found:
    contenders = [search(case, label) for label, case in benchmark.cases.items()]
    series = interleaved(contenders, options.repeats)
    first = next(iter(series))
    derived = {
        f"{label} vs {first}": speed_ratio(each, series[first])
        for label, each in series.items()
        if label != first and each.evaluations and series[first].evaluations
    }
    return _Found(series, derived)


def _loops(benchmark: Benchmark, options: Options) -> _Found:
    try:
        return _Found(loops.loop_times(benchmark.case, options.repeats))
    except Skipped as reason:
        return _Found({}, {}, {"all": str(reason)})


def _compile(benchmark: Benchmark, options: Options) -> _Found:
    ours, skipped = _implementations(benchmark, options)
    series = {}
    for label, name in ours.items():
        prefix = "" if name is None else label
        parts = compilation.compile_times(benchmark.case, name, options.repeats)
        series |= {_label(prefix, k): s for k, s in parts.items()}
    return _Found(series, {}, skipped)


def _start(benchmark: Benchmark, options: Options) -> _Found:
    name = options.implementations[0] if options.implementations else None
    return _Found(fresh.start_times(benchmark.case, name, options.repeats))


def _memory(benchmark: Benchmark, options: Options) -> _Found:
    name = options.implementations[0] if options.implementations else None
    return _Found(fresh.peak_memory(benchmark.case, name))


def _padding(benchmark: Benchmark, options: Options) -> _Found:
    del options
    return _Found(*padding.waste(benchmark.case))


def _profile(benchmark: Benchmark, contenders: Sequence[Contender], options: Options) -> None:
    """A trace of a few generations; not timed, since tracing costs time."""
    short = [c.short for c in contenders if c.short is not None]
    if options.profile is None or not short:
        return
    for run in short:
        run()
    with jax.profiler.trace(str(options.profile / benchmark.name.replace("/", "-"))):
        for contender in contenders:
            if contender.short is not None:
                with jax.profiler.TraceAnnotation(contender.label):
                    jax.block_until_ready(contender.short())


_MEASURES: Final[Mapping[str, Callable[[Benchmark, Options], _Found]]] = {
    "scaling": _scaling,
    "phases": _phases,
    "compile": _compile,
    "start": _start,
    "memory": _memory,
    "padding": _padding,
    "training": _training,
    "searches": _searches,
    "loops": _loops,
}


def measure(benchmark: Benchmark, options: Options) -> Record:
    """Runs one benchmark.

    Raises:
      ConfigError: A peer violates the protocol of `benchmarks.peers`.
    """
    if options.fresh:
        jax.clear_caches()
    found = _MEASURES.get(benchmark.section, _solves)(benchmark, options)
    parameters = {label: dataclasses.asdict(case) for label, case in benchmark.cases.items()}
    return Record(benchmark.name, parameters, found.series, found.derived, found.skipped)
