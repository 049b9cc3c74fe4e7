"""The worker of `RayEngine`: an actor that runs the functions that it is asked for.

Ray starts the interpreter of a worker as a new process, so it inherits nothing from the calling process.
"""

import importlib
import os
import platform
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from regal_jax.engines.protocol import Message
from regal_jax.runtime.cores import CORES
from regal_jax.runtime.interrupts import stopped_by
from regal_jax.runtime.versions import package_versions

__all__ = ["Worker", "versions"]

Parts = tuple[dict[str, Any], list[bytes]]
"""Head and blobs of a message: arguments and results are plain values and bytes."""


def versions() -> dict[str, str]:
    """Versions on which results depend."""
    return {"python": ".".join(platform.python_version_tuple()[:2]), **package_versions()}


class Worker:
    """Runs one parcel of items after another.

    Args:
      cores: Number of cores that it may use.
    """

    def __init__(self, cores: int) -> None:
        # JAX, Numba and the thread pools of this library read these when they start.
        for name in (CORES, "NPROC", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
            os.environ[name] = str(cores)
        if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
            os.environ.setdefault("JAX_NUM_CPU_DEVICES", str(cores))
        self._stopped: set[str] = set()

    def ready(self, work: str) -> dict[str, Any]:
        """Imports ``work``, which may take seconds, and describes this process."""
        _function(work)
        return {"pid": os.getpid(), "versions": versions()}

    def run(
        self, token: str, work: str, common: Parts, limits: Mapping[str, Any], items: Sequence[Parts]
    ) -> Iterator[list[tuple[int, dict[str, Any], list[bytes], bool]]]:
        """Runs ``work``; yields its answers when they come, and ``(-1, error)`` if it raises.

        Answers that have come since the last ones were sent are sent together.

        Args:
          token: Name of the run, for `stop`.
          work: ``module:function``.
          common: Message for all items.
          limits: Further values for the head of that message.
          items: The items.
        """
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def tell(position: int, message: Message, last: bool) -> None:
            answers.put((position, dict(message.head), list(message.blobs), last))

        def work_through() -> None:
            head, blobs = common
            try:
                with stopped_by(lambda: token in self._stopped):
                    messages = [Message(*item) for item in items]
                    _function(work)(Message({**head, **limits}, blobs), messages, tell)
            except BaseException as error:
                answers.put((-1, {"error": type(error).__name__, "text": str(error)}, [], True))
            answers.put(None)

        threading.Thread(target=work_through, daemon=True).start()
        going_on = True
        while going_on:
            found = [answers.get()]
            while not answers.empty():
                found.append(answers.get())
            going_on = found[-1] is not None
            yield found if going_on else found[:-1]

    @ray.method(concurrency_group="control")
    def stop(self, token: str) -> None:
        """Ends a run early, as Ctrl-C would."""
        self._stopped.add(token)


def _function(work: str) -> Any:
    module, _, name = work.partition(":")
    return getattr(importlib.import_module(module), name)
