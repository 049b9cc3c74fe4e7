"""Insertion policies as values and files, in the settings of list search, and their training."""

import dataclasses
import io
import json
import pathlib
import re
import signal
from typing import Any

import numpy as np
import pytest

from regal_jax import Cluster, GraphBuilder, ListSearch, Objective, PeakSearch, optimize, save_graph
from regal_jax.cli.main import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.heuristics import (
    InsertionPolicy,
    ListSearchConfig,
    ListSearchRun,
    PeakSearchConfig,
    load_insertion_policy,
    named_insertion_policy,
    save_insertion_policy,
)
from regal_jax.heuristics.insertion_features import MOVE_FEATURES, PLACE_FEATURES
from regal_jax.heuristics.insertion_kernel import SEEN
from regal_jax.heuristics.insertion_policy import default_insertion_policy
from regal_jax.learning.insertion import (
    InsertionDataConfig,
    InsertionTrainConfig,
    train_insertion,
)
from regal_jax.learning.insertion.train import fit
from regal_jax.runtime.compiling import usable
from regal_jax.solvers import Auto, HostStage, with_settings
from regal_jax.solvers.wire import pack_solver, unpack_solver

COSTLY = "blocking:latency=25us"
SMALL = InsertionTrainConfig(
    rounds=2,
    evaluations=800,
    data=InsertionDataConfig(families=("layered",), generated=4, ops=(30,), devices=(2,)),
)
needs_numba = pytest.mark.skipif(not usable(), reason="the loops take minutes in Python")


def some_policy() -> InsertionPolicy:
    return InsertionPolicy(
        tuple(np.linspace(-1, 1, len(MOVE_FEATURES) + 1)),
        tuple(np.linspace(0, 1, len(PLACE_FEATURES) + 1)),
        3,
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"move": (1.0,), "place": (1.0,)}, r"move has 1 numbers; give 18, or none"),
        ({"move": "default"}, r"move is 'default'; give 18 numbers"),
        ({"move": (1.0,) * 17 + ("x",)}, r"move has 'x'; give finite numbers"),
        ({"move": (float("nan"),) * 18}, r"move has nan; give finite numbers"),
        ({"move": (1.0,) * 18}, r"only one of move and place has weights"),
        ({"candidates": 0}, r"candidates is 0"),
        ({"candidates": 9}, r"candidates is 9; give at most 8"),
    ],
)
def test_wrong_values_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        InsertionPolicy(**settings)


def test_a_file_holds_the_weights_exactly(tmp_path: pathlib.Path) -> None:
    policy = dataclasses.replace(some_policy(), candidates=8)
    file = tmp_path / "policy.toml"
    save_insertion_policy(file, policy, "Two lines\nof a note.")
    assert load_insertion_policy(file) == policy
    assert file.read_text().startswith("# Two lines\n# of a note.\n")
    with pytest.raises(ConfigError, match="no weights to save"):
        save_insertion_policy(file, InsertionPolicy())


def test_what_cannot_be_saved_is_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "policy.toml"
    for policy, note, message in (
        ("default", "", "policy: give an InsertionPolicy, got str"),
        (some_policy(), 3, "note: give a str, got int"),
        (some_policy(), "a\0b", "note: .* has a character that cannot be printed"),
        (some_policy(), "\ud800", "note: .* has a character that cannot be printed"),
    ):
        with pytest.raises(ConfigError, match=message):
            save_insertion_policy(file, policy, note)  # type: ignore[arg-type]
    for place in (tmp_path / "missing" / "policy.toml", tmp_path):
        with pytest.raises(FormatError, match=r"cannot be written: .*; check the directory"):
            save_insertion_policy(place, some_policy())
    assert list(tmp_path.iterdir()) == []
    save_insertion_policy(file, some_policy(), "a\tb")
    assert load_insertion_policy(file).move == some_policy().move


