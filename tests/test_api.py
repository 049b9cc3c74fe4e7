"""`optimize` and `optimize_many`: the documented behaviour."""

import importlib
import itertools
import math
import subprocess
import sys
from typing import Any

import chex
import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import instances

from regal_jax import Auto, Brkga, BrkgaConfig, Cluster, GraphBuilder, optimize, optimize_many, order
from regal_jax.api import many
from regal_jax.datasets import generate
from regal_jax.errors import ClusterError, ConfigError, InfeasiblePlanWarning
from regal_jax.heuristics import HEURISTICS, heuristic_plans, run_heuristic
from regal_jax.plan import Objective
from regal_jax.problem import Bucket
from regal_jax.runtime.deadline import Deadline
from regal_jax.solve import fitness
from regal_jax.solvers.loop.batches import cut, make_batch
from regal_jax.solvers.loop.settings import Settings, budget_of

solve = importlib.import_module("regal_jax.solve.solve")
TWO = Cluster.uniform(2, transfer="blocking")


def same(a, b):
    """Checks that two plans are the same, bit for bit."""
    np.testing.assert_array_equal(a.placement, b.placement)
    np.testing.assert_array_equal(a.timeline.op, b.timeline.op)
    np.testing.assert_array_equal(a.timeline.port, b.timeline.port)
    assert a.makespan == b.makespan
    assert a.peak_memory.tolist() == b.peak_memory.tolist()
    assert a.provenance["evaluations"] == b.provenance["evaluations"]
    return True


@pytest.fixture(scope="module")
def graph():
    return generate("erdos-renyi", 40, seed=0)


# By default, test_auto.py and test_solvers.py compare with the heuristics.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::regal_jax.errors.InfeasiblePlanWarning")
@given(instances())
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
def test_any_instance_gives_a_verified_plan_no_worse_than_any_heuristic(instance):
    graph, cluster = instance
    for objective in ("makespan", "peak-memory"):
        plan = optimize(graph, cluster, objective=objective, evaluations=60, seed=0)
        plan.verify(graph)
        for name, heuristic in HEURISTICS.items():
            assert plan.sort_key <= heuristic(graph, cluster, objective).sort_key, name


@pytest.mark.parametrize(
    ("objective", "transfer"),
    [
        ("makespan", "blocking"),
        ("makespan", "free"),
        pytest.param("peak-memory", "blocking", marks=pytest.mark.slow),
        # Delays have the shapes of free transfers, and there are no meetings of devices.
        pytest.param("makespan", "delay:latency=3,bandwidth=20", marks=pytest.mark.slow),
        pytest.param("peak-memory", "delay:latency=3,bandwidth=20", marks=pytest.mark.slow),
        pytest.param("peak-memory", "free", marks=pytest.mark.slow),
    ],
)
def test_search_improves_on_a_random_start(graph, transfer, objective):
    cluster = Cluster.uniform(3, transfer=transfer)
    # The few are the first population of the many, which needs no program of its own.
    few, many = (
        optimize(graph, cluster, objective=objective, method="brkga", evaluations=n, seed=1, warm_start=False)
        for n in (100, 2000)
    )
    assert many.objective_value < few.objective_value
    assert many.provenance["evaluations"] <= 2000
    history = many.provenance["history"]
    assert history["best"] == sorted(history["best"], reverse=True)
    assert history["evaluations"][-1] == many.provenance["evaluations"]
    assert math.isclose(history["best"][-1], many.objective_value, rel_tol=1e-4)


def test_company_order_and_batch_size_change_nothing(graph):
    graphs = [graph, generate("layered", 30, seed=1), generate("erdos-renyi", 41, seed=2), graph]
    options = {"evaluations": 300, "seed": 5, "progress": False}
    alone = [optimize(g, TWO, **options) for g in graphs]
    together = optimize_many(graphs, TWO, **options)
    backwards = optimize_many(graphs[::-1], TWO, batch_size=2, **options)[::-1]
    for a, b, c in zip(alone, together, backwards, strict=True):
        assert same(a, b)
        assert same(a, c)


def test_device_count_changes_nothing(graph):
    graphs = [generate("erdos-renyi", 40, seed=s) for s in range(5)]
    options = {"evaluations": 300, "seed": 5, "progress": False}
    one = optimize_many(graphs, TWO, devices=jax.devices()[:1], **options)
    four = optimize_many(graphs, TWO, devices=jax.devices()[:4], **options)
    assert len(jax.devices()) == 4
    for a, b in zip(one, four, strict=True):
        assert same(a, b)


