"""Weights files of policies: safetensors, with the policy's config in the metadata."""

import dataclasses
import json
import os
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from regal_jax.errors import ConfigError, FormatError
from regal_jax.policies.ablation import Ablation
from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.conversion import EARLIER, translated
from regal_jax.policies.networks import Policy
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json

__all__ = ["FORMAT", "VERSION", "load_policy", "read_metadata", "save_policy"]

FORMAT: Final = "regal_jax.policy"
VERSION: Final = "6"
"""Changes with the layout of the file, of the config, of the networks, or of the features. What
`regal_jax.policies.conversion` cannot translate has to be trained again."""

_RESERVED: Final = ("format", "version", "config")


@interruptible()
def save_policy(
    path: str | os.PathLike[str], policy: Policy, metadata: Mapping[str, str] | None = None
) -> None:
    """Writes a policy, all of the file or nothing.

    Args:
      path: Where to; by custom ``*.safetensors``.
      policy: What to.
      metadata: Texts to keep with the weights, such as what they were trained on.

    Raises:
      ConfigError: Something else than a policy; metadata that are not texts or take a name that the format
        uses; weights that are not finite.
      OSError: The file cannot be written.
    """
    if not isinstance(policy, Policy):
        raise ConfigError(f"save_policy: give a path, then a Policy, got {reprlib.repr(policy)}")
    extra = dict(metadata or {})
    for name, value in extra.items():
        if not isinstance(name, str) or not isinstance(value, str) or name in _RESERVED:
            raise ConfigError(
                f"save_policy: metadata {name!r}: {value!r}; give texts, under names other than "
                f"{', '.join(_RESERVED)}"
            )
    tensors = {name: np.asarray(leaf) for name, leaf in _flatten(_parameters(policy)).items()}
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise ConfigError(f"save_policy: weights {name!r} are not finite; training has diverged")
    config = json.dumps(dataclasses.asdict(policy.config))
    extra |= {"format": FORMAT, "version": VERSION, "config": config}
    write_atomically(path, _sorted_header(safetensors.numpy.save(tensors, extra)))


@interruptible()
def load_policy(path: str | os.PathLike[str], *, num_devices: int | None = None) -> Policy:
    """Reads a policy.

    Args:
      path: A file of `save_policy`.
      num_devices: Refuse a policy for any other number of devices; ``None`` takes what there is.

    Raises:
      FormatError: The file is no policy, is damaged, or is of another version.
      ConfigError: The policy is for another number of devices.
      OSError: The file cannot be read.

    Examples:
      >>> from regal_jax.policies import default_policy, load_policy, save_policy
      >>> save_policy("policy.safetensors", default_policy("makespan", 2))
      >>> load_policy("policy.safetensors").config.num_devices
      2
    """
    metadata, tensors = _read(path)
    config = _config(path, metadata)
    if num_devices is not None and config.num_devices != num_devices:
        raise ConfigError(
            f"{path}: a policy for {config.num_devices} devices, not for {num_devices}; "
            f"load or train one for {num_devices}"
        )
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0))))
    expected = _flatten(nnx.to_pure_dict(state))
    _check(path, tensors, {name: leaf.shape for name, leaf in expected.items()})
    # `jnp.asarray` would compile a program for every shape.
    arrays = jax.device_put(tensors)
    nnx.replace_by_pure_dict(state, _fill(nnx.to_pure_dict(state), arrays))
    return nnx.merge(graphdef, state)


@interruptible()
def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The texts that `save_policy` was given.

    Raises:
      FormatError: As `load_policy`.
      OSError: The file cannot be read.
    """
    metadata = _read(path)[0]
    return {name: text for name, text in metadata.items() if name not in _RESERVED}


def _sorted_header(data: bytes) -> bytes:
    """A safetensors file with the names of its header in order: equal policies are equal files.

    The library writes the metadata as its hash table has them, in another order each time.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # Tensors are aligned to 8 bytes.
    return len(header).to_bytes(8, "little") + header + data[start:]


def _read(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """Metadata and tensors of a file of this format and version."""
    with open(path, "rb") as file:  # Says itself what keeps it from being read.
        start = file.read(9)
    try:
        with safetensors.safe_open(Path(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_version(path, metadata)
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except safetensors.SafetensorError as error:
        if start[8:] == b"{":
            raise FormatError(f"{path}: truncated or damaged ({error}); fetch it again") from None
        raise FormatError(f"{path}: not a safetensors file; give one that save_policy wrote") from None


def _check_version(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
    if metadata.get("format") != FORMAT:
        raise FormatError(f"{path}: holds no policy of regal_jax; give a file that save_policy wrote")
    if metadata.get("version") not in (VERSION, EARLIER):
        raise FormatError(
            f"{path}: format version {metadata.get('version')!r}, this release reads {VERSION!r} and "
            f"{EARLIER!r}; "
            "train it again or use the release that wrote it"
        )


def _config(path: str | os.PathLike[str], metadata: Mapping[str, str]) -> PolicyConfig:
    try:
        fields = parse_json(metadata.get("config", ""))
        if metadata.get("version") == EARLIER:
            return translated(fields)
        return PolicyConfig(**{**fields, "ablation": Ablation(**fields["ablation"])})
    except (ValueError, TypeError, KeyError) as error:
        raise FormatError(f"{path}: metadata 'config': {error}; the file is damaged") from None


def _check(
    path: str | os.PathLike[str],
    tensors: Mapping[str, np.ndarray],
    expected: Mapping[str, tuple[int, ...]],
) -> None:
    for name in sorted(expected.keys() ^ tensors.keys()):
        what = "missing" if name in expected else "not a part of this policy"
        raise FormatError(f"{path}: weights {name!r} are {what}; the file does not fit its own config")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name] or tensor.dtype != np.float32:
            raise FormatError(
                f"{path}: weights {name!r} are {tensor.dtype} {tensor.shape}, expected float32 "
                f"{expected[name]}; the file does not fit its own config"
            )
        if not np.isfinite(tensor).all():
            raise FormatError(f"{path}: weights {name!r} are not finite; use weights from before that")


def _parameters(policy: Policy) -> dict[Any, Any]:
    return nnx.to_pure_dict(nnx.state(policy, nnx.Param))


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by the path of attributes that leads to them, joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= _flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def _fill(tree: Mapping[Any, Any], leaves: Mapping[str, Any], prefix: str = "") -> dict[Any, Any]:
    """``tree`` with the leaves that `_flatten` would name so."""
    return {
        name: _fill(value, leaves, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else leaves[f"{prefix}{name}"]
        for name, value in tree.items()
    }
