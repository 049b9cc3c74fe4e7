"""The policy that guides a search: a shipped one, one from a file, or a given one."""

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective
from regal_jax.solvers.weights import loaded_network
from regal_jax.storage.stamps import file_stamp

if TYPE_CHECKING:
    import jax

    from regal_jax.encoding import Proposal
    from regal_jax.policies import Policy
    from regal_jax.problem import Problem

__all__ = ["ORDERS", "Guide", "OrderGuide", "PolicyLike"]

PolicyLike = Any
"""A `Policy`, the name of a file of weights or of a policy that ships (`regal_jax.policies.SHIPPED`),
``"default"``, ``"topoformer"``, ``"none"`` or ``None``."""
ORDERS: Final = "topoformer"
"""Name of the policy for one device whose draws stay near the greedy order of the shipped Topoformer."""


@dataclasses.dataclass(frozen=True, eq=False)
class Guide:
    """A policy, and the name by which a user asked for it.

    Attributes:
      policy: Given, or from a file; ``None`` for the shipped weights.
      name: The name that was given; ``None`` for none.
      optional: Whether the search runs without a policy if none is shipped for its objective and number of
        devices.
    """

    policy: "Policy | None"
    name: str | None
    optional: bool = False

    @classmethod
    def of(cls, policy: PolicyLike, *, optional: bool = False) -> "Guide | None":
        """The guide that ``policy`` names; ``None`` for no policy.

        Args:
          policy: As `optimize` takes it.
          optional: As the attribute; if true, ``None`` means the shipped weights.

        Raises:
          ConfigError: There is no such file, or ``policy`` is of another type.
          FormatError: The file holds no policy.
        """
        if isinstance(policy, str) and policy == "none":
            return None
        if policy is None:
            return cls(None, None, optional=True) if optional else None
        if isinstance(policy, (str, os.PathLike)):
            name = os.fspath(policy)
            from regal_jax.policies import DEFAULT, SHIPPED, load_policy

            if name in (DEFAULT, *SHIPPED):
                return cls(None, name, optional)
            if name == ORDERS:
                return OrderGuide(None, name, optional)
            known = ", ".join(map(repr, (DEFAULT, *SHIPPED, ORDERS)))
            stamp = file_stamp(name, "policy", f"give one of {known}, or a file of weights")
            return cls(loaded_network(load_policy, name, stamp), name, optional)
        from regal_jax.policies import Policy

        if isinstance(policy, Policy):
            return cls(policy, "given", optional)
        raise ConfigError(
            f"policy: give None, 'none', 'default', a file of weights or a Policy, got {policy!r}"
        )

    def lacks(self, objective: Objective, num_devices: int) -> bool:
        """Whether a shipped policy was asked for but does not exist, and the search can run without it."""
        from regal_jax.policies import DEFAULT, SHIPPED, is_shipped

        if self.name not in (DEFAULT, *SHIPPED) or not self.optional:
            return False
        return not is_shipped(objective, num_devices, self.name)

    def guides(self, objective: Objective, num_devices: int) -> bool:
        """Whether there is a policy for this objective and number of devices.

        Raises:
          ConfigError: A policy was asked for, and there is none for these, or the given one is for others.
        """
        from regal_jax.policies import is_shipped

        if self.policy is not None:
            from regal_jax.solve.propose import check_devices

            check_devices(self.policy, num_devices)
            made = self.policy.config.objective
            if made is not objective:
                raise ConfigError(
                    f"policy: made for {made}, but the objective is {objective}; take one trained for it"
                )
        elif not is_shipped(objective, num_devices, self._shipped):
            if self.optional:
                return False
            self._policy(objective, num_devices)  # Raises an error that lists the shipped policies.
        return True

    @property
    def _shipped(self) -> str:
        """The name of the weights of the package, for a guide without a policy of its own."""
        from regal_jax.policies import DEFAULT

        return self.name or DEFAULT

    def _policy(self, objective: Objective, num_devices: int) -> "Policy":
        from regal_jax.policies import shipped_policy

        return self.policy or shipped_policy(self._shipped, objective, num_devices)

    def propose(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Sequence[Cluster],
        problem: "Problem",
        keys: "jax.Array",
        objective: Objective,
    ) -> "Proposal | None":
        """The distributions that the search of each graph draws its genes from; ``None`` without a policy.

        Args:
          graphs: ``B`` graphs.
          clusters: ``B`` clusters with equally many devices.
          problem: The problem of these graphs and clusters.
          keys: ``[B]`` typed keys, those of the searches.
          objective: The objective of the searches.

        Raises:
          ConfigError: As `guides`.
        """
        num_devices = clusters[0].num_devices
        if not self.guides(objective, num_devices):
            return None
        # Flax takes as long to load as JAX.
        from regal_jax.solve.propose import propose

        return propose(self._policy(objective, num_devices), graphs, clusters, problem, keys)


class OrderGuide(Guide):
    """The guide `ORDERS`."""

    def guides(self, objective: Objective, num_devices: int) -> bool:
        """Whether there is one device.

        Raises:
          ConfigError: The guide was asked for, and there are several.
        """
        del objective
        if num_devices > 1 and not self.optional:
            raise ConfigError(f"policy: '{ORDERS}' is for 1 device, not for {num_devices}; give another")
        return num_devices == 1

    def propose(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Sequence[Cluster],
        problem: "Problem",
        keys: "jax.Array",
        objective: Objective,
    ) -> "Proposal | None":
        """Priorities near the greedy orders of the Topoformer that ships."""
        if not self.guides(objective, clusters[0].num_devices):
            return None
        from regal_jax.ordering import decode_orders, default_topoformer
        from regal_jax.solve.propose import propose_orders

        return propose_orders(decode_orders(default_topoformer(), graphs, keys, decoding="greedy"), problem)
