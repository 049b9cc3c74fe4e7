"""Buckets: the padded sizes of a compiled program."""

import dataclasses
from collections.abc import Iterable
from typing import Self

from regal_jax.checks import shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["Bucket", "rung"]


def rung(size: int) -> int:
    """The smallest of 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not less than ``size``, at least 1."""
    power = _power(size)
    return power * 3 // 4 if 2 < size <= power * 3 // 4 else power


def _length(size: int) -> int:
    """The smallest of 64, 128, 256, 512, 1024, 1536, 2048, 3072, ... that is not less than ``size``."""
    power = max(_power(size), 64)
    return power if power <= 1024 else rung(size)


def _multiple(size: int, unit: int) -> int:
    """The smallest of ``unit`` times 1, 2, 4, 8, ... that is not less than ``size``."""
    return unit * _power(-(-size // unit))


def _power(size: int) -> int:
    """The smallest power of two that is not less than ``size``, which is at least 1."""
    return 1 << (size - 1).bit_length()


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Padded sizes of every graph in a batch. Padding costs little time and does not change results.

    Attributes:
      ops: ``N``, at least 1.
      tensors: ``T``, at least 1.
      edges: ``E``, data edges, at least 1.
      controls: ``C``, control edges.
    """

    ops: int
    tensors: int
    edges: int
    controls: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            given, least = getattr(self, field.name), 0 if field.name == "controls" else 1
            value = whole(given, least)
            if value is None:
                raise ConfigError(
                    f"bucket: {field.name} must be a whole number from {least}, got {shown(given)}"
                )
            object.__setattr__(self, field.name, value)

    @classmethod
    def exact(cls, graph: ComputationGraph) -> Self:
        """The smallest bucket that holds ``graph``."""
        edges, controls = len(graph.edge_op), len(graph.control_source)
        return cls(graph.num_ops, max(graph.num_tensors, 1), max(edges, 1), controls)

    @classmethod
    def of(cls, graph: ComputationGraph) -> Self:
        """The bucket of ``graph``, which depends only on the graph.

        Ops and tensors cost time; each is padded to the next of 64, 128, 256, 512, 1024, 1536, ..., and
        tensors at least to the padded ops. Edges cost little and are padded to 2, 4, 8, ... times the padded
        ops. Control edges are padded to 0, 1, 2, 4, ... times the padded ops. So few programs serve graphs of
        all sizes.
        """
        size = cls.exact(graph)
        ops = _length(size.ops)
        return cls(
            ops=ops,
            tensors=_length(max(size.tensors, ops)),
            edges=_multiple(size.edges, 2 * ops),
            controls=_multiple(size.controls, ops) if size.controls else 0,
        )

    @classmethod
    def common(cls, buckets: Iterable[Self]) -> Self:
        """The smallest bucket that holds all graphs of any of ``buckets`` (at least one)."""
        rows = [dataclasses.astuple(bucket) for bucket in buckets]
        return cls(*(max(column) for column in zip(*rows, strict=True)))

    def check_holds(self, graph: ComputationGraph) -> None:
        """Raises `ConfigError` if ``graph`` is too large for this bucket."""
        size = self.exact(graph)
        for field in dataclasses.fields(self):
            need, have = getattr(size, field.name), getattr(self, field.name)
            if need > have:
                raise ConfigError(
                    f"bucket: graph {graph.name!r} has {need} {field.name}, the bucket holds {have}; "
                    "use Bucket.of(graph) or a larger one"
                )
