"""Sources propose valid schedules that depend only on the seed and have the documented properties."""

import importlib
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from strategies import random_graph

from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.gflownet import GflownetConfig, SchedulePolicy, sample_schedules, save_gflownet
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.learning.gflownet import GflownetOptimizerConfig, GflownetTrainConfig, PpoConfig
from regal_jax.robust import (
    LEARNED,
    LOADERS,
    SOURCES,
    BrkgaPopulation,
    BrkgaRuns,
    Candidates,
    ListSchedules,
    Proposer,
    RandomSchedules,
    SampledSchedules,
    automatic_source,
    make_source,
    propose,
)
from regal_jax.search import BrkgaConfig

solve = importlib.import_module("regal_jax.solve.solve")
genetic = importlib.import_module("regal_jax.robust.genetic")
FREE = Cluster.uniform(3, transfer="free")
SMALL = BrkgaPopulation(60, BrkgaConfig(population=12, elites=3, mutants=3))
RUNS = BrkgaRuns(60, SMALL.config)
PLAIN = BrkgaRuns(60, SMALL.config, encoding="chromosome")
BY_PPO = GflownetTrainConfig(optimizer=GflownetOptimizerConfig(loss="ppo"), ppo=PpoConfig(temperature=0.5))


class Stub:
    """A policy that places every op, in order, on the device with the number of the count."""

    def __init__(self, rows=None):
        self.rows, self.calls = rows, []

    def propose(self, graph, cluster, count, key):
        self.calls.append((graph, cluster, count, key))
        rows = count if self.rows is None else self.rows
        devices = np.arange(rows)[:, None] % cluster.num_devices + np.zeros(graph.num_ops, int)
        return np.tile(graph.topological_order, (rows, 1)), devices


@pytest.mark.parametrize(
    ("source", "ops"),
    [
        (ListSchedules(), 1),
        (ListSchedules(), 12),
        (RandomSchedules(), 1),
        (RandomSchedules(), 12),
        (SMALL, 12),
        pytest.param(RUNS, 1, marks=pytest.mark.slow),
        (RUNS, 12),
        # By default, `test_each_run_gives_the_best_schedule_of_its_population` has this encoding.
        pytest.param(PLAIN, 1, marks=pytest.mark.slow),
        pytest.param(PLAIN, 12, marks=pytest.mark.slow),
    ],
)
def test_every_source_proposes_schedules_by_its_seed(source, ops):
    graph = random_graph(np.random.default_rng(ops), ops, 3)
    one, two, other = (source.propose(graph, FREE, 24, jax.random.key(seed)) for seed in (3, 3, 4))
    found = Candidates.of(graph, FREE, *one)
    assert len(found) == 24
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    assert ops == 1 or any((a != b).any() for a, b in zip(one, other, strict=True))


def test_the_first_list_schedule_is_the_critical_path_one():
    graph = generate("gflownet-erdos-renyi", 30, seed=0)
    sequence, devices = ListSchedules().propose(graph, FREE, 5, jax.random.key(0))
    rank = upward_rank(graph, FREE)
    assert (np.diff(rank[sequence[0]]) <= 0).all()
    # Op after op to the device on which it can begin first.
    found, clock = Candidates.of(graph, FREE, sequence, devices), np.zeros(3)
    for op in sequence[0]:
        ready = max((found.start[0, u] + graph.runtime[u] for u in _before(graph, op)), default=0.0)
        assert found.start[0, op] == np.maximum(clock, ready).min()
        clock[devices[0, op]] = found.start[0, op] + graph.runtime[op]
    assert len(found.distinct()) > 1
    assert (
        len(
            Candidates.of(
                graph, FREE, *ListSchedules(0).propose(graph, FREE, 5, jax.random.key(0))
            ).distinct()
        )
        == 1
    )


def _before(graph, op):
    return graph.edge_producer[graph.edge_op == op]


def test_brkga_gives_the_population_of_as_many_runs_as_it_takes():
    graph = generate("gflownet-layered", 20, seed=1)
    sequence, devices = SMALL.propose(graph, FREE, 13, jax.random.key(0))
    assert len(sequence) == len(devices) == 24
    one = BrkgaPopulation(60, SMALL.config, runs=1)
    assert len(one.propose(graph, FREE, 13, jax.random.key(0))[0]) == 12
    # A budget below the population shrinks it; a graph may have a single op.
    few, alone = BrkgaPopulation(5, SMALL.config), generate("chain", 1, seed=0)
    found = Candidates.of(alone, FREE, *few.propose(alone, FREE, 5, jax.random.key(0)))
    assert len(found) == 5


