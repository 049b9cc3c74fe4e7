"""Checkpoints of a run, by Orbax: whole or not there at all."""

import dataclasses
import pathlib
from typing import Any, Self

import jax
import orbax.checkpoint as ocp

from regal_jax.errors import FormatError
from regal_jax.learning.step import TrainState

__all__ = ["VERSION", "Checkpoints"]

VERSION = 1
"""Of what a checkpoint holds."""


class Checkpoints:
    """The last two checkpoints of a run, in ``folder``."""

    def __init__(self, folder: pathlib.Path) -> None:
        options = ocp.CheckpointManagerOptions(
            preservation_policy=ocp.checkpoint_managers.LatestN(2),
            # Small states: a thread that writes on while the process is killed gains nothing.
            enable_async_checkpointing=False,
        )
        self._manager = ocp.CheckpointManager(folder.absolute(), options=options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    def save(self, state: TrainState, notes: dict[str, Any]) -> None:
        """Saves the state, and ``notes`` of plain values with it."""
        step = int(state.step)
        if step in self._manager.all_steps():
            return
        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(_fields(state)),
            notes=ocp.args.JsonSave({"version": VERSION, **notes}),
        )
        self._manager.save(step, args=arguments)
        self._manager.wait_until_finished()

    def restore(self, like: TrainState) -> tuple[TrainState, dict[str, Any]] | None:
        """The last state saved, with its notes; ``None`` if there is none.

        Args:
          like: A state of the same shapes.

        Raises:
          FormatError: A checkpoint of another version or of another network, or one that is damaged.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        where = f"{self._manager.directory}/{step}"
        remedy = "take another --out folder, or remove this one to begin anew"
        try:
            notes = self._manager.restore(step, args=ocp.args.Composite(notes=ocp.args.JsonRestore()))[
                "notes"
            ]
        except (OSError, ValueError, KeyError) as error:
            raise FormatError(f"{where}: damaged checkpoint ({_first_line(error)}); {remedy}") from None
        if notes.get("version") != VERSION:
            raise FormatError(
                f"{where}: a checkpoint of version {notes.get('version')}, not {VERSION}; {remedy}"
            )
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _fields(like))
        arguments = ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        try:
            fields = self._manager.restore(step, args=arguments)["state"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise FormatError(f"{where}: does not fit this run ({_first_line(error)}); {remedy}") from None
        return TrainState(**fields), notes


def _fields(state: TrainState) -> dict[str, Any]:
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
