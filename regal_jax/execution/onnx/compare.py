"""`compare_onnx`: a model before and after a plan was applied, with predicted and measured memory."""

import dataclasses
import os
import warnings
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from regal_jax.execution.onnx.order import NodeOrders
from regal_jax.execution.onnx.session import OnnxRun, measure_onnx
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.importers.files import PathLike
from regal_jax.importers.onnx_model import onnx_ops, read_onnx
from regal_jax.importers.onnx_nodes import subgraphs
from regal_jax.runtime.interrupts import interruptible

__all__ = ["OnnxComparison", "compare_onnx", "same_values"]

_RANDOM: Final = {
    "Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxComparison:
    """A model and the same model in the order of a plan, as ONNX Runtime ran them.

    Attributes:
      shipped: The model in ONNX Runtime's default order, with reuse of memory, which is its default.
      default: The model in ONNX Runtime's default order, with `session_options` otherwise.
      before: The model in the order of its file, with `session_options`.
      after: The model in the order of the plan, with `session_options`.
      predicted_before: Predicted peak of the outputs of nodes in the order of the file, in bytes.
      predicted_after: Predicted peak in the order of the plan, in bytes.
      equal: Whether the outputs are equal, bit for bit; ``None`` if the model draws random numbers, or its
        own outputs change with the order.
    """

    shipped: OnnxRun
    default: OnnxRun
    before: OnnxRun
    after: OnnxRun
    predicted_before: int
    predicted_after: int
    equal: bool | None

    @property
    def worse(self) -> bool:
        """Whether the plan's order takes more memory than one of the others."""
        return self.after.peak_bytes > min(
            run.peak_bytes for run in (self.shipped, self.default, self.before)
        )

    def __str__(self) -> str:
        rows = [("", "predicted", "measured", "arena", "seconds")]
        for name, predicted, run in (
            ("default order, memory reused", None, self.shipped),
            ("default order", None, self.default),
            ("order of the file", self.predicted_before, self.before),
            ("order of the plan", self.predicted_after, self.after),
        ):
            guess = "" if predicted is None else format_bytes(predicted)
            rows.append(
                (
                    name,
                    guess,
                    format_bytes(run.peak_bytes),
                    format_bytes(run.held_bytes),
                    format_time(run.seconds, "s"),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        told = {
            True: "equal",
            False: "different",
            None: "not compared: the model draws random numbers",
        }
        return "\n".join([*lines, f"outputs: {told[self.equal]}"])


@interruptible()
def compare_onnx(
    model: PathLike | Any,
    applied: PathLike | Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    dims: Mapping[str, int] | None = None,
    runs: int = 1,
    threads: int = 0,
) -> OnnxComparison:
    """Runs a model in ONNX Runtime's default order, in the order of its file and in that of a plan.

    Graph optimisations are off, because with them ONNX Runtime does not follow the order of a file.

    Args:
      model: Path of an ``.onnx`` file, or a ``ModelProto`` without external data.
      applied: The result of `regal_jax.apply_to_onnx` for the model, or the path of its file.
      inputs: See `measure_onnx`. The predictions are for their sizes.
      dims: See `measure_onnx`.
      runs: See `measure_onnx`.
      threads: See `measure_onnx`.

    Raises:
      ConfigError, MissingExtraError, ResourceError: See `measure_onnx`.
      FormatError: A file is not a model.
    """
    said: dict[str, Any] = {"dims": dims, "runs": runs, "threads": threads}
    shipped = measure_onnx(model, inputs, order="default", memory_reuse=True, **said)
    default = measure_onnx(model, inputs, order="default", **said)
    before = measure_onnx(model, inputs, **said)
    after = measure_onnx(applied, inputs, **said)
    # Without a seed, ONNX Runtime numbers its generators by the place of their nodes.
    steady = same_values(default.outputs, before.outputs) and not _draws(_loaded(model))
    return OnnxComparison(
        shipped=shipped,
        default=default,
        before=before,
        after=after,
        predicted_before=_predicted(model, dims, inputs),
        predicted_after=_predicted(applied, dims, inputs),
        equal=same_values(before.outputs, after.outputs) if steady else None,
    )


def _loaded(model: PathLike | Any) -> Any:
    return read_onnx(model) if isinstance(model, (str, os.PathLike)) else model


def _draws(model: Any) -> bool:
    """Whether nodes of the model draw random numbers."""

    def draws(node: Any) -> bool:
        return node.op_type in _RANDOM or any(draws(inner) for body in subgraphs(node) for inner in body.node)

    return any(map(draws, (*model.graph.node, *(node for f in model.functions for node in f.node))))


def _predicted(
    model: PathLike | Any, dims: Mapping[str, int] | None, inputs: Mapping[str, Any] | None
) -> int:
    proto, sizes = _loaded(model), dict(dims or {})
    if inputs is not None:
        proto, left = _sized(proto, inputs)
        sizes = {name: size for name, size in sizes.items() if name in left}
    with warnings.catch_warnings(action="ignore"):  # They were issued when the plan was made.
        orders = NodeOrders(proto, onnx_ops(proto, dims=sizes, in_place=True))
    return orders.peak(orders.filed())


def _sized(model: Any, inputs: Mapping[str, Any]) -> tuple[Any, set[str]]:
    """A copy of ``model`` with the sizes of ``inputs``, and the symbolic dimensions that it still has."""
    sized, left = type(model)(), set[str]()
    sized.CopyFrom(model)
    for info in sized.graph.input:
        if info.type.HasField("tensor_type"):
            dims, shape = info.type.tensor_type.shape.dim, np.shape(inputs.get(info.name, 0))
            for k, dim in enumerate(dims):
                if not dim.HasField("dim_value") or dim.dim_value < 0:
                    if len(shape) == len(dims):
                        dim.dim_value = shape[k]
                    else:
                        left.add(dim.dim_param)
    return sized, left


def same_values(one: Any, other: Any) -> bool:
    """Whether outputs of a session are equal, bit for bit."""
    if isinstance(one, (list, tuple)):
        return (
            isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same_values, one, other))
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and same_values(sorted(one.items()), sorted(other.items()))
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        same = one.dtype == other.dtype and one.shape == other.shape
        return same and (
            one.tolist() == other.tolist() if one.dtype.kind == "O" else one.tobytes() == other.tobytes()
        )
    return type(one) is type(other) and one == other
