"""Training over several processes, which `jax.distributed` connects by Gloo on this machine's CPUs."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys

import jax
import pytest
import safetensors
from launcher import ROOT, Launcher, free_port, kill_after, steps_made
from learning_cases import GRAPHS, HELD_OUT

from benchmarks.__main__ import main as benchmarks
from regal_jax import Cluster, optimize_many
from regal_jax.cli import main
from regal_jax.cli.train import _config
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.importers import save_graph
from regal_jax.learning import join_processes, processes, train, training_graphs
from regal_jax.learning.gflownet import train_gflownet
from regal_jax.learning.ordering import train_orders

REGAL = """
[task]
evaluations = 10
[data]
train = "sets/train"
validation = "sets/validation"
noisy_copies = 1
[policy]
rounds = 1
width = 4
[search]
population = 5
elites = 1
mutants = 1
[optimizer]
steps = 12
batch = 4
samples = 2
reference_seeds = 2
pools = 1
validate_every = 5
checkpoint_every = 4
"""
ORDERS = """
system = "topoformer"
[data]
ops = [6, 8]
validation_graphs = 17
[model]
layers = 1
width = 8
heads = [1, 0, 0, 1, 0, 0, 1]
eigenvectors = 2
[optimizer]
steps = 12
batch = 4
epoch_graphs = 20
checkpoint_every = 4
"""
SCHEDULES = """
system = "gflownet"
[data]
ops = 6
validation_graphs = 3
[model]
devices = 2
layers = 1
width = 8
head_width = 4
[optimizer]
steps = 12
trajectories = 8
validation_samples = 8
validate_every = 5
checkpoint_every = 4
"""
HEADS = "head_width = 4\nheads = [1, 0, 0, 0, 0, 0, 0]\neigenvectors = 0"
SYSTEMS = {"regal": REGAL, "topoformer": ORDERS, "gflownet": SCHEDULES}
LOST = (
    "another process has ended or cannot be reached",
    "Terminating process because the JAX distributed service",
    "gloo::EnforceNotMet",
)


def settings(folder, system="regal"):
    """A file of settings, beside its sets of graphs."""
    for split, graphs in (("train", GRAPHS), ("validation", HELD_OUT)):
        (folder / "sets" / split).mkdir(parents=True, exist_ok=True)
        for i, graph in enumerate(graphs):
            save_graph(graph, folder / "sets" / split / f"{i}.json")
    toml = folder / f"{system}.toml"
    toml.write_text(SYSTEMS[system])
    return toml


def in_one_process(toml, out, devices):
    """The same run in this process, on some of its devices."""
    config, options = _config(toml, []), {"progress": False, "devices": jax.devices()[:devices]}
    if "topoformer" in toml.name:
        assert train_orders(config, out, **options).finished
    elif "gflownet" in toml.name:
        assert train_gflownet(config, out, **options).finished
    else:
        assert train(config, *training_graphs(config), out, **options).finished


def outcome(out):
    """All that a run leaves behind, without the times of its steps."""
    found = {"weights": (out / "policy.safetensors").read_bytes()}
    for path in (out / "checkpoints").iterdir():
        # The order of the metadata in the file is not fixed.
        with safetensors.safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
            found[path.name] = tensors | file.metadata()
    for path in out.glob("*.jsonl"):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.name] = [
            {name: value for name, value in record.items() if name != "seconds"} for record in records
        ]
        if path.name == "references.jsonl":  # Processes find them in another order.
            found[path.name] = sorted(found[path.name], key=str)
    return found


def texts(record):
    """The entries of a record that are text."""
    return {name: value for name, value in record.items() if isinstance(value, str)}


def numbers(record):
    """The entries of a record that are numbers or have no value."""
    return {name: value for name, value in record.items() if not isinstance(value, str)}


def ended_well(codes, errors, killed):
    """All processes but the one that was killed have ended by themselves, and say why."""
    for i, (code, text) in enumerate(zip(codes, errors, strict=True)):
        if i == killed:
            assert code == -signal.SIGKILL, text
        else:
            assert code in (4, -signal.SIGABRT), text
            assert any(line in text for line in LOST), text


@pytest.mark.parametrize(
    ("system", "processes"),
    # It has the fewest programs to compile. One process with two devices goes on, since it has compiled them.
    [("topoformer", 1), *(pytest.param(name, 2, marks=pytest.mark.slow) for name in SYSTEMS)],
)
def test_two_processes_are_one_with_two_devices_also_when_one_is_killed(tmp_path, system, processes):
    toml = settings(tmp_path, system)
    # Graphs of one size need half of the programs, which all processes trace. The size of a step depends
    # on the seed alone. The slow tests mix sizes, and have heads of several relations and eigenvectors.
    text = SYSTEMS[system].replace("ops = [6, 8]", "ops = [6]")
    text = text.replace("heads = [1, 0, 0, 1, 0, 0, 1]\neigenvectors = 2", HEADS)
    toml.write_text(text)
    # First, so that the two processes find Numba's loops compiled.
    in_one_process(toml, tmp_path / "whole", 2)
    launcher = Launcher(2, toml, tmp_path / "run")
    launcher.round(kill_after(tmp_path / "run", 6, 1))
    ended_well(launcher.codes[0], launcher.errors[0], killed=1)
    if processes == 1:
        in_one_process(toml, tmp_path / "run", 2)
    else:
        assert launcher.round() == [0, 0], launcher.errors[1]
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS)
def test_processes_with_several_devices_are_one_with_all(tmp_path, system):
    toml = settings(tmp_path, system)
    launcher = Launcher(2, toml, tmp_path / "run", devices=2, slurm=True)
    launcher.run()
    assert launcher.codes == [[0, 0]], launcher.errors
    two, one = outcome(tmp_path / "run"), tmp_path / "whole"
    again = Launcher(2, toml, tmp_path / "again", devices=2)
    again.run()
    assert outcome(tmp_path / "again") == two
    in_one_process(toml, one, 4)
    # Gloo sums four gradients in another order than the devices of one process.
    spread, alone = two["metrics.jsonl"], outcome(one)["metrics.jsonl"]
    assert [texts(r) | {"step": r["step"]} for r in spread] == [texts(r) | {"step": r["step"]} for r in alone]
    for a, b in zip(spread[:2], alone[:2], strict=True):
        assert numbers(a) == pytest.approx(numbers(b), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("system", SYSTEMS)
def test_processes_killed_at_random_moments_end_the_same(tmp_path, system, count):
    toml = settings(tmp_path, system)
    whole = Launcher(count, toml, tmp_path / "whole")
    whole.run()
    assert whole.codes == [[0] * count], whole.errors
    draws = random.Random(f"{system} {count}")
    moments = sorted((draws.randrange(12), draws.randrange(count), draws.random()) for _ in range(3))
    out = tmp_path / "run"
    launcher = Launcher(count, toml, out)
    launcher.run(*(kill_after(out, step, which, seed=seed) for step, which, seed in moments))
    assert launcher.codes[-1] == [0] * count, launcher.errors[-1]
    for (_, which, _), codes, errors in zip(moments, launcher.codes[:-1], launcher.errors, strict=False):
        ended_well(codes, errors, which)
    assert outcome(out) == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_a_process_that_hangs_counts_as_lost(tmp_path):
    toml, out = settings(tmp_path), tmp_path / "run"
    launcher = Launcher(2, toml, out, heartbeat=3)

    def stop(processes):
        kill_after(out, 5, 1, number=signal.SIGSTOP)(processes)
        processes[0].wait(timeout=60)
        processes[1].kill()

    launcher.run(stop)
    ended_well(launcher.codes[0], launcher.errors[0], killed=1)
    assert launcher.codes[1] == [0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_a_signal_to_one_process_ends_all_after_the_same_step(tmp_path, which):
    toml, out = settings(tmp_path), tmp_path / "run"
    launcher = Launcher(2, toml, out)
    codes = launcher.round(kill_after(out, 5, which, number=signal.SIGTERM))
    assert codes[which] == 143, launcher.errors
    assert codes[1 - which] == 130
    step = steps_made(out)
    assert 5 <= step < 12
    for text in launcher.errors[0]:
        assert f"regal-jax train: stopped after step {step}; the same command resumes there" in text
    assert (out / "checkpoints" / f"{step}.safetensors").exists()
    assert launcher.round() == [0, 0]
    in_one_process(toml, tmp_path / "whole", 2)
    whole, found = outcome(tmp_path / "whole"), outcome(out)
    assert {name: whole[name] for name in whole if not name[0].isdigit()} == {
        name: found[name] for name in found if not name[0].isdigit()
    }


@pytest.mark.slow
def test_what_is_wrong_in_one_process_ends_all(tmp_path):
    """The folder of another run, which only the first process sees, and processes with other settings."""
    toml, out = settings(tmp_path), tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_text("{}")
    launcher = Launcher(2, toml, out)
    assert launcher.round() == [2, 2]
    assert "holds a run with other config" in launcher.errors[0][0]
    assert "process 0: " in launcher.errors[0][1]
    assert "holds a run with other config" in launcher.errors[0][1]
    (tmp_path / "sets" / "train" / "2.json").unlink()
    launcher = Launcher(3, toml, tmp_path / "other")
    assert launcher.round() == [2, 2, 2]
    assert all("a batch of 4 does not divide among 3" in text for text in launcher.errors[0])


def test_ctrl_c_in_one_process_is_raised_in_all(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    sent = []
    monkeypatch.setattr(processes, "exchanged", lambda value: [sent.append(value), sent[-1]])
    with pytest.raises(KeyboardInterrupt):
        processes.together(interrupted)
    monkeypatch.setattr(processes, "exchanged", lambda value: [value, sent[0]])
    with pytest.raises(KeyboardInterrupt):
        processes.together(lambda: 3)
    monkeypatch.setattr(processes, "exchanged", lambda value: [value, "data: no file"])
    with pytest.raises(ConfigError, match=r"^process 1: data: no file$"):
        processes.together(lambda: 3)


@pytest.mark.parametrize("distributed", [True, False])
def test_an_interrupted_process_does_not_wait_for_the_others(tmp_path, monkeypatch, capsys, distributed):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("regal_jax.cli.train._result", interrupted)
    codes = []
    monkeypatch.setattr("regal_jax.cli.machine.end_among_others", codes.append)
    command = ["train", str(settings(tmp_path)), "--out", str(tmp_path / "run")]
    assert main([*command, "--distributed"] if distributed else command) == 130
    assert codes == [130] * distributed
    assert capsys.readouterr().err == "regal-jax: interrupted\n"


BATCH = """
import json, sys
from regal_jax.learning import join_processes
join_processes(sys.argv[1], 2, int(sys.argv[2]))
import jax
from regal_jax import Cluster, optimize_many
from regal_jax.datasets import generate
graphs = [generate("layered", n, seed=n) for n in (20, 30, 40)]
mine = graphs[jax.process_index() :: jax.process_count()]
plans = optimize_many(mine, Cluster.uniform(2), method="brkga", evaluations=300, progress=False)
print(json.dumps([[plan.makespan, plan.placement.tolist()] for plan in plans]))
"""


@pytest.mark.slow
def test_a_batch_of_graphs_is_divided_among_processes():
    address, environment = f"localhost:{free_port()}", {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BATCH, address, str(i)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for i in range(2)
    ]
    found = [json.loads(process.communicate(timeout=180)[0].splitlines()[-1]) for process in processes]
    graphs = [generate("layered", n, seed=n) for n in (20, 30, 40)]
    plans = optimize_many(graphs, Cluster.uniform(2), method="brkga", evaluations=300, progress=False)
    whole = [[plan.makespan, plan.placement.tolist()] for plan in plans]
    assert found == [whole[::2], whole[1::2]]


@pytest.mark.slow
def test_weak_scaling_is_measured(tmp_path, capsys):
    out = tmp_path / "rows.json"
    sizes = ["--graphs", "2", "--ops", "20", "--evaluations", "20", "--steps", "2"]
    assert benchmarks(["processes", "--count", "1", "2", *sizes, "--out", str(out)]) == 0
    one, two = json.loads(out.read_text())
    assert (one["processes"], two["processes"], one["bytes sent"]) == (1, 2, 0)
    # Half of the gradients and of four graphs, twice.
    assert two["bytes sent"] == 4 * two["weights"] + 4 * two["row bytes"]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_arguments_that_name_no_processes(tmp_path, monkeypatch, capsys):
    for variable in ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(variable, raising=False)
    for arguments, message in (
        ({"index": 2, "count": 2}, "process: is 2 of 2; number the processes from 0 to 1"),
        ({"count": 0}, "processes: is 0; give a whole number from 1"),
        ({"index": -1}, "process: is -1; give a whole number from 0"),
        ({"coordinator": "node0"}, "coordinator: is 'node0'; give HOST:PORT"),
        ({"coordinator": 3}, "coordinator: is 3; give HOST:PORT"),
        ({"coordinator": ":29500"}, "coordinator: is ':29500'; give HOST:PORT"),
        ({"coordinator": "node0:0"}, "coordinator: is 'node0:0'; give HOST:PORT"),
        ({"coordinator": "node0:99999"}, "coordinator: is 'node0:99999'; give HOST:PORT"),
        ({"heartbeat": 0.5}, "heartbeat: is 0.5; give a number of seconds from 1"),
        ({"heartbeat": float("nan")}, "heartbeat: is nan; give a number of seconds from 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            join_processes(**arguments)
    for text, shown in (("many", "'many'"), ("9" * 5000, "'9+ [.]{3} 9+'")):
        monkeypatch.setenv("JAX_NUM_PROCESSES", text)
        with pytest.raises(ConfigError, match=f"JAX_NUM_PROCESSES: is {shown}; give a whole number from 1"):
            join_processes()
    monkeypatch.delenv("JAX_NUM_PROCESSES")
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "garbage")
    with pytest.raises(ConfigError, match="JAX_COORDINATOR_ADDRESS: is 'garbage'; give HOST:PORT"):
        join_processes(count=1, index=0)
    toml = pathlib.Path(settings(tmp_path))
    assert main(["train", str(toml), "--out", str(tmp_path / "run"), "--process", "1"]) == 2
    assert "--process: is for several processes; add --distributed" in capsys.readouterr().err
