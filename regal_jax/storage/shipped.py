"""Files of weights that are installed with the package."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import resources
from pathlib import Path

from regal_jax.errors import ConfigError

__all__ = ["shipped_weights"]


def shipped_weights(package: str, files: Mapping[str, str], name: str) -> AbstractContextManager[Path]:
    """A context with the path of a file of weights.

    Args:
      package: Package whose folder ``trained`` has the files.
      files: Name of the weights -> name of the file without its suffix.
      name: Name of the weights.

    Raises:
      ConfigError: There are no weights of this name.
    """
    if name not in files:
        raise ConfigError(f"weights: none called {name!r} are shipped; use one of {', '.join(files)}")
    return resources.as_file(resources.files(package) / "trained" / f"{files[name]}.safetensors")
