"""Execution of plans: on JAX devices (`execute`), in XLA (`compile`), in PyTorch and in ONNX Runtime.

Each part is loaded at its first use, so that `apply_to_onnx` loads neither PyTorch nor XLA's part.
"""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.execution.devices.function import PlannedFunction, execute
    from regal_jax.execution.devices.links import measure_cluster
    from regal_jax.execution.devices.record import ExecutionRecord
    from regal_jax.execution.onnx.apply import DEVICE_KEY, apply_to_onnx
    from regal_jax.execution.onnx.compare import OnnxComparison, compare_onnx
    from regal_jax.execution.onnx.session import OnnxRun, measure_onnx, session_options
    from regal_jax.execution.torch.apply import apply_to_torch
    from regal_jax.execution.torch.fused import inductor_options
    from regal_jax.execution.torch.measure import TorchRun, measure_torch
    from regal_jax.execution.torch.module import PlannedModule
    from regal_jax.execution.xla.compiled import CompiledProgram, CompileStatistics
    from regal_jax.execution.xla.function import CompiledFunction, compile
    from regal_jax.execution.xla.schedule import MemoryUse, Schedule

__all__ = [
    "DEVICE_KEY",
    "CompileStatistics",
    "CompiledFunction",
    "CompiledProgram",
    "ExecutionRecord",
    "MemoryUse",
    "OnnxComparison",
    "OnnxRun",
    "PlannedFunction",
    "PlannedModule",
    "Schedule",
    "TorchRun",
    "apply_to_onnx",
    "apply_to_torch",
    "compare_onnx",
    "compile",
    "execute",
    "inductor_options",
    "measure_cluster",
    "measure_onnx",
    "measure_torch",
    "session_options",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "devices.function": ("PlannedFunction", "execute"),
        "devices.links": ("measure_cluster",),
        "devices.record": ("ExecutionRecord",),
        "onnx.apply": ("DEVICE_KEY", "apply_to_onnx"),
        "onnx.compare": ("OnnxComparison", "compare_onnx"),
        "onnx.session": ("OnnxRun", "measure_onnx", "session_options"),
        "torch.apply": ("apply_to_torch",),
        "torch.fused": ("inductor_options",),
        "torch.measure": ("TorchRun", "measure_torch"),
        "torch.module": ("PlannedModule",),
        "xla.compiled": ("CompileStatistics", "CompiledProgram"),
        "xla.function": ("CompiledFunction", "compile"),
        "xla.schedule": ("MemoryUse", "Schedule"),
    },
    extras={"torch": "torch"},
)
