"""The arrays that the loops of `regal_jax.heuristics.list_kernel` read and write."""

from collections import namedtuple
from typing import Final

__all__ = ["FOLLOWED", "NONE", "Layout", "State"]

Layout = namedtuple(
    "Layout",
    "input_rows inputs predecessors after_rows after output_rows producer reader_rows reader readers size "
    "temp keep runtime cost link links leader allowed memory position blocking resident least tail span",
)
"""A graph on its cluster. Lists of lists are flat, with the bounds of each row; matrices are flat too.

Attributes:
  input_rows, inputs: ``[N + 1]``, ``[E]``, the tensors that each op reads.
  predecessors: ``[N]``, number of edges to each op.
  after_rows, after: ``[N + 1]``, ``[E + C]``, successors, once for each edge.
  output_rows: ``[N + 1]``, the tensors that each op makes.
  producer: ``[T]``, the op that makes each tensor.
  reader_rows, reader: ``[T + 1]``, ``[E]``, the ops that read each tensor.
  readers: ``[T]``, number of ops that read each tensor.
  size, temp, keep: ``[T]``, ``[N]``, ``[T]``: bytes, scratch bytes, whether the tensor is a result.
  runtime: ``[N * D]``.
  cost: ``[T * L]``, time of a transfer over each kind of link.
  link: ``[D * D]``, the kind of link from one device to another.
  links: ``L``, number of kinds.
  leader: ``[N]``, the first op of the colocation group.
  allowed: ``[N * D]``, whether the group may run on the device.
  memory: ``[D]`` float, capacities in bytes.
  position: ``[N]``, place in a topological order, which decides between equal ranks.
  blocking: Whether transfers are events.
  resident: ``[N]``, ops that go first: their outputs are in memory from time 0.
  least: ``[N]``, the shortest runtime of each op.
  tail: ``[N]``, the longest path of such runtimes after it.
  span: The sum of all times, which no clock passes.
"""

State = namedtuple(
    "State",
    "clock place finish copied made meet left held most lag moves bound waiting release begins owed newest "
    "sender senders vague fixed base pick lowest key ranked spot words near fresh event slot path homes "
    "changed level counts",
)
"""A schedule in progress. Every call of `schedule` initialises all of it but its input.

Attributes:
  clock: ``[D]``, time up to which the device is busy.
  place, finish: ``[N]``, device and finish of each op.
  copied: ``[T * D]``, whether the tensor is on the device.
  made: ``[N]``, the slot of the op; slots are consecutive groups of events.
  meet: ``[D * D]``, the last slot after which the clocks of two devices were equal.
  left: ``[T]``, number of readers that have not run, where memory matters.
  held, most: ``[D]`` bytes, held now and the peak so far, where memory matters; upper bounds.
  lag: ``[D]``, clocks of the senders after the transfers that an op would need.
  moves: ``[T]``, those transfers.
  bound: ``[N]``, device of the colocation group, or -1.
  waiting: ``[N]``, number of edges from predecessors that have not run.
  release: ``[N]``, latest finish of the predecessors that have run.
  begins: ``[N * D]``, lower bounds on the start of ready ops on each device, whatever its clock.
  owed: ``[N * D]``, total time of the transfers that a ready op needs on each device, where they are events.
  newest: ``[N * D]``, the last slot of the ops that made what these transfers send; `NONE` without transfers.
  sender: ``[N * D]``, the device that sends it, or any device.
  senders: ``[N * D]``, the devices of transfers that take time, as bits.
  vague: ``[N * D]``, 0 if these numbers tell when the op could begin, 1 if several devices send.
  fixed: ``[N * D]``, the part of the costs of ready ops that does not depend on any clock.
  base: ``[N]``, the least of these over the devices.
  pick, lowest: ``[N * D * 2]``, ``[N * D]``, choices whose cost is not known exactly, as places in ``near``
    and devices, and lower bounds on their costs.
  key: ``[N]``, the ready op with the largest key goes first; ties are broken by ``position``.
  ranked, spot: ``[N]``, the ops by key, the largest first, and the place of each; input: any permutation.
  words: ``[N / 32 + 1]``, the ready ops that are not compared, as bits at their places in ``ranked``.
  near: ``[N]``, the ready ops that are compared, in order.
  fresh: ``[N]``, the ops that have just become ready.
  event, slot: ``[M]``, events and their slots.
  path, homes, changed: ``[N]``, input: the ops of an earlier schedule of the same rule in their order, the
    device of each op in it, and 1 for each op with another rank or price than there, 0 for the others.
  level: ``[4]``, with two devices: for each, its clock and the later of both clocks.
  counts: ``[3]``, numbers of events and of slots; input: whether to follow ``path``.
"""
FOLLOWED: Final = 2
"""Index of `State.counts`."""
NONE: Final = -2
"""A slot before all others."""
