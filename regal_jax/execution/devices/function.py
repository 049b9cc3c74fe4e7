"""The public interface of `execute`: a function that runs on several devices as a plan says."""

import collections
import functools
import os
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from regal_jax.checks import counted, shown
from regal_jax.errors import ConfigError
from regal_jax.execution.devices.actions import Move, Segment, Wait, actions_of, homes_of, is_reference
from regal_jax.execution.devices.links import given_devices
from regal_jax.execution.devices.record import ExecutionRecord
from regal_jax.execution.devices.run import Actions, Run, Uses
from regal_jax.execution.devices.segments import Compiled, compile_segment
from regal_jax.importers.flat_jaxpr import Scalar, Value
from regal_jax.importers.jax_call import ArgName, FlatCall, array_type, parameter_names, static_key
from regal_jax.importers.jax_program import TracedCall, argument_names, trace_call
from regal_jax.importers.nnx_objects import is_nnx
from regal_jax.plan import Plan
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["PlannedFunction", "execute"]


class PlannedFunction:
    """A function that runs on several devices as a plan says; made by `regal_jax.execute`.

    It is called like the function. The first call with new shapes, types or static values compiles.

    Attributes:
      record: What the last call did and when; ``None`` before the first call and without ``trace``.
    """

    def __init__(
        self,
        plan: Plan,
        fn: Callable[..., Any],
        devices: Sequence[Any],
        static: int | Sequence[int] | None,
        donated: ArgName | Sequence[ArgName] | None,
        trace: bool,
    ) -> None:
        self.plan = plan
        self.record: ExecutionRecord | None = None
        self._fn, self._devices, self._static, self._donated = fn, devices, static, donated
        self._parameters = parameter_names(fn)
        self._trace = trace
        self._programs: dict[Any, _Program] = {}
        self._lock = threading.Lock()
        functools.update_wrapper(self, fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        known = [*range(len(args)), *kwargs]
        static = argument_names(self._static, known, "static_argnums", self._parameters)
        donated = argument_names(self._donated, known, "donate_argnums", self._parameters)
        call = FlatCall(self._fn, args, kwargs, static)
        program = self._program(call, args, kwargs, static, donated)
        results, record = program(call, self._trace)
        if self._trace:
            self.record = record
        return results

    def _program(
        self,
        call: FlatCall,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        static: frozenset[ArgName],
        donated: frozenset[ArgName],
    ) -> "_Program":
        given: dict[ArgName, Any] = {**dict(enumerate(args)), **dict(sorted(kwargs.items()))}
        fixed = static_key("regal_jax.execute", {name: given[name] for name in static})
        rest = {name: value for name, value in given.items() if name not in static}
        leaves = tuple((leaf.arg, leaf.name, *_signature(leaf.value)) for leaf in call.leaves)
        structure = jax.tree.structure(list(rest.values()), is_leaf=is_nnx)
        key = (fixed, call.fixed, tuple(rest), structure, leaves)
        # Other threads wait, instead of each compiling the same segments.
        with self._lock:
            if key not in self._programs:
                mesh = jax.sharding.get_abstract_mesh()
                if not mesh.empty and max(mesh.size, len(self._devices)) > 1:
                    raise ConfigError(
                        f"regal_jax.execute: a mesh of {counted(mesh.size, 'device')} is set, and a plan has "
                        "one device for each op; call the function outside of jax.set_mesh"
                    )
                traced = trace_call(self._fn, args, kwargs, static, self.plan.graph_name)
                traced.call.check_kept()
                self._programs[key] = _Program(self.plan, traced, self._devices, donated)
            return self._programs[key]


def _signature(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, Tracer):
        raise ConfigError(
            "regal_jax.execute: the function is called within another that JAX transforms; "
            "plan and execute the outer one"
        )
    aval = array_type("regal_jax.execute", leaf)
    return type(aval), tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))


