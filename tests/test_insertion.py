"""Insertion moves: their schedules are those of the replay, and no place is better than the one taken."""

import contextlib
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances, random_graph

from regal_jax import Cluster, GraphBuilder
from regal_jax.errors import PlanError
from regal_jax.graph import ComputationGraph, TransferModel, runtime_matrix, transfer_times
from regal_jax.heuristics import InsertionPolicy
from regal_jax.heuristics.insertion import Insertion, Schedule
from regal_jax.heuristics.insertion_features import MOVE_FEATURES, PLACE_FEATURES
from regal_jax.heuristics.insertion_kernel import DRAWS, MOST_CANDIDATES, SEEN
from regal_jax.heuristics.insertion_memory import fits_there
from regal_jax.heuristics.insertion_policy import default_insertion_policy
from regal_jax.heuristics.list_scheduling import TIME_RULES, kernel_arguments, list_schedule
from regal_jax.heuristics.schedule_peaks import make_room
from regal_jax.plan import insert_transfers, replay
from regal_jax.runtime.compiling import for_loops

seeds = st.integers(0, 2**32 - 1)
most_ops = st.sampled_from([1, 2, 4, 16])


class Given:
    """Random numbers that a test chooses, for one move."""

    def __init__(self, *numbers: float) -> None:
        self._row = np.full((1, DRAWS), 0.5)
        self._row[0, : len(numbers)] = numbers

    def random(self, shape: tuple[int, int]) -> np.ndarray:
        return np.broadcast_to(self._row, shape)


@st.composite
def policies(draw: st.DrawFn) -> InsertionPolicy:
    """The one of the package, none, or one with random weights."""
    if draw(st.booleans()):
        return draw(
            st.sampled_from([InsertionPolicy(), InsertionPolicy(candidates=1), default_insertion_policy()])
        )
    random = np.random.default_rng(draw(seeds))
    move, place = random.normal(size=len(MOVE_FEATURES) + 1), random.normal(size=len(PLACE_FEATURES) + 1)
    return InsertionPolicy(tuple(move), tuple(place), draw(st.integers(1, MOST_CANDIDATES)))


def with_memory(cluster: Cluster, memory: list[float]) -> Cluster:
    return Cluster(memory, cluster.transfer, latency=cluster.latency, bandwidth=cluster.bandwidth)


def begin(
    graph: ComputationGraph,
    cluster: Cluster,
    schedule: tuple[np.ndarray, np.ndarray],
    random: Any,
    policy: InsertionPolicy | None = None,
    *,
    ops: int = 1,
    describe: bool = False,
) -> Insertion:
    layout, state = kernel_arguments(graph, cluster)
    space = map(for_loops, (layout, make_room(layout, state)))
    insertion = Insertion(graph, *space, random, policy, ops=ops, describe=describe)
    insertion.begin(Schedule(*schedule, replay(graph, cluster, *schedule).makespan))
    return insertion


def scheduled(
    graph: ComputationGraph, cluster: Cluster, rng: np.random.Generator, *, limited: bool
) -> tuple[Cluster, tuple[np.ndarray, np.ndarray]]:
    """A random list schedule, and a cluster that it fits, with little room or much if memory is limited."""
    price = rng.random((graph.num_ops, cluster.num_devices)) * graph.runtime.max()
    schedule = list_schedule(graph, cluster, TIME_RULES[rng.integers(len(TIME_RULES))], price)
    peaks = replay(graph, cluster, *schedule).peak_memory
    memory = [float(peak) * float(rng.choice([1, 1.3])) if limited else math.inf for peak in peaks]
    return with_memory(cluster, memory), schedule


