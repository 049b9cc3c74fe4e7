"""Refusal of graphs that foreign formats cannot hold, with the same errors from every writer."""

from typing import Final

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph

__all__ = ["ACCEPT_LOSS", "refuse_constraints"]

ACCEPT_LOSS: Final = "pass lossy=True (--lossy)"
"""How a user accepts that a format loses something, for messages."""


def refuse_constraints(graph: ComputationGraph, what: str, lossy: bool) -> None:
    """Refuses a graph whose problem the format would change.

    Args:
      graph: The graph to be written.
      what: Name of the format in the error.
      lossy: Whether the user accepts the loss of constraints on placement.

    Raises:
      FormatError: The graph has runtimes for several devices, or constraints on placement without ``lossy``.
    """
    check_kind("graph", graph, ComputationGraph)
    if graph.runtime.ndim == 2:
        raise FormatError(
            f"graph {graph.name!r}: runtime: {what} holds one runtime per op, not one per device; "
            "keep one column, or write JSON"
        )
    if lossy:
        return
    for field in ("allowed_devices", "colocation_group"):
        for name, value in zip(graph.op_names, getattr(graph, field), strict=True):
            if value is not None:
                raise FormatError(
                    f"graph {graph.name!r}: op {name!r}: {field} {value!r} has no place in {what}; "
                    f"{ACCEPT_LOSS} to leave constraints out, or write JSON"
                )
