"""Dynamic programming over sets of ops: exact without limits, equal to its definition with limits."""

import itertools

import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loops import watched
from strategies import instances, random_graph

from regal_jax import ApproximateDp, Cluster, DepthFirstDp, GraphBuilder, RandomOrders, optimize
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics import (
    approximate_dp,
    beam_kernel,
    depth_first,
    depth_first_dp,
    depth_first_kernel,
    dynamic_programming,
    least_random_order,
    order_costs,
    order_peak,
    run_heuristic,
)
from regal_jax.heuristics.orders import bfs_order, dfs_order, lpmf_order
from regal_jax.plan import Objective, Plan

ONE = Cluster.uniform(1)
PEAK = Objective.PEAK_MEMORY
ALL = 10**9


def replayed(graph: ComputationGraph, order: np.ndarray) -> int:
    """The peak by the exact replay, which refuses invalid orders."""
    placement = np.zeros(graph.num_ops, np.int64)
    return int(Plan.from_events(graph, ONE, placement, order, objective=PEAK).objective_value)


def definition(graph: ComputationGraph, width: int, *, held: bool = False) -> tuple[list[int], int]:
    """Approximate DP as it is defined, with sets and sorted lists: order and peak."""
    costs = order_costs.order_costs(graph)
    before = [set(costs.before[a:b].tolist()) for a, b in itertools.pairwise(costs.before_rows)]
    tensors = list(zip(graph.tensor_op.tolist(), graph.tensor_bytes.tolist(), graph.tensor_keep, strict=True))
    readers = [set(graph.edge_op[graph.edge_tensor == t].tolist()) for t in range(len(tensors))]

    def bytes_after(done: frozenset[int]) -> int:
        return sum(
            size
            for t, (maker, size, keep) in enumerate(tensors)
            if (maker in done or graph.resident[maker])
            and (keep or maker not in done or not readers[t] <= done)
        )

    residents = np.flatnonzero(graph.resident).tolist()
    beam = [(bytes_after(frozenset()), residents)]
    for _ in range(graph.num_ops - len(residents)):
        found: dict[frozenset[int], tuple[int, list[int]]] = {}
        for peak, order in beam:
            done = frozenset(order)
            for o in range(graph.num_ops):
                if o not in done and before[o] <= done:
                    value = max(peak, bytes_after(done) + int(costs.need[o]))
                    key = done | {o}
                    if key not in found or value < found[key][0]:
                        found.pop(key, None)
                        found[key] = value, [*order, o]
        ranked = sorted(found.items(), key=lambda item: item[1][0])
        if held and len(ranked) > width:
            last = ranked[width - 1][1][0]
            ties = sorted((i for i in ranked if i[1][0] == last), key=lambda item: bytes_after(item[0]))
            lower = [i for i in ranked if i[1][0] < last]
            chosen = {item[0] for item in [*lower, *ties[: width - len(lower)]]}
            ranked = [item for item in ranked if item[0] in chosen]
        beam = [value for _, value in ranked[:width]]
    return beam[0][1], beam[0][0]


