"""`train`: training of REGAL's policy through the search."""

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from regal_jax.checks import check_kind
from regal_jax.graph import ComputationGraph
from regal_jax.learning.config import DataConfig, TrainConfig
from regal_jax.learning.loop import (
    COMPILING,
    WEIGHTS,
    Course,
    folder_of_run,
    progress_bar,
    run_course,
    run_identity,
)
from regal_jax.learning.mesh import everywhere, mesh_for
from regal_jax.learning.pool import PoolShare, SpreadPool, make_pools, spread_pool
from regal_jax.learning.processes import fetched, is_first, naming_lost_processes, together
from regal_jax.learning.record import event_writer
from regal_jax.learning.reference import with_references
from regal_jax.learning.share import GraphShare
from regal_jax.learning.step import Learner, Metrics, TrainState, train_step
from regal_jax.learning.validate import Validation, validate
from regal_jax.policies import Policy, load_policy, save_policy
from regal_jax.runtime.interrupts import interruptible
from regal_jax.simulate.simulate import check_implementation
from regal_jax.storage.paths import folder_path

__all__ = ["TrainResult", "train"]


@dataclasses.dataclass(frozen=True, eq=False)
class TrainResult:
    """The outcome of a run, or of as much of it as was not interrupted.

    Attributes:
      policy: The policy with the weights that did best on the validation graphs.
      best: Metrics of these weights on the validation graphs.
      best_step: Step at which they were reached.
      steps: Number of updates made.
      finished: Whether all steps were made.
    """

    policy: Policy
    best: Validation
    best_step: int
    steps: int
    finished: bool


@interruptible()
def train(
    config: TrainConfig,
    graphs: Sequence[ComputationGraph] | GraphShare,
    validation: Sequence[ComputationGraph] | GraphShare,
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    tensorboard: bool = False,
    devices: Sequence[Any] | None = None,
    implementation: str | None = None,
) -> TrainResult:
    """Trains a policy.

    The folder ``out`` gets ``config.json``, ``references.jsonl``, ``metrics.jsonl``, ``checkpoints/`` and
    ``policy.safetensors`` (the weights that did best on the validation graphs). A run that was killed resumes
    from its last checkpoint when it is called again; its weights and metrics are bit for bit those of an
    uninterrupted run on as many devices. Ctrl-C saves a checkpoint and returns.

    On several processes (`join_processes`), every process calls this function with the same arguments. Each
    keeps its share of the graphs on its devices, searches for their references, and validates on them. Only
    the first process reads and writes the folder.

    Args:
      config: The run's settings.
      graphs: Graphs to train on, at least one; or the share of this process, as `training_shares` reads it.
      validation: Graphs to choose the best weights by, at least one; or the share of this process.
      out: A new folder, or that of the run to resume.
      progress: Show a progress bar.
      tensorboard: Also write event files (extra ``train``).
      devices: JAX devices to spread batches over; as many of the default ones as divide the batch.
      implementation: Implementation of the simulator, as in `regal_jax.simulate.simulate`.

    Raises:
      ConfigError: The settings or another argument are invalid, the folder is that of a run with other
        settings or graphs, or a metric is not finite.
      FormatError: A checkpoint cannot be read.
      MissingExtraError: tensorboardX is not installed.
      ProcessLostError: Another process of the run has ended.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.learning import OptimizerConfig, TaskConfig, TrainConfig, train
      >>> from regal_jax.policies import PolicyConfig
      >>> graphs = [generate("layered", 6, seed=seed) for seed in range(2)]
      >>> config = TrainConfig(
      ...     task=TaskConfig(evaluations=10),
      ...     policy=PolicyConfig(rounds=1, width=4),
      ...     optimizer=OptimizerConfig(steps=1, batch=1, samples=2),
      ... )
      >>> result = train(config, graphs[:1], graphs[1:], "run", progress=False)
      >>> result.steps, result.finished
      (1, True)

    References:
      REGAL, ICLR 2020, section 4; workshop text, section 2.3.
    """
    if tensorboard:
        event_writer()  # Fail early if it is missing: references, which come first, take hours.
    check_kind("config", config, TrainConfig)
    check_implementation(implementation)
    folder = folder_path(out)
    mesh = mesh_for(config.optimizer.batch, devices)
    with naming_lost_processes():
        shares = [GraphShare.of(chosen) for chosen in (graphs, validation)]
        both = together(lambda: _pools(config, shares))
    identity = run_identity(config.as_document(), *(share.entries for share in shares))
    learner = _learner(config, implementation)
    if config.start:
        learner.init()  # Report weights that do not fit before the folder is claimed.
    # Only after all checks, since from here on the folder belongs to this run.
    with folder_of_run(folder, identity):
        spread = [
            _referenced(config, pools, folder / "references.jsonl", mesh, what, progress and is_first())
            for pools, what in zip(both, ("references", "validation references"), strict=True)
        ]
        course = _Regal(config, learner, spread, mesh)
        ending = run_course(course, folder, progress=progress, tensorboard=tensorboard)
        policy = fetched(folder / WEIGHTS, course.load)
    steps = int(ending.state.step)
    best = Validation(**ending.best)
    return TrainResult(policy, best, ending.best_step, steps, steps == config.optimizer.steps)


