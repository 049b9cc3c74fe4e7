"""Calls interrupted at random moments, in a separate process.

Its arguments are ``CASES COUNT SEED SECONDS``, and ``beside`` for calls off the main thread. Several cases,
separated by commas, run one after another.

Another process sends the signals, one or two per call. A call ends with its result, which is checked, or with
a clean `KeyboardInterrupt`. This goes on until ``COUNT`` calls were interrupted while they ran, for
``SECONDS`` at most. The outcome of a case is printed as a line of JSON, unless the process has died.
"""

import contextlib
import importlib
import json
import mmap
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque

HELPER = """
import mmap, os, sys, time
with open(sys.argv[1], "r+b") as file:
    sent = mmap.mmap(file.fileno(), 4)
for line in sys.stdin:
    for pause in map(float, line.split()):
        time.sleep(pause)
        os.kill(os.getppid(), 2)
    sent[:] = (int.from_bytes(sent[:], "little") + 1).to_bytes(4, "little")
"""
CLEAN = ("interrupts.py", "contextlib.py", "signal.py", "enum.py", "threading.py", "interrupt_storm.py")
"""Where a `KeyboardInterrupt` may have been raised: at a check, or before and after the call."""
MIDDLE = ("interrupted", "best so far", "unfinished")
"""Outcomes of a call that was interrupted while it ran."""


