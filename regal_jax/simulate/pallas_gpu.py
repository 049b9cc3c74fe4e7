"""The fused GPU simulator: one kernel launch with one candidate per block and the whole event loop.

It has the same contract and the same results as `regal_jax.simulate.lockstep.run`, bit for bit: keys, order
and float32 operations are the same; only the loop is not shared. `regal_jax.simulate.pallas_kernel` has the
code of a block.

It is written for the Mosaic GPU backend of Pallas, since the Triton backend is deprecated from JAX 0.11 on.
Mosaic GPU runs on NVIDIA GPUs of compute capability 9.0 (Hopper) or more, and the kernel can be lowered on a
machine without such a GPU. It is the default there; ``python -m benchmarks certify`` compares it with the
exact replay.

The kernel does not compute peaks, which would require the inputs of every op. `regal_jax.simulate.memory`
computes them from positions in a few parallel steps.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp

from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Problem
from regal_jax.simulate.lockstep import Run
from regal_jax.simulate.pallas_kernel import Sizes, make_inputs, make_sizes, program

__all__ = ["available", "fits", "run_pallas", "run_pallas_on_gpu", "shared_bytes"]

_CAPABILITY: Final = (9, 0)
_SHARED_KIB: Final = {9: 227, 10: 227, 11: 227}
"""Shared memory that a block may use, by major compute capability."""
_SHARED_KIB_ELSE: Final = 99
_ALIGNMENT: Final = 1024
"""Alignment of Pallas's arrays in shared memory, in bytes."""
_REDUCTION_BYTES: Final = 128 * 4 * 4
"""Shared memory that Pallas reserves for maxima over lanes."""


def run_pallas(problem: Problem, decisions: Decisions, *, positions: bool, interpret: Any = False) -> Run:
    """Simulates every candidate in one kernel.

    Args:
      problem: ``B`` graphs.
      decisions: ``[B, P, ...]`` decisions.
      positions: Whether to record positions; otherwise they are empty.
      interpret: Parameters of Pallas's GPU interpreter, to run on a CPU in tests.

    Raises:
      ConfigError: The bucket is too large for the shared memory of a block.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    b, p = decisions.priority.shape[:2]
    sizes = make_sizes(problem, p, positions)
    _check_fits(problem, sizes)
    shapes = [jax.ShapeDtypeStruct((b * p,), jnp.float32)]
    if positions:
        shapes.append(jax.ShapeDtypeStruct((b * p, sizes.events), jnp.int32))
    kernel = plgpu.kernel(
        functools.partial(program, sizes),
        out_type=tuple(shapes),
        scratch_types=tuple(plgpu.SMEM((length,), dtype) for length, dtype in sizes.scratch().values()),
        grid=(b * p,),
        grid_names=("candidate",),
        kernel_name="regal_jax_simulate",
        interpret=interpret,
    )
    makespan, *order = kernel(*make_inputs(problem, decisions, sizes))
    position = order[0].reshape(b, p, -1) if order else jnp.zeros((b, p, 0), jnp.int32)
    n, end = sizes.n, sizes.n + (sizes.t * sizes.d if sizes.blocking else 0)
    return Run(
        makespan=makespan.reshape(b, p),
        op_position=position[..., :n],
        transfer_position=position[..., n:end].reshape(b, p, -1, sizes.d),
    )


def run_pallas_on_gpu(problem: Problem, decisions: Decisions, *, positions: bool) -> Run:
    """`run_pallas` for callers that name the implementation.

    Raises:
      ConfigError: No GPU runs it, or the bucket is too large for the shared memory of a block.
    """
    capability = _capability()
    if capability is None or capability < _CAPABILITY:
        found = jax.default_backend() if capability is None else "a GPU of {}.{}".format(*capability)
        raise ConfigError(
            "implementation: 'pallas' needs an NVIDIA GPU of compute capability 9.0 or more as JAX's default "
            f"backend, found {found}; use 'xla', or None to have one chosen"
        )
    return run_pallas(problem, decisions, positions=positions)


def available(problem: Problem) -> bool:
    """Whether JAX's default backend is a GPU that runs the kernel, and a candidate fits into it."""
    return (_capability() or (0, 0)) >= _CAPABILITY and fits(problem)


def _capability() -> tuple[int, int] | None:
    """Compute capability of the default device; ``None`` if it is not an NVIDIA GPU."""
    if jax.default_backend() != "gpu":
        return None
    major, dot, minor = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None


def shared_bytes(problem: Problem) -> int:
    """Shared memory of one candidate in bytes, which depends only on sizes and the kind of transfers."""
    arrays = make_sizes(problem).scratch().values()
    return sum(-(-4 * length // _ALIGNMENT) * _ALIGNMENT for length, _ in arrays) + _REDUCTION_BYTES


def _limit() -> int:
    major = (_capability() or _CAPABILITY)[0]
    return _SHARED_KIB.get(major, _SHARED_KIB_ELSE) * 1024


def fits(problem: Problem) -> bool:
    """Whether a candidate fits into the shared memory of a block (of a Hopper GPU if there is none)."""
    return shared_bytes(problem) <= _limit()


def _check_fits(problem: Problem, sizes: Sizes) -> None:
    if not fits(problem):
        raise ConfigError(
            f"implementation: 'pallas' keeps a candidate's {sizes.events} possible events in shared memory, "
            f"which takes {shared_bytes(problem) / 1024:.0f} KiB of {_limit() // 1024}; use 'xla', "
            "a smaller bucket or fewer devices"
        )
