"""Ctrl-C at random moments: a living process, and the best plan so far or a clean `KeyboardInterrupt`."""

import json
import pathlib
import queue
import subprocess
import sys
import time
from collections import Counter

import pytest
from interrupt_storm import MIDDLE, Length

STORM = pathlib.Path(__file__).with_name("interrupt_storm.py")
FAST = ("critical-path", "peak-balance", "brkga", "list-search", "from-jax", "features", "load", "contract")
CASES = (*FAST, "partition-dfs", "auto", "guided", "annealing", "peak-search", "contracted", "many", "cp-sat")
FIRST = """
import faulthandler
import signal
import interrupt_storm
call, check = interrupt_storm.cases()[{name!r}]()
get_ipython().run_line_magic("xmode", "Plain")
kernel = get_ipython().kernel
kernel.pre_handler_hook = kernel.post_handler_hook = lambda: None
stacks = open({stacks!r}, "w")

def interrupted():
    faulthandler.dump_traceback_later({patience}, file=stacks)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return check(call())
    finally:
        while True:
            try:
                while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)
                break
            except KeyboardInterrupt:
                pass
        faulthandler.cancel_dump_traceback_later()
"""
"""The first cell. Interrupts reach the function only, since they harm the kernel's own code.

A traceback with context takes longer than many a call.
"""


def storm(names, count, seed, *beside, seconds):
    """The outcome of each of ``names``, in one process."""
    pytest.importorskip("numba")
    arguments = map(str, (",".join(names), count, seed, seconds, *beside))
    command = [sys.executable, "-X", "faulthandler", str(STORM), *arguments]
    # The limit is for processes that hang. It allows for compilation at the start.
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds * len(names) + 300)
    found = dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=False))
    assert done.returncode == 0, f"{done.returncode} after {[*found]}: {done.stderr[-2000:]}"
    assert found.keys() == set(names)
    return found


@pytest.fixture(scope="module")
def some():
    """All fast cases in one process, because loading JAX and Numba takes longer than most cases."""
    return storm(FAST, 6, 0, seconds=300)


# By default, a notebook kernel is interrupted below, and test_interrupts.py has the moments.
@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_some_interrupts(name, some):
    found = some[name]
    assert sum(found["counts"].get(what, 0) for what in MIDDLE) == 6
    # After a signal, work continues only to the next check. The limit holds on a busy machine, too.
    assert found["slowest"] < 20


@pytest.mark.slow
def test_some_interrupts_of_the_main_thread_while_another_one_works():
    for found in storm(("critical-path", "brkga"), 10, 0, "beside", seconds=300).values():
        assert sum(found["calls"].values()) >= 3
        assert "best so far" not in found["calls"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_thousand_interrupts(name):
    pytest.importorskip("ortools" if name == "cp-sat" else "numba")
    storm((name,), 1000, 1, seconds=3600)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "count"), [("cold", 200), ("evaluate", 1000)])
def test_interrupts_of_what_compiles_and_of_an_evaluation(name, count):
    storm((name,), count, 2, seconds=7200)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["critical-path", "brkga", "auto", "from-jax"])
def test_a_thousand_interrupts_of_the_main_thread_while_another_one_works(name):
    storm((name,), 1000, 3, "beside", seconds=3600)


@pytest.mark.parametrize("start", [0.1, 10.0])
def test_the_length_of_a_call_follows_the_calls(start):
    length = Length(0)
    length.took(start, whole=True)
    middle = 0
    for _ in range(100):
        signal = length.pauses()[0]
        middle += signal < 1
        length.took(min(signal, 1), whole=signal > 1)
    assert middle > 40
    assert 0.5 < length.expected < 1.5


def end_of(client, asked, seconds):
    """How a cell ended and the seconds that it took.

    The end is ``"ok"``, one of `MIDDLE`, or the name of an error.
    """
    reply = client.get_shell_msg(timeout=seconds)
    while reply["parent_header"].get("msg_id") != asked:
        reply = client.get_shell_msg(timeout=seconds)
    took = (reply["header"]["date"] - reply["parent_header"]["date"]).total_seconds()
    said = reply["content"]
    if said["status"] == "ok":
        value = said["user_expressions"]["what"]["data"]["text/plain"].strip("'")
        return value if value in MIDDLE else "ok", took
    # Python's handler raises in the cell itself before and after the library's work.
    return "interrupted" if "interrupts.py" in "".join(said["traceback"]) else said["ename"], took


def kernel_storm(name, count, seed, seconds, stacks):
    """Interrupts the kernel of a notebook as a user does, and returns the outcomes of the cells.

    If a cell does not end, ``stacks`` is the file in which the threads of the kernel are.
    """
    manager = pytest.importorskip("jupyter_client.manager")
    kernel, client = manager.start_new_kernel(extra_arguments=[], cwd=str(STORM.parent))
    length, counts, sent = Length(seed), Counter(), 0

    def whole(cell):
        began = time.perf_counter()
        reply = client.execute_interactive(cell, timeout=300, output_hook=lambda _: None)
        assert reply["content"]["status"] == "ok", reply["content"]
        return time.perf_counter() - began

    try:
        first = FIRST.format(name=name, stacks=str(stacks), patience=_PATIENCE / 2)
        whole(first + "check(call())")
        length.took(whole("check(call())"), whole=True)
        end = time.perf_counter() + seconds
        while sum(counts[what] for what in MIDDLE) < count:
            assert time.perf_counter() < end, f"within {seconds} s: {counts}"
            cell = "what = interrupted()"
            asked = client.execute(cell, user_expressions={"what": "what"}, stop_on_error=False)
            for pause in length.pauses():
                time.sleep(pause)
                kernel.interrupt_kernel()
                sent += 1
            try:
                what, took = end_of(client, asked, _PATIENCE)
            except queue.Empty:
                pytest.fail(f"no reply after {dict(counts)}; {stacks.read_text() or 'the call has ended'}")
            # Read the output of cells: a full queue would drop the messages that end a cell.
            while client.iopub_channel.msg_ready():
                client.get_iopub_msg(timeout=1)
            length.took(took, whole=what == "ok")
            counts[what] += 1
            assert kernel.is_alive()
        whole("check(call())")
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    sys.stdout.write(f"{name}: {sent} interrupts, {dict(counts)}\n")
    return set(counts)


ENDS = {"ok", *MIDDLE, "KeyboardInterrupt"}
_PATIENCE = 300
"""Seconds after which a cell has ended."""


def test_some_interrupts_of_a_notebook_kernel(tmp_path):
    pytest.importorskip("numba")
    assert kernel_storm("critical-path", 6, 0, 300, tmp_path / "stacks") <= ENDS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["critical-path", "brkga", "auto", "from-jax"])
def test_a_thousand_interrupts_of_a_notebook_kernel(name, tmp_path):
    pytest.importorskip("numba")
    assert kernel_storm(name, 1000, 1, 7200, tmp_path / "stacks") <= ENDS
