"""`ComputationGraph`: ops, tensors and control edges, as validated NumPy arrays on the host."""

import dataclasses
import functools
import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from regal_jax.checks import check_kind, is_list, shown
from regal_jax.graph.arrays import fastest_runtimes
from regal_jax.graph.html import html_rows
from regal_jax.graph.topology import offsets, rows, successors, topological_order
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.graph.validation import DTYPES, as_array, plain, plain_unit, refusal, validate

if TYPE_CHECKING:
    import networkx
    from matplotlib.figure import Figure

__all__ = ["ComputationGraph"]


@dataclasses.dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A DAG of ops that produce and read tensors (docs/design.md, part 1).

    Axes: ``N`` ops, ``T`` tensors, ``E`` data edges, ``C`` control edges, ``D`` devices. Build one
    with `GraphBuilder` or an importer rather than by hand; arrays are read-only and sorted as stated.

    Attributes:
      name: Name of the graph.
      op_names: ``[N]``, distinct.
      op_kinds: ``[N]``, e.g. ``"dot_general"``; free text.
      runtime: ``[N]`` or, for heterogeneous devices, ``[N, D]`` float64, in `time_unit`.
      temp_bytes: ``[N]`` int64, scratch memory held only while the op runs.
      allowed_devices: ``[N]``; ``None`` allows all, else the sorted indices of the allowed devices.
      colocation_group: ``[N]``; ops that share a group (not ``None``) share a device.
      tensor_op: ``[T]`` int64, the producer; non-decreasing, so outputs of an op are consecutive, in
        the order of their ports.
      tensor_bytes: ``[T]`` int64.
      tensor_keep: ``[T]`` bool; a result of the program, never freed.
      edge_tensor: ``[E]`` int64, sorted by (tensor, op), no pair twice.
      edge_op: ``[E]`` int64, the op that reads `edge_tensor`.
      control_source: ``[C]`` int64, sorted by (source, target), no pair twice.
      control_target: ``[C]`` int64.
      time_unit: Unit of `runtime`, one of ``"s" "ms" "us" "ns"``.
      resident: ``[N]`` bool; the outputs of the op are in memory from time 0. Such an op is a source without
        runtime and `temp_bytes`. ``()`` means that no op is resident.

    Raises:
      GraphError: Any of these rules is broken; the message names op, field, value and remedy.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> graph = generate("chain", 3, seed=0)
      >>> print(graph)
      graph 'chain-3-0': 3 ops, 3 tensors, 2 data edges, 0 control edges
      >>> graph.runtime.tolist(), graph.time_unit
      ([51.0, 49.0, 56.0], 'us')
    """

    name: str
    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    runtime: np.ndarray
    temp_bytes: np.ndarray
    allowed_devices: tuple[tuple[int, ...] | None, ...]
    colocation_group: tuple[str | None, ...]
    tensor_op: np.ndarray
    tensor_bytes: np.ndarray
    tensor_keep: np.ndarray
    edge_tensor: np.ndarray
    edge_op: np.ndarray
    control_source: np.ndarray
    control_target: np.ndarray
    time_unit: str = "s"
    resident: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __post_init__(self) -> None:
        for field, dtype in DTYPES.items():
            object.__setattr__(self, field, as_array(self, field, dtype))
        if self.resident.size == 0:
            none = np.zeros(len(self.op_names), dtype=bool)
            none.setflags(write=False)
            object.__setattr__(self, "resident", none)
        # Plain tuples, ints and texts: the content hash must not depend on the types that were given.
        for field in ("op_names", "op_kinds", "allowed_devices", "colocation_group"):
            given = getattr(self, field)
            if not is_list(given):
                raise refusal(self, f"{field}: give a list with an entry for each op, got {shown(given)}")
            object.__setattr__(self, field, tuple(map(plain, given)))
        object.__setattr__(self, "time_unit", plain_unit(self.name, self.time_unit))
        validate(self)

    # Sizes and names ---------------------------------------------------------------------------

    @property
    def num_ops(self) -> int:
        """``N``."""
        return len(self.op_names)

    @property
    def num_tensors(self) -> int:
        """``T``."""
        return len(self.tensor_op)

    @functools.cached_property
    def op_index(self) -> dict[str, int]:
        """Op name to index."""
        return {name: o for o, name in enumerate(self.op_names)}

    @functools.cached_property
    def tensor_port(self) -> np.ndarray:
        """``[T]`` int64, which output of its producer a tensor is, from 0."""
        return np.arange(self.num_tensors) - self.output_offset[self.tensor_op]

    @functools.cached_property
    def tensor_resident(self) -> np.ndarray:
        """``[T]`` bool: whether the tensor is in memory from time 0."""
        return self.resident[self.tensor_op]

    def tensor_name(self, tensor: int) -> str:
        """``"OP:PORT"``."""
        return f"{self.op_names[self.tensor_op[tensor]]}:{self.tensor_port[tensor]}"

    def tensor_index(self, name: str) -> int:
        """The tensor called ``name`` (``"OP:PORT"``).

        Raises:
          ConfigError: ``name`` is no text.
          GraphError: There is no such tensor.
        """
        check_kind("name", name, str)
        op, _, port = name.rpartition(":")
        o = self.op_index.get(op)
        if (
            o is None
            or not port.isdecimal()
            or len(port) > 18
            or int(port) >= self.output_offset[o + 1] - self.output_offset[o]
        ):
            raise refusal(self, f"no tensor {name!r}; tensors are named OP:PORT")
        return int(self.output_offset[o]) + int(port)

    # Adjacency, each a CSR: the items of row i are items[offset[i]:offset[i + 1]] -----------------

    @functools.cached_property
    def edge_producer(self) -> np.ndarray:
        """``[E]`` int64, the op that produces `edge_tensor`."""
        return self.tensor_op[self.edge_tensor]

    @functools.cached_property
    def output_offset(self) -> np.ndarray:
        """``[N + 1]``: op ``o`` produces tensors ``output_offset[o]`` to ``output_offset[o + 1]``."""
        return offsets(self.tensor_op, self.num_ops)

    @functools.cached_property
    def consumer_offset(self) -> np.ndarray:
        """``[T + 1]``: tensor ``t`` is read by ``edge_op[consumer_offset[t]:consumer_offset[t + 1]]``."""
        return offsets(self.edge_tensor, self.num_tensors)

    @functools.cached_property
    def inputs(self) -> tuple[np.ndarray, np.ndarray]:
        """``(offset [N + 1], tensor [E])``: the distinct tensors that each op reads, ascending."""
        return rows(self.edge_op, self.edge_tensor, self.num_ops)

    @functools.cached_property
    def control_predecessors(self) -> tuple[np.ndarray, np.ndarray]:
        """``(offset [N + 1], op [C])``."""
        return rows(self.control_target, self.control_source, self.num_ops)

    @functools.cached_property
    def control_offset(self) -> np.ndarray:
        """``[N + 1]``: op ``o`` precedes ``control_target[control_offset[o]:control_offset[o + 1]]``."""
        return offsets(self.control_source, self.num_ops)

    @functools.cached_property
    def successors(self) -> tuple[np.ndarray, np.ndarray]:
        """``(offset [N + 1], op [E + C])``: the readers of each op's outputs, then its control targets."""
        return successors(
            self.num_ops, self.edge_producer, self.edge_op, self.control_source, self.control_target
        )

    @functools.cached_property
    def topological_order(self) -> np.ndarray:
        """``[N]`` op indices in topological order; among the ready ops the lowest index goes first."""
        return topological_order(
            self.num_ops, self.edge_producer, self.edge_op, self.control_source, self.control_target
        )

    @functools.cached_property
    def said_of_clusters(self) -> dict[str, dict[Any, Any]]:
        """Results for this graph and clusters that `regal_jax.graph.pairing` caches."""
        return {}

    # Placement constraints ---------------------------------------------------------------------

    @functools.cached_property
    def colocation_leader(self) -> np.ndarray:
        """``[N]`` int64: the lowest op index in the op's colocation group; itself if it has none."""
        first: dict[str, int] = {}
        leader = np.arange(self.num_ops)
        for o, group in enumerate(self.colocation_group):
            if group is not None:
                leader[o] = first.setdefault(group, o)
        leader.setflags(write=False)
        return leader

    @functools.cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything that may affect a plan (names, costs, edges, constraints)."""
        digest = hashlib.sha256(b"regal_jax graph 1\0" + self.time_unit.encode())
        for texts in (self.op_names, self.op_kinds):
            for text in texts:
                digest.update(text.encode() + b"\0")
        digest.update(repr((self.allowed_devices, self.colocation_group)).encode())
        for field in DTYPES:
            array = getattr(self, field)
            if field == "resident" and not array.any():
                continue  # Left out without residents, so that such graphs keep the hashes of older releases.
            digest.update(f"{field}{array.shape}".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    # Other forms --------------------------------------------------------------------------------

    def to_networkx(self) -> "networkx.MultiDiGraph":
        """The graph for networkx (extra ``interop``); `regal_jax.graph.networkx_graph` documents the form.

        Raises:
          MissingExtraError: networkx is not installed.
        """
        from regal_jax.graph.networkx_graph import to_networkx

        return to_networkx(self)

    @staticmethod
    def from_networkx(graph: "networkx.DiGraph") -> "ComputationGraph":
        """The graph that `to_networkx` converted, without loss, or that of any directed graph.

        Raises:
          GraphError: The argument is not a directed graph, or has a meaningless value.
        """
        from regal_jax.graph.networkx_graph import from_networkx

        return from_networkx(graph)

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the graph, and saves it if there is a ``path``; see `regal_jax.viz.plot_graph`."""
        # As `Plan.plot`: viz lies above graph, and this method only delegates to it.
        from regal_jax.viz import plot_graph

        return plot_graph(self, path)

    def _rows(self) -> list[tuple[str, str]]:
        """Rows of the summary that notebooks show."""
        fastest = fastest_runtimes(self)
        size, kept = float(self.tensor_bytes.sum()), float(self.tensor_bytes[self.tensor_keep].sum())
        edges = f"{len(self.edge_op):,} of data, {len(self.control_source):,} of control"
        return [
            ("ops", f"{self.num_ops:,}, {format_time(float(fastest.sum()), self.time_unit)} of work"),
            ("tensors", f"{self.num_tensors:,}, {format_bytes(size)}, of which kept {format_bytes(kept)}"),
            ("edges", edges),
        ]

    def __repr__(self) -> str:
        return f"<ComputationGraph {self.name!r}: {'; '.join(' '.join(row) for row in self._rows())}>"

    def _repr_html_(self) -> str:
        return html_rows(f"graph {self.name!r}", self._rows())

    def __str__(self) -> str:
        return (
            f"graph {self.name!r}: {self.num_ops} ops, {self.num_tensors} tensors, "
            f"{len(self.edge_op)} data edges, {len(self.control_source)} control edges"
        )
