"""TensorFlow's ``CostGraphDef`` message, described by hand so that TensorFlow is not needed.

The numbers are the public wire schema of ``tensorflow/core/framework/cost_graph.proto``. The message
is in a descriptor pool of its own, so it cannot conflict with an imported TensorFlow.
"""

import functools
from typing import Any, Final

from regal_jax.storage.messages import message_classes

__all__ = ["new_cost_graph"]

_PACKAGE: Final = "tensorflow"

# Message -> its fields as "name number type"; a star marks a repeated field.
_MESSAGES: Final = {
    "TensorShapeProto": ("dim 2 TensorShapeProto.Dim*", "unknown_rank 3 bool"),
    "TensorShapeProto.Dim": ("size 1 int64", "name 2 string"),
    "CostGraphDef": ("node 1 CostGraphDef.Node*", "cost 2 CostGraphDef.AggregatedCost*"),
    "CostGraphDef.AggregatedCost": ("cost 1 float", "dimension 2 string"),
    "CostGraphDef.Node": (
        "name 1 string", "device 2 string", "id 3 int32", "input_info 4 CostGraphDef.Node.InputInfo*",
        "output_info 5 CostGraphDef.Node.OutputInfo*", "temporary_memory_size 6 int64", "is_final 7 bool",
        "control_input 8 int32*", "compute_cost 9 int64", "host_temp_memory_size 10 int64",
        "device_temp_memory_size 11 int64", "persistent_memory_size 12 int64", "compute_time 14 int64",
        "memory_time 15 int64", "device_persistent_memory_size 16 int64", "inaccurate 17 bool",
    ),
    "CostGraphDef.Node.InputInfo": ("preceding_node 1 int32", "preceding_port 2 int32"),
    "CostGraphDef.Node.OutputInfo": (
        "size 1 int64", "alias_input_port 2 int64", "shape 3 TensorShapeProto", "dtype 4 DataType",
    ),
}  # fmt: skip

# Names of the element types by number; a reference to one has its number plus 100.
_DTYPES: Final = (
    "INVALID", "FLOAT", "DOUBLE", "INT32", "UINT8", "INT16", "INT8", "STRING", "COMPLEX64", "INT64",
    "BOOL", "QINT8", "QUINT8", "QINT32", "BFLOAT16", "QINT16", "QUINT16", "UINT16", "COMPLEX128",
    "HALF", "RESOURCE", "VARIANT", "UINT32", "UINT64", "FLOAT8_E5M2", "FLOAT8_E4M3FN",
    "FLOAT8_E4M3FNUZ", "FLOAT8_E4M3B11FNUZ", "FLOAT8_E5M2FNUZ", "INT4", "UINT4", "INT2", "UINT2",
)  # fmt: skip


@functools.cache
def _message_class() -> type[Any]:
    values = {f"DT_{dtype}": number for number, dtype in enumerate(_DTYPES)}
    values |= {f"DT_{dtype}_REF": number for number, dtype in enumerate(_DTYPES[1:], 101)}
    return message_classes(_PACKAGE, _MESSAGES, {"DataType": values})["CostGraphDef"]


def new_cost_graph() -> Any:
    """An empty ``CostGraphDef`` message."""
    return _message_class()()
