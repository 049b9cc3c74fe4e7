"""Schedule generation that looks at memory, against a decoder in plain Python, the replay and brute force."""

import dataclasses
import functools
import json
import math
import types

import chex
import jax
import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances
from test_generate import SEARCHES, check_replay, random_genes, small_problem

from benchmarks.__main__ import main as benchmarks
from regal_jax import Brkga, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.encoding import encode_schedule, preferences
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import Objective, lower_bound, replay
from regal_jax.problem import Bucket, make_problem
from regal_jax.simulate import generate_schedules
from regal_jax.solve import ENCODINGS, fitness

PEAK, TIME = Objective.PEAK_MEMORY, Objective.MAKESPAN
seeds = st.integers(0, 2**32 - 1)


def generated(problem, genes, implementation, objective):
    return generate_schedules(
        problem,
        preferences(problem, genes, objective),
        objective=objective,
        implementation=implementation,
        positions=True,
    )


HOST, XLA = (
    {goal: jax.jit(functools.partial(generated, implementation=name, objective=goal)) for goal in Objective}
    for name in ("host", "xla")
)


WISHES = jax.jit(preferences, static_argnums=2)


class Reference:
    """One candidate, decoded as docs/design.md says, with the bytes of all moments in lists."""

    def __init__(self, problem, wishes, objective):
        arrays = {name: np.asarray(leaf)[0] for name, leaf in vars(problem).items() if hasattr(leaf, "shape")}
        self.p, self.w, self.objective = types.SimpleNamespace(**arrays), wishes, objective
        self.blocking, self.limited = problem.blocking, objective is PEAK or not problem.unlimited
        self.d, self.n = self.p.runtime.shape[1], int(self.p.num_ops)
        self.before, self.inputs, self.outputs = ([[] for _ in range(self.n)] for _ in range(3))
        self.left = np.zeros(len(self.p.size), int)
        for o in range(self.n):
            for j in range(*self.p.op_row[o]):
                reader, tensor = int(self.p.successor[j]), int(self.p.via[j])
                self.before[reader].append(o)
                if tensor < len(self.p.size):
                    self.inputs[reader].append(tensor)
                    self.left[tensor] += 1
        for t in range(int(self.p.num_tensors)):
            self.outputs[int(self.p.tensor_op[t])].append(t)
        self.read = self.left > 0
        self.clock = [np.float32(0)] * self.d
        self.held, self.history = [0] * self.d, [[0] for _ in range(self.d)]
        self.place, self.bound, self.finish, self.made = {}, {}, {}, {}
        self.sent, self.meet, self.mark, self.slot = {}, {}, {}, 0

    def home(self, t):
        return self.place[int(self.p.tensor_op[t])]

    def lacking(self, o, k):
        return [t for t in self.inputs[o] if self.home(t) != k and (t, k) not in self.sent]

    def cost(self, t, k):
        return self.p.transfer_time[t, self.p.link[self.home(t), k]]

    def release(self, o):
        return max((self.finish[u] for u in self.before[o]), default=np.float32(0))

    def needs(self, o, k):
        size, resident = self.p.size, any(self.p.resident[t] for t in self.outputs[o])
        out = sum(int(size[t]) for t in self.outputs[o])
        growth = sum(int(size[t]) for t in self.outputs[o] if self.read[t] or self.p.keep[t])
        copies = sum(int(size[t]) for t in self.lacking(o, k))
        growth += sum(int(size[t]) for t in self.lacking(o, k) if self.left[t] > 1)
        growth -= sum(int(size[t]) for t in self.inputs[o] if self.left[t] == 1 and not self.p.keep[t])
        before = max(self.history[k]) if resident else self.held[k] + copies
        return before + out + int(self.p.temp[o]), copies, growth, resident

    def rides(self, o, t, k):
        pair = self.home(t), k
        if self.cost(t, k) > 0 or self.made[int(self.p.tensor_op[t])] >= self.meet.get(pair, -1):
            return False
        if not self.limited:
            return True
        most = max(self.history[k][self.mark[pair] :])
        return self.objective is TIME and most + self.needs(o, k)[1] <= self.p.capacity[k]

    def start(self, o, k):
        times = [self.clock[k], self.release(o)]
        for t in self.inputs[o]:
            if not self.blocking and self.home(t) != k:
                times.append(self.finish[int(self.p.tensor_op[t])] + self.cost(t, k))
        if self.blocking:
            for t in self.lacking(o, k):
                if not self.rides(o, t, k):
                    times.append(max(self.clock[k], self.clock[self.home(t)]) + self.cost(t, k))
        return max(times)

    def moves(self, o, k):
        """Clock of the device after the transfers, and times that the others lose."""
        clock, lost = list(self.clock), np.float32(0)
        for t in self.in_turn(o):
            if t in self.lacking(o, k) and not self.rides(o, t, k):
                h = self.home(t)
                after = max(clock[k], clock[h]) + self.cost(t, k)
                lost += after - clock[h]
                clock[k] = clock[h] = after
        return clock[k], lost

    def in_turn(self, o):
        return sorted(self.inputs[o], key=lambda t: (self.clock[self.home(t)], t))

    def excess(self, o, k):
        return max(0, self.needs(o, k)[0] - int(self.p.capacity[k])) if self.limited else 0

    def peak(self, o, k):
        need, _, growth, _ = self.needs(o, k)
        highest = np.float32(max(need, *map(max, self.history)))
        return highest + self.w.waste * np.float32(growth) + self.w.behind * np.float32(self.held[k])

    def may(self, o):
        bound = self.bound.get(int(self.p.leader[o]))
        return [k for k in range(self.d) if self.p.allowed[o, k] and bound in (None, k)]

    def choose(self):
        ready = [
            o for o in range(self.n) if o not in self.place and all(u in self.place for u in self.before[o])
        ]
        look = self.peak if self.objective is PEAK else self.start

        def first(o):
            excess, cost = min(
                (self.excess(o, k), look(o, k) + self.w.early * self.w.price[o, k]) for k in self.may(o)
            )
            return excess, cost - self.w.urgency[o], o

        return min(ready, key=first)

    def last(self, o, k):
        if self.objective is PEAK:
            return self.excess(o, k), self.peak(o, k) + self.w.price[o, k], k
        begin, lost = self.start(o, k), np.float32(0)
        if self.blocking:
            begin, lost = self.moves(o, k)
            begin = max(begin, self.release(o))
        cost = begin + self.p.runtime[o, k] + self.w.price[o, k] + self.w.waste * lost
        return self.excess(o, k), cost + self.w.behind * self.clock[k], k

    def send(self, o, k):
        lacking, riding = self.lacking(o, k), [t for t in self.lacking(o, k) if self.rides(o, t, k)]
        for t in riding:
            pair, size = (self.home(t), k), int(self.p.size[t])
            at = self.mark.get(pair, 0)
            self.history[k][at:] = [number + size for number in self.history[k][at:]]
            self.held[k] += size
            self.sent[t, k] = 2 * self.meet[pair] + 1
        for t in self.in_turn(o):
            if t not in lacking or t in riding:
                continue
            h = self.home(t)
            after = max(self.clock[k], self.clock[h]) + self.cost(t, k)
            self.clock[k] = self.clock[h] = after
            self.sent[t, k] = 2 * self.slot
            self.held[k] += int(self.p.size[t])
            for a, b in ((h, k), (k, h)):
                self.meet[a, b] = self.slot
                self.history[b].append(self.held[b])
                self.mark[a, b] = len(self.history[b]) - 1
            self.slot += 1

    def take(self, o, k):
        need, copies, _, resident = self.needs(o, k)
        begin = self.start(o, k)
        if self.blocking:
            self.send(o, k)
            begin = max(self.clock[k], self.release(o))
        else:
            for t in self.lacking(o, k):
                self.sent[t, k] = 0
            self.held[k] += copies
        self.clock[k] = self.finish[o] = begin + self.p.runtime[o, k]
        self.place[o] = self.bound[int(self.p.leader[o])] = k
        self.made[o], self.slot = self.slot, self.slot + 1
        if resident:
            out = sum(int(self.p.size[t]) for t in self.outputs[o])
            self.history[k] = [number + out for number in self.history[k]]
        else:
            self.history[k].append(need)
        self.held[k] += sum(int(self.p.size[t]) for t in self.outputs[o] if self.read[t] or self.p.keep[t])
        for t in self.inputs[o]:
            self.left[t] -= 1
            if self.left[t] == 0:
                for other in range(self.d):
                    original = other == self.home(t) and not self.p.keep[t]
                    self.held[other] -= int(self.p.size[t]) * (original or (t, other) in self.sent)

    def run(self):
        for _ in range(self.n):
            o = self.choose()
            self.take(o, min(self.may(o), key=lambda k: self.last(o, k)))
        events = [(2 * slot, o) for o, slot in self.made.items()]
        if self.blocking:
            events += [(key, len(self.p.temp) + t * self.d + k) for (t, k), key in self.sent.items()]
        return [self.place[o] for o in range(self.n)], [event for _, event in sorted(events)]

    @property
    def makespan(self):
        return max(self.clock)

    @property
    def bounds(self):
        """The most that each device holds, as far as the decoding knows."""
        return [max(moments) for moments in self.history]


