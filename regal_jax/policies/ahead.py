"""What searches in compiled programs need after one on the host, so that another process can compile it."""

from typing import Final

from regal_jax.heuristics.ahead import tiny
from regal_jax.heuristics.levels import _longest, _standing
from regal_jax.heuristics.numbering import neutral_numbers
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.measured import measure
from regal_jax.policies.spectral import _lanczos_loops
from regal_jax.runtime.ahead import Task

__all__ = ["measures", "network", "numbers", "simulator", "simulator_with_peaks", "tasks"]

_BLOCKING: Final = True
"""Variant of the simulator: transfers are events."""


def tasks(*, peaks: bool, guided: bool) -> list[Task]:
    """What a search on equal devices needs, with blocking transfers.

    Args:
      peaks: Whether the objective is peak memory, for which the search on the host numbers the ops, and the
        simulator computes peaks.
      guided: Whether a policy guides it.
    """
    found = [Task(f"{__name__}:numbers", (_longest,))] if peaks and not guided else []
    if guided:
        loops = (_longest, _standing, _lanczos_loops)
        found = [Task(f"{__name__}:measures", loops), Task(f"{__name__}:network", (), here=True)]
    made = simulator_with_peaks if peaks else simulator
    return [*found, Task(f"{__name__}:{made.__name__}", (), others=(("simulate", _BLOCKING, peaks),))]


def numbers() -> None:
    """Runs the loops of the numbers of ops."""
    neutral_numbers(*tiny())


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
