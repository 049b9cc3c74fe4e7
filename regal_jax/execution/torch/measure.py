"""`measure_torch`: memory and time of a call, as PyTorch's profiler reports them."""

import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from regal_jax.checks import check_whole
from regal_jax.errors import ConfigError
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["TorchRun", "measure_torch"]

_MARK: Final = "regal_jax.measure"


@dataclasses.dataclass(frozen=True, eq=False)
class TorchRun:
    """Calls of a function or module, with the memory that PyTorch's profiler reports.

    Attributes:
      growth: For each device that memory was allocated on, e.g. ``"cpu"`` or ``"cuda:0"``: the most bytes
        that a call had allocated and not freed, what it returns included. What was there before the call,
        such as parameters and arguments, is not.
      seconds: Median time of a call without the profiler.
      result: What the first call returned.
    """

    growth: dict[str, int]
    seconds: float
    result: Any

    @property
    def peak_bytes(self) -> int:
        """The largest growth of a device."""
        return max(self.growth.values(), default=0)


@interruptible()
def measure_torch(call: Callable[..., Any], *args: Any, runs: int = 1, **kwargs: Any) -> TorchRun:
    """Calls a function or module, and measures its memory and time.

    Args:
      call: What is called. The first three calls are not timed; the memory of the third is measured.
      *args: Its arguments.
      runs: How many calls are timed after that.
      **kwargs: Its keyword arguments.

    Raises:
      ConfigError: ``call`` cannot be called, or ``runs`` is not a whole number from 1.

    Examples:
      >>> import torch
      >>> from regal_jax.execution import measure_torch
      >>> measure_torch(torch.nn.Linear(8, 4), torch.ones(2, 8)).peak_bytes
      32
    """
    if not callable(call):
        raise ConfigError(f"measure_torch: {type(call).__name__} is no function or module; give one")
    check_whole("runs", runs, 1)
    result = call(*args, **kwargs)
    growth = _growth(call, args, kwargs)
    taken = []
    for _ in range(runs):
        check_interrupt()
        begun = time.perf_counter()
        call(*args, **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return TorchRun(growth, statistics.median(taken), result)


def _growth(call: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, int]:
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True, acc_events=True) as made:
        # The profiler counts as freed only what was allocated under it, and a training step frees what the
        # step before has allocated.
        call(*args, **kwargs)
        with record_function(_MARK):
            returned = call(*args, **kwargs)
    del returned
    profiler: Any = made.profiler
    events = profiler.kineto_results.events()
    begun = next(e.start_ns() for e in events if e.name() == _MARK)
    events = [e for e in events if e.name() == "[memory]" and e.start_ns() >= begun]
    held: dict[str, int] = defaultdict(int)
    peak: dict[str, int] = defaultdict(int)
    for event in sorted(events, key=lambda e: e.start_ns()):
        kind = event.device_type().name.lower()
        where = kind if kind == "cpu" else f"{kind}:{event.device_index()}"
        held[where] += event.nbytes()
        peak[where] = max(peak[where], held[where])
    return dict(peak)
