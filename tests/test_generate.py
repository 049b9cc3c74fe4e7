"""Schedule generation against the replay, a second implementation and brute force."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances, random_cluster, random_graph

from regal_jax.encoding import preferences, schedule_shapes
from regal_jax.plan import replay
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import generate_schedules

BUCKET = Bucket(12, 36, 80, 66)
seeds = st.integers(0, 2**32 - 1)


def generated(problem, genes, implementation, **options):
    return generate_schedules(
        problem, preferences(problem, genes), implementation=implementation, positions=True, **options
    )


XLA, HOST = (jax.jit(functools.partial(generated, implementation=name)) for name in ("xla", "host"))


def small_problem(graph, cluster):
    """One shape, and hence one compilation, for every device count and kind of transfer."""
    return dataclasses.replace(make_problem([graph], cluster, BUCKET, 4), unlimited=False)


def random_genes(problem, rng, population=4, coarse=False):
    lead = (problem.num_graphs, population)
    levels = 3 if coarse else 2**16
    return {
        name: (rng.integers(0, levels, lead + leaf.shape) * (65535 // (levels - 1))).astype(np.uint16)
        for name, leaf in schedule_shapes(problem).items()
    }


def events_of(graph, result, b, p):
    """Event ids in the order of their positions; positions must be 0, 1, 2, ..."""
    op, transfer = np.asarray(result.op_position[b, p]), np.asarray(result.transfer_position[b, p])
    assert (op[graph.num_ops :] == -1).all()
    assert (transfer[graph.num_tensors :] == -1).all()
    position = np.concatenate([op[: graph.num_ops], transfer[: graph.num_tensors].reshape(-1)])
    events = np.flatnonzero(position >= 0)
    np.testing.assert_array_equal(np.sort(position[events]), np.arange(len(events)))
    return events[np.argsort(position[events])], transfer.shape[-1]


def check_replay(graph, cluster, placement, result, b=0):
    for p in range(result.makespan.shape[1]):
        events, wide = events_of(graph, result, b, p)
        n, d = graph.num_ops, cluster.num_devices
        tensor, device = np.divmod(np.maximum(events - n, 0), wide)
        events = np.where(events < n, events, n + tensor * d + device)
        timeline = replay(graph, cluster, np.asarray(placement[b, p])[:n], events)
        np.testing.assert_allclose(result.makespan[b, p], timeline.makespan, rtol=1e-5)
        peak = np.asarray(result.peak_memory[b, p])
        np.testing.assert_array_equal(peak[:d], timeline.peak_memory)
        assert (peak[d:] == 0).all()


@settings(max_examples=150)
@given(instances(devices=(1, 2, 4)), seeds, st.booleans())
def test_the_replay_of_its_events_gives_its_times_and_peaks(instance, seed, coarse):
    graph, cluster = instance
    problem = small_problem(graph, cluster)
    genes = random_genes(problem, np.random.default_rng(seed), coarse=coarse)
    placement, result = HOST(problem, genes)
    check_replay(graph, cluster, placement, result)
    chex.assert_trees_all_equal(XLA(problem, genes), (placement, result))


@pytest.mark.parametrize(("devices", "transfer"), [(2, "blocking"), (4, "blocking"), (3, "delay")])
def test_larger_graphs(devices, transfer):
    rng = np.random.default_rng([7, devices])
    graphs = [random_graph(rng, n, devices, inputs_per_op=2.0) for n in (90, 60)]
    clusters = [random_cluster(rng, devices, transfer) for _ in graphs]
    problem = make_problem(graphs, clusters)
    genes = random_genes(problem, rng, 3)
    placement, result = HOST(problem, genes)
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        check_replay(graph, cluster, placement, result, b)
    chex.assert_trees_all_equal(XLA(problem, genes), (placement, result))
