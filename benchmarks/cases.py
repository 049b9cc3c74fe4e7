"""Named cases of benchmarks, shared by the command, the notebook and the tests."""

import dataclasses
import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.datasets import generate
from regal_jax.encoding import Proposal, quantile_table
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.problem import Problem, make_problem
from regal_jax.search import BrkgaConfig

__all__ = ["SECTIONS", "SIZES", "Benchmark", "GraphCase", "benchmarks", "select"]

SIZES: Final = ("smoke", "default", "full")
_FAMILIES: Final = {"er": "erdos-renyi", "layered": "layered"}
_BETAS: Final = 16


@dataclasses.dataclass(frozen=True)
class GraphCase:
    """Graphs, their cluster and their search, all from fixed seeds.

    Attributes:
      family: As in `regal_jax.datasets.generate`: ``erdos-renyi`` (average degree 2) or ``layered`` (16 ops
        per layer).
      ops: Ops of each graph; with `spread`, of the largest graph.
      graphs: Number of graphs in the batch, ``B``.
      spread: Ops of the smallest graph; sizes are drawn uniformly in between. 0 for equal sizes.
      devices: Number of devices ``D``.
      transfer: As in `regal_jax.graph.Cluster.uniform`.
      objective: ``makespan`` or ``peak-memory``.
      encoding: What the genes stand for, a name in `regal_jax.solve.ENCODINGS`.
      proposal: ``uniform``; ``beta``: random rows of a table of 16 beta distributions; ``table``: a
        table of 16 times beta(1, 1), which gives exactly the draws of ``uniform``, so that the difference is
        the cost of the table. (Other draws give candidates of other costs.)
      population: Population ``P``; a fifth are elites and 15 % mutants.
      evaluations: Budget of each graph.
      method: Name of a solver, or one of `benchmarks.searches.METHODS`, where `optimize_many` is called.
      seed: Seed of the first graph and of the search.
    """

    family: str = "erdos-renyi"
    ops: int = 100
    graphs: int = 1
    spread: int = 0
    devices: int = 2
    transfer: str = "blocking"
    objective: str = "makespan"
    encoding: str = "chromosome"
    proposal: str = "uniform"
    population: int = 100
    evaluations: int = 5000
    method: str = "brkga"
    seed: int = 0

    def make_graphs(self) -> list[ComputationGraph]:
        """``B`` graphs."""
        sizes = [self.ops] * self.graphs
        if self.spread:
            rng = np.random.default_rng(self.seed)
            sizes = rng.integers(self.spread, self.ops, self.graphs, endpoint=True).tolist()
        return [generate(self.family, n, self.seed + i) for i, n in enumerate(sizes)]

    def cluster(self) -> Cluster:
        """Equal devices without a limit of memory."""
        return Cluster.uniform(self.devices, transfer=self.transfer)

    def config(self) -> BrkgaConfig:
        """The defaults for a population of 100, and their shares for others."""
        return BrkgaConfig(self.population, elites=self.population // 5, mutants=self.population * 15 // 100)

    def problem(self) -> Problem:
        """``B`` graphs on the device, padded as `regal_jax.optimize_many` would."""
        return make_problem(self.make_graphs(), self.cluster())

    def keys(self) -> jax.Array:
        """``[B]`` typed keys."""
        return jax.random.split(jax.random.key(self.seed), self.graphs)

    def make_proposal(self, problem: Problem) -> Proposal | None:
        """The proposal for ``problem``; ``None`` for the uniform one."""
        if self.proposal == "uniform":
            return None
        rng = np.random.default_rng(self.seed)
        flat = self.proposal == "table"
        table = quantile_table(*(np.ones((2, _BETAS)) if flat else rng.uniform(0.5, 8, (2, _BETAS))))
        n, d = problem.bucket.ops, problem.num_devices
        return Proposal(
            jnp.broadcast_to(table, (self.graphs, *table.shape)),
            jnp.asarray(rng.integers(0, _BETAS, (self.graphs, n, d + 1), dtype=np.uint8)),
            problem.bucket.tensors if problem.blocking else 0,
        )

    def small(self) -> "GraphCase":
        """A case of the same kind, small enough to be replayed candidate by candidate."""
        return dataclasses.replace(
            self,
            ops=min(self.ops, 40),
            spread=min(self.spread, 10),
            graphs=min(self.graphs, 2),
            population=min(self.population, 5),
            evaluations=min(self.evaluations, 20),
        )


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """One line of ``python -m benchmarks list``.

    Attributes:
      name: ``SECTION/NAME``; the section names the measurement.
      summary: One line.
      cases: Variants that are run in turns, by label; a single one has the label ``""``.
    """

    name: str
    summary: str
    cases: Mapping[str, GraphCase]

    @property
    def section(self) -> str:
        """The measurement, one of `SECTIONS`."""
        return self.name.split("/")[0]

    @property
    def case(self) -> GraphCase:
        """The first variant."""
        return next(iter(self.cases.values()))


SECTIONS: Final[Mapping[str, str]] = {
    "throughput": "evaluations per second of a whole BRKGA run, by size and family",
    "batch": "graphs searched side by side: one, some and many in turns",
    "population": "small and large populations in turns",
    "devices": "clusters of few and many devices in turns",
    "objective": "makespan and peak memory in turns",
    "transfer": "the transfer models in turns",
    "proposal": "uniform proposals, the same through a table, and beta proposals in turns",
    "implementations": "every implementation of the simulator that can run here, in turns",
    "python": "libraries with a decoder in pure Python, in turns with regal_jax (group bench)",
    "phases": "each part of one generation alone, and the whole generation",
    "compile": "trace, lower and compile, nothing cached",
    "start": "imports and the first call of a fresh process, without and with a persistent cache",
    "memory": "peak memory of a fresh process",
    "scaling": "cost of an evaluation from small to large graphs, against n log n",
    "padding": "gene slots wasted when graphs of many sizes share batches",
    "searches": "calls of optimize_many: the searches on the host and BRKGA in turns",
    "loops": "compilation of the loops of the host, nothing cached",
    "training": "steps of training REGAL's policy, each with 4 searches of every graph",
}
"""Section -> measurement."""


def _one(name: str, summary: str, **fields: Any) -> Benchmark:
    return Benchmark(name, summary, {"": GraphCase(**fields)})


def _variants(name: str, summary: str, field: str, values: Sequence[Any], **fields: Any) -> Benchmark:
    return Benchmark(name, summary, {str(v): GraphCase(**{**fields, field: v}) for v in values})


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _smoke() -> list[Benchmark]:
    """One quick benchmark of each kind of measurement, to check that all run."""
    tiny = {"ops": 12, "population": 10, "evaluations": 26}
    # Benchmarks share a program where possible, since compilation takes most of the time.
    return [
        _one("throughput/er-12", "12 ops", **tiny),
        _variants("scaling/er", "10 and 12 ops", "ops", (10, 12), **tiny),
        _variants("proposal/er-12", "12 ops", "proposal", ("uniform", "table", "beta"), **tiny),
        _one("implementations/er-12", "12 ops", **tiny),
        _one("python/er-12", "12 ops", **tiny),
        _one("phases/er-12-peak", "12 ops, peak memory", objective="peak-memory", **tiny),
        _one("compile/er-12", "12 ops", **tiny),
        _one("start/er-12", "12 ops", **tiny),
        _one("memory/er-12", "12 ops", **tiny),
        _one("padding/er-4-to-40", "8 graphs of 4 to 40 ops", graphs=8, spread=4, **{**tiny, "ops": 40}),
        _one("training/er-12", "2 graphs of 12 ops", graphs=2, **tiny),
        _variants("searches/er-12", "12 ops", "method", ("brkga", "list-search"), **tiny),
        _one("loops/er-12", "12 ops", method="list-search", **tiny),
    ]


def _solves(full: bool) -> list[Benchmark]:
    """Whole runs."""
    found = [
        _one(f"throughput/{short}-{n}", f"{n} ops, {family}", family=family, ops=n)
        for short, family in _FAMILIES.items()
        for n in ((50, 100, 200, 500, 1000, 2000) if full else (50, 100, 200, 500))
    ]
    for n, b in ((100, (1, 8, 32)), (500, (1, 8, 32) if full else (1, 8))):
        found.append(_variants(f"batch/er-{n}", f"{_numbers(b)} graphs of {n} ops", "graphs", b, ops=n))
    p, d = ((20, 100, 1000, 5000), (1, 2, 4, 8)) if full else ((20, 100, 1000), (1, 2, 4))
    # The budget suffices for a few generations of the largest population.
    fields = {"evaluations": max(5000, 5 * p[-1])}
    found.append(_variants("population/er-100", f"populations of {_numbers(p)}", "population", p, **fields))
    found.append(_variants("devices/er-100", f"{_numbers(d)} devices", "devices", d))
    for n in (100, 500) if full else (100,):
        for field, values in (
            ("objective", ("makespan", "peak-memory")),
            ("proposal", ("uniform", "table", "beta")),
        ):
            found.append(
                _variants(f"{field}/er-{n}", f"{n} ops, {' and '.join(values)}", field, values, ops=n)
            )
    costs = ("blocking", "blocking:latency=5", "delay:latency=5", "free")
    found.append(_variants("transfer/er-100", "100 ops, every transfer model", "transfer", costs))
    for n in (100, 500, 2000) if full else (100, 500):
        found.append(_one(f"implementations/er-{n}", f"{n} ops, every implementation", ops=n))
    by_schedules = {"graphs": 32, "encoding": "schedule"}
    found.append(_one("implementations/er-100-schedule", "32 graphs, schedule generation", **by_schedules))
    return found + [_one(f"python/er-{n}", f"{n} ops", ops=n) for n in ((100, 500) if full else (100,))]


def _others(full: bool) -> list[Benchmark]:
    """Benchmarks other than whole runs, and short runs of very large graphs."""
    found = []
    for n in (100, 500, 2000) if full else (100, 500):
        found.append(_one(f"phases/er-{n}", f"{n} ops", ops=n))
        peak = {"ops": n, "objective": "peak-memory"}
        found.append(_one(f"phases/er-{n}-peak", f"{n} ops, peak memory", **peak))
    found.append(_one("phases/er-100-beta", "100 ops, beta proposal", proposal="beta"))
    found += [_one(f"compile/er-{n}", f"{n} ops", ops=n) for n in ((100, 1000) if full else (100,))]
    found.append(_one("start/er-100", "100 ops", evaluations=1000))
    # Two generations, since memory does not grow after the second.
    most = 40_000 if full else 4000
    large = {"family": "layered", "ops": most, "evaluations": 260}
    found.append(_one(f"memory/layered-{most}", f"{most} ops, population 100", **large))
    sizes = (1000, 4000, 10_000, 40_000) if full else (1000, 4000, 10_000)
    few = {"family": "layered", "population": 20, "evaluations": 52}
    found.append(_variants("scaling/layered", f"{_numbers(sizes)} ops", "ops", sizes, **few))
    found.append(_one("padding/er-50-to-500", "64 graphs of 50 to 500 ops", ops=500, spread=50, graphs=64))
    found.append(_one("training/er-100", "32 graphs of 100 ops", graphs=32, evaluations=1000))
    return found


def _on_the_host(full: bool) -> list[Benchmark]:
    """The searches on the host, and their loops."""
    links, peak = {"transfer": "pcie4x16"}, {"objective": "peak-memory"}
    makespan = ("brkga", "list-search without insertion", "list-search", "auto")
    found = []
    for short, family in _FAMILIES.items():
        for n in (100, 400, 2000) if full else (100, 400):
            for d in (2, 4):
                fields = {"family": family, "ops": n, "devices": d, **links}
                summary = f"{n} ops, {d} devices, pcie4x16"
                found.append(_variants(f"searches/{short}-{n}-d{d}", summary, "method", makespan, **fields))
    fields = {"family": "layered", "ops": 400, "transfer": "free"}
    found.append(_variants("searches/layered-400-free", "400 ops, free", "method", makespan, **fields))
    methods = ("brkga", "peak-search", "auto")
    found.append(
        _variants("searches/er-100-peak", "100 ops, peak memory", "method", methods, ops=100, **peak)
    )
    methods = ("brkga", "order-search", "auto")
    fields = {"family": "layered", "ops": 400, "devices": 1, "transfer": "free", **peak}
    found.append(_variants("searches/layered-400-order", "400 ops, one device", "method", methods, **fields))
    loops = {"family": "layered", "ops": 400, "method": "auto"}
    found.append(_one("loops/makespan", "auto, pcie4x16", **loops, **links))
    found.append(_one("loops/peak-memory", "auto, peak memory", **loops, **peak))
    found.append(_one("loops/order", "auto, one device", **{**loops, **fields, "evaluations": 100_000}))
    return found


def benchmarks(size: str = "default") -> list[Benchmark]:
    """All benchmarks of a size.

    Args:
      size: ``smoke`` (seconds, to check that everything runs), ``default`` (minutes) or ``full`` (for
        releases).

    Raises:
      ConfigError: The size is unknown.
    """
    if size not in SIZES:
        raise ConfigError(f"size: unknown {size!r}; use one of {', '.join(SIZES)}")
    full = size == "full"
    return _smoke() if size == "smoke" else [*_solves(full), *_others(full), *_on_the_host(full)]


def select(patterns: Sequence[str], size: str = "default") -> list[Benchmark]:
    """The benchmarks whose name a pattern matches; all if there is none.

    Args:
      patterns: Sections, names, or names with wildcards (``throughput/er-*``).
      size: As in `benchmarks`.

    Raises:
      ConfigError: A pattern matches nothing.
    """
    known = benchmarks(size)
    if not patterns:
        return known
    chosen = {b.name for b in known for p in patterns if b.section == p or fnmatch.fnmatchcase(b.name, p)}
    for p in patterns:
        if not any(b.section == p or fnmatch.fnmatchcase(b.name, p) for b in known):
            sections = ", ".join(dict.fromkeys(b.section for b in known))
            raise ConfigError(
                f"no benchmark of size {size!r} is called {p!r}; sections are {sections}; "
                "'python -m benchmarks list' shows all"
            )
    return [b for b in known if b.name in chosen]
