"""The loops that most calls need, run on a tiny graph so that another process can compile them."""

import math

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.heuristics.list_scheduling import TIME_RULES, kernel_arguments
from regal_jax.heuristics.list_search import ListSearchRun
from regal_jax.plan.execution import execute
from regal_jax.plan.replay import loop_arguments
from regal_jax.runtime.ahead import Task
from regal_jax.runtime.compiling import run_loops

__all__ = [
    "list_schedule",
    "list_search",
    "list_search_tasks",
    "peak_search",
    "peak_search_tasks",
    "replay",
    "tiny",
]


def list_search_tasks() -> list[Task]:
    """What heuristics and then the search among list schedules need, in the order in which they do."""
    # These imports may load Numba.
    from regal_jax.heuristics.insertion_kernel import insert
    from regal_jax.heuristics.list_climb import climb
    from regal_jax.heuristics.list_kernel import schedule

    return [
        Task(f"{__name__}:list_schedule", (schedule,)),
        Task(f"{__name__}:list_search", (climb, insert), here=True),
        Task(f"{__name__}:replay", (execute,), here=True),
    ]


def peak_search_tasks() -> list[Task]:
    """The same for the search for peak memory on several devices."""
    # These imports may load Numba.
    from regal_jax.heuristics.list_kernel import schedule
    from regal_jax.heuristics.peak_climb import climb
    from regal_jax.heuristics.peaks_kernel import refine

    return [
        Task(f"{__name__}:list_schedule", (schedule,)),
        Task(f"{__name__}:peak_search", (refine, climb), here=True),
        Task(f"{__name__}:replay", (execute,), here=True),
    ]


def list_schedule() -> None:
    """Runs the loops of list scheduling."""
    from regal_jax.heuristics.list_kernel import schedule

    numbers = np.zeros(2), np.zeros(4), *TIME_RULES[0].numbers, math.inf
    run_loops(schedule, *kernel_arguments(*tiny()), *numbers)


def list_search() -> None:
    """Compiles the other loops of the search among list schedules."""
    ListSearchRun(*tiny(), 0).compile_loops()


def peak_search() -> None:
    """Compiles the loops of the search for peak memory."""
    # Its import may load Numba.
    from regal_jax.heuristics.peak_search import PeakSearchRun

    PeakSearchRun(*tiny(), 0).compile_loops()


def replay() -> None:
    """Runs the loop of the exact replay."""
    run_loops(execute, *loop_arguments(*tiny(), np.array([0, 0]), np.array([0, 1])))


def tiny() -> tuple[ComputationGraph, Cluster]:
    """Two ops and two devices."""
    builder = GraphBuilder("tiny")
    builder.add_op("one", runtime=1.0, outputs=[1])
    builder.add_op("two", runtime=1.0, inputs=["one"])
    return builder.build(), Cluster.uniform(2)
