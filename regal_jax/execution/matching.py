"""Checks that a plan is for a program, and lists the events of a plan with all of its transfers."""

from collections.abc import Hashable, Iterator, Sequence

from regal_jax.errors import PlanError
from regal_jax.plan import Plan

__all__ = ["check_names", "full_events"]


def check_names(plan: Plan, names: Sequence[str], what: str) -> None:
    """Refuses a plan whose ops are not those of a program.

    Args:
      plan: The plan.
      names: Names of the ops of the program.
      what: What the program is, for the message, e.g. ``"function"``.

    Raises:
      PlanError: The names differ.
    """
    if plan.op_names == tuple(names):
        return
    pairs = enumerate(zip(plan.op_names, names, strict=False))
    first = next((i for i, (a, b) in pairs if a != b), min(len(plan.op_names), len(names)))
    here, there = (repr(own[first]) if first < len(own) else "none" for own in (plan.op_names, tuple(names)))
    raise PlanError(
        f"the plan for {plan.graph_name!r} has {len(plan.op_names)} ops and the {what} {len(names)}: "
        f"op {first} is {here} in the plan and {there} in the {what}; plan the graph of this {what}"
    )


def full_events(
    plan: Plan, made: Sequence[Sequence[Hashable]], read: Sequence[Sequence[Hashable]]
) -> Iterator[tuple[int, int, int]]:
    """``(op, output or -1, device)`` of all events of a plan.

    Transfers that the plan needs but does not have as events come directly after the op that makes the
    tensor.

    Args:
      plan: The plan.
      made: For each op the values that it makes, one for each output.
      read: For each op the values that it reads.
    """
    line, place = plan.timeline, plan.placement
    producer = {value: (op, port) for op, own in enumerate(made) for port, value in enumerate(own)}
    events = list(zip(line.op.tolist(), line.port.tolist(), line.device.tolist(), strict=True))
    planned = {(op, port, device) for op, port, device in events if port >= 0}
    missing: dict[int, dict[tuple[int, int], None]] = {}
    for op, values in enumerate(read):
        for value in values:
            maker, port = producer[value]
            device = int(place[op])
            if device != place[maker] and (maker, port, device) not in planned:
                missing.setdefault(maker, {})[port, device] = None
    for op, port, device in events:
        yield op, port, device
        if port < 0:
            for late, to in missing.get(op, {}):
                yield op, late, to
