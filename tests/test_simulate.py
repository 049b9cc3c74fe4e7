"""The accelerated simulator against the host replay: order and memory exactly, time to float32 rounding."""

import dataclasses
import functools

import chex
import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances, random_cluster, random_graph, random_keys

from regal_jax.encoding import decode, gene_shapes, genes_to_keys
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.plan import decode_order, decode_placement, replay
from regal_jax.problem import Bucket, make_problem, memory_unit
from regal_jax.simulate import simulate

BUCKET = Bucket(12, 36, 80, 66)
seeds = st.integers(0, 2**32 - 1)


def run_eagerly(problem, genes, implementation="xla", **options):
    return simulate(problem, decode(problem, genes), implementation=implementation, positions=True, **options)


RUNS = {name: jax.jit(functools.partial(run_eagerly, implementation=name)) for name in ("xla", "host")}
"""One for each implementation, so that all tests share programs."""


@pytest.fixture(scope="module", params=RUNS)
def run(request):
    return RUNS[request.param]


def small_problem(graph, cluster):
    """One shape, and hence one compilation, for every device count and kind of transfer."""
    return dataclasses.replace(make_problem([graph], cluster, BUCKET, 4), unlimited=False)


def random_genes(problem, rng, population=4, coarse=False):
    lead = (problem.num_graphs, population)
    return {k: random_keys(rng, lead + leaf.shape, coarse) for k, leaf in gene_shapes(problem).items()}


def host(graph, cluster, genes, b, p):
    """Placement, order and timeline of one candidate, by the host alone."""
    keys = genes_to_keys({k: leaf[b, p] for k, leaf in genes.items()})
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    placement = decode_placement(graph, cluster, keys["affinity"][:n, :d])
    order = decode_order(graph, cluster, placement, keys["priority"][:n], keys["transfer_priority"][:t, :d])
    return order, replay(graph, cluster, placement, order)


def simulated_order(graph, devices, result, b, p):
    """Event ids in the order of their positions; positions must be 0, 1, 2, ..."""
    op, transfer = np.asarray(result.op_position[b, p]), np.asarray(result.transfer_position[b, p])
    assert (op[graph.num_ops :] == -1).all()
    assert (transfer[graph.num_tensors :] == -1).all()
    assert (transfer[:, devices:] == -1).all()
    position = np.concatenate([op[: graph.num_ops], transfer[: graph.num_tensors, :devices].reshape(-1)])
    events = np.flatnonzero(position >= 0)
    np.testing.assert_array_equal(np.sort(position[events]), np.arange(len(events)))
    return events[np.argsort(position[events])]


