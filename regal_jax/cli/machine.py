"""What the command sets up before JAX starts: all cores, and a cache of compiled programs."""

import contextlib
import os
import pathlib

from regal_jax.cores import available_cores

__all__ = ["use_all_cores", "use_compilation_cache"]


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


def use_compilation_cache() -> None:
    """Keeps compiled programs between runs of the command, under the user's cache folder.

    Only if nobody has chosen another, as with `JAX_COMPILATION_CACHE_DIR`.
    """
    import jax

    if jax.config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return
    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(root) / "regal_jax" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
