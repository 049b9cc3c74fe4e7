"""Loops for the host that Numba compiles, where it is installed (extra ``cpu``)."""

import functools
import importlib.util
import math
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from regal_jax.runtime.interrupts import interruptible, uninterrupted

__all__ = ["compiled", "for_loops", "installed", "loops", "part", "run_loops", "usable"]


_LOADING: Final = 0.1
"""Seconds in Python's loops after which Numba is loaded: it takes about as long."""
_COMPILING: Final = 1.0
"""Seconds in Python's loops after which a function is compiled, which takes a few."""
_in_python: defaultdict[Callable[..., Any], float] = defaultdict(float)
"""Seconds, of each function, as its callers think."""


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
        with interruptible():
            importlib.import_module("numba")
    except ImportError as error:  # It refuses a NumPy that is newer than it.
        reason = " ".join(str(error).split())
        warnings.warn(f"no compiled loops, features take ten times as long ({reason})", stacklevel=2)
        return False
    return True


@functools.cache
def compiled(function: Callable[..., Any]) -> Any:
    """``function``, compiled when it is called first, then in Numba's cache; other threads go on meanwhile.

    Only where Numba is `usable`. Its cache knows a function by its file alone: after a change of the options
    here what is in ``__pycache__`` (``*.nbc``, ``*.nbi``) is old.
    """
    from numba import njit  # pyright: ignore[reportPrivateImportUsage]

    try:
        return njit(cache=True, error_model="numpy", nogil=True)(function)
    except RuntimeError:  # No folder to keep it in.
        return njit(error_model="numpy", nogil=True)(function)


def run_loops(function: Callable[..., Any], *arguments: Any, seconds: float = math.inf) -> Any:
    """What ``function`` returns: in compiled loops over arrays, or in Python's over lists, fastest there.

    Loading Numba and compiling take longer than small loops do in Python. So they are put off until as much
    time has gone into these; what an earlier process has compiled is only loaded.

    Args:
      function: Indexes its arguments, and may write to them.
      *arguments: Numbers, arrays that stay as they are, and named tuples of such.
      seconds: That it takes in Python, roughly.
    """
    if installed() and _stays_in_python(function, seconds):
        _in_python[function] += seconds
        return function(*map(_lists, arguments))
    return loops(function)(*map(for_loops, arguments))


def _stays_in_python(function: Callable[..., Any], seconds: float) -> bool:
    """Is it too early to load Numba, or to compile ``function``?"""
    if "numba" not in sys.modules and sum(_in_python.values()) + seconds <= _LOADING:
        return True
    if _in_python[function] + seconds > _COMPILING or not usable():
        return False
    return not (getattr(compiled(function), "overloads", ()) or _is_kept(function))


@functools.cache
def _is_kept(function: Callable[..., Any]) -> bool:
    """Has an earlier process compiled it? Of an older version of it, maybe."""
    folder = getattr(getattr(compiled(function), "stats", None), "cache_path", None)
    return folder is not None and any(Path(folder).glob(f"*.{function.__name__}-*.nbi"))


def loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as `run_loops` calls it, for those who call it often; its arguments are `for_loops`."""
    return _uninterrupted(function) if usable() else function


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as other `loops` call it.

    These know of changes in their own file only: after one of ``function`` theirs in ``__pycache__`` is old.
    """
    return compiled(function) if usable() else function


@functools.cache
def _uninterrupted(function: Callable[..., Any]) -> Callable[..., Any]:
    # A signal handler that raises in Numba's dispatcher ends the process.
    return uninterrupted(compiled(function))


def _lists(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return type(argument)(*map(_lists, argument))
    return argument.tolist() if isinstance(argument, np.ndarray) else argument


def for_loops(argument: Any) -> Any:
    """An argument of `loops`: copies, all of one kind, so that it is compiled once; or lists."""
    if not usable():
        return _lists(argument)
    if isinstance(argument, tuple):
        return type(argument)(*map(for_loops, argument))
    return argument.copy() if isinstance(argument, np.ndarray) else argument
