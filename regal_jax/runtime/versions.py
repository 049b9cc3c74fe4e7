"""`package_versions`: the installed versions on which results depend."""

import functools
from importlib import metadata

__all__ = ["package_versions"]


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of regal-jax, JAX and NumPy, cached: looking them up takes as long as 200 evaluations."""
    found: dict[str, str] = {}
    for name in ("regal-jax", "jax", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