@settings(max_examples=100)
@given(instance=instances(max_ops=20), seed=seeds, limited=st.booleans(), policy=policies(), ops=most_ops)
def test_schedules_are_those_of_the_replay_and_never_longer(
    instance: tuple[ComputationGraph, Cluster], seed: int, limited: bool, policy: InsertionPolicy, ops: int
) -> None:
    graph, rng = instance[0], np.random.default_rng(seed)
    cluster, schedule = scheduled(*instance, rng, limited=limited)
    insertion = begin(graph, cluster, schedule, rng, policy, ops=ops)
    before = insertion.makespan
    for _ in range(20):
        used, made = insertion.run(1, 1, -math.inf)
        assert used >= 1
        assert made == ([(1, insertion.makespan)] if insertion.makespan < before else [])
        best = insertion.best
        assert best is not None
        assert best.makespan == insertion.makespan <= before
        timeline = replay(graph, cluster, best.placement, best.events)
        assert timeline.makespan == pytest.approx(best.makespan, rel=1e-12)
        if best.makespan < before:
            assert timeline.makespan == best.makespan
        assert (timeline.peak_memory <= np.array(cluster.memory)).all()
        before = best.makespan


def times_of(graph: ComputationGraph, cluster: Cluster, schedule: Schedule) -> np.ndarray:
    """The time of each event of a schedule."""
    n, place = graph.num_ops, schedule.placement
    runtime, cost = runtime_matrix(graph, cluster), transfer_times(graph, cluster)
    times = []
    for event in schedule.events:
        t, k = divmod(int(event) - n, cluster.num_devices)
        if event < n:
            times.append(runtime[event, place[event]])
        else:
            times.append(cost[t, cluster.link_index[place[graph.tensor_op[t]], k]])
    return np.array(times)


@settings(max_examples=100)
@given(
    instance=instances(max_ops=20),
    seed=seeds,
    limited=st.booleans(),
    deviation=st.sampled_from([0.1, 1.0, 10.0]),
    policy=policies(),
    ops=most_ops,
)
def test_schedules_of_a_walk_are_those_of_the_replay_and_at_most_a_little_longer(
    instance: tuple[ComputationGraph, Cluster],
    seed: int,
    limited: bool,
    deviation: float,
    policy: InsertionPolicy,
    ops: int,
) -> None:
    graph, rng = instance[0], np.random.default_rng(seed)
    cluster, schedule = scheduled(*instance, rng, limited=limited)
    insertion = begin(graph, cluster, schedule, rng, policy, ops=ops)
    insertion.run(1, 1, -math.inf)
    for _ in range(30):
        before, known = insertion.makespan, insertion.best
        assert known is not None
        insertion.run(3, 3, -math.inf, deviation)
        now, best, least = insertion._now, insertion.best, known.makespan
        most = least + deviation * times_of(graph, cluster, known).mean()
        assert insertion.makespan <= max(before, most) * (1 + 1e-9)
        placement, events = np.array(now.home), np.array(now.event)[: int(now.counts[0])]
        timeline = replay(graph, cluster, placement, events)
        assert timeline.makespan == pytest.approx(insertion.makespan, rel=1e-9)
        assert (timeline.peak_memory <= np.array(cluster.memory)).all()
        assert best is not None
        assert best.makespan == min(least, insertion.makespan)
        assert replay(graph, cluster, best.placement, best.events).makespan == pytest.approx(best.makespan)


@settings(max_examples=60)
@given(
    instance=instances(max_ops=25),
    seed=seeds,
    limited=st.booleans(),
    moves=st.integers(2, 200),
    policy=policies(),
    ops=most_ops,
)
def test_what_is_known_of_the_schedule_before_changes_nothing(
    instance: tuple[ComputationGraph, Cluster],
    seed: int,
    limited: bool,
    moves: int,
    policy: InsertionPolicy,
    ops: int,
) -> None:
    cluster, schedule = scheduled(*instance, np.random.default_rng(seed), limited=limited)
    once, one_by_one = (
        begin(instance[0], cluster, schedule, np.random.default_rng(seed), policy, ops=ops) for _ in range(2)
    )
    used, found = once.run(moves, 10**9, -math.inf)
    numbers = [one_by_one.run(1, 1, -math.inf)[0] for _ in range(moves)]
    assert used == sum(numbers)
    assert once.makespan == one_by_one.makespan
    assert not found or found[-1][1] == once.makespan
    count = int(once._now.counts[0])
    assert count == one_by_one._now.counts[0]
    for name in ("home", "place", "sender", "receiver", "takes", "uses", "tries", "since"):
        np.testing.assert_array_equal(getattr(once._now, name), getattr(one_by_one._now, name))
    np.testing.assert_array_equal(once._now.event[:count], one_by_one._now.event[:count])


