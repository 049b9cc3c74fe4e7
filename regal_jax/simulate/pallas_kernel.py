"""One block of the fused GPU simulator: the event loop of one candidate.

A block is one warpgroup of 128 lanes. State is in its shared memory, and clocks are in registers. Graph and
decisions are read from global memory, where the blocks of one graph share cache lines.

`regal_jax.simulate.pallas_rows` has the rule by which shared memory is written.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Decisions, Problem
from regal_jax.simulate.pallas_rows import LANES, any_of, put, row_at, up, when

__all__ = ["Inputs", "Sizes", "make_inputs", "make_sizes", "program"]

_CHILD: Final = 32767
_GONE: Final = -(2**31)
_NEVER: Final = 2**31 - 1
_FLAT: Final = 4096
"""Most events of a flat queue; with more, a second level holds the maxima of rows.

In a pop, each row of a flat queue costs two instructions; the second level costs about 65 and seven barriers.
"""


class Sizes(NamedTuple):
    """Static sizes of a kernel.

    Attributes:
      n, t, d, links: ``N``, ``T``, ``D``, ``L``.
      population: ``P``.
      events: ``M``: ``N``, plus ``T * D`` if transfers are events, rounded up to rows.
      blocking: Whether transfers are events.
      arrivals: Whether anything other than a device's clock can delay an op. If all transfers are events and
        there is no control edge, every input has met the clock of the device where it is read.
      positions: Whether to record the order.
    """

    n: int
    t: int
    d: int
    links: int
    population: int
    events: int
    blocking: bool
    arrivals: bool
    positions: bool

    @property
    def what(self) -> str:
        """The sizes that its shared memory depends on, in words."""
        return f"{self.events} events"

    def scratch(self) -> dict[str, tuple[int, Any]]:
        """Length and dtype of every array in shared memory, fields of `_Block`."""
        arrays: dict[str, tuple[int, Any]] = {"leaf": (self.events, jnp.int32)}
        if self.events > _FLAT:
            arrays["top"] = (up(self.events // LANES), jnp.int32)
        if self.arrivals:
            arrays["arrival"] = (up(self.n), jnp.float32)
        return arrays


def make_sizes(problem: Problem, population: int = 1, positions: bool = False) -> Sizes:
    """The sizes of the kernel for ``P`` candidates of each graph of ``problem``."""
    n, t, d = problem.bucket.ops, problem.bucket.tensors, problem.num_devices
    blocking = problem.blocking
    events = up(n + t * d if blocking else n)
    arrivals = not blocking or problem.bucket.controls > 0
    return Sizes(n, t, d, problem.num_links, population, events, blocking, arrivals, positions)


class Inputs(NamedTuple):
    """Operands of the kernel. A node is an op or, after the ops and if transfers are events, a tensor.

    Attributes:
      lane: ``[128]`` int32, 0 to 127.
      entry: ``[B * P, M]`` int32, entry of each event in the queue when it is ready:
        ``key << 15 | (32767 - child)``, as in `regal_jax.simulate.queue`.
      placement: ``[B * P, N]`` int32.
      waiting: ``[B, M]`` int32, predecessors of each compute; 2**31 - 1 for all others.
      owner: ``[B, nodes]`` int32, the op itself or the producer.
      begin, end: ``[B, nodes]`` int32, bounds of the row of successors.
      cost: ``[B, N * D + T * L]`` float32, duration of each op on each device and, if transfers are events,
        of each tensor's over each kind of link.
      link: ``[B, D * D]`` int32, the kind of link from one device to another one.
      successor, via: ``[B, E + C]`` int32, as in `Problem`.
      delay: ``[B, (T + 1) * L]`` float32, transfer times, 0 for control edges; ``[B, 1]`` if blocking.
    """

    lane: Any
    entry: Any
    placement: Any
    waiting: Any
    owner: Any
    begin: Any
    end: Any
    cost: Any
    link: Any
    successor: Any
    via: Any
    delay: Any


def make_inputs(problem: Problem, decisions: Decisions, sizes: Sizes) -> Inputs:
    """The operands, prepared by XLA so that the kernel needs no case distinctions."""
    b, n, t, d = problem.num_graphs, sizes.n, sizes.t, sizes.d
    key = decisions.priority.astype(jnp.int32)
    owner = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, n))
    rows, delay = problem.op_row, jnp.zeros((b, 1), jnp.float32)
    cost = problem.runtime.reshape(b, -1)
    if sizes.blocking:
        transfer = decisions.transfer_priority.reshape(b, -1, t * d).astype(jnp.int32)
        key = jnp.concatenate([key, transfer], axis=-1)
        owner = jnp.concatenate([owner, problem.tensor_op], axis=-1)
        rows = jnp.concatenate([rows, problem.tensor_row], axis=1)
        cost = jnp.concatenate([cost, problem.transfer_time.reshape(b, -1)], axis=1)
    else:
        delay = jnp.pad(problem.transfer_time, ((0, 0), (0, 1), (0, 0))).reshape(b, -1)
    key = jnp.pad(key, ((0, 0), (0, 0), (0, sizes.events - key.shape[-1])))
    child = jnp.arange(sizes.events, dtype=jnp.int32)
    if sizes.events > _FLAT:
        child %= LANES
    return Inputs(
        lane=jnp.arange(LANES, dtype=jnp.int32),
        entry=(key << 15 | (_CHILD - child)[None, None]).reshape(-1, sizes.events),
        placement=decisions.placement.reshape(-1, n),
        waiting=jnp.pad(problem.indegree, ((0, 0), (0, sizes.events - n)), constant_values=_NEVER),
        owner=owner,
        begin=rows[..., 0],
        end=rows[..., 1],
        cost=cost,
        link=problem.link.reshape(b, -1),
        successor=problem.successor,
        via=problem.via,
        delay=delay,
    )


class _Block(NamedTuple):
    """State and operands of a block.

    Attributes:
      sizes: The padded sizes; static under jit.
      lane: ``[128]`` int32, in registers.
      inputs: Refs to this candidate's and its graph's part of the operands.
      makespan: ``[B * P]`` float32 in global memory.
      position: ``[M]`` int32 in global memory; ``None`` if not recorded.
      leaf: ``[M]`` int32 in shared memory. Of a ready event its entry; of a compute that waits, minus the
        number of predecessors that have not run; else negative and never touched again.
      top: ``[M / 128]`` int32 in shared memory, the largest entry of every row of ``leaf`` with the row as
        its child, negative if nothing there is ready; ``None`` if there are few events.
      arrival: ``[N]`` float32 in shared memory, when everything that has run is there for the op; ``None``
        if clocks suffice.
    """

    sizes: Sizes
    lane: jax.Array
    inputs: Inputs
    makespan: Any
    position: Any
    leaf: Any
    top: Any = None
    arrival: Any = None


def _parent(entry: jax.Array, row: jax.Array) -> jax.Array:
    """Entry in the level above for a row whose largest entry is ``entry``."""
    return jnp.where(entry < 0, _GONE, (entry & ~_CHILD) | (_CHILD - row))


def _fill(block: _Block) -> None:
    """The state before the first event: ops without predecessors are ready."""
    inputs, lane = block.inputs, block.lane
    if block.top is not None:
        for i in range(0, block.top.shape[0], LANES):
            block.top[row_at(i)] = jnp.full(LANES, _GONE, jnp.int32)

    def fill_events(i: jax.Array, _: None) -> None:
        at = row_at(i * LANES)
        waiting = inputs.waiting[at]
        leaf = jnp.where(waiting == 0, inputs.entry[at], -waiting)
        block.leaf[at] = leaf
        if block.top is not None:
            put(block.top, lane, i, _parent(jnp.max(leaf), i))
        if block.position is not None:
            block.position[at] = jnp.full(LANES, -1, jnp.int32)

    def fill_arrival(i: jax.Array, _: None) -> None:
        block.arrival[row_at(i * LANES)] = jnp.zeros(LANES, jnp.float32)

    jax.lax.fori_loop(0, block.sizes.events // LANES, fill_events, None)
    if block.arrival is not None:
        jax.lax.fori_loop(0, block.arrival.shape[0] // LANES, fill_arrival, None)


def _best(block: _Block) -> jax.Array:
    """The largest entry of the top level; negative if no event is ready."""
    level = block.leaf if block.top is None else block.top
    best = level[row_at(0)]
    for i in range(LANES, level.shape[0], LANES):
        best = jnp.maximum(best, level[row_at(i)])
    return jnp.max(best)


def _pop(block: _Block, best: jax.Array) -> jax.Array:
    """Takes the event that `_best` found."""
    index = _CHILD - (best & _CHILD)
    if block.top is None:
        put(block.leaf, block.lane, index, _GONE)
        return index
    at = row_at(index * LANES)
    row = block.leaf[at]
    child = _CHILD - (jnp.max(row) & _CHILD)
    block.leaf[at] = jnp.where(block.lane == child, _GONE, row)
    # Read again, since JAX 0.10 compiles an unsigned maximum for a selected value.
    put(block.top, block.lane, index, _parent(jnp.max(block.leaf[at]), index))
    return index * LANES + child


def _set(block: _Block, event: jax.Array, entry: jax.Array) -> None:
    """Changes an event's element of ``leaf``, and updates its row if the event is now ready."""
    put(block.leaf, block.lane, event, entry)
    if block.top is not None:
        row = jax.lax.div(event, jnp.int32(LANES))
        raised = jnp.maximum(block.top[row], _parent(entry, row))
        when(entry >= 0, lambda: put(block.top, block.lane, row, raised))


