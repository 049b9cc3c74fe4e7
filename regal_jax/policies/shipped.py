"""The weights that come with the package."""

import functools
from importlib import resources
from typing import TYPE_CHECKING, Final

from regal_jax.errors import ConfigError
from regal_jax.plan import Objective

if TYPE_CHECKING:
    from regal_jax.policies.networks import Policy

__all__ = ["default_policy", "is_shipped"]

_FOLDER: Final = resources.files("regal_jax.policies") / "trained"


def default_policy(objective: Objective | str, num_devices: int) -> "Policy":
    """The policy that is installed with the package; its model card is docs/policies.md.

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
    return _load(Objective(objective), num_devices)


def is_shipped(objective: Objective | str, num_devices: int) -> bool:
    """Whether there is a `default_policy` for this number of devices."""
    return (_FOLDER / _name(Objective(objective), num_devices)).is_file()


def _name(objective: Objective, num_devices: int) -> str:
    return f"{objective}-{num_devices}.safetensors"


@functools.cache
def _load(objective: Objective, num_devices: int) -> "Policy":
    # Flax takes as long to load as JAX does.
    from regal_jax.policies.weights import load_policy

    file = _FOLDER / _name(objective, num_devices)
    if not file.is_file():
        files = _FOLDER.iterdir() if _FOLDER.is_dir() else ()
        there = sorted(f.name.removesuffix(".safetensors") for f in files)
        raise ConfigError(
            f"policy: none is shipped for {objective} on {num_devices} devices (there are: "
            f"{', '.join(n for n in there if n.rpartition('-')[2].isdigit()) or 'none'}); train one with "
            "'regal-jax train', or leave policy out"
        )
    with resources.as_file(file) as path:
        return load_policy(path, num_devices=num_devices)
