"""Buffers of one HLO computation, the versions of their content, and the steps that use them.

This module does not import JAX."""

import dataclasses
from collections.abc import Iterator

from regal_jax.importers.hlo_shapes import Array, Shape
from regal_jax.importers.hlo_text import Instruction

__all__ = ["Buffer", "Flow", "Place", "Ref", "Step", "Value", "device_bytes", "fits", "flat", "shaped"]

Place = tuple[str, int]
"""An instruction and the index of a leaf of its result."""


@dataclasses.dataclass(eq=False, slots=True)
class Buffer:
    """Memory of one leaf of a value. It is equal only to itself.

    Attributes:
      size: Bytes on the device.
      home: The instruction and the leaf of its result for which it is made.
      mutable: Whether it may be overwritten in place.
      writers: Steps that overwrite it, in order; version ``k`` is what the ``k``-th of them leaves.
      claims: For each of ``writers``, the leaf of its result that overwrites the buffer.
      readers: Steps that read it, those that overwrite it included.
      since: Those of ``readers`` that come after the last writer.
    """

    size: int
    home: Place
    mutable: bool
    writers: list[int] = dataclasses.field(default_factory=list)
    claims: list[Place] = dataclasses.field(default_factory=list)
    readers: list[int] = dataclasses.field(default_factory=list)
    since: list[int] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Ref:
    """A version of a buffer; ``None`` for constants."""

    buffer: Buffer | None
    version: int = 0


Value = Ref | tuple["Value", ...]


@dataclasses.dataclass(eq=False, slots=True)
class Step:
    """An instruction that runs.

    Attributes:
      instruction: The instruction.
      reads: The buffers that it reads, each once.
      waits: Steps that must run before it, whether or not it reads their results.
      makes: The buffers that it makes.
    """

    instruction: Instruction
    reads: list[Buffer]
    waits: set[int]
    makes: list[Buffer]


@dataclasses.dataclass(eq=False, slots=True)
class Flow:
    """A computation as steps in the order of its text.

    Attributes:
      parameters: For each parameter, by number, its instruction and its buffers.
      steps: The steps.
      results: The buffers of the root, leaf by leaf; ``None`` for constants.
      passed: Leaf of the root -> the (parameter, leaf) that it returns unchanged.
      temp_bytes: Peak memory without parameters and results.
    """

    parameters: dict[int, tuple[Instruction, list[Buffer]]]
    steps: list[Step]
    results: list[Buffer | None]
    passed: dict[int, tuple[int, int]]
    temp_bytes: int


def device_bytes(array: Array) -> int:
    return 0 if array.on_host else array.bytes


def flat(value: Value) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    else:
        for item in value:
            yield from flat(item)


def fits(value: Value, shape: Shape) -> bool:
    """Whether ``value`` has the structure of ``shape``; values of damaged texts could nest endlessly."""
    if isinstance(shape, Array) or isinstance(value, Ref):
        return isinstance(shape, Array) and isinstance(value, Ref)
    return len(value) == len(shape.items) and all(map(fits, value, shape.items))


def shaped(shape: Shape, refs: Iterator[Ref]) -> Value:
    if isinstance(shape, Array):
        return next(refs)
    return tuple(shaped(item, refs) for item in shape.items)
