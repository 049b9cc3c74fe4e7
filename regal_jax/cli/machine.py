"""What the command sets up before JAX starts: all cores."""

import contextlib
import os

from regal_jax.runtime.cores import available_cores

__all__ = ["use_all_cores"]


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
