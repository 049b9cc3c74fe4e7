"""Which policy guides a search: the one that ships, one from a file, or a given one."""

import dataclasses
import functools
import os
from typing import TYPE_CHECKING, Any, Final

from regal_jax.errors import ConfigError
from regal_jax.plan import Objective

if TYPE_CHECKING:
    from regal_jax.policies import Policy

__all__ = ["ORDERS", "Guide", "PolicyLike"]

PolicyLike = Any
"""A `Policy`, the name of a file of weights, ``"default"``, ``"topoformer"``, ``"none"`` or ``None``."""
ORDERS: Final = "topoformer"
"""The policy whose draws stay near the greedy order of the Topoformer that ships, on one device."""


@dataclasses.dataclass(frozen=True, eq=False)
class Guide:
    """A policy by what a user calls it.

    Attributes:
      policy: Given, or from a file; ``None`` for the weights that ship.
      name: What was asked for; ``None`` if nobody asked.
      optional: Is the search to go on without, where none ships for its objective and number of devices?
      orders: Is it `ORDERS`?
    """

    policy: "Policy | None"
    name: str | None
    optional: bool = False
    orders: bool = False

    @classmethod
    def of(cls, policy: PolicyLike, *, optional: bool = False) -> "Guide | None":
        """The guide that ``policy`` names; ``None`` if there is to be none.

        Args:
          policy: As `optimize` takes it.
          optional: As the attribute; then ``None`` means the weights that ship.

        Raises:
          ConfigError: No such file, or something else.
          FormatError: A file that holds no policy.
        """
        if isinstance(policy, str) and policy == "none":
            return None
        if policy is None:
            return cls(None, None, optional=True) if optional else None
        if isinstance(policy, (str, os.PathLike)):
            name = os.fspath(policy)
            if name == "default":
                return cls(None, name, optional)
            if name == ORDERS:
                return cls(None, name, optional, orders=True)
            if not os.path.exists(name):
                raise ConfigError(
                    f"policy: no file {name!r}; give 'default', 'topoformer' or a file of weights"
                )
            status = os.stat(name)
            return cls(_loaded(name, status.st_mtime_ns, status.st_size), name, optional)
        from regal_jax.policies import Policy

        if isinstance(policy, Policy):
            return cls(policy, "given", optional)
        raise ConfigError(
            f"policy: give None, 'none', 'default', a file of weights or a Policy, got {policy!r}"
        )

    def lacks(self, objective: Objective, num_devices: int) -> bool:
        """Was the policy that ships asked for, of a search that can go on without, and there is none?"""
        if self.name != "default" or not self.optional:
            return False
        from regal_jax.policies import is_shipped

        return not is_shipped(objective, num_devices)

    def guides(self, objective: Objective, num_devices: int) -> bool:
        """Is there a policy for so many devices?

        Raises:
          ConfigError: One was asked for, and there is none for so many.
        """
        from regal_jax.policies import default_policy, is_shipped

        if self.orders:
            if num_devices > 1 and not self.optional:
                raise ConfigError(f"policy: '{ORDERS}' is for 1 device, not for {num_devices}; give another")
            return num_devices == 1
        if self.policy is not None:
            from regal_jax.solve.propose import check_devices

            check_devices(self.policy, num_devices)
        elif not is_shipped(objective, num_devices):
            if self.optional:
                return False
            default_policy(objective, num_devices)  # Says what there is.
        return True

    def policy_for(self, objective: Objective, num_devices: int) -> "Policy | None":
        """The policy, or ``None`` where there is none. Flax is loaded for it, which takes as long as JAX.

        Raises:
          ConfigError: As `guides`.
        """
        if self.orders or not self.guides(objective, num_devices):
            return None
        from regal_jax.policies import default_policy

        return default_policy(objective, num_devices) if self.policy is None else self.policy


@functools.lru_cache(maxsize=4)
def _loaded(path: str, changed: int, size: int) -> "Policy":
    """From a file that was changed last at that time."""
    del changed, size
    from regal_jax.policies import load_policy

    return load_policy(path)
