"""What the arguments of all commands are made with: the parser's class, and types of numbers."""

import argparse
import sys
from typing import Any, NoReturn, TypeAlias

__all__ = ["OneLineParser", "Subparsers", "count", "seconds", "seed"]


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong with the arguments in one line; takes no abbreviations, which scripts outlive."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; try {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def count(text: str) -> int:
    """A whole number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def seed(text: str) -> int:
    """A whole number of 32 bits."""
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**32 - 1}, got {number}")
    return number


def seconds(text: str) -> float:
    """A number that is more than 0."""
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be more than 0, got {text}")
    return number


# Errors of argparse name the type of an argument by this.
count.__name__, seed.__name__, seconds.__name__ = "whole number", "whole number", "number of seconds"

Subparsers: TypeAlias = "argparse._SubParsersAction[OneLineParser]"
"""What commands are added to."""
