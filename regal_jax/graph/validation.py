"""The checks of a `ComputationGraph`: types, shapes, values, edges, residents, devices, cycles."""

from typing import TYPE_CHECKING, Final

import numpy as np

from regal_jax.checks import shown, whole
from regal_jax.errors import GraphError
from regal_jax.graph.arrays import slowest_runtimes
from regal_jax.graph.topology import find_cycle
from regal_jax.graph.units import TIME_UNITS

if TYPE_CHECKING:
    from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["DTYPES", "MAX_BYTES", "as_array", "plain", "plain_unit", "refusal", "validate"]

MAX_BYTES: Final = 2**62
"""Largest sum of all sizes in a graph; int64 sums of larger ones could overflow."""

_MOST_TIME: Final = 1e307
"""Largest sum of all runtimes; searches add costs to times."""

DTYPES: Final = {
    "runtime": np.float64,
    "temp_bytes": np.int64,
    "tensor_op": np.int64,
    "tensor_bytes": np.int64,
    "tensor_keep": np.bool_,
    "edge_tensor": np.int64,
    "edge_op": np.int64,
    "control_source": np.int64,
    "control_target": np.int64,
    "resident": np.bool_,
}
"""Array fields of a graph and their types."""


def as_array(g: "ComputationGraph", field: str, dtype: type) -> np.ndarray:
    """A read-only copy as ``dtype``; refuses values that the conversion would change."""
    try:
        given = np.asarray(getattr(g, field))
        given = given.astype(dtype) if given.size == 0 else given
        with np.errstate(invalid="ignore"):
            array = np.array(given, dtype=dtype)
        if not (given.dtype.kind in "biuf" and (dtype is np.float64 or np.array_equal(array, given))):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        what = {np.float64: "numbers", np.int64: "whole numbers within int64", np.bool_: "true or false"}
        raise refusal(g, f"{field}: not an array of {what[dtype]}; convert it first") from None
    if array.ndim != 1 and (array.ndim == 0 or field != "runtime"):
        raise refusal(g, f"{field}: shape {array.shape}; give one number each")
    array.setflags(write=False)
    return array


def plain(value: object) -> object:
    """The value as tuples, texts and ints, whose content hash does not depend on the given types."""
    if isinstance(value, tuple | list) or (isinstance(value, np.ndarray) and value.ndim):
        return tuple(map(plain, value))
    if isinstance(value, str):
        return str(value)
    found = None if value is None else whole(value)
    return value if found is None else found


def plain_unit(graph: object, unit: object) -> str:
    """A unit of time as plans and files have it: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.

    Args:
      graph: Name of the graph, for the error.
      unit: A key of `TIME_UNITS`.

    Raises:
      GraphError: It is none.
    """
    if not isinstance(unit, str) or unit not in TIME_UNITS:
        known = ", ".join(filter(str.isascii, TIME_UNITS))
        raise GraphError(f"graph {graph!r}: time_unit: unknown {unit!r}; use one of {known}")
    return str(unit) if unit.isascii() else "us"


def refusal(g: "ComputationGraph", message: str) -> GraphError:
    """An error that names the graph."""
    return GraphError(f"graph {g.name!r}: {message}")


def validate(g: "ComputationGraph") -> None:
    """Checks all rules.

    Raises:
      GraphError: A rule is broken.
    """
    _check_shapes(g)
    _check_texts(g)
    _check_values(g)
    _check_edges(g)
    _check_residents(g)
    _check_devices(g)
    _check_cycles(g)


def _check_shapes(g: "ComputationGraph") -> None:
    n, t = len(g.op_names), len(g.tensor_op)
    if n == 0:
        raise refusal(g, "empty; add at least one op")
    for field, length in (
        ("op_kinds", n), ("runtime", n), ("temp_bytes", n), ("allowed_devices", n),
        ("colocation_group", n), ("tensor_bytes", t), ("tensor_keep", t),
        ("edge_tensor", len(g.edge_op)), ("control_source", len(g.control_target)),
        ("resident", n),
    ):  # fmt: skip
        if len(getattr(g, field)) != length:
            raise refusal(g, f"{field}: has {len(getattr(g, field))} entries, expected {length}")
    if g.runtime.ndim not in (1, 2) or (g.runtime.ndim == 2 and g.runtime.shape[1] == 0):
        raise refusal(g, f"runtime: shape {g.runtime.shape}; give one number per op, or one per device")


def _check_texts(g: "ComputationGraph") -> None:
    if not isinstance(g.name, str):
        raise refusal(g, "name: give a text")
    if _has_surrogate(g.name):
        raise refusal(g, "name: has a lone surrogate, which no file can hold; mend it")
    seen: set[str] = set()
    for name in g.op_names:
        if not isinstance(name, str) or not name:
            raise refusal(g, f"op name {name!r}: give every op a non-empty text as its name")
        if name in seen:
            raise refusal(g, f"op {name!r}: duplicate name; rename one of the two")
        seen.add(name)
    for name, kind, group in zip(g.op_names, g.op_kinds, g.colocation_group, strict=True):
        if not isinstance(kind, str) or not isinstance(group, str | None):
            raise refusal(g, f"op {name!r}: kind {kind!r} and colocation_group {group!r} must be texts")
        for text in (name, kind, group or ""):
            if _has_surrogate(text):
                raise refusal(
                    g, f"op {name!r}: {text!r} has a lone surrogate, which no file can hold; mend it"
                )
        if "\0" in name or "\0" in kind:  # It ends each of them in the content hash.
            raise refusal(g, f"op {name!r}: its name or kind {kind!r} has a null character; leave it out")


