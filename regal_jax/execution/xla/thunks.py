"""The steps of a compiled program for CPUs (XLA's thunks), and the memory that each of them uses."""

from collections.abc import Iterator
from typing import Any, Final

from regal_jax.execution.xla.errors import NotSupported

__all__ = ["UPDATING", "accesses", "inner_sequences", "steps_of"]

# Kind of step -> fields that it reads, and fields that it writes.
_FIELDS: Final = {
    "call_thunk": ("", ""),
    "conditional_thunk": ("branch_index_buffer", ""),
    "sort_thunk": ("inputs", "inputs"),
    "dot_thunk": ("lhs rhs", "out"),
    "rng_get_and_update_state_thunk": ("", "state"),
    "top_k_thunk": ("values", "output indices"),
    "while_thunk": ("", ""),
    "kernel_thunk": ("arguments", "results"),
    "copy_thunk": ("src", "dst"),
    "fft_thunk": ("input", "output"),
    "custom_call_thunk": ("arguments", "results"),
    "convolution_thunk": ("input kernel", "output"),
    "partition_id_thunk": ("", "logical_id_buffer"),
    "replica_id_thunk": ("", "logical_id_buffer"),
    "ynn_fusion_thunk": ("arguments", "results"),
}
UPDATING: Final = frozenset(kind for kind, (reads, writes) in _FIELDS.items() if reads and reads == writes)
"""Kinds that write what they read."""

_SHARED: Final = frozenset({"kind", "info"})


def steps_of(sequence: Any) -> Iterator[tuple[Any, str, Any]]:
    """Each step of a sequence: its message, its kind, and the message of that kind.

    Raises:
      NotSupported: The program has a step of another kind, or one in another form.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    for thunk in sequence.thunks:
        kinds = [field.name for field, _ in thunk.ListFields() if field.name not in _SHARED]
        body = getattr(thunk, kinds[0]) if len(kinds) == 1 else thunk
        if len(kinds) != 1 or len(UnknownFieldSet(thunk)) or len(UnknownFieldSet(body)):
            raise NotSupported(f"a step of the compiled program is of an unknown kind ({thunk.kind})")
        yield thunk, kinds[0], body


def accesses(kind: str, body: Any) -> tuple[list[Any], list[Any]]:
    """The slices of memory that a step reads, and those that it writes; steps within it are left out."""
    reads, writes = (_named(kind, body, names.split()) for names in _FIELDS[kind])
    return reads, writes


def _named(kind: str, body: Any, names: list[str]) -> list[Any]:
    holder = body.op_buffers if kind == "custom_call_thunk" else body
    return [part for name in names for part in _slices(getattr(holder, name))]


def _slices(field: Any) -> Iterator[Any]:
    for item in [field] if hasattr(field, "DESCRIPTOR") else field:
        yield item.slice if "slice" in item.DESCRIPTOR.fields_by_name else item


def inner_sequences(kind: str, body: Any) -> list[Any]:
    """The sequences of steps that a step runs: the condition of a loop, then its body."""
    if kind == "call_thunk":
        return [body.called_sequence]
    if kind == "while_thunk":
        return [body.cond_sequence, body.body_sequence]
    return list(body.branch_sequences) if kind == "conditional_thunk" else []
