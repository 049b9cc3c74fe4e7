"""What the command sets up before JAX starts: all cores, and little looking for garbage."""

import atexit
import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Final

from regal_jax.runtime.cores import available_cores

__all__ = ["end_quickly", "rare_collections", "use_all_cores"]

_NEW_OBJECTS: Final = 50_000
"""After so many, some 10 MB of them, garbage is looked for; Python's own number is below a thousand."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Python looks for cycles of garbage more rarely within.

    Loading JAX and Numba makes hundreds of thousands of objects, and none of them is garbage.
    """
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _NEW_OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def end_quickly() -> None:
    """The process will end without looking for garbage, which the system frees with all the rest."""
    atexit.unregister(gc.freeze)  # Once, however often the command has run in this process.
    atexit.register(gc.freeze)


def use_all_cores() -> None:
    """Makes JAX see each CPU core as a device, over which a batch is spread.

    Only if nobody has chosen a number, and if JAX has not started.
    """
    import jax

    if jax.config.jax_num_cpu_devices >= 0:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", available_cores())
