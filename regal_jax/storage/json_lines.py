"""`JsonLines`: append-only lists that survive a killed process."""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from regal_jax.errors import FormatError
from regal_jax.storage.atomic import naming, write_atomically
from regal_jax.storage.documents import parse_writable_json

__all__ = ["JsonLines"]


class JsonLines:
    """An append-only list of JSON objects, one per line.

    A process killed while it writes leaves an incomplete last line, which is ignored. Any other line that is
    not a JSON object is an error.

    Args:
      path: The file; it need not exist.
      then: What makes the object of a damaged line again after the line is deleted, for the error message.
    """

    def __init__(self, path: pathlib.Path, then: str = "build again") -> None:
        self.path = path
        self._then = then

    def read(self) -> list[dict[str, Any]]:
        """The objects.

        Raises:
          FormatError: A line before the last is damaged, or the file cannot be read.
        """
        whole, _ = self._split()
        records = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = parse_writable_json(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise FormatError(f"{self.path}: line {number} is damaged; delete it and {self._then}")
            records.append(record)
        return records

    def _split(self) -> tuple[bytes, bytes]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return b"", b""
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be read: {error.strerror}; check the path") from None
        end = data.rfind(b"\n") + 1
        return data[:end], data[end:]

    def mend(self) -> None:
        """Removes an incomplete last line, so that the next object starts a new line.

        Raises:
          FormatError: A line before it is damaged, or it is not the beginning of an object: the file is of
            another kind, and stays as it is.
        """
        whole, torn = self._split()
        if not torn:
            return
        number = len(self.read()) + 1
        # A power failure may leave zeros.
        if torn[:1] not in (b"{", b"\0"):
            raise FormatError(f"{self.path}: line {number} is damaged; delete it and {self._then}")
        os.truncate(self.path, len(whole))

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one object.

        Raises:
          OSError: The file cannot be written; the error names it.
        """
        # One unbuffered write per line, so that a killed process loses no finished line.
        line = memoryview(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        with naming(self.path), open(self.path, "ab", buffering=0) as file:
            while line:
                line = line[file.write(line) :]  # A disk that gets full takes a part of it, without an error.

    def replace(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Replaces the whole list atomically."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_atomically(self.path, "".join(lines).encode())
