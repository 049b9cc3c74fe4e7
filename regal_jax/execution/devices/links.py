"""The links between JAX devices, measured."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.checks import shown
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster
from regal_jax.graph.units import Quantity
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["fit_link", "given_devices", "measure_cluster"]

_SIZES: Final = (4, 2**16, 2**20, 2**22, 2**24)
"""Bytes of the arrays that are sent."""
_REPEATS: Final = 7


@interruptible()
def measure_cluster(
    devices: Sequence[Any] | None = None,
    memory: Quantity | Sequence[Quantity] = math.inf,
    clock: Callable[[], float] = time.perf_counter,
) -> Cluster:
    """A cluster with the latency and the bandwidth of every pair of JAX devices, measured.

    Arrays of several sizes are copied with `jax.device_put`, which is how `regal_jax.execute` copies them.
    Transfers are blocking.

    Args:
      devices: The devices; by default all of `jax.devices`.
      memory: Capacity of each device, or one capacity a device.
      clock: A function that returns seconds, instead of the host's clock.

    Returns:
      The cluster, in the order of ``devices``.

    Raises:
      ConfigError: There is no device, ``devices`` has one of them twice or something else, or ``memory`` has
        another length.
      ClusterError: ``memory`` is no size.
    """
    found = given_devices("measure_cluster", devices)
    if not found:
        raise ConfigError("measure_cluster: devices: give at least one")
    count = len(found)
    twice = [device for k, device in enumerate(found) if device in found[:k]]
    if twice:
        raise ConfigError(f"measure_cluster: devices: {twice[0]!r} is given twice; give each one once")
    given: Any = memory
    held = [given] * count if isinstance(given, str) or np.ndim(given) == 0 else list(given)
    if len(held) != count:
        raise ConfigError(f"measure_cluster: memory: {len(held)} for {count} devices; give one for each")
    if not callable(clock):
        raise ConfigError(f"measure_cluster: clock: {shown(clock)} is no function; give one, or leave it out")
    Cluster(held, "free")  # Refuses what is no memory before anything is measured.
    latency, bandwidth = np.zeros((count, count)), np.full((count, count), np.inf)
    for i, source in enumerate(found):
        for j, target in enumerate(found):
            if i != j:
                check_interrupt()
                seconds = [_seconds(size, source, target, clock) for size in _SIZES]
                latency[i, j], bandwidth[i, j] = fit_link(_SIZES, seconds)
    if count == 1:
        return Cluster(held, "blocking")
    text = [[f"{x:.6g}s" for x in row] for row in latency.tolist()]
    return Cluster(held, "blocking", text, [[f"{x:.6g}B/s" for x in row] for row in bandwidth.tolist()])


def given_devices(where: str, devices: Any) -> list[Any]:
    """The JAX devices that a function is given, by default all.

    Args:
      where: The function, for the message.
      devices: Its argument.

    Raises:
      ConfigError: It is no list of devices.
    """
    if devices is not None and not isinstance(devices, Iterable):
        raise ConfigError(f"{where}: devices: {shown(devices)} is no list; give some of jax.devices()")
    found = list(jax.devices() if devices is None else devices)
    strange = [device for device in found if not isinstance(device, jax.Device)]
    if strange:
        raise ConfigError(f"{where}: devices: {strange[0]!r} is no device; give some of jax.devices()")
    return found


def fit_link(sizes: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """``(latency, bandwidth)`` for which ``latency + size / bandwidth`` is nearest to the measured seconds.

    Relative errors are squared, so that small sizes count as much as large ones. Neither is negative.

    Args:
      sizes: Bytes.
      seconds: Time of a transfer of each size, above zero.
    """
    weight = 1 / np.maximum(np.asarray(seconds, np.float64), 1e-9)
    columns = np.stack([np.ones(len(sizes)), np.asarray(sizes, np.float64)], axis=-1) * weight[:, None]
    late, slope = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0].tolist()
    return max(late, 0.0), (1 / slope if slope > 0 else math.inf)


def _seconds(size: int, source: Any, target: Any, clock: Callable[[], float]) -> float:
    """Median seconds of a copy."""
    taken = []
    for _ in range(_REPEATS):
        # A new array each time, since JAX may reuse the copy of an array that was sent before.
        array = jax.block_until_ready(jax.device_put(np.ones(size // 4, np.float32), source))
        begun = clock()
        jax.block_until_ready(jax.device_put(array, target))
        taken.append(clock() - begun)
    return statistics.median(taken[1:])
