"""Tiny graphs and settings for the tests of training."""

import signal
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from policy_cases import four_bins

from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.learning import OptimizerConfig, TaskConfig, TrainConfig, train
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.pool import Pool, PoolShare, SpreadPool, make_pools, spread_pool
from regal_jax.learning.record import Record
from regal_jax.search import BrkgaConfig

__all__ = [
    "GRAPHS",
    "HELD_OUT",
    "fast_on_first",
    "one_device",
    "pool_of",
    "share_of",
    "spread_of",
    "stopped_after",
    "tiny_config",
]


def fast_on_first(ops: int, seed: int) -> ComputationGraph:
    """Independent ops that are ten times as fast on device 0 as on device 1."""
    builder = GraphBuilder(f"independent{seed}")
    for o, runtime in enumerate(np.random.default_rng(seed).uniform(0.5, 1.5, ops)):
        builder.add_op(f"op{o}", runtime=[float(runtime), 10 * float(runtime)])
    return builder.build()


GRAPHS = tuple(fast_on_first(5, seed) for seed in range(3))
HELD_OUT = tuple(fast_on_first(5, seed) for seed in (7, 8))


def tiny_config(**optimizer: Any) -> TrainConfig:
    """A config whose steps take a millisecond: plain sampling and few weights.

    It has no rounds of messages: `GRAPHS` have no edges.
    """
    settings = {"steps": 12, "batch": 4, "samples": 2, "learning_rate": 0.01, "warmup": 2, "entropy": 0.02}
    settings |= {"reference_seeds": 2, "validate_every": 5, "checkpoint_every": 4}
    return TrainConfig(
        task=TaskConfig(evaluations=10),
        policy=four_bins(rounds=0, width=4),
        search=BrkgaConfig(population=5, elites=1, mutants=1),
        optimizer=OptimizerConfig(**{**settings, **optimizer}),
    )


def one_device(config: TrainConfig, out: Any, **options: Any) -> Any:
    """A run on the first device."""
    options = {"progress": False, "devices": jax.devices()[:1], **options}
    return train(config, GRAPHS, HELD_OUT, out, **options)


def pool_of(config: TrainConfig, graphs: Any = GRAPHS) -> Pool:
    """One pool of all graphs, whose references are ones."""
    return share_of(config, graphs).pool


def share_of(config: TrainConfig, graphs: Any = GRAPHS) -> PoolShare:
    """The same pool as this process's share of it."""
    (share,) = make_pools(graphs, config.task.cluster(config.policy.num_devices), config.policy, 1)
    return share


def spread_of(config: TrainConfig, graphs: Any = GRAPHS, count: int = 1) -> tuple[Mesh, SpreadPool]:
    """The first devices, and the same pool spread over them."""
    mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))
    return mesh, spread_pool(share_of(config, graphs), mesh)


def stopped_after(step: int, config: TrainConfig, out: Any) -> None:
    """A run on the first device that is interrupted by Ctrl-C after ``step``."""
    add = Record.add

    def pressing(self: Record, kind: str, at: int, values: dict[str, float]) -> None:
        add(self, kind, at, values)
        if kind == "train" and at == step:
            signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "add", pressing)
        result = one_device(config, out)
    assert (result.finished, result.steps) == (False, step)
