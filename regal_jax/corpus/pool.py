"""Worker processes that are replaced when they hang, die or use too much memory."""

import contextlib
import dataclasses
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import IO, Any, Final

from regal_jax.runtime.deadline import Deadline

__all__ = ["Event", "Worker", "available_memory"]

START_SECONDS: Final = 600.0
"""Time limit for the imports of a worker, generous for a loaded machine, in seconds."""

_ENVIRONMENT: Final = {
    # Workers compute nothing: they need no accelerator, no thread pools and no network.
    "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "jax",
    "TF_CPP_MIN_LOG_LEVEL": "3", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false", "PYTHONHASHSEED": "0",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Event:
    """A message of a worker; ``None`` if the worker has ended."""

    worker: "Worker"
    message: dict[str, Any] | None


class Worker:
    """A process that traces models of one source.

    Args:
      module: Module of the source.
      events: Queue that receives the worker's messages.
      log: File that receives the worker's standard error.
    """

    def __init__(self, module: str, events: "queue.Queue[Event]", log: IO[bytes]) -> None:
        environment = {**os.environ, **_ENVIRONMENT}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        process = subprocess.Popen(
            [sys.executable, "-m", "regal_jax.corpus.worker", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
            text=True,
            encoding="utf-8",
            # The build handles Ctrl-C and then ends its workers.
            start_new_session=True,
        )
        if process.stdin is None or process.stdout is None:
            raise OSError("a worker has no pipes")
        self.process, self.input, self.output = process, process.stdin, process.stdout
        self.task: Any = None
        self.tasks_done = 0
        self.ready = False
        self.verdict: tuple[str, str] | None = None
        self.deadline = Deadline(START_SECONDS)
        self.listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self.listener.start()

    def _listen(self, events: "queue.Queue[Event]") -> None:
        with contextlib.closing(self.output):
            for line in self.output:
                # An incomplete line of a dead worker is ignored.
                with contextlib.suppress(ValueError):
                    events.put(Event(self, json.loads(line)))
        events.put(Event(self, None))

    def ask(self, task: Any, request: dict[str, Any], seconds: float) -> None:
        """Sends a request that must be answered within ``seconds``.

        Raises:
          OSError: The worker has died.
        """
        self.task, self.deadline = task, Deadline(seconds)
        self.input.write(json.dumps(request) + "\n")
        self.input.flush()

    def answered(self) -> Any:
        """Clears the current task and returns it."""
        task, self.task = self.task, None
        self.tasks_done += 1
        self.deadline = Deadline()
        return task

    def watch(self, seconds: float, memory: float) -> None:
        """Kills the process if it is late or uses too much memory; `last_words` then gives `verdict`."""
        if self.verdict is not None:
            return
        if self.deadline.over:
            self.verdict = ("timeout", f"took longer than {seconds:g} seconds")
        elif self.resident_bytes() > memory:
            self.verdict = ("memory", f"needed more than {memory / 2**30:.1f} GiB of memory")
        if self.verdict is not None:
            self.end()

    def resident_bytes(self) -> int:
        """Memory in use; 0 if the system does not report it."""
        try:
            with open(f"/proc/{self.process.pid}/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def end(self) -> None:
        """Kills the process and all its descendants."""
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(self.process.pid, signal.SIGKILL)
            else:
                self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        with contextlib.suppress(OSError):
            self.input.close()
        # The listener ends at the end of the output, which a descendant of the worker may hold open.
        self.listener.join(timeout=10)

    def last_words(self) -> tuple[str, str]:
        """Kind of failure and reason of the worker's end."""
        if self.verdict is not None:
            return self.verdict
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        code = self.process.returncode
        if code == -signal.SIGKILL:
            return "memory", "the process was killed, most likely because memory ran out"
        return "died", f"the process died with exit code {code}"


def available_memory() -> float:
    """Bytes of memory of the machine or of its container; infinite if unknown."""
    found = float("inf")
    with contextlib.suppress(ValueError, OSError, AttributeError):
        found = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError), open(limit, encoding="ascii") as file:
            found = min(found, float(file.read()))
    return found