def _settle(block: _Block, op: jax.Array, arrived: jax.Array) -> None:
    """Records that a predecessor of ``op`` has run and that its output arrives at ``arrived``."""
    if block.arrival is not None:
        put(block.arrival, block.lane, op, jnp.maximum(block.arrival[op], arrived))
    left = block.leaf[op] + 1
    _set(block, op, jnp.where(left == 0, block.inputs.entry[op], left))


def _over(block: _Block, tensor: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """Index of the time of a transfer among those of all tensors over all kinds of links."""
    sizes = block.sizes
    if sizes.links == 1:
        return tensor
    return tensor * sizes.links + block.inputs.link[source * sizes.d + target]


def _spread(block: _Block, node: jax.Array, device: jax.Array, finish: jax.Array) -> None:
    """Updates every successor of ``node``, which is on ``device`` at ``finish``."""
    sizes, inputs = block.sizes, block.inputs

    def step(i: jax.Array, _: None) -> None:
        op, tensor = inputs.successor[i], inputs.via[i]
        place = inputs.placement[op]
        if not sizes.blocking:
            late = inputs.delay[_over(block, tensor, device, place)]
            delay = jnp.where(place == device, jnp.float32(0), late)
            _settle(block, op, finish + delay)
            return
        # As in the reference, each remote consumer queues the transfer, repeatedly if there are many. After
        # it has run, the transfer visits the same consumers and updates those on its device.
        here = (place == device) | (tensor == sizes.t)
        transfer = sizes.n + tensor * sizes.d + place
        when(here, lambda: _settle(block, op, finish))
        when(~here & (node < sizes.n), lambda: _set(block, transfer, inputs.entry[transfer]))

    jax.lax.fori_loop(inputs.begin[node], inputs.end[node], step, None)


_Carry = tuple[jax.Array, jax.Array, tuple[jax.Array, ...]]
"""The best entry, the number of events so far, the clocks."""


def _take(block: _Block, carry: _Carry) -> _Carry:
    """Takes one event."""
    best, taken, clock = carry
    n, d = block.sizes.n, block.sizes.d
    event = _pop(block, best)
    is_op = event < n
    # Truncating division takes a third of the instructions of floor division.
    transfer, width = event - n, jnp.int32(d)
    node = jnp.where(is_op, event, n + jax.lax.div(transfer, width))
    home = block.inputs.placement[block.inputs.owner[node]]
    device = jnp.where(is_op, home, jax.lax.rem(transfer, width))
    # An op waits for one clock, a transfer for two.
    start = jnp.maximum(any_of(clock, home), any_of(clock, device))
    if block.arrival is not None:
        arrived = block.arrival[jnp.minimum(event, n - 1)]
        start = jnp.where(is_op, jnp.maximum(start, arrived), start)
    at = node * d + device
    if block.sizes.blocking:
        at = jnp.where(is_op, at, n * d + _over(block, node - n, home, device))
    finish = start + block.inputs.cost[at]
    clock = tuple(jnp.where((home == k) | (device == k), finish, old) for k, old in enumerate(clock))
    if block.position is not None:
        # A scalar store is safe here: all lanes write the same value, and none reads it.
        block.position[event] = taken
    _spread(block, node, device, finish)
    return _best(block), taken + 1, clock


def program(sizes: Sizes, *refs: Any) -> None:
    """The kernel: computes the results of one candidate from its operands in shared memory."""
    candidate = jax.lax.axis_index("candidate")
    graph = candidate // sizes.population
    operands, outputs = Inputs(*refs[: len(Inputs._fields)]), list(refs[len(Inputs._fields) :])
    row = dict.fromkeys(Inputs._fields, graph) | {"entry": candidate, "placement": candidate}
    inputs = Inputs(*(ref if k == "lane" else ref.at[row[k]] for k, ref in operands._asdict().items()))
    makespan = outputs.pop(0)
    position = outputs.pop(0).at[candidate] if sizes.positions else None
    scratch = dict(zip(sizes.scratch(), outputs, strict=True))
    block = _Block(sizes, operands.lane[:], inputs, makespan, position, **scratch)
    _fill(block)
    clock = (jnp.float32(0),) * sizes.d
    carry = (_best(block), jnp.int32(0), clock)
    *_, clock = jax.lax.while_loop(lambda c: c[0] >= 0, functools.partial(_take, block), carry)
    makespan[candidate] = functools.reduce(jnp.maximum, clock)