@settings(max_examples=200)
@given(
    instance=instances(max_ops=25),
    seed=seeds,
    limited=st.booleans(),
    moves=st.integers(1, 100),
    deviation=st.sampled_from([0.0, 1.0]),
    policy=policies(),
    ops=most_ops,
)
def test_what_is_known_is_what_passes_over_the_whole_schedule_find(
    instance: tuple[ComputationGraph, Cluster],
    seed: int,
    limited: bool,
    moves: int,
    deviation: float,
    policy: InsertionPolicy,
    ops: int,
) -> None:
    cluster, schedule = scheduled(*instance, np.random.default_rng(seed), limited=limited)
    insertion = begin(instance[0], cluster, schedule, np.random.default_rng(seed), policy, ops=ops)
    insertion.run(1, 1, -math.inf)
    insertion.run(moves, 10**9, -math.inf, deviation)

    def known() -> list[list[float]]:
        work, usage, count = insertion._work, insertion._usage, int(insertion._now.counts[0])
        size = count * cluster.num_devices
        passes = [list(each)[: size + cluster.num_devices] for each in (work.clock, work.clocks, work.rest)]
        assert passes[0] == passes[1]
        return [*passes, *map(list, (work.finish, work.tail)), list(usage.held)[: size * limited]]

    before = known()
    insertion.run(1, 0, -math.inf)
    assert known() == before
    assert not any(insertion._work.stale)
    assert not any(insertion._usage.added)


def test_an_op_is_told_of_a_successor_that_has_moved_and_takes_as_long() -> None:
    builder = GraphBuilder("ties")
    builder.add_op("p", runtime=1.0, outputs=[10])
    builder.add_op("m", runtime=0.0, inputs=["p:0"], outputs=[10])
    for name, runtime in (("a", 100.0), ("b", 100.0), ("c", 1000.0)):
        builder.add_op(name, runtime=runtime)
    builder.add_op("s", runtime=50.0, inputs=["m:0"])
    graph, cluster = builder.build(), Cluster.uniform(3, transfer="delay:latency=5s")
    # Op m goes to the second device, where the time that is left from its start on is the same.
    random = Given(0.0, 0.5, 0.0, 0.5, *[1.2 / graph.num_ops] * MOST_CANDIDATES)
    schedule = np.array([0, 0, 0, 1, 2, 2]), np.arange(graph.num_ops)
    insertion = begin(graph, cluster, schedule, random)
    insertion.run(1, 1, -math.inf)
    assert list(insertion._now.home) == [0, 1, 0, 1, 2, 2]
    assert insertion._work.tail[1] == 100
    assert insertion._work.tail[0] == 1 + 5 + 100


@pytest.mark.parametrize("transfer", ["blocking:latency=2s", "delay:latency=2s"])
def test_schedules_of_graphs_with_control_edges_are_those_of_the_replay(transfer: str) -> None:
    for seed in range(300):
        rng = np.random.default_rng(seed)
        graph = random_graph(rng, int(rng.integers(5, 15)), controls_per_op=1.0)
        cluster = Cluster.uniform(2 + seed % 2, transfer=transfer)
        cluster, schedule = scheduled(graph, cluster, rng, limited=True)
        policy = default_insertion_policy() if seed % 2 else None
        insertion = begin(graph, cluster, schedule, rng, policy, ops=1 + seed % 8)
        for _ in range(3):
            insertion.run(100, 10**9, -math.inf)
        best = insertion.best
        assert best is not None
        made = replay(graph, cluster, best.placement, best.events).makespan
        assert made == pytest.approx(best.makespan, rel=1e-12)


def shortest(graph: ComputationGraph, cluster: Cluster, schedule: Schedule, event: int) -> float:
    """The least makespan over all places of one event."""
    others = schedule.events[schedule.events != event]
    found = []
    for place in range(len(others) + 1):
        with contextlib.suppress(PlanError):
            found.append(replay(graph, cluster, schedule.placement, np.insert(others, place, event)).makespan)
    return min(found)


