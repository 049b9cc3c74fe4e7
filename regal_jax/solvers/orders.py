"""Orders with low peak memory on one device: the baselines of Neural Topological Ordering, and a search."""

import dataclasses
from typing import ClassVar, Final

import numpy as np

from regal_jax.checks import check_field, real, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch, OrderSearchConfig, least_random_order
from regal_jax.plan import Objective, Plan, proven_status
from regal_jax.solvers.protocol import Constructive, HostSolver, Instance
from regal_jax.solvers.searches import STARTS, settings_of
from regal_jax.solvers.topoformer import TopoformerLike, check_topoformer, plan_of_order, topoformer_of

__all__ = ["ApproximateDp", "DepthFirstDp", "OrderSearch", "RandomOrders"]

_MOST_GUIDED: Final = 4096
"""Largest number of ops for the network, since attention takes quadratic time."""
_LEAST_SECONDS: Final = 30.0
"""Least time limit of a search that runs the network, whose program may take seconds to compile."""


def _proven(plan: Plan, states: int, *, proven: bool) -> Plan:
    """The plan with its status and the number of states in its provenance."""
    status = proven_status(feasible=plan.feasible, proven=proven)
    return dataclasses.replace(plan, provenance={**plan.provenance, "status": status, "states": states})


@dataclasses.dataclass(frozen=True)
class ApproximateDp(Constructive):
    """Approximate dynamic programming: the best partial orders of each length, on one device.

    Attributes:
      width: Number of sets of ops kept for each length. The paper has 100 000; the default takes a tenth of
        the time, some seconds for 500 ops.
      held: Among sets with equal peaks keep those that hold least memory (ours); on the host only.
      implementation: ``"host"``, or ``"device"`` for compiled programs on JAX's default device, which count
        memory in units (`regal_jax.problem.memory_unit`). ``None`` chooses the host if that device is a CPU.

    Raises:
      ConfigError: A value is out of range.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.3.

    Examples:
      >>> from regal_jax import ApproximateDp, Cluster, optimize
      >>> from regal_jax.datasets import generate
      >>> graph = generate("ordering-layered", 30, seed=0)
      >>> plan = optimize(graph, Cluster.uniform(1), objective="peak-memory", method=ApproximateDp(width=500))
      >>> plan.provenance["status"]
      'optimal'
    """

    name: ClassVar[str] = "approximate-dp"
    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    most_devices: ClassVar[int | None] = 1
    width: int = 10_000
    held: bool = False
    implementation: str | None = None

    def __post_init__(self) -> None:
        check_field(self, "width", 1)
        if not isinstance(self.held, bool):
            raise ConfigError(f"ApproximateDp: held is {shown(self.held)}; give True or False")
        known = isinstance(self.implementation, str) and self.implementation in ("host", "device")
        if self.implementation is not None and not known:
            given = shown(self.implementation)
            raise ConfigError(f"ApproximateDp: implementation is {given}; give 'host', 'device' or None")
        if self.implementation == "device" and self.held:
            raise ConfigError("ApproximateDp: implementation 'device' has no 'held'; use 'host', or None")

    def construct(self, instance: Instance) -> Plan:
        """The plan of the best order; after the time limit one set of each length is kept."""
        from regal_jax.heuristics import approximate_dp

        if self._on_device():
            return self._construct_on_device(instance)
        found = approximate_dp(instance.graph, self.width, self.held, instance.seconds)
        return _proven(plan_of_order(self, instance, found.order), found.states, proven=found.optimal)

    def _on_device(self) -> bool:
        import jax

        if self.implementation is None:
            return not self.held and jax.default_backend() != "cpu"
        return self.implementation == "device"

    def _construct_on_device(self, instance: Instance) -> Plan:
        from regal_jax.ordering import approximate_dp
        from regal_jax.problem import Bucket, make_problem, memory_unit

        graph = instance.graph
        # On one device, capacities and transfers do not affect the order.
        problem = make_problem([graph], Cluster.uniform(1, transfer="free"), Bucket.of(graph))
        found = approximate_dp(problem, self.width, seconds=instance.seconds)
        # A peak in units of several bytes is rounded, so it proves no optimum in bytes.
        optimal = bool(found.optimal[0]) and memory_unit(graph) == 1
        plan = plan_of_order(self, instance, found.orders[0, : graph.num_ops].astype(np.int64))
        return _proven(plan, found.states, proven=optimal)


