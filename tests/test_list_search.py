"""Search among list schedules: its figures equal the replay's, and it respects its limits."""

import dataclasses
import math
import signal
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import example, given, settings
from hypothesis import strategies as st
from plain_loops import Items, as_items
from strategies import instances, random_graph, stacked

from regal_jax import Cluster, GraphBuilder, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics import (
    ListSearchConfig,
    ListSearchRun,
    heuristic_plans,
    insertion_kernel,
    list_climb,
)
from regal_jax.heuristics.list_kernel import schedule
from regal_jax.heuristics.list_scheduling import (
    MEMORY_RULES,
    TIME_RULES,
    Rule,
    kernel_arguments,
    list_schedule,
    placement_and_events,
    prices_of,
)
from regal_jax.heuristics.list_state import FOLLOWED
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.schedule_peaks import listed_of, make_room, peaks
from regal_jax.plan import Objective, Plan, critical_path, replay
from regal_jax.plan.execution import TWICE, execute
from regal_jax.plan.replay import loop_arguments
from regal_jax.runtime import compiling, pointers
from regal_jax.runtime.compiling import for_loops, loops
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline
from regal_jax.solvers.loop import host_turns
from regal_jax.solvers.loop.host_turns import HostRun

seeds = st.integers(0, 2**32 - 1)
TWO = Cluster.uniform(2, transfer="blocking")
COSTLY = "blocking:latency=25us"
"""A transfer takes about half of a mean runtime of a synthetic graph."""
refinements = st.builds(
    ListSearchConfig,
    insert_after=st.integers(0, 30),
    turn=st.integers(1, 20),
    least_gain=st.sampled_from([0.0, 0.1]),
    class_share=st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=60)
@given(instance=instances(max_ops=20), seed=seeds, config=refinements, schedules=st.integers(1, 100))
def test_what_it_says_is_what_the_replay_says(
    instance: tuple[ComputationGraph, Cluster], seed: int, config: ListSearchConfig, schedules: int
) -> None:
    graph, cluster = instance
    search = ListSearchRun(graph, cluster, seed, config)
    search.run(schedules)
    assert search.evaluations == schedules
    plan = search.plan()
    assert plan is not None
    plan.verify(graph)
    made = plan.provenance["insertions"]
    assert plan.provenance["schedules"] + made == schedules
    assert (made > 0) == (search._moves is not None and search._moves.best is not None)
    if math.isfinite(search.best):
        assert plan.feasible
        # The plan may send transfers earlier than the schedule, which can lower the makespan.
        assert plan.makespan <= search.best * (1 + 1e-12)
        if plan.provenance["transfers"] == "as scheduled":
            assert plan.makespan == pytest.approx(search.best, rel=1e-12)
    numbers, values = zip(*search.history, strict=True)
    assert list(numbers) == sorted(set(numbers))
    told = [math.inf if value is None else value for value in values]
    assert told == sorted(told, reverse=True)
    assert told[-1] == search.best


@settings(max_examples=60)
@given(instance=instances(max_ops=20), rule=st.sampled_from([*TIME_RULES, *MEMORY_RULES]), seed=seeds)
def test_peaks_of_schedules_are_those_of_the_replay(
    instance: tuple[ComputationGraph, Cluster], rule: Rule, seed: int
) -> None:
    graph, cluster = instance
    layout, state = map(for_loops, kernel_arguments(graph, cluster))
    room = for_loops(make_room(layout, state))
    rng = np.random.default_rng(seed)
    for _ in range(3):
        rank = upward_rank(graph, cluster) * (0.5 + rng.random(graph.num_ops))
        price = rng.random(graph.num_ops * cluster.num_devices) * rank.max()
        loops(schedule)(layout, state, for_loops(rank), for_loops(price), *rule.numbers, math.inf)
        found = loops(peaks)(layout, listed_of(state), room).peak
        timeline = replay(graph, cluster, *placement_and_events(state))
        np.testing.assert_array_equal(np.array(found), timeline.peak_memory)


