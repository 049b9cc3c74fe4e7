"""Rows of a long measurement, stored in a file so that an interrupted measurement can continue."""

import fnmatch
import json
import math
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.environment import environment
from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json

__all__ = ["Rows", "chosen_names"]


class Rows:
    """The rows of each program. If a program fails, this is recorded and the others are measured.

    Args:
      path: File of an earlier measurement, which is continued if it has the same settings, commit, versions
        and hardware; ``None`` for no file.
      kind: Kind of the measurement.
      settings: Its settings.
    """

    def __init__(self, path: str | None, kind: str, settings: Mapping[str, Any]) -> None:
        self.path = pathlib.Path(path) if path else None
        here = environment()
        same = {key: here[key] for key in ("commit", "dirty", "versions", "hardware")}
        self.document: dict[str, Any] = {
            "environment": here, "same": {**same, "kind": kind, **settings}, "summary": {}, "rows": {},
        }  # fmt: skip
        self.failures: dict[str, str] = {}
        try:
            earlier = parse_json(self.path.read_bytes()) if self.path and self.path.exists() else {}
        except FormatError:
            earlier = {}
        if isinstance(earlier, dict) and earlier.get("same") == self.document["same"]:
            self.document["rows"] = dict(earlier["rows"])

    def get(self, name: str, make: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """The rows of a program: those of the file, or new ones; none if making them fails."""
        rows = self.document["rows"]
        if name not in rows:
            try:
                rows[name] = make()
            except Exception as error:  # A failure of one program must not end the measurement of the others.
                self.failures[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                return []
        return rows[name]

    def every(self) -> list[dict[str, Any]]:
        """All rows so far, also those of programs that an earlier run with other patterns measured."""
        return [row for rows in self.document["rows"].values() for row in rows]

    def save(self, summary: Mapping[str, float]) -> None:
        """Writes all rows so far, and a summary of them, with ``null`` for what is not a number."""
        # JSON has no NaN: a file with one would count as damaged, and its rows would be lost.
        self.document["summary"] = {k: v if math.isfinite(v) else None for k, v in summary.items()}
        if self.path:
            text = json.dumps(self.document, indent=1, allow_nan=False) + "\n"
            write_atomically(self.path, text.encode())

    def report(self) -> int:
        """Names the programs that failed; the exit code."""
        for name, error in self.failures.items():
            print(f"{name}: failed: {error}", file=sys.stderr)
        return 1 if self.failures else 0


def chosen_names(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that match a pattern, or all without patterns.

    Raises:
      ConfigError: No name matches.
    """
    known = list(names)
    chosen = [n for n in known if not patterns or any(fnmatch.fnmatch(n, p) for p in patterns)]
    if not chosen:
        raise ConfigError(f"no program matches; use some of {', '.join(known)}")
    return chosen
