"""`from_hlo`: a compiled XLA program, as XLA prints it, as a `ComputationGraph`.

This module does not import JAX."""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from regal_jax.checks import check_kind, real, shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.graph.roots import root_of
from regal_jax.importers.files import PathLike, at_path, graph_name, read_text
from regal_jax.importers.hlo_buffers import Buffer, Flow
from regal_jax.importers.hlo_cost import Flops, computation_flops, instruction_flops, instruction_seconds
from regal_jax.importers.hlo_flow import trace
from regal_jax.importers.hlo_sharing import aliases, callees
from regal_jax.importers.hlo_text import Computation, Instruction, Module, names_in, parse_module
from regal_jax.importers.roofline import DeviceProfile, find_profile, profile_list
from regal_jax.runtime.interrupts import interruptible

__all__ = ["from_hlo", "order_computations", "parse_hlo"]

_TRIPS: Final = re.compile(r"known_trip_count\W{1,8}n\W{1,8}([0-9]{1,18})")


@interruptible()
def from_hlo(program: PathLike | Any, **options: Any) -> ComputationGraph:
    """The graph of a compiled XLA program, its ops in XLA's own order.

    ``graph.topological_order`` is XLA's schedule, and the heuristic ``"given"`` replays it: its peak is
    XLA's order under our model of memory, to be compared with the best order found under the same model.

    - An instruction of the entry computation is an op. A ``fusion`` is one op, with the arithmetic of the
      fused instructions and the traffic of operands and results. A ``while``, ``conditional`` or ``call`` is
      one op: the runtime of its body times its trip count, or of its slowest branch; its `temp_bytes` is the
      peak of the body in the body's own order.
    - Tuples, ``get-tuple-element``, ``bitcast`` and constants are not ops and take no memory.
    - A parameter is a resident op of kind ``parameter`` whose output is never freed unless it is
      donated (``input_output_alias``), colocated with its first reader. One op ``start`` comes after all
      of them and before everything that computes. What the program returns is kept.
    - Results that XLA must write in place take no memory of their own: the state of a loop, updates of a
      slice, a donated parameter. Control edges keep readers of the old content before the writer, and all
      ops that use such a buffer share a device. XLA reuses more buffers than that, so its own peak is
      lower by some percent.
    - ``control-predecessors`` are control edges.

    Args:
      program: A path; or the text itself (of more than one line); or an object with ``as_text()``, such as
        ``jax.jit(f).lower(...).compile()``.
      **options: As `parse_hlo`.

    Raises:
      FormatError: The text is not a scheduled module, or is damaged; names the line and the remedy.
      GraphError: The graph breaks a rule.
      ConfigError: An option is out of range.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from regal_jax import from_hlo
      >>> array = jax.ShapeDtypeStruct((8, 8), jnp.float32)
      >>> compiled = jax.jit(lambda w, x: jnp.tanh(x @ w)).lower(array, array).compile()
      >>> from_hlo(compiled).op_kinds[:3]
      ('parameter', 'parameter', 'start')

    References:
      openxla/xla: hlo_parser, hlo_dataflow_analysis (which results are written in place), hlo_cost_analysis.
    """
    as_text = getattr(program, "as_text", None)
    if callable(as_text):
        return parse_hlo(str(as_text()), **options)
    if isinstance(program, str) and "\n" in program:
        return parse_hlo(program, **options)
    if not isinstance(program, (str, os.PathLike)):
        raise FormatError(
            f"{type(program).__name__} is no compiled program; give a path, HLO text, or "
            "jax.jit(f).lower(...).compile()"
        )
    with at_path(program):
        return parse_hlo(read_text(program), **{"name": graph_name(program), **options})


def parse_hlo(
    text: str,
    *,
    name: str | None = None,
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
    while_trip_count: float = 1,
    require_schedule: bool = True,
) -> ComputationGraph:
    """The graph of the text of one HLO module; see `from_hlo`.

    Args:
      text: The text.
      name: Name of the graph; the module's own name by default.
      profile: The device (`regal_jax.importers.roofline.PROFILES` or your own) that runtimes are
        estimated for; a sequence gives one runtime for each device.
      while_trip_count: Iterations of a ``while`` whose ``known_trip_count`` is not in the text.
      require_schedule: Refuse a module without ``is_scheduled=true``; otherwise take the order of the text.

    Returns:
      The graph, times in seconds.

    Raises:
      FormatError, GraphError, ConfigError: As `from_hlo`.
    """
    check_kind("text", text, str)
    profiles = profile_list(profile)
    if real(while_trip_count, 0) is None:
        raise ConfigError(f"while_trip_count: {shown(while_trip_count)} must be finite and zero or more")
    module = parse_module(text)
    if require_schedule and not module.scheduled:
        raise FormatError(
            "line 1: the module has no is_scheduled=true, so that its order is not XLA's; give the text of "
            "a compiled program, or pass require_schedule=False to take the order of the text"
        )
    costs = _Costs(module, [find_profile(p) for p in profiles], while_trip_count)
    flow, donated = _entry_flow(module, costs)
    return _Assembly(name or module.name, flow, costs, donated, module.entry).graph()


