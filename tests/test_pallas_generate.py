"""The fused GPU kernel of schedule generation against the reference, in Pallas's interpreter."""

import dataclasses
import functools
import re

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
of_problem = jax.jit(preferences, static_argnames="objective")


GOALS = "time", "fit", "peak"


@functools.partial(jax.jit, static_argnames="goal")
def reference(problem, given, goal):
    return generate(problem, given, goal, positions=True)


@functools.partial(jax.jit, static_argnames="goal")
def interpreted(problem, given, goal):
    return generate_pallas(problem, given, goal, positions=True, interpret=INTERPRET)


def objective_of(goal):
    return Objective.PEAK_MEMORY if goal == "peak" else Objective.MAKESPAN


def make_case(rng, sizes, devices, transfers, bucket=None, *, goal="time", population=2, coarse=True):
    """A batch of one graph for each of ``sizes``, with groups and control edges, and preferences for it."""
    inputs = rng.choice([0.5, 1.5, 3.0])
    graphs = [random_graph(rng, n, devices, inputs_per_op=inputs) for n in sizes]
    transfer = rng.choice(transfers)
    scale = np.inf if goal == "time" else 150.0
    clusters = [random_cluster(rng, devices, transfer, memory_scale=scale) for _ in sizes]
    # One program for capacities that happen to be unlimited, and for others.
    problem = dataclasses.replace(make_problem(graphs, clusters, bucket), unlimited=goal == "time")
    genes = random_genes(problem, rng, population, coarse)
    return graphs, clusters, problem, of_problem(problem, genes, objective=objective_of(goal))


def check(problem, given, goal="time"):
    # All results are equal bit for bit, also the float32 makespan.
    chex.assert_trees_all_equal(interpreted(problem, given, goal), reference(problem, given, goal))


def test_equals_the_reference():
    # With capacities, the kernel does all that it does without them.
    rng = np.random.default_rng(0)
    *_, problem, given = make_case(rng, (4, 7), 2, BLOCKING, goal="fit", population=1)
    check(problem, given, "fit")


# By default, the test above.
@pytest.mark.slow
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize(
    ("devices", "transfers"),
    [(1, BLOCKING), (2, BLOCKING), (3, BLOCKING), (4, BLOCKING), (1, OTHERS), (3, OTHERS)],
)
def test_equals_the_reference_on_random_graphs(devices, transfers, goal):
    bucket = Bucket(9, 27, 40, 66)

    @settings(max_examples=6, database=None)
    @given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**32 - 1), st.booleans())
    def cases(first, second, seed, coarse):
        rng = np.random.default_rng(seed)
        *_, problem, given = make_case(
            rng, (first, second), devices, transfers, bucket, goal=goal, coarse=coarse
        )
        check(problem, given, goal)

    cases()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "transfers", "goal"), [(4, BLOCKING, "time"), (2, BLOCKING, "fit"), (3, OTHERS, "peak")]
)
def test_several_rows_of_ops(devices, transfers, goal):
    rng = np.random.default_rng(devices)
    *_, problem, given = make_case(rng, (135, 9), devices, transfers, goal=goal, population=1, coarse=False)
    check(problem, given, goal)


