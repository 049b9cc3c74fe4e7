"""The devices that a graph is placed on, and how data moves between them."""

import dataclasses
import enum
import math
from typing import Final, Self

import numpy as np

from regal_jax.errors import ClusterError
from regal_jax.graph.html import html_rows
from regal_jax.graph.units import Quantity, format_bytes, parse_bandwidth, parse_bytes, parse_time

__all__ = ["MAX_DEVICES", "Cluster", "TransferModel"]

MAX_DEVICES: Final = 1024
"""Most devices in a cluster: beyond it, genes and placements cost more than they could tell."""


class TransferModel(enum.StrEnum):
    """How a tensor reaches another device (docs/design.md, part 1)."""

    BLOCKING = "blocking"
    """An event of its own that holds the source and the destination: a rendezvous."""
    DELAY = "delay"
    """Nobody is held; the copy arrives ``latency + size / bandwidth`` after its producer finishes."""
    FREE = "free"
    """``DELAY`` with zero delay."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """``D`` devices, their memory capacities, and the transfer model between them.

    Attributes:
      memory: ``[D]`` capacities; a number of bytes, a text such as ``"16GiB"``, or ``inf``.
        Stored as floats.
      transfer: A `TransferModel` or its name.
      latency: Time of a transfer of nothing. A plain number is in the time unit of the graph; a
        text may name a unit (``"5us"``).
      bandwidth: Plain numbers are bytes a time unit of the graph; a text may name a unit
        (``"50GB/s"``).

    Raises:
      ClusterError: No device, an impossible capacity, latency or bandwidth, an unknown model, or a
        ``free`` model with a cost.
    """

    memory: tuple[float, ...]
    transfer: TransferModel = TransferModel.BLOCKING
    latency: Quantity = 0.0
    bandwidth: Quantity = math.inf

    def __post_init__(self) -> None:
        try:
            if isinstance(self.memory, str) or not np.ndim(self.memory) or not len(self.memory):
                raise ValueError(f"memory: give one capacity a device, at least one, got {self.memory!r}")
            if len(self.memory) > MAX_DEVICES:
                raise ValueError(f"memory: {len(self.memory)} devices; at most {MAX_DEVICES} are supported")
            memory = tuple(parse_bytes(m, f"memory[{k}]") for k, m in enumerate(self.memory))
            if self.transfer not in TransferModel.__members__.values():
                names = ", ".join(TransferModel)
                raise ValueError(f"transfer: unknown model {self.transfer!r}; use one of {names}")
            if math.isinf(parse_time(self.latency, "s", "latency")):
                raise ValueError("latency: must be finite")
            parse_bandwidth(self.bandwidth, "s", "bandwidth")
        except ValueError as error:
            raise ClusterError(f"cluster: {error}") from None
        object.__setattr__(self, "memory", memory)
        for field in ("latency", "bandwidth"):  # NumPy scalars become plain numbers, which JSON can hold.
            value = getattr(self, field)
            object.__setattr__(self, field, value if isinstance(value, str) else float(value))
        object.__setattr__(self, "transfer", TransferModel(self.transfer))
        if self.transfer is TransferModel.FREE and self.transfer_time(1.0, "s") > 0:
            raise ClusterError("cluster: transfer 'free' takes no latency or bandwidth; use 'delay'")

    @classmethod
    def uniform(cls, devices: int, memory: Quantity = math.inf, transfer: str = "blocking") -> Self:
        """``devices`` equal devices.

        Args:
          devices: ``D``, at least 1.
          memory: Capacity of each.
          transfer: ``MODEL`` or ``MODEL:latency=L,bandwidth=B``, e.g.
            ``"blocking:latency=5us,bandwidth=50GB/s"``.

        Raises:
          ClusterError: As the constructor, or a specification that cannot be read.
        """
        if isinstance(devices, bool) or not isinstance(devices, int) or devices < 1:
            raise ClusterError(f"cluster: devices must be a whole number of at least 1, got {devices!r}")
        if devices > MAX_DEVICES:
            raise ClusterError(f"cluster: {devices} devices; at most {MAX_DEVICES} are supported")
        model, _, rest = str(transfer).partition(":")
        options: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if key.strip() not in ("latency", "bandwidth") or not equals:
                raise ClusterError(
                    f"cluster: cannot read {item!r} in transfer {transfer!r}; "
                    "write e.g. 'blocking:latency=5us,bandwidth=50GB/s'"
                )
            if key.strip() in options:
                raise ClusterError(f"cluster: {key.strip()} twice in transfer {transfer!r}; give it once")
            options[key.strip()] = value
        # The constructor parses and refuses: it takes the texts as they are.
        return cls((memory,) * devices, model, **options)  # pyright: ignore[reportArgumentType]

    @property
    def num_devices(self) -> int:
        """``D``."""
        return len(self.memory)

    def transfer_time(self, size_bytes: float, time_unit: str) -> float:
        """Time to move ``size_bytes`` to another device, in units of ``time_unit``."""
        return parse_time(self.latency, time_unit) + size_bytes / parse_bandwidth(self.bandwidth, time_unit)

    def __repr__(self) -> str:
        text = str(self)
        return f"<Cluster: {text if len(text) <= 200 else f'{text[:199]}…'}>"

    def _repr_html_(self) -> str:
        return html_rows("cluster", [("", repr(self)[1:-1].removeprefix("Cluster: "))])

    def __str__(self) -> str:
        capacities = {format_bytes(m) for m in self.memory}
        memory = capacities.pop() if len(capacities) == 1 else ", ".join(map(format_bytes, self.memory))
        return (
            f"{self.num_devices} device(s) of {memory}, {self.transfer} transfers "
            f"(latency {self.latency}, bandwidth {self.bandwidth})"
        )
