"""The weights that come with the package, by name."""

import functools
from importlib import resources
from typing import TYPE_CHECKING, Final

from regal_jax.checks import check_kind, check_whole, counted
from regal_jax.errors import ConfigError
from regal_jax.plan import Objective

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from regal_jax.policies.networks import Policy

__all__ = ["DEFAULT", "SHIPPED", "default_policy", "is_shipped", "shipped_policy"]

DEFAULT: Final = "default"
"""Alias of the policy that is best on validation graphs."""
_BEST: Final = "regal-primed"
SHIPPED: Final = (_BEST, "regal-faithful", "regal-faithful-workshop")
"""Names of the policies whose settings come with the package; `is_shipped` says which have weights. The cards
are in docs/policies.md."""

_FOLDER: Final = resources.files("regal_jax.policies") / "trained"


def default_policy(objective: Objective | str, num_devices: int) -> "Policy":
    """The policy ``"default"``; the same as `shipped_policy` with that name.

    Args:
      objective: Objective of the policy.
      num_devices: Number of devices ``D``.

    Raises:
      ConfigError: There is no policy for this number of devices.

    Examples:
      >>> from regal_jax.policies import default_policy
      >>> default_policy("makespan", 2).config.num_devices
      2
    """
    return shipped_policy(DEFAULT, objective, num_devices)


def shipped_policy(name: str, objective: Objective | str, num_devices: int) -> "Policy":
    """A policy that is installed with the package; the card is docs/policies.md.

    Args:
      name: ``"regal-faithful"``, the papers' policy; ``"regal-faithful-workshop"``, its form in the workshop
        text; ``"regal-primed"``, which begins with priors; or ``"default"``, which is ``"regal-primed"``.
      objective: Objective of the policy.
      num_devices: Number of devices ``D``.

    Raises:
      ConfigError: There is no policy of this name, or none for this number of devices.

    Examples:
      >>> from regal_jax.policies import shipped_policy
      >>> shipped_policy("regal-faithful", "makespan", 2).config.guided_share
      1.0
    """
    check_kind("policy", name, str)
    return _load(name, Objective(objective), check_whole("num_devices", num_devices, 1))


def is_shipped(objective: Objective | str, num_devices: int, name: str = DEFAULT) -> bool:
    """Whether there is such a `shipped_policy` for this number of devices."""
    check_kind("policy", name, str)
    return _file(name, Objective(objective), check_whole("num_devices", num_devices, 1)).is_file()


def _file(name: str, objective: Objective, num_devices: int) -> "Traversable":
    if name not in (DEFAULT, *SHIPPED):
        raise ConfigError(f"policy: none of the package is called {name!r}; use {', '.join(SHIPPED)}")
    folder = _BEST if name == DEFAULT else name
    return _FOLDER / folder / f"{objective}-{num_devices}.safetensors"


@functools.cache
def _load(name: str, objective: Objective, num_devices: int) -> "Policy":
    # Flax takes as long to load as JAX does.
    from regal_jax.policies.weights import load_policy

    file = _file(name, objective, num_devices)
    if not file.is_file():
        folder = _FOLDER / (_BEST if name == DEFAULT else name)
        files = (f.name for f in folder.iterdir()) if folder.is_dir() else ()
        there = sorted(f.removesuffix(".safetensors") for f in files if f.endswith(".safetensors"))
        raise ConfigError(
            f"policy: none is shipped for {objective} on {counted(num_devices, 'device')} (there are: "
            f"{', '.join(there) or 'none'}); train one with 'regal-jax train', or leave policy out"
        )
    with resources.as_file(file) as path:
        return load_policy(path, num_devices=num_devices)
