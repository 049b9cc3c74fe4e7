"""The fused GPU kernel of schedule generation against the reference, in Pallas's interpreter."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_cluster, random_graph
from test_generate import check_replay, random_genes
from test_pallas import INTERPRET

from regal_jax.encoding import preferences, schedule_shapes
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import Objective
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import generate_schedules, pallas_gpu
from regal_jax.simulate.generate_lockstep import generate
from regal_jax.simulate.pallas_gpu import generate_pallas

BLOCKING, OTHERS = ("blocking",), ("delay", "free")
of_problem = jax.jit(preferences)


@jax.jit
def reference(problem, given):
    return generate(problem, given, "time", positions=True)


@jax.jit
def interpreted(problem, given):
    return generate_pallas(problem, given, positions=True, interpret=INTERPRET)


def make_case(rng, sizes, devices, transfers, bucket=None, *, population=2, coarse=True):
    """A batch of one graph for each of ``sizes``, with groups and control edges, and preferences for it."""
    inputs = rng.choice([0.5, 1.5, 3.0])
    graphs = [random_graph(rng, n, devices, inputs_per_op=inputs) for n in sizes]
    transfer = rng.choice(transfers)
    clusters = [random_cluster(rng, devices, transfer, memory_scale=np.inf) for _ in sizes]
    problem = make_problem(graphs, clusters, bucket)
    genes = random_genes(problem, rng, population, coarse)
    return graphs, clusters, problem, of_problem(problem, genes)


def check(graphs, clusters, problem, given):
    expected = reference(problem, given)
    # All results are equal bit for bit, also the float32 makespan.
    chex.assert_trees_all_equal(interpreted(problem, given), expected)
    return expected


def test_equals_the_reference():
    check(*make_case(np.random.default_rng(0), (6, 9), 3, BLOCKING))


# By default, the test above.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "transfers"),
    [(1, BLOCKING), (2, BLOCKING), (3, BLOCKING), (5, BLOCKING), (1, OTHERS), (4, OTHERS)],
)
def test_equals_the_reference_on_random_graphs(devices, transfers):
    bucket = Bucket(9, 27, 40, 66)

    @settings(max_examples=8, database=None)
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
    def cases(first, second, seed, coarse):
        case = make_case(
            np.random.default_rng(seed), (first, second), devices, transfers, bucket, coarse=coarse
        )
        check(*case)

    cases()


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "transfers"), [(2, BLOCKING), (4, BLOCKING), (3, OTHERS)])
def test_several_rows_of_ops(devices, transfers):
    # The ops of a chain of graphs fill the first row, so that others are looked at later.
    case = make_case(
        np.random.default_rng(devices), (150, 20), devices, transfers, population=1, coarse=False
    )
    check(*case)


@pytest.mark.slow
def test_the_replay_agrees_and_company_changes_nothing():
    graphs, clusters, problem, given = make_case(np.random.default_rng(5), (9, 14), 3, BLOCKING)
    placement, result = jax.jit(functools.partial(generate_schedules, implementation="xla", positions=True))(
        problem, given
    )
    fused = interpreted(problem, given)
    np.testing.assert_array_equal(fused[0], placement)
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        check_replay(graph, cluster, fused[0], result, b)
    alone = make_problem(graphs[:1], clusters[:1], Bucket.exact(graphs[0]))
    n = graphs[0].num_ops
    mine = given._replace(urgency=given.urgency[..., :n], price=given.price[..., :n, :])
    mine = jax.tree.map(lambda leaf: leaf[:1], mine)
    place, run = jax.jit(functools.partial(generate_pallas, positions=True, interpret=INTERPRET))(alone, mine)
    np.testing.assert_array_equal(place, fused[0][:1, :, :n])
    np.testing.assert_array_equal(run.makespan, fused[1].makespan[:1])
    np.testing.assert_array_equal(run.op_position, fused[1].op_position[:1, :, :n])
    np.testing.assert_array_equal(
        run.transfer_position, fused[1].transfer_position[:1, :, : graphs[0].num_tensors]
    )


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [0, 1])
def test_one_op(outputs):
    builder = GraphBuilder()
    builder.add_op("alone", runtime=2.5, outputs=[8] * outputs, temp_bytes=3)
    graph = builder.build()
    problem = make_problem([graph], Cluster.uniform(2), Bucket.exact(graph))
    genes = {k: np.zeros((1, 1, *leaf.shape), np.uint16) for k, leaf in schedule_shapes(problem).items()}
    given = of_problem(problem, genes)
    check([graph], None, problem, given)
    place, run = generate_pallas(problem, given, positions=False, interpret=INTERPRET)
    assert (float(run.makespan[0, 0]), int(place[0, 0, 0])) == (2.5, 0)
    assert run.op_position.shape == (1, 1, 0)


# Without a GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_ops", "devices", "transfers"),
    [
        pytest.param(8, 1, BLOCKING, marks=pytest.mark.slow),
        (700, 3, BLOCKING),
        pytest.param(1500, 8, OTHERS, marks=pytest.mark.slow),
    ],
)
def test_lowers_for_cuda(num_ops, devices, transfers):
    *_, problem, given = make_case(np.random.default_rng(0), (num_ops,), devices, transfers)
    fused = jax.jit(functools.partial(generate_pallas, positions=True))
    text = fused.trace(problem, given).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu") == 1


def test_refusals(monkeypatch):
    *_, problem, given = make_case(np.random.default_rng(0), (5,), 2, BLOCKING)
    if jax.default_backend() != "gpu":
        with pytest.raises(ConfigError, match=r"needs an NVIDIA GPU of compute capability 9\.0 .* found cpu"):
            generate_schedules(problem, given, implementation="pallas")
    limited = dataclasses.replace(problem, unlimited=False)
    with pytest.raises(ConfigError, match="for the makespan without capacities; use 'xla'"):
        generate_schedules(limited, given, implementation="pallas")
    with pytest.raises(ConfigError, match="for the makespan without capacities; use 'xla'"):
        generate_schedules(problem, given, implementation="pallas", objective=Objective.PEAK_MEMORY)
    wide = make_case(np.random.default_rng(0), (5,), 9, BLOCKING)
    with pytest.raises(ConfigError, match="at most 8 devices, got 9; use 'xla'"):
        generate_pallas(*wide[2:], positions=False)
    monkeypatch.setattr(pallas_gpu, "_limit", lambda: 4 * 1024)
    with pytest.raises(ConfigError, match="64 ops and 64 tensors on 2 devices in shared memory, which takes"):
        generate_pallas(problem, given, positions=False)


# With one --------------------------------------------------------------------------------------------


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("num_ops", [8, 100, 700])
@pytest.mark.parametrize(("devices", "transfers"), [(1, BLOCKING), (2, BLOCKING), (4, BLOCKING), (3, OTHERS)])
def test_equals_the_reference_on_a_gpu(num_ops, devices, transfers):
    *_, problem, given = make_case(
        np.random.default_rng(num_ops), (num_ops, num_ops), devices, transfers, population=50
    )
    named = functools.partial(generate_schedules, implementation="pallas", memory=False, positions=True)
    placement, result = jax.jit(named)(problem, given)
    expected, run = reference(problem, given)
    np.testing.assert_array_equal(placement, expected)
    chex.assert_trees_all_equal(
        (result.makespan, result.op_position, result.transfer_position),
        (run.makespan, run.op_position, run.transfer_position),
    )