class _Program:
    """The compiled segments of a function for one signature of its arguments."""

    def __init__(
        self, plan: Plan, traced: TracedCall, devices: Sequence[Any], donated: frozenset[ArgName]
    ) -> None:
        self._plan, self._devices = plan, devices
        self._results, self._tree, self._returned = (
            traced.program.results,
            traced.tree,
            traced.tree.num_leaves,
        )
        actions = actions_of(plan, traced)
        program = traced.program
        homes = dict(zip((*program.inputs, *program.constants), homes_of(plan, traced), strict=True))
        for action in actions:
            if isinstance(action, Segment):
                homes.update(dict.fromkeys(action.makes, action.device))
        self._homes = homes
        pairs = list(zip(program.constants, program.arrays, strict=True))
        # References that the function changes have their new arrays after the call.
        self._closed = [(value, array) for value, array in pairs if is_reference(value)]
        references = [value for value in program.inputs if is_reference(value)]
        references += [value for value, _ in self._closed]
        self._uses = _uses(actions, [*self._results, *references], homes)
        self._inputs = program.inputs
        self._constants = [
            ((value, homes[value]), jax.device_put(array, devices[homes[value]]))
            for value, array in pairs
            if not is_reference(value)
        ]
        leaves = zip(traced.call.leaves, program.inputs, strict=True)
        given = {value for leaf, value in leaves if leaf.arg is None or leaf.arg not in donated}
        theirs = given | set(program.constants)
        self._copied = _copied(self._results, self._returned, given, set(program.constants))
        self._actions: Actions = _compiled(actions, devices, self._uses, theirs)

    def __call__(self, call: FlatCall, trace: bool) -> tuple[Any, ExecutionRecord | None]:
        values = dict(self._constants)
        given = [(value, leaf.value) for value, leaf in zip(self._inputs, call.leaves, strict=True)]
        references = [(value, x) for value, x in (*given, *self._closed) if is_reference(value)]
        for value, x in (*given, *self._closed):
            home = self._homes[value]
            values[value, home] = jax.device_put(x[...] if is_reference(value) else x, self._devices[home])
        values = {key: array for key, array in values.items() if self._uses.get(key)}
        run = Run(self._actions, self._devices, values, self._uses, recorded=trace)
        del values
        wanted = [x for x in self._results if isinstance(x, Value)]
        made = iter(run((value, self._homes[value]) for value in [*wanted, *(v for v, _ in references)]))
        outputs = [
            next(made) if isinstance(x, Value) else _scalar(x, self._devices[0]) for x in self._results
        ]
        for (_, reference), array in zip(references, made, strict=True):
            reference[...] = jax.device_put(array, reference[...].sharding)
        for place, value in self._copied.items():
            device = self._devices[self._homes[value]]
            outputs[place] = jax.device_put(outputs[place], device, may_alias=False)
        call.update(outputs[self._returned :])
        results = jax.tree.unflatten(self._tree, outputs[: self._returned])
        return results, self._record(run) if trace else None

    def _record(self, run: Run) -> ExecutionRecord:
        numbers = sorted(run.times, key=lambda number: run.times[number])
        actions = [self._actions[number] for number in numbers]
        times = np.array([run.times[number] for number in numbers], np.float64).reshape(-1, 2)
        times -= times[:1, :1]
        rows = [
            (a.segment.device, -1, tuple(a.segment.ops))
            if isinstance(a, Compiled)
            else (a.device, a.source, (a.op,))
            for a in actions
            if not isinstance(a, Wait)
        ]
        device, source, ops = zip(*rows, strict=True) if rows else ((), (), ())
        return ExecutionRecord(
            self._plan, np.array(device, np.int64), np.array(source, np.int64), ops, times[:, 0], times[:, 1]
        )


def _copied(
    results: Sequence[Value | Scalar], returned: int, given: Set[Value], constants: Set[Value]
) -> dict[int, Value]:
    """The places of results that must be copies, so that who donates one of them destroys nothing else.

    Args:
      results: What the function returns, then the new arrays of NNX objects, which are often the old ones.
      returned: How many the function returns.
      given: Arguments that are not donated.
      constants: Arrays that the function closes over.
    """
    held, copied = set(constants), {}
    for begin, end, more in ((returned, len(results), ()), (0, returned, given)):
        held.update(more)
        for place, value in enumerate(results[begin:end], begin):
            if value in held:
                copied[place] = value
            elif isinstance(value, Value):
                held.add(value)
    return copied


def _uses(
    actions: Sequence[Segment | Move | Wait], results: Sequence[Any], homes: Mapping[Value, int]
) -> Uses:
    uses: collections.Counter[tuple[Value, int]] = collections.Counter()
    for action in actions:
        if isinstance(action, Segment):
            uses.update((value, action.device) for value in action.reads)
        elif isinstance(action, Move):
            uses[action.value, action.source] += 1
    # The return of a result counts as its last use.
    uses.update((x, homes[x]) for x in set(results) if isinstance(x, Value))
    return dict(uses)


