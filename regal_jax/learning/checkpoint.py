"""Checkpoints of a run: one file each, written atomically and validated when read."""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from regal_jax.errors import FormatError
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json

__all__ = ["FORMAT", "VERSION", "Checkpoints"]

FORMAT: Final = "regal_jax.checkpoint"
VERSION: Final = "2"
"""Version of the content of a checkpoint."""

_KEPT: Final = 2
_REMEDY: Final = "take another --out folder, or remove this one to start again"


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The last two checkpoints of a run, in ``folder``: safetensors files that are named by their steps."""

    folder: pathlib.Path

    def save(self, state: Any, notes: dict[str, Any]) -> None:
        """Saves the state, and ``notes`` of plain values with it."""
        step = int(state.step)
        tensors = {name: np.asarray(leaf) for name, leaf in _leaves(state).items()}
        text = json.dumps(notes)
        metadata = {"format": FORMAT, "version": VERSION, "notes": text, "digest": _digest(tensors, text)}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(step), safetensors.numpy.save(tensors, metadata))
        for old in self._steps()[:-_KEPT]:
            self._path(old).unlink(missing_ok=True)

    def restore(self, like: Any) -> tuple[Any, dict[str, Any]] | None:
        """The last state saved, with its notes; ``None`` if there is none.

        Args:
          like: A state of the same shapes.

        Raises:
          FormatError: A checkpoint of another version or of another network, or one that is damaged.
        """
        steps = self._steps()
        if not steps:
            return None
        path = self._path(steps[-1])
        remedy = _REMEDY
        if steps[1:]:
            remedy = f"remove this file to resume from step {steps[-2]}, or take another --out folder"
        tensors, notes = _read(path, remedy)
        wanted = _leaves(like)
        for name in sorted(wanted.keys() | tensors.keys()):
            found, expected = (_kind_of(leaves.get(name)) for leaves in (tensors, wanted))
            if found != expected:
                raise FormatError(
                    f"{path}: does not fit this run ({name} is {found}, not {expected}); {_REMEDY}"
                )
        state = jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(tensors[name]) for name in wanted])
        if int(state.step) != steps[-1]:
            raise FormatError(f"{path}: holds step {int(state.step)}; give the file its own name again")
        return state, notes

    def _path(self, step: int) -> pathlib.Path:
        return self.folder / f"{step}.safetensors"

    def _steps(self) -> list[int]:
        """Steps that have a checkpoint, in order."""
        if not self.folder.exists():
            return []
        if not self.folder.is_dir():
            raise FormatError(f"{self.folder}: is not a folder; {_REMEDY}")
        for path in self.folder.iterdir():
            if path.is_dir():
                raise FormatError(f"{path}: is not a checkpoint of this release; {_REMEDY}")
        stems = [path.stem for path in self.folder.glob("*.safetensors")]
        return sorted(int(stem) for stem in stems if stem.isascii() and stem.isdigit() and len(stem) < 11)


def _leaves(state: Any) -> dict[str, Any]:
    """Arrays by their path in the pytree."""
    return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def _kind_of(leaf: Any) -> str:
    return "missing" if leaf is None else f"{leaf.dtype} {tuple(leaf.shape)}"


def _digest(tensors: Mapping[str, np.ndarray], notes: str) -> str:
    """Checksum of the content of a checkpoint. Safetensors files have no checksum of their own."""
    made = hashlib.sha256(notes.encode())
    for name, tensor in sorted(tensors.items()):
        made.update(f"{name} {_kind_of(tensor)}".encode())
        made.update(np.ascontiguousarray(tensor).tobytes())
    return made.hexdigest()


def _read(path: pathlib.Path, remedy: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and notes as they were saved; ``remedy`` ends the message about a damaged file."""
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            version = metadata.get("version")
            if metadata.get("format") == FORMAT and version != VERSION:
                raise FormatError(f"{path}: a checkpoint of version {version}, not {VERSION}; {_REMEDY}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (safetensors.SafetensorError, OSError) as error:
        raise FormatError(f"{path}: damaged checkpoint ({error}); {remedy}") from None
    text = metadata.get("notes", "")
    if metadata.get("format") != FORMAT or metadata.get("digest") != _digest(tensors, text):
        raise FormatError(f"{path}: damaged checkpoint (its content differs from what was saved); {remedy}")
    return tensors, parse_json(text)
