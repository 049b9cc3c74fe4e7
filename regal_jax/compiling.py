"""Loops for the host that Numba compiles, where it is installed (extra ``cpu``)."""

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["compiled", "installed", "run_loops", "usable"]


@functools.cache
def installed() -> bool:
    """Is Numba there, and is it to compile?"""
    return importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


@functools.cache
def usable() -> bool:
    """Does it go with the NumPy that is there? Warns, once, if it is installed and does not."""
    if not installed():
        return False
    try:
        importlib.import_module("numba")
    except ImportError as error:  # It refuses a NumPy that is newer than it.
        reason = " ".join(str(error).split())
        warnings.warn(f"no compiled loops, features take ten times as long ({reason})", stacklevel=2)
        return False
    return True


@functools.cache
def compiled(function: Callable[..., Any]) -> Any:
    """``function``, compiled when it is called first, then in Numba's cache. Only where it is `usable`."""
    from numba import njit  # pyright: ignore[reportPrivateImportUsage]

    try:
        return njit(cache=True, error_model="numpy")(function)
    except RuntimeError:  # No folder to keep it in.
        return njit(error_model="numpy")(function)


def run_loops(function: Callable[..., Any], *arguments: Any) -> Any:
    """What ``function`` returns: in compiled loops over arrays, or in Python's over lists, fastest there.

    Args:
      function: Indexes its arguments, and may write to them.
      *arguments: Numbers, and arrays that stay as they are.
    """
    if usable():
        # Copies are all of one kind, whoever made the arrays: the function is compiled once.
        return compiled(function)(*(x.copy() if isinstance(x, np.ndarray) else x for x in arguments))
    return function(*(x.tolist() if isinstance(x, np.ndarray) else x for x in arguments))
