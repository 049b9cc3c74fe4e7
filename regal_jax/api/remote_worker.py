"""What the workers of an engine run for `regal_jax.api.remote`."""

import dataclasses
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.api.optimize import optimize_many
from regal_jax.engines import Message
from regal_jax.importers.native import parse_native
from regal_jax.plan import Plan
from regal_jax.plan.files import read_cluster
from regal_jax.problem import Bucket
from regal_jax.runtime.deadline import Deadline
from regal_jax.solvers import Solver
from regal_jax.solvers.loop.watch import Improvement
from regal_jax.solvers.wire import unpack_solver

__all__ = ["plan_graphs"]

_SOLVERS: Final = 4
"""Calls whose solvers are kept, with the programs that their networks need."""

_kept: dict[str, tuple[Solver, dict[str, str], "tempfile.TemporaryDirectory[str]"]] = {}
_warm: set[tuple[str, str]] = set()


def plan_graphs(
    common: Message, messages: Sequence[Message], tell: Callable[[int, Message, bool], None]
) -> None:
    """Plans some graphs; reports each plan as soon as it is found.

    Args:
      common: Settings, as `regal_jax.api.remote.call_message` writes them.
      messages: For each graph its cluster and, as bytes, the graph and earlier plans.
      tell: Called with the position of a graph and its plan.
    """
    head = common.head
    graphs = [parse_native(message.blobs[0].decode()) for message in messages]
    clusters = [read_cluster(message.head["cluster"]) for message in messages]
    # A graph may be there for several clusters, each time with all of its plans.
    blobs = {graph.content_hash: message.blobs[1:] for graph, message in zip(graphs, messages, strict=True)}
    earlier = [Plan.from_json(blob.decode()) for some in blobs.values() for blob in some]
    solver, named = _solver(common)
    options: dict[str, Any] = {
        name: head[name] for name in ("evaluations", "contract", "target", "stall", "runs")
    }
    options |= {"objective": head["objective"], "seed": _seed(head), "method": solver, "progress": False}
    options |= {"pin": head["pin"] or None, "colocate": head["colocate"], "batch_size": head["batch_size"]}
    options |= {"warm_start": earlier or head["warm_start"], "time_limit": head["seconds"]}

    def on_plan(member: int, plan: Plan) -> None:
        tell(member, Message({}, [_renamed(plan, named).to_json().encode()]), True)

    def on_improvement(member: int, improvement: Improvement) -> None:
        plan = _renamed(improvement.plan, named)
        tell(member, Message({"evaluations": improvement.evaluations}, [plan.to_json().encode()]), False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The calling process warns of arguments and plans.
        programs = {(head["call"], str(Bucket.of(graph))) for graph in graphs}
        if head["warm_up"] and not programs <= _warm:
            optimize_many(graphs, clusters, **options)
            _warm.update(programs)
        clock = Deadline()
        optimize_many(
            graphs,
            clusters,
            **options,
            on_plan=on_plan,
            on_improvement=on_improvement if head["improvements"] else None,
        )
    for member in range(len(graphs)):
        tell(member, Message({"seconds": clock.spent / len(graphs)}), False)


def _solver(common: Message) -> tuple[Solver, dict[str, str]]:
    """The solver of a call, and the names of its files of weights."""
    call = common.head["call"]
    if call not in _kept:
        while len(_kept) >= _SOLVERS:
            _kept.pop(next(iter(_kept)))[2].cleanup()
        folder = tempfile.TemporaryDirectory(prefix="regal-jax-", ignore_cleanup_errors=True)
        _kept[call] = (*unpack_solver(common.head["solver"], common.blobs, folder.name), folder)
    return _kept[call][:2]


def _seed(head: Any) -> Any:
    if head["seed"] is not None:
        return head["seed"]
    return jax.random.wrap_key_data(jnp.array(head["key"], np.uint32), impl=head["key_kind"])


def _renamed(plan: Plan, named: dict[str, str]) -> Plan:
    """``plan`` with the name that the user gave to a file of weights."""
    name = named.get(plan.provenance.get("policy", ""))
    if name is None:
        return plan
    return dataclasses.replace(plan, provenance={**plan.provenance, "policy": name})
