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
    "Layout": ("minor_to_major 1 int64*", "tail_padding_alignment_in_elements 16 int64",),
    "Shape": ("element_type 2 int64", "dimensions 3 int64*", "layout 5 Layout"),
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
        "is_thread_local 3 bool", "is_tuple 11 bool", "is_constant 12 bool",
        "is_parameter_aliased_with_output 13 bool",
    ),
    "Assignment": (
        "logical_buffers 1 Buffer*", "buffer_allocations 3 Allocation*", "heap_simulator_traces 4 Opaque*",
    ),
    "CompilationResult": (
        "hlo_module 1 ModuleWithConfig", "buffer_assignment 2 Assignment", "thunk_sequence 6 Thunks",
    ),
    "Opaque": (),
    "Slice": ("offset 1 int64", "size 2 int64", "buffer_allocation_index 3 int64", "element_type 4 int64"),
    "ShapeSlice": ("shape 1 Opaque", "slice 2 Slice"),
    "SliceShape": ("slice 1 Slice", "shape 2 Opaque"),
    "Call": ("called_sequence 1 Thunks",),
    "Conditional": ("branch_sequences 1 Thunks*", "branch_index_buffer 2 Slice"),
    "Convolution": (
        "dimension_numbers 1 Opaque", "window 2 Opaque", "feature_group_count 3 int64", "input 4 ShapeSlice",
        "kernel 5 ShapeSlice", "output 6 ShapeSlice", "options 7 Opaque",
    ),
    "Sort": (
        "dimension 1 int64", "is_stable 2 bool", "direction 3 Opaque", "comparator_name 4 string",
        "inputs 5 ShapeSlice*",
    ),
    "Dot": ("dimensions 1 Opaque", "lhs 2 ShapeSlice", "rhs 3 ShapeSlice", "out 4 ShapeSlice"),
    "RngState": ("delta 1 int64", "state 2 Slice"),
    "TopK": (
        "batch_size 1 int64", "input_size 2 int64", "k 3 int64", "values 4 Slice", "output 5 Slice",
        "indices 6 Slice",
    ),
    "While": (
        "cond_sequence 1 Thunks", "body_sequence 2 Thunks", "trip_count 3 Opaque", "cond_buffer 4 Slice",
    ),
    "Kernel": (
        "kernel_name 1 string", "num_workgroups 2 Opaque", "invariant_arguments 3 int64*",
        "min_alignment 4 Opaque", "arguments 5 SliceShape*", "results 6 SliceShape*",
    ),
    "Copy": ("src 1 ShapeSlice", "dst 2 ShapeSlice"),
    "Fft": (
        "is_multi_thread_eigen 1 bool", "fft_type 2 int32", "fft_length 3 int64*", "input 4 ShapeSlice",
        "output 5 ShapeSlice",
    ),
    "CustomBuffers": ("arguments 1 ShapeSlice*", "results 2 ShapeSlice*"),
    "CustomCall": (
        "api_version 1 int64", "target_name 2 string", "backend_config 3 bytes", "op_buffers 4 CustomBuffers",
    ),
    "LogicalId": ("logical_id_buffer 1 Slice",),
    "YnnFusion": (
        "options 1 Opaque", "instruction_id 2 int64", "arguments 3 ShapeSlice*", "results 4 ShapeSlice*",
    ),
    "Info": ("op_name 1 string",),
    "Thunk": (
        "kind 1 string", "info 2 Info", "call_thunk 3 Call", "conditional_thunk 4 Conditional",
        "sort_thunk 5 Sort", "dot_thunk 7 Dot", "rng_get_and_update_state_thunk 8 RngState",
        "top_k_thunk 9 TopK", "while_thunk 10 While", "kernel_thunk 11 Kernel", "copy_thunk 12 Copy",
        "fft_thunk 13 Fft", "custom_call_thunk 16 CustomCall", "convolution_thunk 17 Convolution",
        "partition_id_thunk 19 LogicalId", "replica_id_thunk 20 LogicalId", "ynn_fusion_thunk 21 YnnFusion",
    ),
    "Thunks": ("thunks 1 Thunk*", "thunk_resources 2 Opaque*"),
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