@dataclasses.dataclass(frozen=True)
class DepthFirstDp(Constructive):
    """Depth-first dynamic programming with backtracking, on one device; exact if it ends in time.

    Attributes:
      time_limit: Seconds for each graph. The plan depends on the machine unless the optimum is proven.
      states: Largest number of sets of ops that are remembered; ``None`` for 512 MiB of them.

    Raises:
      ConfigError: A value is out of range.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.3.
    """

    name: ClassVar[str] = "depth-first-dp"
    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    most_devices: ClassVar[int | None] = 1
    time_limit: float = 60.0
    states: int | None = None

    def __post_init__(self) -> None:
        if real(self.time_limit, 0, infinite=True) is None:
            given = shown(self.time_limit)
            raise ConfigError(f"DepthFirstDp: time_limit is {given}; give a number of zero or more")
        object.__setattr__(self, "time_limit", real(self.time_limit, infinite=True))
        if self.states is not None:
            check_field(self, "states", 1)

    def construct(self, instance: Instance) -> Plan:
        """The best whole order found within the time limit; the first one is found in any case."""
        from regal_jax.heuristics import depth_first_dp

        seconds = self.time_limit if instance.seconds is None else min(self.time_limit, instance.seconds)
        found = depth_first_dp(instance.graph, instance.seed, seconds, self.states)
        return _proven(plan_of_order(self, instance, found.order), found.states, proven=found.optimal)


@dataclasses.dataclass(frozen=True)
class RandomOrders(Constructive):
    """The best of some random orders on one device; each takes a uniformly random ready op at every step.

    Attributes:
      orders: Number of orders.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "random-orders"
    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    most_devices: ClassVar[int | None] = 1
    orders: int = 100

    def __post_init__(self) -> None:
        check_field(self, "orders", 1)

    def construct(self, instance: Instance) -> Plan:
        """The best of the orders that were drawn within the time limit."""
        order = least_random_order(instance.graph, self.orders, instance.seed, instance.seconds)
        return plan_of_order(self, instance, order)


@dataclasses.dataclass(frozen=True)
class OrderSearch(OrderSearchConfig, HostSolver):
    """Search among orders on one device, for peak memory, or for an order that fits the memory.

    Attributes:
      weights: Weights of the network whose priorities guide the beams, as in `TopoformerSamples`; ``None``
        for none. The network runs once `guide_after` partial orders have been made, for graphs of at most
        4096 ops. A search with a time limit below 30 s does not run it, since no limit ends its compilation.
        All other settings are those of `OrderSearchConfig`.

    Raises:
      ConfigError: A value is out of range, or there are no such weights.

    Examples:
      >>> from regal_jax import Cluster, OrderSearch, optimize
      >>> from regal_jax.datasets import generate
      >>> graph = generate("ordering-layered", 30, seed=0)
      >>> optimize(graph, Cluster.uniform(1), objective="peak-memory", method=OrderSearch()).feasible
      True
    """

    name: ClassVar[str] = "order-search"
    most_devices: ClassVar[int | None] = 1
    weights: TopoformerLike = None

    def __post_init__(self) -> None:
        super().__post_init__()
        # The default is always there. Checking it would import `regal_jax.ordering` in every search.
        if self.weights is not None and self.weights != "default":
            check_topoformer(self.weights)

    @property
    def config(self) -> OrderSearchConfig:
        """The settings."""
        return settings_of(self, OrderSearchConfig)

    def begin(self, instance: Instance) -> HostSearch:
        """An `OrderSearchRun`."""
        from regal_jax.heuristics import OrderSearchRun

        starts = instance.starts[:STARTS]
        long = instance.seconds is None or instance.seconds >= _LEAST_SECONDS
        guided = self.weights is not None and long and instance.graph.num_ops <= _MOST_GUIDED
        priorities = self._priorities if guided else None
        return OrderSearchRun(
            *(instance.graph, instance.cluster, instance.seed, self.config, starts, priorities),
            objective=instance.objective,
        )

    def _priorities(self, graph: ComputationGraph) -> np.ndarray:
        """``[N]`` priorities that fall along the greedy order of the network."""
        from regal_jax.ordering import graph_priorities

        return graph_priorities(topoformer_of(self.weights), graph)
