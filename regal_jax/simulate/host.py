"""The simulator for CPUs: a kernel that Numba compiles (`host_kernel`), which XLA calls (`host_call`).

On a CPU the host is the device: nothing is copied, no Python runs, programs can be kept in JAX's persistent
compilation cache, and the kernel itself is kept in Numba's.
"""

import ctypes
import functools
import itertools
import warnings

import jax
import jax.numpy as jnp

from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Problem
from regal_jax.programs import call_needs, custom_call
from regal_jax.runtime.compiling import installed

__all__ = ["available", "simulate_on_host"]


@functools.cache
def available(transfers: bool, memory: bool) -> bool:
    """Whether programs for CPUs can use this variant of the kernel. Warns once if an installed Numba fails.

    Args:
      transfers: Whether transfers are events; otherwise they are delays.
      memory: Whether to compute peaks.
    """
    if not installed():
        return False
    try:
        _register(transfers, memory)
    except Exception as error:  # Numba or XLA may refuse; a search must run.
        reason = " ".join(str(error).split()) or type(error).__name__
        warnings.warn(
            f"simulating with 'xla', five times slower: no compiled kernel ({reason})", stacklevel=2
        )
        return False
    return True


@functools.cache
def _register(transfers: bool, memory: bool) -> str:
    """Loads or compiles one variant of the kernel and registers it with XLA; returns its name there."""
    from regal_jax.simulate.host_kernel import handler

    target = _target(transfers, memory)
    address = ctypes.c_void_p(handler(transfers, memory).address)
    jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(address), platform="cpu")
    return target


def _target(transfers: bool, memory: bool) -> str:
    return f"regal_jax_simulate_{'events' if transfers else 'delays'}{'_memory' * memory}"


for _variant in itertools.product((False, True), repeat=2):
    custom_call(_target(*_variant), functools.partial(_register, *_variant))


def simulate_on_host(
    problem: Problem, decisions: Decisions, memory: bool, positions: bool
) -> tuple[jax.Array, jax.Array | None, jax.Array | None, jax.Array | None]:
    """`regal_jax.simulate.simulate` by the compiled kernel, with the same arguments and results.

    Raises:
      ConfigError: Numba is not installed.
    """
    if not installed():
        raise ConfigError("implementation: 'host' needs Numba; pip install 'regal-jax[cpu]', or use 'xla'")
    from regal_jax.simulate.host_layout import OPERANDS

    b, p, n = decisions.placement.shape
    t, d = (problem.bucket.tensors if problem.blocking else 0), problem.num_devices
    target = _register(problem.blocking, memory)
    call_needs(target)
    shapes = (
        jax.ShapeDtypeStruct((b, p), jnp.float32),
        jax.ShapeDtypeStruct((b, p, d if memory else 0), jnp.int32),
        jax.ShapeDtypeStruct((b, p, n if positions else 0), jnp.int32),
        jax.ShapeDtypeStruct((b, p, t if positions else 0, d), jnp.int32),
    )
    fields = {**vars(problem), **decisions._asdict()}
    # Under a vmap the calls run one after another, since batches have an axis of their own here.
    call = jax.ffi.ffi_call(target, shapes, vmap_method="sequential")
    makespan, peak, op_position, transfer_position = call(*(fields[name] for name in OPERANDS))
    return (
        makespan,
        peak if memory else None,
        op_position if positions else None,
        transfer_position if positions else None,
    )