def slow_elsewhere() -> tuple[ComputationGraph, Cluster]:
    """An op that takes no time on the first device."""
    builder = GraphBuilder()
    builder.add_op("a", runtime=[0, 3])
    return builder.build(), TWO


@settings(max_examples=60)
@given(instance=instances(max_ops=20), rule=st.sampled_from(TIME_RULES), seed=seeds)
@example(instance=slow_elsewhere(), rule=TIME_RULES[1], seed=0)
def test_only_schedules_that_are_longer_are_given_up(
    instance: tuple[ComputationGraph, Cluster], rule: Rule, seed: int
) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    layout, state = map(for_loops, kernel_arguments(graph, cluster))
    rank = for_loops(upward_rank(graph, cluster) * (0.5 + rng.random(graph.num_ops)))
    price = for_loops(rng.random(graph.num_ops * cluster.num_devices))
    loops(schedule)(layout, state, rank, price, *rule.numbers, math.inf)
    whole, events = max(state.clock), placement_and_events(state)
    for share in (0.5, 0.9, 0.999999, 1, 1.01):
        loops(schedule)(layout, state, rank, price, *rule.numbers, share * whole)
        if math.isinf(max(state.clock)):
            assert share < 1
        else:
            assert max(state.clock) == whole
            for one, other in zip(events, placement_and_events(state), strict=True):
                np.testing.assert_array_equal(one, other)
    least = np.array(layout.least)
    short = 0.5 * max(critical_path(graph, least), least.sum() / cluster.num_devices)
    loops(schedule)(layout, state, rank, price, *rule.numbers, short)
    # If the critical path is 0, it gives no bound for the devices that are not the fastest.
    assert whole > 0 if math.isinf(max(state.clock)) else short == 0


@settings(max_examples=100)
@given(
    instance=instances(max_ops=20),
    rule=st.sampled_from((*TIME_RULES, *MEMORY_RULES)),
    look=st.sampled_from([1, 3, 32]),
    kind=st.sampled_from(["ranks", "prices"]),
    noise=st.sampled_from([1e-15, 0.01, 0.2]),
    seed=seeds,
)
def test_following_a_schedule_changes_no_result(
    instance: tuple[ComputationGraph, Cluster], rule: Rule, look: int, kind: str, noise: float, seed: int
) -> None:
    graph, cluster = instance
    n, d = graph.num_ops, cluster.num_devices
    rng = np.random.default_rng(seed)
    layout, state = map(for_loops, kernel_arguments(graph, cluster))
    rank = upward_rank(graph, cluster) * (0.5 + rng.random(n))
    price = np.where(rng.random(n * d) < 0.3, rng.random(n * d), 0.0)
    make, numbers = loops(schedule), dataclasses.replace(rule, look=look).numbers

    def made(follows: int) -> tuple[list[int], list[list[int]]]:
        state.counts[FOLLOWED] = follows
        make(layout, state, for_loops(rank), for_loops(price), *numbers, math.inf)
        events = [int(event) for event in state.event[: state.counts[0]] if event < n]
        return events, [part.tolist() for part in placement_and_events(state)]

    path, before = made(0)
    for _ in range(8):
        state.path[:], state.homes[:] = path, before[0]
        changed = rng.random(n) < rng.integers(6) / n
        if kind == "ranks":
            rank = np.where(changed, rank * (1 - noise * rng.random(n)), rank)
            # The keys of residents depend on the largest rank.
            changed |= graph.resident
        else:
            other = noise * rank.max() * rng.standard_normal(n * d)
            price = np.where(np.repeat(changed, d), other, price)
        state.changed[:] = changed.astype(int).tolist()
        path, expected = made(0)
        _, found = made(1)
        if state.place[path[-1]] < 0:
            assert expected == before
        else:
            assert found == expected
        before = expected


