"""A second process compiles loops, and nothing depends on it."""

import importlib
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from regal_jax import Cluster, optimize
from regal_jax.datasets import generate
from regal_jax.heuristics import ListSearchRun, PeakSearchRun, Work, counting
from regal_jax.heuristics import ahead as samples
from regal_jax.plan.execution import execute
from regal_jax.plan.replay import loop_arguments
from regal_jax.policies import ahead as guided
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.measured import measure
from regal_jax.runtime import ahead, compiling
from regal_jax.runtime.deadline import Deadline
from regal_jax.simulate import host

pytest.importorskip("numba")

MODULE = """
import pathlib, time
import numpy as np
from regal_jax.runtime.compiling import run_loops

def total(x):
    found = 0.0
    for i in range(len(x)):
        found += x[i]
    return found

def make():
    print("not a task")
    run_loops(total, np.zeros(2))

def fail():
    raise ValueError

def wait():
    while True:
        with pathlib.Path(__file__).with_suffix(".beats").open("a") as file:
            file.write(".")
        time.sleep(0.05)
"""


@pytest.fixture
def module(monkeypatch, tmp_path):
    """A module of loops that nothing has compiled, in a process that may start another."""
    monkeypatch.setenv(ahead.AHEAD, "on")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setattr(ahead, "available_cores", lambda: 2)
    monkeypatch.setattr(ahead, "_helper", None)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_totals.py").write_text(MODULE)
    yield importlib.import_module("of_totals")
    if ahead._helper is not None:
        ahead._helper.stop()
    del sys.modules["of_totals"]


def begin(module, *names):
    compiling.compile_ahead([ahead.Task(f"of_totals:{name}", (module.total,)) for name in names])
    return ahead._helper


def hits(module):
    """How often `total` was loaded, and how often it was compiled here, by the first call."""
    assert compiling.loops(module.total)(np.ones(3)) == 3.0
    found = compiling.compiled(module.total).stats
    return sum(found.cache_hits.values()), sum(found.cache_misses.values())


def test_what_the_second_process_compiled_is_loaded(module):
    begin(module, "make")
    assert ahead.is_compiling(module.total)
    # Until then, small work stays in Python.
    assert compiling.run_loops(module.total, np.ones(2), seconds=0.01) == 2.0
    assert not compiling.compiled(module.total).signatures
    assert hits(module) == (1, 0)
    assert not ahead.is_compiling(module.total)
    # A process starts one other process at most.
    begin(module, "wait")
    assert not ahead.is_compiling(module.total)


def test_tasks_for_this_process_run_while_it_waits(module):
    here = [ahead.Task(f"of_totals:{name}", (), here=True) for name in ("fail", "make", "make")]
    compiling.compile_ahead([ahead.Task("of_totals:wait", (module.total,)), *here])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead._helper, "limit", Deadline(0.0))
        compiling.loops(module.total)
    # It was compiled here, and no task is left.
    assert len(compiling.compiled(module.total).signatures) == 1
    assert not ahead._helper.here


def test_a_second_process_that_fails_costs_nothing_else(module, capfd):
    begin(module, "fail")
    assert hits(module) == (0, 1)
    assert capfd.readouterr() == ("", "")


def test_a_second_process_that_is_killed(module):
    helper = begin(module, "wait")
    assert ahead.is_compiling(module.total)
    os.kill(helper._process.pid, signal.SIGKILL)
    assert hits(module) == (0, 1)


def test_a_second_process_that_takes_too_long_is_ended(module, monkeypatch):
    monkeypatch.setattr(ahead, "_PATIENCE", 0.2)
    helper = begin(module, "wait")
    assert hits(module) == (0, 1)
    assert helper._process.poll() is not None


def test_ctrl_c_ends_the_wait(module, monkeypatch):
    begin(module, "wait")

    def pressed():
        raise KeyboardInterrupt

    monkeypatch.setattr(ahead, "check_interrupt", pressed)
    with pytest.raises(KeyboardInterrupt):
        compiling.loops(module.total)


def test_a_fork_does_not_wait_and_ends_nothing(module, monkeypatch):
    helper = begin(module, "wait")
    with monkeypatch.context() as patch:
        patch.setattr(ahead.os, "getpid", lambda: helper.parent + 1)
        assert hits(module) == (0, 1)
        helper.stop()
    assert helper._process.poll() is None