def limited(problem, share):
    """Capacities that are a share of all bytes, different ones for different devices."""
    d = problem.num_devices
    capacity = np.asarray(problem.total_size)[:, None] * share * (1 + np.arange(d)) / d
    return dataclasses.replace(problem, capacity=capacity.astype(np.int32), unlimited=False)


def check_reference(problem, genes, objective, placement, result):
    wishes = WISHES(problem, genes, objective)
    for p in range(2):
        mine = type(wishes)(*(np.asarray(leaf)[0, p] for leaf in wishes))
        reference = Reference(problem, mine, objective)
        places, events = reference.run()
        np.testing.assert_array_equal(placement[0, p, : len(places)], places)
        position = np.concatenate(
            [np.asarray(result.op_position[0, p]), np.asarray(result.transfer_position[0, p]).reshape(-1)]
        )
        there = np.flatnonzero(position >= 0)
        np.testing.assert_array_equal(there[np.argsort(position[there])], events)
        assert float(result.makespan[0, p]) == reference.makespan
        if objective is PEAK or not problem.unlimited:
            assert (np.asarray(result.peak_memory[0, p]) <= reference.bounds).all()


@pytest.mark.parametrize("devices", [(4,), pytest.param((1, 2), marks=pytest.mark.slow)])
def test_it_decodes_as_the_design_says(devices):
    @settings(max_examples=60)
    @given(instances(devices=devices), seeds, st.sampled_from(Objective), st.floats(0, 1), st.booleans())
    def decodes(instance, seed, objective, share, coarse):
        graph, cluster = instance
        problem = limited(small_problem(graph, cluster), share)
        genes = random_genes(problem, np.random.default_rng(seed), coarse=coarse)
        placement, result = HOST[objective](problem, genes)
        check_replay(graph, cluster, placement, result)
        check_reference(problem, genes, objective, placement, result)

    decodes()