# `test_runs_obey_pins_and_groups` has transfers that take time.
@pytest.mark.parametrize(
    "transfer", ["free", pytest.param("delay:latency=1us,bandwidth=1MB/s", marks=pytest.mark.slow)]
)
def test_each_run_gives_the_best_schedule_of_its_population(transfer):
    graph, key = random_graph(np.random.default_rng(5), 16, 3), jax.random.key(3)
    cluster = Cluster.uniform(3, transfer=transfer)
    found = Candidates.of(graph, cluster, *PLAIN.propose(graph, cluster, 5, key))
    assert len(found) == 5
    # A run is the first island of a search with its own key.
    alone = BrkgaPopulation(PLAIN.evaluations, PLAIN.config, runs=1)
    every = [alone.propose(graph, cluster, 1, jax.random.fold_in(key, i)) for i in range(5)]
    best = [Candidates.of(graph, cluster, *each).makespan.min() for each in every]
    np.testing.assert_allclose(found.makespan, best, rtol=1e-6)


def test_a_run_does_not_depend_on_how_many_there_are(monkeypatch):
    graph, key = random_graph(np.random.default_rng(6), 16, 3), jax.random.key(1)
    seven = RUNS.propose(graph, FREE, 7, key)

    def first(count, source=RUNS):
        for rows, wanted in zip(source.propose(graph, FREE, count, key), seven, strict=True):
            np.testing.assert_array_equal(rows, wanted[:count])
            yield len(rows)

    for count in (0, 3):
        assert set(first(count)) == {count}
    # Three calls, the last one with runs that are not wanted; and a call for each run.
    for steps in (12 * 16 * 19 * 3, 1):
        monkeypatch.setattr(genetic, "_STEPS_AT_ONCE", steps)
        assert set(first(7)) == {7}


# By default, runs are counted in the test above.
@pytest.mark.slow
def test_runs_may_be_fewer_than_what_is_requested():
    graph, key = generate("gflownet-layered", 20, seed=1), jax.random.key(0)
    three = BrkgaRuns(60, SMALL.config, runs=3)
    assert [len(three.propose(graph, FREE, count, key)[0]) for count in (1, 3, 9)] == [1, 3, 3]
    # A budget below the population shrinks it, down to one random schedule.
    assert len(BrkgaRuns(1).propose(graph, FREE, 3, key)[0]) == 3


# `test_brkga_obeys_capacities_where_it_can` has chromosomes.
@pytest.mark.parametrize("encoding", ["schedule", pytest.param("chromosome", marks=pytest.mark.slow)])
def test_runs_obey_capacities_where_they_can(encoding):
    builder = GraphBuilder("memory")
    for i in range(6):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[10], keep=[0])
    graph, cluster = builder.build(), Cluster([30, 30], "free")
    source = BrkgaRuns(200, encoding=encoding)
    found = Candidates.of(graph, cluster, *source.propose(graph, cluster, 8, jax.random.key(0)))
    plans = [found.plan(i) for i in range(8)]
    for plan in plans:
        plan.verify(graph)
    assert all(plan.feasible for plan in plans)


@pytest.mark.parametrize(
    ("transfer", "source"),
    [
        ("free", PLAIN),
        pytest.param("blocking:latency=1us", RUNS, marks=pytest.mark.slow),
        pytest.param("free", RUNS, marks=pytest.mark.slow),
        pytest.param("blocking:latency=1us", PLAIN, marks=pytest.mark.slow),
    ],
)
def test_runs_obey_pins_and_groups(transfer, source):
    graph, cluster = random_graph(np.random.default_rng(8), 20, 3), Cluster.uniform(3, transfer=transfer)
    assert graph.allowed_devices.count(None) < 20
    # As many as in the tests above, whose programs are compiled.
    found = Candidates.of(graph, cluster, *source.propose(graph, cluster, 5, jax.random.key(1)))
    for i in range(5):
        found.plan(i).verify(graph)


