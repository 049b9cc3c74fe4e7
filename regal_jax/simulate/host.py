"""The simulator for CPUs: a kernel that Numba compiles (`host_kernel`), which XLA calls (`host_call`).

On a CPU the host is the device: nothing is copied, no Python runs, programs can be kept in JAX's persistent
compilation cache, and the kernel itself is kept in Numba's.
"""

import ctypes
import functools
import itertools
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Final

import jax
import jax.numpy as jnp

from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Preferences, Problem
from regal_jax.programs import call_needs, custom_call
from regal_jax.runtime.ahead import await_compiled
from regal_jax.runtime.compiling import installed

__all__ = ["available", "generate_on_host", "simulate_on_host"]

_registered: Final = types.SimpleNamespace(names=set())
"""``names`` of the variants that XLA knows. They are in an object, since a trace on the disk is only used if
the values of this module's names are the same (`regal_jax.programs.words`)."""
_registering: Final = threading.Lock()


@functools.cache
def available(transfers: bool, memory: bool, kernel: str = "simulate", decides: bool = False) -> bool:
    """Whether programs for CPUs can use this variant of the kernel. Warns once if an installed Numba fails.

    Args:
      transfers: Whether transfers are events; otherwise they are delays.
      memory: Whether to compute peaks.
      kernel: ``"simulate"``, or ``"generate"`` for schedule generation.
      decides: For schedule generation, whether memory decides.
    """
    if not installed():
        return False
    try:
        _register(kernel, transfers, memory, decides)
    except Exception as error:  # Numba or XLA may refuse; a search must run.
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(
            f"simulating with 'xla', five times slower: no compiled kernel ({reason})", stacklevel=2
        )
        return False
    return True


@functools.cache
def _register(kernel: str, transfers: bool, memory: bool, decides: bool = False) -> str:
    """Loads or compiles one variant of a kernel and registers it with XLA; returns its name there."""
    target = _target(kernel, transfers, memory, decides)
    # Threads that need the same variant at the same time would register it twice, which XLA refuses.
    with _registering:
        if target not in _registered.names:
            address = ctypes.c_void_p(_address(kernel, transfers, memory, decides))
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(address), platform="cpu")
            _registered.names.add(target)
    return target


def _address(kernel: str, transfers: bool, memory: bool, decides: bool) -> int:
    """Address of the compiled handler of one variant of a kernel."""
    if kernel == "simulate":
        from regal_jax.simulate import host_kernel

        await_compiled((kernel, transfers, memory))
        return host_kernel.handler(transfers, memory).address
    from regal_jax.simulate import generate_kernel

    return generate_kernel.handler(transfers, memory, decides).address


def _target(kernel: str, transfers: bool, memory: bool, decides: bool = False) -> str:
    return f"regal_jax_{kernel}_{'events' if transfers else 'delays'}{'_memory' * memory}{'_first' * decides}"


for _variant in itertools.product(("simulate", "generate"), (False, True), (False, True)):
    custom_call(_target(*_variant), functools.partial(_register, *_variant))
for _events in (False, True):
    custom_call(
        _target("generate", _events, True, True),
        functools.partial(_register, "generate", _events, True, True),
    )


Result = tuple[jax.Array, jax.Array | None, jax.Array | None, jax.Array | None]
"""The fields of `regal_jax.simulate.SimulationResult`."""


def simulate_on_host(problem: Problem, decisions: Decisions, memory: bool, positions: bool) -> Result:
    """`regal_jax.simulate.simulate` by the compiled kernel, with the same arguments and results.

    Raises:
      ConfigError: Numba is not installed.
    """
    _check_installed()
    from regal_jax.simulate.host_layout import OPERANDS

    shapes = _shapes(problem, decisions.placement.shape, memory, positions)
    target = _register("simulate", problem.blocking, memory)
    return _kept(_call(target, OPERANDS, problem, decisions._asdict(), shapes), memory, positions)


def generate_on_host(
    problem: Problem, preferences: Preferences, goal: str, memory: bool, positions: bool
) -> tuple[jax.Array, Result]:
    """`regal_jax.simulate.generate_schedules` by the compiled kernel: the placement, then the result.

    Raises:
      ConfigError: Numba is not installed.
    """
    _check_installed()
    from regal_jax.simulate.generate_layout import OPERANDS

    # Where memory decides, the kernel computes peaks in any case.
    sizes, peaks = preferences.urgency.shape, memory or goal != "time"
    shapes = (*_shapes(problem, sizes, peaks, positions), jax.ShapeDtypeStruct(sizes, jnp.int32))
    target = _register("generate", problem.blocking, peaks, goal != "time")
    given = {**preferences._asdict(), "peaks": jnp.full(1, goal == "peak", jnp.int32)}
    *result, placement = _call(target, OPERANDS, problem, given, shapes)
    return placement, _kept(result, memory, positions)


def _check_installed() -> None:
    if not installed():
        raise ConfigError("implementation: 'host' needs Numba; pip install 'regal-jax[cpu]', or use 'xla'")


def _shapes(
    problem: Problem, sizes: Sequence[int], memory: bool, positions: bool
) -> tuple[jax.ShapeDtypeStruct, ...]:
    b, p, n = sizes
    t, d = (problem.bucket.tensors if problem.blocking else 0), problem.num_devices
    return (
        jax.ShapeDtypeStruct((b, p), jnp.float32),
        jax.ShapeDtypeStruct((b, p, d if memory else 0), jnp.int32),
        jax.ShapeDtypeStruct((b, p, n if positions else 0), jnp.int32),
        jax.ShapeDtypeStruct((b, p, t if positions else 0, d), jnp.int32),
    )


def _call(
    target: str,
    operands: Sequence[str],
    problem: Problem,
    given: Mapping[str, jax.Array],
    shapes: Sequence[jax.ShapeDtypeStruct],
) -> Sequence[jax.Array]:
    call_needs(target)
    fields = {**vars(problem), **given}
    # Under a vmap the calls run one after another, since batches have an axis of their own here.
    call = jax.ffi.ffi_call(target, shapes, vmap_method="sequential")
    return call(*(fields[name] for name in operands))


def _kept(result: Sequence[jax.Array], memory: bool, positions: bool) -> Result:
    makespan, peak, op_position, transfer_position = result
    return (
        makespan,
        peak if memory else None,
        op_position if positions else None,
        transfer_position if positions else None,
    )