@settings(max_examples=60)
@given(instance=instances(max_ops=20), rule=st.sampled_from(TIME_RULES), seed=seeds)
def test_ranks_and_prices_make_a_schedule_again(
    instance: tuple[ComputationGraph, Cluster], rule: Rule, seed: int
) -> None:
    graph, cluster = instance
    n, d = graph.num_ops, cluster.num_devices
    rng = np.random.default_rng(seed)
    rank = upward_rank(graph, cluster) * (0.5 + rng.random(n))
    price = np.where(rng.random((n, d)) < 0.3, rng.random((n, d)) * rank.max(), 0.0)
    placement, events = list_schedule(graph, cluster, rule, price, rank)
    ranks = np.empty(n)
    ranks[events[events < n]] = n - np.arange(n)
    wanted = placement[:, None] == np.arange(d)
    again = list_schedule(graph, cluster, TIME_RULES[0], prices_of(graph, cluster, wanted), ranks)
    for one, other in zip(again, (placement, events), strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=25)
@given(instance=instances(max_ops=15), seed=st.integers(0, 99), config=refinements)
@example(
    instance=(stacked(generate("erdos-renyi", 8, 0), 3), Cluster.uniform(2, transfer=COSTLY)),
    seed=1,
    config=ListSearchConfig(class_share=1),
)
def test_loops_do_the_same_in_python_without_negative_indices(
    instance: tuple[ComputationGraph, Cluster], seed: int, config: ListSearchConfig
) -> None:
    graph, cluster = instance
    compiled = ListSearchRun(graph, cluster, seed, config)
    compiled.run(60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "usable", lambda: False)
        patch.setattr(compiling, "_lists", as_items)
        patch.setattr(list_climb, "_call", pointers.call)
        patch.setattr(insertion_kernel, "_call", pointers.call)
        plain = ListSearchRun(graph, cluster, seed, config)
        assert isinstance(plain._now.rank, Items)
        plain.run(60)
        assert plain.history == compiled.history
        one, other = plain.plan(), compiled.plan()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.timeline.op, other.timeline.op)
    events = one.event_ids(graph)
    state = execute(*map(as_items, loop_arguments(graph, cluster, one.placement, events)))
    assert max(state.clock) == one.makespan
    twice = np.append(events, events[0])
    state = execute(*map(as_items, loop_arguments(graph, cluster, one.placement, twice)))
    assert state.fault[0] == TWICE
    ranks, prices = upward_rank(graph, cluster), np.zeros(graph.num_ops * cluster.num_devices)
    for rule in (*TIME_RULES, *MEMORY_RULES):
        space = *kernel_arguments(graph, cluster), ranks, prices
        state = schedule(*map(as_items, space), *rule.numbers, math.inf)
        for each, same in zip(placement_and_events(state), list_schedule(graph, cluster, rule), strict=True):
            np.testing.assert_array_equal(each, same)


@settings(max_examples=20)
@given(instance=instances(max_ops=15), seed=st.integers(0, 99), config=refinements)
def test_it_goes_on_where_it_was(
    instance: tuple[ComputationGraph, Cluster], seed: int, config: ListSearchConfig
) -> None:
    once, twice = (ListSearchRun(*instance, seed, config) for _ in range(2))
    once.run(30)
    twice.run(13)
    before = twice.plan()
    twice.run(17)
    assert once.history == twice.history
    one, two = once.plan(), twice.plan()
    assert one is not None
    assert two is not None
    assert before is not None
    np.testing.assert_array_equal(one.timeline.op, two.timeline.op)
    assert two.sort_key <= before.sort_key


@pytest.mark.parametrize("seed", range(8))
def test_between_the_optimum_and_its_rules(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed), 6, 2, inputs_per_op=1.0)
    search = ListSearchRun(graph, TWO, seed)
    search.run(300)
    best = brute_force(graph, TWO).objective_value
    rules = min(
        Plan.from_events(graph, TWO, *list_schedule(graph, TWO, rule)).makespan
        for rule in ListSearchConfig().rules
    )
    assert best * (1 - 1e-9) <= search.best <= rules


