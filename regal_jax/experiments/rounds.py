"""Fig. 4b: the best validation reward of training for each number of message-passing rounds."""

import pathlib
from collections.abc import Mapping, Sequence

from regal_jax.checks import real
from regal_jax.errors import FormatError
from regal_jax.policies import read_metadata
from regal_jax.storage.documents import parse_json
from regal_jax.storage.json_lines import JsonLines

__all__ = ["best_validation", "validation_over_rounds"]


def validation_over_rounds(rounds: Mapping[str, Sequence[str]]) -> dict[int, list[float]]:
    """Number of message rounds -> best validation improvement of each training run with that number.

    Args:
      rounds: As in `EvaluationConfig`.

    Raises:
      FormatError: A file cannot be read; see `best_validation`.
    """
    return {
        int(t): [best_validation(path) for path in paths] for t, paths in sorted(rounds.items(), key=_number)
    }


def _number(item: tuple[str, Sequence[str]]) -> int:
    return int(item[0])


def best_validation(path: str) -> float:
    """The best mean improvement over uniform BRKGA on validation graphs; the reward is this minus 1.

    Args:
      path: Path of a training folder, whose ``metrics.jsonl`` is read, or of a weights file from training.

    Raises:
      FormatError: The path is neither, or there was no validation.
    """
    place = pathlib.Path(path)
    if place.is_dir():
        lines = JsonLines(place / "metrics.jsonl", "train on").read()
        found = [line.get("improvement") for line in lines if line.get("kind") == "validation"]
    else:
        try:
            text = read_metadata(place).get("validation_improvement")
        except OSError as error:
            raise FormatError(f"{path}: cannot be read: {error.strerror}; check the path") from None
        found = [] if text is None else [parse_json(text)]
    numbers = [value for value in map(real, found) if value is not None]
    if not numbers:
        raise FormatError(
            f"{path}: holds no validation; give a folder or a weights file that 'regal-jax train' made"
        )
    return max(numbers)
