"""`constrain`: ops pinned to devices and kept together, by patterns over their names."""

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from regal_jax.checks import check_kind, check_whole, is_list, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["Colocate", "Pin", "constrain", "plain_constraints"]

Pin = Mapping[str, int | Collection[int]]
"""Pattern over op names -> the device or devices on which its ops may run."""
Colocate = str | Sequence[str]
"""Patterns over op names; the ops of each share a device."""


def constrain(
    graph: ComputationGraph,
    pin: Pin | None = None,
    colocate: Colocate = (),
    *,
    devices: int | None = None,
) -> ComputationGraph:
    """``graph`` with ops pinned to devices or colocated, in addition to its own constraints.

    A pattern is an op's name, or one with the wildcards of `fnmatch`: ``*`` (slashes too), ``?`` and
    ``[...]``; it is case-sensitive. ``"encoder/*"`` matches the ops of the forward pass in ``encoder``.
    ``"*encoder/*"`` also matches those of its backward pass and its parameters.

    Args:
      graph: The graph; it is not changed.
      pin: Pattern -> device, or several to choose from. An op that several patterns match may use the devices
        that all of them allow.
      colocate: Patterns; the ops of each share a device. Groups that have an op in common become one.
      devices: Number of devices, if known.

    Returns:
      The graph; the same one if nothing was asked for.

    Raises:
      ConfigError: A pattern matches no op, a device does not exist, pins leave an op or a colocation group
        without a device, or an argument is of another kind.

    Examples:
      >>> from regal_jax import GraphBuilder
      >>> from regal_jax.graph import constrain
      >>> builder = GraphBuilder("tiny")
      >>> ops = [builder.add_op(name) for name in ("encoder/a", "encoder/b", "head")]
      >>> graph = constrain(builder.build(), pin={"encoder/*": 0}, colocate="encoder/*")
      >>> graph.allowed_devices
      ((0,), (0,), None)
    """
    check_kind("graph", graph, ComputationGraph)
    devices = None if devices is None else check_whole("devices", devices, 1)
    pin, patterns = plain_constraints(pin, colocate)
    if not pin and not patterns:
        return graph
    groups = _groups(graph, patterns)
    allowed = _allowed(graph, pin, devices)
    _check_groups(graph, groups, allowed)
    return dataclasses.replace(graph, allowed_devices=tuple(allowed), colocation_group=tuple(groups))


def plain_constraints(pin: Any, colocate: Any) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """The arguments of `constrain` as tuples, which can be read twice and written to a file.

    Raises:
      ConfigError: An argument or the devices of a pin are of another kind.
    """
    if pin is not None and not isinstance(pin, Mapping):
        raise ConfigError(f"pin: {pin!r} must be a mapping such as {{'encoder/*': 0}}")
    if not isinstance(colocate, str) and not is_list(colocate):
        raise ConfigError(f"colocate: {colocate!r} must be a pattern such as 'encoder/*', or a list of them")
    pins = {pattern: _devices(pattern, given) for pattern, given in (pin or {}).items()}
    return pins, (colocate,) if isinstance(colocate, str) else tuple(colocate)


def _groups(graph: ComputationGraph, patterns: Sequence[str]) -> list[str | None]:
    """The group of each op; united groups take the name of the first of them in the graph."""
    groups = list(graph.colocation_group)
    for pattern in patterns:
        ops = _matches(graph, pattern, "colocate")
        united = {groups[o] for o in ops} - {None}
        taken = [group for group in groups if group in united]
        name = taken[0] if taken else graph.op_names[ops[0]]
        # Another group, which has none of these ops, may already have that name.
        while not taken and name in groups:
            name = f"{name}+"
        members = set(ops)
        groups = [name if o in members or g in united else g for o, g in enumerate(groups)]
    return groups


def _allowed(
    graph: ComputationGraph, pin: Mapping[str, tuple[int, ...]], devices: int | None
) -> list[tuple[int, ...] | None]:
    allowed = list(graph.allowed_devices)
    by: dict[int, str] = {}
    for pattern, wanted in pin.items():
        if devices is not None and wanted[-1] >= devices:
            raise ConfigError(
                f"pin: {pattern!r}: there is no device {shown(wanted[-1])}; the cluster has {devices}, from 0"
            )
        for o in _matches(graph, pattern, "pin"):
            before = allowed[o]
            common = wanted if before is None else tuple(k for k in before if k in wanted)
            if not common:
                why = f"the pin {by[o]!r}" if o in by else "the graph itself"
                placed = graph.op_kinds[o] == "input" and o not in by
                raise ConfigError(
                    f"graph {graph.name!r}: op {graph.op_names[o]!r}: the pin {pattern!r} allows "
                    f"{_text(wanted)}, {why} {_text(before or ())}; "
                    f"{'place inputs with input_devices' if placed else 'leave it one that all allow'}"
                )
            allowed[o], by[o] = common, pattern
    return allowed


def _devices(pattern: str, given: Any) -> tuple[int, ...]:
    """The devices of a pin, ascending."""
    items = list(given) if is_list(given) else [given]
    numbers = {whole(k, 0) for k in items}
    if not items or None in numbers:
        raise ConfigError(
            f"pin: {pattern!r}: {shown(given)} must be the index of a device, from 0, or several"
        )
    return tuple(sorted(k for k in numbers if k is not None))


def _matches(graph: ComputationGraph, pattern: str, what: str) -> list[int]:
    """The ops that ``pattern`` names, at least one."""
    if not isinstance(pattern, str):
        raise ConfigError(f"{what}: {pattern!r} must be the name of an op or a pattern such as 'encoder/*'")
    if pattern in graph.op_index:
        return [graph.op_index[pattern]]
    match = re.compile(fnmatch.translate(pattern)).match
    ops = [o for o, name in enumerate(graph.op_names) if match(name)]
    if not ops:
        near = difflib.get_close_matches(pattern, graph.op_names, n=3, cutoff=0.0)
        raise ConfigError(
            f"{what}: no op of graph {graph.name!r} matches {pattern!r}; "
            f"the nearest names are {', '.join(map(repr, near))}"
        )
    return ops


def _check_groups(
    graph: ComputationGraph,
    groups: Sequence[str | None],
    allowed: Sequence[tuple[int, ...] | None],
) -> None:
    # The ops that leave a group fewer devices, and those that are left.
    common: dict[str, tuple[list[int], set[int]]] = {}
    for o, (group, mine) in enumerate(zip(groups, allowed, strict=True)):
        if group is None or mine is None:
            continue
        deciding, left = common.setdefault(group, ([], set(mine)))
        if not deciding or left - set(mine):
            deciding.append(o)
        left &= set(mine)
        if not left:
            *others, last = (f"{graph.op_names[i]!r} ({_text(allowed[i] or ())})" for i in deciding)
            raise ConfigError(
                f"graph {graph.name!r}: ops {', '.join(others)} and {last} share a device, and group "
                f"{group!r} is left none; change a pin or a pattern of colocate"
            )


def _text(devices: Sequence[int]) -> str:
    return f"device{'s' if len(devices) > 1 else ''} {', '.join(map(str, devices))}"