@settings(max_examples=100)
@given(instance=instances(max_ops=12), seed=seeds)
def test_no_place_of_an_event_is_better(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    cluster = with_memory(cluster, [math.inf] * cluster.num_devices)
    price = rng.random((graph.num_ops, cluster.num_devices)) * graph.runtime.max()
    placement, events = list_schedule(graph, cluster, TIME_RULES[0], price)
    number, tie = rng.random(2)
    # The first number is above the share of moves to other devices.
    insertion = begin(graph, cluster, (placement, events), Given(0.99, number, 0.0, tie))
    before = Schedule(placement, events, insertion.makespan)
    assert insertion.run(1, 1, -math.inf)[0] == 1
    event = int(events[int(number * len(events))])
    assert insertion.makespan == pytest.approx(shortest(graph, cluster, before, event), rel=1e-12)
    after = insertion.best
    assert after is not None
    np.testing.assert_array_equal(after.placement, placement)
    np.testing.assert_array_equal(after.events[after.events != event], events[events != event])


def chain() -> tuple[ComputationGraph, Cluster]:
    """``a`` and ``b`` feed ``c``, and ``d`` and ``e`` share a colocation group; a transfer takes a second."""
    builder = GraphBuilder("chain")
    builder.add_op("a", runtime=2.0, outputs=[1])
    builder.add_op("b", runtime=2.0, outputs=[1])
    builder.add_op("c", runtime=1.0, inputs=["a", "b"], outputs=[1])
    builder.add_op("d", runtime=4.0, inputs=["c"], colocation_group="group")
    builder.add_op("e", runtime=4.0, colocation_group="group")
    return builder.build(), Cluster.uniform(2, transfer="blocking:latency=1s")


def test_a_group_moves_with_its_transfers() -> None:
    graph, cluster = chain()
    events = np.arange(5)
    # All candidates are op 4, and it has no neighbour, so that a number draws its device.
    insertion = begin(graph, cluster, (np.zeros(5, int), events), Given(0.0, 0.0, 0.0, 0.0, *[0.9] * 8))
    assert insertion.makespan == 13
    used, _ = insertion.run(1, 1, -math.inf)
    best = insertion.best
    assert best is not None
    assert best.placement.tolist() == [0, 0, 0, 1, 1]
    # d, e and the transfer of c to the second device.
    assert used == 3
    assert best.makespan == 10
    assert replay(graph, cluster, best.placement, best.events).makespan == 10


@pytest.mark.parametrize(("wanted", "moves"), [(0.0, "d"), (0.51, "ad"), (0.8, "abd"), (0.999, "abcd")])
def test_ops_move_together_with_those_that_save_most_transfers(wanted: float, moves: str) -> None:
    builder = GraphBuilder("diamond")
    builder.add_op("a", runtime=1.0, outputs=[5])
    builder.add_op("c", runtime=1.0, outputs=[20])
    # More of b's input than of its output would be transferred.
    builder.add_op("b", runtime=1.0, inputs=["c"], outputs=[9])
    builder.add_op("d", runtime=1.0, inputs=["a", "b"], outputs=[100])
    builder.add_op("end", runtime=50.0, inputs=["d"], outputs=[1])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="blocking:bandwidth=1")
    names = list(graph.op_names)
    d, end = names.index("d"), names.index("end")
    # A move of ops, of d to the device of the end, and how many.
    number, others = (d + 0.99) / len(names), [0.5] * (2 * MOST_CANDIDATES - 1)
    random = Given(0.0, 0.0, 0.0, 0.0, number, *others, wanted)
    placement = np.where(np.arange(len(names)) == end, 1, 0)
    events = np.array([*range(end), len(names) + d * 2 + 1, end])
    schedule = placement, events
    insertion = begin(graph, cluster, schedule, random, InsertionPolicy(candidates=1), ops=4)
    assert insertion.makespan == 4 + 100 + 50
    insertion.run(1, 1, -math.inf)
    best = insertion.best
    assert best is not None
    assert "".join(sorted(names[o] for o in np.flatnonzero(best.placement) if o != end)) == moves


