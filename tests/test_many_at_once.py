"""Graphs of one call whose heuristics and turns run at the same time, and the programs that they share."""

import math
import signal
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from regal_jax import Brkga, Cluster, ListSearch, Portfolio, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.heuristics import ListSearchRace, heuristic_plans
from regal_jax.problem import Bucket
from regal_jax.search import BrkgaConfig
from regal_jax.solvers.loop import host_turns, starts
from regal_jax.solvers.loop.batches import is_alone, share_out
from regal_jax.solvers.loop.call import Call
from regal_jax.solvers.loop.pool import HostPool
from regal_jax.solvers.loop.progress import Bar

TWO = Cluster.uniform(2, transfer="pcie4x16")
ONE_DEVICE = {"devices": jax.devices()[:1], "progress": False}
BOTH = Portfolio(ListSearch(), Brkga(population=10, elites=3, mutants=2))


def same(a, b):
    return a.placement.tolist() == b.placement.tolist() and a.timeline.op.tolist() == b.timeline.op.tolist()


@pytest.mark.parametrize(
    "method",
    [
        BOTH,
        pytest.param(
            Portfolio(Brkga(population=10, elites=3, mutants=2), ListSearch()), marks=pytest.mark.slow
        ),
    ],
)
def test_each_graph_has_the_plan_that_it_has_alone(method, monkeypatch):
    graphs = [generate("layered", n, seed=n) for n in (1, 90, 20, 70)]
    options = {"method": method, "evaluations": 60, "seed": 3}
    monkeypatch.setattr("regal_jax.solvers.loop.call._AHEAD", 1)
    plans = optimize_many(graphs, TWO, **options, **ONE_DEVICE)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)
        alone = optimize(graph, TWO, **options)
        assert same(plan, alone)
        for name in ("evaluations", "stopped", "warm_start", "history"):
            assert plan.provenance[name] == alone.provenance[name]
    # Generations are whole.
    assert all(50 < plan.provenance["evaluations"] <= 60 for plan in plans[1:])


def test_heuristics_run_while_earlier_graphs_are_searched(monkeypatch):
    """The heuristics of the last graph wait for a search of the first, and do not wait in vain."""
    searched, plans_of = threading.Event(), starts.heuristic_plans
    took = Call._came_from_host
    graphs = [generate("layered", 20, seed=seed) for seed in range(12)]
    run = ListSearch.begin

    def begin(self, instance):
        searched.set()
        return run(self, instance)

    def plans(graph, *more, **options):
        if graph is graphs[-1]:
            assert searched.wait(60)
        return plans_of(graph, *more, **options)

    monkeypatch.setattr(ListSearch, "begin", begin)
    monkeypatch.setattr(starts, "heuristic_plans", plans)
    taken = []
    monkeypatch.setattr(
        Call, "_came_from_host", lambda self, of, *more: taken.extend(of) or took(self, of, *more)
    )
    found = optimize_many(graphs, TWO, method="list-search", evaluations=20, **ONE_DEVICE)
    assert sorted(member for member, _ in taken) == list(range(12))
    for graph, plan in zip(graphs, found, strict=True):
        plan.verify(graph)


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_the_heuristics_of_a_later_graph(times, monkeypatch):
    graphs = [generate("layered", 30, seed=seed) for seed in range(4)]
    made: dict[str, int] = {}
    plans_of = starts.heuristic_plans

    def plans(graph, *more, **options):
        for plan in plans_of(graph, *more, **options):
            made[graph.name] = made.get(graph.name, 0) + 1
            yield plan
            if graph is graphs[2] and made[graph.name] == 2:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(starts, "heuristic_plans", plans)
    found = optimize_many(graphs, TWO, method="list-search", evaluations=10**9, **ONE_DEVICE)
    assert [plan.provenance["stopped"] for plan in found] == ["interrupted"] * 4
    for graph, plan in zip(graphs, found, strict=True):
        plan.verify(graph)
    assert graphs[3].name not in made
    assert made[graphs[2].name] <= 3
    for graph, plan in zip(graphs[:2], found[:2], strict=True):
        assert plan.sort_key <= min(p.sort_key for p in heuristic_plans(graph, TWO))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_error_in_a_search_ends_the_call(monkeypatch):
    def begin(self, instance):
        raise ValueError("broken")

    monkeypatch.setattr(ListSearch, "begin", begin)
    graphs = [generate("layered", 20, seed=seed) for seed in range(4)]
    with pytest.raises(ValueError, match="broken"):
        optimize_many(graphs, TWO, method="list-search", evaluations=20, **ONE_DEVICE)


