"""`simulate`: maps decisions to timelines with one of several implementations."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from regal_jax.checks import shown
from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Problem
from regal_jax.simulate import host, pallas_gpu
from regal_jax.simulate.lockstep import Run, run
from regal_jax.simulate.memory import peak_memory

__all__ = ["IMPLEMENTATIONS", "SimulationResult", "check_implementation", "simulate", "with_peaks"]


class SimulationResult(NamedTuple):
    """Results of ``P`` candidates for each of ``B`` graphs.

    Attributes:
      makespan: ``[B, P]`` float32, in each graph's time unit.
      peak_memory: ``[B, P, D]`` int32, in units (`regal_jax.problem.memory_unit`); ``None`` if not tracked.
      op_position: ``[B, P, N]`` int32, rank of each compute among the events, -1 for padding; ``None``
        if not recorded.
      transfer_position: ``[B, P, T, D]`` int32, -1 where there is no transfer (``[B, P, 0, D]`` unless
        transfers are blocking); ``None`` if not recorded.
    """

    makespan: jax.Array
    peak_memory: jax.Array | None
    op_position: jax.Array | None
    transfer_position: jax.Array | None


def with_peaks(
    run: Callable[..., Run], problem: Problem, decisions: Decisions, memory: bool, positions: bool
) -> SimulationResult:
    """The full result, from a function that simulates the events."""
    done = run(problem, decisions, positions=memory or positions)
    peak = None
    if memory:
        each = jax.vmap(jax.vmap(peak_memory, in_axes=(None, 0, 0, 0)))
        peak = each(problem, decisions.placement, done.op_position, done.transfer_position)
    if not positions:
        return SimulationResult(done.makespan, peak, None, None)
    return SimulationResult(done.makespan, peak, done.op_position, done.transfer_position)


def _host(problem: Problem, decisions: Decisions, memory: bool, positions: bool) -> SimulationResult:
    return SimulationResult(*host.simulate_on_host(problem, decisions, memory, positions))


Implementation = Callable[[Problem, Decisions, bool, bool], SimulationResult]

IMPLEMENTATIONS: Final[Mapping[str, Implementation]] = {
    "xla": functools.partial(with_peaks, run),
    "host": _host,
    "pallas": functools.partial(with_peaks, pallas_gpu.run_pallas_on_gpu),
}
"""Every implementation, by name: ``(problem, decisions, memory, positions) -> SimulationResult``."""


def check_implementation(name: Any) -> None:
    """Refuses what is neither ``None`` nor a name in `IMPLEMENTATIONS`.

    Raises:
      ConfigError: It is something else.
    """
    if name is not None and not (isinstance(name, str) and name in IMPLEMENTATIONS):
        raise ConfigError(f"implementation: unknown {shown(name)}; use one of {', '.join(IMPLEMENTATIONS)}")


@jax.named_scope("simulate")
def simulate(
    problem: Problem,
    decisions: Decisions,
    *,
    implementation: str | None = None,
    memory: bool = True,
    positions: bool = False,
) -> SimulationResult:
    """Runs every candidate (docs/design.md, part 1). A pure function of arrays; jit it.

    Args:
      problem: ``B`` graphs.
      decisions: ``[B, P, ...]`` decisions, from `regal_jax.encoding.decode`.
      implementation: A name in `IMPLEMENTATIONS`, which then runs or raises; ``None`` chooses by platform:
        ``host`` on CPUs where Numba is installed (extra ``cpu``); ``pallas`` on NVIDIA GPUs of compute
        capability 9.0 or more, if a candidate fits into the shared memory of a block; else ``xla``.
      memory: Whether to compute the peaks.
      positions: Whether to return the order of events.

    Returns:
      The result. Order and memory equal those of `regal_jax.plan.replay` for the graph in memory units; the
      makespan agrees up to float32 rounding.

    Raises:
      ConfigError: The implementation is unknown, the decisions have other sizes than the problem, or an op
        is placed on a device that does not exist. Within a traced function, values are not checked.
    """
    check_implementation(implementation)
    _check(problem, decisions)
    decisions = decisions._replace(placement=decisions.placement.astype(jnp.int32))
    if implementation is None:
        return _simulate_by_platform(problem, decisions, memory, positions)
    return IMPLEMENTATIONS[implementation](problem, decisions, memory, positions)


def _simulate_by_platform(
    problem: Problem, decisions: Decisions, memory: bool, positions: bool
) -> SimulationResult:
    """The default implementation of the platform that the program is compiled for."""
    import jax.extend.backend

    chosen: dict[str, str] = {}
    if host.available(problem.blocking, memory):
        chosen["cpu"] = "host"
    if pallas_gpu.available(problem):
        chosen["cuda"] = "pallas"
    calls = {
        platform: functools.partial(IMPLEMENTATIONS[name], memory=memory, positions=positions)
        for platform, name in {**chosen, "default": "xla"}.items()
    }
    present = set(jax.extend.backend.backends())
    if present == {"cpu"} or not chosen:
        return calls.get("cpu", calls["default"])(problem, decisions)
    if present <= chosen.keys():
        # No time is spent on tracing what none of the platforms runs.
        del calls["default"]
    # There is always a CPU besides an accelerator; lowering knows the platform of the program.
    return jax.lax.platform_dependent(problem, decisions, **calls)


def _check(problem: Problem, decisions: Decisions) -> None:
    b, d, bucket = problem.num_graphs, problem.num_devices, problem.bucket
    p = decisions.priority.shape[1] if decisions.priority.ndim == 3 else "P"
    transfers = bucket.tensors if problem.blocking else 0
    expected = ((b, p, bucket.ops), (b, p, bucket.ops), (b, p, transfers, d))
    for field, array, shape in zip(Decisions._fields, decisions, expected, strict=True):
        if array.shape != shape:
            raise ConfigError(f"decisions: {field} has shape {array.shape}, expected {shape}")
    placement = decisions.placement
    if not jnp.issubdtype(placement.dtype, jnp.integer):
        raise ConfigError(
            f"decisions: placement is {placement.dtype}; give int32, from regal_jax.encoding.decode"
        )
    if isinstance(placement, Tracer) or isinstance(problem.num_ops, Tracer):
        return
    real = np.arange(bucket.ops) < np.asarray(problem.num_ops)[:, None, None]
    at = np.where(real, np.asarray(placement), 0)
    if at.size and (at.min() < 0 or at.max() >= d):
        wrong = at.min() if at.min() < 0 else at.max()
        raise ConfigError(f"decisions: an op is placed on device {wrong}; there are {d}, from 0")
