"""The whole search lowers for accelerators that are not here, without a call back to the host."""

import functools

import jax
import jax.export
import jax.extend.backend
import jax.numpy as jnp
import pytest

from benchmarks.cases import GraphCase
from regal_jax.datasets import generate
from regal_jax.encoding import decode, gene_shapes, schedule_prior
from regal_jax.graph import Cluster
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import pallas_gpu, simulate
from regal_jax.solve import ENCODINGS, solve_traced

PLATFORMS = ("cuda", "tpu")
EVALUATIONS = 26

CASES = {
    "makespan": GraphCase(ops=12, population=10),
    "peak memory": GraphCase(ops=12, population=10, objective="peak-memory"),
    "delays": GraphCase(ops=12, population=10, transfer="delay:latency=5", devices=4, graphs=2),
    "betas": GraphCase(ops=12, population=10, proposal="beta"),
}


def exported(case):
    problem = case.problem()
    search = functools.partial(
        solve_traced,
        objective=case.objective,
        proposal=case.make_proposal(problem),
        config=case.config(),
    )
    # Export refuses custom calls that it does not know, such as callbacks and calls of the host's kernel.
    call = jax.jit(lambda problem, keys: search(problem, keys, EVALUATIONS))
    return jax.export.export(call, platforms=PLATFORMS)(problem, case.keys())


@pytest.fixture
def accelerator(monkeypatch):
    """Makes JAX report an accelerator besides the CPU."""
    monkeypatch.setattr(jax.extend.backend, "backends", lambda: dict.fromkeys(("cpu", *PLATFORMS)))


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=() if name == "makespan" else pytest.mark.slow)
        for name, case in CASES.items()
    ],
)
def test_the_whole_search(case):
    found = exported(case)
    assert found.platforms == PLATFORMS
    text = found.mlir_module()
    for word in ("custom_call", "callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv"):
        assert word not in text, f"{word} in the program"


# By default, the search among plans.
@pytest.mark.slow
@pytest.mark.usefixtures("accelerator")
def test_the_whole_search_among_generated_schedules():
    case = CASES["makespan"]

    def search(problem, keys):
        options = {"proposal": schedule_prior(problem), "encoding": ENCODINGS["schedule"]}
        return solve_traced(problem, keys, EVALUATIONS, config=case.config(), **options)

    text = jax.export.export(jax.jit(search), platforms=PLATFORMS)(case.problem(), case.keys()).mlir_module()
    assert "custom_call" not in text


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    ("capability", "kernels"),
    [
        ((9, 0), 1),
        pytest.param((10, 0), 1, marks=pytest.mark.slow),
        pytest.param((8, 9), 0, marks=pytest.mark.slow),
        (None, 0),
    ],
)
def test_a_gpu_that_can_runs_the_fused_kernel(monkeypatch, capability, kernels):
    monkeypatch.setattr(pallas_gpu, "_capability", lambda: capability)
    case = CASES["makespan"]
    problem = case.problem()
    genes = {name: jnp.zeros((1, 10, *leaf.shape), leaf.dtype) for name, leaf in gene_shapes(problem).items()}
    traced = jax.jit(lambda problem, genes: simulate(problem, decode(problem, genes))).trace(problem, genes)
    text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cuda", "cpu")}
    assert text["cuda"].count("custom_call @mosaic_gpu") == kernels
    assert "mosaic_gpu" not in text["cpu"]


@pytest.mark.usefixtures("accelerator")
def test_a_graph_that_does_not_fit_runs_without_the_kernel(monkeypatch):
    monkeypatch.setattr(pallas_gpu, "_capability", lambda: (9, 0))
    problem = make_problem([generate("chain", 5, 0)], Cluster.uniform(4), Bucket(10, 20_000, 40, 20))
    genes = {name: jnp.zeros((1, 1, *leaf.shape), leaf.dtype) for name, leaf in gene_shapes(problem).items()}
    traced = jax.jit(lambda problem, genes: simulate(problem, decode(problem, genes))).trace(problem, genes)
    assert "custom_call" not in traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.usefixtures("accelerator")
def test_a_call_of_the_host_would_be_seen():
    case = CASES["makespan"]
    problem = case.problem()
    search = functools.partial(solve_traced, config=case.config(), implementation="host")
    with pytest.raises((ValueError, NotImplementedError), match=r"custom call|platform"):
        jax.export.export(jax.jit(lambda p, k: search(p, k, EVALUATIONS)), platforms=["cuda"])(
            problem, case.keys()
        )