def test_no_second_process(module, monkeypatch, tmp_path):
    for target, name, value in (
        (os, "environ", {**os.environ, ahead.AHEAD: "off"}),
        (ahead, "available_cores", lambda: 1),
        (sys, "frozen", True),
        (sys, "executable", ""),
        (sys, "executable", "/usr/bin/blender"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value, raising=False)
            assert begin(module, "wait") is None
    # No folder for Numba's cache.
    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compiled", lambda function: function)
        assert begin(module, "wait") is None
    # What takes longest is in the cache, and little would be gained.
    assert hits(module) == (0, 1)
    tasks = [ahead.Task("of_totals:wait", (module.total,)), ahead.Task("of_totals:wait", (module.make,))]
    compiling.compile_ahead(tasks)
    compiling.compile_ahead([])
    assert ahead._helper is None


def test_the_second_process_ends_with_the_first(module, tmp_path):
    code = (
        "import time, of_totals; from regal_jax.runtime import ahead; ahead.available_cores = lambda: 2; "
        "ahead.start([ahead.Task('of_totals:wait', (of_totals.total,))]); time.sleep(600)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    first = subprocess.Popen([sys.executable, "-c", code], env=environment)
    beats = tmp_path / "of_totals.beats"
    until = time.monotonic() + 60
    while not beats.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert beats.exists()
    first.kill()
    first.wait()
    before = -1
    while beats.stat().st_size != before and time.monotonic() < until:
        before = beats.stat().st_size
        time.sleep(1)
    assert beats.stat().st_size == before


def test_samples_have_the_types_of_real_graphs():
    from regal_jax.heuristics.insertion_kernel import insert
    from regal_jax.heuristics.list_climb import climb
    from regal_jax.heuristics.list_kernel import schedule
    from regal_jax.heuristics.peak_climb import climb as climb_of_peaks
    from regal_jax.heuristics.peaks_kernel import refine

    assert [task.functions for task in samples.list_search_tasks()] == [
        (schedule,),
        (climb, insert),
        (execute,),
    ]
    peaks = [(schedule,), (refine, climb_of_peaks), (execute,)]
    assert [task.functions for task in samples.peak_search_tasks()] == peaks
    graph, cluster = generate("layered", 30, 0), Cluster.uniform(3, memory="1GiB", transfer="nvlink4")
    samples.list_schedule()
    with counting() as work:
        samples.list_search()
        samples.peak_search()
    # They are no work of the call in which they run.
    assert work == Work()
    for each in (cluster, Cluster.uniform(4, transfer="nvlink4")):
        search = ListSearchRun(graph, each, 0)
        search.run(20)
        assert search.plan() is not None
    for each in (cluster, Cluster.uniform(4, transfer="blocking:latency=5us,bandwidth=300GB/s")):
        search = PeakSearchRun(graph, each, 0)
        search.run(500, goal=1.0)
        assert search.plan() is not None
        assert search.evaluations > 100
    samples.replay()
    ops = graph.topological_order.astype(np.int64)
    compiling.run_loops(execute, *loop_arguments(graph, cluster, np.zeros(30, np.int64), ops))
    guided.measures()
    measured = measure(graph, cluster, Balance.BYTES, (Cut.FINE,))
    assert len(measured.standing) == len(measured.coordinates) // 3 == 2
    guided.numbers()
    tasks = (
        *samples.list_search_tasks(),
        *samples.peak_search_tasks(),
        *guided.tasks(peaks=False, guided=True),
    )
    functions = dict.fromkeys(function for task in tasks for function in task.functions)
    assert [len(compiling.compiled(function).signatures) for function in functions] == [1] * 9


@pytest.mark.parametrize(("peaks", "by_policy"), [(False, True), (True, True), (True, False)])
def test_the_simulator_is_awaited_by_its_name(peaks, by_policy, monkeypatch):
    awaited, made = [], []
    monkeypatch.setattr(host, "await_compiled", awaited.append)
    monkeypatch.setattr(host.jax.ffi, "register_ffi_target", lambda *_, **__: None)
    monkeypatch.setattr(host._registered, "names", set())
    host._register.__wrapped__("simulate", True, peaks)
    tasks = guided.tasks(peaks=peaks, guided=by_policy)
    assert awaited == [other for task in tasks for other in task.others]
    # The other process compiles that variant.
    monkeypatch.setattr("regal_jax.simulate.host_kernel.handler", lambda *variant: made.append(variant))
    tasks[-1].run()
    assert made == [(True, peaks)]


def test_large_calls_compile_ahead(monkeypatch):
    class Asked(Exception):
        pass

    def ask(tasks):
        raise Asked(tasks)

    monkeypatch.setattr("regal_jax.api.many.compile_ahead", ask)
    graph, cluster = generate("layered", 20, 0), Cluster.uniform(2)
    optimize(graph, cluster, method="list-search", evaluations=20, progress=False)
    monkeypatch.setattr("regal_jax.api.many._LARGE", 400)
    for options, tasks in (
        ({}, samples.list_search_tasks()),
        (
            {"method": "auto", "policy": "default"},
            [*samples.list_search_tasks(), *guided.tasks(peaks=False, guided=True)],
        ),
        ({"objective": "peak-memory"}, samples.peak_search_tasks()),
        (
            {"objective": "peak-memory", "policy": "default"},
            [*samples.peak_search_tasks(), *guided.tasks(peaks=True, guided=True)],
        ),
        ({"method": "list-search"}, samples.list_search_tasks()),
        ({"method": "brkga"}, []),
    ):
        with pytest.raises(Asked) as error:
            optimize(graph, cluster, evaluations=20, progress=False, **options)
        assert error.value.args == (tasks,)