@pytest.mark.parametrize(
    ("objective", "transfer"),
    [
        (TIME, "blocking"),
        (PEAK, "delay"),
        pytest.param(TIME, "delay", marks=pytest.mark.slow),
        pytest.param(PEAK, "blocking", marks=pytest.mark.slow),
    ],
)
def test_the_implementations_agree(objective, transfer):
    @settings(max_examples=40)
    @given(instances(devices=(1, 2, 4), transfers=(transfer,)), seeds, st.floats(0, 1), st.booleans())
    def agree(instance, seed, share, coarse):
        problem = limited(small_problem(*instance), share)
        genes = random_genes(problem, np.random.default_rng(seed), coarse=coarse)
        chex.assert_trees_all_equal(XLA[objective](problem, genes), HOST[objective](problem, genes))

    agree()


@pytest.mark.parametrize(
    "transfers", [("blocking",), pytest.param(("delay", "free"), marks=pytest.mark.slow)]
)
def test_capacities_that_cannot_bind_change_nothing(transfers):
    @given(instances(devices=(2,), transfers=transfers), seeds)
    def unchanged(instance, seed):
        graph, cluster = instance
        problem = limited(small_problem(graph, cluster), 4.0)
        genes = random_genes(problem, np.random.default_rng(seed))
        free = dataclasses.replace(problem, unlimited=True)
        chex.assert_trees_all_equal(HOST[TIME](problem, genes), HOST[TIME](free, genes))

    unchanged()


