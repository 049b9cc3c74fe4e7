"""The devices that a graph is placed on, and how data moves between them."""

import dataclasses
import enum
import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from regal_jax.checks import counted, shown, whole
from regal_jax.errors import ClusterError
from regal_jax.graph.html import html_rows
from regal_jax.graph.links import DEFAULT_LINK, LINKS, Link, link_name, parse_link, parse_transfer
from regal_jax.graph.units import Quantity, format_bytes, parse_bandwidth, parse_bytes, parse_time

__all__ = ["MAX_DEVICES", "MAX_LINKS", "Cluster", "TransferModel"]

MAX_DEVICES: Final = 1024
"""Largest number of devices in a cluster."""
MAX_LINKS: Final = 4096
"""Largest number of different links in a cluster: transfer times are tabulated for each of them."""

_SHOWN: Final = 4
"""Largest number of links that are listed; if there are more, only their number is shown."""
_NOTHING: Final = Link(0.0, math.inf)
"""A link that costs nothing."""

Table = tuple[tuple[Quantity, ...], ...]
"""``[D, D]``: the row is the source, the column the destination; the diagonal is ignored."""


class TransferModel(enum.StrEnum):
    """How a tensor reaches another device (docs/design.md, part 1)."""

    BLOCKING = "blocking"
    """A transfer is an event that occupies the source and the destination, from when both are idle."""
    DELAY = "delay"
    """No device is occupied; the copy arrives ``latency + size / bandwidth`` after its producer finishes."""
    FREE = "free"
    """``DELAY`` with zero delay."""


