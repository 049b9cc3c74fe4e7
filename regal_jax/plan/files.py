"""Plans as JSON: the format ``regal_jax.plan``, version 1.

A plan is one object. Scripts may rely on these fields:

- ``makespan``: number, in ``graph.time_unit``; ``peak_memory``: bytes, one whole number per device;
- ``placement``: op name to device index;
- ``events``, in schedule order, each with ``kind``, ``device``, ``start``, ``finish`` and either
  ``kind: "compute"`` with ``op`` (and ``op_kind`` where the graph names one) or ``kind: "transfer"`` with
  ``tensor`` (``"OP:PORT"``) and ``source``, the sending device.

Further fields: ``format``, ``version``, ``graph`` (``name``, ``hash``, ``time_unit``), ``cluster``
(``memory``, ``transfer``, and ``latency`` and ``bandwidth``, each for all pairs of devices or as a row for
each source; ``null`` is infinite), ``objective``, ``lower_bound``,
``one_device_makespan``, ``transfers`` (``count``, ``bytes``), ``memory_profile`` (for each device the
``bytes`` held from ``time`` on) and ``provenance``; if no plan fits the memory, ``impossible``
says why; if the search was given pins or colocation, ``pin`` (pattern over op names to
list of devices) and ``colocate`` (list of patterns). Numbers are written so that they are read back exactly.
Other fields are refused, so that a misspelt one does not count as left out.
"""

import json
import math
import reprlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regal_jax.errors import ClusterError, FormatError
from regal_jax.graph import Cluster
from regal_jax.plan.bounds import Objective
from regal_jax.plan.replay import Timeline
from regal_jax.storage.documents import parse_json

if TYPE_CHECKING:
    from regal_jax.plan.plan import Plan

__all__ = ["FORMAT", "VERSION", "cluster_document", "plan_fields", "plan_text", "read_cluster"]

FORMAT: Final = "regal_jax.plan"
VERSION: Final = 1

