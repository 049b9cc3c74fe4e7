"""All exceptions that regal_jax raises on purpose, and its warnings.

All exceptions are ``ValueError`` (bad input), ``ImportError`` (an absent extra) or ``RuntimeError`` (a limit
of the system), so that callers can also catch them without this module. A message says in one line what is
wrong, where, and how to mend it.
"""

from collections.abc import Sequence
from typing import Any, Final

__all__ = [
    "ClusterError",
    "ConfigError",
    "FormatError",
    "GraphError",
    "InfeasiblePlanWarning",
    "MissingExtraError",
    "PlanError",
    "ProcessLostError",
    "ResourceError",
    "SolverError",
    "WorkerError",
]

_MOST: Final = 2000
"""Most characters of a message; values and names in it may be of any length."""


def shortened(text: str, most: int) -> str:
    """The text, without its middle if it has more than ``most`` characters.

    Examples:
      >>> from regal_jax.errors import shortened
      >>> shortened("0123456789", 10), shortened("0123456789", 6)
      ('0123456789', '012 ... 789')
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[len(text) - most // 2 :]}"


class _OneLine(Exception):
    """The base of all errors: line breaks in quoted values are escaped, long messages lose their middle."""

    def __init__(self, message: str = "") -> None:
        shown = (
            c if c.isprintable() else c.encode("unicode_escape").decode() for c in shortened(message, _MOST)
        )
        super().__init__("".join(shown))


def is_ours(error: BaseException) -> bool:
    """Whether this is one of the exceptions of this module."""
    return type(error).__module__ == __name__


class GraphError(_OneLine, ValueError):
    """A computation graph that breaks a rule of docs/design.md, part 1."""


class ClusterError(_OneLine, ValueError):
    """A cluster that is invalid, or that cannot run the graph."""


class FormatError(_OneLine, ValueError):
    """A file or document that cannot be read in its format."""


class PlanError(_OneLine, ValueError):
    """A plan that is not a valid execution of its graph on its cluster."""


class SolverError(_OneLine, ValueError):
    """A solver from outside of the package raised an exception, which is the cause of this one."""


class ConfigError(_OneLine, ValueError):
    """A setting or argument with an invalid value."""


class InfeasiblePlanWarning(_OneLine, UserWarning):
    """A search returns a plan that needs more memory than its devices have."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}: install it with pip install 'regal-jax[{extra}]'"
        )


class ResourceError(_OneLine, RuntimeError):
    """The process is too close to a limit of the operating system."""


class WorkerError(ResourceError):
    """Graphs were given up because their workers died at every try.

    Attributes:
      plans: The plan of each graph of the call; ``None`` for those that were given up.
    """

    def __init__(self, message: str = "", plans: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.plans = list(plans)


class ProcessLostError(_OneLine, RuntimeError):
    """A run over several processes that one of them has left before its end."""
