"""The quick list schedule does not depend on units or on the numbers of the ops."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_loops import Items, as_items
from policy_cases import events_of, renumbered, scaled
from strategies import instances, random_cluster, random_graph

from regal_jax.datasets import generate
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    GraphBuilder,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
)
from regal_jax.heuristics.list_kernel import schedule
from regal_jax.heuristics.list_scheduling import (
    _QUICK_RULE,
    TIME_RULES,
    Rule,
    kernel_arguments,
    list_schedule,
    placement_and_events,
    prohibitive_price,
    quick_schedule,
)
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.plan import critical_path, replay
from regal_jax.runtime.compiling import _lists, for_loops, loops

seeds = st.integers(0, 2**32 - 1)


def numbers_of(graph: ComputationGraph) -> np.ndarray:
    return np.argsort(graph.topological_order)


@given(instance=instances(max_ops=14))
def test_a_quick_schedule_is_one_that_can_be_run(instance: tuple[ComputationGraph, Cluster]) -> None:
    graph, cluster = instance
    schedule = quick_schedule(graph, cluster, numbers_of(graph))
    # The replay refuses what lacks an op, a transfer or an order.
    timeline = replay(graph, cluster, schedule.placement, events_of(graph, schedule))
    np.testing.assert_array_equal(schedule.events, events_of(graph, schedule))
    assert timeline.makespan >= critical_path(graph, runtime_matrix(graph, cluster).min(axis=1)) * (1 - 1e-9)
    if cluster.transfer is not TransferModel.BLOCKING:
        assert (schedule.sent == -1).all()


@pytest.mark.parametrize("seed", range(30))
def test_its_transfers_are_where_the_rule_has_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # Without residents: ops that take no time make ties, which rounding may break in either way.
    graph, cluster = random_graph(rng, 25, 2, residents=0), random_cluster(rng, 2)
    cluster = dataclasses.replace(cluster, memory=(np.inf, np.inf))
    schedule = quick_schedule(graph, cluster, numbers_of(graph))
    makespan = replay(graph, cluster, schedule.placement, events_of(graph, schedule)).makespan
    expected = replay(graph, cluster, *list_schedule(graph, cluster, _QUICK_RULE)).makespan
    alone = runtime_matrix(graph, cluster).sum(axis=0)[allowed_matrix(graph, cluster).all(axis=0)]
    expected = min([expected, *alone])
    # Times are rounded to a part in 2**26 of the longest path, which may decide between near equals.
    assert makespan == pytest.approx(expected, rel=1e-6)


def overflow(graph: ComputationGraph, cluster: Cluster, limits: np.ndarray) -> int:
    """Bytes beyond the limits in the quick schedule for the cluster."""
    schedule = quick_schedule(graph, cluster, numbers_of(graph))
    peaks = replay(graph, cluster, schedule.placement, events_of(graph, schedule)).peak_memory
    return int(np.maximum(peaks - limits, 0).sum())


@pytest.mark.parametrize("transfer", TransferModel)
def test_a_limit_of_memory_that_binds_is_obeyed_where_the_rule_can(transfer: str) -> None:
    fitted = 0
    for seed in range(20):
        graph = generate("regal-watts-strogatz", 40, seed)
        free = Cluster.uniform(2, transfer=transfer)
        schedule = quick_schedule(graph, free, numbers_of(graph))
        peak = replay(graph, free, schedule.placement, events_of(graph, schedule)).peak_memory.max()
        # At its own peak the limit does not bind.
        same = quick_schedule(graph, Cluster.uniform(2, int(peak), transfer), numbers_of(graph))
        for before, after in zip(schedule, same, strict=True):
            np.testing.assert_array_equal(before, after)
        tight = Cluster.uniform(2, int(0.85 * peak), transfer)
        limits = np.array(tight.memory)
        before, after = overflow(graph, free, limits), overflow(graph, tight, limits)
        assert after <= before
        fitted += before > 0 and after == 0
    assert fitted >= 5


def test_memory_that_suffices_for_all_tensors_costs_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate("layered", 20, 0)
    monkeypatch.setattr("regal_jax.heuristics.list_scheduling.outcome", None)
    enough = int(graph.tensor_bytes.sum() + graph.temp_bytes.max())
    for memory in ("inf", enough):
        quick_schedule(graph, Cluster.uniform(2, memory), numbers_of(graph))
    with pytest.raises(TypeError):
        quick_schedule(graph, Cluster.uniform(2, enough - 1), numbers_of(graph))


@pytest.mark.parametrize(("latency", "devices"), [(0, {0, 1}), (100, {1})])
def test_where_transfers_take_too_long_all_goes_to_the_fastest_device(
    latency: float, devices: set[int]
) -> None:
    builder = GraphBuilder("fans")
    for root in range(6):
        builder.add_op(f"root{root}", runtime=[5.0, 4.0], outputs=[1])
        for leaf in range(3):
            others = [f"root{(root + i) % 6}" for i in range(2) if root > i]
            builder.add_op(f"leaf{root}.{leaf}", runtime=[5.0, 4.0], inputs=others, outputs=[1])
    graph = builder.build()
    cluster = Cluster.uniform(2, transfer=f"blocking:latency={latency}s,bandwidth=inf")
    schedule = quick_schedule(graph, cluster, numbers_of(graph))
    assert set(schedule.placement.tolist()) == devices
    assert (schedule.sent == -1).all() == (len(devices) == 1)


@pytest.mark.parametrize("look", [1, 3, 8])
@pytest.mark.parametrize("seed", range(10))
def test_only_ready_ops_of_highest_rank_are_compared(look: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 60, 2, inputs_per_op=0.8), random_cluster(rng, 2)
    rule = Rule(look=look, rank=0.1, waste=0.1, behind=0.3, finish=False)
    _, events = list_schedule(graph, cluster, rule)
    rank, numbers = upward_rank(graph, cluster), numbers_of(graph)
    source = np.concatenate([graph.edge_producer, graph.control_source])
    target = np.concatenate([graph.edge_op, graph.control_target])
    done: set[int] = set()
    places = []
    for op in events[events < graph.num_ops].tolist():
        ready = [
            o for o in range(graph.num_ops) if o not in done and done.issuperset(source[target == o].tolist())
        ]
        ready.sort(key=lambda o: (not graph.resident[o], -rank[o], numbers[o]))
        assert graph.resident[op] or not graph.resident[ready[0]]
        places.append(ready.index(op))
        done.add(op)
    assert max(places) < look
    if look < 8:  # The rule does use its whole lookahead; with 8, these graphs never need the last place.
        assert max(places) == look - 1


@given(instance=instances(max_ops=12), seed=seeds)
def test_numbers_of_ops_decide_nothing(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, cluster = instance
    place = np.random.default_rng(seed).permutation(graph.num_ops)
    numbers = numbers_of(graph)
    moved = np.empty_like(numbers)
    moved[place] = numbers
    other = renumbered(graph, place)
    one, same = quick_schedule(graph, cluster, numbers), quick_schedule(other, cluster, moved)
    assert same.placement[place].tolist() == one.placement.tolist()
    assert place[one.order].tolist() == same.order.tolist()
    tensors = other.output_offset[place[graph.tensor_op]] + graph.tensor_port
    assert same.sent[tensors].tolist() == one.sent.tolist()


@given(instance=instances(max_ops=12), unit=st.sampled_from([1e-3, 0.3, 7.0, 1e9]))
def test_units_of_time_decide_nothing(instance: tuple[ComputationGraph, Cluster], unit: float) -> None:
    graph, cluster = instance
    one = quick_schedule(graph, cluster, numbers_of(graph))
    same = quick_schedule(*scaled(graph, cluster, unit, 1), numbers_of(graph))
    for here, there in zip(one, same, strict=True):
        assert here.tolist() == there.tolist()


def test_two_chains_run_side_by_side_and_meet_once() -> None:
    builder = GraphBuilder("chains")
    for side in "ab":
        for i in range(4):
            before = [f"{side}{i - 1}"] if i else []
            builder.add_op(f"{side}{i}", runtime=1.0, inputs=before, outputs=[1])
    builder.add_op("end", runtime=1.0, inputs=["a3", "b3"], outputs=[1])
    graph = builder.build()
    placement, order, sent = quick_schedule(graph, Cluster.uniform(2, transfer="blocking"), numbers_of(graph))
    assert placement[:4].tolist() == [placement[0]] * 4
    assert placement[4:8].tolist() == [1 - placement[0]] * 4
    assert order[-1] == 8
    # The chain on the other device sends its last tensor to the device of the end, before the end.
    other = "b3" if placement[8] == placement[0] else "a3"
    expected = np.full((9, 2), -1)
    expected[graph.tensor_index(f"{other}:0"), placement[8]] = 8
    assert sent.tolist() == expected.tolist()


@pytest.mark.parametrize("devices", [1, 2])
def test_one_op(devices: int) -> None:
    builder = GraphBuilder("one")
    builder.add_op("op", runtime=0.0)
    schedule = quick_schedule(
        builder.build(), Cluster.uniform(devices, transfer="blocking"), np.zeros(1, np.int64)
    )
    assert [x.tolist() for x in schedule] == [[0], [0], []]


@pytest.mark.parametrize("devices", [2, 63, 64, 80])
def test_compiled_loops_make_the_schedules_of_pythons(devices):
    """Python's whole numbers have as many bits as there are devices; those of the compiled loops have 64."""
    graph = generate("erdos-renyi", 120, seed=1)
    layout, state = kernel_arguments(graph, Cluster.uniform(devices))
    rule = Rule(look=8, rank=0.25)
    numbers = upward_rank(graph, Cluster.uniform(devices)), np.zeros(graph.num_ops * devices), *rule.numbers

    def schedule_by(loop, convert):
        done = loop(convert(layout), convert(state), *map(convert, numbers), np.inf)
        return placement_and_events(done)

    plain = schedule_by(schedule, _lists)
    compiled = schedule_by(loops(schedule), for_loops)
    for a, b in zip(plain, compiled, strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(np.unique(plain[0])) > min(devices, 64) // 8


def schedule_of(layout, state, numbers, *, compiled):
    loop, convert = (loops(schedule), for_loops) if compiled else (schedule, _lists)
    arguments = layout, state, *numbers, np.inf
    return placement_and_events(loop(*map(convert, arguments)))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 200])