def test_wrong_files_are_refused(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy\.toml"):
        load_insertion_policy(file)
    for nothing in (None, 0):
        with pytest.raises(ConfigError, match=f"path: give the name of a file, got {type(nothing).__name__}"):
            load_insertion_policy(nothing)  # type: ignore[arg-type]
    for name in ("\0", ""):
        with pytest.raises(ConfigError, match="cannot be read as TOML"):
            load_insertion_policy(name)
    file.write_text("[move")
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        load_insertion_policy(file)
    save_insertion_policy(file, some_policy())
    text = file.read_text()
    for changed, message in (
        (text.replace("skew", "tilt"), "table place needs the numbers transfer"),
        (text.replace("[move]", "[moves]"), "table move needs the numbers slack"),
        (text.replace("slack = -1.0", "slack = true"), "move has True"),
        (f"{text}[moves]\n", "has 'moves' beside the two tables; take it out"),
        (f"candidates = 1\n{text}", "has 'candidates' beside the two tables"),
    ):
        file.write_text(changed)
        with pytest.raises(FormatError, match=message):
            load_insertion_policy(file)


def test_settings_name_a_policy(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "policy.toml"
    save_insertion_policy(file, default_insertion_policy())
    assert ListSearchConfig().chosen_policy == default_insertion_policy()
    from_file = ListSearchConfig(insertion_policy=str(file))
    file.unlink()
    assert from_file.insertion_policy == from_file.chosen_policy == default_insertion_policy()
    assert ListSearchConfig(insertion_policy=None).chosen_policy == InsertionPolicy()
    assert ListSearch(insertion_policy="none").config.chosen_policy == InsertionPolicy()
    assert ListSearch(insertion_policy=some_policy()).config.chosen_policy == some_policy()
    with pytest.raises(ConfigError, match="insertion_policy is 3; give 'default'"):
        ListSearchConfig(insertion_policy=3)  # type: ignore[arg-type]
    for name in ("missing.toml", "Default", "untrained-01", "", "\0", str(tmp_path)):
        said = f"ListSearch: insertion_policy: no file {name!r}; give 'default', 'none', 'by-hand',"
        with pytest.raises(ConfigError, match=re.escape(said)):
            ListSearch(insertion_policy=name)


def test_the_controls_have_names() -> None:
    untrained = named_insertion_policy("untrained")
    assert untrained == named_insertion_policy("untrained-0") == named_insertion_policy("untrained")
    assert untrained != named_insertion_policy("untrained-1")
    weights = np.concatenate([untrained.move, untrained.place])
    assert len(weights) == len(MOVE_FEATURES) + len(PLACE_FEATURES) + 2
    assert 0.5 < weights.std() < 2
    by_hand = named_insertion_policy("by-hand")
    assert dict(zip((*MOVE_FEATURES, "constant"), by_hand.move, strict=True))["transfers_change"] == -1
    assert ListSearchConfig(insertion_policy="by-hand").chosen_policy == by_hand
    assert ListSearchConfig(insertion_policy="untrained-2").chosen_policy == named_insertion_policy(
        "untrained-2"
    )
    for name in ("untrained-01", "untrained-", "Default", "trained"):
        with pytest.raises(ConfigError, match="there is no"):
            named_insertion_policy(name)
        with pytest.raises(ConfigError):  # It would be a file, and there is none.
            ListSearchConfig(insertion_policy=name)


@needs_numba
def test_auto_takes_settings_of_its_searches() -> None:
    solver = with_settings(Auto(), {"list_search.insertion_policy": "by-hand", "peak_search.tries": 30})
    assert solver == Auto(
        list_search=ListSearchConfig(insertion_policy="by-hand"), peak_search=PeakSearchConfig(tries=30)
    )
    hosts = [solver.agenda(objective, 2).stages[0] for objective in Objective]
    assert [host.solver for host in hosts if isinstance(host, HostStage)] == [
        ListSearch(insertion_policy="by-hand"),
        PeakSearch(tries=30),
    ]
    graph = generate("layered", 60, seed=3)
    cluster = Cluster.uniform(2, transfer="blocking:latency=25us")
    spans = {
        name: optimize(
            graph,
            cluster,
            method=Auto(list_search=ListSearchConfig(insertion_policy=name)),
            evaluations=3000,
            progress=False,
        ).makespan
        for name in ("default", "none", "untrained")
    }
    assert spans["default"] != spans["none"]
    assert spans["default"] < spans["untrained"]


@pytest.mark.parametrize("kind", ["value", "file"])
def test_a_solver_with_a_policy_reaches_a_worker(tmp_path: pathlib.Path, kind: str) -> None:
    file = tmp_path / "policy.toml"
    policy = dataclasses.replace(some_policy(), candidates=8)
    save_insertion_policy(file, policy)
    document, blobs = pack_solver(ListSearch(insertion_policy=policy if kind == "value" else str(file)))
    file.unlink()
    there = tmp_path / "there"
    there.mkdir()
    solver, _ = unpack_solver(json.loads(json.dumps(document)), blobs, str(there))
    assert isinstance(solver, ListSearch)
    assert solver.config.chosen_policy == policy


@needs_numba
def test_the_trained_weights_shorten_random_graphs() -> None:
    saved = []
    for seed in range(6):
        graph = generate("layered", 100, seed=900 + seed)
        plans = [
            optimize(
                graph,
                Cluster.uniform(4, transfer=COSTLY),
                method=ListSearch(insertion_policy=name),
                evaluations=3000,
            )
            for name in ("none", "default")
        ]
        saved.append(1 - plans[1].makespan / plans[0].makespan)
    assert np.mean(saved) > 0


def test_the_fit_is_the_maximum_of_the_likelihood() -> None:
    rng = np.random.default_rng(0)
    rows = np.zeros((4000, SEEN + 1))
    rows[:, 0] = rng.integers(2, size=4000)
    rows[:, 1:12] = rng.normal(size=(4000, 11)) * 3 + 1
    truth = rng.normal(size=11) / 3
    rows[:, -1] = rng.random(4000) < 1 / (1 + np.exp(-(rows[:, 1:12] @ truth - 2)))
    policy = fit(rows, 0.0)
    for kind, weights, count in ((1, policy.move, SEEN - 1), (0, policy.place, 11)):
        chosen = rows[rows[:, 0] == kind]
        known = np.column_stack([chosen[:, 1 : 1 + count], np.ones(len(chosen))])
        chance = 1 / (1 + np.exp(-known @ np.array(weights)))
        np.testing.assert_allclose(known.T @ (chance - chosen[:, -1]), 0, atol=1e-4)
        np.testing.assert_allclose(weights[:11], truth, atol=0.2)
    with pytest.raises(ConfigError, match="no insertion move made a schedule shorter; take another folder"):
        fit(rows * [*[1] * SEEN, 0], 0.0)


def test_the_fit_is_the_minimum_where_few_moves_succeed() -> None:
    """There, whole steps of Newton's method go too far."""
    rng = np.random.default_rng(1)
    rows = np.zeros((4000, SEEN + 1))
    rows[:, 0] = np.arange(4000) % 2
    rows[:, 1:12] = rng.normal(size=(4000, 11)) ** 3
    rows[:, -1] = rows[:, 1] + rng.normal(size=4000) / 2 > np.quantile(rows[:, 1], 0.99)
    policy = fit(rows, 1.0)
    for kind, weights, count in ((1, policy.move, SEEN - 1), (0, policy.place, 11)):
        chosen = rows[rows[:, 0] == kind]
        features, wanted = chosen[:, 1 : 1 + count], chosen[:, -1]
        known = np.column_stack([features, np.ones(len(chosen))])
        chance = 1 / (1 + np.exp(-known @ np.array(weights)))
        penalty = np.append(features.var(axis=0) * np.array(weights[:-1]), 0)
        np.testing.assert_allclose(known.T @ (chance - wanted) + penalty, 0, atol=1e-3)


@needs_numba
def test_training_resumes_and_validates(tmp_path: pathlib.Path) -> None:
    result = train_insertion(SMALL, tmp_path / "run", progress=False)
    assert result.steps == 2 and result.finished  # noqa: PT018
    assert load_insertion_policy(tmp_path / "run" / "policy.toml") == result.policy
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[result.best_step - 1]["improvement"] == result.best.improvement
    assert result.best.improvement == max(line["improvement"] for line in lines)
    before = np.load(tmp_path / "run" / "moves-1.npy")
    (tmp_path / "run" / "moves-2.npy").unlink()
    again = train_insertion(SMALL, tmp_path / "run", progress=False)
    assert again == result
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "moves-1.npy"), before)
    with pytest.raises(ConfigError, match="other config"):
        train_insertion(dataclasses.replace(SMALL, seed=1), tmp_path / "run", progress=False)


