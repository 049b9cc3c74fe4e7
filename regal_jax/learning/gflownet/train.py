"""`train_gflownet`: training of a network that samples schedules."""

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from regal_jax.checks import check_kind
from regal_jax.gflownet import (
    ScheduleInputs,
    SchedulePolicy,
    load_gflownet,
    sample_schedules,
    save_gflownet,
)
from regal_jax.graph import Cluster, ComputationGraph, shortest_runtimes
from regal_jax.heuristics import run_heuristic
from regal_jax.learning.ahead import Ahead
from regal_jax.learning.gflownet.config import GflownetTrainConfig, Loss
from regal_jax.learning.gflownet.data import GflownetSource, chosen_sets
from regal_jax.learning.gflownet.step import GflownetLearner, GflownetMetrics, GflownetState, gflownet_step
from regal_jax.learning.loop import (
    WEIGHTS,
    Course,
    folder_of_run,
    run_course,
    run_identity,
)
from regal_jax.learning.mesh import everywhere, mesh_for
from regal_jax.learning.processes import exchanged, fetched, in_turns
from regal_jax.learning.record import event_writer
from regal_jax.plan import Objective
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.solve import graph_keys
from regal_jax.storage.paths import folder_path

__all__ = ["GflownetTrainResult", "GflownetValidation", "train_gflownet"]

_REFERENCE = "critical-path"
"""List scheduling, the paper's baseline."""


class GflownetValidation(NamedTuple):
    """Metrics of sampled schedules of held-out graphs, with free transfers.

    Attributes:
      improvement: Mean share of the makespan that the best schedule saves over list scheduling.
      matched: Share of graphs on which the best schedule is at least as good.
      worst: Smallest improvement of a graph.
      best: Largest improvement of a graph.
      speedup: Mean speed-up of the best schedules.
      mean_speedup: Mean speed-up of all schedules.
    """

    improvement: float
    matched: float
    worst: float
    best: float
    speedup: float
    mean_speedup: float


@dataclasses.dataclass(frozen=True, eq=False)
class GflownetTrainResult:
    """The outcome of a run, which may have been interrupted.

    Attributes:
      model: The network with the weights that were best on the validation graphs.
      best: Metrics of these weights on the validation graphs.
      best_step: Step at which they were reached.
      steps: Number of steps made.
      finished: Whether all steps were made.
    """

    model: SchedulePolicy
    best: GflownetValidation
    best_step: int
    steps: int
    finished: bool


@interruptible()
def train_gflownet(
    config: GflownetTrainConfig,
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    tensorboard: bool = False,
    devices: Sequence[Any] | None = None,
) -> GflownetTrainResult:
    """Trains a network that samples schedules, as a GFlowNet or by PPO.

    The folder ``out`` gets ``config.json``, ``metrics.jsonl``, ``checkpoints/`` and ``policy.safetensors``
    (the weights that were best on the validation graphs). A run that was killed resumes from its last
    checkpoint when it is called again; its result is bit for bit that of an uninterrupted run on as many
    devices. Ctrl-C saves a checkpoint and returns.

    On several processes (`regal_jax.learning.join_processes`), every process calls this function with the
    same arguments. Only the first one reads and writes the folder.

    Args:
      config: The run's settings.
      out: A new folder, or the folder of the run to resume.
      progress: Show a progress bar.
      tensorboard: Also write event files (extra ``train``).
      devices: JAX devices to spread trajectories over; by default as many devices as divide their number.

    Raises:
      ConfigError: Invalid settings, a folder of a run with other settings or graphs, or a metric that is
        not finite.
      FormatError: A set of graphs or a checkpoint that cannot be read.
      MissingExtraError: No tensorboardX.
      ProcessLostError: Another process of the run has ended.

    Examples:
      >>> from regal_jax.gflownet import GflownetConfig
      >>> from regal_jax.learning.gflownet import (
      ...     GflownetDataConfig, GflownetOptimizerConfig, GflownetTrainConfig, train_gflownet
      ... )
      >>> config = GflownetTrainConfig(
      ...     data=GflownetDataConfig(ops=6, validation_graphs=2),
      ...     model=GflownetConfig(devices=2, layers=1, width=8, head_width=4),
      ...     optimizer=GflownetOptimizerConfig(steps=2, trajectories=4, validation_samples=4),
      ... )
      >>> result = train_gflownet(config, "run", progress=False)
      >>> result.steps, result.finished
      (2, True)

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, sections 3 and 5, appendices C and E.
    """
    if tensorboard:
        event_writer()
    check_kind("config", config, GflownetTrainConfig)
    folder = folder_path(out)
    mesh = mesh_for(config.optimizer.trajectories, devices)
    cluster = Cluster.uniform(config.model.devices, transfer="free")
    sets = chosen_sets(config.data, cluster)
    identity = run_identity(config.as_document(), *sets)
    with _Schedules(config, sets, mesh) as course, folder_of_run(folder, identity):
        ending = run_course(course, folder, progress=progress, tensorboard=tensorboard)
        model = fetched(folder / WEIGHTS, course.load)
    steps = int(ending.state.step)
    best = GflownetValidation(**ending.best)
    return GflownetTrainResult(model, best, ending.best_step, steps, steps == config.optimizer.steps)


