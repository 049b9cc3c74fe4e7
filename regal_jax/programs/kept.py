"""Programs in memory: a bounded cache of those used last.

`jax.jit` keeps every program to which a function was ever compiled. A process with many shapes would grow
until the system ends it: a program takes memory and some tens of mapped regions, of which Linux allows a
process 65530. Here each program is a separate jitted function; what JAX and XLA keep of it is freed with that
function.
"""

import collections
import functools
import gc
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

import jax
from jax.core import Tracer

from regal_jax.errors import ConfigError, ResourceError
from regal_jax.programs.regions import mapped_regions, region_limit, return_memory
from regal_jax.programs.stored import use_cache
from regal_jax.programs.traced import traced

__all__ = ["Program", "clear", "count", "given_up", "options", "program"]

MOST: Final = 96
"""Default number of programs that are kept; ``REGAL_JAX_PROGRAMS`` sets another one. A search takes two to
six programs of some five megabytes each."""
_VARIABLE: Final = "REGAL_JAX_PROGRAMS"
_GIVE_UP: Final = 0.8
"""Share of the limit of mapped regions from which programs are given up."""
_RETURN_EVERY: Final = 32
"""Programs given up between two returns of freed memory to the system."""
_REFUSE: Final = 0.95
"""Share of the limit from which nothing more is compiled, since XLA would end the process."""

_kept: "collections.OrderedDict[Hashable, _Made]" = collections.OrderedDict()
_lock = threading.RLock()
_given_up = 0


@functools.cache
def options() -> dict[str, Any]:
    """XLA's options for our programs, as `jax.jit` takes them.

    On CPUs most of the work is inside a custom call. For the rest, XLA's newer emitters of fusions gain
    nothing measurable, and they need more time to compile and more mapped regions
    (docs/ablations/compiled_code.md). An option in ``XLA_FLAGS`` takes precedence.
    """
    if jax.default_backend() != "cpu":
        return {}
    chosen: dict[str, Any] = {"xla_cpu_parallel_codegen_split_count": 1}
    if jax.__version_info__ < (0, 11):  # Later versions have only the new emitters.
        chosen["xla_cpu_use_fusion_emitters"] = False
    flags = os.environ.get("XLA_FLAGS", "")
    return {name: value for name, value in chosen.items() if name not in flags}


def count() -> int:
    """Number of programs that are kept at the moment."""
    return len(_kept)


def given_up() -> int:
    """Number of programs given up so far; after a change, measured times may include compilation."""
    return _given_up


def clear() -> None:
    """Gives up all programs. Those needed again are recompiled or read from the persistent cache."""
    _give_up(0)
    gc.collect()


def _give_up(left: int) -> None:
    """Gives up all programs except the ``left`` used last."""
    global _given_up
    with _lock:
        before = _given_up
        while len(_kept) > left:
            _kept.popitem(last=False)
            _given_up += 1
        due = _given_up // _RETURN_EVERY > before // _RETURN_EVERY
    if due:
        gc.collect()
        return_memory()


