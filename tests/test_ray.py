"""Batches on a Ray cluster: the same plans, whatever dies; nothing lost, nothing done twice."""

import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import warnings

import pytest
from remote_engine import content, graphs_of, records, told
from remote_solvers import Logged

from regal_jax import Cluster, optimize_many
from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus
from regal_jax.datasets import generate
from regal_jax.engines import Item, Message, RayEngine
from regal_jax.errors import ConfigError, WorkerError
from regal_jax.experiments import EvaluationConfig, run_evaluation, tune
from regal_jax.importers import save_graph
from regal_jax.plan import Plan

ray = pytest.importorskip("ray")
CLUSTER = Cluster.uniform(2)
MEMORY = 80 * 2**20
"""Bytes of an object store; Ray allows no less."""


@contextlib.contextmanager
def machines(*cores, gpus=0):
    """A Ray cluster of several machines, all of them here: a head without cores, and one for each number.

    GPUs are only counted: JAX need not find them.
    """
    from ray.cluster_utils import Cluster as Machines

    # Ray replaces the handlers of this process, for which later tests look.
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Machines start with the environment of this process, and workers with that of their machine.
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
        patch.setenv("RAY_worker_niceness", "0")
        patch.setenv("RAY_TQDM_PATCH_PRINT", "0")  # Otherwise Ray replaces `print` in this process.
        head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
        made = Machines(initialize_head=True, head_node_args=head)
        nodes = [made.add_node(num_cpus=count, num_gpus=gpus, object_store_memory=MEMORY) for count in cores]
        try:
            yield made, nodes
        finally:
            ray.shutdown()
            made.shutdown()
            for number, handler in handlers.items():
                signal.signal(number, handler)


@pytest.fixture(scope="module")
def cluster():
    with machines(1, 1) as (made, _):
        yield made


@pytest.fixture
def engine(cluster):
    with RayEngine(cluster.address) as made:
        yield made


def planned(log):
    """Graph -> number of times that a worker began it."""
    return collections.Counter(line.split()[0] for line in log.read_text().splitlines())


def pids(log):
    return [int(line.split()[1]) for line in log.read_text().splitlines()]


def test_plans_are_those_of_this_process_whatever_dies(engine, tmp_path):
    graphs = graphs_of(24)
    options = {"evaluations": 40, "method": "list-search", "seed": 3, "progress": False}
    here = optimize_many(graphs, CLUSTER, **options)
    there = optimize_many(graphs, CLUSTER, **options, engine=engine)
    assert [told(plan) for plan in there] == [told(plan) for plan in here]

    # The same workers serve the next call. One of them dies in the middle.
    log = tmp_path / "log"
    log.touch()
    seen = []

    def kill(member, plan):
        seen.append(member)
        if len(seen) == 5:
            os.kill(pids(log)[-1], signal.SIGKILL)

    solver = Logged(log=str(log), seconds=0.02)
    plans = optimize_many(graphs, CLUSTER, method=solver, engine=engine, on_plan=kill)
    assert [plan.graph_name for plan in plans] == [graph.name for graph in graphs]
    assert sorted(seen) == list(range(24))
    counts = planned(log)
    assert set(counts) == {graph.name for graph in graphs}
    # Only graphs that the dead worker had not answered were begun again: the one that it was working on, and
    # any whose answers were on their way.
    assert 0 <= sum(counts.values()) - 24 <= 3
    # Processes: two workers, and one that took the place of the dead one.
    assert len(set(pids(log))) in (2, 3)

    # A graph that kills its worker every time is given up; the others have plans.
    log.write_text("")
    poison = Logged(log=str(log), poison=graphs[7].name)
    with pytest.raises(WorkerError, match=f"gave up '{graphs[7].name}' .its worker died") as caught:
        optimize_many(graphs[:12], CLUSTER, method=poison, engine=engine)
    assert [i for i, plan in enumerate(caught.value.plans) if plan is None] == [7]
    assert planned(log)[graphs[7].name] == 3

    # So is one that raises an error that is none of ours.
    log.write_text("")
    broken = Logged(log=str(log), broken=graphs[1].name)
    with pytest.raises(WorkerError, match="ZeroDivisionError: of the test"):
        optimize_many(graphs[:3], CLUSTER, method=broken, engine=engine)
    assert planned(log)[graphs[1].name] == 3