def test_less_than_a_third_of_the_rows_are_copies():
    for members, devices in itertools.product(range(1, 257), (1, 2, 3, 4, 7, 8, 16, 61, 64, 128)):
        for most in {members, members + 1, 256, 3}:
            calls = cut(members, most, devices)
            assert sum(graphs for graphs, _, _ in calls) == members
            for graphs, rows, shards in calls:
                assert graphs <= rows < 1.5 * graphs or rows == graphs
                assert rows <= most
                assert rows % shards == 0
                assert shards <= min(devices, graphs + graphs // 2)
    assert cut(7, 256, 1, (64, 8, 1)) == [(7, 8, 1)]
    assert cut(9, 256, 1, (64, 8, 1)) == [(8, 8, 1), (1, 1, 1)]
    assert cut(5, 256, 8) == [(4, 4, 4), (1, 1, 1)]
    assert cut(6, 256, 8) == [(6, 8, 8)]
    assert cut(66, 256, 1) == [(64, 64, 1), (1, 1, 1), (1, 1, 1)]


def test_few_sizes_of_batches_keep_programs_few():
    sizes = {call[1:] for members in range(1, 257) for call in cut(members, 256, 1)}
    assert sizes == {(1, 1), (64, 1)}
    assert cut(23, 256, 1, (24, 8, 1)) == [(23, 24, 1)]
    sizes = {call[1:] for members in range(1, 257) for call in cut(members, 256, 6)}
    assert len(sizes) <= 10


def test_rows_are_those_of_the_graphs_that_are_due(monkeypatch):
    """Of 48 graphs that may share a call, five have another budget and get calls of their own."""
    made, run = [], []

    def turn(turns, evaluations, who, **_):
        if turns:
            return None
        run.append(len(run))
        return 0, 10 if run[-1] % 48 < 5 else 20

    def recorded(share, *more):
        made.append((len(share.members), share.rows))
        return make_batch(share, *more)

    monkeypatch.setattr("regal_jax.solvers.loop.members.next_turn", turn)
    monkeypatch.setattr("regal_jax.solvers.loop.call.make_batch", recorded)
    monkeypatch.setattr("regal_jax.solvers.loop.call.available_cores", lambda: 16)
    graphs = [generate("erdos-renyi", 6, seed=seed) for seed in range(48)]
    options = {"method": "brkga", "evaluations": 20, "warm_start": False, "progress": False}
    optimize_many(graphs, TWO, devices=jax.devices()[:1], **options)
    assert sorted(made) == [(1, 1)] * 5 + [(43, 64)]


def test_clusters_may_differ(graph):
    clusters = [
        TWO,
        Cluster.uniform(3, transfer="blocking"),
        Cluster.uniform(2, transfer="free"),
        Cluster.uniform(2, 10_000, transfer="blocking"),
    ]
    plans = optimize_many([graph] * 4, clusters, evaluations=100, seed=0, progress=False)
    for plan, cluster in zip(plans, clusters, strict=True):
        assert plan.cluster == cluster
        assert same(plan, optimize(graph, cluster, evaluations=100, seed=0))


def test_seeds_differ_and_keys_equal_their_seed(graph):
    options = {"evaluations": 200, "warm_start": False}
    a = optimize(graph, TWO, seed=0, **options)
    assert same(a, optimize(graph, TWO, seed=jax.random.key(0), **options))
    b = optimize(graph, TWO, seed=1, **options)
    assert a.timeline.op.tolist() != b.timeline.op.tolist()
    # Methods that take one number as a seed, too.
    orders = []
    for seed in (1, 2):
        plan = optimize(graph, TWO, seed=seed, method="random-topological")
        orders.append(plan.timeline.op.tolist())
        for kind in ("threefry2x32", "rbg"):
            key = jax.random.key(seed, impl=kind)
            again = optimize(graph, TWO, seed=key, method="random-topological")
            assert again.timeline.op.tolist() == orders[-1]
            assert again.provenance["seed"] == seed
    assert orders[0] != orders[1]


def test_a_seed_stands_for_the_numbers_of_its_key():
    def settings_of(seed):
        return Settings.checked(
            objective="makespan", evaluations=1, seed=seed, method=None, policy=None, warm_start=True,
            contract=None, target=None, stall=None, time_limit=None, progress=False,
        )  # fmt: skip

    for seed in (0, 7, 2**32 - 1):
        for kind in ("threefry2x32", "rbg"):
            with jax.default_prng_impl(kind):
                made, key = settings_of(seed), jax.random.key(np.uint32(seed))
                assert made.key_words == jax.random.key_data(key).tolist() == settings_of(key).key_words
                assert made.key == key
        assert (settings_of(seed).seed, settings_of(key).seed) == (seed, None)


def test_a_search_on_the_host_uses_no_device_of_jax():
    code = (
        "import jax\n"
        "from regal_jax import Cluster, optimize\n"
        "from regal_jax.datasets import generate\n"
        "optimize(generate('layered', 30, 0), Cluster.uniform(2), evaluations=300, progress=False)\n"
        "jax.config.update('jax_num_cpu_devices', 3)  # It cannot change once there are devices.\n"
        "print(len(jax.devices()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.returncode) == ("3\n", 0), done.stderr


def test_one_trace_serves_every_graph_of_a_bucket(graph, monkeypatch):
    """Three programs: a first population with warm starts, one without, and the generations."""

    @chex.assert_max_traces(n=3)
    def counted(problem, genes):
        return fitness(problem, genes, Objective.MAKESPAN)

    monkeypatch.setattr(solve, "_fitness", lambda *_: counted)
    others = [generate("erdos-renyi", 40, seed=seed) for seed in range(9)]
    same_bucket = [other for other in others if Bucket.of(other) == Bucket.of(graph)][:3]
    assert len(same_bucket) == 3
    for seed, other in enumerate(same_bucket):
        for warm_start in (False, True):
            budget = 130 + 90 * seed
            optimize(other, TWO, method="brkga", evaluations=budget, seed=seed, warm_start=warm_start)


@pytest.mark.parametrize("evaluations", [1, 2, 7, 99, 100, 101])
def test_small_budgets_are_kept(graph, evaluations):
    plan = optimize(graph, TWO, evaluations=evaluations, seed=0, warm_start=False)
    assert 1 <= plan.provenance["evaluations"] <= evaluations
    plan.verify(graph)


def test_the_default_budget_is_that_of_the_documents():
    """20 000 evaluations; 5000 for peak memory on one device, however it is asked for."""
    layered, one = generate("ordering-layered", 200, seed=0), Cluster.uniform(1, transfer="free")
    options: Any = {"method": "brkga", "warm_start": False}
    budgets = {
        "makespan": optimize(layered, TWO, **options),
        "peaks on two": optimize(layered, TWO, objective="peak-memory", **options),
        "peaks on one": optimize(layered, one, objective="peak-memory", **options),
        "order": order(layered, **options),
        "many": optimize_many([layered], [one], objective="peak-memory", progress=False, **options)[0],
    }
    spent = {name: plan.provenance["evaluations"] for name, plan in budgets.items()}
    assert all(19_900 < spent[name] <= 20_000 for name in ("makespan", "peaks on two"))
    assert all(4900 < spent[name] <= 5000 for name in ("peaks on one", "order", "many"))


def test_a_call_has_one_default_budget():
    one = Cluster.uniform(1)
    budgets = [budget_of(None, "peak-memory", clusters) for clusters in ([one, one], [one, TWO], [TWO])]
    assert budgets == [5000, 20_000, 20_000]


def test_one_op():
    builder = GraphBuilder("one")
    builder.add_op("only", runtime=2.0)
    plan = optimize(builder.build(), Cluster.uniform(1), evaluations=5, seed=0)
    assert plan.makespan == 2.0


def test_many_of_none():
    assert optimize_many([], TWO, progress=False) == []


def test_infeasible_memory_gives_the_least_overflow(graph):
    tight = Cluster.uniform(2, 1, transfer="blocking")
    with pytest.warns(InfeasiblePlanWarning, match="can fit the memory"):
        plan = optimize(graph, tight, evaluations=200, seed=0)
    assert not plan.feasible
    best = min(h(graph, tight, "makespan").overflow.sum() for h in HEURISTICS.values())
    assert plan.overflow.sum() <= best


def test_memory_limit_is_met_where_it_can_be(graph):
    free = optimize(graph, Cluster.uniform(2, transfer="blocking"), evaluations=1000, seed=0)
    limit = int(free.peak_memory.max() * 0.8)
    plan = optimize(graph, Cluster.uniform(2, limit, transfer="blocking"), evaluations=3000, seed=0)
    assert plan.feasible
    assert plan.peak_memory.max() <= limit


def test_methods_and_settings(graph):
    plan = optimize(graph, TWO, method="critical-path")
    assert plan.provenance["method"] == "critical-path"
    config = BrkgaConfig(population=30, elites=5, mutants=5, islands=2)
    plan = optimize(graph, TWO, method=Auto(config), evaluations=300, seed=0)
    assert plan.provenance["method"] == "auto"
    assert plan.provenance["evaluations"] <= 300


def test_target_and_time_limit_stop_the_search(graph):
    loose = optimize(graph, TWO, evaluations=1000, seed=0)
    plan = optimize(graph, TWO, evaluations=10**9, seed=0, target=loose.makespan * 1.2)
    assert plan.makespan <= loose.makespan * 1.2
    assert plan.provenance["stopped"] == "target"
    # The bound is far, so that the search does not end early.
    costly = Cluster.uniform(2, transfer="blocking:latency=10us")
    plan = optimize(graph, costly, evaluations=10**9, seed=0, time_limit=0.3)
    assert plan.provenance["stopped"] == "time"
    plan.verify(graph)


def test_heuristics_end_with_the_time(graph, monkeypatch):
    made = []

    def plans(graph, cluster, objective, seed):
        for plan in heuristic_plans(graph, cluster, objective, seed=seed):
            made.append(plan)
            yield plan

    monkeypatch.setattr("regal_jax.solvers.loop.starts.heuristic_plans", plans)
    plan = optimize(graph, TWO, seed=0, time_limit=1e-9)
    plan.verify(graph)
    assert len(made) == 1
    assert plan.makespan == made[0].makespan
    assert plan.provenance["stopped"] == "time"
    optimize(graph, TWO, seed=0, evaluations=100, time_limit=1e9)
    assert len(made) > 5


@pytest.mark.parametrize("ops", [1, 40])
def test_no_time_is_enough_for_the_orders_of_xla(ops):
    graph = generate("layered", ops, seed=3)
    best = run_heuristic("xla-best", graph, Cluster.uniform(1), "peak-memory")
    for method in ("auto", "order-search", "brkga"):
        plan = optimize(
            graph, Cluster.uniform(1), objective="peak-memory", method=method, seed=0, time_limit=1e-9
        )
        assert plan.objective_value <= best.objective_value


def test_time_that_ends_while_a_batch_is_made(graph, monkeypatch):
    answers, seen = itertools.chain([False] * 2, itertools.repeat(True)), []

    class Ending(Deadline):
        @property
        def over(self):
            seen.append(next(answers))
            return seen[-1]

    monkeypatch.setattr(many, "Deadline", Ending)
    plan = optimize(graph, TWO, method="brkga", warm_start=False, seed=0, time_limit=1.0)
    assert plan.provenance["stopped"] == "time"
    assert plan.provenance["evaluations"] == 0
    assert seen[:2] == [False] * 2
    assert len(seen) > 2


def test_bad_arguments(graph):
    for options, message in [
        ({"objective": "beauty"}, "objective"),
        ({"evaluations": 0}, "evaluations"),
        ({"evaluations": 2.5}, "evaluations"),
        ({"evaluations": 2**31}, "evaluations: must be a whole number of at most 2147483647, got 2147483648"),
        ({"method": "magic"}, "method"),
        ({"policy": "nowhere.safetensors"}, "policy: no file 'nowhere.safetensors'"),
        ({"policy": "default", "method": "annealing"}, "policy: guides auto and brkga, not annealing"),
        ({"policy": 3}, "policy: give None, 'none', 'default', a file"),
        ({"time_limit": -1.0}, "time_limit"),
        ({"time_limit": math.inf}, "time_limit: must be a finite number of .*, got inf; leave it out"),
        ({"target": math.inf}, "target: must be a finite number of zero or more, got inf; leave it out"),
        ({"stall": 0}, "stall: .*at least 1"),
        ({"stall": "x"}, "stall"),
        ({"stall": 2**31}, "stall: must be a whole number of at most 2147483647"),
        ({"stall": True}, "stall"),
        ({"colocate": 3}, "colocate: 3 must be a pattern such as"),
        ({"on_improvement": 3}, "on_improvement: 3 is no function"),
        ({"seed": "abc"}, "seed"),
        ({"seed": -1}, "seed"),
        ({"seed": jax.numpy.zeros(2, "uint32")}, "seed"),
    ]:
        with pytest.raises(ConfigError, match=message):
            optimize(graph, TWO, **options)
    with pytest.raises(ConfigError, match="clusters"):
        optimize_many([graph], [TWO, TWO])
    builder = GraphBuilder()
    builder.add_op("a", runtime=[1.0, 2.0, 3.0])
    with pytest.raises(ClusterError, match="3 devices"):
        optimize(builder.build(), TWO)


def test_wrong_types_are_refused_in_one_line():
    graph, cluster = generate("chain", 3, 0), Cluster.uniform(2, transfer="blocking")
    for call, said in (
        (lambda: optimize("graph.json", cluster), "load_graph"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize(graph, 2), "Cluster.uniform"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize_many(graph, cluster), "call optimize"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize_many(None, cluster), "graphs: give a list .* got NoneType"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize_many([graph], None), "give a Cluster"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize_many([graph], cluster, devices=[], warm_start=False, progress=False), "devices"),
        (lambda: optimize_many([graph], cluster, devices="cpu"), "different JAX devices, got .cpu."),
        (lambda: optimize_many([graph], cluster, devices=[0]), r"different JAX devices, got \[0\]"),
        (lambda: optimize_many([graph], cluster, devices=jax.devices()[:1] * 2), "devices: .* different JAX"),
        (lambda: optimize_many([graph], cluster, on_plan="x"), "on_plan: 'x' is no function"),  # pyright: ignore[reportArgumentType]
        (lambda: optimize_many([graph], cluster, store=__file__), "store: .*File exists; give a folder"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()


def test_what_is_too_large_to_search_is_refused_before_the_heuristics(graph, monkeypatch):
    def ran(*_, **__):
        pytest.fail("a heuristic ran")

    for name in HEURISTICS:
        monkeypatch.setitem(HEURISTICS, name, ran)
    solver = Brkga(population=2 * 10**7)
    with pytest.raises(
        ConfigError, match=f"{graph.name}.*GiB of .*; use fewer devices or a smaller population"
    ):
        optimize(graph, TWO, method=solver, evaluations=10**8)
    for options in ({"devices": []}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            optimize_many([graph], TWO, progress=False, **options)


def test_each_plan_is_told_when_it_is_made(graph):
    told = {}
    graphs = [graph, generate("chain", 5, seed=0), graph]
    plans = optimize_many(graphs, TWO, evaluations=100, progress=False, on_plan=told.__setitem__)
    assert told == dict(enumerate(plans))


# By default, `auto` is guided below.
@pytest.mark.slow
def test_the_policy_that_ships_guides_a_search():
    graph = generate("regal-barabasi-albert", 40, 7)
    plain, guided = (
        optimize(graph, TWO, method="brkga", evaluations=300, policy=policy, warm_start=False)
        for policy in (None, "default")
    )
    guided.verify(graph)
    assert guided.provenance["policy"] == "default"
    assert "policy" not in plain.provenance
    assert guided.makespan < plain.makespan
    again = optimize(graph, TWO, method="brkga", evaluations=300, policy="default", warm_start=False)
    assert same(again, guided)
    of_bytes = {"method": "brkga", "objective": "peak-memory", "evaluations": 300, "warm_start": False}
    small = optimize(graph, TWO, policy="default", **of_bytes)
    small.verify(graph)
    assert small.provenance["policy"] == "default"
    assert small.provenance["action_entropy"] != guided.provenance["action_entropy"]
    with pytest.raises(ConfigError, match="policy: none is shipped for makespan on 3 devices"):
        optimize(graph, Cluster.uniform(3, transfer="blocking"), method="brkga", policy="default")


def test_auto_takes_a_policy_that_is_named():
    # The best plan uses one device, so that the search on the host stalls and leaves evaluations to BRKGA.
    graph, options = generate("erdos-renyi", 20, 1), {"method": "auto", "evaluations": 200}
    cluster = Cluster.uniform(2, transfer="blocking:latency=1s,bandwidth=1GB/s")
    for objective in ("makespan", "peak-memory"):
        for policy, used in (("default", "default"), (None, None), ("none", None)):
            plan = optimize(graph, cluster, objective=objective, policy=policy, **options)
            assert plan.provenance.get("policy") == used
