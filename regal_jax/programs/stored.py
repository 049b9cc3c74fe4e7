"""Programs on disk, so that the next process need not compile them: JAX's persistent compilation cache."""

import contextlib
import functools
import os
import pathlib
import platform
import zlib
from typing import Final

from regal_jax.storage.atomic import write_atomically

__all__ = ["cache_folder", "keep_file", "own_folder", "trace_folder", "use_cache"]

_VARIABLE: Final = "REGAL_JAX_CACHE"
_OFF: Final = ("", "0", "off", "none", "false", "no")
_MOST_BYTES: Final = 2**30
_LEAST_SECONDS: Final = 0.05
"""Least compilation time of stored programs. JAX's own limit is 1 s, below which most of our programs are."""


@functools.cache
def use_cache() -> pathlib.Path | None:
    """Makes JAX store what it compiles from now on in a folder of the user; acts once per process.

    Every search calls this before its first compilation; ``import regal_jax`` does not. Nothing is changed if
    JAX's cache has been configured (``JAX_COMPILATION_CACHE_DIR``, ``jax.config``) or switched off
    (``jax_enable_compilation_cache``), if the environment variable ``REGAL_JAX_CACHE`` is ``off``, or if
    there is no folder that only this user can write to.

    Returns:
      The folder, or ``None`` if nothing was changed.
    """
    import jax

    config = jax.config
    if config.jax_compilation_cache_dir is not None:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    if not config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    folder = own_folder()
    if folder is None:
        return None
    _prune(folder)
    config.update("jax_compilation_cache_dir", str(folder))
    if config.jax_persistent_cache_min_compile_time_secs == 1.0:  # pyright: ignore[reportAttributeAccessIssue]
        config.update("jax_persistent_cache_min_compile_time_secs", _LEAST_SECONDS)
    return folder


@functools.cache
def trace_folder() -> pathlib.Path | None:
    """Folder of traced programs; ``None`` if caches are off or programs are not for this machine's CPU.

    It is the default folder of compiled programs, even if JAX's cache is configured otherwise.
    """
    import jax

    if not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    # Programs for accelerators have parts that depend on the device for which they are lowered.
    chosen = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if jax.default_backend() != "cpu" or chosen not in (None, "", "cpu"):
        return None
    return own_folder()


def own_folder() -> pathlib.Path | None:
    """`cache_folder`, created if missing; ``None`` if others can write to it or caches are off."""
    folder = cache_folder()
    return folder if folder is not None and _ours(folder) else None


def cache_folder() -> pathlib.Path | None:
    """Folder of programs, which may not exist; ``None`` if caches are off.

    ``REGAL_JAX_CACHE``, if it is set to a folder; otherwise ``regal_jax/jax`` in ``XDG_CACHE_HOME``, or in
    ``~/.cache``. Each kind of processor has a folder in it, since machine code for one may not run on
    another that shares the home directory.
    """
    chosen = os.environ.get(_VARIABLE)
    if chosen is not None and chosen.strip().lower() in _OFF:
        return None
    if chosen is None:
        root = os.environ.get("XDG_CACHE_HOME")
        try:
            base = pathlib.Path(root) if root else pathlib.Path.home() / ".cache"
        except RuntimeError:  # There is no home directory.
            return None
        chosen = base / "regal_jax" / "jax"
    return pathlib.Path(chosen).absolute() / _processor()


def keep_file(path: pathlib.Path, data: bytes) -> None:
    """Writes a file of `own_folder`, whose oldest files are removed if it has become too large.

    Raises:
      OSError: The file cannot be written.
    """
    write_atomically(path, data)
    _prune(path.parent)


def _processor() -> str:
    """A name for the kind of processor on which machine code depends."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    except OSError:
        features = platform.processor()
    return f"{platform.machine() or 'unknown'}-{zlib.crc32(features.encode()):08x}"


def _ours(folder: pathlib.Path) -> bool:
    """Whether a folder exists or can be made and belongs to this user; programs of others must not run."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = folder.stat().st_uid
    except OSError:
        return False
    mine = not hasattr(os, "getuid") or owner == os.getuid()
    return mine and os.access(folder, os.R_OK | os.W_OK | os.X_OK)


def _prune(folder: pathlib.Path) -> None:
    """Removes the oldest files down to half a gibibyte once all together exceed one gibibyte.

    JAX's own bound (``jax_compilation_cache_max_size``) needs a package that JAX does not require, and fails
    on folders that were used without it.
    """
    files = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            # Another process may do the same.
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    about = entry.stat()
                    files.append((about.st_mtime, about.st_size, entry.path))
    total = sum(size for _, size, _ in files)
    if total <= _MOST_BYTES:
        return
    for _, size, path in sorted(files):
        if total <= _MOST_BYTES // 2:
            return
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
