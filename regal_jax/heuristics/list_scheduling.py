"""List scheduling that takes the next op and its device together, on the true clocks of the devices."""

import dataclasses
import heapq
from typing import Literal

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.earliest_finish import upward_rank
from regal_jax.heuristics.links import Links
from regal_jax.plan import transfer_event

__all__ = ["Rule", "list_schedule"]


@dataclasses.dataclass(frozen=True)
class Rule:
    """What `list_schedule` prefers.

    Attributes:
      look: Compare this many ready ops, those of highest rank.
      waste: Price of a unit of device time lost to waiting and transfers.
      behind: Prize for a unit of time by which a device is behind: its idle time may be lost anyway, and
        only a device that gets an op can join in.
      rank: Price of a unit of rank that is put off.
      finish: Judge by when the op would finish rather than when it would start.
      goal: ``"time"`` ignores memory; ``"fit"`` first avoids overflow of the devices' capacities;
        ``"peak"`` first avoids a new peak, then holds as little as it can.
    """

    look: int = 1
    waste: float = 0.0
    behind: float = 0.0
    rank: float = 1.0
    finish: bool = True
    goal: Literal["time", "fit", "peak"] = "time"


class _State:
    """Clocks, copies and memory after the events so far."""

    def __init__(self, graph: ComputationGraph, cluster: Cluster, rule: Rule, links: Links) -> None:
        self.graph, self.cluster, self.rule, self.links = graph, cluster, rule, links
        d = cluster.num_devices
        self.blocking = cluster.transfer is TransferModel.BLOCKING
        self.runtime = runtime_matrix(graph, cluster).tolist()
        self.cost = transfer_times(graph, cluster).tolist()
        self.rank = upward_rank(graph, cluster).tolist()
        self.leader = graph.colocation_leader.tolist()
        self.devices = [
            np.flatnonzero(row).tolist() for row in allowed_matrix(graph, cluster)
        ]  # of a leader: where its group may still go
        self.clock = [0.0] * d
        self.place = [-1] * graph.num_ops
        self.finish = [0.0] * graph.num_ops
        self.copied: dict[tuple[int, int], float] = {}
        # slots: groups of events; made[o]: the slot of compute(o); meet[h][k]: the last slot after which
        # h and k stood at the same time.
        self.slots: list[list[int]] = []
        self.made = [-1] * graph.num_ops
        self.meet = [[-1] * d for _ in range(d)]
        self.left = [len(row) for row in links.readers]
        self.held = [0] * d
        self.peak = 0

    def evaluate(self, o: int, k: int) -> tuple[float, float, list[int]]:
        """``(start, waste, tensors to move)`` if op ``o`` went to device ``k`` now."""
        now = start = self.clock[k]
        moves = [
            t
            for t in self.links.inputs[o]
            if self.place[self.links.producer[t]] != k and (t, k) not in self.copied
        ]
        waste = 0.0
        if moves and self.blocking:
            # Who is ahead meets last, so that the others need not wait for it.
            moves.sort(key=lambda t: self.clock[self.place[self.links.producer[t]]])
            lag: dict[int, float] = {}
            for t in moves:
                h = self.place[self.links.producer[t]]
                if not self._rides(t, h, k):
                    start = max(start, lag.get(h, self.clock[h])) + self.cost[t]
                    lag[h] = start
            for h, time in lag.items():
                waste += time - self.clock[h]
        elif not self.blocking:
            for t in self.links.inputs[o]:
                start = max(start, self._arrival(t, k))
        for u in self.links.before[o]:
            start = max(start, self.finish[u])
        return start, waste + start - now, moves

    def _arrival(self, t: int, k: int) -> float:
        u = self.links.producer[t]
        return self.finish[u] + (0.0 if self.place[u] == k else self.cost[t])

    def _rides(self, t: int, h: int, k: int) -> bool:
        """Could the transfer have happened when the two last met, at no cost to anyone?

        Then it is put there after the fact; not when memory matters, as the copy is held for longer.
        """
        return (
            self.cost[t] == 0
            and self.made[self.links.producer[t]] < self.meet[h][k]
            and self.rule.goal == "time"
        )

    def pressure(self, o: int, k: int, moves: list[int]) -> tuple[float, float]:
        """``(bytes over the limit while o runs, bytes held more after it)``; what a `Rule` looks at first.

        Never too few, and at most a little too many: where the other readers of a tensor will run is not
        known yet, so its original is held here until all have run.
        """
        if self.rule.goal == "time":
            return 0.0, 0.0
        size, links = self.links.size, self.links
        moved = sum(size[t] for t in moves)
        need = self.held[k] + moved + sum(size[t] for t in links.outputs[o]) + links.temp[o]
        if self.rule.goal == "fit":
            return max(0.0, need - self.cluster.memory[k]), 0.0
        kept = sum(size[t] for t in links.outputs[o] if links.readers[t] or links.keep[t])
        freed = sum(size[t] for t in links.inputs[o] if self.left[t] == 1 and not links.keep[t])
        return max(0.0, need - self.peak), moved + kept - freed

    def commit(self, o: int, k: int, start: float, moves: list[int]) -> None:
        """Takes the transfers of ``moves`` and then ``o`` on ``k``."""
        links = self.links
        moved = sum(links.size[t] for t in (*moves, *links.outputs[o]))
        self.peak = max(self.peak, self.held[k] + moved + links.temp[o])
        for t in moves:
            h = self.place[links.producer[t]]
            self.copied[t, k] = 0.0
            self.held[k] += links.size[t]
            if self.blocking:
                self._transfer(t, h, k)
        self.place[o] = k
        self.finish[o] = self.clock[k] = start + self.runtime[o][k]
        self.made[o] = len(self.slots)
        self.slots.append([o])
        self.devices[self.leader[o]] = [k]
        for t in links.outputs[o]:
            if links.readers[t] or links.keep[t]:
                self.held[k] += links.size[t]
        for t in links.inputs[o]:
            self.left[t] -= 1
            if self.left[t] == 0:
                self._free(t)

    def _transfer(self, t: int, h: int, k: int) -> None:
        event = transfer_event(self.graph, self.cluster, t, k)
        if self._rides(t, h, k):
            self.slots[self.meet[h][k]].append(event)
            return
        time = max(self.clock[h], self.clock[k]) + self.cost[t]
        self.clock[h] = self.clock[k] = time
        self.meet[h][k] = self.meet[k][h] = len(self.slots)
        self.slots.append([event])

    def _free(self, t: int) -> None:
        """All readers of ``t`` have run: every copy goes, and the original unless it is kept."""
        home = self.place[self.links.producer[t]]
        for k in range(len(self.clock)):
            if (t, k) in self.copied or (k == home and not self.links.keep[t]):
                self.held[k] -= self.links.size[t]


