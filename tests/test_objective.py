"""Tests of the fitness against the host replay of the same candidates."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances, random_graph, random_keys

from regal_jax.encoding import gene_shapes, genes_to_keys
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import Objective, Plan, decode_order, decode_placement, makespan_upper_bound, plan_fitness
from regal_jax.problem import Bucket, make_problem
from regal_jax.solve import fitness

BUCKET = Bucket(12, 36, 80, 66)
POPULATION = 6
evaluate = jax.jit(fitness, static_argnames="objective")


def draw(problem, seed):
    rng = np.random.default_rng(seed)
    return {k: random_keys(rng, (1, POPULATION, *leaf.shape)) for k, leaf in gene_shapes(problem).items()}


def plans(graph, cluster, genes, objective):
    """The result of the host for the same genes."""
    made = []
    for p in range(POPULATION):
        keys = genes_to_keys({k: leaf[0, p] for k, leaf in genes.items()})
        placement = decode_placement(graph, cluster, keys["affinity"][: graph.num_ops])
        ops, transfers = keys["priority"][: graph.num_ops], keys["transfer_priority"][: graph.num_tensors]
        order = decode_order(graph, cluster, placement, ops, transfers)
        made.append(Plan.from_events(graph, cluster, placement, order, objective=objective))
    return made


@pytest.mark.parametrize("objective", list(Objective))
@given(instance=instances(devices=(2,), transfers=("blocking",)), seed=st.integers(0, 2**32 - 1))
def test_fitness_says_what_the_replay_says(objective, instance, seed):
    graph, cluster = instance
    problem = make_problem([graph], cluster, BUCKET)
    genes = draw(problem, seed)
    value = np.asarray(evaluate(problem, genes, objective=objective))[0]
    assert value.dtype == np.float32
    assert np.isfinite(value).all()
    total = max(1, int(graph.tensor_bytes.sum() + graph.temp_bytes.sum()))
    bound = makespan_upper_bound(graph, cluster)
    for v, plan in zip(value, plans(graph, cluster, genes, objective), strict=True):
        if not plan.feasible:
            expected = 1 + plan.overflow.sum() / total
            assert v > 1
        elif objective is Objective.MAKESPAN:
            expected = plan.makespan / bound if bound else 0.0
        else:
            expected = plan.peak_memory.max() / total
        np.testing.assert_allclose(v, expected, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(plan_fitness(plan, graph), expected, rtol=1e-12)
        assert plan.feasible == (v <= 1)


def test_the_smallest_overflow_is_worse_than_the_worst_feasible_plan():
    builder = GraphBuilder()
    # One byte beyond 2**30 - 1: less than float32 can add to 1.
    builder.add_op("a", runtime=1.0, outputs=[2**30 - 1], keep=[0])
    graph = builder.build()
    clusters = [Cluster((2.0**30 - 1,)), Cluster((2.0**30 - 2,))]
    problem = make_problem([graph, graph], clusters)
    genes = {k: np.zeros((2, 1, *leaf.shape), np.uint16) for k, leaf in gene_shapes(problem).items()}
    fits, overflows = np.asarray(evaluate(problem, genes, objective=Objective.MAKESPAN))[:, 0]
    assert fits == 1
    assert overflows > 1


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("memory", [np.inf, 0.0])
def test_nothing_to_do_is_no_nan(objective, memory):
    builder = GraphBuilder()
    builder.add_op("a")
    builder.add_op("b", control_inputs=["a"], outputs=[0])
    problem = make_problem([builder.build()], Cluster.uniform(2, memory, transfer="blocking"))
    np.testing.assert_array_equal(
        evaluate(problem, draw(problem, 0), objective=objective), np.zeros((1, POPULATION))
    )


def test_unlimited_memory_takes_the_short_way_to_the_same_numbers():
    graph = random_graph(np.random.default_rng(0), 12, 2)
    problem = make_problem([graph], Cluster.uniform(2, transfer="blocking"), BUCKET)
    assert problem.unlimited
    genes = draw(problem, 0)
    long_way = dataclasses.replace(problem, unlimited=False)
    np.testing.assert_array_equal(
        evaluate(problem, genes, objective=Objective.MAKESPAN),
        evaluate(long_way, genes, objective=Objective.MAKESPAN),
    )


def test_unknown_objective():
    problem = make_problem([random_graph(np.random.default_rng(0), 2)], Cluster.uniform(1))
    with pytest.raises(ValueError, match="beauty"):
        fitness(problem, draw(problem, 0), "beauty")


def test_rounding_moves_no_plan_across_1():
    builder = GraphBuilder("line")
    runtimes = (0.7, 0.7, 0.1, 0.3, 1.1, 0.7, 0.7, 0.3, *[0.0] * 20)
    for i, runtime in enumerate(runtimes):
        builder.add_op(f"o{i}", runtime=runtime, outputs=[2**50], control_inputs=range(i))
    graph = builder.build()

    def plan(memory):
        cluster = Cluster.uniform(1, memory)
        return Plan.from_events(graph, cluster, np.zeros(len(runtimes), int), np.arange(len(runtimes)))

    # The makespan is a sum in another order than its bound, and larger in the last bit.
    fits = plan("inf")
    assert fits.makespan > makespan_upper_bound(graph, fits.cluster)
    assert plan_fitness(fits, graph) == 1
    # One byte too many, of 28 * 2**50.
    over = plan(2**50 - 1)
    assert over.overflow.sum() == 1
    assert plan_fitness(over, graph) > 1
