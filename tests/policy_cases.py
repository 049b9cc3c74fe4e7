"""Graphs, changes of graphs that must not change a policy's outputs, and policies with random weights."""

import dataclasses
from typing import Any

import jax
import numpy as np
from flax import nnx

from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.heuristics.list_scheduling import Schedule
from regal_jax.policies import Ablation, PolicyConfig
from regal_jax.problem import Bucket

__all__ = [
    "BEFORE",
    "BUCKET",
    "chain",
    "distinct_runtimes",
    "events_of",
    "four_bins",
    "randomised",
    "renumbered",
    "scaled",
    "without_edges",
]

BUCKET = Bucket(12, 36, 80, 66)
"""Holds every graph of `strategies.instances`."""


BEFORE = {
    "num_devices": 2, "network": "gnn", "parametrisation": "mean-variance", "first": [0.2, 0.4, 0.6, 0.8],
    "second": [0.1, 0.01], "rounds": 1, "width": 4, "features": "structural", "balance": "work",
    "uniform": True, "guided_share": 0.5, "share_rounds": False, "initial_bias": 1.0,
    "initial_affinity_bias": -1.0, "cuts": ["across"], "cut_gain": 3.0, "order": "levels", "order_gain": 0.0,
    "reach": 0, "transfers": "reader",
}  # fmt: skip
"""The config of a policy in a file of version 5."""


def four_bins(**settings: Any) -> PolicyConfig:
    """A policy of few weights: four means and four variances, one cut across the graph, and no order.

    Settings are those of `PolicyConfig` and of `Ablation`.
    """
    ablation: dict[str, Any] = {
        "placements": ("across",), "placement_scale": 3.0, "order_scale": 0.0, "transfers": "reader",
        "priority_bias": 1.0, "affinity_bias": -1.0, "uniform": True,
    }  # fmt: skip
    own: dict[str, Any] = {
        "prior": "levels", "means": (0.2, 0.4, 0.6, 0.8), "variances": (1 / 12, 1 / 40, 1 / 160, 1 / 1000),
        "rounds": 4,
    }  # fmt: skip
    names = {field.name for field in dataclasses.fields(Ablation)}
    if settings.get("prior", "levels") != "levels":
        ablation["placements"] = None
    ablation |= {name: value for name, value in settings.items() if name in names}
    own |= {name: value for name, value in settings.items() if name not in names}
    return PolicyConfig(**own, ablation=Ablation(**ablation))


def chain(length: int, runtimes: list[float] | None = None) -> ComputationGraph:
    """A chain: each op reads the only output of the op before it."""
    builder = GraphBuilder("chain")
    for o in range(length):
        runtime = 1.0 if runtimes is None else runtimes[o]
        builder.add_op(f"op{o}", runtime=runtime, outputs=[10], inputs=[(o - 1, 0)] if o else [])
    return builder.build()


def two_chains(length: int) -> ComputationGraph:
    """Two chains without edges between them, "a0", ... and "b0", ...; the second is a little slower."""
    builder = GraphBuilder("two chains")
    for side, runtime in (("a", 10), ("b", 11)):
        for o in range(length):
            inputs = [f"{side}{o - 1}"] if o else []
            builder.add_op(f"{side}{o}", runtime=runtime, outputs=[1], inputs=inputs)
    return builder.build()


def renumbered(graph: ComputationGraph, place: np.ndarray) -> ComputationGraph:
    """The same graph, in which op ``o`` has the number ``place[o]``."""
    builder = GraphBuilder(graph.name, graph.time_unit)
    tensors = np.split(graph.inputs[1], graph.inputs[0][1:-1])
    controls = np.split(graph.control_predecessors[1], graph.control_predecessors[0][1:-1])
    for o in np.argsort(place).tolist():
        outputs = range(graph.output_offset[o], graph.output_offset[o + 1])
        runtime = graph.runtime[o]
        builder.add_op(
            graph.op_names[o],
            runtime=runtime.tolist() if graph.runtime.ndim == 2 else float(runtime),
            outputs=[int(graph.tensor_bytes[t]) for t in outputs],
            inputs=[(int(place[graph.tensor_op[t]]), int(graph.tensor_port[t])) for t in tensors[o]],
            control_inputs=[int(place[u]) for u in controls[o]],
            temp_bytes=int(graph.temp_bytes[o]),
            keep=[port for port, t in enumerate(outputs) if graph.tensor_keep[t]],
            allowed_devices=graph.allowed_devices[o],
            colocation_group=graph.colocation_group[o],
            resident=bool(graph.resident[o]),
        )
    return builder.build()


def events_of(graph: ComputationGraph, schedule: Schedule) -> np.ndarray:
    """Events as the replay takes them, with the transfers at their places in the schedule."""
    n, d = graph.num_ops, schedule.sent.shape[1]
    tensor, device = np.nonzero(schedule.sent >= 0)
    before = np.concatenate([np.arange(1, n + 1), schedule.sent[tensor, device]])
    events = np.concatenate([schedule.order, n + tensor * d + device])
    # The i-th op has the key i. A transfer has the key of the op that it follows, and comes after it.
    return events[np.argsort(before, kind="stable")]


def scaled(
    graph: ComputationGraph, cluster: Cluster, time: float, size: int
) -> tuple[ComputationGraph, Cluster]:
    """The graph and the cluster in other units of time and size."""
    graph = dataclasses.replace(
        graph,
        runtime=graph.runtime * time,
        temp_bytes=graph.temp_bytes * size,
        tensor_bytes=graph.tensor_bytes * size,
    )
    cluster = Cluster(
        tuple(m * size for m in cluster.memory),
        cluster.transfer,
        latency=np.array(cluster.latency) * time,
        bandwidth=np.array(cluster.bandwidth) * size / time,
    )
    return graph, cluster


def without_edges(graph: ComputationGraph) -> ComputationGraph:
    """The same ops and tensors without edges."""
    return dataclasses.replace(graph, edge_tensor=[], edge_op=[], control_source=[], control_target=[])


def distinct_runtimes(graph: ComputationGraph, rng: np.random.Generator) -> ComputationGraph:
    """The same graph without residents, with runtimes of which no two sums are equal."""
    return dataclasses.replace(graph, runtime=rng.exponential(size=graph.num_ops), resident=())


def randomised(module: nnx.Module, seed: int = 0) -> nnx.Module:
    """``module``, or its shapes, with random weights, so that every part of it has an effect."""
    rng = np.random.default_rng(seed)
    graphdef, state = nnx.split(module)

    def draw(leaf: jax.Array | jax.ShapeDtypeStruct) -> np.ndarray:
        width = leaf.shape[-2] if leaf.ndim > 1 else 4
        return (rng.normal(size=leaf.shape) / np.sqrt(width)).astype(np.float32)

    return nnx.merge(graphdef, jax.tree.map(draw, state))