def quantised(graph: ComputationGraph, cluster: Cluster) -> tuple[ComputationGraph, Cluster]:
    unit = memory_unit(graph)
    return dataclasses.replace(
        graph, tensor_bytes=-(-graph.tensor_bytes // unit), temp_bytes=-(-graph.temp_bytes // unit)
    ), cluster


def check(graphs, clusters, genes, result):
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        for p in range(result.makespan.shape[1]):
            order, timeline = host(graph, cluster, genes, b, p)
            d = cluster.num_devices
            np.testing.assert_array_equal(simulated_order(graph, d, result, b, p), order)
            np.testing.assert_allclose(result.makespan[b, p], timeline.makespan, rtol=1e-5)
            np.testing.assert_array_equal(result.peak_memory[b, p, :d], timeline.peak_memory)
            assert (np.asarray(result.peak_memory[b, p, d:]) == 0).all()


@settings(max_examples=150)
@given(instances(devices=(1, 2, 4)), seeds, st.booleans())
def test_equals_the_replay(run, instance, seed, coarse):
    graph, cluster = instance
    problem = small_problem(graph, cluster)
    genes = random_genes(problem, np.random.default_rng(seed), coarse=coarse)
    check([graph], [cluster], genes, run(problem, genes))


@given(instances(size_scale=2**33 + 12345, devices=(2,)), seeds)
def test_memory_equals_the_replay_of_the_quantised_graph(run, instance, seed):
    graph, cluster = instance
    problem = small_problem(graph, cluster)
    genes = random_genes(problem, np.random.default_rng(seed))
    result = run(problem, genes)
    # Times are computed from the true sizes, memory from the rounded ones.
    for p in range(4):
        order, timeline = host(graph, cluster, genes, 0, p)
        np.testing.assert_array_equal(simulated_order(graph, 2, result, 0, p), order)
        np.testing.assert_allclose(result.makespan[0, p], timeline.makespan, rtol=1e-5)
        rounded, same = quantised(graph, cluster)
        peak = np.asarray(result.peak_memory[0, p, :2])
        np.testing.assert_array_equal(peak, host(rounded, same, genes, 0, p)[1].peak_memory)
        assert (peak.astype(np.int64) * memory_unit(graph) >= timeline.peak_memory).all()


@pytest.mark.parametrize(
    ("num_ops", "devices", "transfer"),
    [
        (70, 3, "delay"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (70, 2, "blocking"),
                (70, 4, "blocking"),
                (70, 4, "free"),
                (400, 2, "blocking"),
                (400, 4, "blocking"),
                (400, 3, "delay"),
                (400, 4, "free"),
            )
        ),
    ],
)
def test_larger_graphs_and_queues_of_more_levels(run, num_ops, devices, transfer):
    rng = np.random.default_rng([num_ops, devices])
    graphs = [random_graph(rng, num_ops, devices, inputs_per_op=2.0) for _ in range(2)]
    clusters = [random_cluster(rng, devices, transfer) for _ in range(2)]
    problem = make_problem(graphs, clusters)
    for coarse in (False, True):
        genes = random_genes(problem, rng, 3, coarse)
        check(graphs, clusters, genes, run(problem, genes))


# What must change nothing ----------------------------------------------------------------------------


def mixed_batch(transfer: str, devices: int = 3):
    rng = np.random.default_rng(5)
    graphs = [random_graph(rng, n, devices) for n in (3, 20)]
    return graphs, [random_cluster(rng, devices, transfer) for _ in graphs]


# By default, `test_larger_graphs_and_queues_of_more_levels` has transfers that do not block.
every_transfer = pytest.mark.parametrize(
    "transfer", ["blocking", pytest.param("delay", marks=pytest.mark.slow)]
)


@every_transfer
def test_company_and_padding_change_nothing(run, transfer):
    graphs, clusters = mixed_batch(transfer)
    problem = make_problem(graphs, clusters)
    genes = random_genes(problem, np.random.default_rng(0))
    together = run(problem, genes)
    for b, bucket in enumerate((Bucket(60, 120, 300, 70), Bucket.exact(graphs[1]))):
        graph, cluster = graphs[b], clusters[b]
        alone = make_problem([graph], cluster, bucket)
        own = {k: np.zeros((1, 4, *leaf.shape), np.uint16) for k, leaf in gene_shapes(alone).items()}
        for k, leaf in own.items():
            size = min(leaf.shape[2], genes[k].shape[2])
            leaf[0, :, :size] = genes[k][b, :, :size]
        result = run(alone, own)
        chex.assert_trees_all_equal(result.makespan[0], together.makespan[b])
        chex.assert_trees_all_equal(result.peak_memory[0], together.peak_memory[b])
        for p in range(4):
            np.testing.assert_array_equal(
                simulated_order(graph, cluster.num_devices, result, 0, p),
                simulated_order(graph, cluster.num_devices, together, b, p),
            )


@pytest.mark.slow
def test_jit_changes_nothing():
    graph, cluster = random_graph(np.random.default_rng(0), 12, 2), Cluster.uniform(2, transfer="blocking")
    problem = small_problem(graph, cluster)
    genes = random_genes(problem, np.random.default_rng(0))
    chex.assert_trees_all_equal(run_eagerly(problem, genes), jax.jit(run_eagerly)(problem, genes))