class Program:
    """A function that is compiled for each kind of arguments, as by `jax.jit`; made by `program`."""

    def __init__(self, function: Callable[..., Any], static: tuple[int, ...], donate: tuple[int, ...]):
        functools.update_wrapper(self, function)
        self.function, self.static, self.donate = function, static, donate

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function with ``arguments``, all by position.

        Raises:
          ResourceError: There is no room for another program in this process.
        """
        made, leaves = self._made(arguments)
        return made(leaves)

    def shapes(self, *arguments: Any) -> Any:
        """Shapes of the results of a call that would compile first; ``None`` if it would not.

        Also ``None`` if the shapes would require another trace of the program.

        Raises:
          ResourceError: There is no room for another program in this process.
        """
        made, leaves = self._made(arguments)
        return made.shapes(leaves)

    def _made(self, arguments: tuple[Any, ...]) -> "tuple[_Made, list[Any]]":
        fixed = tuple(arguments[i] for i in self.static)
        given = [a for i, a in enumerate(arguments) if i not in self.static]
        leaves, tree = jax.tree.flatten(given)
        kinds = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
        spread = any(map(_is_spread, leaves))
        key = (self, fixed, tree, kinds, spread)
        with _lock:
            made = _kept.get(key)
            if made is None:
                use_cache()
                _make_room()
                made = _kept[key] = _Made(self, len(arguments), fixed, tree, spread=spread)
            else:
                _kept.move_to_end(key)
        return made, leaves


def _is_spread(leaf: Any) -> bool:
    """Whether an array is on several devices, or is being traced so that its devices are unknown."""
    if isinstance(leaf, Tracer):
        return True
    return isinstance(leaf, jax.Array) and leaf.sharding.num_devices > 1


class _Made:
    """A program: a jitted function with a single owner, so that all that JAX keeps of it is freed with it.

    Args:
      program: The function of which this is one compiled form.
      arity: Number of arguments, including static ones.
      fixed: Static arguments.
      tree: Structure of the other arguments.
      spread: Whether an argument is spread over several devices or being traced. Programs on disk are for one
        device.
    """

    def __init__(self, program: Program, arity: int, fixed: tuple[Any, ...], tree: Any, *, spread: bool):
        self._program, self._arity, self._fixed, self._tree = program, arity, fixed, tree
        self._spread = spread
        self._lock = threading.Lock()
        self._jitted: Callable[..., Any] | None = None
        self._shapes: Any = None
        self._ready = False

    def __call__(self, leaves: list[Any]) -> Any:
        results = self._function(leaves)(*leaves)
        self._ready = True
        return results

    def shapes(self, leaves: list[Any]) -> Any:
        """Shapes of the results, as in `Program.shapes`."""
        if self._ready:
            return None
        self._function(leaves)
        return self._shapes

    def _function(self, leaves: list[Any]) -> Callable[..., Any]:
        """The jitted function, made at the first call."""
        with self._lock:
            if self._jitted is not None:
                return self._jitted
            function, tree, arity = self._program.function, self._tree, self._arity
            static = dict(zip(self._program.static, self._fixed, strict=True))

            def call(*leaves: Any) -> Any:
                rest = iter(jax.tree.unflatten(tree, leaves))
                return function(*(static[i] if i in static else next(rest) for i in range(arity)))

            call.__name__ = call.__qualname__ = function.__name__
            if not self._spread:
                call, self._shapes = traced(function, self._fixed, tree, leaves, call)
            self._jitted = jax.jit(call, donate_argnums=self._donated(), compiler_options=options())
            return self._jitted

    def _donated(self) -> tuple[int, ...]:
        """Indices of the donated leaves."""
        given = [i for i in range(self._arity) if i not in self._program.static]
        children = zip(given, self._tree.children(), strict=True)
        which = [i for i, child in children for _ in range(child.num_leaves)]
        return tuple(leaf for leaf, i in enumerate(which) if i in self._program.donate)


def program(
    *, static: tuple[int, ...] = (), donate: tuple[int, ...] = ()
) -> Callable[[Callable[..., Any]], Program]:
    """A decorator like `jax.jit` that keeps only the programs used last.

    Args:
      static: Positions of arguments that are not arrays; hashable. All others are pytrees of arrays.
      donate: Positions of arguments whose memory may be reused.
    """
    return lambda function: Program(function, static, donate)


@functools.cache
def _most() -> int:
    chosen = os.environ.get(_VARIABLE, str(MOST))
    if not (chosen.isascii() and chosen.isdigit() and int(chosen[:9])):
        raise ConfigError(f"{_VARIABLE}: must be a whole number of programs from 1, got {chosen!r}")
    return int(chosen[:9])


def _make_room() -> None:
    _give_up(_most() - 1)
    limit = region_limit()
    if limit is None or mapped_regions() < _GIVE_UP * limit:
        return
    clear()
    regions = mapped_regions()
    if regions >= _REFUSE * limit:
        raise ResourceError(
            f"programs: this process has {regions} mapped regions of {limit} that Linux allows it, and "
            "compiling another program could end it; raise vm.max_map_count, or work in several processes"
        )