def test_ops_are_sorted_from_any_order(count: int, compiled: bool) -> None:
    rng = np.random.default_rng(count)
    # Few edges: most ops are ready at once, more than a word has bits.
    graph, cluster = random_graph(rng, count, 3, inputs_per_op=0.3), random_cluster(rng, 3)
    layout, state = kernel_arguments(graph, cluster)
    rank = rng.integers(0, 20, count).astype(float)
    numbers = rank, np.zeros(count * 3), *Rule(look=4, rank=0.1, waste=0.1, behind=0.3).numbers
    best_first = np.lexsort([layout.position, -rank])
    nearly = best_first.copy()
    nearly[[0, -1]] = nearly[[-1, 0]]
    made = [
        schedule_of(layout, state._replace(ranked=order), numbers, compiled=compiled)
        for order in (best_first, nearly, best_first[::-1].copy(), rng.permutation(count))
    ]
    for each in made[1:]:
        for one, other in zip(made[0], each, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("transfer", ["free", "delay", "blocking", "blocking:latency=0.3s,bandwidth=10"])
@pytest.mark.parametrize("rule", TIME_RULES)
@pytest.mark.parametrize("seed", range(4))
def test_bounds_spare_comparisons_and_change_no_choice(seed: int, rule: Rule, transfer: str) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 80, 3, inputs_per_op=1.2)
    cluster = Cluster.uniform(3, transfer=transfer)
    n, d = graph.num_ops, cluster.num_devices
    layout, state = kernel_arguments(graph, cluster)
    rank = upward_rank(graph, cluster)
    free = [o for o in range(n) if (graph.colocation_leader == graph.colocation_leader[o]).sum() == 1]
    able = [o for o in free if allowed_matrix(graph, cluster)[o].all()]
    price = np.where(rng.random((n, d)) < 0.3, rng.normal(size=(n, d)) * 0.01 * rank.max(), 0.0)

    def made(most: float) -> list[list[int]]:
        price[able[0], 0] = most
        numbers = rank, price.ravel().copy(), *rule.numbers
        return [part.tolist() for part in schedule_of(layout, state, numbers, compiled=True)]

    # The margin for rounding errors grows with the largest price: with this one, no bound is above a cost.
    assert made(prohibitive_price(graph, cluster)) == made(1e250)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("goal", ["time", "fit"])