def test_when_the_host_looks_changes_nothing_but_whether_ctrl_c_ends_it(monkeypatch):
    graph, key = generate("gflownet-layered", 20, seed=1), jax.random.key(2)
    source = BrkgaPopulation(1200, SMALL.config, 1)
    once = source.propose(graph, FREE, 12, key)
    monkeypatch.setattr(solve, "_LOOK_SECONDS", 0.0)
    looks = []
    monkeypatch.setattr(solve, "check_interrupt", lambda: looks.append(1))
    for a, b in zip(once, source.propose(graph, FREE, 12, key), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(looks) == SMALL.config.generations(1200)

    def pressed():
        raise KeyboardInterrupt

    monkeypatch.setattr(solve, "check_interrupt", pressed)
    with pytest.raises(KeyboardInterrupt):
        source.propose(graph, FREE, 12, key)


def test_brkga_gets_better_with_its_budget_and_has_its_elites_first():
    graph = generate("gflownet-layered", 20, seed=1)
    short, long = (
        Candidates.of(
            graph, FREE, *BrkgaPopulation(budget, SMALL.config, 1).propose(graph, FREE, 12, jax.random.key(0))
        ).makespan
        for budget in (12, 1200)
    )
    assert long.min() < short.min()
    # Elites of the last generation: the three best of the one before it.
    assert long[:3].max() <= np.sort(long)[3] + 1e-6


def test_brkga_obeys_capacities_where_it_can():
    builder = GraphBuilder("memory")
    for i in range(6):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[10], keep=[0])
    graph, cluster = builder.build(), Cluster([30, 30], "free")
    found = Candidates.of(
        graph, cluster, *BrkgaPopulation(600).propose(graph, cluster, 100, jax.random.key(0))
    )
    fits = [found.plan(i).feasible for i in range(20)]  # Elites.
    assert all(fits)


def test_random_schedules_obey_pins_and_groups():
    graph = random_graph(np.random.default_rng(8), 20, 3)
    assert graph.allowed_devices.count(None) < 20
    Candidates.of(graph, FREE, *RandomSchedules().propose(graph, FREE, 30, jax.random.key(1)))


@pytest.mark.parametrize("name", [*SOURCES])
def test_every_name_makes_its_source(name):
    stub = Stub() if name in LEARNED else None
    found, source = make_source(name, weights=stub)
    assert found == name
    assert isinstance(source, Proposer)
    assert stub is None or source is stub


def test_auto_searches_unless_there_are_weights(monkeypatch):
    asked, stub = [], Stub()

    def load(path, temperature):
        asked.append((path, temperature))
        return stub

    assert automatic_source() == "scenario-runs"
    assert automatic_source(stub) == automatic_source("file") == "gflownet"
    monkeypatch.setitem(LOADERS, "gflownet", load)
    assert make_source("gflownet", weights="file", temperature=0.2)[1] is stub
    assert make_source("gflownet")[1] is stub
    assert asked == [("file", 0.2), ("default", 0.005)]


def test_a_network_proposes_what_it_samples():
    graph, key = generate("gflownet-layered", 12, seed=0), jax.random.key(5)
    network = SchedulePolicy(GflownetConfig(layers=1, width=8, head_width=4), rngs=nnx.Rngs(0))
    name, source = make_source("gflownet", weights=network, temperature=0.1)
    sequence, devices = source.propose(graph, FREE, 6, key)
    wanted = sample_schedules(network, graph, FREE, key, count=6, temperature=0.1)
    np.testing.assert_array_equal(sequence, wanted.sequence)
    np.testing.assert_array_equal(devices, wanted.devices)
    found = Candidates.of(graph, FREE, sequence, devices)
    np.testing.assert_allclose(graph.runtime.sum() / found.makespan, wanted.speedup, rtol=1e-5)
    assert (name, source.most_devices) == ("gflownet", 4)
    assert make_source("ppo", weights=network)[1].temperature == 0.25
    assert make_source("ppo")[1] == SampledSchedules("ppo", 0.25)