@given(instances(devices=(1, 2), constraints=False), seeds)
def test_relabelling_changes_nothing(run, instance, seed):
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    new = rng.permutation(graph.num_ops)
    order = np.argsort(new)
    tensors = np.argsort(new[graph.tensor_op], kind="stable")
    new_tensor = np.argsort(tensors)
    edge = sorted(zip(new_tensor[graph.edge_tensor], new[graph.edge_op], strict=True))
    control = sorted(zip(new[graph.control_source], new[graph.control_target], strict=True))
    edge, control = np.array(edge, int).reshape(-1, 2), np.array(control, int).reshape(-1, 2)
    relabelled = dataclasses.replace(
        graph,
        op_names=tuple(graph.op_names[o] for o in order),
        runtime=graph.runtime[order],
        temp_bytes=graph.temp_bytes[order],
        tensor_op=new[graph.tensor_op][tensors],
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_keep=graph.tensor_keep[tensors],
        resident=graph.resident[order],
        edge_tensor=edge[:, 0],
        edge_op=edge[:, 1],
        control_source=control[:, 0],
        control_target=control[:, 1],
    )
    problem, other = (small_problem(g, cluster) for g in (graph, relabelled))
    genes = random_genes(problem, rng)
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    for p in range(4):
        keys = rng.permutation(np.arange(n + t * d, dtype=np.uint16))
        genes["priority"][0, p, :n] = keys[:n]
        if problem.blocking:
            genes["transfer_priority"][0, p, :t, :d] = keys[n:].reshape(t, d)
    moved = {k: leaf.copy() for k, leaf in genes.items()}
    for k in ("affinity", "priority"):
        moved[k][:, :, :n] = genes[k][:, :, order]
    if problem.blocking:
        moved["transfer_priority"][:, :, :t] = genes["transfer_priority"][:, :, tensors]
    before, after = run(problem, genes), run(other, moved)
    chex.assert_trees_all_equal(before.makespan, after.makespan)
    chex.assert_trees_all_equal(before.peak_memory, after.peak_memory)
    np.testing.assert_array_equal(before.op_position[..., :n], np.asarray(after.op_position)[..., new])


# Extremes --------------------------------------------------------------------------------------------


def simulate_and_check(run, graph, cluster, population=2, bucket=None):
    problem = make_problem([graph], cluster, bucket)
    genes = random_genes(problem, np.random.default_rng(0), population)
    check([graph], [cluster], genes, run(problem, genes))


@pytest.mark.parametrize(
    ("num_ops", "devices", "transfer", "outputs"),
    [
        (1, 1, "blocking", 0),
        pytest.param(1, 2, "free", 1, marks=pytest.mark.slow),
        pytest.param(7, 2, "blocking", 0, marks=pytest.mark.slow),
        pytest.param(7, 2, "blocking", 1, marks=pytest.mark.slow),
        pytest.param(7, 1, "free", 1, marks=pytest.mark.slow),
    ],
)
def test_no_edges_and_no_tensors(run, num_ops, devices, transfer, outputs):
    builder = GraphBuilder()
    for o in range(num_ops):
        builder.add_op(f"o{o}", runtime=o + 1.0, outputs=[8] * outputs, temp_bytes=o)
    graph = builder.build()
    simulate_and_check(run, graph, Cluster.uniform(devices, transfer=transfer), bucket=Bucket.exact(graph))


# `test_larger_graphs_and_queues_of_more_levels` has transfers that do not block.
@pytest.mark.parametrize("transfer", ["blocking", pytest.param("delay:latency=3", marks=pytest.mark.slow)])
def test_a_chain_of_ten_thousand(run, transfer):
    builder = GraphBuilder()
    for o in range(10_000):
        builder.add_op(f"o{o}", runtime=float(o % 3), outputs=[8], inputs=[(o - 1, 0)] if o else [])
    simulate_and_check(run, builder.build(), Cluster.uniform(2, transfer=transfer), population=1)