@needs_numba
def test_a_graph_that_takes_no_time_counts_as_no_gain(tmp_path: pathlib.Path) -> None:
    builder = GraphBuilder("idle")
    for i in range(5):
        builder.add_op(f"op{i}", outputs=[5], inputs=[f"op{i - 1}:0"] if i else [])
    (tmp_path / "set").mkdir()
    save_graph(builder.build(), tmp_path / "set" / "idle.json")
    data = dataclasses.replace(SMALL.data, validation=str(tmp_path / "set"))
    config = dataclasses.replace(SMALL, rounds=1, data=data)
    with_idle = train_insertion(config, tmp_path / "run", progress=False)
    without = train_insertion(dataclasses.replace(SMALL, rounds=1), tmp_path / "other", progress=False)
    # One pair of a generated graph and a cluster for each transfer model, and as many of the idle graph.
    assert without.best.improvement != 0
    assert with_idle.best.improvement == pytest.approx(without.best.improvement / 2)
    assert with_idle.best.worst == min(without.best.worst, 0)
    assert with_idle.best.best == max(without.best.best, 0)
    assert train_insertion(config, tmp_path / "run", progress=False) == with_idle


@needs_numba
def test_a_damaged_file_of_moves_is_named(tmp_path: pathlib.Path) -> None:
    result = train_insertion(SMALL, tmp_path, progress=False)
    file = tmp_path / "moves-1.npy"
    whole = file.read_bytes()
    narrow, endless, strange, archive = (io.BytesIO() for _ in range(4))
    np.save(narrow, np.load(file)[:, 1:])
    np.save(endless, np.where(np.arange(len(np.load(file)))[:, None] == 3, np.float32(np.nan), np.load(file)))
    np.save(strange, np.load(file) + np.float32(7))
    np.savez(archive, np.load(file))
    kept = (
        narrow.getvalue(),
        endless.getvalue(),
        strange.getvalue(),
        archive.getvalue(),
        archive.getvalue()[:-1],
        b"PK\x03\x04" + whole,
    )
    for content in (b"", b"xx", whole[:100], whole[:-1], whole.replace(b"{", b"(", 1), *kept):
        file.write_bytes(content)
        with pytest.raises(FormatError, match=r"moves-1\.npy: is damaged; remove it, and"):
            train_insertion(SMALL, tmp_path, progress=False)
    file.unlink()
    assert train_insertion(SMALL, tmp_path, progress=False) == result
    assert file.read_bytes() == whole


