"""Every exception that regal_jax raises on purpose, and the warnings that it gives.

All exceptions are ``ValueError`` (bad input), ``ImportError`` (an absent extra) or ``RuntimeError`` (a limit
of the system), so that a caller who knows nothing of this module can still catch them. A message says what is
wrong, where, and how to mend it, on one line.
"""

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
]


class _OneLine(Exception):
    """What a message quotes may hold anything: what would break its line stands there escaped."""

    def __init__(self, message: str = "") -> None:
        shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
        super().__init__("".join(shown))


class GraphError(_OneLine, ValueError):
    """A computation graph that breaks a rule of docs/design.md, part 1."""


class ClusterError(_OneLine, ValueError):
    """A cluster that cannot exist, or that cannot run the graph it was paired with."""


class FormatError(_OneLine, ValueError):
    """A file or document that cannot be read as the format it claims to be."""


class PlanError(_OneLine, ValueError):
    """A plan that is not a valid execution of its graph on its cluster."""


class ConfigError(_OneLine, ValueError):
    """A search or solver setting with an impossible value."""


class InfeasiblePlanWarning(_OneLine, UserWarning):
    """A search returns a plan that needs more memory than its devices have."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}: install it with pip install 'regal-jax[{extra}]'"
        )


class ResourceError(_OneLine, RuntimeError):
    """A limit of the operating system that the process has come too close to."""


class ProcessLostError(_OneLine, RuntimeError):
    """A run over several processes that one of them has left before its end."""
