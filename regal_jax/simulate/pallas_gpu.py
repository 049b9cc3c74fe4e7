"""The fused GPU kernels: one launch with one candidate per block and the whole loop over its events or ops.

They have the same contracts and the same results as `regal_jax.simulate.lockstep.run` and
`regal_jax.simulate.generate_lockstep.generate`, bit for bit: keys, order and float32 operations are the same;
only the loops are not shared. `regal_jax.simulate.pallas_kernel` and `regal_jax.simulate.pallas_generate`
have the code of a block.

They are written for the Mosaic GPU backend of Pallas, since the Triton backend is deprecated from JAX 0.11
on. Mosaic GPU runs on NVIDIA GPUs of compute capability 9.0 (Hopper) or more, and the kernels can be lowered
on a machine without such a GPU. The simulator is the default there; schedule generation has to be asked for,
since it has not run on a GPU yet. ``python -m benchmarks certify`` compares both with the exact replay.

The kernels do not compute peaks, which would require the inputs of every op. `regal_jax.simulate.memory`
computes them from positions in a few parallel steps.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp

from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Preferences, Problem
from regal_jax.simulate import pallas_generate
from regal_jax.simulate import pallas_generate_layout as layout
from regal_jax.simulate.generate_lockstep import Goal, positions_of
from regal_jax.simulate.lockstep import Run
from regal_jax.simulate.pallas_kernel import Sizes, make_inputs, make_sizes, program

__all__ = [
    "available",
    "fits",
    "generate_pallas",
    "generate_pallas_on_gpu",
    "run_pallas",
    "run_pallas_on_gpu",
    "shared_bytes",
]

_CAPABILITY: Final = (9, 0)
_SHARED_KIB: Final = {9: 227, 10: 227, 11: 227}
"""Shared memory that a block may use, by major compute capability."""
_SHARED_KIB_ELSE: Final = 99
_ALIGNMENT: Final = 1024
"""Alignment of Pallas's arrays in shared memory, in bytes."""
_REDUCTION_BYTES: Final = 128 * 4 * 4
"""Shared memory that Pallas reserves for maxima over lanes."""

_Shape = tuple[tuple[int, ...], Any]
"""Shape and dtype of an output."""


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
    b, p = decisions.priority.shape[:2]
    sizes = make_sizes(problem, p, positions)
    _check_fits(sizes)
    shapes: list[_Shape] = [((b * p,), jnp.float32)]
    if positions:
        shapes.append(((b * p, sizes.events), jnp.int32))
    inputs = make_inputs(problem, decisions, sizes)
    makespan, *order = _launch("simulate", program, sizes, shapes, inputs, interpret)
    position = order[0].reshape(b, p, -1) if order else jnp.zeros((b, p, 0), jnp.int32)
    n, end = sizes.n, sizes.n + (sizes.t * sizes.d if sizes.blocking else 0)
    return Run(
        makespan=makespan.reshape(b, p),
        op_position=position[..., :n],
        transfer_position=position[..., n:end].reshape(b, p, -1, sizes.d),
    )


def generate_pallas(
    problem: Problem, preferences: Preferences, goal: Goal, *, positions: bool, interpret: Any = False
) -> tuple[jax.Array, Run]:
    """Generates the schedule of every candidate in one kernel.

    Args:
      problem: ``B`` graphs.
      preferences: ``[B, P, ...]`` preferences.
      goal: What decides.
      positions: As in `run_pallas`.
      interpret: As in `run_pallas`.

    Returns:
      ``[B, P, N]`` int32, device of each op, 0 for padding; and the timelines.

    Raises:
      ConfigError: The bucket is too large for the shared memory of a block, or there are too many devices.
    """
    most = layout.MOST_DEVICES
    if problem.num_devices > most:
        raise ConfigError(
            f"implementation: 'pallas' generates schedules for at most {most} devices, "
            f"got {problem.num_devices}; use 'xla'"
        )
    b, p = preferences.waste.shape
    sizes = layout.make_sizes(problem, goal, p, positions)
    _check_fits(sizes)
    shapes: list[_Shape] = [((b * p,), jnp.float32), ((b * p, sizes.ops), jnp.int32)]
    if sizes.positions:
        shapes.append(((b * p, sizes.copies), jnp.int32))
    inputs = layout.make_inputs(problem, preferences, sizes)
    makespan, spot, *sent = _launch("generate", pallas_generate.program, sizes, shapes, inputs, interpret)
    n, t, d = sizes.n, sizes.t if sent else 0, sizes.d
    spot = spot.reshape(b, p, -1)[..., :n]
    made = jnp.where(spot >= 0, layout.slot_of(spot), -1)
    op, transfer = jnp.zeros((b, p, 0), jnp.int32), jnp.zeros((b, p, 0, d), jnp.int32)
    if positions:
        copies = sent[0].reshape(b, p, -1)[..., : t * d].reshape(b, p, t, d) if sent else transfer
        op, transfer = jax.vmap(jax.vmap(positions_of))(copies, made)
    return jnp.where(spot >= 0, layout.device_of(spot), 0), Run(makespan.reshape(b, p), op, transfer)


