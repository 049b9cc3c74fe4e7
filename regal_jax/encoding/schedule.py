"""Genes of schedule generation: ranks, prices and a rule (docs/design.md, part 2)."""

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.encoding.genes import Genes
from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.plan import Objective
from regal_jax.problem import Bucket, Preferences, Problem

__all__ = ["encode_schedule", "preferences", "schedule_shapes"]

_TOP: Final = 65535
_CHOICE: Final = 4
"""A gene of the rule chooses one of 16 values by its highest bits."""
WEIGHTS: Final = tuple(2.0**i for i in (-5, -4, -4, -3, -3, -3, -2, -2, -2, -1, -1, 0, 0, 1, 2, 20))
"""Weights of ranks. Powers of two, so that products are exact. The last one orders ops by rank alone."""
WASTES: Final = (
    0.0,
    0.0,
    0.0,
    0.0,
    0.0625,
    0.0625,
    0.0625,
    0.125,
    0.125,
    0.125,
    0.25,
    0.25,
    0.25,
    0.5,
    0.5,
    1.0,
)
BEHINDS: Final = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0625, 0.0625, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0)
EARLIES: Final = (1.0,) * 12 + (0.0,) * 4
"""Whether prices count in the choice of the op."""
GROWTHS: Final = (0.0, 0.25, 0.5, 1.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0, 8.0, 16.0, 16.0, 64.0)
"""For peak memory: cost of a byte of growth."""
HELDS: Final = (0.0, 0.0, 0.0, 0.125, 0.125, 0.125, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0, 1.0, 2.0, 2.0, 2.0)
"""For peak memory: cost of a byte that the device holds."""
_RULE: Final = np.array([4, 8, 9, 0]) << (16 - _CHOICE)
"""Genes of a rule that makes good list schedules: 1/8, 1/8, 1/4, and prices count."""
_MEMORY_RULE: Final = np.array([4, 8, 3, 0]) << (16 - _CHOICE)
"""Genes of a rule that makes low peaks: 1/8, 4, 1/8, and prices count."""
_MOST: Final = 4.0
"""The highest price that is not prohibitive, in mean runtimes."""
_PROHIBITIVE: Final = 1e32
"""Higher than any time (`regal_jax.problem.make_problem` limits them to 1e30) or number of bytes."""


def schedule_shapes(problem: Problem) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape of each leaf of the genes of one individual: ``price [N, D]``, ``rank [N]``, ``rule [4]``."""
    n, d = problem.bucket.ops, problem.num_devices
    shapes = {"price": (n, d), "rank": (n,), "rule": (4,)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.uint16) for name, shape in shapes.items()}


@jax.named_scope("preferences")
def preferences(
    problem: Problem, genes: Genes, objective: Objective | str = Objective.MAKESPAN
) -> Preferences:
    """Decodes genes.

    A price is the cube of its key times four mean runtimes, and prohibitive if the key is 1. So most random
    prices are small. For peak memory, bytes take the place of times.

    Args:
      problem: ``B`` graphs.
      genes: Leaves with leading ``[B, P]``, in the shapes of `schedule_shapes`.
      objective: What the schedules are for.

    Raises:
      ConfigError: There is no such objective.
    """
    # Every product is rounded once, whatever the order of operations, so that all backends agree.
    if Objective(objective) is Objective.MAKESPAN:
        longest, unit, tables = problem.rank.max(axis=-1), problem.op_time, (WASTES, BEHINDS)
    else:
        longest, unit, tables = problem.total_size, problem.op_size, (GROWTHS, HELDS)
    weight, waste, behind, early = (
        jnp.asarray(table, jnp.float32)[genes["rule"][..., i] >> (16 - _CHOICE)]
        for i, table in enumerate((WEIGHTS, *tables, EARLIES))
    )
    urgency = genes["rank"].astype(jnp.float32) * (longest[:, None, None] / _TOP) * weight[..., None]
    key = genes["price"].astype(jnp.float32) * jnp.float32(1 / _TOP)
    price = (key * key) * (key * (unit * _MOST)[:, None, None, None])
    price = jnp.where(genes["price"] == _TOP, _PROHIBITIVE, price)
    return Preferences(urgency, price, early, waste, behind)


def encode_schedule(
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    events: np.ndarray,
    bucket: Bucket | None = None,
    devices: int | None = None,
    *,
    in_order: bool = True,
    objective: Objective | str = Objective.MAKESPAN,
) -> dict[str, np.ndarray]:
    """Genes of one individual that decode to this placement and, with ``in_order``, this order of ops.

    Transfers are where schedule generation puts them, so the schedule may be shorter or longer than the
    plan. With more than 65536 ops, ops share ranks, and the order is similar.

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      events: Valid event ids in schedule order, as `regal_jax.plan.replay` takes them.
      bucket: Padded sizes of the leaves; by default none.
      devices: ``D`` of the leaves, padding included; by default that of the cluster.
      in_order: Whether ops keep this order; otherwise the rule is one that suits the objective, and ranks are
        upward ranks, or for peak memory those of the order.
      objective: What the schedules are for.

    Returns:
      uint16 leaves in the shapes of `schedule_shapes`.

    Raises:
      PlanError: Events that miss an op.
      ConfigError: ``bucket`` does not hold the graph, or there is no such objective.
    """
    objective = Objective(objective)
    bucket = Bucket.exact(graph) if bucket is None else bucket
    bucket.check_holds(graph)
    n, events = graph.num_ops, np.asarray(events)
    ops = events[events < n]
    if len(np.unique(ops)) != n:
        raise PlanError(f"events: {len(np.unique(ops))} of {n} ops are computed; every op must be, once")
    price = np.zeros((bucket.ops, devices or cluster.num_devices), np.uint16)
    price[:n] = _TOP
    price[np.arange(n), np.asarray(placement)] = 0
    rank = np.zeros(bucket.ops, np.uint16)
    rank[ops] = _TOP - np.arange(n) * _TOP // max(n - 1, 1)
    if in_order:
        return {"price": price, "rank": rank, "rule": np.array([_TOP, 0, 0, 0], np.uint16)}
    if objective is Objective.PEAK_MEMORY:
        return {"price": price, "rank": rank, "rule": _MEMORY_RULE.astype(np.uint16)}
    upward = upward_rank(graph, cluster)
    rank[:n] = np.round(upward / (upward.max(initial=0) or 1) * _TOP)
    return {"price": price, "rank": rank, "rule": _RULE.astype(np.uint16)}
