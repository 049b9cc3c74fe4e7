"""Schedule generation against the replay, a second implementation and brute force."""

import dataclasses
import functools
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brute_force import brute_force
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances, random_cluster, random_graph

from benchmarks.__main__ import main as benchmarks
from regal_jax import Annealing, Brkga, LocalSearch, RandomSearch, optimize, optimize_many, save_graph
from regal_jax.cli import main as cli
from regal_jax.datasets import generate
from regal_jax.encoding import (
    Proposal,
    ScheduleMoves,
    draw_schedule,
    encode_schedule,
    preferences,
    quantile_table,
    schedule_prior,
    schedule_shapes,
)
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.plan import replay
from regal_jax.policies import Policy, PolicyConfig, save_policy
from regal_jax.problem import Bucket, make_problem
from regal_jax.search import random_keys
from regal_jax.simulate import generate_schedules
from regal_jax.solve import ENCODINGS

BUCKET = Bucket(12, 36, 80, 66)
seeds = st.integers(0, 2**32 - 1)
SLOW = "blocking:latency=1,bandwidth=10"


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


@pytest.mark.parametrize("devices", [(1, 4), pytest.param((2,), marks=pytest.mark.slow)])
def test_the_replay_of_its_events_gives_its_times_and_peaks(devices):
    @settings(max_examples=150)
    @given(instances(devices=devices), seeds, st.booleans())
    def equal(instance, seed, coarse):
        graph, cluster = instance
        problem = small_problem(graph, cluster)
        genes = random_genes(problem, np.random.default_rng(seed), coarse=coarse)
        placement, result = HOST(problem, genes)
        check_replay(graph, cluster, placement, result)
        chex.assert_trees_all_equal(XLA(problem, genes), (placement, result))

    equal()


# By default, transfers that do not block are tested above.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "transfer"),
    [(2, "blocking"), *(pytest.param(*c, marks=pytest.mark.slow) for c in ((4, "blocking"), (3, "delay")))],
)
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


def test_a_schedule_by_hand():
    """Two devices, blocking transfers of 1 s; every number below was computed by hand."""
    builder = GraphBuilder("hand")
    builder.add_op("a", runtime=2, outputs=[10])
    builder.add_op("b", runtime=3, outputs=[10])
    builder.add_op("c", runtime=4, inputs=["a:0", "b:0"])
    builder.add_op("d", runtime=1, inputs=["a:0"])
    graph, cluster = builder.build(), Cluster(memory=[math.inf] * 2, transfer="blocking", latency=1)
    problem = make_problem([graph], cluster, Bucket.exact(graph))
    genes = {
        name: np.zeros((1, 1, *leaf.shape), np.uint16) for name, leaf in schedule_shapes(problem).items()
    }
    # All ready at 0: a goes first, to device 0; b goes to device 1, where it ends at 3. Now d could start
    # at 2 and c at max(2, 3) + 1 = 4, so d is next: 2 to 3 on device 0. c waits for b's output from 3 to 4
    # on device 0, or for a's on device 1, as long; the lower device has it, from 4 to 8.
    placement, result = HOST(problem, genes)
    np.testing.assert_array_equal(placement[0, 0], [0, 1, 0, 0])
    assert float(result.makespan[0, 0]) == 8
    np.testing.assert_array_equal(result.op_position[0, 0], [0, 1, 4, 2])
    np.testing.assert_array_equal(result.transfer_position[0, 0], [[-1, -1], [3, -1]])
    # A prohibitive price of c on device 0 sends it to device 1, and a's output with it.
    genes["price"][0, 0, 2, 0] = 65535
    placement, result = HOST(problem, genes)
    np.testing.assert_array_equal(placement[0, 0], [0, 1, 1, 0])
    assert float(result.makespan[0, 0]) == 8


