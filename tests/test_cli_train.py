"""`regal-jax train` as scripts use it."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import pytest
from learning_cases import GRAPHS, HELD_OUT
from ordering_cases import chain

from regal_jax.cli import main
from regal_jax.cli.train import _config
from regal_jax.errors import ConfigError
from regal_jax.importers import save_graph
from regal_jax.learning import TrainConfig
from regal_jax.learning.ordering import OrderTrainConfig
from regal_jax.learning.record import Record
from regal_jax.ordering import load_topoformer
from regal_jax.policies import load_policy

TOML = """
[task]
evaluations = 1
[data]
train = "sets/train"
validation = "sets/validation"
[policy]
rounds = 0
width = 4
[search]
population = 1
elites = 0
mutants = 1
[optimizer]
steps = 4
batch = 2
samples = 2
reference_seeds = 1
validate_every = 2
checkpoint_every = 2
"""


ORDERS = """
system = "topoformer"
[data]
ops = [6]
validation = "orders"
validation_graphs = 1
[model]
layers = 1
width = 4
head_width = 2
heads = [1, 0, 0, 0, 0, 0, 0]
eigenvectors = 0
[optimizer]
steps = 3
batch = 2
"""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setattr("jax.devices", lambda: jax.local_devices()[:1])
    monkeypatch.chdir(tmp_path)
    for split, graphs in (("train", GRAPHS), ("validation", HELD_OUT)):
        folder = tmp_path / "there" / "sets" / split
        folder.mkdir(parents=True)
        for i, graph in enumerate(graphs):
            save_graph(graph, folder / f"{i}.json")
    pathlib.Path("there/run.toml").write_text(TOML)


def run(*args):
    out = [] if "--out" in args else ["--out", "run"]
    return main(["train", "there/run.toml", *out, *map(str, args)])


def test_a_run_is_interrupted_goes_on_and_is_done(capsys, monkeypatch):
    add, number = Record.add, signal.SIGINT

    def pressing(self, kind, step, values):
        add(self, kind, step, values)
        if (kind, step) == ("train", 3):
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "add", pressing)
        for folder, kind, code in (("run", signal.SIGINT, 130), ("other", signal.SIGTERM, 143)):
            number = kind
            assert run("--out", folder, "--quiet") == code
            out, err = capsys.readouterr()
            assert out == ""
            assert err == "regal-jax train: stopped after step 3; the same command resumes there\n"
    run_from_elsewhere(monkeypatch)
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("4 steps; best after step ")
    assert "% over the search without a policy (from " in lines[1]
    assert lines[-1] == "saved to ../../run/policy.safetensors"


def test_an_interrupt_before_the_first_step_ends_the_run_without_it(capsys, monkeypatch):
    add = Record.add

    def pressing(self, kind, step, values):
        add(self, kind, step, values)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "add", pressing)
        assert run("--out", "run", "--quiet") == 130
    assert (
        capsys.readouterr().err == "regal-jax train: stopped after step 0; the same command resumes there\n"
    )
    records = [json.loads(line) for line in pathlib.Path("run/metrics.jsonl").read_text().splitlines()]
    assert [(r["kind"], r["step"]) for r in records] == [("validation", 0)]
    run_from_elsewhere(monkeypatch)
    records = [json.loads(line) for line in pathlib.Path("../../run/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "validation"].count(0) == 1


def run_from_elsewhere(monkeypatch):
    """The same run, from a folder in which its files have other relative names."""
    monkeypatch.chdir("there/sets")
    assert main(["train", "../run.toml", "--out", "../../run"]) == 0
    assert load_policy("../../run/policy.safetensors").config.width == 4
    records = [json.loads(line) for line in pathlib.Path("../../run/metrics.jsonl").read_text().splitlines()]
    assert [r["step"] for r in records if r["kind"] == "train"] == [1, 2, 3, 4]


# By default, test_distributed.py trains Topoformer by the command.
@pytest.mark.slow
def test_orders_are_trained_interrupted_and_done(capsys):
    pathlib.Path("there/run.toml").write_text(ORDERS)
    pathlib.Path("there/orders").mkdir()
    save_graph(chain(3), "there/orders/chain.json")
    add, number = Record.add, signal.SIGINT

    def pressing(self, kind, step, values):
        add(self, kind, step, values)
        if (kind, step) == ("train", 2):
            signal.raise_signal(number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "add", pressing)
        for folder, kind, code in (("run", signal.SIGINT, 130), ("other", signal.SIGTERM, 143)):
            number = kind
            assert run("--out", folder, "--quiet") == code
            said = "regal-jax train: stopped after step 2; the same command resumes there\n"
            assert capsys.readouterr() == ("", said)
    assert run("--tensorboard") == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0].startswith("3 steps; best after step ")
    assert "% over least peak memory first (from " in lines[1]
    assert lines[-1] == "saved to run/policy.safetensors"
    assert load_topoformer("run/policy.safetensors").config.width == 4
    assert list(pathlib.Path("run/tensorboard").iterdir())
    config = _config(pathlib.Path("there/run.toml"), ["optimizer.samples=3", "data.train=sets"])
    assert (config.optimizer.samples, config.model.layers) == (3, 1)
    assert (config.data.validation, config.data.train) == (("there/orders",), ("sets",))


@pytest.mark.parametrize(
    ("document", "arguments", "said"),
    [
        ('system = "other"', [], "there/run.toml: system is 'other'; use one of regal, topoformer, gflownet"),
        ("system = 3", [], "system is 3; use one of regal, topoformer, gflownet"),
        (ORDERS, ["--set", "system=regal"], "system: is 'regal'; give 'topoformer', or leave it out"),
        (ORDERS, ["--set", "task.evaluations=3"], "task: there is no such setting; use one of seed, start"),
        (ORDERS, ["--set", "data.ops=[]"], "data.ops: is (); give a list of whole numbers"),
        (ORDERS, ["--set", "data.validation=absent"], "absent: no such file or folder"),
        (
            ORDERS,
            ["--set", "data.train=there/sets/train"],
            "data.train: graph 'independent0' has runtimes for 2",
        ),
        (ORDERS, ["--set", "data.validation=[]", "--set", "start=absent"], "start: no file 'absent'"),
    ],
)
def test_what_cannot_be_trained_exits_2_with_one_line(document, arguments, said, capsys):
    pathlib.Path("there/run.toml").write_text(document)
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert said in err
    assert not pathlib.Path("run/config.json").exists()


def test_an_insertion_policy_without_validation_graphs_says_so(capsys):
    pathlib.Path("there/run.toml").write_text(
        """
        system = "insertion"
        evaluations = 600
        data = {families = ["layered"], generated = 2, ops = [40], devices = [2]}
        """
    )
    assert run() == 0
    shown = capsys.readouterr().out
    assert "1 rounds; no validation graph, so the last weights are kept" in shown
    assert "matched" not in shown


@pytest.mark.parametrize("option", ["--distributed", "--tensorboard"])
def test_an_insertion_policy_waits_for_no_other_process(option, monkeypatch, capsys):
    pathlib.Path("there/run.toml").write_text('system = "insertion"')
    monkeypatch.setattr("regal_jax.cli.train._result", lambda args: pytest.fail("joins other processes"))
    assert run(option) == 2
    assert "--distributed, --tensorboard: not for insertion policies; leave" in capsys.readouterr().err


def test_the_file_of_the_network_that_ships_is_one():
    file = pathlib.Path(__file__).parents[1] / "regal_jax" / "ordering" / "trained" / "layered.toml"
    config = _config(file, [])
    assert isinstance(config, OrderTrainConfig)
    text = (pathlib.Path(__file__).parents[1] / "docs" / "training.md").read_text(encoding="utf-8")
    pathlib.Path("orders.toml").write_text(
        text.split("<!-- orders.toml -->")[1].split("```")[1].removeprefix("toml")
    )
    assert _config(pathlib.Path("orders.toml"), []).model == config.model


def test_settings_are_changed_by_name():
    path = pathlib.Path("there/run.toml")
    changes = ["seed=3", "optimizer.learning_rate = 0.5", "task.memory=16GiB", "policy.means=[0.1, 0.9]"]
    config = _config(path, [*changes, "data.train='x'", "search.restart_after=7", "data.contract='both'"])
    assert _config(path, ["policy.ablation.uniform=true"]).policy.ablation.uniform
    assert (config.seed, config.optimizer.learning_rate, config.task.memory) == (3, 0.5, "16GiB")
    assert (config.policy.means, config.search.restart_after) == ((0.1, 0.9), 7)
    assert config.data.contract == "both"
    assert _config(path, ["task.memory=16GiB", "task.memory=inf"]).task.memory == "inf"
    assert _config(path, ["task.memory=17179869184"]).task.memory == "17179869184"
    # Paths in the file are relative to its folder, paths on the command line to the working directory.
    changes = ["data.train=['x', 'y']"]
    assert _config(path, changes).data.train == ("x", "y")
    assert (config.data.train, config.data.validation) == (("x",), ("there/sets/validation",))


@pytest.mark.parametrize(
    ("document", "change"),
    [
        ('[task]\nobjective = "zz"', "task.objective=makespan"),
        ('[task]\nobjective = "makespan"', "task.objective=peak-memory"),
        ("data = 3", "data={train = 'x'}"),
        ("[data]\ntrain = [3]", "data.train=x"),
        ("start = 3", "start="),
    ],
)
def test_changes_mend_what_is_wrong_in_the_file(document, change, tmp_path):
    (tmp_path / "run.toml").write_text(document)
    assert isinstance(_config(tmp_path / "run.toml", [change]), TrainConfig)


def test_names_of_graphs_are_no_files_beside_the_settings(tmp_path):
    (tmp_path / "run.toml").write_text('[data]\ntrain = ["sample", "one", "set"]\n')
    assert _config(tmp_path / "run.toml", []).data.train == ("sample", "one", str(tmp_path / "set"))


def test_a_folder_may_have_the_name_of_graphs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("run.toml").write_text('[data]\ntrain = ["./sample", "set"]\nvalidation = "./one"\n')
    data = _config(pathlib.Path("run.toml"), []).data
    assert (data.train, data.validation) == (("./sample", "set"), ("./one",))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("optimizer.steps", "write NAME=VALUE"),
        ("=3", "write NAME=VALUE"),
        ("optimizer..steps=3", "write NAME=VALUE"),
        ("task.evaluations.x=3", "task.evaluations is a setting of its own; write task.evaluations=VALUE"),
        ("seed.steps=3", "seed: is {'steps': 3}; give a whole number"),
        ("optimizer.stepz=3", "optimizer.stepz: there is no such setting"),
        ("optimizer=3", "optimizer: is 3; give a table"),
        ("optimizer.steps=many", "optimizer.steps: is 'many'; give a whole number"),
    ],
)
def test_a_change_that_is_none(change, said):
    with pytest.raises(ConfigError, match=said):
        _config(pathlib.Path("there/run.toml"), [change])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "optimizer.steps=0"], "optimizer.steps: is 0"),
        (["--set", "data.train=absent"], "no such file or folder"),
        (["--set", "data.validation="], "data.validation: give the path"),
        (["--set", "data.max_ops=1"], "max_ops is 1, but the smallest graph"),
        (["--out", "there/run.toml"], "there/run.toml"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, said, capsys):
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    assert said in err


def test_no_file_and_no_folder(capsys):
    assert main(["train", "absent.toml", "--out", "run"]) == 2
    assert "cannot be read as TOML" in capsys.readouterr().err
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["train", "there/run.toml"])
    err = capsys.readouterr().err
    assert "--out" in err
    assert err.count("\n") == 1


def test_an_empty_folder_name_is_refused(capsys):
    before = sorted(pathlib.Path().iterdir())
    with pytest.raises(SystemExit, match=r"^2$"):
        run("--out", "")
    err = capsys.readouterr().err
    assert "argument --out: is empty; give a folder" in err
    assert err.count("\n") == 1
    assert sorted(pathlib.Path().iterdir()) == before


def test_help_is_quick_to_load():
    code = "import sys, regal_jax.cli; print({'jax', 'flax', 'orbax', 'tqdm'} & sys.modules.keys())"
    root = str(pathlib.Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.stdout == "set()\n"