def list_schedule(graph: ComputationGraph, cluster: Cluster, rule: Rule) -> tuple[np.ndarray, np.ndarray]:
    """Takes op after op, each on the device that suits it best at that moment.

    In the blocking model every candidate is judged with the meetings that it would need. A transfer that
    costs nothing is put where its two devices last met, if the tensor existed then: nobody waits for it.

    Args:
      graph: The graph.
      cluster: The cluster.
      rule: What is best.

    Returns:
      ``(placement [N], events [M])``, as `regal_jax.plan.replay` takes them.
    """
    links = Links.of(graph)
    state = _State(graph, cluster, rule, links)
    waiting = [len(row) for row in links.before]
    # Where ranks tie (ops without runtime), a predecessor must still come first: hence the position.
    position = np.argsort(graph.topological_order).tolist()
    ready = [(-state.rank[o], position[o], o) for o, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    while ready:
        few = [heapq.heappop(ready) for _ in range(min(rule.look, len(ready)))]
        entry, k, start, moves = _choose(state, few)
        for other in few:
            if other is not entry:
                heapq.heappush(ready, other)
        state.commit(entry[2], k, start, moves)
        for v in links.after[entry[2]]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (-state.rank[v], position[v], v))
    return np.array(state.place), np.array([event for slot in state.slots for event in slot])


_Entry = tuple[float, int, int]
"""A ready op: ``(-rank, position, op)``."""


def _choose(state: _State, few: list[_Entry]) -> tuple[_Entry, int, float, list[int]]:
    """The best of ``few`` and its device, with when it would start and what must move for it."""
    rule = state.rule
    best_key = best = None
    for entry in few:
        o = entry[2]
        for k in state.devices[state.leader[o]]:
            start, waste, moves = state.evaluate(o, k)
            score = start + rule.waste * waste + rule.behind * state.clock[k] + rule.rank * entry[0]
            if rule.finish:
                score += state.runtime[o][k]
            key = (*state.pressure(o, k, moves), score, state.clock[k])
            if best_key is None or key < best_key:
                best_key, best = key, (entry, k, start, moves)
    if best is None:
        raise ValueError("list scheduling: no op is ready; is the graph empty?")
    return best
