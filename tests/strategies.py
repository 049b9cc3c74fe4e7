"""Random instances for hypothesis, small and shrinking towards fewer ops and one device.

`random_graph` and `random_cluster` take a NumPy generator; `instances` draws from them.
"""

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from benchmarks.random_cases import random_cluster, random_graph, random_keys
from regal_jax.graph import Cluster, ComputationGraph, TransferModel

__all__ = ["instances", "random_cluster", "random_graph", "random_keys"]

Instance = tuple[ComputationGraph, Cluster]


@st.composite
def instances(
    draw: st.DrawFn,
    max_ops: int = 12,
    devices: Sequence[int] = (1, 2, 3, 4),
    transfers: Sequence[TransferModel | str] = tuple(TransferModel),
    size_scale: int = 1,
    constraints: bool = True,
) -> Instance:
    """A random graph and a cluster that can run it, apart from its memory capacities."""
    num_ops, d = draw(st.integers(1, max_ops)), draw(st.sampled_from(devices))
    model = draw(st.sampled_from(transfers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph = random_graph(
        rng,
        num_ops,
        d,
        inputs_per_op=draw(st.sampled_from([0.0, 1.5, 4.0])),
        controls_per_op=draw(st.sampled_from([0.0, 0.5])),
        constraints=constraints,
        size_scale=size_scale,
    )
    return graph, random_cluster(rng, d, model, memory_scale=100.0 * size_scale)
