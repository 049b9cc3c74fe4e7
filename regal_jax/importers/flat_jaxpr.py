"""A jaxpr as one flat list of equations: calls are inlined, dead code is removed, loops and branches stay."""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jax_core

from regal_jax.importers.body_peak import BodyStep, body_peak

__all__ = [
    "Equation",
    "Program",
    "Scalar",
    "Value",
    "aval_bytes",
    "evaluate",
    "flatten",
    "is_packed",
    "peak_bytes",
    "temp_bytes",
]

_INLINED: Final = frozenset({
    "jit", "pjit", "closed_call", "core_call", "call", "remat", "remat2", "checkpoint",
    "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
})  # fmt: skip
"""Calls that are equivalent to their body."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Value:
    """An array of the program. It is equal only to itself.

    Attributes:
      aval: Its shape and dtype.
    """

    aval: Any


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Scalar:
    """A scalar literal of the program; it is not an op.

    Attributes:
      value: Its value.
      aval: Its type.
    """

    value: Any
    aval: Any


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Equation:
    """One op.

    Attributes:
      primitive: Name of the primitive, e.g. ``"dot_general"``.
      params: Its parameters.
      scope: Its scope in the user's program: module path and names of jitted functions.
      inputs: The distinct values that it reads, without scalar literals.
      operands: Every operand in order: a value, or a scalar literal.
      source: JAX's own equation, whose primitive computes the outputs from the operands.
      in_avals: Shape and dtype of every operand, literals included.
      outputs: The values that it makes, used or not.
      bodies: The sub-programs that it runs (``scan``, ``while``, ``cond``, ...).
      effectful: Whether it must run even if its outputs are not read.
      ordered: Whether it must keep its place among the other ordered equations.
    """

    primitive: str
    params: Mapping[str, Any]
    scope: str
    inputs: tuple[Value, ...]
    operands: tuple[Value | Scalar, ...]
    source: Any
    in_avals: tuple[Any, ...]
    outputs: tuple[Value, ...]
    bodies: tuple["Program", ...]
    effectful: bool
    ordered: bool


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Program:
    """A flat program; equations stand in program order.

    Attributes:
      inputs: One value for each argument.
      constants: Values that the function closes over and that are read, each once.
      arrays: The arrays of `constants`.
      equations: Only those that an output or an effect needs.
      results: What it returns.
    """

    inputs: tuple[Value, ...]
    constants: tuple[Value, ...]
    arrays: tuple[Any, ...]
    equations: tuple[Equation, ...]
    results: tuple[Value | Scalar, ...]

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The values among the results."""
        return tuple(v for v in self.results if isinstance(v, Value))


def flatten(jaxpr: Any) -> Program:
    """The flat program of a (closed) jaxpr.

    Args:
      jaxpr: What `jax.make_jaxpr` returns.
    """
    return _flatten(jaxpr, {}, whole=True)


def _flatten(jaxpr: Any, constants: dict[int, tuple[Any, Value]], *, whole: bool = False) -> Program:
    state = _Flattener(constants)
    inputs = [Value(v.aval) for v in _open(jaxpr)[0].invars]
    results = state.run(jaxpr, inputs, "", whole=whole)
    needed = {v for v in results if isinstance(v, Value)}
    live: list[Equation] = []
    for equation in reversed(state.equations):
        if equation.effectful or not needed.isdisjoint(equation.outputs):
            live.append(equation)
            needed.update(equation.inputs)
    own = [(array, value) for array, value in constants.values() if value in needed]
    arrays, values = zip(*own, strict=True) if own else ((), ())
    return Program(tuple(inputs), values, arrays, tuple(reversed(live)), tuple(results))


def evaluate(equation: Equation, operands: Sequence[Any]) -> Sequence[Any]:
    """The outputs of an equation; arrays, or tracers of JAX.

    Args:
      equation: The equation.
      operands: An array for each of `Equation.operands`.
    """
    source = equation.source
    bound = source.primitive.get_bind_params(source.params)
    # Earlier versions of JAX return the functions that a primitive calls apart from its parameters.
    functions, parameters = bound if isinstance(bound, tuple) else ((), bound)
    with source.ctx.manager:
        made = source.primitive.bind(*functions, *operands, **parameters)
    return made if source.primitive.multiple_results else [made]