@pytest.mark.parametrize("devices", [2, 3])
def test_costs_that_are_not_finite_leave_a_valid_schedule(value: float, goal: str, devices: int) -> None:
    graph = random_graph(np.random.default_rng(1), 12, devices)
    cluster = Cluster.uniform(devices, transfer="blocking:latency=1us")
    price = np.full((graph.num_ops, devices), value)
    for look in (1, 4, 32):
        rule = Rule(look=look, goal=goal)  # pyright: ignore[reportArgumentType]
        placement, events = list_schedule(graph, cluster, rule, price)
        assert allowed_matrix(graph, cluster)[np.arange(graph.num_ops), placement].all()
        replay(graph, cluster, placement, events)


class Counted(Items):
    """A list that counts how often it is read."""

    reads = 0

    def __getitem__(self, i):
        self.reads += 1
        return super().__getitem__(i)


@pytest.mark.parametrize("devices", [2, 3])
def test_a_transfer_concerns_the_readers_of_its_tensor_alone(devices):
    def reads(outputs):
        b = GraphBuilder()
        b.add_op("source", outputs=[8] * outputs)
        for i in range(outputs):
            b.add_op(f"reader{i}", runtime=1 + i % 7, inputs=[f"source:{i}"])
        graph, cluster = b.build(), Cluster.uniform(devices, transfer="blocking:bandwidth=1000")
        layout, state = map(as_items, kernel_arguments(graph, cluster))
        layout = layout._replace(inputs=Counted(layout.inputs))
        rank = Items(upward_rank(graph, cluster).tolist())
        done = schedule(
            layout, state, rank, Items([0.0] * (devices * len(rank))), *TIME_RULES[1].numbers, math.inf
        )
        assert done.counts[0] > 1.3 * graph.num_ops  # There are transfers.
        return layout.inputs.reads

    assert reads(200) < 2.5 * reads(100)
