"""Solvers that workers of an engine import: they write down what they plan, and some end their process."""

import dataclasses
import os
import signal
import time
from typing import ClassVar

from regal_jax.heuristics import HEURISTICS
from regal_jax.solvers import Constructive


@dataclasses.dataclass(frozen=True)
class Logged(Constructive):
    """List scheduling that adds a line ``NAME PID`` to a file for each graph.

    Attributes:
      log: The file.
      poison: Name of a graph that kills the process.
      broken: Name of a graph that raises an error.
      seconds: Time that each graph takes.
    """

    name: ClassVar[str] = "logged"
    log: str = ""
    poison: str = ""
    broken: str = ""
    seconds: float = 0.0

    def construct(self, instance):
        with open(self.log, "a") as file:
            file.write(f"{instance.graph.name} {os.getpid()}\n")
        if instance.graph.name == self.poison:
            os.kill(os.getpid(), signal.SIGKILL)
        if instance.graph.name == self.broken:
            raise ZeroDivisionError("of the test")
        time.sleep(self.seconds)
        return HEURISTICS["critical-path"](instance.graph, instance.cluster, instance.objective)
