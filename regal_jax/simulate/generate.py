"""`generate_schedules`: maps preferences to schedules with one of several implementations."""

import functools
from collections.abc import Callable, Mapping
from typing import Final

import jax

from regal_jax.errors import ConfigError
from regal_jax.plan import Objective
from regal_jax.problem import Preferences, Problem
from regal_jax.simulate import host, pallas_gpu
from regal_jax.simulate.generate_lockstep import Goal, generate
from regal_jax.simulate.lockstep import Run
from regal_jax.simulate.memory import peak_memory
from regal_jax.simulate.simulate import SimulationResult

__all__ = ["GENERATORS", "generate_schedules"]

Generator = Callable[[Problem, Preferences, Goal, bool, bool], tuple[jax.Array, SimulationResult]]


def _with_peaks(
    make: Callable[..., tuple[jax.Array, Run]], problem: Problem, memory: bool, positions: bool
) -> tuple[jax.Array, SimulationResult]:
    """The full result, from a function that generates the events."""
    placement, run = make(positions=memory or positions)
    peak = None
    if memory:
        each = jax.vmap(jax.vmap(peak_memory, in_axes=(None, 0, 0, 0)))
        peak = each(problem, placement, run.op_position, run.transfer_position)
    if not positions:
        return placement, SimulationResult(run.makespan, peak, None, None)
    return placement, SimulationResult(run.makespan, peak, run.op_position, run.transfer_position)


def _xla(
    problem: Problem, preferences: Preferences, goal: Goal, memory: bool, positions: bool
) -> tuple[jax.Array, SimulationResult]:
    make = functools.partial(generate, problem, preferences, goal)
    return _with_peaks(make, problem, memory, positions)


def _pallas(
    problem: Problem, preferences: Preferences, goal: Goal, memory: bool, positions: bool
) -> tuple[jax.Array, SimulationResult]:
    make = functools.partial(pallas_gpu.generate_pallas_on_gpu, problem, preferences, goal)
    return _with_peaks(make, problem, memory, positions)


def _host(
    problem: Problem, preferences: Preferences, goal: Goal, memory: bool, positions: bool
) -> tuple[jax.Array, SimulationResult]:
    placement, result = host.generate_on_host(problem, preferences, goal, memory, positions)
    return placement, SimulationResult(*result)


GENERATORS: Final[Mapping[str, Generator]] = {"xla": _xla, "host": _host, "pallas": _pallas}
"""Every implementation: ``(problem, preferences, goal, memory, positions) -> (placement, result)``."""


@jax.named_scope("generate")
def generate_schedules(
    problem: Problem,
    preferences: Preferences,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    implementation: str | None = None,
    memory: bool = True,
    positions: bool = False,
) -> tuple[jax.Array, SimulationResult]:
    """Generates the schedule of every candidate (docs/design.md, part 2, "Schedule generation").

    A pure function of arrays; jit it. All implementations decide alike, bit for bit.

    Args:
      problem: ``B`` graphs.
      preferences: ``[B, P, ...]``, from `regal_jax.encoding.preferences` with the same objective.
      objective: What decides; for the makespan the capacities count first.
      implementation: A name in `GENERATORS`, which then runs or raises; ``None`` chooses by platform:
        ``host`` on CPUs where Numba is installed (extra ``cpu``), else ``xla``. ``pallas``, for NVIDIA
        GPUs of compute capability 9.0 or more, is never chosen.
      memory: Whether to compute the peaks.
      positions: Whether to return the order of events.

    Returns:
      ``[B, P, N]`` int32, device of each op (0 for padding); and the timelines. `regal_jax.plan.replay` of
      these events gives the same memory, and the same makespan up to float32 rounding.

    Raises:
      ConfigError: The objective or the implementation is unknown, the implementation cannot run here, or
        the preferences have other sizes than the problem.
    """
    if implementation is not None and implementation not in GENERATORS:
        raise ConfigError(
            f"implementation: {implementation!r} generates no schedules; use one of {', '.join(GENERATORS)}"
        )
    _check_shapes(problem, preferences)
    goal: Goal = "fit"
    if Objective(objective) is Objective.PEAK_MEMORY:
        goal = "peak"
    elif problem.unlimited:
        goal = "time"
    if implementation is not None:
        return GENERATORS[implementation](problem, preferences, goal, memory, positions)
    import jax.extend.backend

    xla = functools.partial(_xla, goal=goal, memory=memory, positions=positions)
    if not host.available(problem.blocking, memory or goal != "time", "generate", goal != "time"):
        return xla(problem, preferences)
    on_host = functools.partial(_host, goal=goal, memory=memory, positions=positions)
    if set(jax.extend.backend.backends()) == {"cpu"}:
        return on_host(problem, preferences)
    return jax.lax.platform_dependent(problem, preferences, cpu=on_host, default=xla)


def _check_shapes(problem: Problem, preferences: Preferences) -> None:
    b, n, d = problem.runtime.shape
    p = preferences.waste.shape[1] if preferences.waste.ndim == 2 else "P"
    expected = ((b, p, n), (b, p, n, d), (b, p), (b, p), (b, p))
    for field, array, shape in zip(Preferences._fields, preferences, expected, strict=True):
        if array.shape != shape:
            raise ConfigError(f"preferences: {field} has shape {array.shape}, expected {shape}")
