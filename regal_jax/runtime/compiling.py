"""Loops on the host that Numba compiles if it is installed (extra ``cpu``)."""

import contextlib
import functools
import importlib.util
import math
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from regal_jax.runtime import ahead
from regal_jax.runtime.interrupts import interruptible, uninterrupted

__all__ = [
    "borrows",
    "compile_ahead",
    "compile_for",
    "compiled",
    "counts_no_references",
    "for_loops",
    "installed",
    "is_loaded",
    "load_array_functions",
    "loops",
    "only_borrows",
    "part",
    "pipeline",
    "run_loops",
    "usable",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])

_LOADING: Final = 0.1
"""Seconds in Python's loops after which Numba is loaded, about the time that loading takes."""
_COMPILING: Final = 1.0
"""Seconds in Python's loops after which a function is compiled, which takes a few seconds."""
_WAITING: Final = 0.8
"""Seconds in Python's loops while another process compiles the function, enough for a first graph."""
_in_python: defaultdict[Callable[..., Any], float] = defaultdict(float)
"""Function -> estimated seconds in Python so far."""
_only_borrow: Final[set[Callable[..., Any]]] = set()
"""Functions without counts of references."""


@functools.cache
def installed() -> bool:
    """Whether Numba is installed and enabled."""
    return importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


@functools.cache
def usable() -> bool:
    """Whether Numba works with the installed NumPy; warns once if it does not."""
    if not installed():
        return False
    try:
        with interruptible():
            importlib.import_module("numba")
    except ImportError as error:  # Numba rejects a NumPy that is too new for it.
        reason = " ".join(str(error).split())
        warnings.warn(
            f"Numba cannot be imported, so features take ten times as long ({reason}); mend its installation",
            stacklevel=2,
        )
        return False
    return True


def only_borrows(function: _Function) -> _Function:
    """Decorator of a function that makes no array: its code counts no references, and is faster.

    Its loops are short, so that they are neither vectorised nor unrolled. It has no negative indices but for
    literal ones: no item is counted from the end of an array.

    All functions that call it from compiled code have this decorator too. Numba refuses such a function if it
    makes an array. It may return its arguments.
    """
    _only_borrow.add(function)
    return function


def borrows(function: Callable[..., Any]) -> bool:
    """Whether the function has the decorator `only_borrows`."""
    return function in _only_borrow


def counts_no_references() -> bool:
    """Whether such functions count none, which needs an option of Numba."""
    return bool(_without_counts())


@functools.cache
def compiled(function: Callable[..., Any]) -> Any:
    """``function``, compiled at its first call and stored in Numba's cache; it releases the GIL.

    Call this only if Numba is `usable`. Numba's cache identifies a function by its file alone, so files in
    ``__pycache__`` (``*.nbc``, ``*.nbi``) are stale after a change of the options here.
    """
    from numba import njit  # pyright: ignore[reportPrivateImportUsage]

    scalar = borrows(function)
    options: dict[str, Any] = {"error_model": "numpy", "nogil": True, "no_cfunc_wrapper": True}
    options |= pipeline(scalar=scalar)
    if scalar:
        # Rewrites unite operations on whole arrays, of which there are none.
        options |= {"no_rewrites": True, **_without_counts()}
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # There is no folder for the cache.
        return njit(**options)(function)
    _forgive(made)
    _load_less(made, needs_arrays=not (scalar and counts_no_references()))
    return made


