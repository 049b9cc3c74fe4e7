"""Metrics of a run as JSON lines and, on request, for TensorBoard."""

import pathlib
from typing import Any, Self

from regal_jax.errors import FormatError, MissingExtraError
from regal_jax.storage.json_lines import JsonLines

__all__ = ["Record", "event_writer"]


def event_writer() -> Any:
    """The class that writes event files for TensorBoard.

    Raises:
      MissingExtraError: tensorboardX is not installed.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtraError("tensorboardX", "train") from None
    return SummaryWriter


class Record:
    """Writes ``metrics.jsonl``: one object per line, each with ``step`` and ``kind``.

    After a restart the lines of steps that will be repeated are removed.
    """

    def __init__(self, folder: pathlib.Path, step: int, *, tensorboard: bool) -> None:
        """Opens the files.

        Args:
          folder: Folder of the run.
          step: Step of the last record to keep; those of later steps are removed. -1 keeps none.
          tensorboard: Also write event files to ``folder/tensorboard``.

        Raises:
          MissingExtraError: tensorboardX is not installed.
          FormatError: A line is damaged.
        """
        self._writer: Any = None
        if tensorboard:
            self._writer = event_writer()(str(folder / "tensorboard"), purge_step=step + 1)
        self._lines = JsonLines(folder / "metrics.jsonl", "train on")
        records = self._lines.read()
        for number, record in enumerate(records, 1):
            if not isinstance(record.get("step"), int):
                raise FormatError(
                    f"{self._lines.path}: line {number} has no step; delete it, or take another folder"
                )
        self._lines.replace([record for record in records if record["step"] <= step])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def add(self, kind: str, step: int, values: dict[str, float]) -> None:
        """Writes one record, which is on disk when this returns.

        Args:
          kind: ``"train"`` or ``"validation"``.
          step: Updates made so far.
          values: Numbers by name.
        """
        self._lines.append({"step": step, "kind": kind, **values})
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)
