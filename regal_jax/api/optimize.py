"""`optimize` and `optimize_many`: verified plans for graphs."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jax

from regal_jax.api.many import Batch, check_and_warn, optimize_here, warn_of
from regal_jax.api.names import MethodName, ObjectiveName
from regal_jax.checks import check_callback
from regal_jax.engines import opened
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, Colocate, ComputationGraph, Pin
from regal_jax.graph.constraints import plain_constraints
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.interrupts import interruptible
from regal_jax.solvers import Solver
from regal_jax.solvers.loop.earlier import WarmStarts
from regal_jax.solvers.loop.settings import Settings, budget_of, each, one_seed
from regal_jax.solvers.loop.watch import Improvement

if TYPE_CHECKING:
    from regal_jax.engines import Engine
    from regal_jax.policies import Policy

__all__ = ["optimize", "optimize_many"]


def optimize(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    objective: Objective | ObjectiveName = Objective.MAKESPAN,
    evaluations: int | None = None,
    seed: int | jax.Array = 0,
    method: "MethodName | Solver | None" = None,
    policy: "Policy | str | os.PathLike[str] | None" = None,
    warm_start: WarmStarts = True,
    contract: bool | None = None,
    pin: Pin | None = None,
    colocate: Colocate = (),
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    runs: int = 1,
    progress: bool = False,
    on_improvement: Callable[[Improvement], object] | None = None,
    key: int | jax.Array | None = None,
) -> Plan:
    """Places and orders the ops of ``graph`` on ``cluster``.

    The plan is replayed exactly on the host. With warm starts the plan of a search is never worse than the
    best of `regal_jax.heuristics.HEURISTICS` (of those that ran within the ``time_limit``). If no plan that
    fits the memory was found, the one with the least overflow is returned with a warning; see
    `Plan.feasible`. A plan that meets its lower bound ends the search at once.

    Ctrl-C returns the best plan so far. During a search, the first Ctrl-C takes effect at the search's next
    stop. A second Ctrl-C, or one during the heuristics, takes effect between two steps of the work: within
    about a second, or after the current compilation. ``plan.provenance["stopped"]`` says what ended the
    search.

    Args:
      graph: The graph.
      cluster: Cluster on which the graph runs.
      objective: ``"makespan"`` (under the memory capacities, if they are finite) or ``"peak-memory"``.
      evaluations: Budget of the search, the number of simulated candidates. ``None``: 20 000, for peak memory
        on one device 5000. Methods without a search ignore it: heuristics, ``"cp-sat"``,
        ``"approximate-dp"``, ``"depth-first-dp"``, ``"random-orders"``, ``"topoformer"``, ``"beam"`` and
        ``"gflownet"``.
      seed: A number or a typed `jax.random.key`. The same seed gives the same plan on the same versions.
        ``"cp-sat"`` is an exception, since it has two threads; with ``method=CpSat(workers=1)`` its plan is
        the same, too, unless its time limit ends it.
      method: A solver, or the name of one with its default settings (`regal_jax.solvers.solvers` has all):
        ``"auto"`` (`Auto`), a search on the host and, with a ``policy``, BRKGA for what is left of the budget
        when that no longer pays; ``"brkga"`` (`Brkga`), which without warm starts is the paper's;
        ``"annealing"`` and ``"local-search"``, which walk from the best warm start; ``"list-search"``
        (makespan), ``"peak-search"`` (peak memory) and ``"order-search"`` (one device), the searches on
        the host; a `Portfolio` of these; ``"approximate-dp"``, ``"depth-first-dp"`` and
        ``"random-orders"`` (peak memory, one device); ``"cp-sat"``; or a heuristic alone. ``None``:
        ``"brkga"`` with any ``policy`` but ``"default"`` and ``"none"``, else ``"auto"``.
      policy: `Brkga.policy` or `Auto.policy` of a method that is named: ``"regal-primed"`` (also
        ``"default"``) or ``"regal-faithful"``, the papers' policy, for weights of the package; a file of
        weights, or a `Policy`; ``"none"`` for uniform draws. ``"default"`` differs from ``"regal-primed"`` in
        the ``method`` that it selects, see there. With ``None``, ``"auto"`` uses the weights of
        the package only where there is no search on the host, if there are any for the problem, and
        ``"brkga"`` uses none. ``"default"`` without such weights gives a warning. There is also a
        warning if the search on the host took all of the budget, so that the policy was not used.
      warm_start: ``True``: start from the heuristics' plans, and never do worse. A `Plan`, the name of a
        plan's file, or a list of these: also start from these plans, and never do worse. They may be for
        another cluster or objective, as `regal_jax.plan.adapt_plan` describes; a plan for two devices, for
        example, is a start on four. ``False``: no starts. Heuristics take no plans.
      contract: Whether to search the graph that `regal_jax.contract` makes of this one, and expand the plan.
        ``True``: only the contracted graph is searched; the heuristics run on both. ``False``: only the
        original is searched. ``None``: for the makespan, if the contracted graph is much smaller, ``"auto"``
        searches both and continues with the better one; other methods search the original.
      pin: Devices for ops by name or pattern, e.g. ``{"encoder/*": 0, "*head/*": (0, 1)}``, in addition to
        the constraints of the graph; see `regal_jax.graph.constrain`. The plan is for ``graph`` as given.
        `Plan.pin` has the pins, and the lower bound holds for plans that obey them.
      colocate: Patterns over op names; the ops that match a pattern share a device.
      target: Stop when the objective is at most this. Methods without a search ignore it.
      stall: Stop after this number of evaluations without improvement. Methods without a search ignore it.
      time_limit: Stop after this number of seconds, including compilation. A compilation that has begun is
        not interrupted, so the first calls of an installation may take some seconds more. Results then depend
        on the machine. Heuristics may use three tenths of it. Annealing cools with the budget of evaluations,
        so it stays hot if the time does not suffice for the budget.
      runs: Number of independent runs of the search, of which the best plan is returned. Each has the budget
        ``evaluations`` and random numbers of its own; the first is the search without ``runs``. They run side
        by side: on the cores of the host, or as rows of one batch on an accelerator. Where no core would
        idle, more ``evaluations`` gain as much in less time. In the provenance ``runs`` has the objectives of
        all, and ``evaluations``, ``seconds`` and ``work`` are their sums.
      progress: Show a progress bar.
      on_improvement: Called with an `Improvement` for each better plan of a heuristic, and a few times a
        second with the best plan of the search if it is better. An exception that it raises ends the call.
      key: The same as ``seed``.

    Returns:
      The plan.

    Warns:
      InfeasiblePlanWarning: The plan does not fit the memory; `Plan.impossible` says if none can.
      UserWarning: A number is implausible, or a named policy was not used.

    Raises:
      ConfigError: An argument is invalid.
      ClusterError: The cluster cannot run the graph.
      PlanError: A solver of your own returned a plan that is not valid.
      SolverError: A solver of your own raised an exception.
      KeyboardInterrupt: Ctrl-C before there was any plan.

    Examples:
      >>> from regal_jax import Cluster, GraphBuilder, optimize
      >>> builder = GraphBuilder("diamond")
      >>> for name, inputs in {"a": [], "b": ["a:0"], "c": ["a:0"], "d": ["b:0", "c:0"]}.items():
      ...     _ = builder.add_op(name, runtime="1ms", inputs=inputs, outputs=["1MiB"])
      >>> plan = optimize(builder.build(), Cluster.uniform(2, transfer="free"), seed=0)
      >>> round(1000 * plan.makespan, 3), plan.optimal
      (3.0, True)

    References:
      Paliwal et al. 2020, "Reinforced Genetic Algorithm Learning for Optimizing Computation Graphs", ICLR.
    """
    with interruptible():
        settings = Settings.checked(
            objective=objective,
            evaluations=budget_of(evaluations, objective, cluster),
            seed=one_seed(seed, key),
            method=method,
            policy=policy,
            warm_start=warm_start,
            contract=contract,
            target=target,
            stall=stall,
            time_limit=time_limit,
            progress=progress,
            runs=runs,
        )
        pin, colocate = plain_constraints(pin, colocate)
        check_callback("on_improvement", on_improvement)
        tell = None if on_improvement is None else lambda _, improvement: on_improvement(improvement)
        options = {"batch_size": None if settings.runs > 1 else 1, "devices": None, "on_improvement": tell}
        check_and_warn([graph], [cluster], settings)
        plans = optimize_here([graph], [cluster], settings, pin, colocate, **options)
        warn_of(plans, settings)
        return plans[0]


def optimize_many(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    *,
    objective: Objective | ObjectiveName = Objective.MAKESPAN,
    evaluations: int | None = None,
    seed: int | jax.Array = 0,
    method: "MethodName | Solver | None" = None,
    policy: "Policy | str | os.PathLike[str] | None" = None,
    warm_start: WarmStarts = True,
    contract: bool | None = None,
    pin: Pin | None = None,
    colocate: Colocate = (),
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    runs: int = 1,
    progress: bool = True,
    batch_size: int | None = None,
    devices: Sequence[Any] | None = None,
    engine: "str | Engine" = "local",
    store: str | os.PathLike[str] | None = None,
    on_plan: Callable[[int, Plan], object] | None = None,
    on_improvement: Callable[[int, Improvement], object] | None = None,
    key: int | jax.Array | None = None,
) -> list[Plan]:
    """`optimize` for many graphs; graphs of similar size share compiled calls.

    Each graph gets the plan that `optimize` gives, whatever the other graphs, the order, the batch size or
    the number of devices. (A ``time_limit`` is an exception, since it is for the whole call.)

    Ctrl-C works as in `optimize` and loses no plan. A graph that was not searched yet, or whose search a
    second Ctrl-C ended before its first result, gets the best heuristic plan so far, or a plan on a single
    device, with ``stopped: interrupted`` in the provenance.

    Args:
      graphs: The graphs.
      clusters: One for all graphs, or one per graph.
      objective: As in `optimize`.
      evaluations: Budget of each graph, as in `optimize`. ``None``: one default for all graphs, for peak
        memory 5000 only where every cluster has one device.
      seed: Seed from which, with the graph's content, each graph's key is derived.
      method: As in `optimize`.
      policy: As in `optimize`.
      warm_start: As in `optimize`. Each plan is used for the graphs for which it was made, whatever its
        position in the list. Some graphs may have no plan.
      contract: As in `optimize`.
      pin: As in `optimize`, for every graph.
      colocate: As in `optimize`, for every graph.
      target: As in `optimize`.
      stall: As in `optimize`.
      time_limit: Seconds for the whole call.
      runs: As in `optimize`.
      progress: Show a progress bar.
      batch_size: Most graphs in one call; chosen by size if not given.
      devices: JAX devices for the search; all of this process on the default backend if not given.
      engine: ``"local"``, this process; ``"ray"`` or ``"ray:ADDRESS"``, the machines of a Ray cluster (extra
        ``ray``), or one that is started on this machine; or a `regal_jax.engines.RayEngine`, whose workers
        stay for further calls. Plans are the same on all of them.
      store: Folder in which every plan is written under its graph's hash as soon as it is found; created if
        missing. A graph whose plan is in it, from a call with the same settings, is not planned again, unless
        an earlier plan is better. Plans of interrupted searches are not written.
      on_plan: Called with the index of a graph and its plan as soon as it is found, for example to save it.
      on_improvement: As in `optimize`, but called with the index of a graph and the `Improvement`.
      key: The same as ``seed``.

    Returns:
      One plan per graph, in the order of the graphs.

    Warns:
      InfeasiblePlanWarning: Some plans do not fit the memory; one warning for all.

    Raises:
      ConfigError: An argument is invalid, or the engine cannot be reached.
      ClusterError: A cluster cannot run its graph.
      PlanError: A solver of your own returned a plan that is not valid.
      SolverError: A solver of your own raised an exception. On an engine it is a reason of a WorkerError.
      WorkerError: Graphs were given up, since their workers died at every try; it has the other plans.
      KeyboardInterrupt: Ctrl-C before there was a plan of any graph.

    Examples:
      >>> from regal_jax import Cluster, optimize_many
      >>> from regal_jax.datasets import generate
      >>> graphs = [generate("chain", ops, seed=0) for ops in (3, 4)]
      >>> plans = optimize_many(graphs, Cluster.uniform(2), progress=False)
      >>> [(plan.graph_name, plan.optimal) for plan in plans]
      [('chain-3-0', True), ('chain-4-0', True)]
    """
    with interruptible():
        settings = Settings.checked(
            objective=objective,
            evaluations=budget_of(evaluations, objective, clusters),
            seed=one_seed(seed, key),
            method=method,
            policy=policy,
            warm_start=warm_start,
            contract=contract,
            target=target,
            stall=stall,
            time_limit=time_limit,
            progress=progress,
            runs=runs,
        )
        pin, colocate = plain_constraints(pin, colocate)
        check_callback("on_plan", on_plan)
        check_callback("on_improvement", on_improvement)
        if isinstance(graphs, ComputationGraph) or not isinstance(graphs, Iterable):
            what = type(graphs).__name__
            raise ConfigError(f"graphs: give a list of graphs, or call optimize for one graph, got {what}")
        graphs = list(graphs)
        clusters = each(clusters, len(graphs))
        with opened(engine) as workers:
            check_and_warn(graphs, clusters, settings)
            work = Batch(graphs, clusters, settings, pin, colocate, batch_size, devices, workers)
            plans = work.run(store, on_plan, on_improvement)
            warn_of(plans, settings)
            return plans
