"""`measure_onnx`: memory and time of a model as ONNX Runtime reports them."""

import copy
import dataclasses
import json
import os
import pathlib
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from regal_jax.checks import check_whole, shown
from regal_jax.errors import ConfigError, MissingExtraError, ResourceError
from regal_jax.importers.files import PathLike
from regal_jax.importers.onnx_model import check_model
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["OnnxRun", "measure_onnx", "session_options"]

_ORDERS: Final = {"file": "PRIORITY_BASED", "default": "DEFAULT"}
_LEVELS: Final = {
    "off": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
_REQUESTED: Final = "mem_bytes_requested_in_use"
_SUFFIX: Final = "_kernel_time"
_FATAL: Final = 4
"""Level of log messages: errors that raise an exception are not printed in addition."""


def _import_onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("onnxruntime", "onnxruntime") from None
    return onnxruntime


def session_options() -> Any:
    """``SessionOptions`` with which ONNX Runtime keeps the order of a file, and frees memory at once.

    - ``execution_order`` is ``PRIORITY_BASED``: at each step the first ready node of the file runs.
      ``Shape`` and ``Size`` nodes that are ready run before all others.
    - ``graph_optimization_level`` is ``ORT_DISABLE_ALL``: a node that replaces others would come after all
      nodes of the file that are ready. Optimise a model before it is planned, not after.
    - ``enable_mem_reuse`` is false. Otherwise ONNX Runtime keeps buffers for later tensors of the same
      shape instead of freeing them. Nodes that may write over their input still do.
    - ``enable_mem_pattern`` is false. Otherwise, from the second run on, ONNX Runtime allocates all
      tensors as one block, which is larger than what they hold at once.

    Raises:
      MissingExtraError: `onnxruntime` is not installed.

    Examples:
      >>> from regal_jax.execution import session_options
      >>> str(session_options().execution_order)
      'ExecutionOrder.PRIORITY_BASED'
    """
    runtime = _import_onnxruntime()
    options = runtime.SessionOptions()
    options.execution_order = runtime.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    return options


@dataclasses.dataclass(frozen=True, eq=False)
class OnnxRun:
    """Runs of one model in ONNX Runtime, with the memory and time that its profiler reports.

    Memory is that of the allocator of the CPU. It includes outputs but not inputs.

    Attributes:
      peak_bytes: The most bytes that had been asked for and not freed when a node had run, less those from
        before the first node: the largest ``mem_bytes_requested_in_use``. It does not depend on how the
        allocator rounds, and does not include scratch memory of nodes.
      in_use_bytes: The most bytes that the allocator had handed out, less those from before the first node:
        ``mem_in_use_peak``. It includes scratch memory and the rounding of the allocator, which may double a
        request.
      held_bytes: The most bytes that the allocator had taken from the system, those from before the first
        node included: ``mem_arena_held``.
      seconds: Median time of a run, with the profiler; if there are several, the first is not counted.
      order: Names of the nodes in the order in which the first run executed them, nodes of bodies included.
      outputs: Outputs of the first run.
    """

    peak_bytes: int
    in_use_bytes: int
    held_bytes: int
    seconds: float
    order: tuple[str, ...]
    outputs: tuple[Any, ...]


@interruptible()
def measure_onnx(
    model: PathLike | Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    order: Literal["file", "default"] = "file",
    optimization: Literal["off", "basic", "extended", "all"] = "off",
    memory_reuse: bool = False,
    memory_pattern: bool = False,
    dims: Mapping[str, int] | None = None,
    runs: int = 1,
    threads: int = 0,
) -> OnnxRun:
    """Runs a model in ONNX Runtime on the CPU, and reads memory and time from its profile.

    Args:
      model: Path of an ``.onnx`` file, or a ``ModelProto`` without external data.
      inputs: Input name to array; by default standard normal floats, and zeros of any other type.
      order: ``"file"`` for ``ExecutionOrder.PRIORITY_BASED``, ``"default"`` for ``ExecutionOrder.DEFAULT``.
      optimization: Level of graph optimisations. With any but ``"off"`` the order of the file does not
        hold: a node that replaces others comes after all nodes of the file that are ready.
      memory_reuse: Let ONNX Runtime keep buffers for later tensors, see `session_options`.
      memory_pattern: Let ONNX Runtime allocate all tensors as one block from the second run on, see
        `session_options`; this needs at least two ``runs``.
      dims: Sizes of symbolic input dimensions by name, for the default inputs.
      runs: Number of runs.
      threads: Threads of a node; 0 for the default of ONNX Runtime.

    Raises:
      ConfigError: An argument is not allowed, or ONNX Runtime refuses the model.
      MissingExtraError: `onnxruntime` is not installed.
      ResourceError: The profile of this version of ONNX Runtime does not contain memory.
    """
    runtime = _import_onnxruntime()
    options = session_options()
    options.execution_order = _choice(runtime.ExecutionOrder, "order", order, _ORDERS)
    options.graph_optimization_level = _choice(
        runtime.GraphOptimizationLevel, "optimization", optimization, _LEVELS
    )
    options.enable_mem_reuse, options.enable_mem_pattern = memory_reuse, memory_pattern
    options.log_severity_level, options.enable_profiling = _FATAL, True
    options.intra_op_num_threads = check_whole("threads", threads, 0)
    runs = check_whole("runs", runs, 1)
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = os.path.join(folder, "profile")
        if isinstance(model, (str, os.PathLike)):
            source = os.fspath(model)
        else:
            check_model(model)
            source = model.SerializeToString()
        try:
            session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
            given = _default_inputs(session, dims or {}) if inputs is None else dict(inputs)
            outputs: Any = ()
            for run in range(runs):
                check_interrupt()
                made = session.run(None, given)
                if not run:
                    outputs = copy.deepcopy(made)
                del made  # Otherwise the results would count in the peak of the next run.
        except _refusals(runtime) as error:
            reason = (str(error).splitlines() or [""])[0][:200]
            raise ConfigError(f"ONNX Runtime cannot run the model: {reason}") from None
        events = json.loads(pathlib.Path(session.end_profiling()).read_text(encoding="utf-8"))
    return _run_of(events, runs, tuple(outputs))


def _choice(members: Any, what: str, name: str, names: Mapping[str, str]) -> Any:
    if not isinstance(name, str) or name not in names:
        raise ConfigError(f"{what}: must be one of {', '.join(names)}, got {shown(name)}")
    return getattr(members, names[name])


def _refusals(runtime: Any) -> tuple[type[Exception], ...]:
    """The exceptions of ONNX Runtime, which have no common base class."""
    names = vars(runtime.capi.onnxruntime_pybind11_state).values()
    own = tuple(each for each in names if isinstance(each, type) and issubclass(each, Exception))
    return (*own, RuntimeError, ValueError, TypeError)


def _default_inputs(session: Any, dims: Mapping[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made: dict[str, np.ndarray] = {}
    for each in session.get_inputs():
        kind = each.type.removeprefix("tensor(").removesuffix(")")
        name = {"float": "float32", "double": "float64", "string": "object"}.get(kind, kind)
        try:
            dtype = np.dtype(name)
        except TypeError:
            raise ConfigError(
                f"input {each.name!r} is of type {each.type}, which has no default; give inputs"
            ) from None
        shape = [size if isinstance(size, int) else dims.get(size, 1) for size in each.shape]
        if dtype.kind == "f":
            made[each.name] = rng.standard_normal(shape).astype(dtype)
        else:
            made[each.name] = np.full(shape, "" if dtype.kind == "O" else 0, dtype)
    return made


def _run_of(events: Sequence[Mapping[str, Any]], runs: int, outputs: tuple[Any, ...]) -> OnnxRun:
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith(_SUFFIX)]
    took = [e["dur"] / 1e6 for e in events if e["name"] == "model_run"]
    said = [e["args"] for e in nodes]
    if said and _REQUESTED not in said[0]:
        raise ResourceError(
            "the profile of this ONNX Runtime has no figures of memory; install onnxruntime 1.32 or later"
        )

    def most(field: str, before: int = 0) -> int:
        return max((int(each[field]) for each in said), default=before) - before

    count = len(nodes) // runs

    def before(field: str, change: str) -> int:
        # A node in a body is in the profile before the node with the body, which has allocated by then.
        return min((int(each[field]) - int(each[change]) for each in said[:count]), default=0)

    return OnnxRun(
        peak_bytes=most(_REQUESTED, before(_REQUESTED, "mem_requested_in_use_delta")),
        in_use_bytes=most("mem_in_use_peak", before("mem_bytes_in_use", "mem_in_use_delta")),
        held_bytes=most("mem_arena_held"),
        seconds=statistics.median(took[1:] or took),
        order=tuple(e["name"].removesuffix(_SUFFIX) for e in nodes[:count]),
        outputs=outputs,
    )
