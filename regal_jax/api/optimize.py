"""`optimize` and `optimize_many`: graphs in, verified plans out."""

import time
from collections.abc import Sequence
from typing import Any

import jax

from regal_jax.api.batches import Batch, make_batches
from regal_jax.api.outcome import fallback, heuristic_plan, searched_plan
from regal_jax.api.progress import Bar
from regal_jax.api.settings import Settings, check_pairs, each, graph_key
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import best_heuristic
from regal_jax.plan import Objective, Plan
from regal_jax.search import BrkgaConfig, Status, Stopping
from regal_jax.solve import solve

__all__ = ["optimize", "optimize_many"]


def optimize(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    evaluations: int = 5000,
    key: int | jax.Array = 0,
    method: str = "brkga",
    policy: str | None = None,
    warm_start: bool = True,
    config: BrkgaConfig | None = None,
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    progress: bool = False,
) -> Plan:
    """Places and orders the ops of ``graph`` on ``cluster``.

    The plan has been replayed exactly on the host. With warm starts it is never worse than the best of
    `regal_jax.heuristics.HEURISTICS`; without, it is the paper's plain BRKGA. If no plan was found that
    fits the memory, the one with the least overflow is returned: see `Plan.feasible`. Ctrl-C ends the
    search and returns the best plan so far.

    Args:
      graph: What to run.
      cluster: What to run it on.
      objective: ``"makespan"`` (under the memory capacities, if they are finite) or ``"peak-memory"``.
      evaluations: Budget of the search: how many candidates are simulated.
      key: A seed or a typed `jax.random.key`. The same key gives the same plan on the same versions.
      method: ``"brkga"``, or the name of a heuristic to use alone.
      policy: Reserved for learned guides of the search.
      warm_start: Put the heuristics' plans into the first population, and never do worse.
      config: Of the BRKGA.
      target: Stop when the objective is this small.
      stall: Stop after so many evaluations without improvement.
      time_limit: Stop after so many seconds, compilation included. Results then depend on the machine.
      progress: Show a progress bar.

    Returns:
      The plan.

    Raises:
      ConfigError: An argument that cannot be.
      ClusterError: A cluster that cannot run the graph.

    References:
      Paliwal et al. 2020, "Reinforced Genetic Algorithm Learning for Optimizing Computation Graphs", ICLR.
    """
    settings = Settings.checked(
        objective=objective,
        evaluations=evaluations,
        key=key,
        method=method,
        policy=policy,
        warm_start=warm_start,
        config=config,
        target=target,
        stall=stall,
        time_limit=time_limit,
        progress=progress,
    )
    return _optimize([graph], [cluster], settings, batch_size=1, devices=None)[0]


def optimize_many(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    *,
    objective: Objective | str = Objective.MAKESPAN,
    evaluations: int = 5000,
    key: int | jax.Array = 0,
    method: str = "brkga",
    policy: str | None = None,
    warm_start: bool = True,
    config: BrkgaConfig | None = None,
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
) -> list[Plan]:
    """`optimize` for many graphs: those of similar size share compiled calls.

    Each graph gets the plan that `optimize` would give it, whatever company, order, batch size or number
    of devices it is searched with (a ``time_limit`` excepted, which is for the whole call). After Ctrl-C
    the graphs whose turn had not come get a heuristic's plan.

    Args:
      graphs: What to run.
      clusters: One for all, or one a graph.
      objective: As in `optimize`, like all that is not listed here.
      evaluations: Of each graph.
      key: Each graph's own key is made from this one and the graph's content.
      method: As in `optimize`.
      policy: As in `optimize`.
      warm_start: As in `optimize`.
      config: As in `optimize`.
      target: As in `optimize`.
      stall: As in `optimize`.
      time_limit: Seconds for the whole call.
      progress: Show a progress bar.
      batch_size: Most graphs in one call; chosen by size if not given.
      devices: JAX devices to search on; all of the default backend if not given.

    Returns:
      One plan a graph, in their order.

    Raises:
      ConfigError: An argument that cannot be.
      ClusterError: A cluster that cannot run its graph.
    """
    settings = Settings.checked(
        objective=objective,
        evaluations=evaluations,
        key=key,
        method=method,
        policy=policy,
        warm_start=warm_start,
        config=config,
        target=target,
        stall=stall,
        time_limit=time_limit,
        progress=progress,
    )
    if isinstance(graphs, ComputationGraph):
        raise ConfigError("graphs: give a list of graphs, or call optimize for a single one")
    graphs = list(graphs)
    return _optimize(graphs, each(clusters, len(graphs)), settings, batch_size=batch_size, devices=devices)


def _optimize(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    settings: Settings,
    *,
    batch_size: int | None,
    devices: Sequence[Any] | None,
) -> list[Plan]:
    check_pairs(graphs, clusters)
    pairs = list(zip(graphs, clusters, strict=True))
    if settings.method != "brkga":
        return [heuristic_plan(graph, cluster, settings) for graph, cluster in pairs]
    began = time.monotonic()
    known: list[list[Plan]] = [[] for _ in pairs]
    with Bar(len(pairs) * settings.evaluations, enabled=settings.progress) as bar:
        if settings.warm_start:
            bar.say("heuristics")
            known = [
                best_heuristic(graph, cluster, settings.objective, seed=settings.seed or 0)
                for graph, cluster in pairs
            ]
        plans: dict[int, Plan] = {}
        ended: Status | None = None
        batches = make_batches(pairs, known, settings.config, batch_size, devices)
        for batch in batches:
            left = None if settings.time_limit is None else settings.time_limit - (time.monotonic() - began)
            if left is not None and left <= 0:
                ended = Status.TIME
            if ended is None:
                found, interrupted = _search(batch, settings, left, bar)
                plans.update(found)
                ended = Status.INTERRUPTED if interrupted else None
            else:
                plans.update({i: fallback(*pairs[i], settings, known[i], ended) for i in batch.members})
    return [plans[i] for i in range(len(pairs))]


def _search(batch: Batch, settings: Settings, left: float | None, bar: Bar) -> tuple[dict[int, Plan], bool]:
    """Plans of the graphs of one batch, and whether Ctrl-C ended their search."""
    keys = jax.numpy.stack([graph_key(settings.key, graph.content_hash) for graph in batch.graphs])
    stopping = Stopping(
        evaluations=settings.evaluations,
        stall=settings.stall,
        target=None if settings.target is None else batch.relative(settings.target, settings.objective),
        seconds=left,
    )
    callback = bar.follow(len(batch.members), settings.evaluations)
    result = solve(
        batch.problem,
        keys,
        stopping,
        objective=settings.objective,
        config=settings.config,
        warm=batch.warm,
        callback=callback,
        mesh=batch.mesh,
    )
    plans = {member: searched_plan(batch, row, result, settings) for row, member in enumerate(batch.members)}
    return plans, Status.INTERRUPTED in result.status