class _Schedules(Course[GflownetState]):
    """The resources of a run; rebuilt after every restart."""

    _config: GflownetTrainConfig
    _learner: GflownetLearner

    def __init__(
        self, config: GflownetTrainConfig, sets: Sequence[Sequence[ComputationGraph]], mesh: Mesh
    ) -> None:
        super().__init__(config, GflownetLearner(config), mesh)
        self._source = GflownetSource(config.data, config.model.devices, config.seed, *sets)
        if config.start:
            self._learner.init()  # Report weights that do not fit before the folder is claimed.
        self._held_out: list[tuple[ComputationGraph, float, float]] | None = None
        self._key = everywhere(jax.random.key(config.seed), mesh)
        self._ahead = Ahead(self._made, config.optimizer.steps)

    def __enter__(self) -> "_Schedules":
        return self

    def __exit__(self, *_: object) -> None:
        self._ahead.close()

    def program(self, step: int) -> int:
        return self._source.size(step)

    def step(self, state: GflownetState, step: int) -> tuple[GflownetState, GflownetMetrics]:
        inputs = self._ahead.get(step)
        return gflownet_step(self._learner, self._mesh, state, inputs, self._key)

    def _made(self, step: int) -> ScheduleInputs:
        return everywhere(self._source.inputs(step), self._mesh)

    def validate(self, state: GflownetState) -> tuple[GflownetState, Mapping[str, float]]:
        found = in_turns(exchanged(self._validated(state)))
        saved, best, mean = np.array(found, np.float64).T
        metrics = GflownetValidation(
            improvement=float(saved.mean()),
            # Sums of float32 are rounded.
            matched=float((saved >= -1e-5).mean()),
            worst=float(saved.min()),
            best=float(saved.max()),
            speedup=float(best.mean()),
            mean_speedup=float(mean.mean()),
        )
        return state, metrics._asdict()

    def _validated(self, state: GflownetState) -> list[tuple[float, float, float]]:
        """The share saved, the best and the mean speed-up, for each validation graph of this process."""
        cluster, o = self._source.cluster, self._config.optimizer
        if self._held_out is None:
            mine = self._source.validation()[jax.process_index() :: jax.process_count()]
            self._held_out = [
                (
                    graph,
                    float(shortest_runtimes(graph, cluster).sum()),
                    run_heuristic(_REFERENCE, graph, cluster, Objective.MAKESPAN).makespan,
                )
                for graph in mine
            ]
        if not self._held_out:  # More processes than graphs.
            return []
        model = self._learner.model(jax.device_put(jax.device_get(state.policy)))
        keys = graph_keys(jax.random.key(self._config.seed), [graph for graph, _, _ in self._held_out])
        is_ppo = o.loss is Loss.PPO
        options = {
            "count": o.validation_samples,
            "temperature": self._config.ppo.temperature if is_ppo else o.validation_temperature,
        }
        found = []
        for (graph, work, reference), key in zip(self._held_out, keys, strict=True):
            check_interrupt()
            speedup = sample_schedules(model, graph, cluster, key, **options).speedup
            saved = 1 - work / float(speedup.max()) / reference if reference else 0.0
            found.append((saved, float(speedup.max()), float(speedup.mean())))
        return found

    def save(self, path: pathlib.Path, state: GflownetState, metadata: Mapping[str, str]) -> None:
        save_gflownet(path, self._learner.model(state.policy), dict(metadata))

    def load(self, path: pathlib.Path) -> SchedulePolicy:
        return load_gflownet(path)
