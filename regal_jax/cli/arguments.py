"""The parser class and the number types that all commands share."""

import argparse
import difflib
import math
import sys
from typing import Any, NoReturn, TypeAlias

__all__ = [
    "OneLineParser",
    "Subparsers",
    "add_engine",
    "add_out",
    "count",
    "dimension",
    "folder_name",
    "positive",
    "seconds",
    "seed",
]


def _checked(kind: type[argparse.Action], *, once: bool) -> type[argparse.Action]:
    """Actions of a kind that refuse an empty text, which often is a variable of a script that is not set.

    Args:
      kind: The kind.
      once: Also refuse an option that is given twice, of which only the last would count.
    """

    class Checked(kind):
        def __call__(
            self,
            parser: argparse.ArgumentParser,
            namespace: argparse.Namespace,
            values: Any,
            option_string: str | None = None,
        ) -> None:
            if "" in (values if isinstance(values, list) else [values]):
                raise argparse.ArgumentError(self, "is empty; give a value")
            if once and option_string is not None and isinstance(parser, OneLineParser):
                if self.dest in parser.given:
                    raise argparse.ArgumentError(self, "is given twice; give it once")
                parser.given.add(self.dest)
            super().__call__(parser, namespace, values, option_string)

    return Checked


class OneLineParser(argparse.ArgumentParser):
    """A parser that reports an error in one line. No option is abbreviated, empty, or given twice.

    Lists (``action="append"``) may be given several times; so may flags, which mean the same then.

    Attributes:
      given: Names of the options with a value that were given so far.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.given: set[str] = set()
        store, append = (self._registry_get("action", name) for name in ("store", "append"))
        either = argparse.BooleanOptionalAction
        for name, kind in ((None, store), ("store", store), ("append", append), (either, either)):
            self.register("action", name, _checked(kind, once=name != "append"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.given.clear()
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The arguments; an unknown one is an error of its command, which names a similar option."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            parser = self._command(found)
            near = difflib.get_close_matches(rest[0].partition("=")[0], parser._option_string_actions, 1, 0.8)
            more = f"; did you mean {near[0]}?" if near else ""
            parser.error(f"unrecognized arguments: {' '.join(rest)}{more}")
        return found

    def _command(self, found: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the command that was found."""
        for action in self._actions:
            if isinstance(action.choices, dict):
                return action.choices.get(getattr(found, action.dest), self)
        return self

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message}; try {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def count(text: str) -> int:
    """A whole number that is at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def dimension(text: str) -> tuple[str, int]:
    """A name and a size of at least 1."""
    name, equals, size = text.rpartition("=")
    if not (name and equals and size.isdecimal() and len(size) < 19 and int(size)):
        raise argparse.ArgumentTypeError(f"write NAME=SIZE, e.g. batch=8, got {text!r}")
    return name, int(size)


def folder_name(text: str) -> str:
    """The path of a folder."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; give a folder")
    return text


def seed(text: str) -> int:
    """A whole number of 32 bits."""
    number = int(text)
    if not 0 <= number < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**32 - 1}, got {number}")
    return number


def positive(text: str) -> float:
    """A finite number that is more than 0."""
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be more than 0 and finite, got {text}")
    return number


def seconds(text: str) -> float:
    """A number of seconds, finite and more than 0."""
    return positive(text)


# argparse names the type of an argument by its `__name__` in error messages.
count.__name__, seed.__name__ = "whole number", "whole number"
positive.__name__, seconds.__name__ = "number", "number of seconds"

Subparsers: TypeAlias = "argparse._SubParsersAction[OneLineParser]"
"""The object of argparse to which commands are added."""


def add_engine(parser: argparse.ArgumentParser, verb: str) -> None:
    """Adds ``--engine`` to a parser.

    Args:
      parser: The parser.
      verb: What the command does on the engine, for the help.
    """
    parser.add_argument(
        "--engine",
        default="local",
        metavar="NAME",
        help=f"{verb}: local, this process (default); ray, a Ray cluster on this machine, or that of "
        "RAY_ADDRESS; ray:HOST:PORT, a cluster that runs (extra ray)",
    )


def add_out(parser: argparse.ArgumentParser, said: str, *, metavar: str = "DIR") -> None:
    """Adds ``--out``, the folder of the results, to a parser.

    Args:
      parser: The parser.
      said: The help.
      metavar: Name of the folder in the help.
    """
    parser.add_argument("--out", type=folder_name, metavar=metavar, required=True, help=said)