_FIELDS: Final = (
    "format", "version", "graph", "cluster", "objective", "makespan", "peak_memory", "lower_bound",
    "one_device_makespan", "transfers", "provenance", "impossible", "pin", "colocate", "placement", "events",
    "memory_profile",
)  # fmt: skip
_OF_GRAPH: Final = ("name", "hash", "time_unit")
_OF_CLUSTER: Final = ("memory", "transfer", "latency", "bandwidth")
_OF_TRANSFERS: Final = ("count", "bytes")
_OF_EVENTS: Final = {
    "compute": ("kind", "op", "op_kind", "device", "start", "finish"),
    "transfer": ("kind", "tensor", "source", "device", "start", "finish"),
}
_OF_PROFILES: Final = ("time", "bytes")


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """``cluster`` as plain values for JSON."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(v) for v in value]
        return None if value == math.inf else value

    return {
        "memory": plain(cluster.memory),
        "transfer": str(cluster.transfer),
        "latency": plain(cluster.latency),
        "bandwidth": plain(cluster.bandwidth),
    }


def plan_text(plan: "Plan") -> str:
    """``plan`` as JSON text."""
    line = plan.timeline
    document = {
        "format": FORMAT,
        "version": VERSION,
        "graph": {"name": plan.graph_name, "hash": plan.graph_hash, "time_unit": plan.time_unit},
        "cluster": cluster_document(plan.cluster),
        "objective": str(plan.objective),
        "makespan": line.makespan,
        "peak_memory": line.peak_memory.tolist(),
        "lower_bound": plan.lower_bound,
        "one_device_makespan": plan.one_device_makespan,
        "transfers": {"count": plan.num_transfers, "bytes": plan.transfer_bytes},
        "provenance": dict(plan.provenance),
        **({"impossible": plan.impossible} if plan.impossible else {}),
        **({"pin": {pattern: list(devices) for pattern, devices in plan.pin.items()}} if plan.pin else {}),
        **({"colocate": list(plan.colocate)} if plan.colocate else {}),
        "placement": dict(zip(plan.op_names, plan.placement.tolist(), strict=True)),
        "events": _event_rows(plan),
        "memory_profile": [
            {"time": time.tolist(), "bytes": held.tolist()}
            for time, held in zip(line.memory_time, line.memory_bytes, strict=True)
        ],
    }
    # One line per field, so that the head is readable and the rest compact.
    fields = (f"{json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in document.items())
    return "{\n" + ",\n".join(fields) + "\n}\n"


def _event_rows(plan: "Plan") -> list[dict[str, Any]]:
    line = plan.timeline
    columns = (line.op, line.port, line.device, line.source, line.start, line.finish)
    rows: list[dict[str, Any]] = []
    for op, port, device, source, start, finish in zip(*(c.tolist() for c in columns), strict=True):
        name, kind = plan.op_names[op], plan.op_kinds[op]
        times = {"device": device, "start": start, "finish": finish}
        if port >= 0:
            rows.append({"kind": "transfer", "tensor": f"{name}:{port}", "source": source, **times})
        else:
            rows.append({"kind": "compute", "op": name, **({"op_kind": kind} if kind else {}), **times})
    return rows


# Reading ------------------------------------------------------------------------------------------


def plan_fields(text: str) -> dict[str, Any]:
    """The constructor arguments of the `Plan` that ``text`` describes, without a check of its validity.

    Raises:
      FormatError: ``text`` is not such a document.
    """
    document = _document(text)
    _only(document, _FIELDS)
    graph = _get(document, "graph", _object)
    _only(graph, _OF_GRAPH, "graph.")
    cluster = read_cluster(_get(document, "cluster", _object))
    d = cluster.num_devices
    placement = _get(document, "placement", _object)
    names = tuple(placement)
    if not names:
        raise FormatError("plan: placement is empty; a plan has at least one op")
    places = [_get(placement, name, _index(d), "placement.") for name in names]
    columns, kinds = _events(_get(document, "events", _list), names, d)
    peaks = _each(_get(document, "peak_memory", _list), _integer, "peak_memory", d)
    times, held = _profile(_get(document, "memory_profile", _list), d)
    transfers = _get(document, "transfers", _object)
    _only(transfers, _OF_TRANSFERS, "transfers.")
    return {
        "graph_name": _get(graph, "name", _text, "graph."),
        "graph_hash": _get(graph, "hash", _text, "graph."),
        "time_unit": _get(graph, "time_unit", _unit, "graph."),
        "op_names": names,
        "op_kinds": kinds,
        "cluster": cluster,
        "objective": Objective(_get(document, "objective", _objective)),
        "placement": np.array(places, dtype=np.int64),
        "timeline": Timeline(
            *columns,
            makespan=_get(document, "makespan", _number),
            peak_memory=np.array(peaks, dtype=np.int64),
            memory_time=times,
            memory_bytes=held,
        ),
        "one_device_makespan": _get(document, "one_device_makespan", _number),
        "lower_bound": _get(document, "lower_bound", _number),
        "num_transfers": _get(transfers, "count", _integer, "transfers."),
        "transfer_bytes": _get(transfers, "bytes", _whole, "transfers."),
        "provenance": _get(document, "provenance", _object),
        "impossible": _get(document, "impossible", _text) if "impossible" in document else "",
        "pin": _pins(_get(document, "pin", _object), d) if "pin" in document else {},
        "colocate": tuple(_each(_get(document, "colocate", _list), _text, "colocate", None))
        if "colocate" in document
        else (),
    }


def _document(text: str) -> dict[str, Any]:
    try:
        document = parse_json(text)
    except FormatError as error:
        raise FormatError(f"plan: {error}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f'plan: no object with "format": "{FORMAT}"; is this a plan\'s file?')
    if document.get("version") != VERSION:
        raise FormatError(
            f"plan: version {reprlib.repr(document.get('version'))} cannot be read, only {VERSION}; "
            "use the regal_jax that wrote it"
        )
    return document


def _pins(fields: dict[str, Any], d: int) -> dict[str, tuple[int, ...]]:
    return {
        pattern: tuple(_each(_get(fields, pattern, _list, "pin."), _index(d), f"pin.{pattern!a}", None))
        for pattern in fields
    }


def read_cluster(fields: dict[str, Any]) -> Cluster:
    """The cluster that `cluster_document` wrote.

    Raises:
      FormatError: A field is missing, invalid or unknown.
    """
    _only(fields, _OF_CLUSTER, "cluster.")

    def infinite(value: Any) -> Any:
        if isinstance(value, list):
            return [infinite(v) for v in value]
        return math.inf if value is None else value

    memory = _each(_get(fields, "memory", _list, "cluster."), _capacity, "cluster.memory", None)
    try:
        return Cluster(
            tuple(infinite(m) for m in memory),
            _get(fields, "transfer", _text, "cluster."),
            latency=_get(fields, "latency", _table(_quantity), "cluster."),
            bandwidth=infinite(_get(fields, "bandwidth", _table(_capacity), "cluster.")),
        )
    except ClusterError as error:
        raise FormatError(f"plan: {error}") from None


def _events(rows: list[Any], names: tuple[str, ...], d: int) -> tuple[list[np.ndarray], tuple[str, ...]]:
    index = {name: o for o, name in enumerate(names)}
    kinds = [""] * len(names)
    table: list[tuple[Any, ...]] = []
    for i, row in enumerate(rows):
        where = f"events[{i}]."
        if not isinstance(row, dict) or row.get("kind") not in ("compute", "transfer"):
            raise FormatError(f"plan: events[{i}] is not an object of kind 'compute' or 'transfer'")
        _only(row, _OF_EVENTS[row["kind"]], where)
        port, source = -1, -1
        if row["kind"] == "compute":
            name = _get(row, "op", _text, where)
        else:
            tensor = _get(row, "tensor", _text, where)
            name, _, number = tensor.rpartition(":")
            if not (number.isascii() and number.isdecimal() and len(number) < 18):
                raise FormatError(f"plan: {where}tensor must be 'OP:PORT', got {reprlib.repr(tensor)}")
            port, source = int(number), _get(row, "source", _index(d), where)
        if name not in index:
            raise FormatError(f"plan: events[{i}] names op {reprlib.repr(name)}, which has no placement")
        if port < 0 and "op_kind" in row:
            kinds[index[name]] = _get(row, "op_kind", _text, where)
        device = _get(row, "device", _index(d), where)
        start, finish = _get(row, "start", _number, where), _get(row, "finish", _number, where)
        table.append((index[name], port, device, source, start, finish))
    columns = list(zip(*table, strict=True)) or [()] * 6
    types = (np.int64, np.int64, np.int64, np.int64, np.float64, np.float64)
    return [np.array(c, dtype=t) for c, t in zip(columns, types, strict=True)], tuple(kinds)


def _profile(rows: list[Any], d: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    times, held = [], []
    for k, row in enumerate(_each(rows, _object, "memory_profile", d)):
        where = f"memory_profile[{k}]."
        _only(row, _OF_PROFILES, where)
        time = _each(_get(row, "time", _list, where), _number, f"{where}time", None)
        byte = _each(_get(row, "bytes", _list, where), _integer, f"{where}bytes", len(time))
        times.append(np.array(time, dtype=np.float64))
        held.append(np.array(byte, dtype=np.int64))
    return tuple(times), tuple(held)


# Checks of values: each returns the value to store, or raises ValueError with the expected kind.


def _get(fields: dict[str, Any], key: str, check: Callable[[Any], Any], where: str = "") -> Any:
    try:
        return check(fields[key])
    except (KeyError, ValueError) as error:
        name = where + (key if key.isprintable() else ascii(key))
        if key not in fields:
            raise FormatError(f"plan: {name} is missing") from None
        raise FormatError(f"plan: {name} must be {error}, got {reprlib.repr(fields[key])}") from None


def _only(fields: dict[str, Any], known: tuple[str, ...], where: str = "") -> None:
    """Refuses other fields than those that are known."""
    unknown = fields.keys() - known
    if unknown:
        name = reprlib.repr(min(unknown))
        raise FormatError(f"plan: {where}{name} is unknown; drop it, or use one of {', '.join(known)}")


def _each(values: list[Any], check: Callable[[Any], Any], where: str, length: int | None) -> list[Any]:
    if length is not None and len(values) != length:
        raise FormatError(f"plan: {where} has {len(values)} entries, expected {length}")
    try:
        return [check(value) for value in values]
    except ValueError:
        # Again, for an error that names the place.
        return [_get({str(i): v}, str(i), check, f"{where}.") for i, v in enumerate(values)]


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("an object")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a list")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**63:
        raise ValueError("a whole number within int64")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or abs(value) >= 2**127:
        raise ValueError("a whole number")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e308:
        raise ValueError("a finite number")
    return float(value)


def _capacity(value: Any) -> Any:
    return value if value is None else _quantity(value)


def _quantity(value: Any) -> float | str:
    return value if isinstance(value, str) else _number(value)


def _table(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One value, or rows of values, without a check that these form a table."""

    def check_all(value: Any) -> Any:
        if not isinstance(value, list):
            return check(value)
        return [[check(v) for v in _list(row)] for row in value]

    return check_all


def _index(count: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if type(value) is not int or not 0 <= value < count:
            raise ValueError(f"an index below {count}")
        return value

    return check


def _unit(value: Any) -> str:
    if value not in ("s", "ms", "us", "ns"):
        raise ValueError("'s', 'ms', 'us' or 'ns'")
    return value


def _objective(value: Any) -> str:
    if value not in tuple(Objective):
        raise ValueError("'makespan' or 'peak-memory'")
    return value
