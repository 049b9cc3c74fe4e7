"""Runtimes from a roofline: `DeviceProfile` and the named profiles. This module does not import JAX."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

from regal_jax.checks import real, shown
from regal_jax.errors import ConfigError
from regal_jax.graph.units import Quantity, parse_bandwidth, parse_time

__all__ = ["PROFILES", "DeviceProfile", "find_profile", "profile_list"]

_Profile = TypeVar("_Profile")


@dataclasses.dataclass(frozen=True)
class DeviceProfile:
    """Peak rates of a device.

    Attributes:
      name: The device's name, which error messages show.
      matrix_flops: Peak flops a second of matrix products and convolutions: one number, or one for each
        dtype name (``"bfloat16"``); dtypes that are not named run at `vector_flops`.
      vector_flops: Peak flops a second of everything else: one number, or one for each dtype name, of
        which ``"float32"`` serves all that are not named.
      bandwidth: Memory bandwidth, e.g. ``"4.8TB/s"``; plain numbers are bytes a second.
      launch_overhead: Additional time of every op, e.g. ``"2us"``; plain numbers are seconds.

    Raises:
      ConfigError: A rate is not a positive number, or a mapping has no ``"float32"``.
    """

    name: str
    matrix_flops: float | Mapping[str, float]
    vector_flops: float | Mapping[str, float]
    bandwidth: Quantity
    launch_overhead: Quantity = 0.0

    def __post_init__(self) -> None:
        for field in ("matrix_flops", "vector_flops"):
            value = getattr(self, field)
            rates = dict(value) if isinstance(value, Mapping) else {"float32": value}
            for dtype, rate in rates.items():
                if real(rate, above=0, infinite=True) is None:
                    raise ConfigError(
                        f"profile {self.name!r}: {field} for {dtype} is {shown(rate)}; give flops a second"
                    )
            if field == "vector_flops" and "float32" not in rates:
                raise ConfigError(f"profile {self.name!r}: vector_flops names no 'float32'; add it")
        try:
            object.__setattr__(self, "bandwidth", parse_bandwidth(self.bandwidth, "s", "bandwidth"))
            overhead = parse_time(self.launch_overhead, "s", "launch_overhead")
            if math.isinf(overhead):
                raise ValueError("launch_overhead: must be finite")
        except ValueError as error:
            raise ConfigError(f"profile {self.name!r}: {error}") from None
        object.__setattr__(self, "launch_overhead", overhead)

    def rate(self, dtype: str, *, matrix: bool) -> float:
        """Peak flops a second in ``dtype``; a complex dtype runs at the rate of its parts."""
        dtype = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
        if matrix and not isinstance(self.matrix_flops, Mapping):
            return self.matrix_flops
        if matrix and isinstance(self.matrix_flops, Mapping) and dtype in self.matrix_flops:
            return self.matrix_flops[dtype]
        if not isinstance(self.vector_flops, Mapping):
            return self.vector_flops
        return self.vector_flops.get(dtype, self.vector_flops["float32"])

    def seconds(self, flops: float, traffic: float, dtype: str, *, matrix: bool) -> float:
        """The roofline (Williams, Waterman and Patterson, 2009), plus `launch_overhead`.

        Args:
          flops: Arithmetic operations.
          traffic: Bytes moved to and from memory.
          dtype: Name of the dtype of the operations.
          matrix: Whether matrix units can do them.
        """
        arithmetic = flops / self.rate(dtype, matrix=matrix)
        return max(arithmetic, traffic / float(self.bandwidth)) + float(self.launch_overhead)


_HOPPER_MATRIX: Final = {
    "bfloat16": 989.4e12, "float16": 989.4e12, "float32": 494.7e12, "float64": 66.9e12,
    "int8": 1978.9e12, "uint8": 1978.9e12, "float8_e4m3fn": 1978.9e12, "float8_e5m2": 1978.9e12,
}  # fmt: skip
_HOPPER_VECTOR: Final = {
    "float32": 66.9e12, "float64": 33.5e12, "bfloat16": 133.8e12, "float16": 133.8e12,
}  # fmt: skip

PROFILES: Final[Mapping[str, DeviceProfile]] = {
    profile.name: profile
    for profile in (
        DeviceProfile("h200", _HOPPER_MATRIX, _HOPPER_VECTOR, "4.8TB/s", "2us"),
        DeviceProfile("h100", _HOPPER_MATRIX, _HOPPER_VECTOR, "3.35TB/s", "2us"),
        DeviceProfile(
            "a100",
            {"bfloat16": 312e12, "float16": 312e12, "float32": 156e12, "float64": 19.5e12,
             "int8": 624e12, "uint8": 624e12},
            {"float32": 19.5e12, "float64": 9.7e12, "bfloat16": 39e12, "float16": 78e12},
            "2039GB/s",
            "2us",
        ),
        DeviceProfile(
            "tpu-v5e",
            {"bfloat16": 197e12, "float16": 197e12, "float32": 197e12, "int8": 394e12, "uint8": 394e12},
            6.1e12,
            "819GB/s",
            "1us",
        ),
        DeviceProfile("cpu", 5.0e12, {"float32": 5.0e12, "float64": 2.5e12}, "204.8GB/s", "1us"),
    )
}  # fmt: skip
"""Profiles by name, from public figures, dense (no sparsity), at base or boost clock as published.

- ``h200``, ``h100``: NVIDIA H200 and H100 SXM datasheets and the H100 architecture white paper (2022).
  ``float32`` products are TF32, as XLA does them by default.
- ``a100``: NVIDIA A100 SXM 80 GB datasheet and white paper (2020).
- ``tpu-v5e``: Google Cloud TPU v5e documentation. ``float32`` products are one bfloat16 pass, XLA's
  default. The vector rate is not published: 8 x 128 lanes x 4 units x 1.5 GHz.
- ``cpu``: AMD EPYC 7763, 64 cores x 2.45 GHz x 32 float32 flops, eight channels of DDR4-3200.
- Launch overheads are our estimates for ops of a compiled program, not published figures.
"""


def find_profile(profile: str | DeviceProfile, *others: str) -> DeviceProfile:
    """The profile called ``profile``, in any case; a `DeviceProfile` is returned as it is.

    Args:
      profile: The name or the profile.
      *others: Names that the caller knows in addition, for the message.

    Raises:
      ConfigError: There is no such profile.
    """
    if isinstance(profile, DeviceProfile):
        return profile
    found = PROFILES.get(profile.lower()) if isinstance(profile, str) else None
    if found is None:
        raise ConfigError(
            f"profile: unknown device {profile!r}; use one of {', '.join((*PROFILES, *others))}, "
            "or a DeviceProfile"
        )
    return found


def profile_list(profile: _Profile | Iterable[_Profile]) -> list[_Profile]:
    """One profile, or several, as a list; names are not looked up.

    Raises:
      ConfigError: There is none.
    """
    profiles: list[Any] = [profile]
    if isinstance(profile, Iterable) and not isinstance(profile, str):
        profiles = list(profile)
    if not profiles:
        raise ConfigError("profile: got no device; name at least one")
    return profiles
