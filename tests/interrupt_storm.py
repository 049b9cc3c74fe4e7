"""Calls interrupted at random moments, in a process of their own: ``interrupt_storm.py CASE COUNT SEED``.

Another process sends the signals, one or two a call. A call ends with its result, which is checked, or with
a clean `KeyboardInterrupt`. What came of them all is printed as JSON; a process that dies prints nothing.
"""

import contextlib
import importlib
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter

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
CLEAN = ("interrupts.py", "contextlib.py", "signal.py", "enum.py", "interrupt_storm.py")
"""Where a `KeyboardInterrupt` may have been raised: at a check, or before and after the call."""


class Storm:
    """Sends signals to this process while a function runs, and counts how that ends."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.counts = Counter()
        self.slowest = 0.0
        self.started = 0
        # Not a pipe: an interrupt could lose what was just read.
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
            self.start(0.0)
            self.arrived()

    def start(self, longest):
        """One signal within ``longest`` seconds or so, and every third time another one soon after."""
        longest *= self.random.choice((1, 1, 3))  # The machine may have become busier.
        pauses = [self.random.random() * longest]
        if self.random.random() < 1 / 3:
            pauses.append(self.random.random() * longest / 4)
        self.started += 1
        print(*pauses, file=self.helper.stdin, flush=True)
        return sum(pauses)

    def arrived(self):
        """All signals of `start` have been sent, and come in here at the latest."""
        while True:
            try:
                while int.from_bytes(self.sent[:], "little") < self.started:
                    time.sleep(0.0002)
                time.sleep(0.001)
                return
            except KeyboardInterrupt:
                self.counts["after"] += 1

    def one(self, call, check, longest):
        began = time.perf_counter()
        last = self.start(longest)
        try:
            result = call()
            what = check(result)
        except KeyboardInterrupt as error:
            what = "interrupted"
            where = error.__traceback__
            while where.tb_next is not None:
                where = where.tb_next
            file = where.tb_frame.f_code.co_filename
            assert file.endswith(CLEAN), f"raised in {file}, line {where.tb_lineno}"
        self.counts[what] += 1
        self.slowest = max(self.slowest, time.perf_counter() - began - last)


def plan_of(graph):
    def check(plan):
        plan.verify(graph)
        return "best so far" if plan.provenance.get("stopped") == "interrupted" else "plan"

    return check


def cases():
    """Name -> a function that makes ``(call, check)``, of which the first run may take long."""
    from regal_jax import Cluster, contract, from_jax, load_graph, optimize, optimize_many, save_graph
    from regal_jax.datasets import generate
    from regal_jax.heuristics import run_heuristic

    two = Cluster.uniform(2)
    graph = generate("erdos-renyi", 400, seed=0)
    small = generate("layered", 60, seed=0)

    def heuristic(name, *rest):
        return lambda: run_heuristic(name, graph, two, *rest), plan_of(graph)

    def searched(cold=False, **options):
        def call():
            if cold:
                importlib.import_module("jax").clear_caches()
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

        return lambda: from_jax(jax.grad(loss), [shape] * 12, shape), check

    def features():
        from regal_jax.policies import FeatureConfig, make_features

        config = FeatureConfig(features="scheduled")
        return lambda: make_features([graph], two, None, config), lambda made: "features"

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
        from regal_jax.evaluation import EvaluationConfig, run_evaluation

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
        return lambda: cp_sat(small, free, time_limit=0.5), lambda plan: plan.provenance["status"]

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


def storm(name, count, seed):
    """``count`` interrupted calls; what came of them."""
    call, check = cases()[name]()
    for _ in range(2):
        began = time.perf_counter()
        check(call())
        longest = 1.1 * (time.perf_counter() - began)
    made = Storm(seed)
    while sum(made.counts.values()) - made.counts["after"] < count:
        # Signals may come early or late: before the call, or between it and what waits for them.
        try:
            made.one(call, check, longest)
        except KeyboardInterrupt:
            made.counts["after"] += 1
        made.arrived()
    check(call())
    return {"counts": dict(made.counts), "slowest": made.slowest, "call": longest}


def storm_beside(name, count, seed):
    """The calls in a thread of their own, while the main thread gets the signals: nothing happens to them."""
    call, check = cases()[name]()
    check(call())
    made, done, failed = Storm(seed), [], []

    def work():
        try:
            while len(done) < 3 or made.counts["after"] < count:
                done.append(check(call()))
        except BaseException as error:
            failed.append(repr(error))

    thread = threading.Thread(target=work)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(KeyboardInterrupt):
            made.start(0.02)
            made.arrived()
    assert not failed, failed
    return {"counts": dict(made.counts), "calls": Counter(done)}


if __name__ == "__main__":
    which, number, first, *beside = sys.argv[1:]
    run = storm_beside if beside else storm
    sys.stdout.write(json.dumps(run(which, int(number), int(first))) + "\n")
    sys.stdout.flush()
    os._exit(0)
