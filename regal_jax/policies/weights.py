"""Weights files of policies: safetensors, with the policy's config in the metadata."""

import os
from collections.abc import Mapping
from typing import Final

from flax import nnx

from regal_jax.checks import counted
from regal_jax.errors import ConfigError, FormatError
from regal_jax.policies.ablation import Ablation
from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.conversion import EARLIER, translated
from regal_jax.policies.networks import Policy
from regal_jax.policies.tensors import WeightsFormat
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.documents import parse_json

__all__ = ["FORMAT", "VERSION", "load_policy", "read_metadata", "save_policy"]

FORMAT: Final = "regal_jax.policy"
VERSION: Final = "6"
"""Version of the layout of the file, of the config, of the networks and of the features. Files that
`regal_jax.policies.conversion` cannot translate have to be trained again."""

_FILES: Final = WeightsFormat(FORMAT, "policy", "save_policy", VERSION, (VERSION, EARLIER))


@interruptible()
def save_policy(
    path: str | os.PathLike[str], policy: Policy, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a policy atomically.

    Args:
      path: Path of the file, by convention ``*.safetensors``.
      policy: The policy.
      metadata: Strings to store with the weights, such as the training set.

    Raises:
      ConfigError: The argument is not a policy, metadata are not strings or use a reserved name, or weights
        are not finite.
      OSError: The file cannot be written.
    """
    _FILES.save(path, policy, Policy, metadata)


@interruptible()
def load_policy(path: str | os.PathLike[str], *, num_devices: int | None = None) -> Policy:
    """Reads a policy.

    Args:
      path: Path of a file that `save_policy` wrote.
      num_devices: Required number of devices; ``None`` for any.

    Raises:
      FormatError: The file is not a policy, is damaged, or is of another version.
      ConfigError: The policy is for another number of devices.
      OSError: The file cannot be read.

    Examples:
      >>> from regal_jax.policies import default_policy, load_policy, save_policy
      >>> save_policy("policy.safetensors", default_policy("makespan", 2))
      >>> load_policy("policy.safetensors").config.num_devices
      2
    """
    metadata, tensors = _FILES.read(path)
    config = _config(path, metadata)
    if num_devices is not None and config.num_devices != num_devices:
        raise ConfigError(
            f"{path}: a policy for {counted(config.num_devices, 'device')}, not for {num_devices}; "
            f"load or train one for {num_devices}"
        )
    return _FILES.network(path, tensors, lambda: Policy(config, rngs=nnx.Rngs(0)))


@interruptible()
def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata that `save_policy` stored.

    Raises:
      FormatError: The file is not a policy, is damaged, or is of another version.
      OSError: The file cannot be read.
    """
    return _FILES.texts(path)


def read_version(path: str | os.PathLike[str]) -> str:
    """The format version of the file of a policy; errors as in `read_metadata`."""
    return _FILES.read(path)[0]["version"]


def _config(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> PolicyConfig:
    try:
        fields = parse_json(metadata.get("config", ""))
        if metadata.get("version") == EARLIER:
            return translated(fields)
        return PolicyConfig(**{**fields, "ablation": Ablation(**fields["ablation"])})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: metadata 'config': {error}; the file is damaged") from None