def test_it_finds_what_no_rule_does() -> None:
    graphs = [generate("erdos-renyi", 60, seed) for seed in range(4)]
    gains = []
    for graph in graphs:
        search = ListSearchRun(graph, TWO, 0)
        search.run(300)
        gains.append(search.best / min(p.makespan for p in heuristic_plans(graph, TWO)))
    assert max(gains) <= 1
    assert np.mean(gains) < 0.995


def test_memory_comes_first() -> None:
    graph = generate("layered", 30, 1)
    free = ListSearchRun(graph, TWO, 0)
    free.run(50)
    plan = free.plan()
    assert plan is not None
    tight = Cluster.uniform(2, memory=0.8 * float(plan.timeline.peak_memory.max()), transfer="blocking")
    search = ListSearchRun(graph, tight, 0)
    search.run(400)
    plan = search.plan()
    assert plan is not None
    assert plan.feasible
    assert search.history[0][1] is None
    nowhere = ListSearchRun(graph, Cluster.uniform(2, memory=1, transfer="blocking"), 0)
    nowhere.run(60)
    assert math.isinf(nowhere.best)
    # Rules that limit memory are in use.
    assert any(rule.goal == "fit" for rule in nowhere._rules)
    assert [value for _, value in nowhere.history] == [None] * len(nowhere.history)


@pytest.mark.parametrize("transfer", ["blocking", "delay:latency=1us,bandwidth=1GB/s", "free"])
@pytest.mark.parametrize("devices", [1, 3])
def test_one_op_and_none_yet(devices: int, transfer: str) -> None:
    builder = GraphBuilder("one")
    builder.add_op("only", runtime=0.0)
    search = ListSearchRun(builder.build(), Cluster.uniform(devices, transfer=transfer), 0)
    assert search.plan() is None
    assert math.isinf(search.best)
    search.run(20)
    plan = search.plan()
    assert plan is not None
    assert plan.makespan == search.best == 0
    assert search.history == [(1, 0.0)]


def _changed_prices(transfer: str, share: float) -> np.ndarray:
    """The prices of a search that are neither 0 nor prohibitive."""
    cluster = Cluster.uniform(2, transfer=transfer)
    search = ListSearchRun(generate("erdos-renyi", 40, 0), cluster, 0, ListSearchConfig(transfer_share=share))
    search.run(300)
    plan = search.plan()
    assert plan is not None
    assert plan.makespan == search.best
    prices = np.abs(np.array(search._now.price))
    return prices[(prices > 0) & (prices < search._space.prohibitive)]


def test_the_scale_of_transfers() -> None:
    # Where no transfer takes time, there is no such scale.
    np.testing.assert_array_equal(_changed_prices("blocking", 0.0), _changed_prices("blocking", 1.0))
    small, large = (np.median(_changed_prices("pcie4x16", share)) for share in (0.0, 1.0))
    assert large > 3 * small


def _copies(count: int) -> ComputationGraph:
    """Graphs side by side, so that every op is like ``count - 1`` others."""
    builder = GraphBuilder("copies")
    for i in range(count):
        a = builder.add_op(f"a{i}", kind="a", runtime=3.0, outputs=[1])
        b = builder.add_op(f"b{i}", kind="b", runtime=2.0, outputs=[1], inputs=[(a, 0)])
        builder.add_op(f"c{i}", kind="c", runtime=1.0, inputs=[(a, 0), (b, 0)])
    return builder.build()


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("transfer", ["free", COSTLY])
def test_changes_of_classes_reach_all_their_ops(share: float, transfer: str) -> None:
    config = ListSearchConfig(class_share=share, block_share=0.0, insert_after=1000)
    search = ListSearchRun(_copies(7), Cluster.uniform(3, transfer=transfer), 0, config)
    search._begin = type(search._begin)([search._begin[0]])  # Prices of partitions differ within a class.
    search.run(100)
    trial = np.concatenate(
        [np.reshape(search._trial.price, (7, 9)), np.reshape(search._trial.rank, (7, 3))], 1
    )
    same = [np.allclose(row, trial[0], rtol=1e-12) for row in trial]
    assert all(same) == (share == 1)


