"""Engines without Ray: names, queues, messages of solvers and graphs, the folder of plans."""

import dataclasses
import importlib
import json
import pathlib
import re
import socket
import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from remote_engine import Inline, graphs_of, told
from remote_solvers import Logged

from regal_jax import (
    Auto,
    Brkga,
    BrkgaConfig,
    Cluster,
    ListSearch,
    OrderSearch,
    Plan,
    Portfolio,
    optimize,
    optimize_many,
)
from regal_jax.api.many import Batch
from regal_jax.api.store import PlanStore
from regal_jax.datasets import generate
from regal_jax.engines import Item, Message, RayEngine, engine_of, opened, ray_engine
from regal_jax.engines.address import check_address
from regal_jax.engines.queue import Waiting
from regal_jax.errors import ConfigError, MissingExtraError, WorkerError
from regal_jax.graph import TransferModel
from regal_jax.ordering import shipped_topoformer
from regal_jax.plan import Objective
from regal_jax.policies import default_policy, save_policy
from regal_jax.runtime.interrupts import first_interrupt_waits, stopped_by
from regal_jax.solvers import Heuristic, TopoformerSamples, solvers
from regal_jax.solvers.wire import pack_solver, unpack_solver

CLUSTER = Cluster.uniform(2)


def test_engines_have_names():
    assert engine_of("local") is engine_of(None) is None
    assert engine_of("ray").address is None
    assert engine_of("ray:10.0.0.1:6379").address == "10.0.0.1:6379"
    mine = Inline()
    assert engine_of(mine) is mine
    for wrong in ("rays", "ray:", "dask", 3, RayEngine):
        with pytest.raises(ConfigError, match=r"^engine: .*'local'|^engine: .*use local, ray or ray:ADDRESS"):
            engine_of(wrong)


def test_an_engine_that_was_given_stays_open(monkeypatch):
    mine = Inline()
    with opened(mine):
        pass
    assert mine.closed == 0
    closed = []
    monkeypatch.setattr(RayEngine, "close", lambda self: closed.append(self))
    with opened("ray"):
        pass
    assert len(closed) == 1


def test_ray_is_loaded_when_it_is_used(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'regal-jax\[ray\]'"):
        RayEngine().open()
    assert RayEngine().run("a:b", Message(), [], None) == {}
    with pytest.raises(ConfigError, match="cores: "):
        RayEngine(cores=0)
    with pytest.raises(ConfigError, match="tries: "):
        RayEngine(tries=0)
    with pytest.raises(ConfigError, match="address: give a str, got int"):
        RayEngine(5)


def test_an_address_is_checked_before_ray_tries_it():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"^engine: no Ray cluster at '127.0.0.1:{port}' \(.*ray start"
        ):
            check_address(f"127.0.0.1:{port}")
        free.listen()
        check_address(f"127.0.0.1:{port}")
    for wrong in ("nonsense", "host:", ":1", "host:99999", "host:" + "9" * 5000):
        with pytest.raises(ConfigError, match="is no address of a Ray cluster"):
            check_address(wrong)
    for host in ("x" * 70, "a..b"):
        with pytest.raises(ConfigError, match="no Ray cluster at "):
            check_address(f"{host}:6379")
    with pytest.raises(ConfigError, match="Ray Client"):
        check_address("ray://10.0.0.1:10001")
    check_address("auto")


@given(
    st.lists(st.sampled_from("abc"), max_size=60),
    st.integers(1, 9),
    st.lists(st.integers(0, 3), min_size=1, max_size=99),
)
def test_every_item_is_handed_out_once_and_in_parcels_of_one_kind(kinds, most, turns):
    waiting = Waiting(list(kinds), most)
    had = [set() for _ in range(4)]
    seen, turn = [], 0
    while waiting:
        worker = turns[turn % len(turns)]
        others = set().union(*(had[i] for i in range(4) if i != worker))
        before = {kind: sum(kinds[i] == kind for i in set(range(len(kinds))) - set(seen)) for kind in "abc"}
        parcel = waiting.take(had[worker], others, 4)
        assert 1 <= len(parcel) <= most
        (kind,) = {kinds[i] for i in parcel}
        # A worker leaves the kinds that it has had only when none of their items is left.
        assert kind in had[worker] or not any(before[each] for each in had[worker])
        had[worker].add(kind)
        seen += parcel
        turn += 1
    assert sorted(seen) == list(range(len(kinds)))
    assert waiting.take(set(), set(), 1) == []


def test_an_item_that_is_tried_again_is_alone():
    waiting = Waiting(["a"] * 4, 4)
    first = waiting.take(set(), set(), 1)
    for index in first:
        waiting.again(index)
    rest = []
    while waiting:
        rest.append(waiting.take({"a"}, set(), 1))
    assert sorted(rest[-len(first) :]) == [[i] for i in first]


