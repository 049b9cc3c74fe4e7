"""Data of the GPU kernel of schedule generation: sizes, operands, and the state of a block.

The start of an op on a device depends on its inputs elsewhere and on the clocks. For every op and every pair
of devices, the block therefore keeps what the clocks do not change, the *latest code* of the inputs that the
second device lacks and the first one holds:

- ``c``, the time of the transfer, if it takes time. Rounding is monotone, so that the longest transfer gives
  the latest arrival.
- ``m - 2**23``, if it does not, for a tensor that was made in slot ``m``. The devices have to meet for it if
  it was made after their last meeting. Every code of this kind is less than every one of the other.
- ``-inf`` for no such input.

Without blocking transfers, arrivals do not depend on clocks, and the latest one is kept for every device.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Preferences, Problem
from regal_jax.simulate.generate_lockstep import Goal, inputs_of
from regal_jax.simulate.generate_memory import sizes_of
from regal_jax.simulate.pallas_rows import LANES, up

__all__ = [
    "MADE",
    "MOST_DEVICES",
    "NONE",
    "Block",
    "Clocks",
    "Held",
    "Inputs",
    "MemoryInputs",
    "Now",
    "Sizes",
    "code_of",
    "device_of",
    "make_block",
    "make_inputs",
    "make_sizes",
    "slot_of",
    "spot_of",
]

MOST_DEVICES: Final = 8
"""The loops over devices, and over pairs of them, are unrolled."""
NONE: Final = -jnp.inf
"""The code of no input."""
MADE: Final = float(2**23)
"""More than any slot; floats between this and its negative hold whole numbers exactly."""
_PLACE_BITS: Final = 5

Clocks = tuple[jax.Array, ...]
"""A number for each device, in registers."""


class Sizes(NamedTuple):
    """Static sizes of a kernel.

    Attributes:
      n, t, d, links: ``N``, ``T``, ``D``, ``L``.
      population: ``P``.
      goal: What decides.
      ops: ``N``, rounded up to rows.
      tensors: ``T``, rounded up to rows.
      copies: ``T * D``, rounded up to rows.
      pairs: Length of `Block.late` for each op: number of pairs of different devices with blocking transfers,
        else number of devices; 0 where no start depends on it.
      blocking: Whether transfers are blocking.
      positions: Whether to record the slots of transfers.
    """

    n: int
    t: int
    d: int
    links: int
    population: int
    goal: Goal
    ops: int
    tensors: int
    copies: int
    pairs: int
    blocking: bool
    positions: bool

    @property
    def what(self) -> str:
        """The sizes that its shared memory depends on, in words."""
        return f"{self.n} ops and {self.t} tensors on {self.d} devices"

    @property
    def memory(self) -> bool:
        """Whether memory decides."""
        return self.goal != "time"

    def scratch(self) -> dict[str, tuple[int, Any]]:
        """Length and dtype of every array in shared memory, fields of `Block`."""
        arrays: dict[str, tuple[int, Any]] = {
            "waiting": (self.ops, jnp.int32),
            "release": (self.ops, jnp.float32),
            "spot": (self.ops, jnp.int32),
            "may": (self.ops, jnp.int32),
        }
        if self.pairs:
            arrays["late"] = (self.pairs * self.ops, jnp.float32)
        if self.blocking or self.memory:
            arrays["sent"] = (self.copies, jnp.int32)
        if self.memory:
            arrays["lacks"] = (self.d * self.ops, jnp.int32)
            arrays["left"] = (self.tensors, jnp.int32)
        if self.goal == "peak":
            arrays["growth"] = (self.d * self.ops, jnp.int32)
        return arrays


def make_sizes(problem: Problem, goal: Goal, population: int = 1, positions: bool = False) -> Sizes:
    """The sizes of the kernel for ``P`` candidates of each graph of ``problem``."""
    n, t, d = problem.bucket.ops, problem.bucket.tensors, problem.num_devices
    pairs = 0
    if not problem.blocking:
        pairs = d if d > 1 else 0
    elif goal != "peak":
        # For peak memory, starts do not count in the choice of an op, and no transfer is inserted.
        pairs = d * (d - 1)
    return Sizes(
        *(n, t, d, problem.num_links, population, goal),
        *(up(n), up(t), up(t * d), pairs),
        blocking=problem.blocking,
        positions=positions and problem.blocking,
    )


class Inputs(NamedTuple):
    """Operands of the kernel.

    Attributes:
      lane: ``[128]`` int32, 0 to 127.
      num_ops: ``[B]`` int32.
      rows: ``[B]`` int32, number of rows of ops up to the last op without predecessors.
      waiting: ``[B, ops]`` int32, predecessors of each op; 1 for padding.
      may: ``[B, ops]`` int32, bit ``k`` says whether the op may run on device ``k``.
      runtime: ``[B, N * D]`` float32.
      begin, end: ``[B, N]`` int32, bounds of the row of successors.
      successor, via: ``[B, E + C]`` int32, as in `Problem`.
      first, last: ``[B, T]`` int32, bounds of the consumers of each tensor, a part of ``successor``.
      maker: ``[B, T]`` int32, the producer.
      reads: ``[B, N + 1]`` int32, bounds of the edges to each op.
      read: ``[B, E + C]`` int32, their tensors, ascending for each op; ``T`` for a control edge.
      cost: ``[B, T * L]`` float32, time of each transfer over each kind of link.
      link: ``[B, D * D]`` int32, the kind of link from one device to another one.
      leader: ``[B, N]`` int32, as in `Problem`.
      joins, leaves: ``[B, N]`` int32, bounds of the members of the group that an op leads; none if it leads
        only itself.
      member: ``[B, N]`` int32.
      urgency: ``[B * P, ops]`` float32.
      price: ``[B * P, D * ops]`` float32, those of device 0 first.
      early, waste, behind: ``[B * P]`` float32.
    """

    lane: Any
    num_ops: Any
    rows: Any
    waiting: Any
    may: Any
    runtime: Any
    begin: Any
    end: Any
    successor: Any
    via: Any
    first: Any
    last: Any
    maker: Any
    reads: Any
    read: Any
    cost: Any
    link: Any
    leader: Any
    joins: Any
    leaves: Any
    member: Any
    urgency: Any
    price: Any
    early: Any
    waste: Any
    behind: Any


class MemoryInputs(NamedTuple):
    """More operands, if memory decides: int32, in units of memory.

    Attributes:
      size, keep: ``[B, T]``, as in `Problem`.
      out, stays, resident: ``[B, ops]``, as in `regal_jax.simulate.generate_memory.Sizes`.
      fixed: ``[B, ops]``, outputs and ``temp`` of each op.
      readers: ``[B, tensors]``.
      capacity: ``[B, D]``.
    """

    size: Any
    keep: Any
    out: Any
    stays: Any
    resident: Any
    fixed: Any
    readers: Any
    capacity: Any


_OF_CANDIDATES: Final = ("urgency", "price", "early", "waste", "behind")
_SCALARS: Final = ("num_ops", "rows", "early", "waste", "behind")


def make_inputs(problem: Problem, preferences: Preferences, sizes: Sizes) -> tuple[Any, ...]:
    """The operands, prepared by XLA: those of `Inputs`, then those of `MemoryInputs` if memory decides."""
    operands = _inputs(problem, preferences, sizes)
    return (*operands, *_memory_inputs(problem, sizes)) if sizes.memory else operands


def _memory_inputs(problem: Problem, sizes: Sizes) -> MemoryInputs:
    each = jax.vmap(sizes_of)(problem)
    ops = (0, 0), (0, sizes.ops - sizes.n)
    return MemoryInputs(
        size=problem.size,
        keep=problem.keep.astype(jnp.int32),
        out=jnp.pad(each.out, ops),
        stays=jnp.pad(each.stays, ops),
        resident=jnp.pad(each.resident.astype(jnp.int32), ops),
        fixed=jnp.pad(each.out + problem.temp, ops),
        readers=jnp.pad(each.readers, ((0, 0), (0, sizes.tensors - sizes.t))),
        capacity=problem.capacity,
    )


def _inputs(problem: Problem, preferences: Preferences, sizes: Sizes) -> Inputs:
    b, n, d = problem.num_graphs, sizes.n, sizes.d
    pad = (0, sizes.ops - n)
    edges = jax.vmap(functools.partial(inputs_of, goal="time"))(problem)
    number = jnp.arange(n, dtype=jnp.int32)
    last = jnp.where(problem.indegree == 0, number, 0).max(axis=-1)
    by_leader = jnp.argsort(problem.leader, axis=-1, stable=True).astype(jnp.int32)
    leaders = jnp.take_along_axis(problem.leader, by_leader, axis=-1)
    joins = jax.vmap(lambda each: jnp.searchsorted(each, number))(leaders).astype(jnp.int32)
    leaves = jax.vmap(lambda each: jnp.searchsorted(each, number, side="right"))(leaders).astype(jnp.int32)
    bits = jnp.left_shift(1, jnp.arange(d, dtype=jnp.int32))
    price = jnp.swapaxes(preferences.price, -1, -2)
    return Inputs(
        lane=jnp.arange(LANES, dtype=jnp.int32),
        num_ops=problem.num_ops,
        rows=(last // LANES + 1).astype(jnp.int32),
        waiting=jnp.pad(problem.indegree, ((0, 0), pad), constant_values=1),
        may=jnp.pad(jnp.where(problem.allowed, bits, 0).sum(axis=-1, dtype=jnp.int32), ((0, 0), pad)),
        runtime=problem.runtime.reshape(b, -1),
        begin=problem.op_row[..., 0],
        end=problem.op_row[..., 1],
        successor=problem.successor,
        via=problem.via,
        first=problem.tensor_row[..., 0],
        last=problem.tensor_row[..., 1],
        maker=problem.tensor_op,
        reads=edges.row,
        read=edges.tensor,
        cost=problem.transfer_time.reshape(b, -1),
        link=problem.link.reshape(b, -1),
        leader=problem.leader,
        joins=joins,
        leaves=jnp.where(leaves - joins == 1, joins, leaves),
        member=by_leader,
        urgency=jnp.pad(preferences.urgency, ((0, 0), (0, 0), pad)).reshape(-1, sizes.ops),
        price=jnp.pad(price, ((0, 0), (0, 0), (0, 0), pad)).reshape(-1, d * sizes.ops),
        early=preferences.early.reshape(-1),
        waste=preferences.waste.reshape(-1),
        behind=preferences.behind.reshape(-1),
    )


class Block(NamedTuple):
    """State and operands of a block. A *spot* is ``32 * slot + device`` of an op, -1 before it is taken.

    Attributes:
      sizes: The padded sizes; static under jit.
      lane: ``[128]`` int32, in registers.
      inputs: Refs to this candidate's and its graph's part of the operands, and their scalars.
      memory: The same, if memory decides.
      waiting: ``[ops]`` int32, edges from ops that have not been taken; -1 once the op is taken.
      release: ``[ops]`` float32, latest finish of the predecessors that have been taken.
      spot: ``[ops]`` int32.
      may: ``[ops]`` int32, as in `Inputs`; a group that has been bound has one device.
      late: ``[pairs, ops]`` float32, latest codes by pair (source first), or latest arrivals by device.
      sent: ``[T, D]`` int32, twice the slot of each transfer, plus 1 if it was inserted there; -1 for none.
      lacks: ``[D, ops]`` int32, bytes of the inputs that each op lacks on each device.
      left: ``[T]`` int32, readers that have not been taken.
      growth: ``[D, ops]`` int32, as in `regal_jax.simulate.generate_memory.Needs`.
    """

    sizes: Sizes
    lane: jax.Array
    inputs: Inputs
    memory: Any
    waiting: Any
    release: Any
    spot: Any
    may: Any
    late: Any = None
    sent: Any = None
    lacks: Any = None
    left: Any = None
    growth: Any = None

    def over(self, tensor: Any, source: Any, target: Any) -> jax.Array:
        """Time of a transfer."""
        sizes = self.sizes
        if sizes.links == 1:
            return self.inputs.cost[tensor]
        return self.inputs.cost[tensor * sizes.links + self.inputs.link[source * sizes.d + target]]

    def pair(self, source: Any, target: Any) -> Any:
        """Index in ``late`` of op 0 for two different devices."""
        later = jnp.where(target > source, 1, 0) if not isinstance(source, int) else int(target > source)
        return (source * (self.sizes.d - 1) + target - later) * self.sizes.ops

    def spot_of_maker(self, tensor: jax.Array) -> jax.Array:
        """Spot of the producer of a tensor; any for a control edge."""
        return self.spot[self.inputs.maker[jnp.minimum(tensor, self.sizes.t - 1)]]


def make_block(sizes: Sizes, candidate: jax.Array, operands: Any, arrays: Any) -> Block:
    """The block of a candidate.

    Args:
      sizes: The sizes.
      candidate: Index of the block.
      operands: Refs, as `make_inputs` returns the arrays.
      arrays: Refs, as `Sizes.scratch` describes them.
    """
    graph, count = candidate // sizes.population, len(Inputs._fields)

    def part(name: str, ref: Any) -> Any:
        if name == "lane":
            return ref
        index = candidate if name in _OF_CANDIDATES else graph
        return ref[index] if name in _SCALARS else ref.at[index]

    inputs = Inputs(*(part(name, ref) for name, ref in zip(Inputs._fields, operands[:count], strict=True)))
    memory = MemoryInputs(*(ref.at[graph] for ref in operands[count:])) if sizes.memory else None
    return Block(sizes, inputs.lane[:], inputs, memory, **dict(zip(sizes.scratch(), arrays, strict=True)))


class Held(NamedTuple):
    """Memory in registers, as in `regal_jax.simulate.generate_memory.Held`.

    Attributes:
      now, most: Of each device.
      since: ``D`` times ``D``, row ``k``: the most that device ``k`` has held since it last met each other
        device.
    """

    now: Clocks
    most: Clocks
    since: tuple[Clocks, ...]


class Now(NamedTuple):
    """The loop's state in registers.

    Attributes:
      clock: Of each device.
      meet: ``D`` times ``D``, slot of the last meeting of two devices, -1 for none.
      slots: Number of slots so far.
      rows: Number of rows of ops that have held a ready op.
      held: Memory; ``None`` if it does not decide.
    """

    clock: Clocks
    meet: tuple[Clocks, ...]
    slots: jax.Array
    rows: jax.Array
    held: Held | None


def spot_of(slot: jax.Array, device: jax.Array) -> jax.Array:
    """The spot of an op."""
    return (slot << _PLACE_BITS) + device


def device_of(spot: jax.Array) -> jax.Array:
    """The device of a spot."""
    return spot & (2**_PLACE_BITS - 1)


def slot_of(spot: jax.Array) -> jax.Array:
    """The slot of a spot."""
    return jax.lax.shift_right_arithmetic(spot, _PLACE_BITS)


def code_of(cost: jax.Array, made: jax.Array) -> jax.Array:
    """Code of an input that a device lacks: the time of its transfer, and the slot in which it was made."""
    return jnp.where(cost > 0, cost, made.astype(jnp.float32) - MADE)