@settings(max_examples=60)
@given(instance=instances(max_ops=20), seed=seeds, ops=st.integers(2, 16))
def test_ops_that_move_together_are_connected(
    instance: tuple[ComputationGraph, Cluster], seed: int, ops: int
) -> None:
    graph, rng = instance[0], np.random.default_rng(seed)
    cluster, schedule = scheduled(*instance, rng, limited=False)
    insertion = begin(graph, cluster, schedule, rng, InsertionPolicy(candidates=1), ops=ops, describe=True)
    place, leader = schedule[0], graph.colocation_leader
    pairs = np.stack([graph.tensor_op[graph.edge_tensor], graph.edge_op])
    pairs = np.concatenate([pairs, [graph.control_source, graph.control_target]], axis=1)
    for _ in range(10):
        insertion.run(1, 1, -math.inf)
        row, best = insertion.described[-1][0], insertion.best
        assert best is not None
        if row[0]:
            count = round(math.exp(row[1 + MOVE_FEATURES.index("ops")]))
            together = np.array(insertion._work.moved)[:count]
            assert len(set(place[together])) == 1
            assert np.isin(leader, leader[together]).sum() == count == len(set(together))
            largest = np.bincount(leader).max()
            assert count < ops + largest
            # Groups are joined by an edge.
            joined = {int(leader[together[0]])}
            inside = leader[pairs[:, np.isin(pairs, together).all(axis=0)]]
            for _ in range(count):
                joined |= {int(one) for pair in inside.T if joined & set(map(int, pair)) for one in pair}
            assert joined == set(map(int, leader[together]))
        place = best.placement


def test_the_goal_and_the_number_of_insertions_end_it() -> None:
    graph, cluster = chain()
    begun = np.zeros(5, int), np.arange(5)
    rng = np.random.default_rng(0)
    assert begin(graph, cluster, begun, rng).run(9, 9, 13.0) == (0, [])
    insertion = begin(graph, cluster, begun, rng)
    used, made = insertion.run(100, 7, 5.0)
    # The last move begins within the number.
    assert 1 <= made[0][0] <= made[-1][0] <= 7 <= used
    assert [makespan for _, makespan in made] == sorted({makespan for _, makespan in made}, reverse=True)


def test_other_devices_may_be_forbidden() -> None:
    builder = GraphBuilder("pinned")
    builder.add_op("a", runtime=1.0, outputs=[1], allowed_devices=[0])
    builder.add_op("b", runtime=1.0, inputs=["a"], allowed_devices=[0])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="blocking:latency=1s")
    insertion = begin(graph, cluster, (np.zeros(2, int), np.arange(2)), np.random.default_rng(0))
    insertion.run(50, 50, -math.inf)
    best = insertion.best
    assert best is not None
    assert best.placement.tolist() == [0, 0]


def scaled(number: float) -> float:
    return math.copysign(math.log1p(abs(number)), number)


def transfers_of(graph: ComputationGraph, placement: np.ndarray) -> set[tuple[int, int, int]]:
    """Tensor, sender and receiver of every transfer."""
    readers = zip(graph.edge_tensor, placement[graph.edge_op], strict=True)
    source = placement[graph.tensor_op]
    return {(int(t), int(source[t]), int(k)) for t, k in readers if source[t] != k}


def clocks_around(now: Any, graph: ComputationGraph, d: int) -> tuple[np.ndarray, np.ndarray]:
    """``[M + 1, D]`` each: the clocks before each event, and the time that is left from there, blocking."""
    n, count = graph.num_ops, int(now.counts[0])
    events = [int(event) for event in now.event[:count]]
    held = [{int(now.sender[e]), int(now.receiver[e])} for e in events]
    clock, rest = np.zeros((count + 1, d)), np.zeros((count + 1, d))
    finish, after = np.zeros(n), np.zeros(n)
    before, controls = graph.control_predecessors
    waits = [controls[before[o] : before[o + 1]] for o in range(n)]
    for i, (event, both) in enumerate(zip(events, held, strict=True)):
        clock[i + 1] = clock[i]
        start = max(clock[i, k] for k in both)
        if event < n:
            start = max([start, *finish[waits[event]]])
            finish[event] = start + now.takes[event]
        clock[i + 1, list(both)] = start + now.takes[event]
    for i in range(count - 1, -1, -1):
        event, both = events[i], held[i]
        left = max(rest[i + 1, k] for k in both)
        if event < n:
            left = max(left, after[event])
        left += now.takes[event]
        if event < n:
            after[waits[event]] = np.maximum(after[waits[event]], left)
        rest[i] = rest[i + 1]
        rest[i, list(both)] = left
    return clock, rest