def test_a_thread_is_stopped_as_by_a_first_interrupt():
    seen = []

    def work():
        with first_interrupt_waits() as interrupted:
            seen.append(interrupted())
        with stopped_by(lambda: True), first_interrupt_waits() as interrupted:
            seen.append(interrupted())
        with first_interrupt_waits() as interrupted:
            seen.append(interrupted())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True, False]


def again(solver, folder):
    document, blobs = pack_solver(solver)
    assert all(isinstance(blob, bytes) for blob in blobs)
    return unpack_solver(json.loads(json.dumps(document)), blobs, str(folder))


def test_every_solver_of_the_registry_travels(tmp_path):
    for name, entry in solvers().items():
        made, named = again(entry.make(), tmp_path)
        assert made == entry.make(), name
        assert not named


def test_settings_networks_and_files_travel(tmp_path):
    nested = Portfolio(ListSearch(), Brkga(population=20, elites=4, mutants=3), shares=(0.5, 1))
    assert again(nested, tmp_path)[0] == nested
    assert again(Auto(brkga=BrkgaConfig(population=200)), tmp_path)[0] == Auto(
        brkga=BrkgaConfig(population=200)
    )
    policy = default_policy("makespan", 2)
    found, _ = again(Brkga(policy=policy), tmp_path)
    ours, theirs = weights(policy), weights(found.policy)
    assert len(ours) > 3
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    file = tmp_path / "mine.safetensors"
    save_policy(file, policy)
    found, named = again(Brkga(policy=str(file)), tmp_path)
    assert named == {found.policy: str(file)}
    assert pathlib.Path(found.policy).read_bytes() == file.read_bytes()
    found, _ = again(TopoformerSamples(weights=shipped_topoformer("default")), tmp_path)
    assert found.weights.config == shipped_topoformer("default").config
    assert again(OrderSearch(weights="default"), tmp_path)[0].weights == "default"


def test_names_of_weights_come_before_files_of_the_same_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("none", "default", "regal-faithful"):
        pathlib.Path(name).write_bytes(b"no weights")
        for solver in (Brkga(policy=name), Auto(policy=name)):
            document, blobs = pack_solver(solver)
            assert (document["fields"]["policy"], blobs) == (name, [])
    assert pack_solver(OrderSearch(weights="default"))[1] == []


def weights(network):
    return jax.tree.leaves(nnx.to_pure_dict(nnx.state(network, nnx.Param)))


def test_a_solver_that_a_worker_cannot_import_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Local(Heuristic):
        pass

    with pytest.raises(ConfigError, match=r"^engine: a worker cannot import the class .*Local"):
        pack_solver(Local("bfs"))
    with pytest.raises(ConfigError, match=r"^engine: a solver's policy is a object"):
        pack_solver(Brkga(policy=object()))