def test_blocks_of_classes_move_them_together() -> None:
    config = ListSearchConfig(class_share=1.0, block_share=1.0, largest_block=0.01)
    search = ListSearchRun(_copies(7), Cluster.uniform(2, transfer="free"), 0, config)
    search._begin = type(search._begin)([search._begin[0]])
    changed = []
    for _ in range(60):
        before = np.array(search._now.price)
        search.run(1)
        changed.append(int((np.array(search._trial.price) != before).reshape(21, 2).any(axis=1).sum()))
    # A block of one op has six others like it, of which those on other devices may stay.
    assert max(changed) > 3


def test_repeated_layers_take_fewer_evaluations() -> None:
    graphs = [stacked(generate("erdos-renyi", 30, seed), 16) for seed in range(2)]
    best = []
    for share in (0.0, 0.5):
        config, cluster = ListSearchConfig(class_share=share), Cluster.uniform(3, transfer=COSTLY)
        runs = [ListSearchRun(graph, cluster, seed, config) for graph in graphs for seed in range(3)]
        for run in runs:
            run.run(300)
        best.append([run.best for run in runs])
    assert np.log(np.array(best[1]) / best[0]).mean() < -0.01


def _best_values(transfer: str, insert_after: int) -> list[list[float]]:
    """For four graphs, the best makespans after 200 and 600 evaluations."""
    cluster, config = Cluster.uniform(4, transfer=transfer), ListSearchConfig(insert_after=insert_after)
    values = []
    for seed in range(4):
        search = ListSearchRun(generate("erdos-renyi", 60, seed), cluster, 0, config)
        search.run(200)
        early = search.best
        search.run(400)
        values.append([early, search.best])
    return values


def test_insertion_moves() -> None:
    # Without transfers that take time there are none.
    assert _best_values("blocking", 200) == _best_values("blocking", 600)
    with_them, without = (np.array(_best_values(COSTLY, after)) for after in (200, 600))
    np.testing.assert_array_equal(with_them[:, 0], without[:, 0])
    assert np.log(with_them[:, 1] / without[:, 1]).mean() < -0.03


@pytest.mark.parametrize("gain", [0.0, 1.0])
def test_a_turn_tells_whether_insertion_moves_go_on(gain: float) -> None:
    config = ListSearchConfig(insert_after=50, turn=20, least_gain=gain, walk=0)
    cluster = Cluster.uniform(4, transfer=COSTLY)
    search = ListSearchRun(generate("erdos-renyi", 60, 0), cluster, 0, config)
    made = []
    for evaluations in (50, 40, 70, 60):
        before = search._insertions
        search.run(evaluations)
        made.append(search._insertions - before)
    # A move of several insertions may end after its turn. After turns that gain less, schedules follow.
    assert made[0] == 0
    assert (made[1] == 40) == (gain == 0.0)
    assert made[1] >= 20
    assert made[2] > 0


def _insertions(config: ListSearchConfig, evaluations: int) -> list[bool]:
    """Of each evaluation, whether it is an insertion."""
    cluster = Cluster.uniform(4, transfer=COSTLY)
    search = ListSearchRun(generate("erdos-renyi", 60, 0), cluster, 0, config)
    made = []
    for _ in range(evaluations):
        before = search._insertions
        search.run(1)
        made.append(search._insertions > before)
    return made


def test_a_walk_comes_between_a_turn_that_does_not_pay_and_list_schedules() -> None:
    for walk, deviation in ((0, 0.5), (30, 0.5), (30, 0.0)):
        config = ListSearchConfig(insert_after=50, turn=20, least_gain=1.0, walk=walk, deviation=deviation)
        made = _insertions(config, 200)
        first = made.index(True)
        count = made[first:].index(False)
        assert first == 50
        # The last move of a turn or a walk is completed, and may have several insertions.
        assert 20 + walk <= count < 20 + walk + 20


