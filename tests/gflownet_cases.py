"""Graphs whose schedules can be enumerated, flows over them in plain Python, and policies that are tables."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.gflownet.inputs import make_schedule_inputs
from regal_jax.gflownet.networks import Scores
from regal_jax.graph import Cluster, GraphBuilder

__all__ = [
    "FREE2",
    "FREE4",
    "Flow",
    "Table",
    "bare",
    "chain",
    "fork",
    "free",
    "inputs_of",
    "seeds",
    "states_of",
]


def free(devices):
    return Cluster.uniform(devices, transfer="free")


FREE2, FREE4 = free(2), free(4)


def bare(runtimes, edges=(), name="bare"):
    builder = GraphBuilder(name)
    readers = {v: [u for u, w in edges if w == v] for v in range(len(runtimes))}
    for o, runtime in enumerate(runtimes):
        builder.add_op(f"op{o}", runtime=runtime, outputs=[8], inputs=[(u, 0) for u in readers[o]])
    return builder.build()


def fork():
    """Four ops: 0 and 1 precede 2, and 3 has no edge."""
    return bare([0.7, 0.4, 0.5, 0.9], [(0, 2), (1, 2)])


def chain(count):
    return bare([0.5 + 0.1 * o for o in range(count)], [(o, o + 1) for o in range(count - 1)])


def seeds(number, count):
    return jax.random.bits(jax.random.key(number), (count, 2), jnp.uint32)


class Flow:
    """Every state of a graph as chains, and the exact flow of a reward, by dynamic programming."""

    def __init__(self, graph, devices, sigma):
        self.graph, self.devices, self.sigma = graph, devices, sigma
        before = [set() for _ in range(graph.num_ops)]
        for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
            before[reader].add(int(graph.tensor_op[tensor]))
        self.before = before
        self.root = ((),) * devices
        self.layers = [[self.root]]
        for _ in range(graph.num_ops):
            reached = {child for state in self.layers[-1] for _, child in self.children(state)}
            self.layers.append(sorted(reached))

    def children(self, state):
        done = set(itertools.chain(*state))
        for o in range(self.graph.num_ops):
            if o not in done and self.before[o] <= done:
                for k in range(self.devices):
                    yield (o, k), (*state[:k], (*state[k], o), *state[k + 1 :])

    def parents(self, state):
        done = set(itertools.chain(*state))
        for k, ops in enumerate(state):
            if ops and not any(ops[-1] in self.before[o] for o in done):
                yield ops[-1], (*state[:k], ops[:-1], *state[k + 1 :])

    def makespan(self, state):
        finish = {}
        left = [list(ops) for ops in state]
        clocks = [0.0] * self.devices
        while any(left):
            for k, ops in enumerate(left):
                if ops and self.before[ops[0]] <= finish.keys():
                    o = ops.pop(0)
                    start = max([clocks[k], *(finish[u] for u in self.before[o])])
                    clocks[k] = finish[o] = start + float(self.graph.runtime[o])
        return max(clocks)

    @functools.cached_property
    def log_reward(self):
        work = float(self.graph.runtime.sum())
        spans = {state: self.makespan(state) for state in self.layers[-1]}
        # No schedule is faster than another where no op takes time.
        return {s: ((work / t if t else 1.0) - self.devices) / self.sigma for s, t in spans.items()}

    @property
    def log_partition(self):
        return math.log(sum(math.exp(r) for r in self.log_reward.values()))

    @functools.cached_property
    def state_flow(self):
        """The flow through a state, with uniform backward probabilities."""
        flow = {s: math.exp(r) for s, r in self.log_reward.items()}
        for layer in reversed(self.layers[1:]):
            for state in layer:
                parents = list(self.parents(state))
                for _, parent in parents:
                    flow[parent] = flow.get(parent, 0) + flow[state] / len(parents)
        return flow

    def edge_flow(self, state):
        """The flow of each action of a state."""
        return {a: self.state_flow[c] / len(list(self.parents(c))) for a, c in self.children(state)}

    def terminal(self, log_probs):
        """Probability of each complete schedule under ``state -> {action: log-probability}``."""
        mass = {self.root: 1.0}
        for layer in self.layers[:-1]:
            for state in layer:
                given = log_probs(state)
                for action, child in self.children(state):
                    mass[child] = mass.get(child, 0) + mass[state] * math.exp(given[action])
        return {s: mass[s] for s in self.layers[-1]}

    def variation(self, log_probs):
        """Total variation distance between the distribution of schedules and the reward."""
        found, z = self.terminal(log_probs), math.exp(self.log_partition)
        return 0.5 * sum(abs(found[s] - math.exp(self.log_reward[s]) / z) for s in found)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Table:
    """A policy with a row for every state: logits ``[states, N * D]``, ``[states, N]``, values ``[states]``.

    A state is numbered by the device and the previous op of each op.
    """

    forward: jax.Array
    backward: jax.Array
    value: jax.Array

    @classmethod
    def zeros(cls, ops, devices):
        rows = ((ops + 1) * (devices + 1)) ** ops
        return cls(jnp.zeros((rows, ops * devices)), jnp.zeros((rows, ops)), jnp.zeros(rows))

    def __call__(self, inputs, states, log_sigma):
        n, d = inputs.shape
        number = states_of(states.device, states.previous, n, d)
        scores = self.forward[number].reshape(-1, n, d)
        return Scores(scores, self.backward[number], self.value[number])

    @classmethod
    def exact(cls, flow, ops):
        """The table of a `Flow` with uniform backward probabilities, padded to a number of ops."""
        n, d = ops, flow.devices
        table = np.zeros((((n + 1) * (d + 1)) ** n, n * d), np.float32)
        for state in itertools.chain(*flow.layers[:-1]):
            for (o, k), f in flow.edge_flow(state).items():
                table[cls.number(state, n), o * d + k] = math.log(f)
        zeros = cls.zeros(n, d)
        return dataclasses.replace(zeros, forward=jnp.asarray(table))

    @staticmethod
    def number(state, ops):
        """The number of a state that is given as chains."""
        device, previous = np.full(ops, -1, np.int32), np.full(ops, ops, np.int32)
        for k, members in enumerate(state):
            for i, o in enumerate(members):
                device[o], previous[o] = k, members[i - 1] if i else ops
        return int(states_of(device[None], previous[None], ops, len(state))[0])

    def log_probs(self, flow):
        """``state -> {action: log-probability}``, for `Flow.terminal`."""
        forward, (n, d) = np.asarray(self.forward, np.float64), (self.backward.shape[1], flow.devices)

        def given(state):
            row = forward[self.number(state, n)]
            logits = {(o, k): row[o * d + k] for (o, k), _ in flow.children(state)}
            total = math.log(sum(math.exp(x) for x in logits.values()))
            return {action: x - total for action, x in logits.items()}

        return given


def states_of(device, previous, ops, devices):
    """``[P]`` int32 numbers of states, different for different ones."""
    base = (ops + 1) * (devices + 1)
    weights = np.array([base**i for i in range(ops)], np.int32)
    digits = (device + 1) * (ops + 1) + previous
    return (digits * weights[None]).sum(axis=1, dtype=np.int32)


def inputs_of(graph, cluster, **sizes):
    return jax.tree.map(jnp.asarray, make_schedule_inputs(graph, cluster, **sizes))