@dataclasses.dataclass(frozen=True, init=False)
class Cluster:
    """``D`` devices, their memory capacities, the transfer model and the links between them.

    Latency and bandwidth are one number for all pairs of devices, or tables. A table with equal entries
    becomes one number. A single device has no link, so its latency and bandwidth are ignored.

    Attributes:
      memory: ``[D]`` capacities in bytes, as floats; ``inf`` is no limit.
      transfer: The transfer model.
      latency: Time of a transfer of 0 bytes, or a table ``[D, D]``. A plain number is in the time unit of the
        graph; a text may name a unit (``"5us"``).
      bandwidth: Bandwidth, or a table ``[D, D]``. Plain numbers are bytes per time unit of the graph; a text
        may name a unit (``"50GB/s"``).
    """

    memory: tuple[float, ...]
    transfer: TransferModel
    latency: Quantity | Table
    bandwidth: Quantity | Table

    def __init__(
        self,
        memory: Sequence[Quantity] | np.ndarray,
        transfer: str | None = None,
        latency: Quantity | Sequence[Sequence[Quantity]] | np.ndarray | None = None,
        bandwidth: Quantity | Sequence[Sequence[Quantity]] | np.ndarray | None = None,
    ) -> None:
        """A cluster of devices that may differ.

        Args:
          memory: ``[D]`` capacities; numbers of bytes, or texts such as ``"16GiB"``.
          transfer: ``MODEL``, ``MODEL:LINK`` or ``LINK``. A model is ``"blocking"`` (the default),
            ``"delay"`` or ``"free"``; a link is one of `regal_jax.graph.LINKS` or
            ``"latency=5us,bandwidth=50GB/s"``. Without a link transfers cost nothing. If transfer, latency
            and bandwidth are all left out, transfers are blocking over `regal_jax.graph.DEFAULT_LINK`.
          latency: A number, a text, or a table ``[D, D]`` of them (the row is the source; the diagonal is
            ignored).
          bandwidth: A number, a text, or a table ``[D, D]`` of them.

        Raises:
          ClusterError: There is no device, a number is out of range, a model or link is unknown, a table has
            another shape, a link is given twice, or a ``free`` model has a cost.
        """
        try:
            capacities = _capacities(memory)
            model, link = _transfer(transfer, latency, bandwidth)
            d = len(capacities)
            late = _quantities(link.latency if latency is None else latency, d, "latency")
            wide = _quantities(link.bandwidth if bandwidth is None else bandwidth, d, "bandwidth")
        except ValueError as error:
            raise ClusterError(f"cluster: {error}") from None
        if model is TransferModel.FREE and (_costs(late, math.inf) or _costs(0.0, wide)):
            raise ClusterError("cluster: transfer 'free' takes no latency or bandwidth; use 'delay'")
        object.__setattr__(self, "memory", capacities)
        object.__setattr__(self, "transfer", model)
        object.__setattr__(self, "latency", late if d > 1 else 0.0)
        object.__setattr__(self, "bandwidth", wide if d > 1 else math.inf)
        if len(self.links) > MAX_LINKS:
            raise ClusterError(
                f"cluster: {len(self.links)} different links; at most {MAX_LINKS} are supported: round "
                "what was measured, or give groups of devices one link each (Cluster.nodes)"
            )

    @classmethod
    def uniform(cls, devices: int, memory: Quantity = math.inf, transfer: str | None = None) -> Self:
        """``devices`` equal devices.

        Args:
          devices: ``D``, at least 1.
          memory: Capacity of each.
          transfer: As the constructor takes it: ``"nvlink4"``, ``"delay:pcie4x16"``, ``"blocking"``,
            ``"blocking:latency=5us,bandwidth=50GB/s"``. By default blocking transfers over
            `regal_jax.graph.DEFAULT_LINK`.

        Raises:
          ClusterError: As the constructor.

        Examples:
          >>> from regal_jax import Cluster
          >>> print(Cluster.uniform(4, memory="16GiB", transfer="free"))
          4 device(s) of 16.00 GiB, free transfers at no cost
        """
        return cls((memory,) * _count(devices, "devices"), transfer)

    @classmethod
    def nodes(
        cls,
        nodes: int,
        devices: int,
        *,
        within: str | Link,
        between: str | Link,
        memory: Quantity | Sequence[Quantity] = math.inf,
        transfer: str = "blocking",
    ) -> Self:
        """``nodes`` machines of ``devices`` equal devices each; device ``k`` is in machine ``k // devices``.

        Args:
          nodes: Number of machines, at least 1.
          devices: Number of devices of each machine, at least 1.
          within: Link between two devices of one machine: a name of `regal_jax.graph.LINKS`, or
            ``"latency=5us,bandwidth=50GB/s"``.
          between: Link between devices of two machines, likewise.
          memory: Capacity of each device, or a list with one capacity per device.
          transfer: The transfer model.

        Raises:
          ClusterError: As the constructor.

        Examples:
          >>> from regal_jax import Cluster
          >>> Cluster.nodes(2, 4, within="nvlink4", between="ethernet-100g", memory="80GiB").num_devices
          8
        """
        each = _count(devices, "devices")
        d = _count(_count(nodes, "nodes") * each, "devices")
        links = [[within if a // each == b // each else between for b in range(d)] for a in range(d)]
        capacities: Any = memory if np.ndim(memory) else [memory] * d
        if len(capacities) != d:
            raise ClusterError(
                f"cluster: memory: {len(capacities)} capacities for {counted(d, 'device')}; give 1 or all"
            )
        return cls.linked(capacities, links, transfer)

    @classmethod
    def linked(
        cls,
        memory: Sequence[Quantity] | np.ndarray,
        links: Sequence[Sequence[str | Link | None]],
        transfer: str = "blocking",
    ) -> Self:
        """Devices with a link for each pair.

        Args:
          memory: ``[D]`` capacities.
          links: ``[D, D]``, from row to column: names of `regal_jax.graph.LINKS`, or texts such as
            ``"latency=5us,bandwidth=50GB/s"``. The diagonal is ignored.
          transfer: The transfer model.

        Raises:
          ClusterError: As the constructor.
        """
        try:
            d = len(_capacities(memory))
            if transfer not in tuple(TransferModel):
                raise ValueError(
                    f"transfer: give a model, one of {', '.join(TransferModel)}, got {transfer!r}"
                )
            rows = _table(links, d, "links")
            table = [
                [_NOTHING if a == b else parse_link(link, f"links[{a}][{b}]") for b, link in enumerate(row)]
                for a, row in enumerate(rows)
            ]
        except ValueError as error:
            raise ClusterError(f"cluster: {error}") from None
        latency, bandwidth = ([[link[i] for link in row] for row in table] for i in (0, 1))
        return cls(memory, transfer, latency, bandwidth)

    @property
    def num_devices(self) -> int:
        """``D``."""
        return len(self.memory)

    @functools.cached_property
    def _hash(self) -> int:
        return hash((self.memory, self.transfer, self.latency, self.bandwidth))

    def __hash__(self) -> int:
        return self._hash  # Results are cached by cluster, and a table of links may be large.

    def __getstate__(self) -> dict[str, Any]:
        # Another process has other hashes of texts.
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def _classes(self) -> tuple[tuple[Link, ...], np.ndarray]:
        d, found = self.num_devices, {}
        index = np.zeros((d, d), np.int32)
        if not isinstance(self.latency, tuple) and not isinstance(self.bandwidth, tuple):
            found[Link(self.latency, self.bandwidth)] = 0
        else:
            for i, j in itertools.permutations(range(d), 2):
                index[i, j] = found.setdefault(self.between(i, j), len(found))
        index.setflags(write=False)
        return tuple(found), index

    @property
    def links(self) -> tuple[Link, ...]:
        """``[L]``, the different links, at least one, in the order in which pairs of devices have them."""
        return self._classes[0]

    @property
    def link_index(self) -> np.ndarray:
        """``[D, D]`` int32, read-only: which of `links` leads from row to column; 0 on the diagonal."""
        return self._classes[1]

    def between(self, source: int, target: int) -> Link:
        """The link from one device to another one."""
        late, wide = (
            q[source][target] if isinstance(q, tuple) else q for q in (self.latency, self.bandwidth)
        )
        return Link(late, wide)

    def transfer_time(self, size_bytes: float, time_unit: str, link: int = 0) -> float:
        """Time to move ``size_bytes`` over the given one of `links`, in units of ``time_unit``."""
        latency, bandwidth = self.links[link]
        return parse_time(latency, time_unit) + size_bytes / parse_bandwidth(bandwidth, time_unit)

    @property
    def over(self) -> str:
        """The links as readable text; empty if transfers cost nothing."""
        if not _costs(self.latency, self.bandwidth):
            return ""
        shown = [_shown(link) for link in self.links[:_SHOWN]]
        more = len(self.links) - len(shown)
        return " and ".join([*shown, *([f"{more} more"] if more else [])])

    def __repr__(self) -> str:
        text = str(self)
        return f"<Cluster: {text if len(text) <= 200 else f'{text[:199]}…'}>"

    def _repr_html_(self) -> str:
        return html_rows("cluster", [("", repr(self)[1:-1].removeprefix("Cluster: "))])

    def __str__(self) -> str:
        capacities = {format_bytes(m) for m in self.memory}
        memory = capacities.pop() if len(capacities) == 1 else ", ".join(map(format_bytes, self.memory))
        devices = f"{self.num_devices} device(s) of {memory}"
        if self.num_devices == 1:
            return devices
        return f"{devices}, {self.transfer} transfers {f'over {self.over}' if self.over else 'at no cost'}"


def _count(number: int, what: str) -> int:
    found = whole(number, 1)
    if found is None:
        raise ClusterError(f"cluster: {what} must be a whole number of at least 1, got {shown(number)}")
    if found > MAX_DEVICES:
        raise ClusterError(f"cluster: {shown(found)} devices; at most {MAX_DEVICES} are supported")
    return found


def _capacities(memory: Any) -> tuple[float, ...]:
    if isinstance(memory, str) or not np.ndim(memory) or not len(memory):
        raise ValueError(f"memory: give one capacity a device, at least one, got {memory!r}")
    if len(memory) > MAX_DEVICES:
        raise ValueError(f"memory: {len(memory)} devices; at most {MAX_DEVICES} are supported")
    return tuple(parse_bytes(m, f"memory[{k}]") for k, m in enumerate(memory))


def _transfer(transfer: Any, latency: Any, bandwidth: Any) -> tuple[TransferModel, Link]:
    """The model, and the link that gives latency and bandwidth where they are left out."""
    given = latency is not None or bandwidth is not None
    if transfer is None:
        return TransferModel.BLOCKING, _NOTHING if given else LINKS[DEFAULT_LINK].link
    if not isinstance(transfer, str):
        raise ValueError(f"transfer: give a model or a link as text, got {transfer!r}")
    model, link = parse_transfer(transfer, tuple(TransferModel))
    if link is not None and given:
        raise ValueError(
            f"transfer {transfer!r} has a link, and latency or bandwidth are given; leave one out"
        )
    return TransferModel(model), link or _NOTHING


def _quantities(value: Any, d: int, what: str) -> Quantity | Table:
    """A quantity, or a table of them with 0 on its diagonal; one number if all entries are equal."""
    check = _check_latency if what == "latency" else _check_bandwidth
    if isinstance(value, str) or not (isinstance(value, Sequence) or np.ndim(value)):
        return check(value, what)
    nothing = 0.0 if what == "latency" else math.inf
    known: dict[Any, Quantity] = {}

    def entry(i: int, j: int, value: Any) -> Quantity:
        if i == j:
            return nothing
        key = type(value), value if isinstance(value, (str, int, float)) else repr(value)
        if key not in known:
            known[key] = check(value, f"{what}[{i}][{j}]")
        return known[key]

    rows = _table(value, d, what)
    table = tuple(tuple(entry(i, j, v) for j, v in enumerate(row)) for i, row in enumerate(rows))
    entries = set(known.values())
    return table if len(entries) > 1 else entries.pop() if entries else nothing


def _table(rows: Any, d: int, what: str) -> list[list[Any]]:
    """``[D, D]`` as plain lists."""

    def plain(value: Any) -> list[Any]:
        value = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != d:
            raise ValueError(f"{what}: a table needs a row and a column for each of the {d} devices")
        return list(value)

    return [plain(row) for row in plain(rows)]


# NumPy's scalars become plain numbers, which JSON can hold.
def _check_latency(value: Quantity, what: str) -> Quantity:
    if math.isinf(parse_time(value, "s", what)):
        raise ValueError(f"{what}: must be finite, got {value!r}")
    return value if isinstance(value, str) else float(value)


def _check_bandwidth(value: Quantity, what: str) -> Quantity:
    parse_bandwidth(value, "s", what)
    return value if isinstance(value, str) else float(value)


def _costs(latency: Quantity | Table, bandwidth: Quantity | Table) -> bool:
    """Whether any transfer takes time."""
    late, wide = (
        {entry for row in q for entry in row} if isinstance(q, tuple) else {q} for q in (latency, bandwidth)
    )
    return any(parse_time(q, "s") > 0 for q in late) or any(1 / parse_bandwidth(q, "s") > 0 for q in wide)


def _shown(link: Link) -> str:
    late, wide = (q if isinstance(q, str) else f"{q:g}" for q in link)
    name, numbers = link_name(link), f"latency {late}, bandwidth {wide}"
    return f"links of {numbers} (as {name})" if name else f"links of {numbers}"
