"""One call of a planned function: a thread for each device dispatches its actions in order."""

import collections
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import jax

from regal_jax.execution.devices.actions import Move, Wait
from regal_jax.execution.devices.segments import Compiled
from regal_jax.importers.flat_jaxpr import Value
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["Actions", "Run", "Uses"]

Actions = Sequence[Compiled | Move | Wait]
Uses = Mapping[tuple[Value, int], int]
"""``(value, device)`` -> how many segments and transfers read it there; results have one more."""
_BLINK: Final = 0.05
"""Seconds between two checks for Ctrl-C and for threads that have failed."""


class _Stopped(Exception):
    """Another thread has failed, or the call was interrupted."""


class Run:
    """The values of one call, and the threads that make them.

    Args:
      actions: All actions, in an order in which they could run one after another.
      devices: The JAX device of each device of the plan.
      values: ``(value, device)`` -> the arrays that are there when the call begins.
      uses: How often each value is read.
      recorded: Whether to wait for every action and note its times.
    """

    def __init__(
        self,
        actions: Actions,
        devices: Sequence[Any],
        values: Mapping[tuple[Value, int], Any],
        uses: Uses,
        *,
        recorded: bool,
    ) -> None:
        self._actions, self._devices, self._recorded = actions, devices, recorded
        self._values = dict(values)
        self._left = dict(uses)
        self._lock = threading.Lock()
        self._caller = threading.current_thread()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        # Events for which other threads wait: the values that are sent, and the ends of segments.
        self._made: dict[Any, threading.Event] = collections.defaultdict(threading.Event)
        for action in actions:
            if isinstance(action, Move):
                self._made[action.value, action.source].clear()
            elif isinstance(action, Wait):
                self._made[action.segment].clear()
        for key in self._values:
            if key in self._made:
                self._made[key].set()
        self.times: dict[int, tuple[float, float]] = {}

    def __call__(self, results: Iterable[tuple[Value, int]]) -> list[Any]:
        """Runs all actions; returns the arrays of ``results``.

        Raises:
          Exception: What a segment or a transfer has raised.
        """
        busy = sorted({self._device_of(action) for action in self._actions})
        # A single device needs no thread.
        if len(busy) <= 1:
            for device in busy:
                self._work(device)
        else:
            self._in_threads(busy)
        if self._failure is not None:
            raise self._failure
        return [self._values[key] for key in results]

    @interruptible()
    def _in_threads(self, busy: Sequence[int]) -> None:
        threads = [threading.Thread(target=self._work, args=(device,), daemon=True) for device in busy]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_BLINK)
                    check_interrupt()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()

    @staticmethod
    def _device_of(action: Compiled | Move | Wait) -> int:
        return action.segment.device if isinstance(action, Compiled) else action.device

    def _work(self, device: int) -> None:
        """All actions of a device."""
        try:
            for number, action in enumerate(self._actions):
                if self._device_of(action) == device:
                    self._act(number, action)
            if threading.current_thread() is not self._caller:
                # JAX keeps pending effects by thread, so a barrier of the caller does not wait for these.
                jax.effects_barrier()
        except _Stopped:
            pass
        # The caller raises the first failure.
        except BaseException as error:
            with self._lock:
                self._failure = self._failure or error
            self._stop.set()

    def _act(self, number: int, action: Compiled | Move | Wait) -> None:
        if isinstance(action, Wait):
            self._wait(action.segment)
            return
        if isinstance(action, Move):
            self._wait((action.value, action.source))
        if self._stop.is_set():
            raise _Stopped
        begun = time.perf_counter()
        if isinstance(action, Compiled):
            device, reads = action.segment.device, action.segment.reads
            made = action.program(*(self._values[value, device] for value in reads))
            self._finished(number, begun, made)
            for value, array in zip(action.segment.makes, made, strict=True):
                self._put(value, device, array)
            self._drop((value, device) for value in reads)
            if action.segment in self._made:
                # Another thread waits for the effects of this segment, not for its values.
                jax.block_until_ready(made)
                jax.effects_barrier()
                self._tell(action.segment)
        else:
            key = action.value, action.source
            array = jax.device_put(self._values[key], self._devices[action.device])
            self._finished(number, begun, array)
            self._put(action.value, action.device, array)
            self._drop([key])

    def _finished(self, number: int, begun: float, made: Any) -> None:
        """Notes the times of an action, before others may read what it has made."""
        if self._recorded:
            jax.block_until_ready(made)
            self.times[number] = begun, time.perf_counter()

    def _wait(self, what: Any) -> None:
        while not self._made[what].wait(_BLINK):
            if self._stop.is_set():
                raise _Stopped

    def _put(self, value: Value, device: int, array: Any) -> None:
        key = value, device
        if self._left.get(key, 0) > 0:
            self._values[key] = array
        self._tell(key)

    def _tell(self, what: Any) -> None:
        if what in self._made:
            self._made[what].set()

    def _drop(self, keys: Iterable[tuple[Value, int]]) -> None:
        """Counts one reader less for each value, and releases values that have no reader left."""
        with self._lock:
            for key in keys:
                self._left[key] -= 1
                if self._left[key] == 0:
                    del self._values[key]