@settings(max_examples=40)
@given(instance=instances(max_ops=6, devices=(1,)), seed=st.integers(0, 2**32 - 1))
def test_without_limits_they_are_exact(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, _ = instance
    least = brute_force(graph, ONE, PEAK).objective_value
    for found in (
        approximate_dp(graph, ALL),
        approximate_dp(graph, ALL, held=True),
        depth_first_dp(graph, seed),
        depth_first_dp(graph, seed, states=1),
    ):
        assert found.optimal
        assert found.peak == least == replayed(graph, found.order) == order_peak(graph, found.order)


@settings(max_examples=40)
@given(
    instance=instances(max_ops=14, devices=(1,)), width=st.integers(1, 12), held=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_a_narrow_beam_is_what_its_definition_says(
    instance: tuple[ComputationGraph, Cluster], width: int, held: bool, seed: int
) -> None:
    graph, _ = instance
    found, least = approximate_dp(graph, width, held=held), depth_first_dp(graph, seed)
    order, peak = definition(graph, width, held=held)
    assert found.order.tolist() == order
    assert found.peak == peak == replayed(graph, found.order) >= least.peak
    assert least.optimal
    # A result that is reported as optimal is optimal, even if sets were dropped.
    assert not found.optimal or found.peak == least.peak


def two_branches() -> ComputationGraph:
    """``big`` (9 bytes) and ``small`` (1), sources that are each read by an op that frees them, then a sink.

    ``small`` and then its reader have the lowest peaks at first, 1 and 2. With ``big`` after them the peaks
    are 1 + 9 and 1 + 9 + 1. If ``big`` and its reader run first, the peaks are 9 and 10, and no later peak is
    higher.
    """
    builder = GraphBuilder("branches")
    builder.add_op("big", outputs=[9])
    builder.add_op("small", outputs=[1])
    builder.add_op("big reader", inputs=["big"], outputs=[1])
    builder.add_op("small reader", inputs=["small"], outputs=[1])
    builder.add_op("sink", inputs=["big reader", "small reader"])
    return builder.build()


def test_what_is_dropped_at_a_peak_of_zero_may_matter() -> None:
    builder = GraphBuilder("zero")
    builder.add_op("nothing", outputs=[0])
    builder.add_op("big", outputs=[9])
    builder.add_op("small", outputs=[1])
    builder.add_op("big reader", inputs=["big"], outputs=[1])
    builder.add_op("small reader", inputs=["small"], outputs=[1])
    builder.add_op("sink", inputs=["big reader", "small reader", "nothing"])
    found = approximate_dp(builder.build(), 1)
    assert (found.peak, found.optimal) == (11, False)


def test_what_is_dropped_at_an_equal_peak_may_matter() -> None:
    """After ``root``, whose peak is 4, both readers reach 4. Only the second one first leads to no more."""
    builder = GraphBuilder("equal")
    builder.add_op("root", outputs=[2], temp_bytes=2)
    builder.add_op("first reader", inputs=["root"], outputs=[1], temp_bytes=1)
    builder.add_op("second reader", inputs=["root"], outputs=[2])
    builder.add_op("last", inputs=["first reader"], outputs=[2])
    graph = builder.build()
    found = approximate_dp(graph, 1)
    assert (found.peak, found.optimal) == (5, False)
    assert (approximate_dp(graph, ALL).peak, approximate_dp(graph, ALL).optimal) == (4, True)


def test_by_hand() -> None:
    graph = two_branches()
    narrow = approximate_dp(graph, 1)
    assert [graph.op_names[o] for o in narrow.order] == ["small", "small reader", "big", "big reader", "sink"]
    assert (narrow.peak, narrow.optimal) == (11, False)
    for found in (approximate_dp(graph, ALL), depth_first_dp(graph)):
        assert (found.peak, found.optimal) == (10, True)
    # BFS keeps the order of indices, DFS takes an op and then its reader, LPMF what leaves the least memory.
    for order, names, peak in (
        (bfs_order(graph), ["big", "small", "big reader", "small reader", "sink"], 11),
        (dfs_order(graph), ["big", "big reader", "small", "small reader", "sink"], 10),
        (lpmf_order(graph), ["small", "small reader", "big", "big reader", "sink"], 11),
    ):
        assert [graph.op_names[o] for o in order] == names
        assert replayed(graph, order) == order_peak(graph, order) == peak


@pytest.mark.parametrize("seed", range(8))
def test_heuristics_on_one_device_are_no_better_than_the_optimum(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed), 6, inputs_per_op=2.0)
    least = brute_force(graph, ONE, PEAK).objective_value
    plans = {
        name: run_heuristic(name, graph, ONE, PEAK)
        for name in ("xla-list", "xla-dfs", "xla-post-order", "xla-best", "lpmf", "bfs", "partition-dfs")
    }
    for plan in plans.values():
        plan.verify(graph)
        assert plan.objective_value >= least
    xla = [plans[name].objective_value for name in ("xla-list", "xla-dfs", "xla-post-order")]
    assert plans["xla-best"].objective_value == min(xla)


def shaped(count: int, *, chain: bool) -> ComputationGraph:
    builder = GraphBuilder("shape")
    for i in range(count):
        builder.add_op(f"o{i}", outputs=[3], inputs=[(i - 1, 0)] if chain and i else [])
    return builder.build()


def test_one_op_a_chain_and_no_edge() -> None:
    for graph, peak in ((shaped(1, chain=True), 3), (shaped(9, chain=True), 6), (shaped(9, chain=False), 3)):
        for found in (approximate_dp(graph, 1), approximate_dp(graph, 4, held=True), depth_first_dp(graph)):
            assert found.peak == peak == replayed(graph, found.order)
        assert order_peak(graph, least_random_order(graph, 3)) == peak


def test_all_residents() -> None:
    builder = GraphBuilder("residents")
    builder.add_op("a", outputs=[5], runtime=0.0, resident=True)
    builder.add_op("b", outputs=[7], runtime=0.0, resident=True)
    graph = builder.build()
    for found in (approximate_dp(graph, 1), depth_first_dp(graph)):
        assert (found.peak, found.order.tolist(), found.optimal) == (12, [0, 1], True)


def test_loops_do_the_same_in_python_without_negative_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    graph = random_graph(np.random.default_rng(3), 40, inputs_per_op=2.0)

    def results() -> list[list[int]]:
        return [
            approximate_dp(graph, 20).order.tolist(),
            approximate_dp(graph, 20, held=True).order.tolist(),
            depth_first_dp(graph, 1, seconds=0.0).order.tolist(),
            least_random_order(graph, 30, 5).tolist(),
        ]

    compiled = results()
    for module in (order_costs, dynamic_programming, depth_first):
        monkeypatch.setattr(module, "loops", watched)
    plain = {"_is_same": beam_kernel._same, "_is_found": beam_kernel._found, "_are_freed": beam_kernel._freed}
    for name, function in plain.items():
        monkeypatch.setattr(beam_kernel, name, function)
    monkeypatch.setattr(depth_first_kernel, "_is_improved", depth_first_kernel._improved)
    assert results() == compiled


@pytest.mark.parametrize("held", [False, True])
def test_more_sets_than_there_is_memory_for_are_refused(held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate("ordering-layered", 120, seed=0)
    monkeypatch.setattr(dynamic_programming, "machine_memory", lambda: 2**20)
    assert len(approximate_dp(graph, 50, held).order) == 120
    message = (
        r"^approximate-dp: [0-9,]+ sets of ops of one length need about .* GiB of 0.0; give a smaller width"
    )
    with pytest.raises(ConfigError, match=message):
        approximate_dp(graph, 10**6, held)


def test_limits_of_time_and_of_sets() -> None:
    graph = generate("ordering-layered", 120, seed=0)
    late = approximate_dp(graph, 1000, seconds=0.0)
    assert late.order.tolist() == approximate_dp(graph, 1).order.tolist()
    first = depth_first_dp(graph, 0, seconds=0.0)
    assert not first.optimal
    assert first.peak == replayed(graph, first.order)
    assert depth_first_dp(graph, 0, seconds=0.0).peak == first.peak
    small = random_graph(np.random.default_rng(1), 14, inputs_per_op=1.5)
    few = depth_first_dp(small, 0, states=20)
    many = depth_first_dp(small, 0)
    assert (few.optimal, few.peak) == (True, many.peak)
    assert few.states > many.states


def test_links_are_pruned(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate("ordering-layered", 80, seed=2)
    whole = approximate_dp(graph, 50)
    monkeypatch.setattr(dynamic_programming, "_MOST_LINKS", 200)
    pruned = approximate_dp(graph, 50)
    assert pruned.order.tolist() == whole.order.tolist()


def test_random_orders_are_uniform_at_each_step() -> None:
    """Of ``a``, and ``b`` before ``c``: a and b are equally likely at first, then a and c."""
    builder = GraphBuilder("uniform")
    for name, inputs in (("a", []), ("b", []), ("c", ["b"])):
        builder.add_op(name, outputs=[1], inputs=inputs)
    graph = builder.build()
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(800):
        order = tuple(least_random_order(graph, 1, seed).tolist())
        counts[order] = counts.get(order, 0) + 1
    # a first: 1/2. b first: 1/4 each.
    assert set(counts) == {(0, 1, 2), (1, 0, 2), (1, 2, 0)}
    assert abs(counts[0, 1, 2] - 400) < 60
    assert abs(counts[1, 0, 2] - 200) < 55
    peaks = [order_peak(graph, least_random_order(graph, count, 4)) for count in (1, 10, 100)]
    assert peaks == sorted(peaks, reverse=True)


class TestTheMethods:
    def test_what_they_tell(self) -> None:
        graph = generate("ordering-layered", 30, seed=0)
        options = {"objective": PEAK, "evaluations": 10}
        exact = optimize(graph, ONE, method=DepthFirstDp(), **options)
        assert exact.provenance["status"] == "optimal"
        wide = optimize(graph, ONE, method=ApproximateDp(width=10_000, held=True), **options)
        assert wide.objective_value == exact.objective_value
        random = optimize(graph, ONE, method=RandomOrders(orders=5), **options)
        assert random.objective_value >= exact.objective_value
        other = optimize(graph, ONE, method=RandomOrders(orders=5), seed=1, **options)
        assert random.timeline.op.tolist() != other.timeline.op.tolist()

    def test_time_limits(self) -> None:
        graph = generate("ordering-layered", 400, seed=0)
        for method in (ApproximateDp(width=100_000), DepthFirstDp(), RandomOrders(10**7)):
            plan = optimize(graph, ONE, objective=PEAK, method=method, time_limit=0.1)
            plan.verify(graph)
            assert plan.provenance["seconds"] < 20

    @pytest.mark.parametrize(
        ("make", "said"),
        [
            (lambda: ApproximateDp(width=0), "ApproximateDp: width is 0"),
            (lambda: ApproximateDp(held=1), "ApproximateDp: held is 1"),  # pyright: ignore[reportArgumentType]
            (lambda: DepthFirstDp(time_limit=-1), "DepthFirstDp: time_limit is -1"),
            (lambda: DepthFirstDp(states=0), "DepthFirstDp: states is 0"),
            (lambda: RandomOrders(orders=0), "RandomOrders: orders is 0"),
            (lambda: approximate_dp(two_branches(), 0), "width"),
            (lambda: depth_first_dp(two_branches(), states=0), "states"),
        ],
    )
    def test_impossible_settings(self, make: object, said: str) -> None:
        with pytest.raises(ConfigError, match=said):
            make()  # pyright: ignore[reportCallIssue]


def test_what_is_no_order_has_no_peak() -> None:
    graph = generate("erdos-renyi", 15, seed=0)
    order = graph.topological_order
    assert order_peak(graph, order.tolist()) == order_peak(graph, order)
    for wrong in (order - 3, order + 10**6, np.zeros(15, int), order[:12], order[:0]):
        with pytest.raises(PlanError, match="give each of the 15 ops of 'erdos-renyi-15-0' once"):
            order_peak(graph, wrong)
    with pytest.raises(PlanError, match=r"order: op .* is before .*, for which it waits"):
        order_peak(graph, order[::-1])
    with pytest.raises(PlanError, match="order: give whole numbers in one row"):
        order_peak(graph, order + 0.5)
    for count in (0, -1, 1.5, "x"):
        with pytest.raises(ConfigError, match="random orders: count"):
            least_random_order(graph, count)
