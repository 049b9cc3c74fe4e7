"""Earlier plans as starts: on other clusters, of contracted graphs, from files, in folders of results."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances, random_cluster, random_graph

from regal_jax import Cluster
from regal_jax.datasets import generate
from regal_jax.errors import PlanError
from regal_jax.graph import TransferModel, allowed_matrix
from regal_jax.heuristics import run_heuristic
from regal_jax.plan import Plan, adapt_plan


def computes(plan):
    """Names of the ops in the order in which the plan computes them."""
    line = plan.timeline
    return [plan.op_names[o] for o in line.op[line.port < 0]]


@given(instances(), st.sampled_from(TransferModel), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_is_carried_over_to_any_cluster(instance, model, more, seed):
    graph, cluster = instance
    plan = run_heuristic("random-topological", graph, cluster, seed=seed)
    assert adapt_plan(plan, graph, cluster).to_json() == plan.to_json()
    if graph.runtime.ndim > 1:
        more = 0
    other = Cluster((10.0,) * (cluster.num_devices + more), model)
    there = adapt_plan(plan, graph, other, "peak-memory")
    there.verify(graph)
    assert there.cluster == other
    assert there.objective == "peak-memory"
    assert there.placement.tolist() == plan.placement.tolist()
    assert computes(there) == computes(plan)
    back = adapt_plan(there, graph, cluster, "makespan")
    back.verify(graph)
    assert back.placement.tolist() == plan.placement.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_fewer_devices_take_what_they_may_and_keep_the_order(seed):
    rng = np.random.default_rng(seed)
    graph = dataclasses.replace(random_graph(rng, 30, 5), runtime=rng.exponential(1.0, 30))
    plan = run_heuristic("critical-path", graph, random_cluster(rng, 5), seed=seed)
    few = Cluster.uniform(2)
    graph = dataclasses.replace(
        graph,
        allowed_devices=tuple(None if d is None else tuple({0, *d}) for d in graph.allowed_devices),
    )
    plan = adapt_plan(dataclasses.replace(plan, graph_hash=graph.content_hash), graph, plan.cluster)
    there = adapt_plan(plan, graph, few)
    there.verify(graph)
    assert computes(there) == computes(plan)
    allowed = allowed_matrix(graph, few)
    stays = (plan.placement < 2) & allowed[np.arange(30), np.minimum(plan.placement, 1)]
    assert (there.placement == plan.placement)[stays].all()


def test_a_device_that_is_gone_leaves_its_ops_together_to_the_idlest():
    from regal_jax import GraphBuilder

    b = GraphBuilder("three")
    for name, runtime in (("a", 5.0), ("b", 2.0), ("c", 1.0), ("d", 1.0)):
        b.add_op(name, runtime=runtime)
    graph = b.build()
    plan = Plan.from_events(graph, Cluster.uniform(3), np.array([0, 1, 2, 2]), [0, 1, 2, 3])
    assert adapt_plan(plan, graph, Cluster.uniform(2)).placement.tolist() == [0, 1, 1, 1]


def test_a_plan_of_another_graph_is_not_carried_over():
    graph, other = (generate("erdos-renyi", 20, seed=s) for s in (0, 1))
    plan = run_heuristic("bfs", graph, Cluster.uniform(2))
    with pytest.raises(PlanError, match="not for"):
        adapt_plan(plan, other, Cluster.uniform(2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: {"op": line.op[::-1].copy(), "port": line.port[::-1].copy()}, "comes before"),
        (lambda line: {"op": np.zeros_like(line.op)}, "every op once"),
        (lambda line: {"port": np.where(line.port < 0, -1, 99)}, "does not have"),
    ],
)
def test_a_file_that_is_no_order_is_refused(change, said):
    graph = generate("erdos-renyi", 20, seed=0)
    plan = run_heuristic("partition-dfs", graph, Cluster.uniform(2))
    assert plan.num_transfers
    broken = dataclasses.replace(plan, timeline=dataclasses.replace(plan.timeline, **change(plan.timeline)))
    with pytest.raises(PlanError, match=said):
        adapt_plan(broken, graph, Cluster.uniform(3))
