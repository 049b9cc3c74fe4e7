"""Weights files of networks that order ops: safetensors, with the config in the metadata."""

import os
from collections.abc import Mapping
from typing import Final

from regal_jax.ordering.config import TopoformerConfig
from regal_jax.ordering.networks import Topoformer
from regal_jax.policies.tensors import WeightsFormat
from regal_jax.runtime.interrupts import interruptible

__all__ = ["FORMAT", "VERSION", "load_topoformer", "read_topoformer_metadata", "save_topoformer"]

FORMAT: Final = "regal_jax.topoformer"
VERSION: Final = "1"
"""Changes whenever the layout of the file, the config, the networks or the inputs change."""

_FILES: Final = WeightsFormat(FORMAT, "topoformer", "save_topoformer", VERSION, (VERSION,))


@interruptible()
def save_topoformer(
    path: str | os.PathLike[str], model: Topoformer, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a network that orders ops; the file is written atomically.

    Args:
      path: Target file; by convention ``*.safetensors``.
      model: The network.
      metadata: Strings to keep with the weights, such as what they were trained on.

    Raises:
      ConfigError: ``model`` is not a `Topoformer`, metadata are not strings or use a name that the format
        reserves, or weights are not finite.
      OSError: The file cannot be written.
    """
    _FILES.save(path, model, Topoformer, metadata)


@interruptible()
def load_topoformer(path: str | os.PathLike[str]) -> Topoformer:
    """Reads a network that orders ops.

    Args:
      path: A file written by `save_topoformer`.

    Raises:
      FormatError: The file is not of this format, is damaged, or is of another version.
      OSError: The file cannot be read.

    Examples:
      >>> from flax import nnx
      >>> from regal_jax.ordering import Topoformer, TopoformerConfig, load_topoformer, save_topoformer
      >>> config = TopoformerConfig(layers=1, width=8, heads=(1, 0, 0, 1, 0, 0, 1))
      >>> save_topoformer("topoformer.safetensors", Topoformer(config, rngs=nnx.Rngs(0)))
      >>> load_topoformer("topoformer.safetensors").config == config
      True
    """
    return _FILES.load(path, TopoformerConfig, Topoformer)


@interruptible()
def read_topoformer_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata that `save_topoformer` was given.

    Raises:
      FormatError: As `load_topoformer`.
      OSError: The file cannot be read.
    """
    return _FILES.texts(path)