@pytest.mark.parametrize("count", [0, 1, 5])
def test_plans_from_an_engine_are_those_of_this_process(count):
    graphs = graphs_of(count)
    engine = Inline()
    seen = {}
    plans = optimize_many(
        graphs, CLUSTER, evaluations=60, method="list-search", seed=jax.random.key(7), progress=False,
        engine=engine, on_plan=lambda i, plan: seen.setdefault(i, plan),
    )  # fmt: skip
    here = optimize_many(
        graphs, CLUSTER, evaluations=60, method="list-search", seed=jax.random.key(7), progress=False
    )
    assert [told(plan) for plan in plans] == [told(plan) for plan in here]
    assert [seen[i] for i in range(count)] == plans
    assert engine.calls == -(-count // 2)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)


def test_pins_starts_policies_and_improvements_reach_the_workers(tmp_path):
    graphs = graphs_of(3)
    clusters = [Cluster.uniform(2, memory="1GiB", transfer="delay:nvlink4") for _ in graphs]
    assert clusters[0].transfer is TransferModel.DELAY
    start = optimize(graphs[1], clusters[1], method="bfs")
    file = str(tmp_path / "policy.safetensors")
    save_policy(file, default_policy("makespan", 2))
    options = {
        "evaluations": 60, "method": Brkga(population=20, elites=4, mutants=3, policy=file), "seed": 5,
        "progress": False, "pin": {"*1": 1}, "colocate": "*2", "warm_start": [start], "stall": 1000,
    }  # fmt: skip
    there, here = [], []
    options["on_improvement"] = lambda i, one: there.append((i, one))
    plans = optimize_many(graphs, clusters, engine=Inline(size=1), **options)
    options["on_improvement"] = lambda i, one: here.append((i, one))
    # Every graph by itself, as above: one program.
    same = optimize_many(graphs, clusters, devices=jax.devices()[:1], batch_size=1, **options)
    assert [told(plan) for plan in plans] == [told(plan) for plan in same]
    assert plans[0].provenance["policy"] == file
    for member in range(3):
        best = [one.objective_value for i, one in there if i == member]
        assert best == sorted(best, reverse=True)
        assert best[-1] == plans[member].objective_value
    assert {i for i, _ in there} == {i for i, _ in here} == {0, 1, 2}


def test_errors_of_arguments_are_those_of_this_process():
    graphs = graphs_of(2)
    with pytest.raises(ConfigError, match="devices: an engine"):
        optimize_many(graphs, CLUSTER, engine=Inline(), devices=jax.devices())
    other = optimize(generate("chain", 3, seed=0), CLUSTER, method="bfs")
    with pytest.raises(ConfigError, match=r"warm_start: .*none of the 2 graphs"):
        optimize_many(graphs, CLUSTER, engine=Inline(), warm_start=other, method="list-search")
    with pytest.raises(ConfigError, match="engine: there is no"):
        optimize_many(graphs, CLUSTER, engine="slurm")


def test_graphs_that_are_given_up_are_named_and_the_others_have_plans(tmp_path):
    graphs = graphs_of(4)
    with pytest.raises(WorkerError) as caught:
        optimize_many(graphs, CLUSTER, method="bfs", engine=Inline(lose=[2]), store=tmp_path)
    error = caught.value
    assert re.search(rf"^engine: gave up '{graphs[2].name}' \(its worker died\); 3 of 4 graphs", str(error))
    assert "\n" not in str(error)
    assert [plan is None for plan in error.plans] == [False, False, True, False]
    # The same call makes the missing plan only, and the other plans are found.
    engine = Inline()
    plans = optimize_many(graphs, CLUSTER, method="bfs", engine=engine, store=tmp_path)
    assert engine.calls == 1
    assert [plan.graph_name for plan in plans] == [graph.name for graph in graphs]
    with pytest.raises(WorkerError) as caught:
        optimize_many(graphs, CLUSTER, method="heft", engine=Inline(lose=[0, 1, 2, 3]), store=tmp_path)
    assert caught.value.plans == [None] * 4


@pytest.mark.parametrize("engine", ["local", Inline()])
def test_a_store_keeps_plans_under_the_hashes_of_their_graphs(tmp_path, engine, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    graphs = graphs_of(4)
    options = {"method": Logged(log=str(log)), "engine": engine, "store": tmp_path / "store"}

    def calls():
        return len(log.read_text().splitlines())

    first = optimize_many(graphs[:3], CLUSTER, **options)
    assert calls() == 3
    files = sorted((tmp_path / "store").iterdir())
    assert sorted(file.name.split("-")[0] for file in files) == sorted(g.content_hash for g in graphs[:3])
    seen = {}
    plans = optimize_many(graphs, CLUSTER, **options, on_plan=lambda i, plan: seen.setdefault(i, plan))
    assert calls() == 4
    assert [plan.to_json() for plan in plans[:3]] == [plan.to_json() for plan in first]
    assert seen == dict(enumerate(plans))
    # Another call is another question: other seeds, clusters and settings.
    optimize_many(graphs[:1], CLUSTER, **options, seed=1)
    optimize_many(graphs[:1], Cluster.uniform(3), **options)
    assert calls() == 6
    # A damaged file is no plan.
    files[0].write_text(files[0].read_text()[:-20])
    optimize_many(graphs[:3], CLUSTER, **options)
    assert calls() == 7
    assert optimize_many([], CLUSTER, **options) == []


def test_a_kept_plan_counts_unless_an_earlier_plan_is_better(tmp_path):
    graph = generate("layered", 30, seed=3)
    store = PlanStore(tmp_path, "call")
    worse = optimize(graph, CLUSTER, method="single-device")
    better = optimize(graph, CLUSTER, method="list-search", evaluations=100)
    assert better.sort_key < worse.sort_key
    store.put(graph, CLUSTER, worse)
    assert list(store.found([graph], [CLUSTER], [[]])) == [0]
    assert list(store.found([graph], [CLUSTER], [[worse]])) == [0]
    assert store.found([graph], [CLUSTER], [[better]]) == {}
    assert store.found([graph], [CLUSTER], [[better, worse]]) == {}
    stopped = dataclasses.replace(better, provenance={**better.provenance, "stopped": "interrupted"})
    other = PlanStore(tmp_path, "other call")
    other.put(graph, CLUSTER, stopped)
    assert other.get(graph, CLUSTER) is None
    assert np.array_equal(store.get(graph, CLUSTER).placement, worse.placement)


def test_earlier_plans_are_compared_with_kept_ones_as_plans_of_the_call(tmp_path, monkeypatch):
    graph, calls = generate("layered", 30, seed=3), []
    planned = Batch._plan
    monkeypatch.setattr(
        Batch, "_plan", lambda self, members, *told: calls.append(members) or planned(self, members, *told)
    )
    options = {"evaluations": 150, "progress": False, "store": tmp_path}
    kept = optimize_many([graph], CLUSTER, **options)[0]
    # A short makespan on other devices, and few bytes, do not make these better than the plan that is kept.
    others = [
        optimize(graph, Cluster.uniform(4, transfer="free"), evaluations=150),
        optimize(graph, CLUSTER, objective="peak-memory", method="single-device"),
    ]
    assert others[0].makespan < kept.makespan
    again = optimize_many([graph], CLUSTER, warm_start=others, **options)[0]
    assert again.to_json() == kept.to_json()
    assert [list(members) for members in calls] == [[0], []]
    # This one is for another objective, and has a shorter makespan.
    better = dataclasses.replace(optimize(graph, CLUSTER, evaluations=5000), objective=Objective.PEAK_MEMORY)
    assert better.makespan < kept.makespan
    assert optimize_many([graph], CLUSTER, warm_start=better, **options)[0].makespan <= better.makespan


def test_earlier_plans_are_adapted_once(tmp_path, monkeypatch):
    graphs = graphs_of(3)
    earlier = [optimize(graph, Cluster.uniform(4), method="heft") for graph in graphs[1:]]
    options = {"method": "list-search", "evaluations": 40, "pin": {"op3": 1}, "warm_start": earlier}
    optimize_many(graphs[:1], CLUSTER, **{**options, "warm_start": True}, store=tmp_path)
    expected = optimize_many(graphs, CLUSTER, **options)
    room, adapted = importlib.import_module("regal_jax.solvers.loop.earlier"), []
    adapt = room.adapt_plan
    monkeypatch.setattr(room, "adapt_plan", lambda plan, *to: adapted.append(plan) or adapt(plan, *to))
    made = optimize_many(graphs, CLUSTER, **options, store=tmp_path)
    assert [told(plan) for plan in made] == [told(plan) for plan in expected]
    assert len(adapted) == 2


def test_a_graph_on_several_clusters_has_its_earlier_plans_once_on_each():
    graph = generate("layered", 20, seed=3)
    clusters = [Cluster.uniform(2), Cluster.uniform(3), Cluster.uniform(2)]
    earlier = [optimize(graph, Cluster.uniform(4), method=name) for name in ("heft", "bfs")]
    options = {"method": "list-search", "evaluations": 40, "warm_start": earlier}
    here = optimize_many([graph] * 3, clusters, **options)
    there = optimize_many([graph] * 3, clusters, **options, engine=Inline(size=3))
    assert [told(plan) for plan in there] == [told(plan) for plan in here]


def test_time_is_shared_among_graphs():
    seconds = []

    class Watching(Inline):
        def run(self, *arguments, limits, **options):
            def limited(*sizes):
                found = limits(*sizes)
                seconds.append(found["seconds"])
                return found

            return super().run(*arguments, limits=limited, **options)

    plans = optimize_many(
        graphs_of(4), CLUSTER, method="list-search", evaluations=10**6, time_limit=0.4, engine=Watching(),
        progress=False,
    )  # fmt: skip
    assert len(seconds) == 2
    assert 0 < seconds[0] <= 0.2
    assert all(isinstance(plan, Plan) for plan in plans)


def test_an_interrupt_loses_no_answer_that_has_come(monkeypatch):
    """A crew whose only worker answers at once, and an interrupt before its answers are read."""
    worker = SimpleNamespace(parcel=[], open=set(), kinds=set())
    worker.hand = lambda token, work, common, limits, parcel, messages: setattr(worker, "parcel", parcel)
    worker.next_answers = lambda: [(i, {}, [], True) for i in range(2)]
    crew = SimpleNamespace(
        on_gpus=False, members=[worker], present=[worker], idle=[worker], busy=[worker], state="",
        hire=lambda: None, events=lambda seconds: [worker],
    )  # fmt: skip
    turns = iter([None, KeyboardInterrupt])

    def check():
        if (error := next(turns)) is not None:
            raise error

    monkeypatch.setattr(ray_engine, "check_interrupt", check)
    monkeypatch.setattr(ray_engine, "_TURN", 0.0)
    items, answered = [Item("", Message)] * 4, []
    run = ray_engine._Run(RayEngine(), crew, "", items, lambda i, *_: answered.append(i), 2, lambda *_: {})
    monkeypatch.setattr(run, "_pass_on", lambda seconds=0.0: type(run)._pass_on(run, seconds))
    with pytest.raises(KeyboardInterrupt):
        run.all(None, lambda: False, lambda _: None)
    assert answered == [0, 1]