def test_only_walks_have_other_candidates() -> None:
    cluster = Cluster.uniform(4, transfer=COSTLY)
    for policy in ("default", "none"):
        for ops, walk, alike in ((400, 0, True), (399, 300, True), (400, 300, False)):
            found = []
            for candidates in (1, 8, 100):
                config = ListSearchConfig(
                    insert_after=20,
                    turn=50,
                    least_gain=1.0,
                    walk=walk,
                    walk_candidates=candidates,
                    insertion_policy=policy,
                )
                search = ListSearchRun(generate("erdos-renyi", ops, 0), cluster, 0, config)
                search.run(600)
                found.append(search.history)
            # More than those of the policy are as many.
            assert found[1] == found[2]
            assert (found[0] == found[1]) == alike
    with pytest.raises(ConfigError, match="walk_candidates is 0; give a whole number from 1"):
        ListSearchConfig(walk_candidates=0)


@pytest.mark.parametrize("share", [0.85, 1.01])
def test_only_limits_that_bind_change_a_search(share: float) -> None:
    graph, cluster = generate("erdos-renyi", 60, 0), Cluster.uniform(4, transfer=COSTLY)
    config = ListSearchConfig(insert_after=50, turn=100)
    free = ListSearchRun(graph, cluster, 0, config)
    free.run(1000)
    plan = free.plan()
    assert plan is not None
    memory = share * float(graph.tensor_bytes.sum() if share > 1 else plan.peak_memory.max())
    search = ListSearchRun(graph, Cluster.uniform(4, memory, COSTLY), 0, config)
    search.run(1000)
    assert search.least[0] == 0
    assert (search.history == free.history) == (share > 1)


def test_walks_pass_longer_schedules_and_find_shorter_ones() -> None:
    values = []
    for deviation in (0.0, 0.5):
        found = []
        for seed in range(4):
            graph = generate("erdos-renyi", 60, seed)
            cluster, config = Cluster.uniform(4, transfer=COSTLY), ListSearchConfig(deviation=deviation)
            search = ListSearchRun(graph, cluster, 0, config)
            longer = False
            for _ in range(60):
                search.run(100)
                moves = search._moves
                if moves is not None and moves.best is not None and search._walking:
                    longer |= moves.makespan > moves.least * (1 + 1e-9)
                    mean = np.array(moves._now.takes)[moves.best.events].mean()
                    # The events of the best schedule took about as long.
                    assert moves.makespan <= moves.least + 2 * deviation * mean + 1e-6
            assert longer == (deviation > 0)
            found.append(search.best)
            plan = search.plan()
            assert plan is not None
            assert plan.makespan == pytest.approx(search.best, rel=1e-9)
        values.append(found)
    assert np.log(np.divide(values[1], values[0])).mean() < -0.01


@pytest.mark.parametrize("seed", range(3))
def test_walks_do_not_depend_on_where_runs_end(seed: int) -> None:
    graph, cluster = generate("erdos-renyi", 60, seed), Cluster.uniform(4, transfer=COSTLY)
    config = ListSearchConfig(insert_after=50, turn=20, walk=300)
    whole, parts = (ListSearchRun(graph, cluster, 0, config) for _ in range(2))
    whole.run(4000)
    rng = np.random.default_rng(seed)
    while parts.evaluations < 4000:
        parts.run(min(int(rng.integers(1, 60)), 4000 - parts.evaluations))
    assert whole.history == parts.history
    one, other = whole.plan(), parts.plan()
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one.placement, other.placement)
    np.testing.assert_array_equal(one.event_ids(graph), other.event_ids(graph))


def test_walks_end_where_nothing_takes_time() -> None:
    builder = GraphBuilder("instant")
    for i in range(6):
        builder.add_op(f"o{i}", runtime=0.0, outputs=[0], inputs=[f"o{i - 1}:0"] if i else [])
    search = ListSearchRun(builder.build(), Cluster.uniform(2, transfer=COSTLY), 0, ListSearchConfig(turn=5))
    search.run(3000)
    assert (search.evaluations, search.best) == (3000, 0.0)


