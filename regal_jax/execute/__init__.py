"""Execution of plans: `compile` for jitted programs, `apply_to_onnx` for ONNX models."""

from regal_jax.execute.compile import CompiledFunction, compile
from regal_jax.execute.compiled import CompiledProgram, CompileStatistics
from regal_jax.execute.onnx_apply import DEVICE_KEY, apply_to_onnx
from regal_jax.execute.onnx_compare import OnnxComparison, compare_onnx
from regal_jax.execute.onnx_session import OnnxRun, measure_onnx, session_options
from regal_jax.execute.schedule import MemoryUse, Schedule

__all__ = [
    "DEVICE_KEY",
    "CompileStatistics",
    "CompiledFunction",
    "CompiledProgram",
    "MemoryUse",
    "OnnxComparison",
    "OnnxRun",
    "Schedule",
    "apply_to_onnx",
    "compare_onnx",
    "compile",
    "measure_onnx",
    "session_options",
]