def _without_counts() -> dict[str, Any]:
    """Options of ``njit`` without counts of references, if Numba has the one that is not documented."""
    try:
        from numba.core.cpu import CPUTargetOptions
    except ImportError:
        return {}
    return {"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {}


@functools.cache
def load_array_functions() -> None:
    """Loads Numba's functions of arrays, as every compilation does, but not SciPy's linear algebra with them.

    Numba imports that at this moment to see whether it is there, which takes half of the time until the first
    function is compiled or read from the cache. Functions that need it import it when they are compiled.
    """
    if "scipy.linalg" in sys.modules:
        return
    try:
        from numba.np import linalg
    except ImportError:
        return
    check = getattr(linalg, "ensure_blas", None)
    if check is not None:
        linalg.ensure_blas = lambda: None
        try:
            importlib.import_module("numba.np.arraymath")
        finally:
            linalg.ensure_blas = check


def pipeline(*, scalar: bool) -> dict[str, Any]:
    """Options of ``njit`` with which large functions compile faster, if Numba has what they change.

    Args:
      scalar: Whether its loops are short, so that they are neither vectorised nor unrolled, and only literal
        indices may be negative.
    """
    try:
        from regal_jax.runtime.closures import Compiler, ScalarCompiler
    except (ImportError, AttributeError):
        return {}
    return {"pipeline_class": ScalarCompiler if scalar else Compiler}


def _forgive(dispatcher: Any) -> None:
    """Makes an unreadable cache an empty one to the dispatcher, and one that cannot be written no error.

    Numba reads the whole index of a function before it compares its age with the source. The index may name
    a class that has moved since, or be damaged. The disk may be full.
    """
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if file is not None:
        file._load_index = _or_else(dict, file._load_index)
        file.load = _or_else(lambda: None, file.load)
        file.save = _if_it_can(file.save)


def _load_less(dispatcher: Any, *, needs_arrays: bool) -> None:
    """Lets the dispatcher read its function from the cache without the parts of Numba that it does not need.

    Before Numba reads its first function from the cache, it loads all functions that a compilation may use.

    Args:
      dispatcher: The dispatcher.
      needs_arrays: Whether to load them, but without SciPy. Otherwise the function must not use any of them.
    """
    cache: Any = getattr(dispatcher, "_cache", None)
    load = getattr(cache, "load_overload" if needs_arrays else "_load_overload", None)
    if load is None:
        return

    def load_overload(signature: Any, context: Any) -> Any:
        if needs_arrays:
            load_array_functions()
        return load(signature, context)

    cache.load_overload = load_overload


def _if_it_can(save: Callable[..., Any]) -> Callable[..., Any]:
    def saved(*args: Any) -> None:
        with contextlib.suppress(OSError):
            save(*args)

    return saved


def _or_else(nothing: Callable[[], Any], load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(*args: Any) -> Any:
        try:
            return load(*args)
        except Exception:  # Unpickling may raise anything.
            return nothing()

    return loaded


def run_loops(
    function: Callable[..., Any], *arguments: Any, seconds: float = math.inf, copies: bool = True
) -> Any:
    """The result of ``function``, run as compiled loops over arrays or as Python's loops over lists.

    Loading Numba and compiling take longer than small loops in Python. So both are delayed until Python's
    loops have taken as much time. What an earlier process has compiled is only loaded.

    Args:
      function: Indexes its arguments, and may write to them. It calls no `part`, which would be compiled code
        that writes to copies of its lists.
      *arguments: Numbers, arrays that are not changed, and named tuples of these.
      seconds: Rough duration in Python, in seconds.
      copies: Whether compiled loops get copies, like Python's. Otherwise arrays are contiguous and writable,
        and may change.
    """
    if installed() and _stays_in_python(function, seconds):
        _in_python[function] += seconds
        return function(*map(_lists, arguments))
    return loops(function)(*(map(for_loops, arguments) if copies else arguments))


def _stays_in_python(function: Callable[..., Any], seconds: float) -> bool:
    """Whether it is too early to load Numba or to compile ``function``."""
    if "numba" not in sys.modules and sum(_in_python.values()) + seconds <= _LOADING:
        return True
    if ahead.is_compiling(function):
        # More in Python would delay what is compiled here meanwhile.
        return seconds <= _LOADING and _in_python[function] + seconds <= _WAITING
    if _in_python[function] + seconds > _COMPILING or not usable():
        return False
    return not (is_loaded(function) or _is_kept(function))


def is_loaded(function: Callable[..., Any]) -> bool:
    """Whether this process has compiled the function or read it from Numba's cache."""
    return usable() and bool(getattr(compiled(function), "overloads", ()))


@functools.cache
def _is_kept(function: Callable[..., Any]) -> bool:
    """Whether an earlier process compiled the function, possibly in an older version."""
    folder = getattr(getattr(compiled(function), "stats", None), "cache_path", None)
    return folder is not None and any(Path(folder).glob(f"*.{function.__name__}-*.nbi"))


def loops(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as `run_loops` calls it, for repeated calls with arguments from `for_loops`."""
    ahead.await_compiled(function)
    return _uninterrupted(function) if usable() else function


def compile_ahead(tasks: Sequence[ahead.Task]) -> None:
    """Starts a second process that compiles those of the ``tasks`` that Numba's cache lacks.

    It is started for the first task, since it would only compete for the cores if that is done. There is none
    without a second core or a folder for the cache, in a frozen program, or if the environment variable
    ``REGAL_JAX_AHEAD`` is ``off``. `loops` waits for what is being compiled there, and compiles what was not.
    """
    if not ahead.allowed() or not usable():
        return
    missing = [task for task in tasks if not task.functions or any(map(_is_missing, task.functions))]
    if missing and missing[0] is tasks[0]:
        from numba import config  # pyright: ignore[reportPrivateImportUsage]

        ahead.start(missing, getattr(config, "CACHE_DIR", ""))


def _is_missing(function: Callable[..., Any]) -> bool:
    """Whether Numba's cache is in use, and has no current version of the function."""
    file = getattr(getattr(compiled(function), "_cache", None), "_cache_file", None)
    return file is not None and not file._load_index()


def compile_for(function: Callable[..., Any], *arguments: Any) -> Any:
    """Compiles a function of `loops` for such arguments from `for_loops`, without a call.

    Returns:
      Numba's dispatcher, and the kinds of the arguments; ``None`` if Numba is not in use.
    """
    if not usable():
        return None
    from numba import typeof  # pyright: ignore[reportPrivateImportUsage]

    dispatcher, kinds = compiled(function), tuple(map(typeof, arguments))
    if kinds not in dispatcher.overloads:  # Otherwise this would wait for other compilations.
        uninterrupted(dispatcher.compile)(kinds)
    return dispatcher, kinds


def part(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` as other `loops` call it.

    The cache of a caller checks only the caller's file, so it is stale after a change of ``function``
    elsewhere.
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
    """An argument of `loops`: a copy of one fixed kind, so that one compilation suffices, or lists."""
    return _copies(argument) if usable() else _lists(argument)


def _copies(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return argument.copy()
    return type(argument)(*map(_copies, argument)) if isinstance(argument, tuple) else argument
