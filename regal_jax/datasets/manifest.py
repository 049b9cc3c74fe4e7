"""``manifest.json`` of a built set: its settings, counts and members."""

import dataclasses
import json
import pathlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from regal_jax.datasets.candidates import SPLITS
from regal_jax.datasets.choices import Choice
from regal_jax.errors import ConfigError
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json
from regal_jax.storage.reading import read_limited

__all__ = ["MANIFEST", "choices_from_text", "choices_to_text", "finish_manifest", "open_manifest"]

MANIFEST: Final = "manifest.json"
_FORMAT: Final = "regal_jax.dataset"
_VERSION: Final = 1


def choices_to_text(choices: Iterable[Choice]) -> str:
    """``choices`` as JSON."""
    return json.dumps([dataclasses.asdict(choice) for choice in choices])


def choices_from_text(path: pathlib.Path) -> list[Choice] | None:
    """The choices in a file of `choices_to_text`; ``None`` if there is no such file, or it is damaged."""
    try:
        rows = parse_json(read_limited(path))
        return [_choice(row) for row in rows]
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _choice(row: Mapping[str, Any]) -> Choice:
    """A choice from its JSON; raises `TypeError` or `KeyError` if `choices_to_text` did not write it."""
    choice = Choice(**{**row, "rejected": tuple(row["rejected"])})
    counts = (choice.index, choice.attempt, choice.repeated)
    texts = (choice.topology, choice.hash, *choice.rejected)
    if (
        choice.split not in SPLITS
        or not all(type(count) is int and count >= 0 for count in counts)
        or not all(isinstance(text, str) for text in texts)
        or not choice.hash.isalnum()  # The hash is part of a file name.
    ):
        raise TypeError("not a choice")
    return choice


def open_manifest(root: pathlib.Path, settings: Mapping[str, Any]) -> list[Choice] | None:
    """Begins a set with these settings in the folder ``root``, or resumes one.

    Returns:
      The members, if the set was finished; else ``None``.

    Raises:
      ConfigError: The folder has a set with other settings, or other files.
      OSError: The folder cannot be read or created.
    """
    path = root / MANIFEST
    if path.exists():
        document = _read(path)
        _check_same(root, document.get("settings"), settings)
        if not document.get("complete"):
            return None
        try:
            return [_choice(row) for row in document["members"]]
        except (TypeError, KeyError):
            raise _damaged(path) from None
    # A name that begins with a dot is left by a writer that was killed before there was a manifest.
    if any(not entry.name.startswith(".") for entry in root.iterdir()):
        raise ConfigError(f"{root}: is not empty, and no set was begun there; name a new folder")
    write_atomically(path, _text({"settings": settings, "complete": False}))
    return None


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        document = parse_json(read_limited(path))
    except ValueError:
        raise _damaged(path) from None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise _damaged(path)
    return document


def _damaged(path: pathlib.Path) -> ConfigError:
    return ConfigError(f"{path}: not the manifest of a set; name a new folder, or delete this one")


def _check_same(root: pathlib.Path, old: Any, new: Mapping[str, Any]) -> None:
    old = old if isinstance(old, dict) else {}
    new = json.loads(json.dumps(new))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            raise ConfigError(
                f"{root}: a set was begun there with {name} {json.dumps(old.get(name))}, not "
                f"{json.dumps(new.get(name))}; use the same settings, or name a new folder"
            )


def _text(document: Mapping[str, Any]) -> bytes:
    whole = {"format": _FORMAT, "version": _VERSION, **document}
    return (json.dumps(whole, indent=1) + "\n").encode()


def finish_manifest(
    root: pathlib.Path, settings: Mapping[str, Any], choices: Sequence[Choice]
) -> dict[str, Any]:
    """Writes the manifest of a finished set, and returns it.

    Raises:
      OSError: The manifest cannot be written.
    """
    kept = Counter(choice.topology for choice in choices)
    rejected = Counter(topology for choice in choices for topology in choice.rejected)
    document = {
        "settings": settings,
        "complete": True,
        "candidates": {
            topology: {"kept": kept[topology], "rejected": rejected[topology]}
            for topology in sorted(kept | rejected)
        },
        "repeated": sum(choice.repeated for choice in choices),
        "splits": {split: sum(c.split == split for c in choices) for split in SPLITS},
        "members": [dataclasses.asdict(choice) for choice in choices],
    }
    write_atomically(root / MANIFEST, _text(document))
    return document
