"""The fused GPU simulator: one kernel launch, one candidate a block, the whole event loop inside.

Same contract and same results as `regal_jax.simulate.lockstep.run`, bit for bit: keys, orders and float32
operations are the same, only the loop is not shared. A block is one warpgroup (128 lanes). What changes
lives in its shared memory, clocks in registers; graph and decisions are read from global memory, where
the blocks of one graph find the same lines in the caches.

Written for the Mosaic GPU backend of Pallas, the one that JAX keeps: its Triton backend is deprecated from
JAX 0.11 on. Of that backend it uses what JAX 0.10 and 0.11 have in common: scalar loads at a
computed index, loads and stores of 128 lanes, maxima over them, loops and branches on scalars. Every lane
computes every scalar, hence the one rule of this file: **shared memory is written by rows of 128 lanes,
never by a scalar store.** Pallas puts barriers around a row store under both of its lowering semantics, but
not around a scalar store under the newer one, and then a slow warp would read, modify and write what a fast
one has already modified.

Peaks are not followed in here: they need the inputs of an op, and `regal_jax.simulate.memory` gets them
from positions in a few parallel steps.
"""

import functools
import warnings
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.errors import ConfigError
from regal_jax.problem import Decisions, Problem
from regal_jax.simulate.lockstep import Run

__all__ = ["available", "fits", "run_pallas", "run_pallas_on_gpu"]

_LANES: Final = 128
_CHILD: Final = 32767
_GONE: Final = -(2**31)
_FLAT: Final = 1024
"""Events up to which a pop looks at all of them; beyond it a second level holds the maxima of rows."""

_CAPABILITY: Final = (9, 0)
_SHARED_KIB: Final = {9: 227, 10: 227, 11: 227}
"""Shared memory of a block, by major compute capability."""
_SHARED_KIB_ELSE: Final = 99
_ALIGNMENT: Final = 1024
"""Pallas aligns arrays in shared memory to so many bytes."""
_REDUCTION_BYTES: Final = 128 * 4 * 4
"""What Pallas sets aside for reductions over the lanes."""