PROGRAM = """
import os, sys
from regal_jax.engines import Item, Message, RayEngine
answers = {}
with RayEngine(sys.argv[1]) as engine:
    items = [Item("a", lambda n=n: Message({"n": n}, [bytes([n])])) for n in range(4)]
    lost = engine.run(
        "remote_echo:echo", Message({"x": 1}), items, lambda i, answer, last: answers.update({i: answer})
    )
assert not lost and sorted(answers) == [0, 1, 2, 3]
assert "jax" not in sys.modules
for n, answer in answers.items():
    assert answer.blobs == [bytes([n])]
    assert answer.head["own"] == {"n": n} and answer.head["common"] == {"x": 1}
    assert answer.head["cores"] == 1 and not answer.head["jax"]
    assert os.getpid() not in (answer.head["pid"], answer.head["parent"])
"""


def test_workers_are_new_processes_with_their_share_of_the_cores(cluster):
    command = [sys.executable, "-c", PROGRAM, cluster.address]
    run = subprocess.run(command, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def environment():
    paths = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_errors_of_a_worker_are_ours(engine):
    item = Item("", Message)
    with pytest.raises(ConfigError, match="a worker does not start: No module named 'nothing'"):
        engine.run("nothing:at_all", Message(), [item], print)
    with pytest.raises(ConfigError, match="fewer cores"):
        RayEngine(engine.address, cores=64).run("a:b", Message(), [item], print)
    with pytest.raises(ConfigError, match="connected to the Ray cluster"):
        RayEngine("127.0.0.1:1").open()


def test_the_command_keeps_plans_and_passes_over_them(cluster, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    graphs = graphs_of(3)
    files = [f"{i}.json" for i in range(3)]
    for graph, file in zip(graphs, files, strict=True):
        save_graph(graph, file)
    command = ["optimize", *files, "--evaluations", "40", "--method", "list-search"]
    assert main([*command, "--engine", "ray"]) == 2
    assert "--engine: name the folder of the plans with --out-dir" in capsys.readouterr().err
    command += ["--out-dir", "plans", "--engine", f"ray:{cluster.address}"]
    assert main(command) == 0
    assert capsys.readouterr().out.count("plan saved to") == 3
    for graph, file in zip(graphs, files, strict=True):
        Plan.load(f"plans/{file[0]}.plan.json").verify(graph)
    kept = sorted(os.listdir("plans/.plans"))
    stamps = [os.stat(f"plans/.plans/{name}").st_mtime_ns for name in kept]
    assert sorted(name.split("-")[0] for name in kept) == sorted(graph.content_hash for graph in graphs)
    assert main(command) == 0
    assert capsys.readouterr().out.count("kept the plan") == 3
    assert [os.stat(f"plans/.plans/{name}").st_mtime_ns for name in kept] == stamps


# Slow ----------------------------------------------------------------------------------------------


def settle(begun, count, lost):
    """Checks that all graphs were begun, and that few were begun again."""
    assert len(begun) == count
    assert sum(begun.values()) - count <= lost


@pytest.mark.slow
def test_a_thousand_graphs_lose_a_worker_a_machine_and_gain_one(tmp_path):
    graphs = [generate("layered", 6 + seed % 9, seed=seed) for seed in range(1000)]
    options = {"evaluations": 60, "method": "list-search", "seed": 1, "progress": False}
    here = optimize_many(graphs, CLUSTER, **options)
    log = tmp_path / "log"
    log.touch()
    with machines(1, 1) as (made, nodes), RayEngine(made.address) as engine:
        there = optimize_many(graphs, CLUSTER, **options, engine=engine, store=tmp_path / "store")
        assert [told(plan) for plan in there] == [told(plan) for plan in here]
        assert len(os.listdir(tmp_path / "store")) == 1000

        seen = []

        def break_things(member, plan):
            seen.append(member)
            if len(seen) == 100:
                os.kill(pids(log)[-1], signal.SIGKILL)
            if len(seen) == 300:
                made.remove_node(nodes[0], allow_graceful=False)
            if len(seen) == 500:
                made.add_node(num_cpus=1, object_store_memory=MEMORY)

        solver = Logged(log=str(log), seconds=0.02)
        plans = optimize_many(graphs, CLUSTER, method=solver, engine=engine, on_plan=break_things)
        assert sorted(seen) == list(range(1000))
        assert [plan.graph_name for plan in plans] == [graph.name for graph in graphs]
        settle(planned(log), 1000, 2 * 3)
        # Two workers, the one after the kill, and the one on the new machine.
        assert len(set(pids(log))) == 4
        assert len(set(pids(log)[-100:])) == 2

        log.write_text("")
        poisoned = Logged(log=str(log), poison=graphs[500].name)
        with pytest.raises(WorkerError, match="999 of 1000 graphs have plans"):
            optimize_many(graphs, CLUSTER, method=poisoned, engine=engine)
        begun = planned(log)
        assert begun.pop(graphs[500].name) == 3
        settle(begun, 999, 3)


DRIVER = """
import sys
from regal_jax import Cluster, optimize_many
from regal_jax.datasets import generate
from remote_solvers import Logged
if __name__ == "__main__":
    address, log, store = sys.argv[1:]
    graphs = [generate("layered", 6 + seed % 9, seed=seed) for seed in range(1000)]
    plans = optimize_many(
        graphs, Cluster.uniform(2), method=Logged(log=log, seconds=0.01), engine=f"ray:{address}", store=store
    )
    assert [plan.graph_name for plan in plans] == [graph.name for graph in graphs]
"""


@pytest.mark.slow
def test_a_process_that_is_killed_continues_where_it_was(tmp_path):
    log, store = tmp_path / "log", tmp_path / "store"
    log.touch()
    with machines(1, 1) as (made, _):
        command = [sys.executable, "-c", DRIVER, made.address, str(log), str(store)]
        for limit in (200, 600):
            driver = subprocess.Popen(command, env=environment())
            while not store.is_dir() or len(os.listdir(store)) < limit:
                assert driver.poll() is None
                time.sleep(0.05)
            driver.kill()
            driver.wait()
        kept = {name: (store / name).stat().st_mtime_ns for name in os.listdir(store)}
        time.sleep(5)  # Ray ends the workers of a process that died.
        begun = planned(log)
        assert subprocess.run(command, env=environment()).returncode == 0
    plans = [name for name in os.listdir(store) if not name.startswith(".")]
    assert len(plans) == 1000
    assert all((store / name).stat().st_mtime_ns == stamp for name, stamp in kept.items() if name[0] != ".")
    # What was on its way when the process died is begun again, and nothing that was kept.
    again = planned(log) - begun
    assert sum(again.values()) == 1000 - sum(not name.startswith(".") for name in kept)
    settle(planned(log), 1000, sum(begun.values()) - len(kept))


@pytest.mark.slow
def test_each_gpu_has_a_worker_with_its_share_of_the_cores():
    seen = {}
    with machines(5, gpus=2) as (made, _), RayEngine(made.address) as engine:
        items = [Item(str(n), Message) for n in range(40)]
        work = "remote_echo:echo"
        slow = Message({"seconds": 0.3})  # Time for both to start.
        engine.run(work, slow, items, lambda i, message, last: seen.setdefault(i, message.head), most=1)
    assert len(seen) == 40
    assert {head["cores"] for head in seen.values()} == {2}
    gpus = {head["pid"]: head["gpu"] for head in seen.values()}
    assert sorted(gpus.values()) == ["0", "1"]


@pytest.mark.slow
def test_evaluations_tuning_and_corpora_run_on_a_cluster(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
    graphs = graphs_of(6)
    pathlib.Path("set").mkdir()
    for i, graph in enumerate(graphs):
        save_graph(graph, f"set/{i}.json")
    config = EvaluationConfig(
        "set", evaluations=40, limits=(), other_seed=-1, methods=("brkga", "critical-path"),
        options={"brkga": {"settings": {"population": 20, "elites": 4, "mutants": 3}}},
    )  # fmt: skip
    grid = {"population": (20,), "elites": (0.2,), "mutants": (0.1,)}
    corpus = {"sources": ["fake"], "only": "fake/[cftrd]*"}
    run_evaluation(config, "here")
    best = tune(graphs, CLUSTER, evaluations=60, grid=grid)
    build_corpus("corpus here", **corpus)
    with machines(1, 1) as (made, _), RayEngine(made.address) as engine:
        assert run_evaluation(config, "there", engine=engine).made == 12
        assert tune(graphs, CLUSTER, evaluations=60, grid=grid, engine=engine) == best
        assert build_corpus("corpus there", **corpus, engine=engine)["complete"]
    assert records("there") == records("here")
    assert content(pathlib.Path("corpus there")) == content(pathlib.Path("corpus here"))


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_with_the_plans_so_far(number, code, tmp_path):
    for i, graph in enumerate(generate("layered", 60 + i % 3, seed=i) for i in range(60)):
        save_graph(graph, tmp_path / f"{i}.json")
    files = [f"{i}.json" for i in range(60)]
    command = [sys.executable, "-m", "regal_jax.cli", "optimize", *files, "--out-dir", "plans", "--engine"]
    command += ["ray", "--evaluations", "3000", "--method", "list-search"]
    options = {"cwd": tmp_path, "env": environment(), "text": True}
    lines = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, **options) as run:
        for line in run.stdout:
            lines += "plan saved to" in line
            if lines == 5:
                # As the terminal does: the processes of Ray are in the group, too.
                (os.killpg if number == signal.SIGINT else os.kill)(run.pid, number)
                lines += 1000
    assert run.returncode == code
    assert lines == 1060
    kept = [name for name in os.listdir(tmp_path / "plans/.plans") if name.endswith(".json")]
    assert 5 <= len(kept) < 60
    # The same command finishes the rest.
    again = subprocess.run(command, capture_output=True, **options)
    assert again.returncode == 0, again.stderr
    assert len([name for name in os.listdir(tmp_path / "plans/.plans") if name.endswith(".json")]) == 60


@pytest.mark.slow
def test_the_benchmark_runs(tmp_path):
    out = tmp_path / "ray.json"
    options = {"graphs": 6, "ops": 12, "evaluations": 60, "rounds": 1, "method": "list-search", "out": out}
    command = [sys.executable, "-m", "benchmarks", "ray"]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    root = pathlib.Path(__file__).parents[1]
    run = subprocess.run(command, cwd=root, env=environment(), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(out.read_text())["throughput"][0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["makespan", "peak-memory"])
def test_searches_in_compiled_programs_are_the_same(objective, cluster):
    graphs = [generate("erdos-renyi", ops, seed=ops) for ops in (10, 14, 40, 11, 44, 12, 1, 2)]
    clusters = [Cluster.uniform(2 + i % 2, transfer="delay:nvlink4") for i in range(len(graphs))]
    options = {"objective": objective, "evaluations": 600, "progress": False, "seed": 11}
    with RayEngine(cluster.address) as engine:
        for method in ("auto", "brkga", "annealing"):
            there = optimize_many(graphs, clusters, method=method, engine=engine, **options)
            here = optimize_many(graphs, clusters, method=method, **options)
            assert [told(plan) for plan in there] == [told(plan) for plan in here]


@pytest.mark.slow
def test_an_engine_without_an_address_starts_a_cluster_of_its_own(cluster, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with RayEngine() as engine:
        engine.open()
        assert ray.get_runtime_context().gcs_address != cluster.address
    assert not ray.is_initialized()
