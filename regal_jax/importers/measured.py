"""Runtimes of ops that are measured on the device at hand, instead of a roofline."""

import contextlib
import hashlib
import json
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import real, shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.importers.flat_jaxpr import Equation, Scalar, Value, evaluate
from regal_jax.importers.op_cost import op_seconds, op_work
from regal_jax.importers.roofline import PROFILES, DeviceProfile
from regal_jax.programs.stored import own_folder
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.storage.json_lines import JsonLines

__all__ = ["MEASURED", "MeasuredProfile"]

MEASURED: Final = "measured"
"""The name of a `MeasuredProfile` as ``profile=`` of `regal_jax.from_jax`."""

_BATCHES: Final = 5
_BATCH_SECONDS: Final = 2e-3
_MOST_CALLS: Final = 100


class MeasuredProfile:
    """The runtimes of ops on a JAX device.

    Each op is compiled alone, and called with random numbers, zeros as indices and ``True``. Its runtime is
    the median of several batches of calls, minus that of a program that does nothing, and at least zero. Ops
    with equal operands, results and parameters are measured once. Measurements are stored beside the compiled
    programs (``REGAL_JAX_CACHE``), for each kind of device and each version of JAX. Bodies of loops and
    branches are measured op by op.

    Ops are measured one by one, so the runtimes do not contain what XLA saves by fusing them. An op that
    cannot run alone, or that calls back to Python, has the runtime of a roofline; a warning names these ops.

    Args:
      device: The JAX device; by default the first.
      clock: A function that returns seconds, instead of the host's clock.

    Raises:
      ConfigError: ``device`` is no device.
    """

    name: Final = MEASURED

    def __init__(self, device: Any = None, clock: Callable[[], float] = time.perf_counter) -> None:
        self.device = jax.devices()[0] if device is None else device
        if not isinstance(self.device, jax.Device):
            raise ConfigError(
                f"MeasuredProfile: device: {shown(device)} is no device; give one of jax.devices()"
            )
        self._clock = clock
        self._roofline: DeviceProfile = PROFILES["cpu" if self.device.platform == "cpu" else "h200"]
        self._lines = _stored(self.device)
        self._known = _read(self._lines)
        self._nothing: float | None = None
        self._failed: dict[str, None] = {}

    def equation_seconds(self, equation: Equation) -> float:
        """Runtime of an op without bodies, in seconds."""
        check_interrupt()
        if op_work(equation).view:
            return 0.0
        key = _digest(equation)
        if key not in self._known:
            measured = self._measured(equation)
            if measured is None:
                self._failed[equation.primitive] = None
                return op_seconds(equation, self._roofline, 1.0)
            self._known[key] = measured
            self._store({"op": key, "primitive": equation.primitive, "seconds": measured})
        return self._known[key]

    def _store(self, record: dict[str, Any]) -> None:
        """Stores one measurement for later processes, as long as the disk takes them."""
        try:
            if self._lines is not None:
                self._lines.append(record)
        except OSError:
            self._lines = None

    def warn(self) -> None:
        """Warns of the ops that could not be measured since the last warning."""
        names, self._failed = ", ".join(self._failed), {}
        if names:
            warnings.warn(
                f"profile 'measured': these ops do not run alone and have runtimes of the roofline of "
                f"{self._roofline.name!r}: {names}",
                stacklevel=3,
            )

    def _measured(self, equation: Equation) -> float | None:
        arrays_only = all(hasattr(aval, "dtype") for aval in equation.in_avals)
        if equation.effectful or not arrays_only or "callback" in equation.primitive:
            return None
        values = [x for x in dict.fromkeys(equation.operands) if isinstance(x, Value)]

        def run(*arrays: Any) -> Sequence[Any]:
            known = dict(zip(values, arrays, strict=True))
            return evaluate(
                equation, [x.value if isinstance(x, Scalar) else known[x] for x in equation.operands]
            )

        # A primitive of the user may reject these inputs.
        try:
            with jax.default_device(self.device):
                arrays = [
                    jax.device_put(_plausible(value.aval, i), self.device) for i, value in enumerate(values)
                ]
                taken = self._seconds(run, arrays)
                if self._nothing is None:
                    self._nothing = self._seconds(
                        lambda x: (x,), [jax.device_put(np.float32(1), self.device)]
                    )
        except Exception:
            return None
        return max(0.0, taken - self._nothing)

    def _seconds(self, function: Callable[..., Any], arrays: Sequence[Any]) -> float:
        """Median seconds of a call."""
        program = jax.jit(function).lower(*arrays).compile()
        jax.block_until_ready(program(*arrays))
        begun = self._clock()
        jax.block_until_ready(program(*arrays))
        once = self._clock() - begun
        calls = int(min(_MOST_CALLS, max(1.0, _BATCH_SECONDS / once))) if once > 0 else _MOST_CALLS
        batches = []
        for _ in range(_BATCHES):
            begun = self._clock()
            for _ in range(calls):
                jax.block_until_ready(program(*arrays))
            batches.append((self._clock() - begun) / calls)
        return statistics.median(batches)


def _plausible(aval: Any, seed: int) -> Any:
    """An array of this shape and type: floats from 0.5 to 1, integers 0, ``True``, or keys."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(
            jnp.zeros((*aval.shape, *aval.dtype._impl.key_shape), jnp.uint32), impl=str(aval.dtype._impl.name)
        )
    if aval.dtype == np.bool_:
        return np.ones(aval.shape, np.bool_)
    if aval.dtype.kind in "iu":
        return np.zeros(aval.shape, aval.dtype)
    drawn = np.random.default_rng(seed).random(aval.shape, np.float32) * 0.5 + 0.5
    return drawn.astype(aval.dtype)


def _digest(equation: Equation) -> str:
    """A digest of an op: its primitive, its parameters, and the types and scalars of its operands."""
    operands = [repr(x.value) if isinstance(x, Scalar) else str(x.aval) for x in equation.operands]
    # For each operand, the first position of the same operand: equal values may share memory.
    pattern = [equation.operands.index(x) for x in equation.operands]
    outputs = [str(value.aval) for value in equation.outputs]
    params = sorted((name, str(value)) for name, value in equation.params.items())
    text = json.dumps([equation.primitive, params, operands, pattern, outputs])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _stored(device: Any) -> JsonLines | None:
    folder = own_folder()
    if folder is None:
        return None
    about = json.dumps([jax.__version__, device.platform, device.device_kind])
    return JsonLines(
        pathlib.Path(folder) / f"measured-{hashlib.sha256(about.encode()).hexdigest()[:16]}.jsonl"
    )


def _read(lines: JsonLines | None) -> dict[str, float]:
    """Earlier measurements; none if the file is damaged, which is then begun anew."""
    if lines is None:
        return {}
    try:
        lines.mend()
        records = lines.read()
    except (FormatError, OSError):
        with contextlib.suppress(OSError):
            lines.replace([])
        return {}
    found = ((record.get("op"), real(record.get("seconds"), 0)) for record in records)
    return {key: seconds for key, seconds in found if isinstance(key, str) and seconds is not None}
