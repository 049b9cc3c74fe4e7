"""Every exception that regal_jax raises on purpose, and the warnings that it gives.

All exceptions are ``ValueError`` (bad input) or ``ImportError`` (an absent extra), so that a caller who
knows nothing of this module can still catch them. A message says what is wrong, where, and how to
mend it, on one line.
"""

__all__ = [
    "ClusterError",
    "ConfigError",
    "FormatError",
    "GraphError",
    "InfeasiblePlanWarning",
    "MissingExtraError",
    "PlanError",
]


class GraphError(ValueError):
    """A computation graph that breaks a rule of docs/design.md, part 1."""


class ClusterError(ValueError):
    """A cluster that cannot exist, or that cannot run the graph it was paired with."""


class FormatError(ValueError):
    """A file or document that cannot be read as the format it claims to be."""


class PlanError(ValueError):
    """A plan that is not a valid execution of its graph on its cluster."""


class ConfigError(ValueError):
    """A search or solver setting with an impossible value."""


class InfeasiblePlanWarning(UserWarning):
    """A search returns a plan that needs more memory than its devices have."""


class MissingExtraError(ImportError):
    """An optional dependency is absent; the message names the extra that installs it."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}: install it with pip install 'regal-jax[{extra}]'"
        )
