"""Training of schedule policies: graphs and sub-graphs, PPO, devices, resumed runs, the command."""

import dataclasses
import functools
import pathlib

import jax
import numpy as np
import pytest
from flax import nnx
from gflownet_cases import FREE2, Flow, bare, chain, fork, free
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph

import regal_jax.gflownet
from regal_jax.cli import main
from regal_jax.errors import ConfigError
from regal_jax.experiments import EvaluationConfig
from regal_jax.experiments.robust_scheduling import robust_cases
from regal_jax.gflownet import (
    GflownetConfig,
    SchedulePolicy,
    load_gflownet,
    make_schedule_inputs,
    sample_schedules,
    save_gflownet,
    shipped_gflownet,
)
from regal_jax.gflownet.shipped import SHIPPED
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.importers import save_graph
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.gflownet import (
    GflownetDataConfig,
    GflownetOptimizerConfig,
    GflownetTrainConfig,
    Loss,
    PpoConfig,
    train_gflownet,
)
from regal_jax.learning.gflownet.data import GflownetSource, chosen_sets, sub_inputs
from regal_jax.learning.gflownet.step import GflownetLearner, gflownet_step
from regal_jax.learning.mesh import everywhere, mesh_for

MODEL = GflownetConfig(
    devices=2, layers=1, width=8, head_width=4, heads=(1, 0, 0, 1, 0, 0, 1), temperature_width=4
)
DATA = GflownetDataConfig(ops=7, graphs=4, validation_graphs=2, subgraph=(3, 5))
SHORT = GflownetOptimizerConfig(
    steps=4, trajectories=8, validation_samples=4, validate_every=2, checkpoint_every=2
)
RUN = GflownetTrainConfig(data=DATA, model=MODEL, optimizer=SHORT)


def with_loss(loss, **settings):
    return dataclasses.replace(RUN, optimizer=dataclasses.replace(SHORT, loss=loss, **settings))


TRAINED = pathlib.Path(regal_jax.gflownet.__file__).parent / "trained"
BENCHMARKS = pathlib.Path(__file__).parents[1] / "benchmarks" / "gflownet"


@pytest.mark.parametrize(
    "file", sorted([*TRAINED.glob("*.toml"), *BENCHMARKS.glob("*.toml")]), ids=lambda f: f.stem
)
def test_the_settings_of_the_trainings(file):
    """Their first lines have the command; weights that ship are of the network of their settings."""
    config, text = GflownetTrainConfig.load(file), file.read_text()
    assert f"regal-jax train {file.relative_to(pathlib.Path(__file__).parents[1])} --out DIR" in text
    assert config.model.lookahead == (file.stem == "synthetic")
    # As the command does, from the folder of the file.
    assert not config.start or load_gflownet(file.parent / config.start).config == config.model
    if file.with_suffix(".safetensors").exists():
        assert load_gflownet(file.with_suffix(".safetensors")).config == config.model


def test_the_networks_that_ship():
    assert {f"{file}.safetensors" for file in SHIPPED.values()} == {
        f.name for f in TRAINED.glob("*.safetensors")
    }
    assert all((TRAINED / f"{file}.toml").exists() for file in SHIPPED.values())
    assert not shipped_gflownet("gflownet").config.lookahead
    assert shipped_gflownet("gflownet-lookahead").config.lookahead
    assert SHIPPED["default"] in {file for name, file in SHIPPED.items() if name != "default"}


# The graphs.


@given(st.integers(0, 10**6), st.integers(1, 9), st.data())
@settings(max_examples=25)
def test_a_part_of_a_graph_is_a_graph(seed, count, data):
    """Relations, paths and work of a sub-graph of consecutive ops equal those of the separate graph."""
    graph = random_graph(np.random.default_rng(seed), count, inputs_per_op=1.0, devices=2)
    size = data.draw(st.integers(1, count))
    source = GflownetSource(GflownetDataConfig(subgraph=(size, size)), 2, seed, [graph])
    whole, found = make_schedule_inputs(graph, FREE2), source.inputs(0)
    assert int(found.num_ops) == size
    if size == count:
        for name in ("relations", "runtime", "allowed", "leader", "path", "work", "longest"):
            np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=1e-6, err_msg=name)
    relations = np.asarray(found.relations)
    direct = ((relations == 1) | (relations == 2)).astype(int)
    closure = np.linalg.matrix_power(direct + np.eye(size, dtype=int), size) > 0
    np.testing.assert_array_equal(np.isin(relations, (1, 2, 3)), closure & ~np.eye(size, dtype=bool))
    two = np.linalg.matrix_power(direct, 2) + direct @ np.isin(relations, (3,)).astype(int)
    np.testing.assert_array_equal((relations == 1), (direct == 1) & ~(two > 0))
    times = np.where(found.allowed, found.runtime, np.inf).min(axis=1)
    for o in range(size):
        np.testing.assert_allclose(
            found.path[o], times[o] + max(found.path[direct[:, o] == 1], default=0), rtol=1e-5
        )
    np.testing.assert_allclose(found.work, times.sum(), rtol=1e-5)
    assert np.asarray(found.longest) == (found.runtime.max() or 1)


