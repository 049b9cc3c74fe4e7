"""The installed versions of packages."""

import functools
from importlib import metadata

__all__ = ["package_versions", "version_of"]


def version_of(package: str) -> str | None:
    """The installed version of a package; ``None`` if it is absent."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def package_versions() -> dict[str, str]:
    """Versions of regal-jax, JAX and NumPy, cached: looking them up takes as long as 200 evaluations."""
    return {name: version_of(name) or "not installed" for name in ("regal-jax", "jax", "numpy")}
