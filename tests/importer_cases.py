"""Graphs and small files of every format, for the tests of importers."""

import dataclasses
from typing import Any

import hypothesis.strategies as st

from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers import DeviceProfile

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)


@st.composite
def graphs(draw, *, plain: bool = False) -> ComputationGraph:
    """Any small graph; ``plain`` ones fit a CostGraphDef (and so have no kinds)."""
    n = draw(st.integers(1, 8))
    names = draw(st.lists(NAMES, min_size=n, max_size=n, unique=True))
    devices = 0 if plain else draw(st.integers(0, 3))
    cost = st.integers(0, 2**40).map(float) if plain else st.floats(0, 1e300)
    builder = GraphBuilder(draw(NAMES), "us" if plain else draw(st.sampled_from(["s", "ms", "us", "ns"])))
    tensors: list[tuple[int, int]] = []
    for o in range(n):
        resident = not plain and draw(st.booleans())
        sizes = draw(st.lists(st.integers(0, 2**50), max_size=3))
        keep = draw(st.sets(st.integers(0, 2)).map(lambda s: {p for p in s if p < len(sizes)}))  # noqa: B023
        if plain:
            keep = draw(st.sampled_from([set(), set(range(len(sizes)))]))
        builder.add_op(
            names[o],
            kind="" if plain else draw(st.text(max_size=3).filter(str.isprintable)),
            runtime=0.0
            if resident
            else draw(st.lists(cost, min_size=devices, max_size=devices))
            if devices
            else draw(cost),
            outputs=sizes,
            inputs=draw(st.lists(st.sampled_from(tensors), max_size=4)) if tensors and not resident else [],
            control_inputs=draw(st.lists(st.integers(0, o - 1), max_size=3)) if o and not resident else [],
            temp_bytes=0 if resident else draw(st.integers(0, 2**50)),
            keep=keep,
            # Every op may run on device 0, so that every colocation group has an allowed device.
            allowed_devices=None if plain else draw(st.none() | st.sets(st.integers(1, 3)).map({0}.union)),
            colocation_group=None if plain else draw(st.none() | st.sampled_from(["a", "b", "ü"])),
            resident=resident,
        )
        tensors += [(o, p) for p in range(len(sizes))]
    graph = builder.build()
    if devices == 1:  # the builder flattens runtimes of one device
        graph = dataclasses.replace(graph, runtime=graph.runtime[:, None])
    return graph


COST_GRAPH = """
node { name: "_SOURCE" output_info { size: 0 alias_input_port: -1 } }
node {
  name: "a"
  id: 1
  control_input: 0
  compute_cost: 58
  output_info { size: 70 alias_input_port: -1 shape { dim { size: -1 } dim { size: 3 } } dtype: DT_FLOAT }
  output_info { size: -1 alias_input_port: -1 }
}
node {
  name: "b"
  device: "/gpu:0"
  id: 7
  input_info { preceding_node: 1 }
  input_info { preceding_node: 1 preceding_port: 1 }
  input_info { preceding_node: 1 }
  compute_cost: 47
  temporary_memory_size: 5
  device_temp_memory_size: 6
  device_persistent_memory_size: 9
  output_info { size: 52 alias_input_port: 0 }
  is_final: true
  inaccurate: true
}
cost { cost: 1.5 dimension: "memory" }
"""

STG = """    4
    0     0    0
    1     3    1     0
    2     5    1     0
    3     2    2     1    2
    4     7    1     2
    5     0    2     3    4
# Part 1
# CP Length : 12
"""

WORKFLOW = """{
 "name": "tiny", "schemaVersion": "1.5",
 "workflow": {
  "specification": {
   "tasks": [
    {"name": "split", "id": "T1", "parents": [], "children": ["T2"],
     "inputFiles": ["in.txt"], "outputFiles": ["part.txt", "log.txt"]},
    {"name": "work", "id": "T2", "parents": ["T1"], "children": ["T3"],
     "inputFiles": ["part.txt"], "outputFiles": ["part.out"]},
    {"name": "end", "id": "T3", "parents": ["T2"], "children": []}
   ],
   "files": [
    {"id": "in.txt", "sizeInBytes": 1024}, {"id": "part.txt", "sizeInBytes": 512},
    {"id": "log.txt", "sizeInBytes": 3}, {"id": "part.out", "sizeInBytes": 128}
   ]
  },
  "execution": {
   "makespanInSeconds": 16.0, "executedAt": "2026-01-02T03:04:05+00:00",
   "tasks": [
    {"id": "T1", "runtimeInSeconds": 4.25, "memoryInBytes": 4096},
    {"id": "T2", "runtimeInSeconds": 10}, {"id": "T3", "runtimeInSeconds": 0}
   ]
  }
 }
}"""

NATIVE = """{"format": "regal_jax.graph", "version": 1, "name": "tiny", "time_unit": "us", "ops": [
 {"name": "a:1", "kind": "conv", "runtime": [1.5, 2],
  "outputs": [{"size_bytes": 8}, {"size_bytes": 16, "keep": true}]},
 {"name": "b", "runtime": 0.1, "temp_bytes": 4, "allowed_devices": [0, 1], "colocation_group": "g",
  "inputs": ["a:1:1", "a:1:0"], "control_inputs": ["c"]},
 {"name": "c"}
]}"""


def reads(graph: ComputationGraph) -> list[tuple[int, int]]:
    """(tensor, op) of every data edge."""
    return list(zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True))


def links(graph: ComputationGraph) -> list[tuple[int, int]]:
    """(producer, reader) of every data edge."""
    return list(zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True))


def controls(graph: ComputationGraph) -> list[tuple[int, int]]:
    """(before, after) of every control edge."""
    return list(zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True))


def op(graph: ComputationGraph, name: str) -> dict[str, Any]:
    """The fields of an op: kind, input names, output sizes, ..."""
    o = graph.op_index[name]
    offset, tensors = graph.inputs
    controls_at, controls = graph.control_predecessors
    outputs = slice(graph.output_offset[o], graph.output_offset[o + 1])
    return {
        "kind": graph.op_kinds[o],
        "inputs": [graph.tensor_name(t) for t in tensors[offset[o] : offset[o + 1]]],
        "after": [graph.op_names[u] for u in controls[controls_at[o] : controls_at[o + 1]]],
        "sizes": graph.tensor_bytes[outputs].tolist(),
        "keep": graph.tensor_keep[outputs].tolist(),
        "temp": int(graph.temp_bytes[o]),
        "runtime": graph.runtime[o].tolist(),
        "group": graph.colocation_group[o],
        "devices": graph.allowed_devices[o],
    }


def chain(n: int) -> ComputationGraph:
    """``n`` ops in a row."""
    builder = GraphBuilder("chain", "us")
    for o in range(n):
        builder.add_op(f"op{o}", runtime=1 + o % 7, outputs=[8], inputs=[(o - 1, 0)] if o else [])
    return builder.build()


def star(n: int) -> ComputationGraph:
    """One op that ``n`` others read."""
    builder = GraphBuilder("star", "us")
    builder.add_op("hub", runtime=3, outputs=[64])
    for o in range(n):
        builder.add_op(f"op{o}", runtime=1, inputs=["hub:0"])
    return builder.build()


class Count(DeviceProfile):
    """A device on which the seconds of an op are its flops, or its bytes."""

    def __init__(self, what):
        super().__init__("count", matrix_flops=1, vector_flops=1, bandwidth=1)
        object.__setattr__(self, "what", what)

    def seconds(self, flops, traffic, dtype, *, matrix):
        return flops if self.what == "flops" else traffic