def test_graphs_of_steps_are_functions_of_the_seed():
    source = GflownetSource(GflownetDataConfig(ops=20, graphs=6, subgraph=(5, 30)), 4, 3)
    again = GflownetSource(source.data, 4, 3)
    sizes = []
    for step in (4, 0, 9, 2):
        for a, b in zip(*(jax.tree.leaves(s.inputs(step)) for s in (source, again)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert source.inputs(step).shape == (source.size(step), 4)
        assert source.size(step) in (8, 16, 20)
        sizes.append(int(source.inputs(step).num_ops))
    assert set(sizes) <= set(range(5, 21))
    assert len(set(sizes)) > 1
    whole = dataclasses.replace(source, data=GflownetDataConfig(ops=20, validation_graphs=4))
    assert {whole.size(step) for step in range(5)} == {20}
    held_out = whole.validation()
    names = [graph.name.rsplit("-", 1)[0] for graph in held_out]
    assert names == ["gflownet-erdos-renyi", "gflownet-layered"] * 2
    trained = {whole._made(0, i).content_hash for i in range(50)}
    assert not trained & {graph.content_hash for graph in held_out}


@pytest.mark.parametrize("subgraph", [(), (3, 20)])
def test_steps_train_on_whole_graphs_of_families_that_add_ops(subgraph):
    """Families of REGAL add a source and a sink."""
    families = ("gflownet-layered", "regal-erdos-renyi")
    data = GflownetDataConfig(families=families, ops=10, graphs=4, subgraph=subgraph)
    source, sizes = GflownetSource(data, 2, 0), set()
    for step in range(60):
        graph, inputs = source._graph(source._draw(step)[1])[0], source.inputs(step)
        assert inputs.shape == (source.size(step), 2)
        sizes.add((graph.num_ops, int(inputs.num_ops)))
    if subgraph:
        assert {size for whole, size in sizes if whole == 12} > {11, 12}
        assert all(3 <= size <= whole for whole, size in sizes)
    else:
        assert sizes == {(10, 10), (12, 12)}


def test_real_graphs_are_those_of_the_suite():
    cluster = Cluster.uniform(4, transfer="free")
    one = GflownetDataConfig(train="one", validation="one")
    [graph], [held_out] = chosen_sets(one, cluster)
    assert (graph.name, graph.num_ops, graph.resident.any()) == ("mlp", 59, False)
    suite = EvaluationConfig(
        suite="robust-scheduling", sizes=(4,), cases=1, graphs="sample", split="train", max_ops=60
    )
    cases = robust_cases(suite)
    assert [g.content_hash for g in (graph, held_out)] == 2 * [cases[0].graph.content_hash]
    data = GflownetDataConfig(train="sample", contract=True, max_ops=60, min_parallelism=1.25)
    train, validation = chosen_sets(data, cluster)
    real = [case.graph for case in cases if case.set == "real"]
    assert [g.content_hash for g in train] == [g.content_hash for g in real]
    assert (len(real), validation) == (1, [])
    with pytest.raises(ConfigError, match=r"data.train: sample has no graph that data.max_ops \(60\)"):
        chosen_sets(dataclasses.replace(data, min_parallelism=3), cluster)


def test_sub_inputs_have_no_room_for_what_is_left_out():
    whole = make_schedule_inputs(fork(), FREE2)
    found = sub_inputs(whole, np.array([0, 2]), 3)
    np.testing.assert_array_equal(found.relations, [[0, 4, 0], [1, 0, 0], [0, 0, 0]])
    np.testing.assert_allclose(found.path, [1.2, 0.5, 0], rtol=1e-6)


# A step.


@functools.cache
def inputs_on(mesh, graph):
    return everywhere(make_schedule_inputs(graph, FREE2), mesh)


def stepped(config, devices, steps, graph):
    learner = GflownetLearner(config)
    mesh = mesh_for(config.optimizer.trajectories, jax.devices()[:devices])
    state, key, told = everywhere(learner.init(), mesh), everywhere(jax.random.key(0), mesh), []
    for _ in range(steps):
        state, metrics = gflownet_step(learner, mesh, state, inputs_on(mesh, graph), key)
        told.append(jax.tree.map(float, metrics._asdict()))
    return learner.model(jax.device_get(state.policy)), told


@pytest.mark.slow  # Compiling the programs for several devices and for all losses takes long.
@pytest.mark.parametrize("loss", list(Loss))
def test_the_number_of_devices_changes_no_schedule(loss):
    graph = bare([0.7, 0.4, 0.5, 0.9, 0.6], [(0, 2), (1, 2)])
    (_, one), (_, two) = (stepped(with_loss(loss), devices, 2, graph) for devices in (1, 4))
    for name in ("speedup", "best", "temperature", "loss", "partition", "spread", "entropy", "gradient"):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_allclose(a[name], b[name], rtol=2e-4, atol=1e-5, err_msg=name)
    assert one[0]["gradient"] > 0
    low, high = RUN.optimizer.min_temperature, RUN.optimizer.max_temperature
    expected = (0.25, 0.25) if loss is Loss.PPO else (low, high)
    for each in one:
        assert expected[0] * 0.999 <= each["temperature"] <= expected[1] * 1.001
    assert one[0]["temperature"] != one[1]["temperature"] or loss is Loss.PPO


def test_ppo_learns_the_optimum_of_a_toy():
    flow = Flow(fork(), 2, 1.0)
    work = float(fork().runtime.sum())
    best = work / min(flow.makespan(state) for state in flow.layers[-1])
    config = dataclasses.replace(
        with_loss(Loss.PPO, trajectories=64, steps=30, learning_rate=1e-2, decay=0.1),
        # One head is enough, and halves the compilation.
        model=dataclasses.replace(MODEL, width=16, lookahead=True, heads=(0, 0, 0, 0, 0, 0, 1)),
        ppo=PpoConfig(entropy=0.05),
    )
    model, told = stepped(config, 1, 30, fork())
    assert told[0]["speedup"] < 0.85 * best
    assert told[0]["entropy"] > told[-1]["entropy"]
    assert told[-1]["learning_rate"] < 0.2 * told[0]["learning_rate"]
    found = sample_schedules(model, fork(), FREE2, jax.random.key(1), count=64, temperature=0.25)
    assert found.speedup.mean() > 0.97 * best
    np.testing.assert_allclose(found.speedup.max(), best, rtol=1e-5)


# Runs.


def test_a_run_goes_on_where_it_was(tmp_path):
    whole = train_gflownet(RUN, tmp_path / "a", progress=False)
    assert (whole.steps, whole.finished) == (4, True)
    train_gflownet(RUN, tmp_path / "b", progress=False)
    (tmp_path / "b" / "checkpoints" / "4.safetensors").unlink()
    again = train_gflownet(RUN, tmp_path / "b", progress=False)
    assert again.best == whole.best
    like = GflownetLearner(RUN).init()
    for a, b in zip(
        *(jax.tree.leaves(Checkpoints(tmp_path / n / "checkpoints").restore(like)[0]) for n in "ab"),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)
    lines = [(tmp_path / n / "metrics.jsonl").read_text().count("\n") for n in "ab"]
    assert lines == [7, 7]
    with pytest.raises(ConfigError, match="holds a run with other config"):
        train_gflownet(dataclasses.replace(RUN, seed=1), tmp_path / "a", progress=False)


def test_validation_knows_runtimes_of_each_device_and_pins(tmp_path):
    """A chain on the one device that it may use takes as long as list scheduling says."""
    builder = GraphBuilder("pinned")
    for o in range(3):
        read = [f"op{o - 1}"] if o else []
        builder.add_op(f"op{o}", runtime=(1.0, 0.25), outputs=[8], inputs=read, allowed_devices=[0])
    (tmp_path / "graphs").mkdir()
    save_graph(builder.build(), tmp_path / "graphs" / "pinned.json")
    sets = str(tmp_path / "graphs")
    data = GflownetDataConfig(train=sets, validation=sets, validation_graphs=0)
    short = dataclasses.replace(SHORT, steps=1)
    run = train_gflownet(
        dataclasses.replace(RUN, data=data, optimizer=short), tmp_path / "run", progress=False
    )
    assert run.best.improvement == pytest.approx(0, abs=1e-6)
    assert (run.best.matched, run.best.speedup) == (1, 1)


FILE = """
system = "gflownet"
[data]
train = "graphs"
validation = "graphs"
validation_graphs = 0
[model]
devices = 2
layers = 1
width = 8
head_width = 4
heads = [1, 0, 0, 1, 0, 0, 1]
temperature_width = 4
[optimizer]
steps = 4
trajectories = 8
validation_samples = 4
validate_every = 2
checkpoint_every = 2
"""


def test_the_command_trains_on_a_set(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "graphs").mkdir()
    save_graph(chain(5), tmp_path / "graphs" / "chain.json")
    (tmp_path / "run.toml").write_text(FILE)
    config = GflownetTrainConfig.load("run.toml")
    assert GflownetLearner(config) == GflownetLearner(RUN)  # The program is compiled above.
    assert main(["train", "run.toml", "--out", "run"]) == 0
    assert "+0.00 % over list scheduling" in capsys.readouterr().out
    # The weights can start another run with the same loss, and no run with another loss.
    start = "run/policy.safetensors"
    begun = GflownetLearner(dataclasses.replace(config, start=start)).init().policy
    for a, b in zip(*map(jax.tree.leaves, (begun, nnx.state(load_gflownet(start)))), strict=True):
        np.testing.assert_array_equal(a, b)
    begin = ["--quiet", "--set", f"start={start}", "--set", "optimizer.loss=ppo"]
    assert main(["train", "run.toml", "--out", "again", *begin]) == 2
    assert "has value = False, the config True" in capsys.readouterr().err


def test_the_loss_decides_on_parts_of_the_network():
    ppo = GflownetTrainConfig.from_document({"optimizer": {"loss": "ppo"}})
    assert (ppo.model.value, ppo.model.partition) == (True, False)
    assert GflownetTrainConfig.from_document(ppo.as_document()) == ppo
    other = dataclasses.replace(ppo, optimizer=dataclasses.replace(ppo.optimizer, loss="trajectory-balance"))
    assert (other.model.value, other.model.partition) == (False, True)


def test_settings_are_checked_and_written(tmp_path):
    for document, said in (
        ({"data": {"families": ["magic"]}}, "data.families: unknown 'magic'"),
        ({"data": {"families": []}}, "data.families: is empty; give at least one family"),
        ({"data": {"subgraph": [5, 4]}}, r"data.subgraph: is \(5, 4\)"),
        ({"data": {"subgraph": 5}}, "data.subgraph: is 5; give a list"),
        ({"data": {"validation_graphs": 0}}, "data.validation_graphs: is 0"),
        ({"optimizer": {"loss": "magic"}}, "optimizer.loss: is 'magic'"),
        ({"optimizer": {"trajectories": 1}}, "optimizer.trajectories: is 1"),
        ({"optimizer": {"max_temperature": 0.001}}, "optimizer.max_temperature: are 0.01 and 0.001; give"),
        (
            {"optimizer": {"min_temperature": 2}},
            "max_temperature: are 2.0 and 1.0; give a maximum of at least",
        ),
        ({"model": {"value": True}}, "model.value: is True, but optimizer.loss is 'variance', which decides"),
        (
            {"model": {"partition": True}, "optimizer": {"loss": "ppo"}},
            "model.partition: is True, .* is 'ppo', which decides; .* give the loss 'trajectory-balance'",
        ),
        ({"optimizer": {"min_temperature": 1e-9}}, "optimizer.min_temperature: is 1e-09; give a number from"),
        ({"optimizer": {"max_temperature": 1e9}}, "optimizer.max_temperature: is 1000000000.0; give"),
        ({"optimizer": {"validation_temperature": 1e-9}}, "optimizer.validation_temperature: is 1e-09"),
        ({"ppo": {"temperature": 0}}, r"ppo.temperature: is 0\.?0?; give a number from 1e-06 to 1e\+06"),
        ({"optimizer": {"clip": -1}}, "optimizer.clip: is -1"),
        ({"ppo": {"epochs": 0}}, "ppo.epochs: is 0"),
        ({"model": {"width": 0}}, "gflownet: width is 0"),
        ({"system": "topoformer"}, "system: is 'topoformer'; give 'gflownet'"),
        ({"start": "missing"}, None),
    ):
        if said:
            with pytest.raises(ConfigError, match=said):
                GflownetTrainConfig.from_document(document)
    with pytest.raises(ConfigError, match=r"optimizer\.max_temperature: is .hot.; give a number"):
        dataclasses.replace(RUN.optimizer, max_temperature="hot")
    for each in (RUN, *map(with_loss, Loss)):
        assert GflownetTrainConfig.from_document(each.as_document()) == each
    with pytest.raises(ConfigError, match="start: no file 'missing'"):
        train_gflownet(dataclasses.replace(RUN, start="missing"), tmp_path / "run", progress=False)
    save_gflownet(tmp_path / "w", SchedulePolicy(dataclasses.replace(MODEL, width=4), rngs=nnx.Rngs(0)))
    with pytest.raises(ConfigError, match="has width = 4, the config 8"):
        train_gflownet(dataclasses.replace(RUN, start=str(tmp_path / "w")), tmp_path / "run", progress=False)
    assert free(2) == FREE2