def test_the_time_of_transfers_of_inputs() -> None:
    builder = GraphBuilder("three")
    builder.add_op("first", runtime=1.0, outputs=[1, 3])
    builder.add_op("both", runtime=1.0, inputs=[(0, 0), (0, 1)])
    builder.add_op("one", runtime=1.0, inputs=[(0, 1)])
    cluster = Cluster.uniform(2, transfer="blocking:latency=1s,bandwidth=1B/s")
    np.testing.assert_allclose(ListSearchRun(builder.build(), cluster, 0)._transfer_times(), [0, 3, 4])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ranks", 0),
        ("ranks", 1001),
        ("prices", 2.0),
        ("prices", 10**12),
        ("look", True),
        ("look", 2**31),
        ("rank_noise", -1),
        ("price_noise", math.nan),
        ("rank_noise", math.inf),
        ("price_noise", 1e308),
        ("price_share", 1.5),
        ("other_rule", "often"),
        ("transfer_share", math.inf),
        ("insert_after", -1),
        ("insert_after", 10**30),
        ("turn", 0),
        ("turn", 10**29),
        ("least_gain", 1.01),
        ("walk", -1),
        ("deviation", math.nan),
        ("class_share", -0.1),
    ],
)
def test_impossible_settings(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"ListSearchConfig: {field} is .*; give a"):
        ListSearchConfig(**{field: value})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("seed", "contract"),
    [
        (39, False),  # Its transfers are as early as possible.
        (39, True),
        (9, True),  # A heuristic's plan of the whole graph is better.
    ],
)
def test_the_history_ends_with_the_plan(seed: int, contract: bool) -> None:
    graph, cluster = generate("layered", 20, seed=seed), Cluster.uniform(3, transfer="blocking:latency=5us")
    plan = optimize(graph, cluster, method="list-search", evaluations=100, contract=contract)
    history = plan.provenance["history"]
    assert history["best"][-1] == plan.makespan
    assert history["evaluations"][-1] == plan.provenance["evaluations"]


def test_the_longest_runtimes() -> None:
    builder = GraphBuilder("long")
    for i in range(14):
        inputs = [f"o{i - 1}:0"] if i % 3 else []
        builder.add_op(f"o{i}", runtime=7e305, outputs=[8], inputs=inputs)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="delay:latency=1s")
    optimize(graph, cluster, evaluations=2500).verify(graph)


