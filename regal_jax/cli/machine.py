"""Settings of the process before JAX starts: all CPU cores, and rare garbage collection."""

import atexit
import contextlib
import gc
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Final, NoReturn

from regal_jax.runtime.cores import available_cores

__all__ = ["end_among_others", "end_quickly", "rare_collections", "use_all_cores", "why_jax_cannot_start"]

_NEW_OBJECTS: Final = 50_000
"""New objects (some 10 MB of them) after which Python collects garbage; its default is below a thousand."""
_GRACE: Final = 1.0
"""Seconds that the first process leaves to the others, which are connected to it, to notice the loss."""


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A context in which Python collects garbage less often.

    Loading JAX and Numba creates hundreds of thousands of objects, none of which is garbage.
    """
    young, *older = gc.get_threshold()
    gc.set_threshold(max(young, _NEW_OBJECTS) if young else 0, *older)
    try:
        yield
    finally:
        gc.set_threshold(young, *older)


def end_quickly() -> None:
    """Makes the process end without a last garbage collection; the system frees its memory anyway.

    Ctrl-C then ends it without a traceback through the packages that clean up.
    """
    atexit.unregister(_end)  # Once, however often the command has run in this process, and first of all.
    atexit.register(_end)


def _end() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()


def end_among_others(code: int) -> NoReturn:
    """Ends one of several processes of a run, without the work of other packages at exit.

    JAX would wait there for the others, and would then end the process with a core dump.
    """
    if "jax" in sys.modules:
        import jax

        if jax.distributed.is_initialized() and jax.process_index() == 0:
            time.sleep(_GRACE)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def use_all_cores() -> None:
    """Makes JAX see each CPU core as a device, so that a batch is spread over the cores.

    The devices stay as they are if their number has been chosen or JAX has started.
    """
    import jax

    if jax.config.jax_num_cpu_devices >= 0:  # pyright: ignore[reportAttributeAccessIssue]
        return
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", available_cores())


def why_jax_cannot_start() -> str:
    """One line that says why JAX has no device to start on, and what helps; empty if it has one."""
    if "jax" not in sys.modules:
        return ""
    import jax

    try:
        jax.devices()
    except (AssertionError, RuntimeError) as error:  # Without a GPU, JAX_PLATFORMS=cuda fails an assertion.
        platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
        found = " ".join(str(error).partition("(set JAX_PLATFORMS")[0].split()) or "there is no such device"
        return (
            f"JAX cannot start on JAX_PLATFORMS={platforms or ''}: {found}; unset JAX_PLATFORMS, or install "
            "the JAX for that device"
        )
    return ""