@settings(max_examples=60)
@given(instance=instances(max_ops=12), seed=seeds, ops=most_ops)
def test_features_are_those_of_the_schedule(
    instance: tuple[ComputationGraph, Cluster], seed: int, ops: int
) -> None:
    graph, rng = instance[0], np.random.default_rng(seed)
    cluster, schedule = scheduled(*instance, rng, limited=False)
    n, d = graph.num_ops, cluster.num_devices
    blocking = cluster.transfer is TransferModel.BLOCKING
    insertion = begin(graph, cluster, schedule, rng, InsertionPolicy(candidates=1), ops=ops, describe=True)
    for _ in range(10):
        before = Schedule(*schedule, insertion.makespan)
        known = type(insertion._now)(*map(np.array, insertion._now))
        insertion.run(1, 1, -math.inf)
        row = insertion.described[-1][0]
        assert row.shape == (SEEN + 2,)
        assert row[-1] == before.makespan - insertion.makespan
        changed = np.array(insertion._now.tries) != known.tries
        changed |= np.array(insertion._now.since) != known.since
        code = int(np.flatnonzero(changed)[0])
        event = code // 2
        now = int(known.place[event])
        clock, rest = clocks_around(known, graph, d)
        slack = np.maximum(0, before.makespan - clock - rest)
        unit = before.makespan * d / len(before.events) if before.makespan else 1.0
        if row[0]:
            assert code % 2 == 0
            features = dict(zip(MOVE_FEATURES, row[1:], strict=False))
            leader = graph.colocation_leader
            together = np.array(insertion._work.moved)[: round(math.exp(features["ops"]))]
            assert set(np.flatnonzero(leader == leader[event])) <= set(together)
            if ops == 1:
                assert len(together) == (leader == leader[event]).sum()
            assert features["inputs"] == pytest.approx(math.log1p((graph.edge_op == event).sum()))
            if d == 2:
                placement = before.placement.copy()
                here = placement[event]
                placement[together] = 1 - here
                here_and_there = runtime_matrix(graph, cluster)[together][:, [here, 1 - here]].sum(axis=0)
                assert features["runtime"] == pytest.approx(scaled(here_and_there[0] / unit), abs=1e-9)
                assert features["runtime_there"] == pytest.approx(scaled(here_and_there[1] / unit), abs=1e-9)
                old, new = transfers_of(graph, before.placement), transfers_of(graph, placement)
                assert features["saved_count"] == len(old - new)
                assert features["added_count"] == len(new - old)
                cost = transfer_times(graph, cluster)
                if cost.shape[1] == 1:
                    saved, added = (sum(cost[t, 0] for t, _, _ in one) for one in (old - new, new - old))
                    assert features["transfers_change"] == pytest.approx(
                        scaled((added - saved) / unit), abs=1e-9
                    )
                if blocking:
                    assert features["slack"] == pytest.approx(scaled(slack[now, here] / unit), abs=1e-9)
                    assert features["slack_there"] == pytest.approx(
                        scaled(slack[now, 1 - here] / unit), abs=1e-9
                    )
                if blocking and cost.shape[1] == 1:
                    less, more = here_and_there[0] + saved, here_and_there[1] + added
                    relief, excess = max(0, less - slack[now, here]), max(0, more - slack[now, 1 - here])
                    assert features["relief"] == pytest.approx(scaled(relief / unit), abs=1e-9)
                    assert features["excess"] == pytest.approx(scaled(excess / unit), abs=1e-9)
        else:
            features = dict(zip(PLACE_FEATURES, row[1:], strict=False))
            assert features["transfer"] == (event >= n)
            others = before.events[before.events != event]
            if blocking:
                least = min(slack[now, known.sender[event]], slack[now, known.receiver[event]])
                assert features["least_slack"] == pytest.approx(scaled(least / unit), abs=1e-9)
            valid = []
            for place in range(len(others) + 1):
                with contextlib.suppress(PlanError):
                    replay(graph, cluster, before.placement, np.insert(others, place, event))
                    valid.append(place)
            assert features["before"] == pytest.approx(math.log1p(now - valid[0]))
            assert features["behind"] == pytest.approx(math.log1p(valid[-1] - now))
            assert features["fixed"] == (len(valid) == 1)
        assert features["tries"] >= 0
        best = insertion.best
        assert best is not None
        schedule = (best.placement, best.events)


