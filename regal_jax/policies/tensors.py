"""Weights files: safetensors, with the config of a network in the metadata."""

import dataclasses
import json
import os
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json
from regal_jax.storage.paths import path_text
from regal_jax.storage.reading import check_regular

__all__ = ["WeightsFormat"]

_RESERVED = ("format", "version", "config")
_Network = TypeVar("_Network", bound=nnx.Module)


@dataclasses.dataclass(frozen=True)
class WeightsFormat:
    """A kind of weights file.

    Attributes:
      name: Name of the format in the file.
      what: Name of the content in messages, such as ``"policy"``.
      writer: Name of the public function that writes such files.
      version: Version that is written.
      readable: Versions that are read.
    """

    name: str
    what: str
    writer: str
    version: str
    readable: tuple[str, ...]

    def save(
        self,
        path: str | os.PathLike[str],
        network: Any,
        kind: type[nnx.Module],
        metadata: Mapping[str, str] | None,
    ) -> None:
        """Writes a network with its config, a dataclass of JSON values, atomically.

        Args:
          path: Path of the file.
          network: The network, with an attribute ``config``.
          kind: Type of the network.
          metadata: Strings to store with the weights.

        Raises:
          ConfigError: The network is of another type, metadata are not strings or use a reserved name, or
            weights are not finite.
          OSError: The file cannot be written.
        """
        self.check_network(network, kind)
        self.write(path, network, dataclasses.asdict(network.config), metadata)

    def load(
        self, path: str | os.PathLike[str], config: Callable[..., Any], kind: Callable[..., _Network]
    ) -> _Network:
        """Reads a network.

        Args:
          path: Path of the file.
          config: Type of the config, called with its fields.
          kind: Type of the network, called with the config and ``rngs``.

        Raises:
          FormatError: The file is of another kind, or damaged.
          OSError: The file cannot be read.
        """
        metadata, tensors = self.read(path)
        try:
            made = config(**parse_json(metadata.get("config", "")))
        except (ValueError, TypeError) as error:
            raise FormatError(f"{path}: metadata 'config': {error}; the file is damaged") from None
        return self.network(path, tensors, lambda: kind(made, rngs=nnx.Rngs(0)))

    def write(
        self,
        path: str | os.PathLike[str],
        network: nnx.Module,
        config: Mapping[str, Any],
        metadata: Mapping[str, str] | None,
    ) -> None:
        """Writes a network atomically.

        Args:
          path: Path of the file.
          network: The network.
          config: Config as JSON values.
          metadata: Strings to store with the weights.

        Raises:
          ConfigError: Metadata are not strings or use a reserved name, or weights are not finite.
          OSError: The file cannot be written.
        """
        extra = dict(metadata or {})
        for name, value in extra.items():
            if not isinstance(name, str) or not isinstance(value, str) or name in _RESERVED:
                raise ConfigError(
                    f"{self.writer}: metadata {name!r}: {value!r}; give texts, under names other than "
                    f"{', '.join(_RESERVED)}"
                )
        tensors = {name: np.asarray(leaf) for name, leaf in _flatten(_parameters(network)).items()}
        for name, tensor in tensors.items():
            if not np.isfinite(tensor).all():
                raise ConfigError(f"{self.writer}: weights {name!r} are not finite; training has diverged")
        extra |= {"format": self.name, "version": self.version, "config": json.dumps(config)}
        write_atomically(path_text(path), _sorted_header(safetensors.numpy.save(tensors, extra)))

    def check_network(self, network: Any, kind: type[nnx.Module]) -> None:
        """Checks the kind of a network.

        Raises:
          ConfigError: The argument is not such a network.
        """
        if not isinstance(network, kind):
            raise ConfigError(
                f"{self.writer}: give a path, then a {kind.__name__}, got {reprlib.repr(network)}"
            )

    def read(self, path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, np.ndarray]]:
        """Metadata and tensors of a file of this format and version.

        Raises:
          FormatError: The file is of another kind, or damaged.
          OSError: The file cannot be read.
        """
        name = path_text(path)
        check_regular(name)
        with open(name, "rb") as file:  # `open` reports why a file cannot be read.
            start = file.read(9)
        try:
            with safetensors.safe_open(Path(path), framework="numpy") as file:
                metadata = file.metadata() or {}
                self._check_version(path, metadata)
                return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except safetensors.SafetensorError as error:
            if start[8:] == b"{":
                raise FormatError(f"{path}: truncated or damaged ({error}); fetch it again") from None
            raise FormatError(f"{path}: not a safetensors file; give one that {self.writer} wrote") from None

    def _check_version(self, path: str | os.PathLike[str], metadata: Mapping[str, str]) -> None:
        if metadata.get("format") != self.name:
            raise FormatError(
                f"{path}: holds no {self.what} of regal_jax; give a file that {self.writer} wrote"
            )
        if metadata.get("version") not in self.readable:
            raise FormatError(
                f"{path}: format version {metadata.get('version')!r}, this release reads "
                f"{' and '.join(map(repr, self.readable))}; train it again or use the release that wrote it"
            )

    def network(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, np.ndarray],
        make: Callable[[], _Network],
    ) -> _Network:
        """A network with the weights of a file.

        Args:
          path: Path of the file, for messages.
          tensors: From `read`.
          make: Function that makes a network with the file's config; it is only traced.

        Raises:
          FormatError: The weights do not match the network.
        """
        graphdef, state = nnx.split(nnx.eval_shape(make))
        expected = _flatten(nnx.to_pure_dict(state))
        self._check(path, tensors, {name: leaf.shape for name, leaf in expected.items()})
        # `jnp.asarray` would compile a program for every shape.
        arrays = jax.device_put(dict(tensors))
        nnx.replace_by_pure_dict(state, _fill(nnx.to_pure_dict(state), arrays))
        return nnx.merge(graphdef, state)

    def _check(
        self,
        path: str | os.PathLike[str],
        tensors: Mapping[str, np.ndarray],
        expected: Mapping[str, tuple[int, ...]],
    ) -> None:
        for name in sorted(expected.keys() ^ tensors.keys()):
            what = "missing" if name in expected else f"not a part of this {self.what}"
            raise FormatError(f"{path}: weights {name!r} are {what}; the file does not fit its own config")
        for name, tensor in tensors.items():
            if tensor.shape != expected[name] or tensor.dtype != np.float32:
                raise FormatError(
                    f"{path}: weights {name!r} are {tensor.dtype} {tensor.shape}, expected float32 "
                    f"{expected[name]}; the file does not fit its own config"
                )
            if not np.isfinite(tensor).all():
                raise FormatError(f"{path}: weights {name!r} are not finite; use weights of an earlier step")

    def texts(self, path: str | os.PathLike[str]) -> dict[str, str]:
        """The metadata that `write` was given.

        Raises:
          FormatError: The file is of another kind, or damaged.
          OSError: The file cannot be read.
        """
        metadata = self.read(path)[0]
        return {name: text for name, text in metadata.items() if name not in _RESERVED}


def _sorted_header(data: bytes) -> bytes:
    """A safetensors file with sorted names in its header, so that equal networks give equal files.

    The library writes metadata in the order of its hash table, which varies.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:start]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # Tensors are aligned to 8 bytes.
    return len(header).to_bytes(8, "little") + header + data[start:]


def _parameters(network: nnx.Module) -> dict[Any, Any]:
    return nnx.to_pure_dict(nnx.state(network, nnx.Param))


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Leaves by their paths of attributes, joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= _flatten(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return flat


def _fill(tree: Mapping[Any, Any], leaves: Mapping[str, Any], prefix: str = "") -> dict[Any, Any]:
    """``tree`` with its leaves replaced by ``leaves``, which have the names of `_flatten`."""
    return {
        name: _fill(value, leaves, f"{prefix}{name}.")
        if isinstance(value, Mapping)
        else leaves[f"{prefix}{name}"]
        for name, value in tree.items()
    }