class _Flattener:
    """Collects equations; ``constants`` maps the id of an array to it (kept alive) and its value."""

    def __init__(self, constants: dict[int, tuple[Any, Value]]) -> None:
        self.constants = constants
        self.equations: list[Equation] = []

    def constant(self, array: Any, aval: Any) -> Value:
        return self.constants.setdefault(id(array), (array, Value(aval)))[1]

    def run(
        self, jaxpr: Any, inputs: Sequence[Value | Scalar], scope: str, *, whole: bool = False
    ) -> list[Value | Scalar]:
        """Adds the equations of ``jaxpr``; returns its results.

        If ``jaxpr`` is the ``whole`` program and consists of a single call, scopes omit the call's name.
        """
        inner, arrays = _open(jaxpr)
        single = whole and len(inner.eqns) == 1
        values: dict[Any, Value | Scalar] = dict(zip(inner.invars, inputs, strict=True))
        for var, array in zip(inner.constvars, arrays, strict=True):
            values[var] = self.constant(array, var.aval)

        def read(atom: Any) -> Value | Scalar:
            if isinstance(atom, jax_core.Literal):
                scalar = not getattr(atom.aval, "shape", ())
                return Scalar(atom.val, atom.aval) if scalar else self.constant(atom.val, atom.aval)
            return values[atom]

        for eqn in inner.eqns:
            path = _join(scope, _clean(str(eqn.source_info.name_stack)))
            operands = [read(atom) for atom in eqn.invars]
            if eqn.primitive.name in _INLINED:
                name = str(eqn.params.get("name", ""))
                path = path if single or name.startswith(("_", "<")) else _join(path, name)
                results = self.run(next(_sub_jaxprs(eqn.params)), operands, path, whole=single)
            else:
                results = self.add(eqn, operands, path)
            values.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in inner.outvars]

    def add(self, eqn: Any, operands: list[Value | Scalar], scope: str) -> tuple[Value, ...]:
        if eqn.primitive.name == "custom_linear_solve":
            subs = [eqn.params["jaxprs"].solve]  # Other parameters are rules for derivatives.
        else:
            subs = list(_sub_jaxprs(eqn.params))
        bodies = tuple(_flatten(sub, self.constants) for sub in subs)
        read = [*operands, *(constant for body in bodies for constant in body.constants)]
        outputs = tuple(Value(var.aval) for var in eqn.outvars)
        self.equations.append(
            Equation(
                primitive=eqn.primitive.name,
                params=eqn.params,
                scope=scope,
                inputs=tuple(dict.fromkeys(v for v in read if isinstance(v, Value))),
                operands=tuple(operands),
                source=eqn,
                in_avals=tuple(atom.aval for atom in eqn.invars),
                outputs=outputs,
                bodies=bodies,
                effectful=bool(eqn.effects),
                # Callbacks have a parameter `ordered`; all other effects count as ordered.
                ordered=bool(eqn.effects) and bool(eqn.params.get("ordered", True)),
            )
        )
        return outputs


def _open(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """Variables, equations, and the arrays of ``constvars``; from JAX 0.11 on, an open jaxpr has both."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    arrays = getattr(jaxpr, "consts", ())
    return inner, arrays if len(arrays) == len(inner.constvars) else ()


def _sub_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    for param in params.values():
        for item in param if isinstance(param, (tuple, list)) else (param,):
            if hasattr(item, "eqns") and hasattr(item, "outvars" if not hasattr(item, "jaxpr") else "jaxpr"):
                yield item


def _clean(stack: str) -> str:
    """``"transpose(jvp(Net))/dense"`` as ``"backward/Net/dense"``."""
    path = re.sub(r"\b(?:jvp|transpose|vmap|remat\w*|checkpoint)(?=\()|[()]", "", stack)
    return _join(*(["backward"] if "transpose(" in stack else []), *path.split("/"))


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


def is_packed(dtype: Any) -> bool:
    """Whether elements of a type take less than a byte each."""
    return dtype.name.startswith(("int2", "uint2", "int4", "uint4", "float4"))


def aval_bytes(aval: Any) -> int:
    """Exact size of an array: elements times the size of its dtype.

    4-bit and 2-bit types count as packed, keys as their words, tokens as 0.
    """
    dtype = getattr(aval, "dtype", None)
    if dtype is None:
        return 0
    elements = math.prod(aval.shape)
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        return elements * dtype.itemsize
    if is_packed(dtype):
        return -(-elements * int(re.findall(r"[24]", dtype.name)[0]) // 8)
    return elements * np.dtype(dtype).itemsize


def peak_bytes(program: Program, *, results: bool = True) -> int:
    """Peak memory of the values that ``program`` itself makes, in program order.

    Its inputs and constants are not counted.

    Args:
      program: The program.
      results: Whether to count its outputs, which stay in memory until the end.
    """
    steps = [
        BodyStep(e.inputs, {v: aval_bytes(v.aval) for v in e.outputs}, temp_bytes(e))
        for e in program.equations
    ]
    return body_peak(steps, program.outputs, count_results=results)


def temp_bytes(equation: Equation) -> int:
    """Estimated scratch memory of an op: the largest `peak_bytes` of its bodies.

    A loop needs memory for the results of an iteration in addition to its outputs, which hold the previous
    state. The results of a branch are the outputs of the op.
    """
    results = equation.primitive != "cond"
    return max((peak_bytes(body, results=results) for body in equation.bodies), default=0)