@pytest.mark.slow
def test_the_replay_agrees_and_company_changes_nothing():
    graphs, clusters, problem, given = make_case(np.random.default_rng(5), (9, 14), 3, BLOCKING)
    named = functools.partial(generate_schedules, implementation="xla", positions=True)
    placement, result = jax.jit(named)(problem, given)
    fused = interpreted(problem, given, "time")
    np.testing.assert_array_equal(fused[0], placement)
    for field in fused[1]._fields:
        np.testing.assert_array_equal(getattr(fused[1], field), getattr(result, field))
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        check_replay(graph, cluster, fused[0], result, b)
    alone = make_problem(graphs[:1], clusters[:1], Bucket.exact(graphs[0]))
    n, t = graphs[0].num_ops, graphs[0].num_tensors
    mine = given._replace(urgency=given.urgency[..., :n], price=given.price[..., :n, :])
    place, run = interpreted(alone, jax.tree.map(lambda leaf: leaf[:1], mine), "time")
    np.testing.assert_array_equal(place, fused[0][:1, :, :n])
    np.testing.assert_array_equal(run.makespan, fused[1].makespan[:1])
    np.testing.assert_array_equal(run.op_position, fused[1].op_position[:1, :, :n])
    np.testing.assert_array_equal(run.transfer_position, fused[1].transfer_position[:1, :, :t])


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [0, 1])
def test_one_op(outputs):
    builder = GraphBuilder()
    builder.add_op("alone", runtime=2.5, outputs=[8] * outputs, temp_bytes=3)
    graph = builder.build()
    problem = make_problem([graph], Cluster.uniform(2), Bucket.exact(graph))
    genes = {k: np.zeros((1, 1, *leaf.shape), np.uint16) for k, leaf in schedule_shapes(problem).items()}
    given = of_problem(problem, genes, objective=Objective.MAKESPAN)
    for goal in GOALS:
        check(problem, given, goal)
    place, run = generate_pallas(problem, given, "time", positions=False, interpret=INTERPRET)
    assert (float(run.makespan[0, 0]), int(place[0, 0, 0])) == (2.5, 0)
    assert run.op_position.shape == (1, 1, 0)


# Without a GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_ops", "devices", "transfers", "goal"),
    [
        pytest.param(8, 1, BLOCKING, "time", marks=pytest.mark.slow),
        pytest.param(700, 3, BLOCKING, "time", marks=pytest.mark.slow),
        (700, 3, BLOCKING, "fit"),
        pytest.param(700, 3, BLOCKING, "peak", marks=pytest.mark.slow),
        pytest.param(1500, 8, OTHERS, "time", marks=pytest.mark.slow),
        pytest.param(1500, 2, OTHERS, "peak", marks=pytest.mark.slow),
    ],
)
def test_lowers_for_cuda(num_ops, devices, transfers, goal):
    *_, problem, given = make_case(np.random.default_rng(0), (num_ops,), devices, transfers, goal=goal)
    fused = jax.jit(functools.partial(generate_pallas, goal=goal, positions=True))
    text = fused.trace(problem, given).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu") == 1
    # Maxima and conversions must be signed: JAX 0.10 makes those of some selected values unsigned.
    assert "arith.maxsi" in text
    assert not {"arith.maxui", "arith.minui", "arith.uitofp"} & set(re.findall(r"arith\.\w+", text))


def test_refusals(monkeypatch):
    *_, problem, given = make_case(np.random.default_rng(0), (5,), 2, BLOCKING)
    if jax.default_backend() != "gpu":
        with pytest.raises(ConfigError, match=r"needs an NVIDIA GPU of compute capability 9\.0 .* found cpu"):
            generate_schedules(problem, given, implementation="pallas")
    *_, wide, of_wide = make_case(np.random.default_rng(0), (5,), 9, BLOCKING)
    with pytest.raises(ConfigError, match="at most 8 devices, got 9; use 'xla'"):
        generate_pallas(wide, of_wide, "time", positions=False)
    monkeypatch.setattr(pallas_gpu, "_limit", lambda: 4 * 1024)
    with pytest.raises(ConfigError, match="64 ops and 64 tensors on 2 devices in shared memory, which takes"):
        generate_pallas(problem, given, "time", positions=False)


# With one --------------------------------------------------------------------------------------------


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("num_ops", [8, 100, 700])
@pytest.mark.parametrize(("devices", "transfers"), [(1, BLOCKING), (2, BLOCKING), (4, BLOCKING), (3, OTHERS)])
def test_equals_the_reference_on_a_gpu(num_ops, devices, transfers, goal):
    rng = np.random.default_rng(num_ops)
    *_, problem, given = make_case(rng, (num_ops, num_ops), devices, transfers, goal=goal, population=50)
    named = functools.partial(
        generate_schedules,
        objective=objective_of(goal),
        implementation="pallas",
        memory=False,
        positions=True,
    )
    placement, result = jax.jit(named)(problem, given)
    expected, run = reference(problem, given, goal)
    np.testing.assert_array_equal(placement, expected)
    chex.assert_trees_all_equal(
        (result.makespan, result.op_position, result.transfer_position),
        (run.makespan, run.op_position, run.transfer_position),
    )
