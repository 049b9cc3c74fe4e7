"""Steps of training: a batch of graphs, the policy, the searches that it guides, and the update."""

import jax

from benchmarks.cases import GraphCase
from benchmarks.timing import Contender, looped
from regal_jax.learning.config import OptimizerConfig, TaskConfig, TrainConfig
from regal_jax.learning.mesh import everywhere, mesh_for
from regal_jax.learning.pool import make_pools, spread_pool
from regal_jax.learning.step import Learner, TrainState, train_step
from regal_jax.plan import Objective
from regal_jax.policies import PolicyConfig

__all__ = ["SAMPLES", "Steps", "training"]

SAMPLES = 4
"""Actions, and hence searches, for each graph of a step."""


class Steps:
    """A run of training on the graphs of a case, without references, validation or files.

    Args:
      case: The batch is its graphs; the network is the default one.
      implementation: Implementation of the simulator; ``None`` for the default one.
    """

    def __init__(self, case: GraphCase, implementation: str | None = None) -> None:
        objective = Objective(case.objective)
        config = TrainConfig(
            seed=case.seed,
            task=TaskConfig(objective=objective, evaluations=case.evaluations, transfer=case.transfer),
            policy=PolicyConfig(num_devices=case.devices, objective=objective),
            search=case.config(),
            optimizer=OptimizerConfig(steps=1_000_000, batch=case.graphs, samples=SAMPLES),
        )
        self._learner = Learner(config, implementation)
        self.mesh = mesh_for(case.graphs, None)
        cluster = config.task.cluster(case.devices)
        (share,) = make_pools(case.make_graphs(), cluster, config.policy, 1)
        self.pool = spread_pool(share, self.mesh)
        self._key = everywhere(jax.random.key(case.seed), self.mesh)
        self.state: TrainState = everywhere(self._learner.init(), self.mesh)

    def step(self) -> dict[str, jax.Array]:
        """Makes one update and returns its metrics."""
        self.state, metrics = train_step(self._learner, self.mesh, self.state, self.pool, self._key)
        return metrics._asdict()


def training(case: GraphCase, implementation: str | None = None, label: str = "step") -> Contender:
    """One step; it evaluates ``graphs * SAMPLES * evaluations`` candidates."""
    steps = Steps(case, implementation)
    return looped(label, steps.step, case.graphs * SAMPLES * case.evaluations)