def test_a_transfer_without_cost_is_inserted_where_its_devices_last_met():
    """``far`` ends at 1, the devices meet at 2, and ``reader`` needs ``far`` at 9, when device 0 is busy."""
    builder = GraphBuilder("ride")
    builder.add_op("far", runtime=1, outputs=[1])
    builder.add_op("first", runtime=2, outputs=[1])
    builder.add_op("second", runtime=1, inputs=["first:0"], outputs=[1])
    builder.add_op("long", runtime=20, inputs=["far:0"])
    builder.add_op("reader", runtime=1, inputs=["far:0", "second:0"])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="blocking")
    problem = make_problem([graph], cluster, Bucket.exact(graph))
    on = np.array([0, 0, 1, 0, 1])
    order = np.array([0, 1, 2, 3, 4])
    genes = encode_schedule(graph, cluster, on, order)
    genes = {name: leaf[None, None] for name, leaf in genes.items()}
    placement, result = HOST(problem, genes)
    np.testing.assert_array_equal(placement[0, 0], on)
    # far 0 to 1, first 1 to 3 on device 0; they meet at 3; second 3 to 4, reader 4 to 5 on device 1.
    check_replay(graph, cluster, placement, result)
    assert float(result.makespan[0, 0]) == 23
    events, _ = events_of(graph, result, 0, 0)
    # The rendezvous is first's output; far's, to device 1, is inserted right after it, before long.
    sent = graph.num_ops + 2 * np.array([1, 0]) + 1
    np.testing.assert_array_equal(events[:4], [0, 1, *sent])


@settings(max_examples=25)
@given(instances(max_ops=5, devices=(2,), transfers=("free", "delay")), seeds)
def test_genes_express_an_optimal_schedule(instance, seed):
    del seed
    graph, cluster = instance
    # Capacities would come before the genes.
    cluster = dataclasses.replace(cluster, memory=(math.inf,) * 2)
    problem = small_problem(graph, cluster)
    best = brute_force(graph, cluster)
    genes = encode_schedule(graph, cluster, best.placement, best.event_ids(graph), BUCKET, 4)
    genes = {name: np.broadcast_to(leaf, (1, 4, *leaf.shape)) for name, leaf in genes.items()}
    placement, result = HOST(problem, genes)
    np.testing.assert_array_equal(placement[0, 0, : graph.num_ops], best.placement)
    np.testing.assert_allclose(result.makespan[0], best.makespan, rtol=1e-5)


def test_company_and_padding_change_nothing():
    rng = np.random.default_rng(5)
    graphs = [random_graph(rng, n, 3) for n in (3, 12)]
    cluster = random_cluster(rng, 3, "blocking")
    together = make_problem(graphs, cluster, BUCKET, 4)
    genes = random_genes(together, rng)
    _, result = HOST(dataclasses.replace(together, unlimited=False), genes)
    for b, graph in enumerate(graphs):
        alone = make_problem([graph], cluster, Bucket.exact(graph))
        own = {
            name: genes[name][(slice(b, b + 1), slice(None), *map(slice, leaf.shape))]
            for name, leaf in schedule_shapes(alone).items()
        }
        mine = HOST(alone, own)[1]
        np.testing.assert_array_equal(mine.makespan[0], result.makespan[b])
        np.testing.assert_array_equal(mine.peak_memory[0], result.peak_memory[b, :, :3])


def test_encode_refuses_a_missing_op():
    graph = generate("chain", 3, seed=0)
    with pytest.raises(PlanError, match="2 of 3 ops"):
        encode_schedule(graph, Cluster.uniform(1), np.zeros(3, int), np.array([0, 1]))


@jax.jit
def drawn_around(prior, key):
    """One individual around a prior."""
    return draw_schedule(prior, random_keys(key, prior.shapes))


@given(instances(), seeds)
def test_draws_are_near_upward_ranks_and_independent_of_padding(instance, seed):
    graph, cluster = instance
    rank = upward_rank(graph, cluster)
    found = []
    for bucket in (BUCKET, Bucket(16, 36, 80, 66)):
        problem = make_problem([graph], cluster, bucket, 4)
        prior = jax.tree.map(lambda leaf: leaf[0], schedule_prior(problem))
        drawn = np.asarray(drawn_around(prior, jax.random.key(seed))["rank"])[: graph.num_ops]
        wanted = 65535 * rank / (rank.max() or 1)
        assert (np.abs(drawn - wanted) <= 0.035 * 65535 + 1).all()
        found.append(drawn)
    np.testing.assert_array_equal(*found)


