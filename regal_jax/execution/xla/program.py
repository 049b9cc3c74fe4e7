"""The steps of `regal_jax.compile`: compilation, search for orders, and measurement."""

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import jax

from regal_jax.api.names import MethodName
from regal_jax.checks import check_kind, check_whole, flag, is_list, real, shown, whole
from regal_jax.errors import ConfigError, FormatError, GraphError, PlanError, is_ours
from regal_jax.execution.xla.compiled import CompiledProgram
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.errors import DonationLost
from regal_jax.execution.xla.hook import (
    Ordered,
    can_repack,
    check_support,
    compile_lowered,
    compile_ordered,
    compile_recorded,
    load_compiled,
    module_of,
    text_of,
)
from regal_jax.execution.xla.module_proto import new_module
from regal_jax.execution.xla.prediction import Predictor, predicted_bytes
from regal_jax.execution.xla.schedule import (
    MemoryUse,
    Schedule,
    keep_program,
    kept_program,
    kept_schedule,
)
from regal_jax.execution.xla.search import SearchSettings, find_candidates
from regal_jax.execution.xla.sequence import Orders, complete_orders, orders_of
from regal_jax.importers.hlo_text import parse_module
from regal_jax.importers.jax_program import trace_error
from regal_jax.programs.stored import use_cache
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.stack import outer_level
from regal_jax.search.config import MAX_EVALUATIONS

if TYPE_CHECKING:
    from regal_jax.solvers import Solver

__all__ = ["OTHER_SCHEDULER", "QUICK", "CompileOptions", "alias_of", "build", "memory_use", "realise"]

QUICK: Final = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""Options with which XLA allocates the same memory but spends less time on machine code."""

_OPTION: Final = "xla_cpu_scheduler_type"
_MEMORY_OPTIMIZED: Final = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
OTHER_SCHEDULER: Final = {_OPTION: _MEMORY_OPTIMIZED}
"""XLA's list scheduler, which is sometimes better than its default and sometimes worse."""

_PREDICTED: Final = 8
"""Orders for which the assignment of buffers is predicted, the best of the search first."""

_PACKED: Final = 2
"""Orders that are packed for each one that is compiled."""

_LITTLE: Final = 0.97
"""Part of the memory of XLA's order above which its other scheduler is asked for an order, too."""

_PLACES: Final = re.compile(r'loc\("[^"\n]*":[0-9][^)\n]*\)')
"""Files and lines, on which no names depend."""

_REFUSALS: Final = (PlanError, DonationLost, jax.errors.JaxRuntimeError)


class CompileOptions:
    """The checked options of `regal_jax.compile`.

    Raises:
      ConfigError: An option has an invalid value.
    """

    def __init__(
        self,
        *,
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int],
        donate_argnames: str | Sequence[str],
        objective: str,
        method: "MethodName | Solver | None",
        time_limit: float | None,
        evaluations: int,
        seed: int,
        cache: bool,
        candidates: int,
        plan: Schedule | str | os.PathLike[str] | None,
        compiler_options: dict[str, Any] | None,
    ) -> None:
        if objective != "peak-memory":
            raise ConfigError(
                f"objective: {shown(objective)} is unknown; a compiled program has 'peak-memory'"
            )
        counted = whole(candidates, 1)
        if counted is None:
            raise ConfigError(f"candidates: {shown(candidates)} must be a whole number above 0")
        if time_limit is not None and not real(time_limit, 0):
            raise ConfigError(
                f"time_limit: {shown(time_limit)} must be a finite number of seconds above 0; leave it out "
                "for none"
            )
        budget = check_whole("evaluations", evaluations, 1, MAX_EVALUATIONS)
        number = check_whole("seed", seed, 0)
        for name, given in ("static_argnums", static_argnums), ("donate_argnums", donate_argnums):
            if not all(whole(one) is not None for one in _listed(given)):
                raise ConfigError(f"{name}: {shown(given)} must be the index of an argument, or several")
        for name, given in ("static_argnames", static_argnames), ("donate_argnames", donate_argnames):
            if not all(isinstance(one, str) for one in _listed(given)):
                raise ConfigError(f"{name}: {shown(given)} must be the name of an argument, or several")
        flag("compile", "cache", cache)
        # `jax.jit` infers names from numbers, and numbers from names, where the others are not given.
        self.arguments: dict[str, Any] = {
            "static_argnums": static_argnums if static_argnums != () else None,
            "static_argnames": static_argnames or None,
            "donate_argnums": donate_argnums if donate_argnums != () else None,
            "donate_argnames": donate_argnames or None,
        }
        self.search = SearchSettings(method, budget, time_limit, number, counted)
        self.cache = cache
        self.plan = plan if plan is None or isinstance(plan, Schedule) else Schedule.load(plan)
        check_kind("compiler_options", compiler_options or {}, Mapping)
        self.compiler_options = dict(compiler_options or {})
        for name, value in self.compiler_options.items():
            known = isinstance(value, str) or value is True or value is False or real(value) is not None
            if not (isinstance(name, str) and known):
                raise ConfigError(
                    f"compiler_options: {shown(name)} is {shown(value)}; give numbers, texts, true or false"
                )