@pytest.mark.parametrize(
    ("metadata", "temperature"),
    [
        ({"training": json.dumps(BY_PPO.as_document())}, 0.5),
        ({}, 0.25),
        ({"training": "by hand"}, 0.25),
        ({"training": "[1]"}, 0.25),
        ({"training": '{"ppo": {"temperature": 0}}'}, 0.25),
    ],
)
def test_ppo_samples_at_the_temperature_of_its_training(metadata, temperature, tmp_path):
    network = SchedulePolicy(GflownetConfig(layers=1, width=8, head_width=4), rngs=nnx.Rngs(0))
    file = str(tmp_path / "ppo.safetensors")
    save_gflownet(file, network, metadata)
    assert make_source("ppo", weights=file)[1] == SampledSchedules(file, temperature)


def test_the_automatic_source_is_that_of_the_weights(tmp_path):
    network = SchedulePolicy(GflownetConfig(layers=1, width=8, head_width=4), rngs=nnx.Rngs(0))
    files = {}
    for loss in ("ppo", "variance"):
        trained = GflownetTrainConfig(optimizer=GflownetOptimizerConfig(loss=loss)).as_document()
        files[loss] = str(tmp_path / f"{loss}.safetensors")
        save_gflownet(files[loss], network, {"training": json.dumps(trained)})
    plain = str(tmp_path / "plain.safetensors")
    save_gflownet(plain, network)
    assert [automatic_source(each) for each in (None, "ppo", files["ppo"])] == ["scenario-runs", "ppo", "ppo"]
    for weights in (files["variance"], plain, "default", "no-file", "", network):
        assert automatic_source(weights) == "gflownet"
    for source, weights, by in (
        ("ppo", files["variance"], "GFlowNet; use the source gflownet"),
        ("ppo", "gflownet", "GFlowNet; use the source gflownet"),
        ("gflownet", files["ppo"], "PPO; use the source ppo"),
        ("gflownet", "ppo", "PPO; use the source ppo"),
    ):
        with pytest.raises(ConfigError, match=f"^weights: '.*' were trained by {by}$"):
            make_source(source, weights=weights)
        assert make_source(source, weights=plain)[0] == source
    graph = generate("gflownet-layered", 12, seed=0)
    found, wanted = (
        propose(graph, FREE, count=4, keep=2, seed=1, weights=weights, source=source)
        for weights, source in ((Path(files["ppo"]), "auto"), (files["ppo"], "ppo"))
    )
    assert found.source == "ppo"
    assert [plan.makespan for plan in found] == [plan.makespan for plan in wanted]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_source("other"), "unknown 'other'; use one of auto, list-scheduling"),
        (lambda: make_source(3), "int has no method propose"),
        (lambda: make_source("gflownet", weights=3), "int has no method propose"),
        (lambda: make_source("gflownet", weights="no-file"), "no-file"),
        (lambda: make_source("brkga", weights="file"), "brkga takes none"),
        (lambda: make_source(BrkgaRuns(), weights="default"), "weights: an object as source takes none"),
        (lambda: make_source("brkga", nonsense=1), "nonsense"),
        (lambda: make_source("brkga", temperature=0), "temperature"),
        (lambda: make_source("brkga", temperature=1), "temperature: brkga takes none; .* use gflownet"),
        (lambda: make_source("ppo", temperature=1), "temperature: ppo takes none; leave it out"),
        (lambda: make_source(BrkgaRuns(), temperature=1), "temperature: an object as source has its own"),
        (lambda: make_source("gflownet", weights=Stub(), temperature=1), "temperature: an object as weights"),
        (lambda: ListSchedules(-1), "noise"),
        (lambda: BrkgaPopulation(0), "evaluations"),
        (lambda: BrkgaPopulation(config=BrkgaConfig(islands=2)), "BrkgaPopulation: .* set runs instead"),
        (lambda: BrkgaRuns(config=BrkgaConfig(islands=2)), "BrkgaRuns: .* set runs instead"),
        (lambda: BrkgaRuns(5, 3), "BrkgaRuns: config is 3; give a BrkgaConfig"),
        (lambda: make_source(BrkgaRuns), r"source: BrkgaRuns is a class; give an object, BrkgaRuns\(\)"),
        (lambda: make_source("ppo", weights=Stub), "weights: Stub is a class"),
        (lambda: BrkgaRuns(runs=-1), "BrkgaRuns: runs"),
        (lambda: BrkgaRuns(encoding="other"), "unknown 'other'"),
        (lambda: make_source("brkga-runs", weights="file"), "brkga-runs takes none"),
        (lambda: make_source("scenario-runs", scenarios=3), "ScenarioRuns: scenarios is 3; give Scenarios"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
