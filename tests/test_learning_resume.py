"""A killed or interrupted run is resumed with the same result; damage is reported."""

import dataclasses
import functools
import importlib
import json
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest
from learning_cases import GRAPHS, HELD_OUT, one_device, stopped_after, tiny_config
from policy_cases import four_bins

from regal_jax.errors import ConfigError, FormatError
from regal_jax.learning import checkpoint as checkpoint_module
from regal_jax.learning import reference, train
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.step import Learner
from regal_jax.policies import load_policy, read_metadata, save_policy

TESTS = pathlib.Path(__file__).parent


def metrics(folder):
    """The records without the times of the steps."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


def final_weights(folder, config):
    state, notes = Checkpoints(folder / "checkpoints").restore(Learner(config).init())
    return [np.asarray(leaf) for leaf in jax.tree.leaves(state)], notes


def same_outcome(one, other, config):
    assert (one / "policy.safetensors").read_bytes() == (other / "policy.safetensors").read_bytes()
    assert metrics(one) == metrics(other)
    (weights, notes), (other_weights, other_notes) = final_weights(one, config), final_weights(other, config)
    assert notes == other_notes
    for a, b in zip(weights, other_weights, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert one_device(tiny_config(), folder).finished
    return folder


def test_what_a_run_leaves_behind(whole):
    records = metrics(whole)
    assert [r["step"] for r in records if r["kind"] == "train"] == list(range(1, 13))
    assert [r["step"] for r in records if r["kind"] == "validation"] == [0, 5, 10, 12]
    assert {p.name for p in whole.iterdir()} == {
        "checkpoints", "config.json", "metrics.jsonl", "policy.safetensors", "references.jsonl",
    }  # fmt: skip
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == ["12.safetensors", "8.safetensors"]
    best = max((r for r in records if r["kind"] == "validation"), key=lambda r: r["improvement"])
    metadata = read_metadata(whole / "policy.safetensors")
    assert metadata["step"] == str(best["step"])
    assert float(metadata["validation_improvement"]) == best["improvement"]
    assert json.loads(metadata["training"]) == tiny_config().as_document()


@pytest.mark.parametrize(
    "moments",
    [("save:4",), ("references:1", "train:3", "save:4", "train:10")],
    ids=len,
)
@pytest.mark.slow  # By default a process is killed in test_distributed.py, and runs go on after Ctrl-C below.
def test_killed_at_any_moment_it_ends_the_same(whole, tmp_path, moments):
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]),
    }
    folder = tmp_path / "run"

    for moment in moments:
        command = [sys.executable, str(TESTS / "learning_run.py"), str(folder), moment]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, (moment, done.stderr)
    # A process that is killed while it writes references leaves half a line.
    references = folder / "references.jsonl"
    references.write_bytes(references.read_bytes()[:-20])
    assert one_device(tiny_config(), folder).finished
    same_outcome(whole, folder, tiny_config())


def test_ctrl_c_saves_and_the_run_goes_on(whole, tmp_path):
    stopped_after(7, tiny_config(), tmp_path)
    assert len([r for r in metrics(tmp_path) if r["kind"] == "train"]) == 7
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["4.safetensors", "7.safetensors"]
    assert one_device(tiny_config(), tmp_path).finished
    same_outcome(whole, tmp_path, tiny_config())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_references_are_computed_leaves_none_that_is_half_done(whole, tmp_path, monkeypatch):
    solve = reference.solve

    def pressing(*args, **options):
        monkeypatch.setattr(reference, "solve", solve)
        return solve(*args, **options, callback=lambda _: signal.raise_signal(signal.SIGINT))

    monkeypatch.setattr(reference, "solve", pressing)
    with pytest.raises(KeyboardInterrupt):
        one_device(tiny_config(), tmp_path)
    assert not (tmp_path / "references.jsonl").exists()
    assert one_device(tiny_config(), tmp_path).finished
    same_outcome(whole, tmp_path, tiny_config())


def test_a_folder_of_another_run_is_refused(whole, tmp_path):
    before = {p: p.read_bytes() for p in whole.glob("*.*")}
    said = r"other config \(optimizer\.steps is 13 here and 12 there\); take another folder, or give the same"
    with pytest.raises(ConfigError, match=said):
        one_device(tiny_config(steps=13), whole)
    several = tiny_config(batch=2, clip=0.5, log_every=2, steps=13, samples=4)
    said = (
        r"\(optimizer\.batch is 2 here and 4 there, .*, optimizer\.log_every is 2 here and 1 there, 2 more\)"
    )
    with pytest.raises(ConfigError, match=said):
        one_device(several, whole)
    for graphs, held_out, what in ((GRAPHS[:2], HELD_OUT, "graphs"), (GRAPHS, GRAPHS, "validation")):
        with pytest.raises(ConfigError, match=f"with other {what}; take"):
            train(tiny_config(), graphs, held_out, whole, progress=False, devices=jax.devices()[:1])
    assert {p: p.read_bytes() for p in whole.glob("*.*")} == before
    (tmp_path / "config.json").write_text('{"config": {"seed": [1]}}')
    with pytest.raises(ConfigError, match=r"\(data\.contract is 'no' here and unset there, .* more\); take"):
        one_device(tiny_config(), tmp_path)
    for damage in ("{", "[]"):
        (tmp_path / "config.json").write_text(damage)
        with pytest.raises(FormatError, match=r"config\.json: damaged; take another folder"):
            one_device(tiny_config(), tmp_path)


def test_what_a_killed_write_leaves_is_removed(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    left = [".policy.safetensors.7.8.tmp", "checkpoints/.13.safetensors.7.8.tmp"]
    for name in left:
        (folder / name).write_text("a part")
    with pytest.raises(ConfigError, match="holds a run with other config"):
        one_device(tiny_config(steps=13), folder)
    assert all((folder / name).exists() for name in left)
    assert one_device(tiny_config(), folder).finished
    assert not any((folder / name).exists() for name in left)


@pytest.mark.parametrize("name", ["checkpoints", "metrics.jsonl", "policy.safetensors"])
def test_files_of_a_run_without_its_settings_are_refused(tmp_path, name):
    (tmp_path / name).write_text("another")
    with pytest.raises(ConfigError, match=f"has {name} of another run, but no config.json; take another"):
        one_device(tiny_config(), tmp_path)
    assert (tmp_path / name).read_text() == "another"
    assert not (tmp_path / "config.json").exists()


def test_a_run_does_not_go_on_without_its_best_weights(whole, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / "policy.safetensors").unlink()
    before = {p: p.read_bytes() for p in folder.glob("**/*.*")}
    with pytest.raises(FormatError, match=r"policy\.safetensors: is missing; it had the weights of step \d+"):
        one_device(tiny_config(), folder)
    assert {p: p.read_bytes() for p in folder.glob("**/*.*")} == before
    other = load_policy(whole / "policy.safetensors")
    for metadata in ({}, {"training": json.dumps(tiny_config(steps=13).as_document())}):
        save_policy(folder / "policy.safetensors", other, metadata)
        said = (
            r"holds weights of another run; it had .*; put it back, remove .*checkpoints to start again, or"
        )
        with pytest.raises(FormatError, match=said):
            one_device(tiny_config(), folder)
    shutil.rmtree(folder / "checkpoints")
    assert one_device(tiny_config(), folder).finished
    same_outcome(whole, folder, tiny_config())


def test_a_run_with_damaged_best_weights_is_refused_before_it_goes_on(tmp_path):
    stopped_after(7, tiny_config(), tmp_path)
    path = tmp_path / "policy.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    before = {p: p.read_bytes() for p in tmp_path.glob("**/*.*")}
    with pytest.raises(FormatError, match=r"policy\.safetensors: .*; it had the weights of step \d+"):
        one_device(tiny_config(), tmp_path)
    assert {p: p.read_bytes() for p in tmp_path.glob("**/*.*")} == before


def test_files_of_another_kind_are_refused_by_name(whole, tmp_path):
    for name, message in (
        ("config.json", "cannot be read: Is a directory; check the path"),
        ("checkpoints", "is not a folder; take another --out folder"),
    ):
        folder = tmp_path / name / "run"
        shutil.copytree(whole, folder)
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
            path.touch()
        else:
            path.unlink()
            path.mkdir()
        with pytest.raises(FormatError, match=f"{name}: {message}"):
            one_device(tiny_config(), folder)


def test_references_of_too_few_searches_are_refused(whole, tmp_path):
    records = [json.loads(line) for line in (whole / "references.jsonl").read_text().splitlines()]
    records[1]["fitness"] = []
    (tmp_path / "references.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(FormatError, match=r"references\.jsonl: line 2: has 0 numbers for \d searches"):
        one_device(tiny_config(), tmp_path)


@pytest.mark.parametrize("content", ["abc", "abc\n", '{"graph": "a"}\nabc'])
def test_damaged_references_are_refused_before_the_searches(tmp_path, monkeypatch, content):
    monkeypatch.setattr(reference, "solve", None)
    (tmp_path / "references.jsonl").write_text(content)
    said = r"references\.jsonl: line \d( is damaged; delete it and train on|: .*; delete the line)$"
    with pytest.raises(FormatError, match=said):
        one_device(tiny_config(), tmp_path)
    assert (tmp_path / "references.jsonl").read_text() == content


def test_references_of_another_run_are_used(whole, tmp_path):
    (tmp_path / "references.jsonl").write_bytes((whole / "references.jsonl").read_bytes())
    assert one_device(tiny_config(), tmp_path).finished
    same_outcome(whole, tmp_path, tiny_config())


def test_a_run_killed_after_its_settings_goes_on(whole, tmp_path):
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    assert one_device(tiny_config(), tmp_path).finished
    same_outcome(whole, tmp_path, tiny_config())


@pytest.mark.parametrize(("name", "value"), [("gradient", "nan"), ("spread", "inf")])
def test_a_run_that_diverges_says_so(whole, tmp_path, monkeypatch, name, value):
    module = importlib.import_module("regal_jax.learning.train")
    step = module.train_step

    def diverging(*args):
        state, metrics = step(*args)
        return state, metrics._replace(**{name: float(value)})

    monkeypatch.setattr(module, "train_step", diverging)
    said = rf"the {name} of step 1 is {value}; .* lower optimizer\.learning_rate"
    with pytest.raises(ConfigError, match=said):
        one_device(tiny_config(), tmp_path)
    assert [r["step"] for r in metrics(tmp_path)] == [0]


def test_a_validation_without_a_number_is_no_best(whole, tmp_path, monkeypatch):
    module = importlib.import_module("regal_jax.learning.train")
    found = module.validate
    monkeypatch.setattr(module, "validate", lambda *args: found(*args)._replace(improvement=math.nan))
    with pytest.raises(ConfigError, match="the improvement of step 0 is nan; start again"):
        one_device(tiny_config(), tmp_path)
    assert not (tmp_path / "policy.safetensors").exists()


# Checkpoints -----------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path):
    state = first_state(tiny_config())
    Checkpoints(tmp_path / "checkpoints").save(state, {"best_step": 3})
    return tmp_path / "checkpoints"


@functools.cache
def first_state(config):
    return Learner(config).init()


def restored(folder, config=None):
    return Checkpoints(folder).restore(first_state(config or tiny_config()))


def test_a_checkpoint_gives_back_what_it_got(saved, tmp_path):
    state, notes = restored(saved)
    assert notes == {"best_step": 3}
    wanted = first_state(tiny_config())
    for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    assert jax.tree.structure(state) == jax.tree.structure(wanted)
    assert restored(tmp_path / "nothing") is None


def test_a_checkpoint_of_another_version(saved, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "VERSION", "3")
    with pytest.raises(FormatError, match=r"0\.safetensors: a checkpoint of version 2, not 3; take another"):
        restored(saved)
    (saved / "8").mkdir()  # Releases before wrote a folder each.
    with pytest.raises(FormatError, match="checkpoints/8: is not a checkpoint of this release; take another"):
        restored(saved)


@pytest.mark.parametrize(
    "policy",
    [four_bins(rounds=1, width=5), four_bins(rounds=2, width=4), four_bins(num_devices=3, width=4)],
)
def test_a_checkpoint_of_another_network(saved, policy):
    with pytest.raises(FormatError, match="does not fit this run") as error:
        restored(saved, dataclasses.replace(tiny_config(), policy=policy))
    assert "\n" not in str(error.value)


def test_a_damaged_checkpoint(saved):
    path = saved / "0.safetensors"
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            path.write_bytes(damaged)
            with pytest.raises(FormatError, match="remove this one to start again") as error:
                restored(saved)
            assert "\n" not in str(error.value)
    path.write_bytes(whole)
    assert restored(saved) is not None
    path.rename(saved / "5.safetensors")
    with pytest.raises(FormatError, match=r"5\.safetensors: holds step 0; give the file its own name"):
        restored(saved)


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-9], lambda whole: whole[:-1] + bytes([whole[-1] ^ 1])]
)
def test_a_damaged_checkpoint_names_the_older_one(saved, damage):
    state = first_state(tiny_config())
    Checkpoints(saved).save(dataclasses.replace(state, step=state.step + 2), {"best_step": 2})
    path = saved / "2.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    said = (
        r"2\.safetensors: damaged .*; remove this file to resume from step 0, or take another --out folder$"
    )
    with pytest.raises(FormatError, match=said):
        restored(saved)
    path.unlink()
    _, notes = restored(saved)
    assert notes == {"best_step": 3}
