"""A source of tiny graphs and of every way to fail, for the tests of the corpus engine."""

import os
import sys
import time
import warnings

from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets import generate

_MODELS = {
    # Name: family, graph.
    **{f"chain{n}": ("chain", ("chain", n, 0)) for n in (60, 70, 80, 90)},
    **{f"random{s}": ("random", ("erdos-renyi", 60, s)) for s in range(6)},
    **{f"layered{s}": ("layered", ("layered", 60, s)) for s in range(4)},
    **{f"fork{n}": ("fork", ("fork-join", n, 0)) for n in (60, 64)},
    # The same topology as chain60 under other names, so the families must share a split.
    "twin": ("twin", ("chain", 60, 1)),
    "tiny": ("chain", ("chain", 5, 0)),
}
_FAILURES = ("raises", "exits", "dies", "hangs", "greedy")


def specs():
    models = [
        TraceSpec("fake", name, family, "forward", f"make({name!r})") for name, (family, _) in _MODELS.items()
    ]
    models += [TraceSpec("fake", "chain60", "chain", "gradient", "make('chain60')")]
    return models + [TraceSpec("fake", name, "broken", "forward", f"{name}()") for name in _FAILURES]


def trace(spec, profile):
    sys.stdout.write("noise on standard output\n")
    warnings.warn("noise", stacklevel=1)
    time.sleep(float(os.environ.get("FAKE_SOURCE_SECONDS", "0")))
    if spec.model == "raises":
        raise RuntimeError("two\nlines")
    if spec.model == "exits":
        raise SystemExit(3)
    if spec.model == "dies":
        os._exit(7)
    if spec.model == "hangs":
        time.sleep(1000)
    if spec.model == "greedy":
        # More memory than the worker's limit, but less than the machine has, since the check may come late.
        hoard = [bytearray(os.urandom(1) * 2**24) for _ in range(80)]
        time.sleep(1000 + len(hoard))
    return generate(_MODELS[spec.model][1][0], *_MODELS[spec.model][1][1:])