# `test_larger_graphs_and_queues_of_more_levels` has transfers that do not block.
# By default, the chain of ten thousand.
@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["blocking", pytest.param("delay:latency=3", marks=pytest.mark.slow)])
def test_five_thousand_consumers(run, transfer):
    builder = GraphBuilder()
    builder.add_op("source", runtime=1.0, outputs=[8, 16])
    for o in range(5000):
        builder.add_op(f"o{o}", runtime=float(o % 7), outputs=[1], inputs=["source:0", "source:1"])
    builder.add_op("sink", inputs=[f"o{o}" for o in range(5000)])
    simulate_and_check(run, builder.build(), Cluster.uniform(3, transfer=transfer), population=1)


# The contract ----------------------------------------------------------------------------------------


def test_one_trace_a_bucket():
    chex.clear_trace_counter()
    rng = np.random.default_rng(0)
    traced = jax.jit(chex.assert_max_traces(run_eagerly, n=1))
    for seed in range(3):
        graphs = [random_graph(rng, 5, 2) for _ in range(2)]
        clusters = [Cluster.uniform(2, f"{seed + 1}GiB", transfer="blocking") for _ in range(2)]
        problem = make_problem(graphs, clusters, BUCKET)
        traced(problem, random_genes(problem, np.random.default_rng(seed)))


@every_transfer
@pytest.mark.parametrize("implementation", ["xla", "host"])
def test_what_is_not_asked_for_is_absent(implementation, transfer):
    graphs, clusters = mixed_batch(transfer)
    problem = make_problem(graphs, clusters)
    genes = random_genes(problem, np.random.default_rng(0))
    full = RUNS["xla"](problem, genes)
    for memory in (False, True):
        part = jax.jit(
            lambda p, g, m=memory: simulate(p, decode(p, g), implementation=implementation, memory=m)
        )(problem, genes)
        assert part.op_position is part.transfer_position is None
        np.testing.assert_array_equal(part.makespan, full.makespan)
        if memory:
            np.testing.assert_array_equal(part.peak_memory, full.peak_memory)
        else:
            assert part.peak_memory is None


def test_refusals():
    graphs, clusters = mixed_batch("blocking")
    problem = make_problem(graphs, clusters)
    decisions = decode(problem, random_genes(problem, np.random.default_rng(0)))
    with pytest.raises(ConfigError, match="unknown 'abacus'; use one of xla, host, pallas"):
        simulate(problem, decisions, implementation="abacus")
    with pytest.raises(ConfigError, match="priority has shape"):
        simulate(problem, decisions._replace(priority=decisions.priority[..., :-1]))
    with pytest.raises(ConfigError, match="placement has shape"):
        simulate(problem, decisions._replace(placement=jnp.zeros((3, 5, 1), jnp.int32)))
    placement = decisions.placement
    for wrong in (placement + 100, placement - 3):
        with pytest.raises(ConfigError, match=r"an op is placed on device -?[0-9]+; there are"):
            simulate(problem, decisions._replace(placement=wrong))
    with pytest.raises(ConfigError, match="placement is float32; give int32"):
        simulate(problem, decisions._replace(placement=placement.astype(jnp.float32)))
    expected = simulate(problem, decisions).makespan
    found = simulate(problem, decisions._replace(placement=placement.astype(jnp.uint8))).makespan
    np.testing.assert_array_equal(found, expected)


def test_the_platform_of_the_program_chooses(monkeypatch):
    # A machine with an accelerator may also run programs on its CPU.
    monkeypatch.setattr(jax.extend.backend, "backends", lambda: {"cpu": None, "cuda": None})
    graphs, clusters = mixed_batch("blocking")
    problem = make_problem(graphs, clusters)
    genes = random_genes(problem, np.random.default_rng(0))
    chosen = jax.jit(functools.partial(run_eagerly, implementation=None))
    assert "regal_jax_simulate" in chosen.lower(problem, genes).as_text()
    chex.assert_trees_all_equal(chosen(problem, genes), RUNS["xla"](problem, genes))
    traced = chosen.trace(problem, genes)
    assert "regal_jax_simulate" not in traced.lower(lowering_platforms=("cuda",)).as_text()
