"""The command ``certify``: checks and measurements of an accelerator, as one JSON file and one page."""

import argparse
import dataclasses
import json
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax
from tqdm import tqdm

from benchmarks.cases import Benchmark, select
from benchmarks.certify_checks import Check, checks
from benchmarks.environment import environment
from benchmarks.measure import Options, measure
from benchmarks.peers import check_peer
from benchmarks.results import Record, Results, as_document
from benchmarks.table import HEAD, lines
from regal_jax.cli.arguments import count
from regal_jax.errors import ConfigError
from regal_jax.runtime.cores import available_cores
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "run"]

_SCHEMA: Final = "regal_jax.certificate"
_VERSION: Final = 1
_MEASURED: Final = {
    "smoke": ("throughput", "implementations", "training"),
    "default": (
        "implementations/er-100",
        "implementations/er-100-schedule",
        "batch/er-100",
        "training",
        "implementations/er-500",
        "population/er-100",
        "objective",
        "phases/er-100",
        "compile/er-100",
        "batch/er-500",
        "transfer",
        "throughput/layered-*",
        "phases/er-500",
        "throughput/er-*",
    ),
}
"""Patterns of the measured benchmarks, the most important first."""

_RESERVE: Final = 60.0
"""Seconds before the end from which no measurement starts, since one takes up to a minute."""


@dataclasses.dataclass(frozen=True)
class _Certificate:
    results: Results
    checks: list[Check]
    left_out: list[str]
    seconds: float

    @property
    def passed(self) -> bool:
        return all(check.passed is not False for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        return as_document(self.results, _SCHEMA, _VERSION) | {
            "passed": self.passed,
            "seconds": self.seconds,
            "checks": [dataclasses.asdict(check) for check in self.checks],
            "left_out": self.left_out,
        }

    def as_markdown(self) -> str:
        e = self.results.environment
        hardware = e["hardware"]
        versions = ", ".join(f"{name} {version}" for name, version in e["versions"].items() if version)
        what = hardware["accelerator"] or "no accelerator"
        said = {True: "yes", False: "**no**", None: "not run"}
        parts = [
            f"# {what}: {'certified' if self.passed else 'not certified'}",
            f"{hardware['cpu']}, {hardware['cores']} cores; {hardware['devices']} devices of JAX on "
            f"{hardware['platform']}; {versions}; commit {e['commit']}"
            f"{' with changes' if e['dirty'] else ''}; {e['date']}; {self.seconds:.0f} s in all. "
            "Written by `python -m benchmarks certify`; docs/benchmarks.md explains the figures.",
            "## Checks",
            _markdown(
                ("check", "passed", "seconds", "what"),
                [(c.name, said[c.passed], f"{c.seconds:.1f}", c.detail) for c in self.checks],
            ),
            "## Figures",
            _markdown(HEAD, [row for record in self.results.records for row in lines(record)]),
        ]
        if self.left_out:
            parts.append(f"No time was left for: {', '.join(self.left_out)}.")
        return "\n\n".join(parts) + "\n"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def _chosen(size: str) -> list[Benchmark]:
    """The measurements in the order of `_MEASURED`, each once."""
    found = {b.name: b for pattern in _MEASURED[size] for b in select([pattern], size)}
    return list(found.values())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--size",
        choices=("smoke", "default"),
        default="default",
        help="size of the checks (default: default)",
    )
    parser.add_argument(
        "--minutes", type=count, default=10, help="minutes after which no measurement starts (default 10)"
    )
    parser.add_argument("--peer", metavar="BINARY", help="a program to run in turns, as for run")
    parser.add_argument(
        "--out",
        default="certificate.json",
        metavar="FILE",
        help="the results; a page with the suffix .md is written beside it (default certificate.json)",
    )


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks certify``. Returns 0 if no check failed, otherwise 1."""
    out = pathlib.Path(args.out)
    if not out.absolute().parent.is_dir():
        raise ConfigError(f"--out: no folder {str(out.absolute().parent)!r}; make it first")
    if out.suffix == ".md":
        raise ConfigError("--out: is the JSON file; the page is written beside it with the suffix .md")
    smoke, began = args.size == "smoke", time.perf_counter()
    options = Options(
        repeats=1 if smoke else 3,
        peer=None if args.peer is None else check_peer(args.peer),
        cpu=jax.default_backend() != "cpu",
        fresh=not smoke,
    )
    settings = {"size": args.size, "minutes": args.minutes, "peer": options.peer is not None}
    if not smoke:
        # With a program on disk, a first call would not measure the compiler.
        jax.config.update("jax_enable_compilation_cache", False)
    found, records = [], []
    results = Results(environment(), settings, records)
    left_out: list[str] = []

    def certificate() -> _Certificate:
        return _Certificate(results, found, left_out, time.perf_counter() - began)

    def late() -> bool:
        return time.perf_counter() - began > 60 * args.minutes - _RESERVE

    def save() -> None:
        written = certificate()
        document = json.dumps(written.as_json(), indent=1, allow_nan=False) + "\n"
        write_atomically(out, document.encode())
        write_atomically(out.with_suffix(".md"), written.as_markdown().encode())

    def check(named: tuple[str, Callable[[], Check]]) -> Check:
        name, call = named
        return Check(name, False, "no time was left for it", 0.0) if late() else call()

    measured = _chosen(args.size)
    every = list(checks(args.size))
    with (
        tqdm(total=len(every) + len(measured), disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar,
        ThreadPoolExecutor(max(1, available_cores() // 2)) as pool,
    ):
        # Most of a check's time is its compilation, which leaves other threads of Python free.
        for done in pool.map(check, every):
            found.append(done)
            bar.set_description(done.name)
            bar.update()
            save()
        for benchmark in measured:
            bar.set_description(benchmark.name)
            if late():
                left_out.append(benchmark.name)
            else:
                records.append(_measured(benchmark, options))
            bar.update()
            save()
    return _report(certificate(), out)


def _measured(benchmark: Benchmark, options: Options) -> Record:
    """A record, which has only the reason if the measurement fails."""
    try:
        return measure(benchmark, options)
    except Exception as error:  # A failure, such as lack of memory, must not prevent the other measurements.
        said = " ".join(str(error).split())
        return Record(benchmark.name, {}, {}, skipped={"all": f"{type(error).__name__}: {said[:300]}"})


def _report(certificate: _Certificate, out: pathlib.Path) -> int:
    said = {True: "passed", False: "FAILED", None: "not run"}
    for check in certificate.checks:
        print(f"{said[check.passed]:8}{check.name}: {check.detail}")
    print(f"{out} and {out.with_suffix('.md')}: {len(certificate.results.records)} measurements")
    failed = [check.name for check in certificate.checks if check.passed is False]
    if failed:
        print(
            f"python -m benchmarks certify: {len(failed)} checks failed, the first: {failed[0]}",
            file=sys.stderr,
        )
    return 1 if failed else 0
