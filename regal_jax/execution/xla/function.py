"""The public interface of `compile`, as a function and as a decorator."""

import functools
import inspect
import os
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import jax
from jax.core import Tracer

from regal_jax.api.names import MethodName
from regal_jax.errors import ConfigError
from regal_jax.execution.xla.compiled import CompiledProgram
from regal_jax.execution.xla.program import CompileOptions, build
from regal_jax.execution.xla.schedule import Schedule
from regal_jax.importers.jax_call import ArgName, array_type, static_key
from regal_jax.runtime.interrupts import interruptible

if TYPE_CHECKING:
    from regal_jax.solvers import Solver

__all__ = ["CompiledFunction", "compile"]


class CompiledFunction:
    """A function that is compiled once for each signature of its arguments; made by `regal_jax.compile`.

    It is called like the function, static arguments included. The first call with new shapes, types or static
    values compiles.
    """

    def __init__(self, fn: Callable[..., Any], options: CompileOptions) -> None:
        self._fn, self._options = fn, options
        self._programs: dict[Any, CompiledProgram] = {}
        self._lock = threading.Lock()
        self._static = _static_arguments(fn, options)
        functools.update_wrapper(self, fn, updated=())

    def _split(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any], dict[ArgName, Any]]:
        """The arguments that are traced, by place and by name, and the static ones."""
        places = {i % len(args) for i in self._static if isinstance(i, int) and -len(args) <= i < len(args)}
        static: dict[ArgName, Any] = {i: args[i] for i in places}
        static.update((name, x) for name, x in kwargs.items() if name in self._static)
        named = {name: x for name, x in kwargs.items() if name not in static}
        return [x for i, x in enumerate(args) if i not in places], named, static

    def program(self, *args: Any, **kwargs: Any) -> CompiledProgram:
        """The program for such arguments, compiled if necessary.

        Args:
          *args: Arrays, or `jax.ShapeDtypeStruct`; static arguments unchanged.
          **kwargs: The same by name.
        """
        return self._program(args, kwargs, *self._split(args, kwargs))

    def _program(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: list[Any],
        named: dict[str, Any],
        static: dict[ArgName, Any],
    ) -> CompiledProgram:
        """The program for arguments, which are also given as `_split` returns them."""
        fixed = static_key("regal_jax.compile", static)
        leaves, tree = jax.tree.flatten((given, named))
        key = (fixed, tree, tuple(_signature(leaf) for leaf in leaves))
        # Other threads wait, instead of each repeating the same search.
        with self._lock:
            if key not in self._programs:
                self._programs[key] = build(self._fn, args, kwargs, self._options)
            return self._programs[key]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method, with ``instance`` as the first argument."""
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given, named, static = self._split(args, kwargs)
        return self._program(args, kwargs, given, named, static)(*given, **named)


def _static_arguments(fn: Callable[..., Any], options: CompileOptions) -> frozenset[ArgName]:
    """The static arguments by index and by name; those that are not given follow from the signature."""
    numbers, names = options.arguments["static_argnums"], options.arguments["static_argnames"]
    given = {numbers} if isinstance(numbers, int) else set(numbers or ())
    given |= {names} if isinstance(names, str) else set(names or ())
    if numbers is None or names is None:
        try:
            parameters = inspect.signature(fn).parameters.values()
        except (TypeError, ValueError):  # It has none.
            parameters = ()
        for i, parameter in enumerate(parameters):
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and given & {i, parameter.name}:
                given |= {i, parameter.name}
    return frozenset(given)


def _takes_nothing(fn: Any) -> bool:
    """Whether a function can be called without arguments, as far as its signature tells."""
    try:
        inspect.signature(fn).bind()
    except TypeError:
        return False
    except ValueError:  # It has no signature.
        pass
    return True


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, Tracer):
        raise ConfigError(
            "regal_jax.compile: the function is called within another that JAX transforms; "
            "compile the outer one, or call the plain function there"
        )
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else array_type("regal_jax.compile", leaf)
    return tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))


@overload
def compile(
    fn: None = None,
    *,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    objective: str = "peak-memory",
    method: "MethodName | Solver | None" = "order-search",
    time_limit: float | None = None,
    evaluations: int = 2000,
    seed: int = 0,
    cache: bool = True,
    candidates: int = 2,
    plan: Schedule | str | os.PathLike[str] | None = None,
    compiler_options: dict[str, Any] | None = None,
) -> Callable[[Callable[..., Any]], CompiledFunction]: ...


@overload
def compile(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    objective: str = "peak-memory",
    method: "MethodName | Solver | None" = "order-search",
    time_limit: float | None = None,
    evaluations: int = 2000,
    seed: int = 0,
    cache: bool = True,
    candidates: int = 2,
    plan: Schedule | str | os.PathLike[str] | None = None,
    compiler_options: dict[str, Any] | None = None,
) -> CompiledProgram: ...


@interruptible()
def compile(
    fn: Callable[..., Any] | None = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    objective: str = "peak-memory",
    method: "MethodName | Solver | None" = "order-search",
    time_limit: float | None = None,
    evaluations: int = 2000,
    seed: int = 0,
    cache: bool = True,
    candidates: int = 2,
    plan: Schedule | str | os.PathLike[str] | None = None,
    compiler_options: dict[str, Any] | None = None,
) -> CompiledProgram | Callable[[Callable[..., Any]], CompiledFunction]:
    """Compiles ``fn`` as `jax.jit` does, in an order of instructions that takes less memory.

    XLA first compiles the program in its own order of instructions. `regal_jax.order` searches for orders
    with a lower peak, also in the bodies of loops and branches. For each of the best, the temporary memory
    is predicted. XLA compiles the program in the best of them, its buffers are moved so that donated
    arguments and results hold temporary memory while they are free, and XLA reports its memory: arguments,
    results and temporary memory, with shared memory counted once. If it is not less than before, the program
    is XLA's own. The instructions are the same, except for copies of donated arguments that the order makes
    needless.

    The order and the finished program are stored on disk (``REGAL_JAX_CACHE``) under a digest of the program,
    the versions of JAX and jaxlib, and the options. A later call loads them. If JAX's compilation cache is
    off, only the order is stored, and a later call compiles once.

    Args:
      fn: The function; ``None`` for a decorator, which compiles when the function is called.
      *args: Its arguments: arrays, pytrees of them, or `jax.ShapeDtypeStruct`; on one CPU.
      kwargs: Its keyword arguments. A decorated function takes them as they are.
      static_argnums: As `jax.jit` takes them.
      static_argnames: As `jax.jit` takes them.
      donate_argnums: As `jax.jit` takes them. Donated arguments stay donated.
      donate_argnames: As `jax.jit` takes them.
      objective: The only objective is ``"peak-memory"``.
      method: As `regal_jax.order` takes it; ``"auto"`` also runs BRKGA, which costs more compile time.
      time_limit: Seconds for the search, without compilation; ``None`` for no limit. The first search in an
        environment also compiles its own programs, which are then stored on disk and are not limited.
      evaluations: Budget of the search in each computation of the program.
      seed: Seed of the search.
      cache: Whether to read and store orders and finished programs on disk.
      candidates: Largest number of orders that XLA compiles. More than one is compiled if XLA refuses one, or
        reports more memory than was predicted.
      plan: A schedule, or the name of a file with one (`CompiledProgram.save_schedule`), instead of a search.
      compiler_options: Options of XLA, as `jax.stages.Lowered.compile` takes them.

    Returns:
      The compiled program, which is called with the arguments that are not static.

    Raises:
      ConfigError: An option is not allowed, the program is for several devices or not for a CPU, or this
        version of JAX does not accept orders.
      PlanError: ``plan`` is for another program.
      FormatError: ``plan`` cannot be read, or is not a schedule; or JAX cannot trace ``fn`` on these
        arguments (the cause is kept).

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> import regal_jax
      >>> x = jnp.ones((8, 8))
      >>> program = regal_jax.compile(lambda x: jnp.tanh(x) @ x, x, evaluations=50)
      >>> program(x).shape, program.statistics.after.total <= program.statistics.before.total
      ((8, 8), True)
      >>> @regal_jax.compile(evaluations=50)
      ... def double(x):
      ...     return 2 * x
      >>> double(x).shape
      (8, 8)

    References:
      openxla/xla: hlo_memory_scheduler, buffer_assignment, xla_transform.
    """
    options = CompileOptions(
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        objective=objective,
        method=method,
        time_limit=time_limit,
        evaluations=evaluations,
        seed=seed,
        cache=cache,
        candidates=candidates,
        plan=plan,
        compiler_options=compiler_options,
    )
    if fn is not None:
        if not args and not kwargs and callable(fn) and not _takes_nothing(fn):
            raise ConfigError(
                f"regal_jax.compile: {getattr(fn, '__name__', fn)!r} takes arguments; give them after it, or "
                "write @regal_jax.compile() for a decorator"
            )
        return build(fn, args, kwargs or {}, options)
    return lambda function: CompiledFunction(function, options)