class Length:
    """An estimate of the seconds of a call, which adapts to the load of the machine."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.last = deque(maxlen=5)

    def took(self, seconds, *, whole):
        """Records the end of a call. One interrupted after its expected end may be half of a whole one."""
        if whole:
            self.last.append(seconds)
        elif seconds > self.expected:
            self.last.append(2 * seconds)

    @property
    def expected(self):
        return statistics.median(self.last) if self.last else 0.0

    def pauses(self):
        """Pauses before the signals: one in the call, every fourth time perhaps after it; often a second."""
        longest = self.expected * self.random.choice((1, 1, 1, 2))
        pauses = [self.random.random() * longest]
        if self.random.random() < 1 / 3:
            pauses.append(self.random.random() * longest / 4)
        return pauses


class Storm:
    """Sends signals to this process while a function runs, and counts how that ends."""

    def __init__(self):
        self.counts = Counter()
        self.slowest = 0.0
        self.started = 0
        # A pipe will not do, since an interrupt could lose bytes that were just read.
        with tempfile.NamedTemporaryFile() as file:
            file.write(bytes(4))
            file.flush()
            self.sent = mmap.mmap(file.fileno(), 4)
            self.helper = subprocess.Popen(
                [sys.executable, "-c", HELPER, file.name],
                stdin=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            self.start([0.0])
            self.arrived()

    def start(self, pauses):
        """Sends a signal after each of the pauses, in seconds."""
        self.started += 1
        print(*pauses, file=self.helper.stdin, flush=True)

    def arrived(self):
        """Waits until all signals of `start` have been sent and received."""
        while True:
            try:
                while int.from_bytes(self.sent[:], "little") < self.started:
                    time.sleep(0.0002)
                time.sleep(0.001)
                return
            except KeyboardInterrupt:
                self.counts["after"] += 1

    def one(self, call, check, length):
        pauses = length.pauses()
        began = time.perf_counter()
        self.start(pauses)
        try:
            result = call()
        except KeyboardInterrupt as error:
            # Before and after the library's own work, Python's handler raises in this file.
            what = "outside" if raised_in(error).endswith("interrupt_storm.py") else "interrupted"
        else:
            what = None
        took = time.perf_counter() - began
        what = what or self.checked(result, check)
        length.took(took, whole=what not in (*MIDDLE, "outside"))
        self.counts[what] += 1
        self.slowest = max(self.slowest, took - sum(pauses))

    def checked(self, result, check):
        """The outcome of the check of the result, which is repeated if a signal interrupts it."""
        while True:
            try:
                return check(result)
            except KeyboardInterrupt:
                self.counts["after"] += 1

    @property
    def middle(self):
        """Calls that were interrupted while they ran."""
        return sum(self.counts[what] for what in MIDDLE)


def raised_in(error):
    """The file in which an interrupt was raised; it must be one in which interrupts are safe."""
    caller, where = None, error.__traceback__
    while where.tb_next is not None:
        if where.tb_frame.f_code.co_name == "make_cold":
            return __file__  # No work of the library.
        caller, where = where.tb_frame.f_code.co_filename, where.tb_next
    code = where.tb_frame.f_code
    if caller == __file__:
        return caller  # Between two lines of the function itself, before or after the work that it guards.
    assert code.co_filename.endswith(CLEAN), f"raised in {code.co_filename}, line {where.tb_lineno}"
    return code.co_filename


def plan_of(graph):
    def check(plan):
        plan.verify(graph)
        return "best so far" if plan.provenance.get("stopped") == "interrupted" else "plan"

    return check


def cases():
    """Name -> a function that makes ``(call, check)``; the first run of a call may take long."""
    from regal_jax import Cluster, contract, from_jax, load_graph, optimize, optimize_many, save_graph
    from regal_jax.datasets import generate
    from regal_jax.heuristics import run_heuristic

    two = Cluster.uniform(2)
    graph = generate("erdos-renyi", 400, seed=0)
    small = generate("layered", 60, seed=0)

    def heuristic(name, *rest):
        return lambda: run_heuristic(name, graph, two, *rest), plan_of(graph)

    def make_cold():
        from regal_jax.programs import clear

        clear()
        importlib.import_module("jax").clear_caches()

    def searched(cold=False, **options):
        if cold:
            os.environ["REGAL_JAX_CACHE"] = "off"

        def call():
            if cold:
                make_cold()
            return optimize(small, two, **{"evaluations": 2000, **options})

        return call, plan_of(small)

    def many():
        graphs = [generate("layered", 60, seed=seed) for seed in range(3)]

        def check(plans):
            for plan, each in zip(plans, graphs, strict=True):
                plan.verify(each)
            return "plans"

        return lambda: optimize_many(graphs, two, evaluations=1000, progress=False, batch_size=1), check

    def traced():
        import jax
        import jax.numpy as jnp

        def loss(weights, x):
            for w in weights:
                x = jax.nn.softmax(jax.nn.gelu(x @ w)) + jnp.sin(x)
            return x.mean()

        shape = jax.ShapeDtypeStruct((32, 32), jnp.float32)
        whole = []

        def check(made):
            whole.append(made.content_hash)
            assert len(set(whole)) == 1
            return "graph"

        gradient = jax.grad(loss)  # Not in the call: JAX's own functions are not guarded.
        return lambda: from_jax(gradient, [shape] * 12, shape), check

    def features():
        from regal_jax.policies import PolicyConfig, make_inputs

        # Made once: an interrupt of its checks is clean, too, but not in one of the files of `CLEAN`.
        config = PolicyConfig()
        return lambda: make_inputs([graph], two, None, config), lambda made: "features"

    def loaded():
        folder = tempfile.mkdtemp()
        save_graph(graph, f"{folder}/graph.json")

        def check(made):
            assert made.content_hash == graph.content_hash
            return "graph"

        return lambda: load_graph(f"{folder}/graph.json"), check

    def contracted():
        def check(made):
            made.expand(run_heuristic("bfs", made.graph, two)).verify(graph)
            return "contraction"

        return lambda: contract(graph), check

    def evaluated():
        from regal_jax.experiments import EvaluationConfig, run_evaluation

        folder, out = tempfile.mkdtemp(), tempfile.mkdtemp()
        for seed in range(4):
            save_graph(generate("layered", 60, seed=seed), f"{folder}/{seed}.json")
        methods = ("brkga", "critical-path", "list-search", "random-search")
        config = EvaluationConfig(folder, methods=methods, evaluations=500, limits=(), warm_up=False)
        runs = iter(range(10**9))

        def call():
            return run_evaluation(config, f"{out}/{next(runs)}")

        return call, lambda outcome: "finished" if outcome.finished else "unfinished"

    def solved():
        from regal_jax.heuristics.exact import cp_sat

        free = Cluster.uniform(2, "inf", "free")

        def call():
            began = time.perf_counter()
            return cp_sat(small, free, time_limit=0.5), time.perf_counter() - began

        def check(made):
            plan, took = made
            plan.verify(small)
            # Before its time limit, the solver stops only at an optimum or at an interrupt.
            early = took < 0.5 and plan.provenance["status"] == "feasible"
            return "best so far" if early else plan.provenance["status"]

        return call, check

    return {
        "critical-path": lambda: heuristic("critical-path"),
        "peak-balance": lambda: heuristic("peak-balance", "peak-memory"),
        "partition-dfs": lambda: heuristic("partition-dfs"),
        "brkga": searched,
        "auto": lambda: searched(method="auto"),
        "guided": lambda: searched(policy="default"),
        "annealing": lambda: searched(method="annealing"),
        "list-search": lambda: searched(method="list-search"),
        "peak-search": lambda: searched(method="peak-search", objective="peak-memory"),
        "contracted": lambda: searched(contract=True),
        "cold": lambda: searched(cold=True, evaluations=200),
        "many": many,
        "from-jax": traced,
        "features": features,
        "load": loaded,
        "contract": contracted,
        "evaluate": evaluated,
        "cp-sat": solved,
    }


def storm(name, count, seed, seconds):
    """Runs calls until ``count`` were interrupted while they ran, and returns all outcomes."""
    call, check = cases()[name]()
    length = Length(seed)
    check(call())
    began = time.perf_counter()
    check(call())
    length.took(time.perf_counter() - began, whole=True)
    made = Storm()
    began = time.perf_counter()
    while made.middle < count:
        # A signal may come before the call, or after it while the next line waits for the sender.
        try:
            try:
                made.one(call, check, length)
                made.arrived()
            except KeyboardInterrupt:
                made.counts["outside"] += 1
                made.arrived()
        except KeyboardInterrupt:
            made.counts["outside"] += 1
            made.arrived()
        if time.perf_counter() - began > seconds and made.middle < count:
            sys.exit(
                f"{name}: {made.middle} of {count} calls were interrupted while they ran within {seconds} s: "
                f"{dict(made.counts)}; a call takes {length.expected:.3g} s"
            )
    check(call())
    return {"counts": dict(made.counts), "slowest": made.slowest, "call": length.expected}


def storm_beside(name, count, seed, seconds):
    """Runs the calls in a separate thread, which signals to the main thread do not interrupt."""
    call, check = cases()[name]()
    check(call())
    made, done, failed = Storm(), [], []
    chance, began = random.Random(seed), time.perf_counter()

    def work():
        try:
            while len(done) < 3 or made.counts["after"] < count:
                done.append(check(call()))
                assert time.perf_counter() - began < seconds, (
                    f"{len(done)} calls, {made.counts} in {seconds} s"
                )
        except BaseException as error:
            failed.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            made.start([0.02 * chance.random()])
            made.arrived()
    assert not failed, failed
    return {"counts": dict(made.counts), "calls": Counter(done)}


if __name__ == "__main__":
    which, number, first, longest, *beside = sys.argv[1:]
    run = storm_beside if beside else storm
    for one in which.split(","):
        sys.stdout.write(json.dumps(run(one, int(number), int(first), float(longest))) + "\n")
        sys.stdout.flush()
    os._exit(0)
