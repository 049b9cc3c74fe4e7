"""`train_orders`: training of Topoformer on layered graphs."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from regal_jax.checks import check_kind
from regal_jax.graph import ComputationGraph
from regal_jax.learning.ahead import Ahead, spare_workers
from regal_jax.learning.loop import (
    WEIGHTS,
    Cadence,
    Course,
    folder_of_run,
    run_course,
    run_identity,
)
from regal_jax.learning.mesh import everywhere, mesh_for, on_this_process, spread
from regal_jax.learning.ordering.config import OrderTrainConfig
from regal_jax.learning.ordering.data import ONE_DEVICE, OrderBatch, OrderSource, host_batch
from regal_jax.learning.ordering.step import OrderLearner, OrderMetrics, OrderState, greedy_peaks, order_step
from regal_jax.learning.processes import exchanged, fetched, in_turns
from regal_jax.learning.record import event_writer
from regal_jax.learning.sets import load_sets
from regal_jax.ordering import Topoformer, load_topoformer, save_topoformer
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.storage.paths import folder_path

__all__ = ["OrderTrainResult", "OrderValidation", "train_orders"]

_CHUNK = 16
"""Number of graphs that are validated together."""


class OrderValidation(NamedTuple):
    """Metrics of greedy orders on held-out graphs.

    Attributes:
      improvement: Mean share of the peak saved over the order of least peak memory first.
      matched: Share of graphs on which it was at least as good.
      worst: Smallest improvement of a graph.
      best: Largest improvement of a graph.
      baseline: Improvement of the baseline policy; if it is lower, the policy is the new baseline.
    """

    improvement: float
    matched: float
    worst: float
    best: float
    baseline: float


@dataclasses.dataclass(frozen=True, eq=False)
class OrderTrainResult:
    """The outcome of a run, or of as much of it as was not interrupted.

    Attributes:
      model: The network with the weights that did best on the validation graphs.
      best: Metrics of these weights on the validation graphs.
      best_step: Step at which they were reached.
      steps: Number of updates made.
      finished: Whether all steps were made.
    """

    model: Topoformer
    best: OrderValidation
    best_step: int
    steps: int
    finished: bool


@interruptible()
def train_orders(
    config: OrderTrainConfig,
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    tensorboard: bool = False,
    devices: Sequence[Any] | None = None,
) -> OrderTrainResult:
    """Trains a Topoformer.

    The folder ``out`` gets ``config.json``, ``metrics.jsonl``, ``checkpoints/`` and ``policy.safetensors``
    (the weights that did best on the validation graphs). A run that was killed resumes from its last
    checkpoint when it is called again; its result is bit for bit that of an uninterrupted run on as many
    devices. Ctrl-C saves a checkpoint and returns.

    On several processes (`regal_jax.learning.join_processes`), every process calls this function with the
    same arguments. Only the first one reads and writes the folder.

    Args:
      config: The run's settings.
      out: A new folder, or that of the run to resume.
      progress: Show a progress bar.
      tensorboard: Also write event files (extra ``train``).
      devices: JAX devices to spread batches over; as many of the default ones as divide the batch.

    Raises:
      ConfigError: The settings are invalid, the folder is that of a run with other settings or graphs, or a
        metric is not finite.
      FormatError: A set of graphs or a checkpoint cannot be read.
      MissingExtraError: tensorboardX is not installed.
      ProcessLostError: Another process of the run has ended.

    Examples:
      >>> from regal_jax.learning.ordering import (
      ...     OrderDataConfig, OrderOptimizerConfig, OrderTrainConfig, train_orders
      ... )
      >>> from regal_jax.ordering import TopoformerConfig
      >>> config = OrderTrainConfig(
      ...     data=OrderDataConfig(ops=(6,), validation_graphs=2),
      ...     model=TopoformerConfig(layers=1, width=8, heads=(1, 0, 0, 1, 0, 0, 1)),
      ...     optimizer=OrderOptimizerConfig(steps=2, batch=1),
      ... )
      >>> result = train_orders(config, "run", progress=False)
      >>> result.steps, result.finished
      (2, True)

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", section 4.3, appendices
      C.1 and C.4.
    """
    if tensorboard:
        event_writer()
    check_kind("config", config, OrderTrainConfig)
    folder = folder_path(out)
    mesh = mesh_for(config.optimizer.batch, devices)
    remark = "; orders are for one device"
    sets = [load_sets(config.data, split, [ONE_DEVICE], remark) for split in ("train", "validation")]
    identity = run_identity(config.as_document(), *sets)
    with _Orders(config, sets, mesh) as course, folder_of_run(folder, identity):
        ending = run_course(course, folder, progress=progress, tensorboard=tensorboard)
        model = fetched(folder / WEIGHTS, course.load)
    steps = int(ending.state.step)
    best = OrderValidation(**ending.best)
    return OrderTrainResult(model, best, ending.best_step, steps, steps == config.optimizer.steps)


class _Orders(Course[OrderState]):
    """The resources of a run; rebuilt after every restart."""

    _config: OrderTrainConfig
    _learner: OrderLearner

    def __init__(
        self, config: OrderTrainConfig, sets: Sequence[Sequence[ComputationGraph]], mesh: Mesh
    ) -> None:
        super().__init__(config, OrderLearner(config), mesh)
        self._source = OrderSource(config.data, config.model, config.seed, *sets)
        if config.start:
            self._learner.init()  # Report weights that do not fit before the folder is claimed.
        self._held_out: list[OrderBatch] | None = None
        self._baseline: float | None = None
        self._key = everywhere(jax.random.key(config.seed), mesh)
        size = config.optimizer.batch
        mine = size // jax.process_count()
        first = jax.process_index() * mine
        make = functools.partial(host_batch, self._source, size, slice(first, first + mine))
        self._ahead = Ahead(make, config.optimizer.steps, spare_workers())

    def __enter__(self) -> "_Orders":
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()

    @property
    def cadence(self) -> Cadence:
        o = self._config.optimizer
        return Cadence(o.steps, o.log_every, o.epoch, o.checkpoint_every)

    def program(self, step: int) -> int:
        return self._source.pool(step)

    def step(self, state: OrderState, step: int) -> tuple[OrderState, OrderMetrics]:
        batch = spread(self._ahead.get(step), self._mesh)
        return order_step(self._learner, self._mesh, state, batch, self._key)

    def validate(self, state: OrderState) -> tuple[OrderState, Mapping[str, float]]:
        if self._held_out is None:
            batches = self._source.validation(_CHUNK, jax.process_index(), jax.process_count())
            self._held_out = batches
        saved = self._saved(state.policy)
        if (
            self._baseline is None
        ):  # Later it is known, since the baseline is the policy of an earlier validation.
            self._baseline = float(self._saved(state.baseline).mean())
        found = OrderValidation(
            improvement=float(saved.mean()),
            matched=float((saved >= 0).mean()),
            worst=float(saved.min()),
            best=float(saved.max()),
            baseline=self._baseline,
        )
        if found.improvement > self._baseline:
            self._baseline = found.improvement
            # A copy: the state is donated to the next step, and no array can be donated twice.
            copy = jax.tree.map(lambda leaf: leaf.copy(), state.policy)
            state = dataclasses.replace(state, baseline=copy)
        return state, found._asdict()

    def _saved(self, weights: Any) -> np.ndarray:
        """Share of the reference's peak that greedy orders save, for each validation graph."""
        weights, shares = on_this_process(weights, self._mesh), []
        for batch in self._held_out or ():
            check_interrupt()
            peak, reference = map(np.asarray, greedy_peaks(self._learner, weights, batch))
            shares.append(np.where(reference > 0, 1 - peak / np.maximum(reference, 1), 0.0).tolist())
        return np.array([share for batch in in_turns(exchanged(shares)) for share in batch], np.float64)

    def save(self, path: pathlib.Path, state: OrderState, metadata: Mapping[str, str]) -> None:
        save_topoformer(path, self._learner.model(state.policy), dict(metadata))

    def load(self, path: pathlib.Path) -> Topoformer:
        return load_topoformer(path)
