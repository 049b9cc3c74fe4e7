"""Searches of many shapes in one process; writes regular lines of JSON with its use of resources.

Arguments: number of graphs; size of the largest; number of graphs per report.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np

from regal_jax import Cluster, optimize, optimize_many
from regal_jax.datasets import generate

FAMILIES = ("erdos-renyi", "layered", "chain", "fork-join")
METHODS = ("brkga", "annealing", "local-search", "auto")
OBJECTIVES = ("makespan", "peak-memory")


def report(done, began):
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    regions = pathlib.Path("/proc/self/maps").read_bytes().count(b"\n")
    used = os.times()
    line = {"graphs": done, "regions": regions, "mib": pages * os.sysconf("SC_PAGE_SIZE") >> 20}
    line |= {"seconds": round(time.monotonic() - began, 1), "cpu": round(used.user + used.system, 1)}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def cases(count, largest):
    rng = np.random.default_rng(0)
    for i in range(count):
        ops = int(10 ** rng.uniform(1, np.log10(largest)))
        graph = generate(FAMILIES[i % len(FAMILIES)], ops, i)
        memory = float(graph.tensor_bytes.sum()) if rng.random() < 0.3 else float("inf")
        devices, transfer = int(rng.integers(1, 17)), ("blocking", "free")[int(rng.random() < 0.3)]
        yield graph, Cluster.uniform(devices, memory, transfer=transfer)


def main(count, largest, every):
    began, pairs = time.monotonic(), []
    report(0, began)
    for i, pair in enumerate(cases(count, largest)):
        objective, method = OBJECTIVES[i // 64 % 2], METHODS[i // 32 % 4]
        options = {"objective": objective, "method": method, "evaluations": 200, "warm_start": False}
        if i % 32 < 4:
            optimize(*pair, **options)
        else:
            pairs.append(pair)
        if i % 32 == 31:
            plans = optimize_many(*map(list, zip(*pairs, strict=True)), **options, progress=False)
            assert len(plans) == len(pairs)
            pairs = []
        if (i + 1) % every == 0:
            report(i + 1, began)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
