"""The loops of guided searches, run on a tiny graph so that another process can compile them."""

from typing import Final

from regal_jax.heuristics.ahead import tiny
from regal_jax.heuristics.levels import _longest, _standing
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.measured import measure
from regal_jax.policies.spectral import _lanczos_loops
from regal_jax.runtime.ahead import Task

__all__ = ["measures", "network", "simulator", "simulator_with_peaks", "tasks"]

_BLOCKING: Final = True
"""Variant of the simulator: transfers are events."""


def tasks(*, peaks: bool) -> list[Task]:
    """What a guided search on equal devices needs, with blocking transfers.

    Args:
      peaks: Whether the simulator computes peaks of memory.
    """
    loops = (_longest, _standing, _lanczos_loops)
    made = simulator_with_peaks if peaks else simulator
    return [
        Task(f"{__name__}:measures", loops),
        Task(f"{__name__}:network", (), here=True),
        Task(f"{__name__}:{made.__name__}", (), others=(("simulate", _BLOCKING, peaks),)),
    ]


def measures() -> None:
    """Runs the loops of the features."""
    measured = measure(*tiny(), Balance.WORK, tuple(Cut))
    _ = measured.standing, measured.coordinates


def network() -> None:
    """Loads what makes proposals, which takes as long as loading JAX."""
    from regal_jax.policies import networks  # noqa: F401


def simulator() -> None:
    """Compiles the simulator of blocking transfers."""
    from regal_jax.simulate.host_kernel import handler

    handler(_BLOCKING, False)


def simulator_with_peaks() -> None:
    """Compiles the simulator of blocking transfers that also computes peaks of memory."""
    from regal_jax.simulate.host_kernel import handler

    handler(_BLOCKING, True)