@settings(max_examples=60)
@given(instance=instances(max_ops=20), seed=seeds, ops=most_ops)
def test_what_devices_hold_is_that_of_the_replay(
    instance: tuple[ComputationGraph, Cluster], seed: int, ops: int
) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    cluster, schedule = scheduled(graph, cluster, rng, limited=True)
    insertion = begin(graph, cluster, schedule, rng, ops=ops)
    insertion.run(30, 100, -math.inf)
    now: Any = insertion._now
    count = int(now.counts[0])
    events = np.array(now.event)[:count]
    held = np.reshape(np.array(insertion._usage.held)[: count * cluster.num_devices], (count, -1))
    assert (
        held.max(axis=0).tolist() == replay(graph, cluster, np.array(now.home), events).peak_memory.tolist()
    )


@settings(max_examples=200)
@given(instance=instances(max_ops=20, constraints=False), seed=seeds, share=st.floats(1.0, 1.5))
def test_ops_that_have_no_room_do_not_fit(
    instance: tuple[ComputationGraph, Cluster], seed: int, share: float
) -> None:
    graph, cluster = instance
    rng, d = np.random.default_rng(seed), cluster.num_devices
    _, (placement, events) = scheduled(graph, cluster, rng, limited=True)
    order = events[events < graph.num_ops]
    events = insert_transfers(graph, cluster, placement, order)
    peaks = replay(graph, cluster, placement, events).peak_memory
    cluster = with_memory(cluster, [float(share * peak) for peak in peaks])
    insertion = begin(graph, cluster, (placement, events), rng)
    insertion.run(1, 0, -math.inf)
    k = int(rng.integers(d))
    elsewhere = [int(o) for o in order if placement[o] != k]
    if not elsewhere:
        return
    here = placement[rng.choice(elsewhere)]
    moved = [o for o in elsewhere if placement[o] == here and rng.random() < 0.5]
    work = insertion._work
    for i, o in enumerate(moved):
        work.moved[i], work.member[o] = o, 1
    edges, now, usage = insertion._edges, insertion._now, insertion._usage
    before = [list(each) for each in (now.uses, usage.held)]
    fits = fits_there(insertion._layout, edges, now, work, usage, len(moved), k).fits[0] == 1
    assert [list(each) for each in (now.uses, usage.held)] == before
    assert not any(usage.added)
    there = placement.copy()
    there[moved] = k
    peak = replay(graph, cluster, there, insert_transfers(graph, cluster, there, order)).peak_memory[k]
    assert fits or peak > cluster.memory[k]
    read = {int(t) for o in moved for t in graph.edge_tensor[graph.edge_op == o]}
    outside = {t for t in read if graph.tensor_op[t] not in moved}
    on_device = {int(t) for t, o in zip(graph.edge_tensor, graph.edge_op, strict=True) if placement[o] == k}
    if not any(placement[graph.tensor_op[t]] == k or t in on_device for t in outside):
        assert fits == (peak <= cluster.memory[k])


@pytest.mark.parametrize("policy", [InsertionPolicy(), default_insertion_policy()], ids=["none", "default"])
@pytest.mark.parametrize("memory", [9.0, 10.0])
def test_ops_are_not_tried_on_a_device_without_room(policy: InsertionPolicy, memory: float) -> None:
    builder = GraphBuilder("wide")
    for i in range(20):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[10])
    graph = builder.build()
    cluster = Cluster([math.inf, memory], "blocking:latency=1s")
    random = np.random.default_rng(0)
    insertion = begin(graph, cluster, (np.zeros(20, np.int64), np.arange(20)), random, policy, describe=True)
    insertion.run(100, 100, -math.inf)
    tried = np.concatenate(insertion.described)[:, 0] == 1
    assert tried.any() == (memory >= 10)
    assert insertion.makespan == (10 if memory >= 10 else 20)