def test_a_policy_proposes_ranks_and_prices():
    graph, cluster = generate("layered", 9, seed=2), Cluster.uniform(2)
    problem = make_problem([graph], cluster)
    n = problem.bucket.ops
    # Two points: all affinities of device 0, and all priorities, are 3/4; those of device 1 are 1/4.
    table = quantile_table([3e10, 1e10], [1e10, 3e10])[None]
    index = jnp.zeros((1, n, 3), jnp.uint8).at[:, :, 1].set(1)
    keys = jax.random.split(jax.random.key(0), 200)

    def drawn(guide):
        prior = jax.tree.map(lambda leaf: leaf[0], schedule_prior(problem, guide))
        sample = ENCODINGS["schedule"].sampler(problem, prior)
        return jax.jit(jax.vmap(functools.partial(sample, prior)))(keys)

    # 3/4 is half of the way from the upward rank to the farthest rank above it.
    upward = np.asarray(schedule_prior(problem).rank)[0]
    wanted = np.minimum(upward + 0.035 / 2 * 65535, 65535)
    genes = drawn(Proposal(table, index, transfers=problem.bucket.tensors, share=0.5))
    guided = (np.abs(np.asarray(genes["rank"]) - wanted) <= 1).all(axis=-1)
    assert 70 < guided.sum() < 130
    # Prices are halved 0 to 3 times, equally often for all ops together.
    prices, halvings = np.asarray(genes["price"])[guided], np.arange(4)[:, None]
    each = [(prices[..., 0] == 2**14 - 1 >> h) & (prices[..., 1] == 3 * 2**14 - 1 >> h) for h in halvings]
    times = np.stack(each).all(axis=-1)
    assert (times.sum(axis=0) == 1).all()
    assert (times.sum(axis=1) > 10).all()
    # The others are as without a policy: near upward ranks.
    assert (np.abs(np.asarray(genes["rank"])[~guided].astype(int) - upward) <= 0.035 * 65535 + 1).all()
    # Neither the share of guided individuals nor an order prior changes the ranks of the guided ones.
    around = {"scale": jnp.full(1, 0.1), "offset": jnp.full((1, n), 2**15)}
    every = np.asarray(drawn(Proposal(table, index, transfers=0, **around))["rank"])
    assert (np.abs(every - wanted) <= 1).all()
    # Rules stay uniform.
    assert len(np.unique(np.asarray(genes["rule"])[guided] >> 12)) == 16


# By default, what a policy proposes for this encoding, and policies that guide searches with the other one.
@pytest.mark.slow
def test_a_policy_guides_this_encoding():
    graph, cluster = generate("layered", 24, seed=2), Cluster.uniform(2, transfer=SLOW)
    options = {"evaluations": 60, "seed": 3, "progress": False, "warm_start": False}
    guided = dataclasses.replace(SEARCHES[0], policy="default")
    plan = optimize(graph, cluster, method=guided, **options)
    plan.verify(graph)
    assert (plan.provenance["encoding"], plan.provenance["policy"]) == ("schedule", "default")
    same = optimize_many([graph, generate("chain", 1, seed=0)], cluster, method=guided, **options)[0]
    np.testing.assert_array_equal(same.timeline.start, plan.timeline.start)
    without = optimize(graph, cluster, method=SEARCHES[0], **options)
    assert "policy" not in without.provenance
    assert plan.provenance["history"] != without.provenance["history"]


@given(instances(), seeds)
def test_a_neighbour_is_a_block_or_a_few_numbers(instance, seed):
    graph, cluster = instance
    problem = make_problem([graph], cluster, BUCKET, 4)
    rng = np.random.default_rng(seed)
    genes = random_genes(problem, rng, 64)
    bits = rng.integers(0, 2**32, (1, 64, ScheduleMoves().words), dtype=np.uint32)
    new = {name: np.asarray(leaf) for name, leaf in MOVE(problem, genes, bits).items()}
    n, allowed = graph.num_ops, np.asarray(problem.allowed)[0]
    for p in range(64):
        prices = (new["price"][0, p] != genes["price"][0, p]).any(axis=-1)
        ranks = new["rank"][0, p] != genes["rank"][0, p]
        assert not (prices.any() and ranks.any())
        ban = (new["price"][0, p][:, :] == 65535).sum(axis=-1) == 3
        if (prices & ban & (new["price"][0, p] == 0).any(axis=-1)).sum() > 1:
            on = np.argmin(new["price"][0, p], axis=-1)[np.flatnonzero(prices & ban)]
            assert len(set(on)) == 1
            assert allowed[:n, on[0]].any()
        assert (new["rule"][0, p] != genes["rule"][0, p]).sum() <= 1