class TestTheMethod:
    def test_provenance(self) -> None:
        graph = generate("erdos-renyi", 40, 0)
        plan = optimize(graph, TWO, method="list-search", evaluations=200, seed=3)
        told = plan.provenance
        assert (told["method"], told["evaluations"], told["stopped"]) == ("list-search", 200, "budget")
        assert "best_from" not in told
        assert "made by      list-search, 200 evaluations, seed 3" in str(plan)
        history = told["history"]
        assert (history["evaluations"][0], history["evaluations"][-1]) == (0, 200)
        assert history["best"][0] == min(p.makespan for p in heuristic_plans(graph, TWO))
        assert history["best"][-1] >= plan.makespan
        assert told["config"] == dataclasses.asdict(ListSearchConfig())
        alone = optimize(graph, TWO, method="list-search", evaluations=200, seed=3, warm_start=False)
        assert alone.provenance["warm_start"] == {}
        alone.verify(graph)

    def test_target_and_stall(self) -> None:
        graph = generate("erdos-renyi", 40, 0)
        options = {"method": "list-search", "evaluations": 3000}
        whole = optimize(graph, TWO, **options)
        plan = optimize(graph, TWO, **options, target=whole.makespan * 1.02)
        assert plan.provenance["stopped"] == "target"
        assert plan.makespan <= whole.makespan * 1.02
        assert plan.provenance["evaluations"] < 3000
        plan = optimize(graph, TWO, **options, stall=100)
        assert plan.provenance["stopped"] == "stall"
        last = [e for e, _ in zip(*plan.provenance["history"].values(), strict=True)][-2]
        assert last + 100 <= plan.provenance["evaluations"] < 3000

    @pytest.mark.parametrize("method", ["list-search", pytest.param("auto", marks=pytest.mark.slow)])
    def test_every_graph_gets_some_of_the_time(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        own, given = HostRun.turn, []

        def turn(self: HostRun, *args: Any, seconds: float, **options: Any) -> Any:
            given.append(seconds)
            return own(self, *args, seconds=seconds, **options)

        monkeypatch.setattr(HostRun, "turn", turn)

        class Counted(Deadline):
            """A clock that advances by 5 ms at each reading, so that compilation time does not matter."""

            readings = 0

            @property
            def spent(self) -> float:
                self.readings += 1
                return 0.005 * self.readings

        monkeypatch.setattr(host_turns, "Deadline", Counted)
        # Far from their bounds: none is solved before its time is over.
        graphs = [generate("erdos-renyi", 60, seed) for seed in range(3)]
        cluster = Cluster.uniform(2, transfer="blocking:latency=100us,bandwidth=1GB/s")
        plans = optimize_many(
            graphs,
            cluster,
            method=method,
            evaluations=10**8,
            time_limit=2.0,
            progress=False,
            warm_start=False,
        )
        assert len(given) >= 3
        turns = math.ceil(3 / min(available_cores(), 3))
        assert all(0 < seconds <= 2.0 / turns for seconds in given[:3])
        assert [plan.provenance["stopped"] for plan in plans] == ["time"] * 3
        assert all(plan.provenance["evaluations"] > 6 for plan in plans)

    @pytest.mark.parametrize("method", ["list-search", "auto"])
    def test_ctrl_c_keeps_the_best_so_far(self, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
        advance, pressed = ListSearchRun._advance, []

        def pressing(self: ListSearchRun, *args: Any) -> int:
            made = advance(self, *args)
            if self.evaluations >= 40 and not pressed:
                pressed.append(signal.raise_signal(signal.SIGINT))
            return made

        monkeypatch.setattr(ListSearchRun, "_advance", pressing)
        # Far from their bounds: none is done before it is interrupted.
        graphs = [generate("erdos-renyi", 60, seed) for seed in range(5)]
        plans = optimize_many(graphs, TWO, method=method, evaluations=10**6, progress=False)
        assert [plan.provenance["stopped"] for plan in plans] == ["interrupted"] * 5
        spent = [plan.provenance["evaluations"] for plan in plans]
        assert 40 <= max(spent) < 10**5
        # Searches that had not begun spent no evaluations.
        assert min(spent) == 0 or available_cores() >= 5
        for plan, graph in zip(plans, graphs, strict=True):
            plan.verify(graph)
        assert plans[0].sort_key <= min(p.sort_key for p in heuristic_plans(graphs[0], TWO))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_auto_begins_with_it(self) -> None:
        graph = generate("erdos-renyi", 60, 1)
        plan = optimize(graph, TWO, method="auto", evaluations=1000)
        told = plan.provenance
        assert told["evaluations"] == 1000
        assert told["warm_start"]["list-search"] < min(
            p.makespan for p in heuristic_plans(graph, TWO, Objective.MAKESPAN)
        )
        assert plan.makespan <= told["warm_start"]["list-search"]
        assert (told.get("found_by") == "list-search") == (plan.makespan == told["warm_start"]["list-search"])
        assert f"auto{' (list-search)' if 'found_by' in told else ''}, 1,000 evaluations" in str(plan)
        best = told["history"]["best"]
        assert best == sorted(best, reverse=True)


def test_insertion_moves_take_a_share_of_the_graph():
    graph, cluster = generate("layered", 100, seed=1), Cluster.uniform(2, transfer="pcie4x16")
    found = {}
    for ops, share in ((1, 1.0), (16, 0.0), (16, 0.0199), (2, 1.0), (16, 0.0201)):
        search = ListSearchRun(graph, cluster, 0, ListSearchConfig(move_ops=ops, move_share=share))
        search.run(1500)
        found[ops, share] = search.history
    assert found[1, 1.0] == found[16, 0.0] == found[16, 0.0199]
    assert found[2, 1.0] == found[16, 0.0201] != found[1, 1.0]
