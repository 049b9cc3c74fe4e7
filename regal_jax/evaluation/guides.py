"""Policies as `Guided` wants them, with an ear for what they say of each graph."""

import hashlib
from collections.abc import Sequence

import jax
import numpy as np
from flax import nnx

from regal_jax.encoding import Proposal
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective
from regal_jax.policies import Policy, default_policy, load_policy
from regal_jax.problem import Problem
from regal_jax.solve.propose import propose

__all__ = ["Guide", "placement_entropy"]


class Guide:
    """A `regal_jax.methods.ProposalFn` that remembers how mixed the actions of each graph were.

    Attributes:
      entropies: Content hash -> `placement_entropy` of the action last taken for that graph.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.entropies: dict[str, float] = {}

    @classmethod
    def load(cls, path: str, objective: Objective, num_devices: int) -> "Guide":
        """Of a weights file, or ``"default"`` for the weights that come with the package.

        Raises:
          FormatError: As `regal_jax.policies.load_policy`.
          ConfigError: No such file, or the policy is for another number of devices.
        """
        if path == "default":
            return cls(default_policy(objective, num_devices))
        try:
            return cls(load_policy(path, num_devices=num_devices))
        except OSError as error:
            raise ConfigError(
                f"policy: no weights in {path!r} ({error.strerror}); give 'default', or train some with "
                "'regal-jax train'"
            ) from None

    @property
    def digest(self) -> str:
        """Of the policy's settings and weights: what decides its actions."""
        leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state(self._policy, nnx.Param)))
        digest = hashlib.sha256(repr(self._policy.config).encode())
        for leaf in leaves:
            digest.update(np.asarray(leaf).tobytes())
        return digest.hexdigest()[:16]

    def __call__(
        self,
        problem: Problem,
        graphs: Sequence[ComputationGraph],
        clusters: Sequence[Cluster],
        keys: jax.Array,
    ) -> Proposal:
        """What the policy proposes; see `regal_jax.solve.propose`."""
        proposal = propose(self._policy, graphs, clusters, problem, keys)
        actions = np.asarray(proposal.index)
        for row, graph in enumerate(graphs):
            self.entropies[graph.content_hash] = placement_entropy(actions[row, : graph.num_ops, :-1])
        return proposal


def placement_entropy(actions: np.ndarray) -> float:
    """Entropy of the distribution of the actions that were taken in one graph.

    0 if the same action was taken everywhere, at most ``log(K)`` for ``K`` actions.

    Args:
      actions: ``[N, D]``, the action taken for each affinity of each op.

    Returns:
      In nats.

    References:
      REGAL, ICLR 2020, "Graph-dependent policy", Fig. 4a.
    """
    counts = np.unique(actions, return_counts=True)[1]
    if not counts.size:
        return 0.0
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum()) + 0.0