MOVE = jax.jit(ScheduleMoves().__call__)
SEARCHES = (
    Brkga(population=20, elites=4, mutants=3, encoding="schedule"),
    RandomSearch(population=20, encoding="schedule"),
    Annealing(encoding="schedule"),
    LocalSearch(encoding="schedule"),
)


@pytest.mark.parametrize(
    "method",
    # By default, neighbours of schedules are tested above.
    [pytest.param(method, marks=() if method.name == "brkga" else pytest.mark.slow) for method in SEARCHES],
    ids=lambda method: method.name,
)
def test_searches_by_this_encoding(method):
    """One op and several, company, repetition, warm starts."""
    graphs = [generate("chain", 1, seed=0), generate("layered", 24, seed=2)]
    cluster = Cluster.uniform(2, transfer=SLOW)
    options = {"method": method, "evaluations": 60, "seed": 3, "progress": False}
    plans = optimize_many(graphs, cluster, **options, warm_start=False)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)
        assert plan.provenance["encoding"] == "schedule"
        assert plan.provenance["evaluations"] <= 60
        alone = optimize(graph, cluster, **options, warm_start=False)
        np.testing.assert_array_equal(alone.timeline.start, plan.timeline.start)
    given = optimize(graphs[1], cluster, method="list-search", evaluations=300, seed=7)
    assert optimize(graphs[1], cluster, **options, warm_start=given).sort_key <= given.sort_key


def test_what_the_encoding_refuses():
    graph, cluster = generate("chain", 3, seed=0), Cluster.uniform(2)
    for make in (Brkga, RandomSearch, Annealing, LocalSearch):
        for unknown in ("x", {}):
            with pytest.raises(ConfigError, match=r"encoding: unknown .*; use one of chromosome, schedule"):
                make(encoding=unknown)
    problem = make_problem([graph], cluster)
    given = preferences(problem, random_genes(problem, np.random.default_rng(0)))
    with pytest.raises(ConfigError, match="'gpu' generates no schedules; use one of xla, host, pallas"):
        generate_schedules(problem, given, implementation="gpu")
    with pytest.raises(ConfigError, match="preferences: urgency has shape"):
        generate_schedules(problem, given._replace(waste=given.waste[:, :1]))


def test_the_command_reaches_it(tmp_path):
    path, out = tmp_path / "graph.json", tmp_path / "plan.json"
    save_graph(generate("layered", 12, seed=1), path)
    options = ["--devices", "2", "--method", "brkga", "--set", "encoding=schedule", "--evaluations", "40"]
    assert cli(["optimize", str(path), *options, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["provenance"]["encoding"] == "schedule"


@pytest.mark.slow
def test_the_benchmark(tmp_path, capsys):
    out = tmp_path / "table.json"
    options = ["--ops", "10", "--devices", "2", "--costs", "0.5", "--graphs", "2", "--evaluations", "60"]
    assert benchmarks(["encodings", *options, "--methods", "schedule, cold", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["method"] == "schedule, cold"
    assert (np.array(row["gaps"]) >= -1e-9).all()
    assert "schedules/s" in capsys.readouterr().out
    assert benchmarks(["encodings", "--methods", "guess"]) == 2


@pytest.mark.slow
def test_the_benchmark_of_a_policy(tmp_path, capsys):
    weights, out = tmp_path / "mine.safetensors", tmp_path / "table.json"
    save_policy(weights, Policy(PolicyConfig(rounds=1, width=4), rngs=nnx.Rngs(1)))
    options = ["--ops", "10", "--devices", "2", "--costs", "0.5", "--graphs", "2", "--evaluations", "60"]
    options += ["--methods", "schedule", "--policy", str(weights), "--first", "77", "--out", str(out)]
    assert benchmarks(["encodings", *options]) == 0
    names = ["schedule", f"schedule, {weights} untrained", f"schedule, {weights}"]
    rows = json.loads(out.read_text())
    assert [row["method"] for row in rows] == names
    # The last lines compare the policy with the others.
    compared = capsys.readouterr().out.splitlines()[-2:]
    for row, line in zip(rows, compared, strict=False):
        log = np.log1p(np.array(rows[-1]["gaps"])[0]) - np.log1p(np.array(row["gaps"])[0])
        assert line.strip().startswith(f"{names[-1]} over {row['method']}: {np.exp(log.mean()):.4f} [")