def test_a_choice_that_overflows_comes_last():
    """Two devices of 10 and 100 bytes; by hand."""
    builder = GraphBuilder("tight")
    builder.add_op("big", runtime=1, outputs=[50])
    builder.add_op("small", runtime=1, outputs=[8])
    builder.add_op("end", runtime=1, inputs=["big:0", "small:0"], outputs=[1])
    graph = builder.build()
    for memory, expected in (([math.inf, 200], [0, 1, 0]), ([10, 100], [1, 0, 1])):
        cluster = Cluster(memory=memory, transfer="free")
        problem = make_problem([graph], cluster, Bucket.exact(graph))
        genes = {
            name: np.zeros((1, 1, *leaf.shape[2:]), np.uint16)
            for name, leaf in random_genes(problem, np.random.default_rng(0)).items()
        }
        # Without limits both begin at once, the first on device 0. With them, only device 1 holds `big`.
        placement, result = HOST[TIME](problem, genes)
        np.testing.assert_array_equal(placement[0, 0], expected)
        assert float(result.makespan[0, 0]) == 2


@settings(max_examples=15)
@given(instances(max_ops=5, devices=(2,), transfers=("free", "delay"), constraints=False), seeds)
def test_searches_find_plans_that_fit_where_there_are_any(instance, seed):
    graph, cluster = instance
    best = brute_force(graph, dataclasses.replace(cluster, memory=(math.inf,) * 2), objective="peak-memory")
    tight = dataclasses.replace(cluster, memory=(float(max(best.peak_memory)),) * 2)
    plan = optimize(graph, tight, method=SEARCH, evaluations=400, seed=seed, warm_start=False, progress=False)
    assert plan.feasible


SEARCH = Brkga(population=20, elites=4, mutants=3, encoding="schedule")


@pytest.mark.parametrize(
    "method",
    # test_generate.py has others by default, for the makespan.
    [SEARCHES[0], *(pytest.param(method, marks=pytest.mark.slow) for method in SEARCHES[1:])],
    ids=lambda method: method.name,
)
def test_searches_for_peak_memory(method):
    """One op and several, company, repetition, warm starts."""
    graphs = [generate("chain", 1, seed=0), generate("layered", 24, seed=2)]
    cluster = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
    options = {"method": method, "objective": "peak-memory", "evaluations": 60, "seed": 3, "progress": False}
    plans = optimize_many(graphs, cluster, **options, warm_start=False)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)
        again = replay(graph, cluster, plan.placement, plan.event_ids(graph))
        assert max(again.peak_memory) == plan.objective_value
        alone = optimize(graph, cluster, **options, warm_start=False)
        np.testing.assert_array_equal(alone.timeline.start, plan.timeline.start)
    given = optimize(
        graphs[1], cluster, method="peak-search", objective="peak-memory", evaluations=300, seed=7
    )
    assert optimize(graphs[1], cluster, **options, warm_start=given).sort_key <= given.sort_key


def test_the_benchmark(tmp_path, capsys):
    out = tmp_path / "table.json"
    options = ["--graphs", "1", "--most-ops", "60", "--devices", "2", "--evaluations", "60"]
    assert benchmarks(["stages", "--aims", "peak-memory", *options, "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["staged"] > 0
    assert row["staged_overflow"] == row["control_overflow"] == 0
    assert "over auto" in capsys.readouterr().out


def test_an_objective_may_be_its_name():
    graph, cluster = generate("layered", 9, seed=4), Cluster.uniform(2, transfer="blocking:latency=2us")
    problem = small_problem(graph, cluster)
    genes = random_genes(problem, np.random.default_rng(1))
    encoding = ENCODINGS["schedule"]
    for call in (
        lambda objective: generated(problem, genes, "xla", objective),
        lambda objective: fitness(problem, genes, objective, implementation="xla", encoding=encoding),
    ):
        programs = {
            str(jax.make_jaxpr(functools.partial(call, goal))())
            for goal in (PEAK, "peak-memory", TIME, "makespan")
        }
        assert len(programs) == 2
    # The bound is kept with the graph, under either name.
    fresh = generate("layered", 9, seed=4)
    assert [lower_bound(fresh, cluster, str(objective)) for objective in Objective] == [
        lower_bound(graph, cluster, objective) for objective in Objective
    ]
    refused = (
        lambda: generated(problem, genes, "xla", "peak"),
        lambda: lower_bound(graph, cluster, "peak"),
        lambda: encode_schedule(graph, cluster, np.zeros(9, int), np.arange(9), objective="peak"),
    )
    for call in refused:
        with pytest.raises(ConfigError, match="objective: unknown 'peak'"):
            call()
