"""`Schedule`: an order of a program's instructions, and the files in which it is stored."""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any, Final

from regal_jax.checks import whole
from regal_jax.errors import FormatError
from regal_jax.programs.stored import keep_file, own_folder
from regal_jax.storage.atomic import write_atomically, writing
from regal_jax.storage.documents import parse_json
from regal_jax.storage.paths import path_text
from regal_jax.storage.reading import read_limited

__all__ = ["MemoryUse", "Schedule", "keep_program", "kept_program", "kept_schedule"]

_FORMAT: Final = "regal_jax.schedule"
_VERSION: Final = 4
_SUFFIX: Final = ".program"
_LEVEL: Final = 1
"""Compression that takes little time."""


@dataclasses.dataclass(frozen=True)
class MemoryUse:
    """Memory of a compiled program in bytes, as XLA reports it.

    Attributes:
      argument: Bytes of the arguments.
      output: Bytes of the results.
      alias: Bytes of the results that overwrite donated arguments.
      temp: Bytes of temporary memory.
    """

    argument: int
    output: int
    alias: int
    temp: int

    @property
    def total(self) -> int:
        """Arguments, results and temporary memory, with shared memory counted once."""
        return self.argument + self.output - self.alias + self.temp


@dataclasses.dataclass(frozen=True)
class Schedule:
    """An order of a program's instructions.

    Attributes:
      fingerprint: Digest of the program and the compiler.
      orders: Computation -> names of its instructions in order; empty for the program of XLA.
      alias: Results that overwrite donated arguments: path of the result, parameter, path in it, kind.
      before: Memory of the program in XLA's order.
      predicted: Predicted temporary memory in bytes (`TempModel`); 0 if XLA's order was kept.
      predicted_before: Predicted temporary memory of XLA's order in bytes.
      reason: Why XLA's own order was kept; empty if it was not.
    """

    fingerprint: str
    orders: Mapping[str, tuple[str, ...]]
    alias: tuple[tuple[tuple[int, ...], int, tuple[int, ...], int], ...]
    before: MemoryUse
    predicted: int
    predicted_before: int
    reason: str

    @property
    def changes(self) -> bool:
        """Whether the program is not XLA's own."""
        return bool(self.orders)

    @property
    def tag(self) -> str:
        """A text that is unique to the order and the program."""
        text = json.dumps([_VERSION, self.fingerprint, {k: list(v) for k, v in self.orders.items()}])
        return f"regal_jax-{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file.

        Raises:
          FormatError: The file cannot be written.
        """
        held = dataclasses.asdict(self) | {"orders": {k: list(v) for k, v in self.orders.items()}}
        document = {"format": _FORMAT, "version": _VERSION, **held}
        with writing(path):
            write_atomically(path, (json.dumps(document) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Schedule":
        """Reads a file that `save` wrote.

        Raises:
          FormatError: The file cannot be read, or is not a schedule.
        """
        name = path_text(path)
        try:
            document = parse_json(read_limited(name))
            return cls._parsed(document)
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            text = str(error) if isinstance(error, FormatError) else "not a schedule of regal_jax.compile"
            raise FormatError(f"{path}: {text}; save it again") from None

    @classmethod
    def _parsed(cls, document: Any) -> "Schedule":
        if document["format"] != _FORMAT or document["version"] != _VERSION:
            raise FormatError("not a schedule of this version of regal_jax.compile")
        orders = {_text(k): tuple(map(_text, v)) for k, v in document["orders"].items()}
        alias = tuple(
            (tuple(map(_number, result)), _number(number), tuple(map(_number, path)), _number(kind))
            for result, number, path, kind in document["alias"]
        )
        before = MemoryUse(**{k: _number(v) for k, v in document["before"].items()})
        return cls(
            _text(document["fingerprint"]),
            orders,
            alias,
            before,
            _number(document["predicted"]),
            _number(document["predicted_before"]),
            _text(document["reason"]),
        )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: Any) -> int:
    number = whole(value, 0)
    if number is None:
        raise TypeError
    return number


def kept_schedule(fingerprint: str, search: str) -> tuple[Schedule | None, pathlib.Path | None]:
    """The schedule that an earlier process stored for a program, and its path.

    Args:
      fingerprint: Digest of the program.
      search: A text with the settings of the search.

    Returns:
      The schedule or ``None``; its path, or ``None`` if nothing is stored (``REGAL_JAX_CACHE``).
    """
    folder = own_folder()
    if folder is None:
        return None, None
    digest = hashlib.sha256(f"{fingerprint} {search}".encode()).hexdigest()[:32]
    path = folder / f"schedule-{digest}.json"
    # A damaged file is treated as missing.
    with contextlib.suppress(FormatError):
        schedule = Schedule.load(path)
        if schedule.fingerprint == fingerprint:
            return schedule, path
    return None, path


def keep_program(path: pathlib.Path, schedule: Schedule, serialized: bytes) -> None:
    """Stores a finished program beside its schedule.

    Args:
      path: The schedule's path.
      schedule: The schedule.
      serialized: The program.

    Raises:
      OSError: The file cannot be written.
    """
    packed = zlib.compress(serialized, _LEVEL)
    keep_file(path.with_suffix(_SUFFIX), _digest(schedule, packed) + packed)


def kept_program(path: pathlib.Path, schedule: Schedule) -> bytes | None:
    """The finished program that was stored for a schedule; ``None`` if there is none, or it is damaged."""
    try:
        held = path.with_suffix(_SUFFIX).read_bytes()
    except OSError:
        return None
    size = hashlib.sha256().digest_size
    digest, packed = held[:size], held[size:]
    # XLA ends the process if it reads a program that it does not accept.
    return zlib.decompress(packed) if digest == _digest(schedule, packed) else None


def _digest(schedule: Schedule, packed: bytes) -> bytes:
    return hashlib.sha256(schedule.tag.encode() + packed).digest()
