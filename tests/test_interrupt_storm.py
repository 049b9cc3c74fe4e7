"""Ctrl-C at random moments: a living process, and the best plan so far or a clean `KeyboardInterrupt`."""

import json
import pathlib
import queue
import random
import subprocess
import sys
import time

import pytest

STORM = pathlib.Path(__file__).with_name("interrupt_storm.py")
FAST = ("critical-path", "peak-balance", "brkga", "list-search", "from-jax", "features", "load", "contract")
CASES = (*FAST, "partition-dfs", "auto", "guided", "annealing", "peak-search", "contracted", "many", "cp-sat")
CELL = """
import interrupt_storm
call, check = interrupt_storm.cases()[{name!r}]()
print(check(call()))
"""


def storm(*arguments, seconds):
    pytest.importorskip("numba")
    command = [sys.executable, "-X", "faulthandler", str(STORM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", FAST)
def test_some_interrupts(name):
    found = storm(name, 25, 0, seconds=120)
    counts = found["counts"]
    assert counts.get("interrupted", 0) + counts.get("best so far", 0) > 3
    # After the last signal no more is done than before the next check, however busy the machine.
    assert found["slowest"] < 20


@pytest.mark.parametrize("name", ["critical-path", "brkga"])
def test_some_interrupts_of_the_main_thread_while_another_one_works(name):
    found = storm(name, 25, 0, "beside", seconds=120)
    assert sum(found["calls"].values()) >= 3
    assert "best so far" not in found["calls"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_interrupts(name):
    pytest.importorskip("ortools" if name == "cp-sat" else "numba")
    storm(name, 1000, 1, seconds=3600)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("cold", 200), ("evaluate", 1000)])
def test_interrupts_of_what_compiles_and_of_an_evaluation(name, count):
    storm(name, count, 2, seconds=7200)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["critical-path", "brkga", "auto", "from-jax"])
def test_a_thousand_interrupts_of_the_main_thread_while_another_one_works(name):
    storm(name, 1000, 3, "beside", seconds=3600)


ENDS = {"ok", "KeyboardInterrupt", "aborted", "nothing"}
"""Of a cell. A kernel aborts cells that wait at an interrupt, and may not answer one that ends then."""


def reply_of(client, asked, seconds):
    """How the cell ended; ``"nothing"`` if the kernel does not say."""
    try:
        reply = client.get_shell_msg(timeout=seconds)
        while reply["parent_header"].get("msg_id") != asked:
            reply = client.get_shell_msg(timeout=seconds)
    except queue.Empty:
        return "nothing"
    said = reply["content"]
    return said.get("ename", said["status"])


def kernel_storm(name, count, seed):
    """Interrupts of a notebook's kernel, as its user sends them; what came of the cells."""
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(extra_arguments=[], cwd=str(STORM.parent))
    chance, counts = random.Random(seed), {}
    try:
        for cell in (CELL.format(name=name), "check(call())"):
            reply = client.execute_interactive(cell, timeout=300, output_hook=lambda _: None)
            assert reply["content"]["status"] == "ok", reply["content"]
        began = time.perf_counter()
        client.execute_interactive("check(call())", timeout=300)
        longest = time.perf_counter() - began
        for _ in range(count):
            asked = client.execute("check(call())", silent=False)
            for _ in range(chance.randint(1, 2)):
                time.sleep(chance.random() * longest)
                kernel.interrupt_kernel()
            what = reply_of(client, asked, 5 + 10 * longest)
            if what == "nothing":
                # The interrupt met the kernel's own loop, before or after the cell: the next cell has to run.
                again = client.execute_interactive("check(call())", timeout=300)
                assert again["content"]["status"] == "ok"
            counts[what] = counts.get(what, 0) + 1
            assert kernel.is_alive()
        reply = client.execute_interactive("check(call())", timeout=300)
        assert reply["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    return counts


def test_some_interrupts_of_a_notebook_kernel():
    pytest.importorskip("numba")
    counts = kernel_storm("critical-path", 15, 0)
    assert set(counts) <= ENDS
    assert counts["KeyboardInterrupt"] > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["critical-path", "brkga", "auto", "from-jax"])
def test_a_thousand_interrupts_of_a_notebook_kernel(name):
    pytest.importorskip("numba")
    assert set(kernel_storm(name, 1000, 1)) <= ENDS
