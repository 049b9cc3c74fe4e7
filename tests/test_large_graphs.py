"""Graphs of 200 000 ops: memory of a search, and the loops that make it possible."""

import os

import numpy as np
import pytest

from benchmarks.large import measure
from regal_jax import optimize
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    allowed_matrix,
    constrain,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics import counting, run_heuristic
from regal_jax.heuristics.heft import heft_schedule
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.time_left import until
from regal_jax.plan import verify
from regal_jax.runtime import memory
from regal_jax.solvers.loop import batches

TASK = {"family": "layered", "ops": 200_000, "memory": None, "seconds": None}


def heft_by_the_book(graph: ComputationGraph, cluster: Cluster) -> tuple[list[int], list[float]]:
    """Places and starts, with all idle intervals found anew for every choice (Topcuoglu et al. 2002)."""
    runtime, cost = runtime_matrix(graph, cluster), transfer_times(graph, cluster)
    allowed, leader = allowed_matrix(graph, cluster), graph.colocation_leader
    position, rank = np.argsort(graph.topological_order), upward_rank(graph, cluster)
    place, start, finish = [-1] * graph.num_ops, [0.0] * graph.num_ops, [0.0] * graph.num_ops
    fixed: dict[int, int] = {}
    links = Links.of(graph)

    def earliest(o: int, k: int) -> float:
        ready = 0.0
        for u in links.before[o]:
            ready = max(ready, finish[u])
        for t in links.inputs[o]:
            u = links.producer[t]
            if place[u] != k:
                ready = max(ready, finish[u] + cost[t][cluster.link_index[place[u]][k]])
        busy = sorted((start[v], finish[v]) for v in range(graph.num_ops) if place[v] == k)
        clock = 0.0
        for a, b in busy:
            if max(clock, ready) + runtime[o][k] <= a and clock < a:
                return max(clock, ready)
            clock = max(clock, b)
        return max(clock, ready)

    for o in np.lexsort((position, -rank)).tolist():
        group = int(leader[o])
        options = [k for k in range(cluster.num_devices) if allowed[group][k] and fixed.get(group, k) == k]
        k = min(options, key=lambda k: earliest(o, k) + runtime[o][k])
        start[o] = earliest(o, k)
        finish[o] = start[o] + runtime[o][k]
        place[o] = fixed[group] = k
    return place, start


@pytest.mark.parametrize("transfer", ["free", "delay:latency=5us,bandwidth=1MB/s", "blocking"])
def test_heft_is_that_of_the_book(transfer):
    for seed, (family, ops, devices) in enumerate(
        [
            ("layered", 60, 3),
            ("regal-erdos-renyi", 40, 2),
            ("fork-join", 30, 4),
            ("chain", 1, 2),
            ("chain", 5, 1),
        ]
    ):
        graph, cluster = generate(family, ops, seed=seed), Cluster.uniform(devices, transfer=transfer)
        names = graph.op_names
        for here in (graph, constrain(graph, {names[0]: 0}, (names[-1], names[0]), devices=devices)):
            place, start = heft_by_the_book(here, cluster)
            placement, events = heft_schedule(here, cluster)
            assert placement.tolist() == place
            assert [start[o] for o in events] == sorted(start)


@pytest.mark.parametrize("name", ["critical-path", "partition-list", "partition-dfs", "single-device"])
def test_heuristics_whose_time_is_over_make_one_draft(name):
    graph, cluster = generate("layered", 40, seed=1), Cluster.uniform(4, memory=1)
    with counting() as all_drafts:
        whole = run_heuristic(name, graph, cluster)
    with counting() as work, until(lambda: True):
        plan = run_heuristic(name, graph, cluster)
    with until(lambda: False):
        assert run_heuristic(name, graph, cluster).sort_key == whole.sort_key
    verify(plan, graph)
    # Nothing fits, so that drafts for memory are tried as well: one of each kind.
    assert work.schedules <= min(2, all_drafts.schedules)
    assert whole.sort_key <= plan.sort_key


def test_a_graph_that_the_machine_has_no_room_for_is_refused(monkeypatch):
    graph, cluster = generate("layered", 500, seed=0), Cluster.uniform(2)
    monkeypatch.setattr(batches, "machine_memory", lambda: 2**20)
    with pytest.raises(
        ConfigError, match=r"500 ops, 2 devices and a population of 100 need about 0\.0 GiB of 0\.0"
    ):
        optimize(graph, cluster, method="brkga")
    monkeypatch.setattr(batches, "machine_memory", lambda: None)
    assert optimize(graph, cluster, method="brkga", evaluations=100).feasible


def test_the_memory_of_the_machine(monkeypatch, tmp_path):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_LIMIT", limit)
    whole = memory.machine_memory()
    assert whole == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for text, expected in (
        ("max", whole),
        ("1048576", 2**20),
        (str(2**60), whole),
        ("0", whole),
        ("?", whole),
    ):
        limit.write_text(text)
        assert memory.machine_memory() == expected
    monkeypatch.delattr(os, "sysconf")
    assert memory.machine_memory() is None


@pytest.mark.slow
def test_a_search_of_a_large_graph_is_measured():
    """A small one: what the slow tests do with 200 000 ops."""
    row = measure({**TASK, "ops": 300, "devices": 2, "method": "brkga", "evaluations": 200})
    assert row["bytes"] > 2**26
    assert row["bound"] <= row["makespan"] <= row["heuristic"]
    assert row["evaluations"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
@pytest.mark.parametrize(("method", "evaluations"), [("auto", 40), ("brkga", 260)])
def test_200_000_ops_are_searched_within_8_gib(method, evaluations, devices):
    row = measure({**TASK, "devices": devices, "method": method, "evaluations": evaluations})
    assert row["bytes"] < 8 * 2**30
    assert row["bound"] <= row["makespan"] <= row["heuristic"]
    assert row["feasible"]
    assert row["stopped"] == "budget"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "brkga"])
def test_a_time_limit_ends_the_search_of_200_000_ops(method):
    row = measure({**TASK, "devices": 8, "method": method, "evaluations": 10**6, "seconds": 60.0})
    assert row["stopped"] == "time"
    assert row["bytes"] < 8 * 2**30