@needs_numba
@pytest.mark.parametrize("name", ["moves-1.npy", "moves-2.part.npy", "policy.toml"])
def test_files_of_a_run_without_its_settings_are_refused(tmp_path: pathlib.Path, name: str) -> None:
    (tmp_path / name).write_text("another")
    with pytest.raises(ConfigError, match=f"has {name} of another run, but no config.json; take another"):
        train_insertion(SMALL, tmp_path, progress=False)
    assert (tmp_path / name).read_text() == "another"
    assert not (tmp_path / "config.json").exists()


@needs_numba
def test_an_interrupted_training_tells_what_it_has(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    whole = train_insertion(SMALL, tmp_path / "whole", progress=False)
    left = 0

    def pressing(*given: Any) -> InsertionPolicy:
        nonlocal left
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
        return fit(*given)

    with monkeypatch.context() as patch:
        patch.setattr("regal_jax.learning.insertion.train.fit", pressing)
        left = 1
        with pytest.raises(KeyboardInterrupt):
            train_insertion(SMALL, tmp_path / "run", progress=False)
        left = 2
        result = train_insertion(SMALL, tmp_path / "run", progress=False)
    assert (result.steps, result.best_step, result.finished) == (1, 1, False)
    assert load_insertion_policy(tmp_path / "run" / "policy.toml") == result.policy
    assert train_insertion(SMALL, tmp_path / "run", progress=False) == whole


@needs_numba
def test_a_killed_round_continues_with_its_searches(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    whole = train_insertion(SMALL, tmp_path / "whole", progress=False)
    made: list[bool] = []

    class Run(ListSearchRun):
        def __init__(self, *given: Any, describe: bool = False) -> None:
            super().__init__(*given, describe=describe)
            made.append(describe)
            if describe and sum(made) == 3:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("regal_jax.learning.insertion.train.ListSearchRun", Run)
    with pytest.raises(KeyboardInterrupt):
        train_insertion(SMALL, tmp_path / "run", progress=False)
    part = tmp_path / "run" / "moves-1.part.npy"
    kept = part.read_bytes()
    searches = int(np.load(part)[-1, -1]) + 1
    beyond = np.load(part)
    beyond[-1, -1] = 8
    np.save(part, beyond)
    for content in (kept[:-1], part.read_bytes()):
        part.write_bytes(content)
        with pytest.raises(FormatError, match=r"moves-1\.part\.npy: is damaged; remove it, and"):
            train_insertion(SMALL, tmp_path / "run", progress=False)
    part.write_bytes(kept)
    interrupted = sum(made)
    assert train_insertion(SMALL, tmp_path / "run", progress=False) == whole
    assert searches > 0
    assert sum(made) - interrupted == 2 * 8 - searches
    assert not part.exists()
    for name in ("moves-1.npy", "moves-2.npy"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@needs_numba
def test_a_damaged_record_is_named_and_made_again(tmp_path: pathlib.Path) -> None:
    result = train_insertion(SMALL, tmp_path, progress=False)
    file = tmp_path / "metrics.jsonl"
    first, second = file.read_text().splitlines(keepends=True)
    file.write_text("{}}\n" + second)
    with pytest.raises(FormatError, match=r"metrics\.jsonl: line 1 is damaged; delete it and train on"):
        train_insertion(SMALL, tmp_path, progress=False)
    file.write_text(second)
    assert train_insertion(SMALL, tmp_path, progress=False) == result
    assert file.read_text() == second + first


@needs_numba
def test_graphs_without_transfers_that_take_time_are_named(tmp_path: pathlib.Path) -> None:
    for changes in ({"generated_transfer": ("free", "blocking")}, {"ops": (1,)}):
        config = dataclasses.replace(SMALL, data=dataclasses.replace(SMALL.data, **changes))
        with pytest.raises(ConfigError, match=r"^data\.transfer, .*: no transfer takes time"):
            train_insertion(config, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()


@needs_numba
def test_sets_must_fit_every_cluster(tmp_path: pathlib.Path) -> None:
    pinned, table = GraphBuilder("pinned"), GraphBuilder("table")
    pinned.add_op("op", runtime=1, allowed_devices=[3])
    table.add_op("op", runtime=[1, 2, 3, 4])
    for name, builder in (("pinned", pinned), ("table", table)):
        (tmp_path / name).mkdir()
        save_graph(builder.build(), tmp_path / name / "graph.json")
        for split in ("train", "validation"):
            data = dataclasses.replace(SMALL.data, devices=(2, 4), **{split: str(tmp_path / name)})
            config = dataclasses.replace(SMALL, data=data)
            with pytest.raises(ConfigError, match=rf"^data\.{split}: .* 2.*; or change data\.devices$"):
                train_insertion(config, tmp_path / "run", progress=False)
            assert not (tmp_path / "run").exists()


@needs_numba
def test_moves_of_the_first_round_are_uniform() -> None:
    graph, cluster = generate("layered", 60, seed=1), Cluster.uniform(2, transfer=COSTLY)
    config = ListSearchConfig(insertion_policy=InsertionPolicy(candidates=1), least_gain=0.0)
    search = ListSearchRun(graph, cluster, 0, config, describe=True)
    search.run(4000)
    moves = search.described_moves()
    assert len(moves) > 500
    assert 0.4 < moves[:, 0].mean() < 0.6
    assert (moves[:, -2] >= 1).all()
    assert (moves[moves[:, 0] == 0, -2] == 1).all()


@needs_numba
def test_the_command_trains(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "moves.toml"
    file.write_text(
        'system = "insertion"\nrounds = 1\nevaluations = 800\n[data]\nfamilies = ["layered"]\ngenerated = 4\n'
        "ops = [30]\ndevices = [2]\n"
    )
    assert main(["train", str(file), "--out", str(tmp_path / "run")]) == 0
    assert "1 rounds; best after round 1" in capsys.readouterr().out
    assert ListSearch(insertion_policy=str(tmp_path / "run" / "policy.toml")).config.chosen_policy.move
    assert main(["train", str(file), "--out", str(tmp_path / "more"), "--tensorboard"]) == 2
    assert "leave them out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"devices": [1]}, r"data\.devices"),
        ({"devices": [2, 5000]}, r"data\.devices: is .* from 2 to 1024$"),
        ({"ops": [10**5000]}, r"data\.ops: is .* from 1 to 2147483647$"),
        ({"train": "a", "transfer": []}, r"data\.transfer: is empty; give a link"),
        ({"validation": "a", "transfer": ""}, r"data\.transfer: is empty; give a link"),
        ({"generated_transfer": []}, r"data\.generated_transfer: is empty; give a link"),
        ({"families": ["none"]}, r"data\.families: has 'none'"),
        ({"transfer": ["fast"]}, r"data\.transfer: "),
        ({"families": []}, r"data\.train: there are no graphs"),
        ({"limits": 3}, "there is no such setting"),
    ],
)
def test_wrong_settings_are_refused(table: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        InsertionTrainConfig.from_document({"system": "insertion", "data": table})
    assert InsertionTrainConfig.from_document(SMALL.as_document()) == SMALL


def test_what_python_gives_is_refused_by_name() -> None:
    makes: list[tuple[Any, str]] = [
        (lambda: InsertionTrainConfig(ridge=-1), r"ridge: is -1; give a number of at least 0"),
        (lambda: InsertionTrainConfig(ridge=10**400), r"ridge: is 1"),
        (lambda: InsertionTrainConfig(evaluations=500), r"evaluations: is 500, but insertion moves begin"),
        (lambda: InsertionDataConfig(families=[["a"]]), r"data\.families: is \[\['a'\]\]; give a text"),  # type: ignore[arg-type]
        (lambda: InsertionDataConfig(devices=b"\2\4"), r"data\.devices: is "),  # type: ignore[arg-type]
    ]
    for make, said in makes:
        with pytest.raises(ConfigError, match=f"^{said}"):
            make()
    # Only links of clusters that there are have to be given.
    assert InsertionDataConfig(transfer=()).transfer == ()
    assert InsertionDataConfig("a", generated=0, generated_transfer=()).generated_transfer == ()