def _listed(given: Any) -> list[Any]:
    """What an option of arguments names: nothing, one argument or several."""
    return [] if given is None else list(given) if is_list(given) else [given]


def build(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: CompileOptions
) -> CompiledProgram:
    """Compiles ``fn`` for its arguments; see `regal_jax.compile`."""
    if not callable(fn):
        raise ConfigError(
            f"regal_jax.compile: {type(fn).__name__} is no function; give one, then its arguments"
        )
    check_kind("kwargs", kwargs, Mapping)
    check_support()
    use_cache()
    clock = Deadline()
    lowered = _lowered(fn, args, kwargs, options)
    try:
        return _compiled(lowered, options, clock)
    except jax.errors.JaxRuntimeError as error:
        text = " ".join(str(error).removeprefix("INVALID_ARGUMENT: ").split())
        if not options.compiler_options or "option" not in text:
            raise
        # Only XLA knows its options.
        raise ConfigError(f"compiler_options: {text}; give options of XLA") from error


def _compiled(lowered: jax.stages.Lowered, options: CompileOptions, clock: Deadline) -> CompiledProgram:
    """The program in an order that is given, kept or searched."""
    fingerprint = _fingerprint(lowered, options)
    if options.plan is not None:
        if options.plan.fingerprint != fingerprint:
            raise PlanError(
                "plan: it is for another program, or for other versions of JAX and XLA; compile without it"
            )
        return _from_schedule(lowered, options, options.plan, clock, "given")[0]
    kept, path = kept_schedule(fingerprint, repr(options.search)) if options.cache else (None, None)
    if kept is not None and path is not None:
        loaded = _loaded(lowered, options, kept, path)
        if loaded is not None:
            return _program(lowered, options, loaded, kept, "kept", 0.0, clock)
        made, serialized = _from_schedule(lowered, options, kept, clock, "kept")
    else:
        base, ways, searched = _search(lowered, options, fingerprint)
        limit = base.before.total - 1
        made, serialized = _first(lowered, options, base, ways, clock, "searched", limit, searched)
    if path is not None:
        try:
            if kept is None:
                made.schedule.save(path)
            if serialized is not None and _keeps_programs():
                keep_program(path, made.schedule, serialized)
        except (OSError, FormatError) as error:
            warnings.warn(f"regal_jax.compile: the schedule is not kept: {error}", stacklevel=outer_level())
    return made


def _lowered(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], options: CompileOptions
) -> jax.stages.Lowered:
    """``fn``, traced for its arguments.

    Raises:
      ConfigError: An option names no argument.
      FormatError: JAX cannot trace it.
    """
    program = _fresh(fn)
    try:
        jitted = jax.jit(program, **options.arguments)
    except ValueError as error:  # An option names no argument of the function.
        raise ConfigError(f"regal_jax.compile: {' '.join(str(error).split())} Mend the option.") from None
    try:
        return jitted.lower(*args, **kwargs)
    # Tracing runs the user's code, which may raise anything.
    except Exception as error:
        if is_ours(error):
            raise
        raise trace_error(program.__name__, error) from error


