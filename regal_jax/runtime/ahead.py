"""A second process that compiles loops while this one works: Numba's compiler uses one core.

The second process calls a few functions that run the loops on tiny inputs, so that Numba stores them in its
cache on disk, from which this process loads them. Nothing depends on it: whatever it has not made is
compiled here.
"""

import atexit
import collections
import contextlib
import gc
import importlib
import os
import pathlib
import subprocess
import sys
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final, NamedTuple

from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["AHEAD", "Task", "allowed", "await_compiled", "is_compiling", "start", "work"]

AHEAD: Final = "REGAL_JAX_AHEAD"
"""Environment variable: ``off`` if no second process may compile."""

_OFF: Final = ("0", "off", "none", "false", "no")
_PATIENCE: Final = 120.0
"""Seconds after which a second process that is not done is ended, several times what it takes."""
_BLINK: Final = 0.05
"""Seconds between two looks at whether Ctrl-C was pressed."""
_PROGRAM: Final = "from regal_jax.runtime.ahead import work; work()"


class Task(NamedTuple):
    """What is compiled in one go.

    Attributes:
      name: ``module:function`` of a function without arguments that runs the loops.
      functions: The loops that are compiled then and that nothing else compiles until then; may be empty.
      here: Whether this process runs it when it would wait for the other one.
      others: What else is compiled then, as `await_compiled` takes it.
    """

    name: str
    functions: tuple[Callable[..., Any], ...]
    here: bool = False
    others: tuple[Hashable, ...] = ()

    def run(self) -> None:
        """Calls the function."""
        module, _, function = self.name.partition(":")
        getattr(importlib.import_module(module), function)()


class _Helper:
    """The second process, and which functions it has yet to compile."""

    def __init__(self, tasks: Sequence[Task], folder: str) -> None:
        self.parent, self.limit = os.getpid(), Deadline(_PATIENCE)
        there = [task for task in tasks if not task.here]
        self.here = collections.deque(task for task in tasks if task.here)
        self._done = {task.name: threading.Event() for task in there}
        self._name = {each: task.name for task in there for each in (*task.functions, *task.others)}
        environment = {**os.environ, AHEAD: "off"}
        # Numba's cache identifies a function by its path, so that both import the same files.
        root, path = str(pathlib.Path(__file__).parents[2]), list(filter(None, sys.path))
        environment["PYTHONPATH"] = os.pathsep.join(path if root in path else [root, *path])
        if folder:
            environment["NUMBA_CACHE_DIR"] = folder
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *self._done],
            stdin=subprocess.PIPE,  # It closes when this process ends, and then so does the other one.
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C is for this process.
        )
        threading.Thread(target=self._follow, name="regal_jax compiles ahead", daemon=True).start()

    def _follow(self) -> None:
        """Notes which tasks are done; all are when the process has ended."""
        lines = self._process.stdout
        if lines is not None:
            for line in lines:
                done = self._done.get(line.strip())
                if done is not None:
                    done.set()
            lines.close()
        self._end()
        for done in self._done.values():
            done.set()

    def done(self, what: Hashable) -> threading.Event | None:
        """The event that nothing is left to wait for; ``None`` if there is none."""
        name = self._name.get(what)
        # A fork of this process has no thread that would set it.
        return self._done[name] if name is not None and os.getpid() == self.parent else None

    def stop(self) -> None:
        """Ends the process, unless this is a fork of the one that started it."""
        if os.getpid() != self.parent:
            return
        self._process.kill()
        self._end()

    def _end(self) -> None:
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()


_helper: _Helper | None = None


def allowed() -> bool:
    """Whether this process may start another one, and has a core for it."""
    name = pathlib.Path(sys.executable or "").name.lower()
    return (
        _helper is None
        and os.environ.get(AHEAD, "").lower() not in _OFF
        # Elsewhere, the executable may be any program that has Python in it.
        and name.startswith("python")
        and not getattr(sys, "frozen", False)
        and available_cores() > 1
    )


def start(tasks: Sequence[Task], folder: str = "") -> None:
    """Starts the second process; a process does so once, and only if it is `allowed`.

    Args:
      tasks: What it compiles, one after another, and what is compiled here meanwhile.
      folder: Folder of Numba's cache, if one is set.
    """
    global _helper
    if not tasks or not allowed():
        return
    # Without it, everything is compiled here.
    with contextlib.suppress(OSError, RuntimeError):
        _helper = _Helper(tasks, folder)
        atexit.register(_helper.stop)


def is_compiling(what: Hashable) -> bool:
    """Whether the second process is at work, and has this function still to compile."""
    done = None if _helper is None else _helper.done(what)
    return done is not None and not done.is_set()


def await_compiled(what: Hashable) -> None:
    """Waits until the second process has compiled the function, or has ended.

    Until then it runs the tasks for this process.

    Args:
      what: One of `Task.functions` or of `Task.others`.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    if _helper is None or not is_compiling(what):
        return
    done = _helper.done(what)
    while done is not None and not done.is_set() and _helper.here:
        # Another thread may have taken the last one, and a call that needs it would report its error.
        with contextlib.suppress(Exception):
            _helper.here.popleft().run()
        check_interrupt()
    while done is not None and not done.wait(_BLINK):
        check_interrupt()
        if _helper.limit.over:
            _helper.stop()
            return


def work() -> None:
    """The second process: runs the functions that its arguments name, and prints each name afterwards."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.disable()  # It does not last long.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as told:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        for name in sys.argv[1:]:
            Task(name, ()).run()
            print(name, file=told, flush=True)
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
