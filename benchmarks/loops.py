"""Processor seconds that Numba takes to compile the loops of the host in a new process without caches."""

import dataclasses
import json
import sys
import tempfile
import time
from typing import Any, Final

from benchmarks.cases import GraphCase
from benchmarks.environment import python
from benchmarks.searches import search
from benchmarks.timing import Series, Skipped
from regal_jax.runtime.ahead import AHEAD
from regal_jax.runtime.compiling import usable

__all__ = ["child", "loop_times"]

_LEAST: Final = 0.05
"""Processor seconds below which a function is not listed on its own, but is part of ``all``."""


def loop_times(case: GraphCase, repeats: int) -> dict[str, Series]:
    """Series for each function that a search compiles, with all that it calls, and for ``all`` of them.

    Args:
      case: Case of the search.
      repeats: Number of repeats, at most three, each a new process.

    Raises:
      Skipped: Numba is not in use.
    """
    if not usable():
        raise Skipped("Numba is not in use")
    rounds = []
    for _ in range(min(repeats, 3)):
        with tempfile.TemporaryDirectory() as folder:
            caches = {"NUMBA_CACHE_DIR": folder, "REGAL_JAX_CACHE": "off", AHEAD: "off"}
            rounds.append(
                json.loads(python("-m", "benchmarks.loops", json.dumps(dataclasses.asdict(case)), **caches))
            )
    names = [name for name in rounds[0] if all(each.get(name, 0.0) >= _LEAST for each in rounds)]
    series = {name: Series(tuple(each[name] for each in rounds)) for name in names}
    return series | {"all": Series(tuple(sum(each.values()) for each in rounds))}


def child(case: dict[str, Any]) -> dict[str, float]:
    """Searches once.

    Args:
      case: The fields of a `GraphCase`.

    Returns:
      Function -> processor seconds of its compilations, with those of the functions that it calls.
    """
    from numba.core import event

    found: dict[str, float] = {}

    class Clock(event.Listener):
        """Adds up the outermost compilations."""

        began, depth = 0.0, 0

        def on_start(self, event: Any) -> None:
            del event
            if not self.depth:
                self.began = time.process_time()
            self.depth += 1

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if not self.depth:
                name = event.data["dispatcher"].py_func.__name__.strip("_")
                found[name] = found.get(name, 0.0) + time.process_time() - self.began

    with event.install_listener("numba:compile", Clock()):
        search(GraphCase(**case)).run()
    return found


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
