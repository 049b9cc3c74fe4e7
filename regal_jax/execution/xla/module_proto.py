"""Descriptions of the messages of XLA into which an order is written.

The numbers are the public wire schema of ``xla/service/hlo.proto``, of the ``CompilationResultProto`` of
XLA's compiler for CPUs, and of ``ExecutableAndOptionsProto``. Fields that are not described here are kept
unchanged.
"""

import functools
from typing import Any, Final

from regal_jax.storage.messages import message_classes

__all__ = ["new_executable", "new_module", "new_result"]

# Message -> its fields as "name number type"; a star marks a repeated field.
_MESSAGES: Final = {
    "Aliasing": ("output_shape_index 1 int64*", "operand_index 2 int64", "operand_shape_index 3 int64*"),
    "Layout": ("tail_padding_alignment_in_elements 16 int64",),
    "Shape": ("element_type 2 int64", "layout 5 Layout"),
    "Literal": ("shape 1 Shape", "preds 2 bool*"),
    "Instruction": (
        "name 1 string", "opcode 2 string", "shape 3 Shape", "literal 8 Literal", "parameter_number 9 int64",
        "fusion_kind 11 string", "tuple_index 13 int64", "id 35 int64", "operand_ids 36 int64*",
        "control_predecessor_ids 37 int64*",
        "called_computation_ids 38 int64*", "custom_call_has_side_effect 65 bool",
        "output_operand_aliasing 74 Aliasing*",
    ),
    "Computation": (
        "name 1 string", "instructions 2 Instruction*", "id 5 int64", "root_id 6 int64",
        "is_fusion_computation 7 bool",
    ),
    "Sequence": ("instruction_ids 1 int64*",),
    "SequenceOf": ("key 1 int64", "value 2 Sequence"),
    "Schedule": ("sequences 1 SequenceOf*",),
    "AliasEntry": (
        "output_shape_index 1 int64*", "parameter_number 2 int64", "parameter_shape_index 3 int64*",
        "kind 4 int64",
    ),
    "AliasConfig": ("entries 1 AliasEntry*",),
    "HloModule": (
        "name 1 string", "computations 3 Computation*", "entry_computation_id 6 int64", "schedule 7 Schedule",
        "input_output_alias 8 AliasConfig",
    ),
    "ModuleWithConfig": ("hlo_module 1 HloModule",),
    "Location": ("shape_index 3 int64*", "instruction_id 4 int64"),
    "Buffer": ("id 1 int64", "size 2 int64", "defined_at 3 Location"),
    "Assigned": ("logical_buffer_id 1 int64", "offset 2 int64", "size 3 int64"),
    "Allocation": (
        "index 1 int64", "size 2 int64", "is_entry_computation_parameter 5 bool", "parameter_number 6 int64",
        "maybe_live_out 7 bool", "assigned 9 Assigned*", "parameter_shape_index 10 int64*",
        "is_parameter_aliased_with_output 13 bool",
    ),
    "Assignment": ("logical_buffers 1 Buffer*", "buffer_allocations 3 Allocation*"),
    "CompilationResult": ("hlo_module 1 ModuleWithConfig", "buffer_assignment 2 Assignment"),
    "ExecutableAndOptions": ("serialized_executable 1 bytes",),
}  # fmt: skip


@functools.cache
def _classes() -> dict[str, type[Any]]:
    return message_classes("xla_of_regal_jax", _MESSAGES)


def new_module() -> Any:
    """An empty ``HloModuleProto``."""
    return _classes()["HloModule"]()


def new_result() -> Any:
    """An empty ``CompilationResultProto`` of a program for CPUs."""
    return _classes()["CompilationResult"]()


def new_executable() -> Any:
    """An empty ``ExecutableAndOptionsProto``."""
    return _classes()["ExecutableAndOptions"]()
