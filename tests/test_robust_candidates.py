"""Candidates and their times: against the exact replay; what is refused; which schedules are the same."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph

from regal_jax.errors import ConfigError, GraphError, PlanError
from regal_jax.graph import Cluster, GraphBuilder, induced, without_residents
from regal_jax.plan import insert_transfers, replay
from regal_jax.robust import Candidates, RandomSchedules, start_times

TRANSFERS = ("free", "delay:latency=3,bandwidth=2", "blocking:latency=1,bandwidth=5")


def schedules(rng, graph, cluster, count):
    """Random schedules, without the code under test."""
    sequence = np.zeros((count, graph.num_ops), np.int64)
    for row in range(count):
        left, done = set(range(graph.num_ops)), []
        before = {o: set() for o in left}
        for u, v in [*zip(graph.edge_producer, graph.edge_op, strict=True)]:
            before[int(v)].add(int(u))
        for u, v in [*zip(graph.control_source, graph.control_target, strict=True)]:
            before[int(v)].add(int(u))
        while left:
            ready = sorted(o for o in left if not before[o] - set(done))
            done.append(ready[rng.integers(len(ready))])
            left.remove(done[-1])
        sequence[row] = done
    devices = rng.integers(cluster.num_devices, size=(count, graph.num_ops))
    return sequence, devices[:, graph.colocation_leader]


def chain(ops, name="chain"):
    builder = GraphBuilder(name)
    for i in range(ops):
        inputs = [f"op{i - 1}:0"] if i else []
        builder.add_op(f"op{i}", runtime=float(i + 1), inputs=inputs, outputs=[8])
    return builder.build()


def independent(ops):
    builder = GraphBuilder("independent")
    for i in range(ops):
        builder.add_op(f"op{i}", runtime=1.0)
    return builder.build()


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), ops=st.integers(1, 14), transfer=st.sampled_from(TRANSFERS))
def test_times_are_those_of_the_replay(seed, ops, transfer):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, ops, 3, constraints=False)
    cluster = Cluster.uniform(3, transfer=transfer)
    sequence, devices = schedules(rng, graph, cluster, 3)
    start, makespan = start_times(graph, cluster, sequence, devices)
    for i in range(3):
        line = replay(graph, cluster, devices[i], insert_transfers(graph, cluster, devices[i], sequence[i]))
        computes = line.port < 0
        assert makespan[i] == line.makespan
        assert (start[i, line.op[computes]] == line.start[computes]).all()


def test_links_that_differ_have_their_own_delays():
    graph = chain(2)
    latency = [[0, 1, 5], [1, 0, 1], [7, 1, 0]]
    cluster = Cluster([np.inf] * 3, "delay", latency=latency, bandwidth=4)
    sequence, devices = np.array([[0, 1]] * 3), np.array([[0, 2], [2, 0], [1, 1]])
    start, makespan = start_times(graph, cluster, sequence, devices)
    np.testing.assert_array_equal(start[:, 1], [1 + 5 + 2, 1 + 7 + 2, 1])
    np.testing.assert_array_equal(makespan, start[:, 1] + 2)


def test_no_candidates_have_no_times():
    graph, cluster = chain(3), Cluster.uniform(2, transfer="free")
    found = Candidates.of(graph, cluster, np.zeros((0, 3), int), np.zeros((0, 3), int))
    assert len(found) == len(found.best(5)) == len(found.distinct()) == 0
    assert found.diversity.ged == 0


@pytest.mark.parametrize(
    ("sequence", "devices", "message"),
    [
        ([[0, 1]], [[0, 0, 0]], r"sequence has shape \(1, 2\), expected \(C, 3\)"),
        ([0, 1, 2], [0, 0, 0], r"sequence has shape \(3,\)"),
        ([[0, 1, 2]] * 2, [[0, 0, 0]], "2 sequences but 1 rows"),
        ([[0.0, 1.0, 2.0]], [[0, 0, 0]], "of type float64"),
        ([[0, 1, -1]], [[0, 0, 0]], "-1 to 1"),
        ([[0, 1, 2**32]], [[0, 0, 0]], "4294967296"),
        ([[0, 1, 2], [0, 1, 1]], [[0, 0, 0]] * 2, "sequence 1 does not name every op once"),
        ([[0, 2, 1]], [[0, 0, 0]], "sequence 0 has op 'op2' before 'op1'"),
        ([[0, 1, 2]], [[0, 2, 0]], "op 'op1' on device 2; there are 2"),
    ],
)
def test_what_is_no_schedule_is_refused(sequence, devices, message):
    with pytest.raises(PlanError, match=message):
        Candidates.of(chain(3), Cluster.uniform(2, transfer="free"), np.array(sequence), np.array(devices))


def test_pins_and_groups_are_obeyed():
    builder = GraphBuilder("pinned")
    builder.add_op("a", runtime=1.0, allowed_devices=[1])
    builder.add_op("b", runtime=1.0, colocation_group="g")
    builder.add_op("c", runtime=1.0, colocation_group="g")
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    order = np.array([[0, 1, 2]])
    for devices, op in (([[0, 0, 0]], "'a'"), ([[1, 0, 1]], "'c'")):
        with pytest.raises(PlanError, match=op):
            Candidates.of(graph, cluster, order, np.array(devices))
    assert len(Candidates.of(graph, cluster, order, np.array([[1, 0, 0]]))) == 1


def everything(graph, devices):
    """Every sequence of independent ops on every device."""
    n = graph.num_ops
    pairs = list(
        itertools.product(itertools.permutations(range(n)), itertools.product(range(devices), repeat=n))
    )
    return np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])


def chains_of(sequence, devices, count):
    return tuple(tuple(o for o in sequence if devices[o] == k) for k in range(count))


def test_the_same_chains_are_the_same_schedule():
    graph = independent(3)
    sequence, devices = everything(graph, 2)
    lists = [chains_of(s, d, 2) for s, d in zip(sequence.tolist(), devices.tolist(), strict=True)]
    alike = Candidates.of(graph, Cluster.uniform(2, transfer="free"), sequence, devices)
    assert len(alike.distinct()) == len({frozenset(each) for each in lists})
    assert len(alike.best(len(alike))) == len(alike.distinct())
    other = Candidates.of(graph, Cluster([10, 20], "free"), sequence, devices)
    assert len(other.distinct()) == len(set(lists))
    blocking = Candidates.of(graph, Cluster.uniform(2, transfer="blocking"), sequence, devices)
    # Each sequence with each partition, whatever the numbering of the devices.
    assert len(blocking.distinct()) == len(sequence) // 2


def test_the_best_come_first_and_keep_their_plans():
    rng = np.random.default_rng(0)
    graph, cluster = (
        random_graph(rng, 12, 3, constraints=False),
        Cluster.uniform(3, transfer="delay:latency=2"),
    )
    found = Candidates.of(graph, cluster, *schedules(rng, graph, cluster, 40), "here")
    best = found.best(7)
    assert len(best) == 7
    np.testing.assert_array_equal(best.makespan, np.sort(found.makespan[found.distinct()])[:7])
    for i in range(7):
        plan = best.plan(i)
        plan.verify(graph)
        assert plan.makespan == best.makespan[i]
        assert plan.provenance["method"] == "here"
    for index in (7, -1, 1.5, True, "1", None):
        with pytest.raises(PlanError, match=f"no candidate {index!r}; there are 7, from 0"):
            best.plan(index)
    assert best.take(np.array([2, 0], np.uint8)).makespan.tolist() == best.makespan[[2, 0]].tolist()
    for index in ([7], [-1], ["a"], [0.5], [True], [[0], [0, 1]], [[0]], 3, None):
        with pytest.raises(PlanError, match=r"take got .*; give a list of whole numbers below 7"):
            best.take(index)
    for keep in (-1, 1.5, None):
        with pytest.raises(ConfigError, match="keep: must be a whole number of at least 0, got"):
            found.best(keep)


def test_equal_schedules_are_kept_where_that_is_asked_for():
    graph, cluster = chain(2), Cluster.uniform(2, transfer="free")
    found = Candidates.of(graph, cluster, np.array([[0, 1]] * 3), np.array([[0, 0], [1, 1], [0, 1]]))
    assert len(found.best(3, unique=False)) == 3
    assert found.best(3).devices.tolist() == [[0, 0], [0, 1]]


def test_plans_become_candidates_again():
    graph, cluster = chain(4), Cluster.uniform(2, transfer="blocking:latency=1")
    found = Candidates.of(
        graph, cluster, np.array([[0, 1, 2, 3]] * 2), np.array([[0, 0, 1, 1], [0, 1, 0, 1]])
    )
    again = Candidates.of_plans(graph, [found.plan(0), found.plan(1)])
    np.testing.assert_array_equal(again.makespan, found.makespan)
    np.testing.assert_array_equal(again.devices, found.devices)
    with pytest.raises(PlanError, match="no plans"):
        Candidates.of_plans(graph, [])
    with pytest.raises(PlanError, match="not for 'other'"):
        Candidates.of_plans(chain(3, "other"), [found.plan(0)])


def test_some_ops_are_a_graph():
    graph = random_graph(np.random.default_rng(3), 15, 2, residents=0.0)
    keep = np.random.default_rng(4).random(15) < 0.6
    part = induced(graph, keep)
    names = set(np.array(graph.op_names)[keep])
    assert set(part.op_names) == names

    def edges(g):
        return {(g.tensor_name(t), g.op_names[o]) for t, o in zip(g.edge_tensor, g.edge_op, strict=True)}, {
            (g.op_names[u], g.op_names[v]) for u, v in zip(g.control_source, g.control_target, strict=True)
        }

    data, control = edges(graph)
    wanted = {(t, o) for t, o in data if {t.rpartition(":")[0], o} <= names}
    assert edges(part) == (wanted, {pair for pair in control if set(pair) <= names})
    assert induced(graph, np.ones(15, bool)).content_hash == graph.content_hash
    for wrong in (np.zeros(15, bool), np.ones(14, bool)):
        with pytest.raises(GraphError, match="ops has shape"):
            induced(graph, wrong)


def test_residents_and_their_start_can_be_left_out():
    builder = GraphBuilder("resident")
    builder.add_op("w", outputs=[8], resident=True)
    builder.add_op("start", kind="start", control_inputs=["w"])
    builder.add_op("a", runtime=1.0, inputs=["w:0"], outputs=[4], control_inputs=["start"])
    builder.add_op("b", runtime=1.0, inputs=["a:0"])
    part = without_residents(builder.build())
    assert part.op_names == ("a", "b")
    assert len(part.edge_op) == 1
    assert not part.resident.any()


def test_random_schedules_are_every_schedule():
    graph = independent(3)
    cluster = Cluster.uniform(2, transfer="free")
    found = Candidates.of(graph, cluster, *RandomSchedules().propose(graph, cluster, 2000, jax.random.key(0)))
    pairs = {
        (tuple(s), tuple(d)) for s, d in zip(found.sequence.tolist(), found.devices.tolist(), strict=True)
    }
    assert len(pairs) == 6 * 8
