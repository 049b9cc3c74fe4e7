"""`GraphBuilder`: a graph from ops that are added one by one, in any order."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from regal_jax.checks import is_list, shown, whole
from regal_jax.errors import GraphError
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.units import Quantity, parse_bytes, parse_time
from regal_jax.graph.validation import MAX_BYTES, plain_unit
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["GraphBuilder", "is_per_device"]


class GraphBuilder:
    """Collects ops; `build` checks everything and returns the graph.

    Ops may be added in any order and refer to ops that come later.

    Args:
      name: Name of the graph.
      time_unit: Unit of plain runtimes: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.

    Examples:
      >>> from regal_jax import GraphBuilder
      >>> builder = GraphBuilder("tiny")
      >>> builder.add_op("a", runtime="2s", outputs=["1MiB"])
      0
      >>> builder.add_op("b", runtime=1.0, inputs=["a:0"], outputs=[8], keep=[0])
      1
      >>> builder.build().num_ops
      2
    """

    def __init__(self, name: str = "graph", time_unit: str = "s") -> None:
        self.name = name
        self.time_unit = time_unit
        self._names: list[str] = []
        self._kinds: list[str] = []
        self._runtimes: list[Quantity | Sequence[Quantity]] = []
        self._temps: list[int] = []
        self._allowed: list[tuple[int, ...] | None] = []
        self._groups: list[str | None] = []
        self._outputs: list[list[int]] = []
        self._keeps: list[frozenset[int]] = []
        self._inputs: list[tuple[str | tuple[int, int], ...]] = []
        self._controls: list[tuple[str | int, ...]] = []
        self._residents: list[bool] = []

    def add_op(
        self,
        name: str,
        *,
        kind: str = "",
        runtime: Quantity | Sequence[Quantity] = 0.0,
        outputs: Sequence[Quantity] = (),
        inputs: Iterable[str | tuple[int, int]] = (),
        control_inputs: Iterable[str | int] = (),
        temp_bytes: Quantity = 0,
        keep: Iterable[int] = (),
        allowed_devices: Iterable[int] | None = None,
        colocation_group: str | None = None,
        resident: bool = False,
    ) -> int:
        """Adds one op.

        Args:
          name: Distinct in the graph.
          kind: Free text, e.g. the primitive.
          runtime: One number, or one per device; texts such as ``"5us"`` are converted to `time_unit`.
          outputs: The size of each output tensor, in bytes; fractions are rounded up.
          inputs: Tensors that the op reads, as ``"OP:PORT"`` (``"OP"`` means port 0) or as
            ``(op index, port)``. Reading one twice counts once.
          control_inputs: Ops that must come before, by name or index.
          temp_bytes: Scratch memory held only while the op runs; fractions are rounded up.
          keep: Ports of outputs that are results of the program and never freed.
          allowed_devices: Device indices that may run the op; ``None`` allows all.
          colocation_group: Ops that share a group share a device.
          resident: The outputs are in memory from time 0, like parameters and inputs of a program. Such an op
            has no inputs, control inputs, runtime or temp_bytes.

        Returns:
          The op's index.

        Raises:
          GraphError: A value is invalid.
        """
        check_interrupt()
        # All checks come first, so that a refused op changes nothing.
        if not isinstance(name, str):
            raise self._error(name, "its name must be a text")
        lists = {"outputs": outputs, "inputs": inputs, "control_inputs": control_inputs, "keep": keep}
        if allowed_devices is not None:
            lists["allowed_devices"] = allowed_devices
        for field, given in lists.items():
            if not is_list(given):
                raise self._error(name, f"{field}: {given!r} must be a list, such as [{given!r}]")
        temp = self._bytes(name, "temp_bytes", temp_bytes)
        sizes = [self._bytes(name, f"output {p}", b) for p, b in enumerate(outputs)]
        kept = list(keep)
        ports = [whole(p, 0, len(sizes) - 1) for p in kept]
        if None in ports:
            raise self._error(name, f"keep {shown(kept)}: it has {len(sizes)} outputs; use their ports")
        devices = None if allowed_devices is None else list(allowed_devices)
        try:
            allowed = None if devices is None else tuple(sorted(set(devices)))
        except TypeError:
            raise self._error(name, f"allowed_devices {shown(devices)}: give device indices") from None
        if not isinstance(resident, bool | np.bool_) and whole(resident, 0, 1) is None:
            raise self._error(name, f"resident: {shown(resident)} must be true or false")
        self._names.append(name)
        self._kinds.append(kind)
        self._runtimes.append(runtime)
        self._temps.append(temp)
        self._allowed.append(allowed)
        self._groups.append(colocation_group)
        self._outputs.append(sizes)
        self._keeps.append(frozenset(port for port in ports if port is not None))
        self._inputs.append(tuple(inputs))
        self._controls.append(tuple(control_inputs))
        self._residents.append(resident)
        return len(self._names) - 1

    def build(self) -> ComputationGraph:
        """The finished graph.

        Raises:
          GraphError: An op or tensor is missing, or a rule of `ComputationGraph` is broken.
        """
        unit = plain_unit(self.name, self.time_unit)
        index: dict[str, int] = {}
        for o, name in enumerate(self._names):
            if index.setdefault(name, o) != o:
                raise self._error(name, "duplicate name; rename one of the two")
        counts = [len(sizes) for sizes in self._outputs]
        offset = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        edges = {
            (int(offset[p]) + port, o)
            for o, inputs in enumerate(self._inputs)
            for p, port in (self._tensor(self._names[o], ref, index) for ref in inputs)
        }
        controls = {
            (self._op(self._names[o], ref, index), o) for o, refs in enumerate(self._controls) for ref in refs
        }
        edge = np.array(sorted(edges), dtype=np.int64).reshape(-1, 2)
        control = np.array(sorted(controls), dtype=np.int64).reshape(-1, 2)
        return ComputationGraph(
            name=self.name,
            op_names=tuple(self._names),
            op_kinds=tuple(self._kinds),
            runtime=self._runtime_array(unit),
            temp_bytes=np.array(self._temps, dtype=np.int64),
            allowed_devices=tuple(self._allowed),
            colocation_group=tuple(self._groups),
            tensor_op=np.repeat(np.arange(len(counts)), counts),
            tensor_bytes=np.array([b for sizes in self._outputs for b in sizes], dtype=np.int64),
            tensor_keep=np.array(
                [p in k for k, c in zip(self._keeps, counts, strict=True) for p in range(c)],
                dtype=bool,
            ),
            edge_tensor=edge[:, 0],
            edge_op=edge[:, 1],
            control_source=control[:, 0],
            control_target=control[:, 1],
            time_unit=unit,
            resident=np.array(self._residents),
        )

    def _error(self, op: str, message: str) -> GraphError:
        return GraphError(f"graph {self.name!r}: op {op!r}: {message}")

    def _bytes(self, op: str, field: str, value: Quantity) -> int:
        try:
            number = parse_bytes(value, field, round_up=True)
        except ValueError as error:
            raise self._error(op, str(error)) from None
        if number > MAX_BYTES:
            raise self._error(op, f"{field}: {value!r} must be finite and at most {MAX_BYTES} bytes")
        exact = whole(value)
        return int(number) if exact is None else exact

    def _runtime_array(self, unit: str) -> np.ndarray:
        rows: list[list[float]] = []
        for name, runtime in zip(self._names, self._runtimes, strict=True):
            many = list(runtime) if is_per_device(runtime) else [runtime]  # pyright: ignore
            if not many:
                raise self._error(name, "runtime: an empty list; give a number, or one for each device")
            try:
                rows.append([parse_time(r, unit, "runtime") for r in many])  # pyright: ignore
            except ValueError as error:
                raise self._error(name, str(error)) from None
        widths = {len(runtime) for runtime in self._runtimes if is_per_device(runtime)}  # pyright: ignore
        if len(widths) > 1:
            raise GraphError(
                f"graph {self.name!r}: ops give runtimes for {sorted(widths)} devices; "
                "use one number of devices"
            )
        if widths <= {1}:
            return np.array([row[0] for row in rows])
        width = widths.pop()
        return np.array([row * width if len(row) == 1 else row for row in rows])

    def _op(self, reader: str, ref: str | int, index: dict[str, int]) -> int:
        o = whole(index.get(ref) if isinstance(ref, str) else ref, 0, len(self._names) - 1)
        if o is None:
            raise self._error(reader, f"op {shown(ref)} is missing; add it or drop the edge")
        return o

    def _tensor(self, reader: str, ref: str | tuple[int, int], index: dict[str, int]) -> tuple[int, int]:
        if isinstance(ref, str):
            name, colon, port = ref.rpartition(":")
            if not colon or not port.isdecimal() or len(port) > 18 or (ref in index and name not in index):
                name, port = ref, "0"
            o, p = index.get(name, -1), int(port)
        else:
            try:
                o, p = ref
            except (TypeError, ValueError):
                raise self._error(reader, f"input {shown(ref)}: give 'OP:PORT' or (op index, port)") from None
        op = whole(o, 0, len(self._names) - 1)
        output = None if op is None else whole(p, 0, len(self._outputs[op]) - 1)
        if op is None or output is None:
            raise self._error(reader, f"tensor {shown(ref)} is missing; add it or drop the edge")
        return op, output


def is_per_device(runtime: Any) -> bool:
    """Whether a runtime is a list or an array, with a number for each device."""
    return is_list(runtime) and (isinstance(runtime, Sequence) or hasattr(runtime, "ndim"))
