"""The fused GPU kernel against the reference, in Pallas's interpreter; and that it lowers for CUDA.

The interpreter takes about 10 ms per event, so the cases are few and small. It checks bounds and fills new
memory with NaN and the largest integers, so that what is read before it is written shows.
"""

import dataclasses
import functools
import subprocess
import sys

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.experimental.pallas import mosaic_gpu as plgpu
from strategies import random_cluster, random_graph, random_keys

from regal_jax import encoding
from regal_jax.encoding import gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import simulate
from regal_jax.simulate.pallas_gpu import fits, run_pallas, shared_bytes
from regal_jax.simulate.pallas_kernel import make_sizes
from regal_jax.simulate.simulate import with_peaks

if hasattr(plgpu, "InterpretGPUParams"):
    INTERPRET = plgpu.InterpretGPUParams()
else:  # JAX 0.10 has it, but does not show it.
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    INTERPRET = InterpretGPUParams()

BLOCKING, OTHERS = ("blocking",), ("delay", "free")
decode = jax.jit(encoding.decode)


@jax.jit
def reference(problem, decisions):
    return simulate(problem, decisions, implementation="xla", positions=True)


@jax.jit
def interpreted(problem, decisions):
    run = functools.partial(run_pallas, interpret=INTERPRET)
    return with_peaks(run, problem, decisions, memory=True, positions=True)


def on_cuda(problem, decisions):
    return with_peaks(run_pallas, problem, decisions, memory=True, positions=True)


def make_case(rng, sizes, devices, transfers, bucket=None, *, population=2, coarse=True, controls=0.5):
    """A batch of one graph for each of ``sizes``, and decisions for it."""
    transfer = rng.choice(transfers)
    inputs = rng.choice([0.5, 1.5, 3.0])
    graphs = [
        random_graph(rng, n, devices, inputs_per_op=inputs, controls_per_op=controls, constraints=False)
        for n in sizes
    ]
    problem = make_problem(graphs, [random_cluster(rng, devices, transfer) for _ in graphs], bucket)
    lead = (len(sizes), population)
    genes = {k: random_keys(rng, lead + leaf.shape, coarse) for k, leaf in gene_shapes(problem).items()}
    return problem, decode(problem, genes)


def same_bucket(problem):
    """Without ``unlimited``, which is static and irrelevant here, cases share a compilation."""
    return dataclasses.replace(problem, unlimited=False)


def check(problem, decisions):
    expected = reference(problem, decisions)
    assert (np.asarray(expected.op_position).max(axis=-1) >= 0).all()
    # All results are equal bit for bit, also the float32 makespan.
    chex.assert_trees_all_equal(interpreted(problem, decisions), expected)


# By default, test_links.py and the test below.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "transfers", "controls"),
    [
        pytest.param(1, OTHERS, 0.5, marks=pytest.mark.slow),
        (3, OTHERS, 0.0),
        pytest.param(1, BLOCKING, 0.5, marks=pytest.mark.slow),
        pytest.param(2, BLOCKING, 0.0, marks=pytest.mark.slow),
        # `test_a_queue_of_two_levels` has blocking transfers and control edges, too.
        pytest.param(4, BLOCKING, 0.5, marks=pytest.mark.slow),
    ],
)
def test_equals_the_reference(devices, transfers, controls):
    bucket = Bucket(9, 27, 40, 20 if controls else 0)

    @settings(max_examples=6, database=None)
    @given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1), st.booleans())
    def cases(first, second, seed, coarse):
        rng = np.random.default_rng(seed)
        problem, decisions = make_case(
            rng, (first, second), devices, transfers, bucket, coarse=coarse, controls=controls
        )
        check(same_bucket(problem), decisions)

    cases()


@pytest.mark.parametrize(
    ("num_ops", "devices", "transfers"),
    [(110, 3, BLOCKING), pytest.param(4200, 2, OTHERS, marks=pytest.mark.slow)],
)
def test_a_queue_of_two_levels(num_ops, devices, transfers):
    # The bucket has more than 4096 possible events, the graph more than one row of them.
    sizes, bucket = (min(num_ops, 130),), Bucket(num_ops, 4200, 4200, num_ops)
    problem, decisions = make_case(
        np.random.default_rng(num_ops), sizes, devices, transfers, bucket, population=1
    )
    check(problem, decisions)


@pytest.mark.parametrize(
    ("transfer", "outputs"), [pytest.param("blocking", 0, marks=pytest.mark.slow), ("free", 1)]
)
def test_one_op(transfer, outputs):
    builder = GraphBuilder()
    builder.add_op("alone", runtime=2.5, outputs=[8] * outputs, temp_bytes=3)
    graph = builder.build()
    problem = make_problem([graph], Cluster.uniform(2, transfer=transfer), Bucket.exact(graph))
    genes = {k: np.zeros((1, 1, *leaf.shape), np.uint16) for k, leaf in gene_shapes(problem).items()}
    decisions = decode(problem, genes)
    check(problem, decisions)
    alone = run_pallas(problem, decisions, positions=False, interpret=INTERPRET)
    chex.assert_trees_all_equal(alone.makespan, reference(problem, decisions).makespan)
    assert alone.op_position.shape == (1, 1, 0)


# Without a GPU ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_ops", [pytest.param(8, marks=pytest.mark.slow), 1500])
@pytest.mark.parametrize(
    ("devices", "transfers"),
    [pytest.param(1, BLOCKING, marks=pytest.mark.slow), (5, BLOCKING), (3, OTHERS)],
)
def test_lowers_for_cuda(num_ops, devices, transfers):
    problem, decisions = make_case(np.random.default_rng(0), (num_ops, num_ops), devices, transfers)
    text = jax.jit(on_cuda).trace(problem, decisions).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("custom_call @mosaic_gpu") == 1
    # The maximum must be signed: JAX 0.10 makes it unsigned after a select, which would find removed entries.
    assert "arith.maxsi" in text
    assert "arith.maxui" not in text


def test_refusals():
    problem, decisions = make_case(np.random.default_rng(0), (5,), 2, BLOCKING)
    if jax.default_backend() != "gpu":
        with pytest.raises(ConfigError, match=r"needs an NVIDIA GPU of compute capability 9\.0 .* found cpu"):
            simulate(problem, decisions, implementation="pallas")
    assert fits(problem)
    assert 0 < shared_bytes(make_sizes(problem)) < 16 * 1024
    large, decisions = make_case(np.random.default_rng(0), (5,), 4, BLOCKING, Bucket(10, 20_000, 40, 20))
    assert shared_bytes(make_sizes(large)) > 4 * 20_000 * 4
    assert not fits(large)
    with pytest.raises(ConfigError, match="KiB of 227; use 'xla', a smaller bucket or fewer devices"):
        run_pallas(large, decisions, positions=False)


def test_does_not_load_pallas_before_it_is_used():
    code = (
        "import sys, regal_jax.simulate.pallas_gpu; "
        "sys.exit('jax.experimental.pallas.mosaic_gpu' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# With one --------------------------------------------------------------------------------------------


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU")
@pytest.mark.parametrize("num_ops", [8, 100, 700])
@pytest.mark.parametrize(("devices", "transfers"), [(1, BLOCKING), (2, BLOCKING), (4, BLOCKING), (3, OTHERS)])
def test_equals_the_reference_on_a_gpu(num_ops, devices, transfers):
    case = make_case(np.random.default_rng(num_ops), (num_ops, num_ops), devices, transfers, population=100)
    named = functools.partial(simulate, implementation="pallas", positions=True)
    chex.assert_trees_all_equal(jax.jit(named)(*case), reference(*case))