def _compiled(
    actions: Sequence[Segment | Move | Wait], devices: Sequence[Any], uses: Uses, theirs: Set[Value]
) -> Actions:
    """The actions with their segments compiled.

    A segment may reuse the memory of a value of which it is the last reader, unless the caller holds the
    value, it is sent to another device, where the copy may still be running, or it is itself a copy.
    """
    left = dict(uses)
    kept = theirs | {action.value for action in actions if isinstance(action, Move)}
    done: list[Compiled | Move | Wait] = []
    for action in actions:
        if not isinstance(action, Segment):
            done.append(action)
            continue
        check_interrupt()
        last = []
        for value in action.reads:
            left[value, action.device] -= 1
            if left[value, action.device] == 0 and value not in kept:
                last.append(value)
        done.append(compile_segment(action, devices[action.device], last))
    return done


def _scalar(scalar: Scalar, device: Any) -> Any:
    value = np.asarray(scalar.value, scalar.aval.dtype)
    # JAX gives Python's numbers, and no others, a weak type.
    return jax.device_put(value.item() if scalar.aval.weak_type else value, device)


@interruptible()
def execute(
    plan: Plan | str | os.PathLike[str],
    fn: Callable[..., Any],
    *,
    devices: Sequence[Any] | None = None,
    static_argnums: int | Sequence[int] | None = (),
    donate_argnums: ArgName | Sequence[ArgName] | None = (),
    trace: bool = False,
) -> PlannedFunction:
    """Makes a function run on several JAX devices, as a plan of its graph says.

    The function is traced as `regal_jax.from_jax` traces it, and every op of the plan is one equation of its
    jaxpr. Consecutive ops of a device are compiled as one program, a segment; a transfer ends the segments of
    both of its devices. One thread for each device runs its segments in the order of the plan, copies what
    it needs from other devices (`jax.device_put`), and drops each array after its last reader. Results are
    those of ``fn``, each on the device that makes it.

    The plan's order of ops and transfers is kept; within a segment XLA chooses its own order. A function
    whose segments take less than about 100 us is slower than with `jax.jit`, because the host starts each of
    them. Plan the contracted graph of such a function (``contract=True``).

    Args:
      plan: A plan of ``from_jax(fn, ...)``, or the name of its file.
      fn: The function. Flax NNX objects that it changes are updated in place.
      devices: The JAX device of each device of the plan; by default the first ones of `jax.devices`.
      static_argnums: Arguments that are not arrays, by index or by name.
      donate_argnums: Arguments whose memory may be reused, by index or by name. They cannot be used after
        the call.
      trace: Whether to wait for every action and keep its times in `PlannedFunction.record`.

    Returns:
      A function with the arguments and results of ``fn``. Its first call compiles.

    Raises:
      ConfigError: ``fn`` is no function, there are too few devices, or two are the same. When called: an
        argument is not allowed.
      PlanError: When called: the plan is for another program.
      FormatError: ``plan`` is not a plan. When called: ``fn`` cannot be traced.

    Examples:
      >>> import jax.numpy as jnp
      >>> from regal_jax import Cluster, execute, from_jax, optimize
      >>> def layer(w, x):
      ...     return jnp.tanh(x @ w)
      >>> x = jnp.ones((8, 8))
      >>> plan = optimize(from_jax(layer, x, x), Cluster.uniform(1))
      >>> execute(plan, layer)(x, x).shape
      (8, 8)
    """
    plan = plan if isinstance(plan, Plan) else Plan.load(plan)
    if not callable(fn):
        raise ConfigError(f"regal_jax.execute: fn: give the function of the plan, got {shown(fn)}")
    count = plan.cluster.num_devices
    found = given_devices("regal_jax.execute", devices)
    if len(found) < count:
        raise ConfigError(
            f"regal_jax.execute: the plan is for {count} devices and there are {len(found)}; plan for fewer, "
            f"or, on a CPU, set jax_num_cpu_devices to {count} before JAX is used"
        )
    if len(set(found[:count])) < count:
        raise ConfigError("regal_jax.execute: devices: each device of the plan needs a device of its own")
    return PlannedFunction(plan, fn, found[:count], static_argnums, donate_argnums, trace)