def exceeding(
    graph: ComputationGraph, cluster: Cluster, rng: np.random.Generator, share: float
) -> tuple[Cluster, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """A random list schedule, its peaks, and a cluster that has this share of them."""
    _, schedule = scheduled(graph, cluster, rng, limited=True)
    peaks = replay(graph, cluster, *schedule).peak_memory
    return with_memory(cluster, [float(share * max(peak, 1)) for peak in peaks]), schedule, peaks


@settings(max_examples=100)
@given(instance=instances(max_ops=20), seed=seeds, share=st.floats(0.3, 1.0), ops=most_ops)
def test_schedules_that_exceed_the_memory_are_repaired_as_the_replay_has_it(
    instance: tuple[ComputationGraph, Cluster], seed: int, share: float, ops: int
) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    cluster, schedule, _ = exceeding(graph, cluster, rng, share)
    insertion = begin(graph, cluster, schedule, rng, ops=ops)
    insertion.run(1, 0, -math.inf, weight=1.0)
    costs = [insertion.makespan + insertion.excess]
    for _ in range(10):
        if insertion.excess == 0:
            break
        insertion.run(1, 100, -math.inf, weight=1.0)
        now: Any = insertion._now
        events = np.array(now.event)[: int(now.counts[0])]
        timeline = replay(graph, cluster, np.array(now.home), events)
        assert math.isclose(insertion.makespan, timeline.makespan, rel_tol=1e-9)
        over = timeline.peak_memory - np.array(cluster.memory)
        assert math.isclose(insertion.excess, over[over > 0].sum(), abs_tol=1e-9)
        costs.append(insertion.makespan + insertion.excess)
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(costs))
    assert (insertion.best is not None) == (insertion.excess == 0)


@settings(max_examples=100)
@given(instance=instances(max_ops=20), seed=seeds, share=st.floats(0.3, 1.0))
def test_holders_are_the_ops_of_the_largest_excess(
    instance: tuple[ComputationGraph, Cluster], seed: int, share: float
) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    cluster, schedule, peaks = exceeding(graph, cluster, rng, share)
    insertion = begin(graph, cluster, schedule, rng)
    insertion.run(1, 0, -math.inf, weight=1.0)
    usage = insertion._usage
    holders = set(np.array(usage.holders)[: int(usage.many[0])].tolist())
    assert len(holders) == usage.many[0]
    excess = peaks - np.array(cluster.memory)
    if excess.max() <= 0:
        assert not holders
        return
    k, events, home = int(excess.argmax()), schedule[1], schedule[0]
    held = np.reshape(np.array(usage.held)[: len(events) * cluster.num_devices], (len(events), -1))
    peak = int(held[:, k].argmax())
    place = {int(e): i for i, e in enumerate(events)}
    blocking = cluster.transfer is TransferModel.BLOCKING
    expected = {int(events[peak])} if events[peak] < graph.num_ops and home[events[peak]] == k else set()
    for t in range(graph.num_tensors):
        maker = int(graph.tensor_op[t])
        readers = [int(o) for o in graph.edge_op[graph.edge_tensor == t]]
        there = [o for o in readers if home[o] == k]
        if home[maker] == k:
            sent = [
                place[graph.num_ops + t * cluster.num_devices + int(home[o])] if blocking else place[o]
                for o in readers
                if home[o] != k
            ]
            if not blocking:
                devices = {int(home[o]) for o in readers if home[o] != k}
                sent = [min(place[o] for o in readers if home[o] == h) for h in devices]
            first = 0 if graph.tensor_resident[t] else place[maker]
            last = max([place[maker], *(place[o] for o in there), *sent])
            if first <= peak <= (len(events) if graph.tensor_keep[t] else last):
                expected.add(maker)
        elif there:
            copied = (
                place[graph.num_ops + t * cluster.num_devices + k] if blocking else min(map(place.get, there))
            )
            if copied <= peak <= max(place[o] for o in there):
                expected.update(there)
    assert holders == expected