def _launch(
    name: str,
    program: Any,
    sizes: Any,
    shapes: list[_Shape],
    inputs: tuple[Any, ...],
    interpret: Any,
) -> Any:
    """The outputs of ``program(sizes, ...)``, whose first output has an element for each candidate."""
    from jax.experimental.pallas import mosaic_gpu as plgpu

    return plgpu.kernel(
        functools.partial(program, sizes),
        out_type=tuple(jax.ShapeDtypeStruct(*shape) for shape in shapes),
        scratch_types=tuple(plgpu.SMEM((length,), dtype) for length, dtype in sizes.scratch().values()),
        grid=shapes[0][0],
        grid_names=("candidate",),
        kernel_name=f"regal_jax_{name}",
        interpret=interpret,
    )(*inputs)


def run_pallas_on_gpu(problem: Problem, decisions: Decisions, *, positions: bool) -> Run:
    """`run_pallas` for callers that name the implementation.

    Raises:
      ConfigError: No GPU runs it, or the bucket is too large for the shared memory of a block.
    """
    _check_gpu()
    return run_pallas(problem, decisions, positions=positions)


def generate_pallas_on_gpu(
    problem: Problem, preferences: Preferences, goal: Goal, *, positions: bool
) -> tuple[jax.Array, Run]:
    """`generate_pallas` for callers that name the implementation.

    Raises:
      ConfigError: As there, or no GPU runs it.
    """
    _check_gpu()
    return generate_pallas(problem, preferences, goal, positions=positions)


def _check_gpu() -> None:
    capability = _capability()
    if capability is None or capability < _CAPABILITY:
        found = jax.default_backend() if capability is None else "a GPU of {}.{}".format(*capability)
        raise ConfigError(
            "implementation: 'pallas' needs an NVIDIA GPU of compute capability 9.0 or more as JAX's default "
            f"backend, found {found}; use 'xla', or None to have one chosen"
        )


def available(problem: Problem) -> bool:
    """Whether JAX's default backend is a GPU that runs the kernel, and a candidate fits into it."""
    return (_capability() or (0, 0)) >= _CAPABILITY and fits(problem)


def _capability() -> tuple[int, int] | None:
    """Compute capability of the default device; ``None`` if it is not an NVIDIA GPU."""
    if jax.default_backend() != "gpu":
        return None
    major, dot, minor = str(getattr(jax.devices()[0], "compute_capability", "")).partition(".")
    return (int(major), int(minor)) if dot and major.isdigit() and minor.isdigit() else None


def shared_bytes(sizes: Sizes | layout.Sizes) -> int:
    """Shared memory of one candidate in bytes, which depends only on sizes and the kind of transfers."""
    arrays = sizes.scratch().values()
    return sum(-(-4 * length // _ALIGNMENT) * _ALIGNMENT for length, _ in arrays) + _REDUCTION_BYTES


def _limit() -> int:
    major = (_capability() or _CAPABILITY)[0]
    return _SHARED_KIB.get(major, _SHARED_KIB_ELSE) * 1024


def fits(problem: Problem) -> bool:
    """Whether a candidate of the simulator fits into a block (of a Hopper GPU if there is none)."""
    return shared_bytes(make_sizes(problem)) <= _limit()


def _check_fits(sizes: Sizes | layout.Sizes) -> None:
    if shared_bytes(sizes) > _limit():
        raise ConfigError(
            f"implementation: 'pallas' keeps a candidate with up to {sizes.what} in shared memory, "
            f"which takes {shared_bytes(sizes) / 1024:.0f} KiB of {_limit() // 1024}; use 'xla', "
            "a smaller bucket or fewer devices"
        )