def _keeps_programs() -> bool:
    return jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]


def _loaded(
    lowered: jax.stages.Lowered, options: CompileOptions, schedule: Schedule, path: pathlib.Path
) -> jax.stages.Compiled | None:
    """The finished program that an earlier process stored for a schedule; ``None`` if it must be compiled."""
    if not schedule.changes or not can_repack(lowered) or not _keeps_programs():
        return None
    serialized = kept_program(path, schedule)
    if serialized is None:
        return None
    try:
        return load_compiled(lowered, {**options.compiler_options, **QUICK}, serialized)
    except Exception:  # A program that cannot be loaded is compiled.
        return None


def _fresh(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A new function equal to ``fn``, with which no one else shares entries of JAX's caches."""

    def program(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    with_name = functools.update_wrapper(program, fn, updated=())
    with_name.__name__ = getattr(fn, "__name__", "program")
    return with_name


def _fingerprint(lowered: jax.stages.Lowered, options: CompileOptions) -> str:
    """A digest of everything on which the instructions that XLA makes, and their names, depend."""
    about = [
        _PLACES.sub("", lowered.as_text(debug_info=True)),
        jax.__version__,
        importlib.metadata.version("jaxlib"),
        os.environ.get("XLA_FLAGS", ""),
        json.dumps(options.compiler_options, sort_keys=True, default=str),
        jax.default_backend(),
    ]
    digest = hashlib.sha256()
    for text in about:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()[:40]


@dataclasses.dataclass(frozen=True)
class _Way:
    """A schedule and the memory that the program is expected to take with it, in bytes."""

    schedule: Schedule
    total: int


def _search(
    lowered: jax.stages.Lowered, options: CompileOptions, fingerprint: str
) -> tuple[Schedule, list[_Way], float]:
    """XLA's own order, orders that take less memory, the best first, and the seconds of the search."""
    quick = {**options.compiler_options, **QUICK}
    plain = compile_recorded(lowered, quick, fingerprint)
    module, text = module_of(plain), plain.as_text() or ""
    before = memory_use(plain)
    clock = Deadline()
    base = Schedule(
        fingerprint, {}, alias_of(module), before, 0, 0, "no order was found that takes less memory"
    )
    try:
        base = dataclasses.replace(base, predicted_before=predicted_bytes(text))
        elide_copies(module)
        parsed = parse_module(text_of(module))
        found = find_candidates(parsed, options.search)
    except (FormatError, GraphError) as error:
        reason = f"there is nothing to order: {error}"
        return dataclasses.replace(base, reason=reason), [], clock.spent
    predictor = Predictor(module, parsed, can_repack(lowered))
    orders = [complete_orders(module, candidate.steps) for candidate in found[:_PREDICTED]]
    ways = _ways(module, base, predictor, orders, options.search.candidates)
    seconds = clock.spent
    if _OPTION not in quick and _needs_other(ways, base):
        other = module_of(compile_lowered(lowered, {**quick, _OPTION: _MEMORY_OPTIMIZED}))
        ways += _ways(module, base, predictor, [complete_orders(module, orders_of(other))], 1)
    ways = [way for way in ways if way.total < before.total]
    return base, sorted(ways, key=lambda way: way.total), seconds


def _ways(
    module: Any, base: Schedule, predictor: Predictor, orders: Sequence[Orders], count: int
) -> list[_Way]:
    """The orders that are predicted to take the least memory, the best first."""
    own = {name: tuple(order) for name, order in orders_of(module).items()}
    before = base.before
    otherwise = max(before.temp - 1, 0)
    rows = [{**own, **order} for order in orders]
    least = [predictor.least_bytes(row, otherwise) for row in rows]
    ways = []
    for at in sorted(range(len(rows)), key=least.__getitem__)[: _PACKED * count]:
        temp = predictor.temp_bytes(rows[at], otherwise)
        schedule = dataclasses.replace(base, orders=rows[at], predicted=temp, reason="")
        ways.append(_Way(schedule, before.total - before.temp + temp))
    return sorted(ways, key=lambda way: way.total)[:count]


def _needs_other(ways: list[_Way], base: Schedule) -> bool:
    """Whether the order of XLA's other scheduler may be better: the search found little."""
    return not ways or ways[0].total > _LITTLE * base.before.total


def _from_schedule(
    lowered: jax.stages.Lowered, options: CompileOptions, schedule: Schedule, clock: Deadline, source: str
) -> tuple[CompiledProgram, bytes | None]:
    """The program in the order of a schedule, or in XLA's own order if that is not possible."""
    ways = [_Way(schedule, 0)] if schedule.changes else []
    return _first(lowered, options, schedule, ways, clock, source, schedule.before.total)


def _first(
    lowered: jax.stages.Lowered,
    options: CompileOptions,
    base: Schedule,
    ways: list[_Way],
    clock: Deadline,
    source: str,
    limit: int,
    searched: float = 0.0,
) -> tuple[CompiledProgram, bytes | None]:
    """The program that takes least memory, and at most ``limit`` bytes, or the one in XLA's own order.

    Its serialised form comes second, see `Ordered`.

    A way is tried if it is expected to take less than the best so far.
    """
    best, reason = None, base.reason
    for way in ways:
        if way.total > limit:
            break
        try:
            made = realise(lowered, options.compiler_options, way.schedule)
        except _REFUSALS as error:
            reason = _line(error)
            continue
        total = memory_use(made.compiled).total
        if total <= limit:
            best, limit = (made, way.schedule), total - 1
        elif best is None:
            reason = "the order takes more memory under these options of the compiler"
    if best is None:
        compiled = compile_lowered(lowered, options.compiler_options)
        module_of(compiled)
        kept = dataclasses.replace(base, orders={}, predicted=0, reason=reason)
        best = Ordered(compiled, None), kept
    made, schedule = best
    return _program(lowered, options, made.compiled, schedule, source, searched, clock), made.serialized


def _program(
    lowered: jax.stages.Lowered,
    options: CompileOptions,
    compiled: jax.stages.Compiled,
    schedule: Schedule,
    source: str,
    searched: float,
    clock: Deadline,
) -> CompiledProgram:
    return CompiledProgram(
        compiled,
        schedule,
        memory_use(compiled),
        functools.partial(compile_lowered, lowered, options.compiler_options),
        source,
        searched,
        clock.spent,
    )


def realise(lowered: jax.stages.Lowered, options: dict[str, Any], schedule: Schedule) -> Ordered:
    """The program in the order of a schedule.

    Raises:
      PlanError, DonationLost, jax.errors.JaxRuntimeError: The program cannot be compiled in this order.
    """
    alias = new_module().input_output_alias
    for result, number, place, kind in schedule.alias:
        alias.entries.add(
            output_shape_index=result, parameter_number=number, parameter_shape_index=place, kind=kind
        )
    made = compile_ordered(lowered, options, schedule.orders, schedule.tag, alias)
    ran = orders_of(module_of(made.compiled))
    for name, order in schedule.orders.items():
        asked = set(order)  # `ran` may also have copies that were added for donated arguments.
        if tuple(n for n in ran.get(name, ()) if n in asked) != order:
            raise PlanError("XLA did not keep the order")
    if memory_use(made.compiled).alias != schedule.before.alias:
        raise DonationLost("the compiled program would not reuse the memory of all donated arguments")
    return made


def memory_use(compiled: jax.stages.Compiled) -> MemoryUse:
    """The memory of a program as XLA reports it."""
    stats: Any = compiled.memory_analysis()
    return MemoryUse(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
    )


def alias_of(module: Any) -> tuple[tuple[tuple[int, ...], int, tuple[int, ...], int], ...]:
    return tuple(
        (tuple(e.output_shape_index), e.parameter_number, tuple(e.parameter_shape_index), e.kind)
        for e in module.input_output_alias.entries
    )


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:300] or type(error).__name__