def order_computations(module: str | Module, find_peak: Callable[[str, ComputationGraph], int]) -> None:
    """Calls ``find_peak`` for the graph of each computation that runs as a program, callees first.

    The graphs are those of `from_hlo`, with more of the buffers that XLA reuses. Arguments and results of the
    body of a loop, a branch or a called computation have no size: they are in the memory of its caller. The
    peak of such a computation is a part of the `temp_bytes` of the op that runs it. In the entry
    computation, results have their sizes: until one is made, its memory may hold other buffers.

    Args:
      module: A scheduled module, or its text.
      find_peak: Gets the name of a computation and its graph, and returns the peak of the order that the
        computation shall run in, in bytes.

    Raises:
      FormatError, GraphError: As `from_hlo`.
    """
    if isinstance(module, str):
        module = parse_module(module)
    costs = _Costs(module, [find_profile("h200")], 1, find_peak)
    flow, donated = _entry_flow(module, costs)
    find_peak(module.entry.name, _Assembly(module.entry.name, flow, costs, donated, module.entry).graph())


def _entry_flow(module: Module, costs: "_Costs") -> tuple[Flow, set[tuple[int, int]]]:
    """The buffers of the entry computation, and the donated parameters (number, leaf)."""
    outputs = {path: leaf for leaf, path in enumerate(_paths(module.entry.root))}
    results_in, donated = {}, set()
    for result, number, index in aliases(module.attributes.get("input_output_alias", "")):
        # Parameters of jitted functions are arrays; of a tuple only the top level is followed.
        place = (number, (index or (0,))[0])
        donated.add(place)
        if result in outputs:
            results_in[outputs[result]] = place
    return trace(module.entry, module.computations, costs.bodies, donated, results_in, costs.share), donated


def _paths(root: Instruction) -> list[tuple[int, ...]]:
    """The index path of each leaf of a result, as ``input_output_alias`` writes it."""
    paths: list[tuple[int, ...]] = []
    stack: list[tuple[Any, tuple[int, ...]]] = [(root.shape, ())]
    while stack:
        shape, path = stack.pop()
        items = getattr(shape, "items", None)
        if items is None:
            paths.append(path)
        else:
            stack.extend((item, (*path, i)) for i, item in reversed(list(enumerate(items))))
    return paths


class _Costs:
    """Runtimes of instructions, and the flows and runtimes of bodies; a body comes before its callers."""

    def __init__(
        self,
        module: Module,
        profiles: list[DeviceProfile],
        while_trip_count: float,
        find_peak: Callable[[str, ComputationGraph], int] | None = None,
    ) -> None:
        self.module, self.profiles, self.while_trip_count = module, profiles, while_trip_count
        self.share = find_peak is not None  # The model for compiled orders also has sharing that XLA may do.
        self.flops: dict[str, Flops] = {}
        self.bodies: dict[str, Flow] = {}
        self.seconds: dict[str, list[float]] = {}
        run = _bodies_of(module)
        for computation in module.computations.values():
            if computation is module.entry:
                continue
            if computation.name in run:
                mutable = None if run[computation.name] else ()
                flow = trace(computation, module.computations, self.bodies, mutable, share=self.share)
                if find_peak is not None:
                    flow.temp_bytes = find_peak(computation.name, self.body_graph(computation, flow))
                self.bodies[computation.name] = flow
                rows = [self.of(step.instruction, computation) for step in flow.steps]
                self.seconds[computation.name] = [
                    sum(row[p] for row in rows) for p in range(len(self.profiles))
                ]
            self.flops[computation.name] = computation_flops(computation, self.flops)

    def body_graph(self, computation: Computation, flow: Flow) -> ComputationGraph:
        """The graph of a computation whose arguments and results have no size."""
        entering = [buffer for _, row in flow.parameters.values() for buffer in row]
        for buffer in (*entering, *flow.results):
            if buffer is not None:
                buffer.size = 0
        return _Assembly(computation.name, flow, self, set(), computation).graph()

    def of(self, instruction: Instruction, computation: Computation) -> list[float]:
        """Seconds of one instruction, one number per profile."""
        bodies = [self.seconds[name] for name in callees(instruction)]
        columns = list(zip(*bodies, strict=True)) or [()] * len(self.profiles)
        if instruction.opcode == "while":
            found = _TRIPS.search(instruction.attributes.get("backend_config", ""))
            trips = int(found[1]) if found else self.while_trip_count
            return [trips * sum(column) for column in columns]
        if bodies:
            return [max(column) for column in columns]
        fused = names_in(instruction.attributes.get("calls", "")) if instruction.opcode == "fusion" else []
        called = self.module.computations[fused[0]] if fused else None
        flops = instruction_flops(instruction, computation, self.flops)
        return [instruction_seconds(instruction, computation, called, flops, p) for p in self.profiles]


