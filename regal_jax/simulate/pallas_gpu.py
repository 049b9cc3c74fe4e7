"""The fused GPU simulator: one kernel launch with one candidate per block and the whole event loop.

It has the same contract and the same results as `regal_jax.simulate.lockstep.run`, bit for bit: keys, order
and float32 operations are the same; only the loop is not shared. `regal_jax.simulate.pallas_kernel` has the
code of a block.

It is written for the Mosaic GPU backend of Pallas, since the Triton backend is deprecated from JAX 0.11 on.
Mosaic GPU runs on NVIDIA GPUs of compute capability 9.0 (Hopper) or more, and the kernel can be lowered on a
machine without such a GPU. Pallas's interfaces change often, so `available` trusts the kernel only after it
has agreed with the reference once in this process.

The kernel does not compute peaks, which would require the inputs of every op. `regal_jax.simulate.memory`
computes them from positions in a few parallel steps.
"""

import functools
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.problem import Decisions, Problem, make_problem
from regal_jax.simulate.lockstep import Run, run
from regal_jax.simulate.pallas_kernel import Sizes, make_inputs, make_sizes, program

__all__ = ["agrees", "available", "fits", "run_pallas", "run_pallas_on_gpu", "shared_bytes", "trusted"]

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


def available(problem: Problem) -> bool:
    """Whether the kernel may be chosen for ``problem``; false without a suitable GPU, without a trace.

    This can be called during a trace. The first call with a suitable GPU compiles and runs a tiny problem,
    and warns if the kernel fails.
    """
    capability = _capability()
    return capability is not None and capability >= _CAPABILITY and fits(problem) and trusted()


@functools.cache
def trusted() -> bool:
    """Whether the kernel agrees with the reference; computed once per process."""
    try:
        if agrees():
            return True
        reason = "its results differ from those of 'xla'"
    except Exception as error:  # A new version of Pallas may raise anything; the reference still runs.
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    warnings.warn(f"the fused GPU simulator is not used: {reason}", RuntimeWarning, stacklevel=3)
    return False


def agrees(interpret: Any = False) -> bool:
    """Whether the kernel and the reference agree on a tiny problem with ties and control edges.

    This can be called during a trace, since it computes immediately.

    Args:
      interpret: As in `run_pallas`.
    """
    builder = GraphBuilder("self-check")
    for o in range(9):
        inputs = [(u, 0) for u in {o // 2, o - 3} if 0 <= u < o]
        controls = [o - 4] if o % 3 == 1 and o > 4 else []
        builder.add_op(f"o{o}", runtime=1.5 + o % 4, outputs=[o + 1], inputs=inputs, control_inputs=controls)
    graph, cluster = builder.build(), Cluster.uniform(3, transfer="blocking:latency=0.3")
    # A new thread has no trace, so arrays have values there.
    with ThreadPoolExecutor(1) as executor:
        return executor.submit(_agree_on, graph, cluster, interpret).result()


def _agree_on(graph: ComputationGraph, cluster: Cluster, interpret: Any) -> bool:
    problem, p = make_problem([graph], cluster), 4
    n, t, d = problem.bucket.ops, problem.bucket.tensors, problem.num_devices
    # Multiples of a prime serve as pseudo-random numbers without a generator.
    mixed = np.arange(p * (n + t * d)).reshape(1, p, -1) * 7919 % 1009
    decisions = Decisions(
        placement=jnp.asarray((mixed[..., :n] // 5 % d).astype(np.int32)),
        priority=jnp.asarray((mixed[..., :n] % 5).astype(np.uint16)),
        transfer_priority=jnp.asarray((mixed[..., n:] % 4).reshape(1, p, t, d).astype(np.uint16)),
    )
    ours = jax.jit(functools.partial(run_pallas, positions=True, interpret=interpret))(problem, decisions)
    theirs = jax.jit(functools.partial(run, positions=True))(problem, decisions)
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
