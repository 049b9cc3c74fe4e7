"""Checks that an accelerator computes the same results as the exact host replay."""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import jax
import jax.export
import numpy as np

from benchmarks.cases import GraphCase
from benchmarks.random_cases import random_cluster, random_graph, random_keys
from benchmarks.throughput import runnable
from benchmarks.training import Steps
from regal_jax import Plan, optimize_many
from regal_jax.encoding import decode, gene_shapes, genes_to_keys, preferences, schedule_shapes
from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Timeline, decode_order, decode_placement, replay
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import GENERATORS, IMPLEMENTATIONS, SimulationResult, generate_schedules, simulate
from regal_jax.solve import solve_traced
from regal_jax.solvers import Auto, Brkga, Solver

__all__ = ["Check", "checks", "first_difference", "replay_difference"]

_RTOL: Final = 1e-5
_TRANSFERS: Final = ("blocking", "delay", "free")
_GOALS: Final = (
    (Objective.MAKESPAN, math.inf),
    (Objective.MAKESPAN, 100.0),
    (Objective.PEAK_MEMORY, math.inf),
)
"""Objectives of schedule generation, and scales of capacities."""
_METHODS: Final = (Brkga(), Auto())
_STEPS: Final = 3


@dataclasses.dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
      name: What was checked.
      passed: Whether everything agreed; ``None`` if the check cannot run here.
      detail: The comparison, the first difference, or the reason why the check did not run.
      seconds: Its duration, with compilation.
    """

    name: str
    passed: bool | None
    detail: str
    seconds: float


class _Failed(Exception):
    """A check found a difference; the message says which."""


class _Unable(Exception):
    """A check cannot run here; the message says why."""


@dataclasses.dataclass(frozen=True)
class _Sizes:
    ops: tuple[int, ...]
    devices: tuple[int, ...]
    population: int
    search: GraphCase
    graphs: int


_Compare = Callable[[str, str, _Sizes], str]
"""``(implementation, transfers, sizes) -> what was compared``."""

_OF_SIZE: Final = {
    "smoke": _Sizes((1, 8), (2,), 3, GraphCase(ops=12, population=10, evaluations=26, graphs=2), 2),
    "default": _Sizes((1, 8, 100, 500), (1, 2, 4), 16, GraphCase(evaluations=1000, graphs=8), 6),
}


def checks(size: str) -> Iterator[tuple[str, Callable[[], Check]]]:
    """Names and functions of all checks, the most important first.

    Args:
      size: ``smoke`` or ``default``.
    """
    sizes = _OF_SIZE[size]
    able, skipped = runnable(tuple(IMPLEMENTATIONS))
    yield _named("the search lowers without calls of the host", lambda: _lowers(sizes.search))
    for title, names, compare in (
        ("simulator", IMPLEMENTATIONS, _simulator),
        ("schedule generation", GENERATORS, _generator),
    ):
        for name, transfer in itertools.product(names, _TRANSFERS):

            def call(name: str = name, transfer: str = transfer, compare: _Compare = compare) -> str:
                if name not in able:
                    raise _Unable(skipped[name])
                return compare(name, transfer, sizes)

            yield _named(f"{title} {name}, transfers {transfer}", call)
    for method in _METHODS:
        yield _named(f"optimize_many, method {method.name}", functools.partial(_search, method, sizes))
    yield _named("training steps", lambda: _training(sizes.search))


def _named(name: str, call: Callable[[], str]) -> tuple[str, Callable[[], Check]]:
    def run() -> Check:
        began = time.perf_counter()
        passed: bool | None = True
        try:
            detail = call()
        except _Unable as reason:
            passed, detail = None, str(reason)
        except _Failed as difference:
            passed, detail = False, str(difference)
        except Exception as error:  # An accelerator may fail in any way, which the certificate reports.
            said = " ".join(str(error).split())
            passed, detail = False, f"{type(error).__name__}: {said[:300]}"
        return Check(name, passed, detail, time.perf_counter() - began)

    return name, run


def first_difference(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    genes: dict[str, np.ndarray],
    placement: np.ndarray,
    result: SimulationResult,
) -> str | None:
    """Compares a simulation with the exact replay: placement, order and memory exactly, time up to rounding.

    Args:
      graphs: ``B`` graphs whose sizes are so small that a unit of memory is a byte.
      clusters: Cluster of each.
      genes: ``[B, P, ...]`` uint16.
      placement: ``[B, P, N]``, as it was decoded.
      result: The simulation, with positions.

    Returns:
      The first difference; ``None`` if there is none.
    """
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        n, t = graph.num_ops, graph.num_tensors
        for p in range(result.makespan.shape[1]):
            keys = genes_to_keys({name: leaf[b, p] for name, leaf in genes.items()})
            where = f"{graph.name}, {cluster.num_devices} devices, candidate {p}"
            devices = decode_placement(graph, cluster, keys["affinity"][:n])
            if not np.array_equal(placement[b, p, :n], devices):
                return f"{where}: the placement differs"
            order = decode_order(graph, cluster, devices, keys["priority"][:n], keys["transfer_priority"][:t])
            timeline = replay(graph, cluster, devices, order)
            if not np.array_equal(_order(result, b, p, n, t), order):
                return f"{where}: the order of events differs"
            difference = _timeline_difference(result, b, p, timeline)
            if difference is not None:
                return f"{where}: {difference}"
    return None


def _order(result: SimulationResult, b: int, p: int, n: int, t: int) -> np.ndarray:
    """Event ids by position; empty if the position of any padding is not -1."""
    op = np.asarray(result.op_position[b, p])  # pyright: ignore[reportOptionalSubscript]
    transfer = np.asarray(result.transfer_position[b, p])  # pyright: ignore[reportOptionalSubscript]
    if (op[n:] != -1).any() or (transfer[t:] != -1).any():
        return np.zeros(0, np.int64)
    position = np.concatenate([op[:n], transfer[:t].reshape(-1)])
    events = np.flatnonzero(position >= 0)
    return events[np.argsort(position[events])]


@functools.partial(jax.jit, static_argnames="implementation")
def _simulated(problem: Any, genes: Any, implementation: str) -> Any:
    decisions = decode(problem, genes)
    return decisions.placement, simulate(problem, decisions, implementation=implementation, positions=True)


def _simulator(implementation: str, transfer: str, sizes: _Sizes) -> str:
    candidates = 0
    for devices in sizes.devices:
        rng = np.random.default_rng([devices, _TRANSFERS.index(transfer)])
        graphs = [random_graph(rng, n, devices) for n in sizes.ops]
        clusters = [random_cluster(rng, devices, transfer) for _ in graphs]
        problem = make_problem(graphs, clusters)
        for coarse in (False, True):
            lead = (len(graphs), sizes.population)
            genes = {
                name: random_keys(rng, lead + leaf.shape, coarse)
                for name, leaf in gene_shapes(problem).items()
            }
            placement, result = jax.device_get(_simulated(problem, genes, implementation))
            difference = first_difference(graphs, clusters, genes, placement, result)
            if difference is not None:
                raise _Failed(difference)
            candidates += math.prod(lead)
        _same_alone(implementation, graphs[-1], clusters[-1], genes, placement, result)
    return f"{candidates} candidates equal the exact replay in placement, order and memory"


@functools.partial(jax.jit, static_argnames=("objective", "implementation"))
def _generated(problem: Any, genes: Any, objective: Objective, implementation: str) -> Any:
    given = preferences(problem, genes, objective)
    return generate_schedules(
        problem, given, objective=objective, implementation=implementation, positions=True
    )


def _generator(implementation: str, transfer: str, sizes: _Sizes) -> str:
    candidates = 0
    for devices, (objective, memory) in itertools.product(sizes.devices, _GOALS):
        rng = np.random.default_rng([devices, _TRANSFERS.index(transfer), 1])
        graphs = [random_graph(rng, n, devices) for n in sizes.ops]
        clusters = [random_cluster(rng, devices, transfer, memory_scale=memory) for _ in graphs]
        problem, lead = make_problem(graphs, clusters), (len(graphs), sizes.population)
        for coarse in (False, True):
            genes = {
                name: random_keys(rng, lead + leaf.shape, coarse)
                for name, leaf in schedule_shapes(problem).items()
            }
            found = jax.device_get(_generated(problem, genes, objective, implementation))
            difference = replay_difference(graphs, clusters, *found)
            if difference is not None:
                raise _Failed(difference)
            if implementation != "xla":
                expected = jax.device_get(_generated(problem, genes, objective, "xla"))
                pairs = zip(*map(jax.tree.leaves, (found, expected)), strict=True)
                if not all(np.array_equal(a, b) for a, b in pairs):
                    raise _Failed(f"{devices} devices, {objective}: the schedules are not those of 'xla'")
            candidates += math.prod(lead)
    others = "" if implementation == "xla" else ", and those of 'xla'"
    return f"{candidates} schedules equal the exact replay of their events{others}"


def replay_difference(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    placement: np.ndarray,
    result: SimulationResult,
) -> str | None:
    """Compares schedules with the exact replay of their events: memory exactly, time up to rounding.

    Args:
      graphs: As in `first_difference`.
      clusters: Cluster of each.
      placement: ``[B, P, N]``.
      result: With positions.

    Returns:
      The first difference; ``None`` if there is none.
    """
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        n, t = graph.num_ops, graph.num_tensors
        for p in range(result.makespan.shape[1]):
            where = f"{graph.name}, {cluster.num_devices} devices, candidate {p}"
            try:
                timeline = replay(graph, cluster, placement[b, p, :n], _order(result, b, p, n, t))
            except PlanError as error:
                return f"{where}: {error}"
            difference = _timeline_difference(result, b, p, timeline)
            if difference is not None:
                return f"{where}: {difference}"
    return None


def _timeline_difference(result: SimulationResult, b: int, p: int, timeline: Timeline) -> str | None:
    found, exact = float(result.makespan[b, p]), timeline.makespan
    if not math.isclose(found, exact, rel_tol=_RTOL):
        return f"makespan {found!r}, by the replay {exact!r}"
    peaks = np.asarray(result.peak_memory[b, p])  # pyright: ignore[reportOptionalSubscript]
    if not np.array_equal(peaks, timeline.peak_memory):
        return f"peaks {peaks.tolist()}, by the replay {timeline.peak_memory.tolist()}"
    return None


def _same_alone(
    implementation: str,
    graph: ComputationGraph,
    cluster: Cluster,
    genes: dict[str, np.ndarray],
    placement: np.ndarray,
    result: SimulationResult,
) -> None:
    """Checks that the last graph of a batch has the same results alone and without padding."""
    problem = make_problem([graph], cluster, Bucket.exact(graph))
    alone = {name: genes[name][-1:, :, : leaf.shape[0]] for name, leaf in gene_shapes(problem).items()}
    device, found = jax.device_get(_simulated(problem, alone, implementation))
    n, t = graph.num_ops, graph.num_tensors
    pairs = (
        (device, placement[-1:, :, :n]),
        (found.makespan, result.makespan[-1:]),
        (found.peak_memory, result.peak_memory[-1:]),  # pyright: ignore[reportOptionalSubscript]
        (found.op_position, result.op_position[-1:, :, :n]),  # pyright: ignore[reportOptionalSubscript]
        (found.transfer_position, result.transfer_position[-1:, :, :t]),  # pyright: ignore[reportOptionalSubscript]
    )
    if not all(np.array_equal(a, b) for a, b in pairs):
        raise _Failed(f"{graph.name}: alone, the last bits differ from those in a batch")


def _lowers(case: GraphCase) -> str:
    problem, platform = case.problem(), _platform()
    call = functools.partial(
        solve_traced, evaluations=case.evaluations, config=case.config(), implementation="xla"
    )
    # An export refuses calls of functions that it does not know.
    text = jax.export.export(jax.jit(call), platforms=[platform])(problem, case.keys()).mlir_module()
    for word in ("custom_call", "callback", "infeed", "outfeed"):
        if word in text:
            raise _Failed(f"the program for {platform} has a {word}")
    return f"for {platform}: {len(text.splitlines())} lines of StableHLO, no custom call"


def _platform() -> str:
    backend = jax.default_backend()
    return "cuda" if backend == "gpu" else backend


def _search(method: Solver, sizes: _Sizes) -> str:
    case = sizes.search
    families = ("erdos-renyi", "layered")
    graphs = [
        graph
        for family in families
        for graph in dataclasses.replace(case, family=family, graphs=sizes.graphs // 2).make_graphs()
    ]
    plans = _plans(graphs, method, case)
    for plan, graph in zip(plans, graphs, strict=True):
        plan.verify(graph)
    said = f"{len(plans)} plans verified by the exact replay"
    if jax.default_backend() == "cpu":
        return said
    with jax.default_device(jax.devices("cpu")[0]):
        others = _plans(graphs, method, case, devices=jax.devices("cpu")[:1])
    equal = sum(_same(a, b, graph) for a, b, graph in zip(plans, others, graphs, strict=True))
    return f"{said}; {equal} of them are those of this machine's CPU"


def _plans(graphs: list[ComputationGraph], method: Solver, case: GraphCase, **options: Any) -> list[Plan]:
    return optimize_many(
        graphs, case.cluster(), method=method, evaluations=case.evaluations, progress=False, **options
    )


def _same(a: Plan, b: Plan, graph: ComputationGraph) -> bool:
    alike = np.array_equal(a.placement, b.placement)
    return alike and np.array_equal(a.event_ids(graph), b.event_ids(graph))


def _training(case: GraphCase) -> str:
    steps = Steps(case)
    before = jax.device_get(steps.state.policy)
    for _ in range(_STEPS):
        metrics = {name: float(value) for name, value in steps.step().items()}
        wrong = [name for name, value in metrics.items() if not math.isfinite(value)]
        if wrong:
            raise _Failed(f"not finite: {', '.join(wrong)}")
    leaves = zip(jax.tree.leaves(before), jax.tree.leaves(jax.device_get(steps.state.policy)), strict=True)
    if all(np.array_equal(a, b) for a, b in leaves):
        raise _Failed("the weights did not change")
    return f"{_STEPS} steps of {case.graphs} graphs; all metrics are finite, and the weights change"