def _bodies_of(module: Module) -> dict[str, bool]:
    """Computations that run as programs -> whether only loops run them, whose state they may overwrite.

    Raises:
      FormatError: An instruction calls a computation that is not above it.
    """
    run: dict[str, bool] = {}
    above: set[str] = set()
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            bodies = callees(instruction)
            fused = (
                names_in(instruction.attributes.get("calls", "")) if instruction.opcode == "fusion" else []
            )
            missing = [name for name in (*bodies, *fused) if name not in above]
            if missing or (
                instruction.opcode in ("while", "conditional", "call", "fusion") and not bodies + fused
            ):
                what = repr(missing[0]) if missing else "a computation"
                raise FormatError(
                    f"line {instruction.line}: {instruction.name!r} calls {what}, which does not stand above "
                    "it; is the text complete?"
                )
            for name in bodies:
                run[name] = run.get(name, True) and instruction.opcode == "while"
        above.add(computation.name)
    return run


class _Assembly:
    """Adds parameters, the op ``start`` and the steps to a `GraphBuilder`."""

    def __init__(
        self, name: str, flow: Flow, costs: _Costs, donated: set[tuple[int, int]], computation: Computation
    ) -> None:
        self.flow, self.costs, self.donated, self.computation = flow, costs, donated, computation
        self.builder = GraphBuilder(name)
        self.numbers = sorted(flow.parameters)
        self.kept = {buffer for buffer in flow.results if buffer}
        # Parameters come first, then (if there are any) ``start``, then the steps.
        self.base = len(self.numbers) + bool(self.numbers)
        names = [flow.parameters[n][0].name for n in self.numbers]
        names += [step.instruction.name for step in flow.steps]
        self.barrier = next(
            n for n in ("start", *(f"start_{k}" for k in range(len(names) + 1))) if n not in names
        )
        self.made: dict[Buffer, tuple[int, int]] = {}
        for o, number in enumerate(self.numbers):
            self.made.update({b: (o, port) for port, b in enumerate(flow.parameters[number][1])})
        for o, step in enumerate(flow.steps, start=self.base):
            self.made.update({b: (o, port) for port, b in enumerate(step.makes)})
        self.group = self.groups()

    def groups(self) -> dict[int, int]:
        """Op -> first op of its colocation group, for ops that share a device."""
        first: dict[int, int] = {}
        for buffer, (maker, _) in self.made.items():
            # A copy elsewhere could be sent before a buffer is overwritten, so there must be none.
            touching = buffer.readers if buffer.writers else buffer.readers[:1]
            if buffer.writers or maker < len(self.numbers):
                for step in touching:
                    both = maker, self.base + step
                    a, b = sorted(root_of(first, first.setdefault(o, o)) for o in both)
                    first[b] = a
        return {o: root_of(first, o) for o in first}

    def graph(self) -> ComputationGraph:
        flow, builder = self.flow, self.builder
        for o, number in enumerate(self.numbers):
            instruction, buffers = flow.parameters[number]
            builder.add_op(
                instruction.name,
                kind="parameter",
                outputs=[b.size for b in buffers],
                keep=[i for i, b in enumerate(buffers) if (number, i) not in self.donated or b in self.kept],
                colocation_group=self.group_name(o),
                resident=True,
            )
        if self.numbers:
            builder.add_op(self.barrier, kind="start", control_inputs=range(len(self.numbers)))
        for o, step in enumerate(flow.steps, start=self.base):
            self.add_step(o, step)
        return builder.build()

    def group_name(self, o: int) -> str | None:
        if o not in self.group:
            return None
        first = self.group[o]
        if first < len(self.numbers):
            return self.flow.parameters[self.numbers[first]][0].name
        return self.flow.steps[first - self.base].instruction.name

    def add_step(self, o: int, step: Any) -> None:
        instruction = step.instruction
        inputs = [self.made[b] for b in step.reads]
        controls = sorted(self.base + s for s in step.waits)
        if self.numbers and not controls and all(op < self.base for op, _ in inputs):
            controls.append(self.base - 1)
        seconds = self.costs.of(instruction, self.computation)
        bodies = [self.costs.bodies[n].temp_bytes for n in callees(instruction)]
        self.builder.add_op(
            instruction.name,
            kind=instruction.opcode,
            runtime=seconds if len(seconds) > 1 else seconds[0],
            outputs=[b.size for b in step.makes],
            inputs=inputs,
            control_inputs=controls,
            temp_bytes=max(bodies, default=0),
            keep=[port for port, b in enumerate(step.makes) if b in self.kept],
            colocation_group=self.group_name(o),
        )