def _learner(config: TrainConfig, implementation: str | None) -> Learner:
    """The learner, without the paths of graphs: runs that differ only in these share their programs."""
    return Learner(dataclasses.replace(config, data=DataConfig()), implementation)


def _pools(config: TrainConfig, shares: Sequence[GraphShare]) -> list[list[PoolShare]]:
    cluster = functools.partial(config.task.cluster_of, devices=config.policy.num_devices)
    return [make_pools(share, cluster, config.policy, config.optimizer.pools) for share in shares]


class _Regal(Course[TrainState]):
    """The resources of a run; rebuilt after every restart."""

    _config: TrainConfig
    _learner: Learner

    def __init__(
        self,
        config: TrainConfig,
        learner: Learner,
        pools: Sequence[list[SpreadPool]],
        mesh: Mesh,
    ) -> None:
        super().__init__(config, learner, mesh)
        self._pools, self._validation = pools
        keys = jax.random.split(jax.random.key(config.seed))
        self._key, self._validation_key = everywhere(keys, mesh)

    def program(self, step: int) -> int:
        """The pool that a step takes its batch from, in proportion to its number of graphs."""
        sizes = np.array([pool.size for pool in self._pools], np.float64)
        rng = np.random.default_rng([self._config.seed, step])
        return int(rng.choice(len(sizes), p=sizes / sizes.sum()))

    def step(self, state: TrainState, step: int) -> tuple[TrainState, Metrics]:
        pool = self._pools[self.program(step)]
        return train_step(self._learner, self._mesh, state, pool, self._key)

    def validate(self, state: TrainState) -> tuple[TrainState, Mapping[str, float]]:
        found = validate(self._learner, self._mesh, state.policy, self._validation, self._validation_key)
        return state, found._asdict()

    def save(self, path: pathlib.Path, state: TrainState, metadata: Mapping[str, str]) -> None:
        save_policy(path, self._learner.policy(state), metadata)

    def load(self, path: pathlib.Path) -> Policy:
        return load_policy(path)


def _referenced(
    config: TrainConfig, pools: list[PoolShare], path: pathlib.Path, mesh: Mesh, what: str, shown: bool
) -> list[SpreadPool]:
    """The pools with references, which are stored in the file at ``path``, on the devices of the mesh."""
    with progress_bar(shown, what, sum(len(pool.members) for pool in pools), 0) as bar:
        ready = []
        for pool in pools:
            # The first chunk of a pool compiles its program.
            bar.set_description(f"{what} ({COMPILING})")

            def advance(graphs: int) -> None:
                bar.set_description(what, refresh=False)
                bar.update(graphs)

            known = with_references(config, pool, path, mesh.local_devices, progress=advance)
            ready.append(spread_pool(known, mesh))
    return ready