def _up(size: int, multiple: int = _LANES) -> int:
    return -(-size // multiple) * multiple


class _Sizes(NamedTuple):
    """Static sizes of one kernel.

    Attributes:
      n, t, d: ``N``, ``T``, ``D``.
      population: ``P``.
      events: ``M'``: ``N``, plus ``T * D`` if transfers are events, rounded up to rows.
      blocking: Are transfers events?
      positions: Record the order?
    """

    n: int
    t: int
    d: int
    population: int
    events: int
    blocking: bool
    positions: bool

    @property
    def deep(self) -> bool:
        """Does the queue have two levels?"""
        return self.events > _FLAT

    def scratch(self) -> dict[str, tuple[int, Any]]:
        """Length and dtype of every array in shared memory."""
        shapes = {"leaf": (self.events, jnp.int32), "arrival": (_up(self.n), jnp.float32)}
        if self.deep:
            shapes["top"] = (_up(self.events // _LANES), jnp.int32)
        return shapes

    def shared_bytes(self) -> int:
        """Shared memory that a block needs."""
        arrays = sum(_up(4 * length, _ALIGNMENT) for length, _ in self.scratch().values())
        return arrays + _ALIGNMENT + _REDUCTION_BYTES


def _sizes(problem: Problem, population: int = 1, positions: bool = False) -> _Sizes:
    n, t, d = problem.bucket.ops, problem.bucket.tensors, problem.num_devices
    events = _up(n + t * d if problem.blocking else n)
    return _Sizes(n, t, d, population, events, problem.blocking, positions)


class _Inputs(NamedTuple):
    """Operands of the kernel. A node is an op or, after the ops and if transfers are events, a tensor.

    Attributes:
      lane: ``[128]`` int32, 0 to 127.
      entry: ``[B * P, M']`` int32, what each event is in the queue when it is ready.
      placement: ``[B * P, N]`` int32.
      waiting: ``[B, M']`` int32, predecessors of each compute; of anything else ``2**31 - 1``.
      owner: ``[B, nodes]`` int32, the op itself or the producer.
      begin, end: ``[B, nodes]`` int32, bounds of the row of successors.
      cost: ``[B, nodes * D]`` float32, time of the node's event on or to each device.
      successor, via: ``[B, E + C]`` int32, as in `Problem`.
      delay: ``[B, T + 1]`` float32, transfer times; 0 for control edges. ``[B, 1]`` if blocking.
    """

    lane: Any
    entry: Any
    placement: Any
    waiting: Any
    owner: Any
    begin: Any
    end: Any
    cost: Any
    successor: Any
    via: Any
    delay: Any


class _State(NamedTuple):
    """Refs that a program writes.

    Attributes:
      leaf: ``[M']`` int32: the entry of a ready event; minus the number of predecessors that a compute
        still waits for; `_GONE` if the event has run or is not known to happen.
      top: ``[M' / 128]`` int32, the largest entry of every row of ``leaf``, with the row as its child;
        ``None`` unless the queue is deep.
      arrival: ``[N]`` float32, when everything that has run is there for the op.
      position: ``[M']`` int32 in global memory; ``None`` if not recorded.
    """

    leaf: Any
    top: Any
    arrival: Any
    position: Any


def _inputs(problem: Problem, decisions: Decisions, sizes: _Sizes) -> _Inputs:
    b, n, t, d = problem.num_graphs, sizes.n, sizes.t, sizes.d
    key = decisions.priority.astype(jnp.int32)
    owner = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, n))
    rows, cost, delay = problem.op_row, problem.runtime, jnp.zeros((b, 1), jnp.float32)
    if sizes.blocking:
        transfer = decisions.transfer_priority.reshape(b, -1, t * d).astype(jnp.int32)
        key = jnp.concatenate([key, transfer], axis=-1)
        owner = jnp.concatenate([owner, problem.tensor_op], axis=-1)
        rows = jnp.concatenate([rows, problem.tensor_row], axis=1)
        cost = jnp.concatenate([cost, jnp.broadcast_to(problem.transfer_time[..., None], (b, t, d))], axis=1)
    else:
        delay = jnp.pad(problem.transfer_time, ((0, 0), (0, 1)))
    key = jnp.pad(key, ((0, 0), (0, 0), (0, sizes.events - key.shape[-1])))
    child = jnp.arange(sizes.events, dtype=jnp.int32) % (_LANES if sizes.deep else _FLAT)
    return _Inputs(
        lane=jnp.arange(_LANES, dtype=jnp.int32),
        entry=(key << 15 | (_CHILD - child)[None, None]).reshape(-1, sizes.events),
        placement=decisions.placement.reshape(-1, n),
        waiting=jnp.pad(problem.indegree, ((0, 0), (0, sizes.events - n)), constant_values=2**31 - 1),
        owner=owner,
        begin=rows[..., 0],
        end=rows[..., 1],
        cost=cost.reshape(b, -1),
        successor=problem.successor,
        via=problem.via,
        delay=delay,
    )


def _row(index: Any) -> Any:
    """The 128 lanes from ``index`` (a multiple of 128) on."""
    from jax.experimental import pallas as pl

    return pl.ds(index if isinstance(index, int) else pl.multiple_of(index, _LANES), _LANES)


def _put(ref: Any, lane: jax.Array, index: jax.Array, value: jax.Array | int) -> None:
    """``ref[index] = value``, as a row."""
    base = index & -_LANES
    ref[_row(base)] = jnp.where(lane == index - base, value, ref[_row(base)])


def _parent(entry: jax.Array, row: jax.Array) -> jax.Array:
    """The entry of a row whose largest entry is ``entry``; negative if nothing in it is ready."""
    return jnp.where(entry < 0, _GONE, (entry & ~_CHILD) | (_CHILD - row))


def _begin(inputs: _Inputs, state: _State, sizes: _Sizes, lane: jax.Array) -> None:
    """Fills the state: the ops without predecessors are ready."""
    if state.top is not None:
        for i in range(0, state.top.shape[0], _LANES):
            state.top[_row(i)] = jnp.full(_LANES, _GONE, jnp.int32)

    def queue(i: jax.Array, _: None) -> None:
        at = _row(i * _LANES)
        waiting = inputs.waiting[at]
        leaf = jnp.where(waiting == 0, inputs.entry[at], -waiting)
        state.leaf[at] = leaf
        if state.top is not None:
            _put(state.top, lane, i, _parent(jnp.max(leaf), i))
        if state.position is not None:
            state.position[at] = jnp.full(_LANES, -1, jnp.int32)

    def arrive(i: jax.Array, _: None) -> None:
        state.arrival[_row(i * _LANES)] = jnp.zeros(_LANES, jnp.float32)

    jax.lax.fori_loop(0, sizes.events // _LANES, queue, None)
    jax.lax.fori_loop(0, _up(sizes.n) // _LANES, arrive, None)


def _best(state: _State) -> jax.Array:
    """The largest entry of the level that a pop starts from; negative if no event is ready."""
    level = state.leaf if state.top is None else state.top
    best = level[_row(0)]
    for i in range(_LANES, level.shape[0], _LANES):
        best = jnp.maximum(best, level[_row(i)])
    return jnp.max(best)


def _pop(state: _State, lane: jax.Array, best: jax.Array) -> jax.Array:
    """Takes the event of the entry `_best`."""
    index = _CHILD - (best & _CHILD)
    if state.top is None:
        _put(state.leaf, lane, index, _GONE)
        return index
    base = index * _LANES
    row = state.leaf[_row(base)]
    child = _CHILD - (jnp.max(row) & _CHILD)
    row = jnp.where(lane == child, _GONE, row)
    state.leaf[_row(base)] = row
    _put(state.top, lane, index, _parent(jnp.max(row), index))
    return base + child


def _set(state: _State, lane: jax.Array, event: jax.Array, entry: jax.Array) -> None:
    """Changes what the queue holds for an event; if it is ready now, its row must know."""
    from jax.experimental import pallas as pl

    _put(state.leaf, lane, event, entry)
    if state.top is not None:

        @pl.when(entry >= 0)
        def _() -> None:
            row = event // _LANES
            _put(state.top, lane, row, jnp.maximum(state.top[row], _parent(entry, row)))


def _spread(
    inputs: _Inputs,
    state: _State,
    sizes: _Sizes,
    lane: jax.Array,
    node: jax.Array,
    device: jax.Array,
    finish: jax.Array,
) -> None:
    """Tells every successor of ``node`` that it is done on ``device`` at ``finish``."""
    from jax.experimental import pallas as pl

    def settle(op: jax.Array, time: jax.Array) -> None:
        _put(state.arrival, lane, op, jnp.maximum(state.arrival[op], time))
        left = state.leaf[op] + 1
        _set(state, lane, op, jnp.where(left == 0, inputs.entry[op], left))

    def step(i: jax.Array, _: None) -> None:
        op, tensor = inputs.successor[i], inputs.via[i]
        place = inputs.placement[op]
        if not sizes.blocking:
            settle(op, finish + jnp.where(place == device, jnp.float32(0), inputs.delay[tensor]))
            return
        # As in the reference: a remote consumer queues the transfer, which comes by again when it has run.
        here = (place == device) | (tensor == sizes.t)
        transfer = sizes.n + tensor * sizes.d + place
        pl.when(here)(lambda: settle(op, finish))
        pl.when(~here & (node < sizes.n))(lambda: _set(state, lane, transfer, inputs.entry[transfer]))

    jax.lax.fori_loop(inputs.begin[node], inputs.end[node], step, None)


def _program(sizes: _Sizes, *refs: Any) -> None:
    """The kernel body: all events of one candidate."""
    candidate = jax.lax.axis_index("candidate")
    inputs, makespan, state = _views(sizes, candidate, refs)
    lane = inputs.lane[:]
    n, d = sizes.n, sizes.d
    _begin(inputs, state, sizes, lane)

    def unfinished(carry: tuple[Any, ...]) -> jax.Array:
        return carry[0] >= 0

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        best, taken, clock = carry
        event = _pop(state, lane, best)
        is_op = event < n
        node = jnp.where(is_op, event, n + (event - n) // d)
        home = inputs.placement[inputs.owner[node]]
        device = jnp.where(is_op, home, (event - n) % d)
        ready = jnp.where(is_op, state.arrival[jnp.minimum(event, n - 1)], _choose(clock, device))
        finish = jnp.maximum(_choose(clock, home), ready) + inputs.cost[node * d + device]
        clock = tuple(jnp.where((home == k) | (device == k), finish, c) for k, c in enumerate(clock))
        if state.position is not None:
            # A scalar store does here: nobody reads it, and all lanes write the same.
            state.position[event] = taken
        _spread(inputs, state, sizes, lane, node, device, finish)
        return _best(state), taken + 1, clock

    clock = (jnp.float32(0),) * d
    *_, clock = jax.lax.while_loop(unfinished, step, (_best(state), jnp.int32(0), clock))
    makespan[candidate] = functools.reduce(jnp.maximum, clock)


def _views(sizes: _Sizes, candidate: jax.Array, refs: tuple[Any, ...]) -> tuple[_Inputs, Any, _State]:
    """This candidate's part of every operand, its makespan's array, and its state."""
    count = len(_Inputs._fields)
    inputs, (makespan, *rest) = _Inputs(*refs[:count]), refs[count:]
    graph = candidate // sizes.population
    own = {"lane": inputs.lane}
    for name, ref in inputs._asdict().items():
        if name in ("entry", "placement"):
            own[name] = ref.at[candidate]
        elif name != "lane":
            own[name] = ref.at[graph]
    position = rest.pop(0).at[candidate] if sizes.positions else None
    scratch = dict(zip(sizes.scratch(), rest, strict=True))
    return _Inputs(**own), makespan, _State(scratch["leaf"], scratch.get("top"), scratch["arrival"], position)


def _choose(values: tuple[jax.Array, ...], index: jax.Array) -> jax.Array:
    """``values[index]``, from registers."""
    chosen = values[0]
    for i, value in enumerate(values[1:], 1):
        chosen = jnp.where(index == i, value, chosen)
    return chosen


def _check_fits(sizes): pass

def run_pallas(problem: Problem, decisions: Decisions, *, positions: bool, interpret: Any = False) -> Run:
    """Takes every event of every candidate, in one kernel.

    Args:
      problem: ``B`` graphs.
      decisions: ``[B, P, ...]``.
      positions: Record them? Otherwise they are empty.
      interpret: Pallas's parameters of its GPU interpreter, to run on a CPU in tests.

    Raises:
      ConfigError: A bucket too large for the shared memory of a block.
    """
    from jax.experimental.pallas import mosaic_gpu as plgpu

    b, p = decisions.priority.shape[:2]
    sizes = _sizes(problem, p, positions)
    _check_fits(sizes)
    shapes = [jax.ShapeDtypeStruct((b * p,), jnp.float32)]
    if positions:
        shapes.append(jax.ShapeDtypeStruct((b * p, sizes.events), jnp.int32))
    kernel = plgpu.kernel(
        functools.partial(_program, sizes),
        out_type=tuple(shapes),
        scratch_types=tuple(plgpu.SMEM((length,), dtype) for length, dtype in sizes.scratch().values()),
        grid=(b * p,),
        grid_names=("candidate",),
        kernel_name="regal_jax_simulate",
        interpret=interpret,
    )
    makespan, *position = kernel(*_inputs(problem, decisions, sizes))
    n, transfers = sizes.n, sizes.t * sizes.d if sizes.blocking else 0
    order = position[0].reshape(b, p, -1) if position else jnp.zeros((b, p, 0), jnp.int32)
    return Run(
        makespan=makespan.reshape(b, p),
        op_position=order[..., :n],
        transfer_position=order[..., n : n + transfers].reshape(b, p, -1, sizes.d),
    )