def _has_surrogate(text: str) -> bool:
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def _check_values(g: "ComputationGraph") -> None:
    bad = ~(np.isfinite(g.runtime) & (g.runtime >= 0))
    if bad.any():
        o = int(np.argwhere(bad)[0][0])
        raise refusal(
            g, f"op {g.op_names[o]!r}: runtime {g.runtime[o].tolist()} must be finite and zero or more"
        )
    with np.errstate(over="ignore"):
        work = slowest_runtimes(g).sum()
    if not work <= _MOST_TIME:
        raise refusal(g, f"runtimes add up to more than {_MOST_TIME:g}; check their unit")
    if (g.temp_bytes < 0).any():
        o = int(np.argmax(g.temp_bytes < 0))
        raise refusal(g, f"op {g.op_names[o]!r}: temp_bytes {g.temp_bytes[o]} must be zero or more")
    if (g.tensor_bytes < 0).any():
        t = int(np.argmax(g.tensor_bytes < 0))
        raise refusal(
            g, f"tensor {t} of op {int(g.tensor_op[t])}: size_bytes {g.tensor_bytes[t]} must be zero or more"
        )
    # Summed as floats: the int64 sum could wrap before it is compared.
    total = g.tensor_bytes.sum(dtype=np.float64) + g.temp_bytes.sum(dtype=np.float64)
    if total > MAX_BYTES:
        raise refusal(g, f"sizes add up to {total:.3g} bytes, more than {MAX_BYTES}; check their unit")


def _check_edges(g: "ComputationGraph") -> None:
    n, t = len(g.op_names), len(g.tensor_op)
    for field, bound, what in (
        ("tensor_op", n, "op"), ("edge_tensor", t, "tensor"), ("edge_op", n, "op"),
        ("control_source", n, "op"), ("control_target", n, "op"),
    ):  # fmt: skip
        ids = getattr(g, field)
        if ((ids < 0) | (ids >= bound)).any():
            bad = int(ids[np.argmax((ids < 0) | (ids >= bound))])
            raise refusal(g, f"{field}: {what} {bad} is missing; there are {bound}")
    if (np.diff(g.tensor_op) < 0).any():
        raise refusal(g, "tensor_op: must be non-decreasing; sort tensors by producer")
    for first, second in (("edge_tensor", "edge_op"), ("control_source", "control_target")):
        a, b = getattr(g, first), getattr(g, second)
        if ((np.diff(a) < 0) | ((np.diff(a) == 0) & (np.diff(b) <= 0))).any():
            raise refusal(g, f"{first}, {second}: must be sorted, and no pair may stand twice")


def _check_residents(g: "ComputationGraph") -> None:
    if not g.resident.any():
        return
    n = g.num_ops
    for what, ops in (
        ("reads a tensor", np.bincount(g.edge_op, minlength=n)),
        ("waits for another op", np.bincount(g.control_target, minlength=n)),
        ("takes time", slowest_runtimes(g)),
        ("has temp_bytes", g.temp_bytes),
    ):
        bad = g.resident & (ops > 0)
        if bad.any():
            name = g.op_names[int(np.argmax(bad))]
            raise refusal(
                g,
                f"op {name!r}: is resident but {what}; what it makes is there before anything runs, so drop "
                "that or resident",
            )


def _check_devices(g: "ComputationGraph") -> None:
    allowed: dict[str, set[int]] = {}
    for o, devices in enumerate(g.allowed_devices):
        name = g.op_names[o]
        if devices is None:
            continue
        if (
            not isinstance(devices, tuple)
            or not devices
            or any(whole(k, 0) is None for k in devices)
            or list(devices) != sorted(set(devices))
        ):
            raise refusal(
                g,
                f"op {name!r}: allowed_devices {shown(devices)} must be ascending device indices, at least "
                "one",
            )
        group = g.colocation_group[o]
        if group is not None:
            common = allowed.setdefault(group, set(devices))
            common &= set(devices)
            if not common:
                raise refusal(
                    g,
                    f"op {name!r}: allowed_devices {devices} leave its colocation group {group!r} "
                    "no device; allow one that the whole group may use",
                )


def _check_cycles(g: "ComputationGraph") -> None:
    if len(g.topological_order) == g.num_ops:
        return
    cycle = find_cycle(g.num_ops, g.edge_producer, g.edge_op, g.control_source, g.control_target)
    names = [g.op_names[o] for o in cycle]
    listed = names if len(names) <= 8 else [*names[:4], "...", *names[-3:]]
    raise refusal(g, f"cycle {' -> '.join([*listed, names[0]])}; remove one of its edges")
