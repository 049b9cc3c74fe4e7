"""Buckets: the padded sizes that a compiled program is made for."""

import dataclasses
from collections.abc import Iterable
from typing import Self

from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph

__all__ = ["Bucket"]


def _rung(size: int) -> int:
    """The smallest of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ... that is not less than ``size``."""
    if size <= 2:
        return size
    power = 1 << (size - 1).bit_length()
    return power * 3 // 4 if size <= power * 3 // 4 else power


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Padded sizes of every graph in a batch. Padding costs a little time and changes no result.

    Attributes:
      ops: ``N``, at least 1.
      tensors: ``T``.
      edges: ``E``, data edges.
      controls: ``C``, control edges.
    """

    ops: int
    tensors: int
    edges: int
    controls: int

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, least = getattr(self, field.name), 1 if field.name == "ops" else 0
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConfigError(f"bucket: {field.name} must be a whole number from {least}, got {value!r}")

    @classmethod
    def exact(cls, graph: ComputationGraph) -> Self:
        """The sizes of ``graph``, without padding."""
        return cls(graph.num_ops, graph.num_tensors, len(graph.edge_op), len(graph.control_source))

    @classmethod
    def of(cls, graph: ComputationGraph) -> Self:
        """The bucket of ``graph``: depends on nothing but the graph.

        Sizes go up to the next rung of 1, 2, 3, 4, 6, 8, 12, ...; tensors and edges are at least the
        ops and controls a quarter of them (or none), so that graphs of one family share few buckets.
        """
        size = cls.exact(graph)
        ops = _rung(size.ops)
        return cls(
            ops=ops,
            tensors=_rung(max(size.tensors, ops)),
            edges=_rung(max(size.edges, ops)),
            controls=_rung(max(size.controls, ops // 4, 1)) if size.controls else 0,
        )

    @classmethod
    def common(cls, buckets: Iterable[Self]) -> Self:
        """The smallest bucket that holds whatever any of ``buckets`` (at least one) holds."""
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
