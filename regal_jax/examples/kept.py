"""Graphs of examples on disk, so that later processes need neither load Flax nor trace them."""

import contextlib
import functools
import hashlib
import json
import pathlib
from typing import Final

from regal_jax.examples.registry import load_example
from regal_jax.graph import ComputationGraph
from regal_jax.importers.native import format_native, parse_native
from regal_jax.programs.stored import own_folder
from regal_jax.runtime.versions import version_of
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.compression import packed, unpacked
from regal_jax.storage.reading import MAX_FILE_BYTES

__all__ = ["kept_example"]

_ROOMS: Final = ("examples", "importers", "graph")
"""Modules on whose source a traced graph depends."""
_PACKAGES: Final = ("jax", "jaxlib", "flax", "optax")


def kept_example(name: str, *, profile: str = "h200") -> ComputationGraph:
    """`load_example`, or its result in an earlier process with the same source and packages.

    Graphs are stored with the programs, unless ``REGAL_JAX_CACHE`` is off. This function is for the command.
    In a process that replaces functions, the source does not determine the trace.

    Args:
      name: As in `load_example`.
      profile: The name of a device profile.

    Raises:
      ConfigError: As `load_example`.
    """
    folder = own_folder()
    if folder is None:
        return load_example(name, profile=profile)
    versions = (version_of(package) or "none" for package in _PACKAGES)
    about = json.dumps([name, profile, _source(), *versions])
    path = folder / f"example-{hashlib.sha256(about.encode()).hexdigest()[:24]}.json.gz"
    with contextlib.suppress(OSError, ValueError):  # Damaged graphs are made again.
        return parse_native(unpacked(path.read_bytes(), MAX_FILE_BYTES).decode())
    graph = load_example(name, profile=profile)
    with contextlib.suppress(OSError):
        write_atomically(path, packed(path, format_native(graph).encode()))
    return graph


@functools.cache
def _source() -> str:
    """A digest of the code that makes a graph of an example."""
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parents[1]
    for room in _ROOMS:
        for file in sorted((root / room).glob("**/*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
