"""Weights files of networks that sample schedules: safetensors, with the config in the metadata."""

import os
from collections.abc import Mapping
from typing import Final

from regal_jax.gflownet.config import GflownetConfig
from regal_jax.gflownet.networks import SchedulePolicy
from regal_jax.policies.tensors import WeightsFormat
from regal_jax.runtime.interrupts import interruptible

__all__ = ["FORMAT", "VERSION", "load_gflownet", "read_gflownet_metadata", "save_gflownet"]

FORMAT: Final = "regal_jax.gflownet"
VERSION: Final = "1"
"""Changes whenever the layout of the file, the config, the networks or the inputs change."""

_FILES: Final = WeightsFormat(FORMAT, "schedule policy", "save_gflownet", VERSION, (VERSION,))


@interruptible()
def save_gflownet(
    path: str | os.PathLike[str], model: SchedulePolicy, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a network that samples schedules; the file is written atomically.

    Args:
      path: Target file; by convention ``*.safetensors``.
      model: The network.
      metadata: Strings to store with the weights, such as a description of the training.

    Raises:
      ConfigError: ``model`` is not a `SchedulePolicy`, metadata are not strings or use a name that the format
        reserves, or weights are not finite.
      OSError: The file cannot be written.
    """
    _FILES.save(path, model, SchedulePolicy, metadata)


@interruptible()
def load_gflownet(path: str | os.PathLike[str]) -> SchedulePolicy:
    """Reads a network that samples schedules.

    Args:
      path: A file written by `save_gflownet`.

    Raises:
      FormatError: The file is not of this format, is damaged, or is of another version.
      OSError: The file cannot be read.

    Examples:
      >>> from flax import nnx
      >>> from regal_jax.gflownet import GflownetConfig, SchedulePolicy, load_gflownet, save_gflownet
      >>> config = GflownetConfig(layers=1, width=8, head_width=4)
      >>> save_gflownet("gflownet.safetensors", SchedulePolicy(config, rngs=nnx.Rngs(0)))
      >>> load_gflownet("gflownet.safetensors").config == config
      True
    """
    return _FILES.load(path, GflownetConfig, SchedulePolicy)


@interruptible()
def read_gflownet_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata that `save_gflownet` was given.

    Raises:
      FormatError: See `load_gflownet`.
      OSError: The file cannot be read.
    """
    return _FILES.texts(path)
