"""`optimize` and `optimize_many`: graphs in, verified plans out."""

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from regal_jax.api.batches import share_out
from regal_jax.api.call import Call
from regal_jax.api.settings import Config, Settings, check_pairs, each
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.interrupts import interruptible
from regal_jax.plan import Objective, Plan, contract_for

if TYPE_CHECKING:
    from regal_jax.policies import Policy

__all__ = ["optimize", "optimize_many"]


def optimize(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    evaluations: int = 5000,
    key: int | jax.Array = 0,
    method: str = "brkga",
    policy: "Policy | str | os.PathLike[str] | None" = None,
    warm_start: bool = True,
    contract: bool = False,
    config: Config | None = None,
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    progress: bool = False,
) -> Plan:
    """Places and orders the ops of ``graph`` on ``cluster``.

    The plan has been replayed exactly on the host. With warm starts it is never worse than the best of
    `regal_jax.heuristics.HEURISTICS` (of those that a ``time_limit`` leaves time for); without, it is the
    paper's plain BRKGA. If no plan was found that fits the memory, the one with the least overflow is
    returned: see `Plan.feasible`.

    Ctrl-C returns the best plan so far: the first one when what is being searched has come to a halt (a
    moment; while a program is compiled, longer), a second one at once. While the heuristics run, the first
    one acts at once. What ended the search is in ``plan.provenance["stopped"]``.

    Args:
      graph: What to run.
      cluster: What to run it on.
      objective: ``"makespan"`` (under the memory capacities, if they are finite) or ``"peak-memory"``.
      evaluations: Budget of the search: how many candidates are simulated.
      key: A seed or a typed `jax.random.key`. The same key gives the same plan on the same versions.
      method: ``"brkga"``; ``"annealing"`` or ``"local-search"``, which walk from the best warm start;
        ``"list-search"`` (makespan) and ``"peak-search"`` (peak memory), which search on the host, among list
        schedules and among placements of small peaks; ``"auto"``, which divides the budget between these,
        BRKGA, guided by a policy, and annealing of its best; or the name of a heuristic to use alone.
      policy: What guides the search by the distributions of its first population and mutants: ``"default"``
        for the weights that ship, a file of weights, or a `Policy`; ``"none"`` for uniform ones. With
        ``None`` ``"auto"`` takes the weights that ship, where there are any for the objective and so many
        devices, and ``"brkga"`` none.
      warm_start: Begin from the heuristics' plans, and never do worse.
      contract: Search on the graph that `regal_jax.contract` makes of this one, and expand the plan: for
        graphs of thousands of ops, most of them light. The heuristics run on both.
      config: Of the BRKGA, or an `AnnealingConfig` for ``"annealing"`` and ``"local-search"``, or a
        `ListSearchConfig` for ``"list-search"``, or a `PeakSearchConfig` for ``"peak-search"``.
      target: Stop when the objective is this small.
      stall: Stop after so many evaluations without improvement.
      time_limit: Stop after so many seconds, compilation included. Results then depend on the machine.
        Annealing cools with the budget of evaluations: one that the time does not suffice for leaves it hot.
      progress: Show a progress bar.

    Returns:
      The plan.

    Raises:
      ConfigError: An argument that cannot be.
      ClusterError: A cluster that cannot run the graph.
      KeyboardInterrupt: Ctrl-C before there was any plan.

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
        contract=contract,
        config=config,
        target=target,
        stall=stall,
        time_limit=time_limit,
        progress=progress,
    )
    with interruptible():
        return _optimize([graph], [cluster], settings, batch_size=1, devices=None)[0]


def optimize_many(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    *,
    objective: Objective | str = Objective.MAKESPAN,
    evaluations: int = 5000,
    key: int | jax.Array = 0,
    method: str = "brkga",
    policy: "Policy | str | os.PathLike[str] | None" = None,
    warm_start: bool = True,
    contract: bool = False,
    config: Config | None = None,
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    progress: bool = True,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
    on_plan: Callable[[int, Plan], object] | None = None,
) -> list[Plan]:
    """`optimize` for many graphs: those of similar size share compiled calls.

    Each graph gets the plan that `optimize` would give it, whatever company, order, batch size or number
    of devices it is searched with (a ``time_limit`` excepted, which is for the whole call).

    Ctrl-C works as in `optimize` and loses no plan. Graphs whose turn had not come (or whose search a
    second Ctrl-C ended before it had found anything) get the best plan that a heuristic has made for them
    by then, or everything on a single device, with ``stopped: interrupted`` in the provenance.

    Args:
      graphs: What to run.
      clusters: One for all, or one a graph.
      objective: As in `optimize`, like all that is not listed here.
      evaluations: Of each graph.
      key: Each graph's own key is made from this one and the graph's content.
      method: As in `optimize`.
      policy: As in `optimize`.
      warm_start: As in `optimize`.
      contract: As in `optimize`.
      config: As in `optimize`.
      target: As in `optimize`.
      stall: As in `optimize`.
      time_limit: Seconds for the whole call.
      progress: Show a progress bar.
      batch_size: Most graphs in one call; chosen by size if not given.
      devices: JAX devices to search on; all of the default backend if not given.
      on_plan: Called with the index of a graph and its plan as soon as there is one, to save it, say.

    Returns:
      One plan a graph, in their order.

    Raises:
      ConfigError: An argument that cannot be.
      ClusterError: A cluster that cannot run its graph.
      KeyboardInterrupt: Ctrl-C before there was a plan of any graph.
    """
    settings = Settings.checked(
        objective=objective,
        evaluations=evaluations,
        key=key,
        method=method,
        policy=policy,
        warm_start=warm_start,
        contract=contract,
        config=config,
        target=target,
        stall=stall,
        time_limit=time_limit,
        progress=progress,
    )
    if isinstance(graphs, ComputationGraph):
        raise ConfigError("graphs: give a list of graphs, or call optimize for a single one")
    graphs = list(graphs)
    clusters = each(clusters, len(graphs))
    with interruptible():
        return _optimize(graphs, clusters, settings, batch_size=batch_size, devices=devices, on_plan=on_plan)


def _optimize(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    settings: Settings,
    *,
    batch_size: int | None,
    devices: Sequence[Any] | None,
    on_plan: Callable[[int, Plan], object] | None = None,
) -> list[Plan]:
    check_pairs(graphs, clusters)
    began = time.monotonic()
    pairs = list(zip(graphs, clusters, strict=True))
    made = [contract_for(*pair, settings.objective) for pair in pairs] if settings.contract else None
    if made is not None:
        pairs = list(zip((one.graph for one in made), clusters, strict=True))
    call = Call(pairs, settings, on_plan, contractions=made, began=began)
    if not settings.parts:
        return call.run([])
    # Before the heuristics, which may take minutes: what cannot be searched is refused at once.
    counts = {cluster.num_devices for cluster in clusters}
    guided = {count for count in counts if settings.guide(count) is not None}
    fitted = settings.parts[0].config.fit(settings.evaluations)
    return call.run(share_out(pairs, fitted, batch_size, devices, guided))
