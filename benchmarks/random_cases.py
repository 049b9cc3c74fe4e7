"""Random graphs, clusters and keys with every feature of docs/design.md, part 1, for tests and checks."""

import math
from collections.abc import Sequence

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, TransferModel

__all__ = ["random_cluster", "random_graph", "random_keys"]


def random_graph(
    rng: np.random.Generator,
    num_ops: int,
    devices: int = 1,
    *,
    inputs_per_op: float = 1.5,
    controls_per_op: float = 0.4,
    constraints: bool = True,
    size_scale: int = 1,
    residents: float = 0.5,
) -> ComputationGraph:
    """A DAG whose op indices are in no topological order.

    Ops have 0 to 3 outputs, some read by nobody and some by many, some kept, some of size zero; control
    edges, temp_bytes, tied and zero runtimes, in half of the graphs one runtime per device. Some ops that
    wait for nothing are resident.

    Args:
      rng: Consumed.
      num_ops: ``N``.
      devices: ``D``, the number of devices of runtimes and allowed devices.
      inputs_per_op: Mean number of tensors that an op reads.
      controls_per_op: Mean number of control predecessors.
      constraints: Restrict some ops to some devices, and colocate some.
      size_scale: Sizes are whole numbers from 0 to 20 times about this many bytes.
      residents: Share of the residents among the ops that wait for nothing.
    """
    builder = GraphBuilder(f"random-{num_ops}")
    (chance,) = rng.spawn(1)
    rank = rng.permutation(num_ops)
    outputs = rng.choice([0, 1, 2, 3], size=num_ops, p=[0.15, 0.5, 0.2, 0.15])
    per_device, tied = devices > 1 and rng.random() < 0.5, rng.random() < 0.5
    hub = int(np.argmin(rank))  # An op without inputs that many ops read.
    group_device = rng.integers(devices, size=3)

    def size() -> int:
        return int(rng.integers(0, 21)) * size_scale + (
            int(rng.integers(size_scale)) if size_scale > 1 else 0
        )

    def runtime() -> float:
        return float(rng.integers(0, 4)) if tied else float(rng.exponential(10.0))

    for o in range(num_ops):
        earlier = np.flatnonzero(rank < rank[o])
        reads = [
            (int(p), int(rng.integers(outputs[p])))
            for p in rng.choice(earlier, size=min(rng.poisson(inputs_per_op), len(earlier)))
            if outputs[p]
        ]
        if outputs[hub] and len(earlier) and rng.random() < 0.2:
            reads.append((hub, 0))
        controls = rng.choice(earlier, size=min(rng.poisson(controls_per_op), len(earlier)))
        allowed, group = None, None
        if constraints and rng.random() < 0.3:
            g = int(rng.integers(3))
            group = f"group{g}" if rng.random() < 0.5 else None
            if rng.random() < 0.6:
                others = np.flatnonzero(rng.random(devices) < 0.5)
                allowed = sorted({int(group_device[g]), *others.tolist()})
        time = [runtime() for _ in range(devices)] if per_device else runtime()
        sizes = [size() for _ in range(outputs[o])]
        temp = size() if rng.random() < 0.4 else 0
        resident = not (reads or len(controls)) and chance.random() < residents
        builder.add_op(
            f"op{o}",
            runtime=0.0 if resident else time,
            outputs=sizes,
            inputs=reads,
            control_inputs=[int(u) for u in controls],
            temp_bytes=0 if resident else temp,
            keep=[p for p in range(outputs[o]) if rng.random() < 0.2],
            allowed_devices=allowed,
            colocation_group=group,
            resident=resident,
        )
    return builder.build()


def random_cluster(
    rng: np.random.Generator,
    devices: int,
    transfer: TransferModel | str | None = None,
    *,
    memory_scale: float = 100.0,
) -> Cluster:
    """A cluster of ``devices`` devices; capacities may be finite, and links may cost time and differ.

    Args:
      rng: Consumed.
      devices: ``D``.
      transfer: The model; one of the three at random if ``None``.
      memory_scale: Largest finite capacity of a device, in bytes; infinite for no capacities.
    """
    model = TransferModel(rng.choice(list(TransferModel)) if transfer is None else transfer)
    memory = np.full(devices, math.inf)
    if memory_scale < math.inf:
        memory = np.where(rng.random(devices) < 0.5, np.floor(rng.random(devices) * memory_scale), math.inf)
    costly = model is not TransferModel.FREE
    latency = float(rng.integers(4)) if costly and rng.random() < 0.5 else 0.0
    bandwidth = float(rng.choice([0.5, 3.0])) if costly and rng.random() < 0.5 else math.inf
    if costly and rng.random() < 0.5:
        # At most two kinds of links, since every number of kinds needs another compiled program.
        other = rng.random((devices, devices)) < 0.5
        latency = np.where(other, float(rng.choice([0.1, 5.0])), latency)
        bandwidth = np.where(other, float(rng.choice([0.7, 11.0])), bandwidth)
    return Cluster(tuple(memory.tolist()), model, latency=latency, bandwidth=bandwidth)


def random_keys(rng: np.random.Generator, shape: Sequence[int], coarse: bool = False) -> np.ndarray:
    """uint16 keys; ``coarse`` ones take four values, so that ties happen everywhere."""
    if coarse:
        return rng.choice(np.array([0, 1, 30000, 65535], dtype=np.uint16), size=shape)
    return rng.integers(0, 65536, size=shape, dtype=np.uint16)