def test_an_error_does_not_wait_for_the_searches_of_other_graphs(monkeypatch):
    begun, told = threading.Event(), []

    def run(self, evaluations, ends=None, goal=-math.inf):
        begun.set()
        late = time.monotonic() + 20
        while not ends() and time.monotonic() < late:
            self.evaluations += 1
        told.append(ends())

    def callback(index, improvement):
        if index:
            begun.wait(20)
            raise ValueError("from the callback")

    monkeypatch.setattr(ListSearchRace, "run", run)
    graphs = [generate("layered", 20, seed=seed) for seed in range(4)]
    with pytest.raises(ValueError, match="from the callback"):
        optimize_many(
            graphs, TWO, method="list-search", evaluations=10**9, on_improvement=callback, **ONE_DEVICE
        )
    assert told
    assert all(told)


@pytest.mark.parametrize(
    ("method", "objective", "devices"),
    [("list-search", "makespan", 2), ("peak-search", "peak-memory", 2), ("order-search", "peak-memory", 1)],
)
def test_searches_on_the_host_report_while_they_run(method, objective, devices, monkeypatch):
    graphs = [generate("layered", n, seed=n) for n in (60, 40)]
    options = {"method": method, "objective": objective, "evaluations": 1200, "seed": 2, **ONE_DEVICE}
    cluster = Cluster.uniform(devices, transfer="nvlink4")
    wanted = optimize_many(graphs, cluster, **options)
    monkeypatch.setattr(host_turns, "_EVERY", 0.0)
    monkeypatch.setattr(host_turns, "_PLANS_SHARE", 1.0)
    advanced, seen = [], ([], [])
    monkeypatch.setattr(Bar, "advance", lambda self, evaluations: advanced.append(evaluations))
    found = optimize_many(graphs, cluster, **options, on_improvement=lambda i, one: seen[i].append(one))
    for graph, plan, before, told in zip(graphs, found, wanted, seen, strict=True):
        assert same(plan, before)
        assert plan.provenance["history"] == before.provenance["history"]
        for one in told:
            one.plan.verify(graph)
        spent = [one.evaluations for one in told]
        assert spent == sorted(spent)
        assert told[-1].plan.sort_key == plan.sort_key
    assert any(0 < one.evaluations < 1200 for one in seen[0])
    assert sum(advanced) == sum(plan.provenance["evaluations"] for plan in found)
    assert len(advanced) > len(found)


def test_small_graphs_share_a_bucket_on_a_cpu_only():
    graphs = [generate("layered", n, seed=0) for n in (5, 300, 100, 700)]
    pairs: Any = [(graph, TWO) for graph in graphs]
    shares = share_out(pairs, BrkgaConfig(), None, jax.devices()[:1])
    large = Bucket.of(graphs[3])
    common = Bucket.common(map(Bucket.of, graphs[:3]))
    assert {(share.bucket, tuple(share.members)) for share in shares} == {
        *((common, (i,)) for i in range(3)),
        (large, (3,)),
    }
    assert all(is_alone(share) for share in shares)
    gpu: Any = SimpleNamespace(platform="gpu")
    shares = share_out(pairs, BrkgaConfig(), None, [gpu])
    assert sorted(share.bucket.ops for share in shares) == sorted(Bucket.of(graph).ops for graph in graphs)
    assert not any(is_alone(share) for share in shares)
    # With limited memory or other devices, programs differ anyway.
    other: Any = [(graphs[0], TWO), (graphs[1], Cluster.uniform(2, 10**9))]
    assert len(share_out(other, BrkgaConfig(), None, jax.devices()[:1])) == 2


def test_a_pool_returns_each_turn_once_and_drops_what_has_not_begun():
    begun, free = threading.Event(), threading.Event()

    def turn(value: Any, wait: bool) -> Any:
        if wait:
            begun.set()
            assert free.wait(60)
        return value

    with HostPool(1) as pool:
        assert pool.ended(patient=True) == []
        pool.submit(7, turn, "seven", False)
        ended: list[Any] = []
        while not ended:
            ended = pool.ended(patient=True)
        assert ended == [(7, "seven")]
        assert (pool.load, pool.ended(patient=False)) == (0, [])
        pool.submit(1, turn, "one", True)
        pool.submit(2, turn, "two", False)
        assert begun.wait(60)
        assert pool.load == 2
        free.set()
        # The second turn is dropped unless it has begun in the meantime.
        assert dict(pool.drain()) in ({1: "one"}, {1: "one", 2: "two"})
        assert pool.load == 0


def test_padding_to_a_common_bucket_changes_no_plan():
    graph, large = generate("erdos-renyi", 40, seed=1), generate("layered", 200, seed=2)
    assert Bucket.of(graph) != Bucket.of(large)
    options = {"method": "brkga", "evaluations": 200, "warm_start": False}
    together = optimize_many([graph, large], TWO, **options, **ONE_DEVICE)
    alone = optimize(graph, TWO, **options)
    assert same(together[0], alone)
    assert together[0].provenance["history"] == alone.provenance["history"]
    np.testing.assert_array_equal(together[0].peak_memory, alone.peak_memory)
