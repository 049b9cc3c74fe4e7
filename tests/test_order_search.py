"""Search among orders: exact peaks, monotone progress, valid proofs, and limits in both directions."""

import collections
import dataclasses
import itertools
import math
import signal
import types
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loops import Items, as_items
from strategies import instances, random_graph

from regal_jax import Cluster, GraphBuilder, OrderSearch, PeakSearch, Portfolio, optimize, optimize_many
from regal_jax.datasets import generate, load_sample
from regal_jax.errors import ConfigError, InfeasiblePlanWarning
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics import (
    OrderSearchConfig,
    OrderSearchRun,
    depth_first_dp,
    heuristic_plans,
    order_beam,
    order_costs,
    order_peak,
    order_search,
    order_windows,
    run_heuristic,
)
from regal_jax.heuristics.order_windows import Beginning, Profile
from regal_jax.heuristics.orders import random_order
from regal_jax.plan import Objective, Plan
from regal_jax.solvers import parse_settings, with_settings

ONE = Cluster.uniform(1)
PEAK = Objective.PEAK_MEMORY


def searched(graph: ComputationGraph, evaluations: int, **settings: object) -> OrderSearchRun:
    search = OrderSearchRun(graph, ONE, 0, OrderSearchConfig(**settings))  # pyright: ignore[reportArgumentType]
    search.run(evaluations)
    return search


@settings(max_examples=40)
@given(
    instance=instances(max_ops=6, devices=(1,)), width=st.integers(1, 40), seed=st.integers(0, 2**32 - 1),
    guided=st.booleans(), windows=st.sampled_from([(), (1, 2, 3)]),
)  # fmt: skip
def test_it_proves_the_optimum_of_small_graphs(
    instance: tuple[ComputationGraph, Cluster], width: int, seed: int, guided: bool, windows: tuple[int, ...]
) -> None:
    graph, _ = instance
    priorities = np.random.default_rng(seed).normal(size=graph.num_ops) if guided else None
    config = OrderSearchConfig(width=width, windows=windows)
    search = OrderSearchRun(graph, ONE, seed, config, priorities=priorities)
    search.run(10**6)
    plan = search.plan()
    assert plan is not None
    plan.verify(graph)
    assert (plan.provenance["status"], plan.provenance["bound"]) == ("optimal", plan.objective_value)
    assert search.evaluations < 10**6
    assert search.best == plan.objective_value == brute_force(graph, ONE, PEAK).objective_value
    assert search.proven_bytes == search.best


@settings(max_examples=40)
@given(
    instance=instances(max_ops=16, devices=(1,)), width=st.integers(1, 3), evaluations=st.integers(0, 60),
    back=st.booleans(), windows=st.sampled_from([(), (2, 4, 7)]), pieces=st.booleans(),
)  # fmt: skip
def test_what_it_says_is_what_the_replay_says(
    instance: tuple[ComputationGraph, Cluster],
    width: int,
    evaluations: int,
    back: bool,
    windows: tuple[int, ...],
    pieces: bool,
) -> None:
    graph, cluster = instance
    config = OrderSearchConfig(width=width, most_width=4, growth=2, windows=windows)
    search = OrderSearchRun(graph, cluster, 1, config)
    for piece in [1] * evaluations if pieces else [evaluations]:
        before = search.evaluations
        search.run(piece)
        assert search.evaluations <= before + piece
    assert search.evaluations <= evaluations
    least, plan = depth_first_dp(graph), search.plan()
    if plan is None:
        assert evaluations == 0
        return
    plan.verify(graph)
    peak = order_peak(graph, plan.event_ids(graph))
    assert plan.objective_value == peak >= least.peak
    assert "status" not in plan.provenance or peak == least.peak
    assert search.proven_bytes <= least.peak
    if math.isfinite(search.best):
        assert search.best == peak
    told = [math.inf if value is None else value for _, value in search.history]
    assert told == sorted(told, reverse=True)
    # A beam that drops nothing finds an order below a limit if and only if there is one, in both directions.
    begin = Beginning.of_graph(graph, back=back)
    for limit, reached in ((least.peak, False), (least.peak + 1, True)):
        if limit <= search._lower:
            continue
        beam = order_search._Beam(order_search._Attempt(back, limit, 4096, np.zeros(graph.num_ops), begin))
        while not beam.ended:
            beam.advance(10**6)
        order = beam.order()
        assert not beam.dropped
        assert (order is not None) == reached
        assert order is None or order_peak(graph, order) == least.peak


@settings(max_examples=40)
@given(instance=instances(max_ops=16, devices=(1,)), seed=st.integers(0, 2**32 - 1))
def test_the_memory_at_each_step_is_that_of_the_replay(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    graph, _ = instance
    order = random_order(graph, seed)
    profile = Profile(order_costs.order_costs(graph), order)
    plan = Plan.from_events(graph, ONE, np.zeros(graph.num_ops, int), order, objective=PEAK)
    assert profile.peak == plan.objective_value == order_peak(graph, order)
    assert profile.held[0] == int(graph.tensor_bytes[graph.tensor_resident].sum())
    assert profile.held[-1] == int(graph.tensor_bytes[graph.tensor_keep].sum())
    np.testing.assert_array_equal(profile.order[profile.step], np.arange(graph.num_ops))


@settings(max_examples=60)
@given(
    instance=instances(max_ops=9, devices=(1,)), seed=st.integers(0, 2**32 - 1), back=st.booleans(),
    data=st.data(),
)  # fmt: skip
def test_a_beam_in_a_window_finds_its_best_order(
    instance: tuple[ComputationGraph, Cluster], seed: int, back: bool, data: st.DataObject
) -> None:
    """Compared with all orders of the window, each by the peak of the whole order."""
    graph, _ = instance
    first = data.draw(st.integers(0, graph.num_ops - 1))
    last = data.draw(st.integers(first + 1, min(graph.num_ops, first + 5)))
    profile = Profile(order_costs.order_costs(graph), random_order(graph, seed))
    before = [set(graph.edge_producer[graph.edge_op == o]) for o in range(graph.num_ops)]
    for source, target in zip(graph.control_source, graph.control_target, strict=True):
        before[target].add(source)

    def allowed(ops: tuple[int, ...]) -> bool:
        return all(not before[o] & set(ops[i + 1 :]) for i, o in enumerate(ops))

    def within(ops: object) -> int:
        return int(profile.replaced(first, np.array(ops)).peaks[first:last].max())

    every = filter(allowed, itertools.permutations(profile.order[first:last].tolist()))
    least = min(map(within, every))
    begin = Beginning.of_window(profile, first, last, back=back)
    for limit in (least, least + 1):
        attempt = order_search._Attempt(back, limit, 4096, np.zeros(last - first), begin, first)
        beam = order_search._Beam(attempt)
        while not beam.ended:
            beam.advance(10**6)
        order = beam.order()
        assert (order is not None) == (limit > least)
        if order is not None:
            ops = profile.order[first:last][order]
            assert allowed(tuple(ops.tolist()))
            assert within(ops) == least


def long_chains() -> ComputationGraph:
    """One chain that frees what it makes, and ten ops whose large outputs can wait until they are read."""
    builder = GraphBuilder("far")
    builder.add_op("root", outputs=[1])
    for i in range(150):
        builder.add_op(f"step{i}", outputs=[5], inputs=[(i, 0)])
    late = [builder.add_op(f"late{i}", outputs=[30], inputs=[(0, 0)]) for i in range(10)]
    for i, op in enumerate(late):
        builder.add_op(f"read{i}", outputs=[1], inputs=[(op, 0)], keep=[0])
    return builder.build()


def test_windows_lower_the_peak_where_whole_beams_may_not() -> None:
    """A bad start: no evaluations are left for a whole beam, but windows are a fraction of one."""
    graph = long_chains()
    order = np.concatenate([np.arange(161), np.arange(161, 171)])
    start = Plan.from_events(graph, ONE, np.zeros(graph.num_ops, int), order, objective=PEAK)
    best = {}
    for windows in ((), (16, 64)):
        config = OrderSearchConfig(width=32, most_width=32, windows=windows)
        search = OrderSearchRun(graph, ONE, 0, config, starts=[start])
        search._starts = collections.deque(list(search._starts)[:1])
        assert search.best == math.inf
        search.run(30)
        plan = search.plan()
        assert plan is not None
        plan.verify(graph)
        assert plan.objective_value == order_peak(graph, plan.event_ids(graph)) == search.best
        assert search.evaluations <= 30
        best[windows] = search.best
    assert best[16, 64] < best[()] == start.objective_value


def test_it_goes_on_where_it_was_and_never_back() -> None:
    graph = generate("ordering-layered", 90, seed=3)
    once, twice = (OrderSearchRun(graph, ONE, 7, OrderSearchConfig(width=4, most_width=16)) for _ in range(2))
    once.run(900)
    while twice.evaluations < 870:
        before = twice.evaluations
        twice.run(41)
        assert before < twice.evaluations <= before + 41
    count = len([number for number, _ in once.history if number <= twice.evaluations])
    assert twice.history[:count] == once.history[:count]
    other = OrderSearchRun(graph, ONE, 8, OrderSearchConfig(width=4, most_width=16))
    other.run(900)
    assert other.plan() is not None


def test_better_than_heuristics_and_than_a_narrow_beam() -> None:
    for seed in range(2):
        graph = generate("ordering-layered", 120, seed=seed)
        known = min(plan.objective_value for plan in heuristic_plans(graph, ONE, PEAK))
        few, many = searched(graph, 5), searched(graph, 1500)
        assert many.best < known
        assert many.best <= few.best


def test_never_worse_than_its_starts() -> None:
    graph = generate("ordering-layered", 100, seed=5)
    good = searched(graph, 2000).plan()
    bad = run_heuristic("bfs", graph, ONE, PEAK)
    assert good is not None
    search = OrderSearchRun(graph, ONE, 0, starts=[bad, good])
    search.run(2)
    assert (search.evaluations, search.best) == (2, good.objective_value)
    assert search.history[0] == (1, bad.objective_value)
    search.run(400)
    assert search.best <= good.objective_value


def test_real_graphs_are_no_worse_than_xla() -> None:
    for _, graph in load_sample("train")[:4]:
        xla = run_heuristic("xla-best", graph, ONE, PEAK).objective_value
        assert searched(graph, 5).best <= xla


def test_a_tensor_that_many_ops_read_takes_no_more_than_as_many_edges() -> None:
    builder = GraphBuilder("wide")
    builder.add_op("source", outputs=[8])
    for o in range(3000):
        builder.add_op(str(o), inputs=["source"], outputs=[4])
    builder.add_op("sum", inputs=[(o, 0) for o in range(1, 3001)])
    graph = builder.build()
    assert sum(map(np.size, order_costs.order_costs(graph))) < 30 * graph.num_ops
    search, made = OrderSearchRun(graph, ONE, 0), [0]
    # Backwards all ops are ready after the first step, and each of them allocates the tensor for all others.
    for back in (False, True):
        attempt = order_search._Attempt(back, 10**6, 64, np.zeros(graph.num_ops), search._begun[back])
        search._beam = order_search._Beam(attempt)

        def ends() -> bool:
            made.append(search._made)
            return False

        search._starts.clear()
        search.run(10, ends)
    # It is asked in time whether to end.
    assert np.diff(made).max() <= 2**24 / graph.num_ops


def test_one_op_a_chain_and_no_edge() -> None:
    for count, chain, peak in ((1, True, 3), (9, True, 6), (9, False, 3)):
        builder = GraphBuilder("shape")
        for i in range(count):
            builder.add_op(f"o{i}", outputs=[3], inputs=[(i - 1, 0)] if chain and i else [])
        search = searched(builder.build(), 10**9)
        assert search.best == peak


def in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the loops of beams run in Python."""
    for name, function in {
        "_is_less": order_beam._less,
        "_swap": order_beam._exchange,
        "_pivot": order_beam._split,
        "_select": order_beam._least,
        "_sort": order_beam._sorted,
    }.items():
        monkeypatch.setattr(order_beam, name, function)


def test_python_and_compiled_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    graph = random_graph(np.random.default_rng(3), 40, inputs_per_op=2.0)
    sizes = {"width": 4, "most_width": 8, "windows": (8, 16)}
    compiled = searched(graph, 150, **sizes)
    for module in (order_search, order_costs, order_windows):
        monkeypatch.setattr(module, "loops", lambda function: function)
    in_python(monkeypatch)
    monkeypatch.setattr(order_beam, "space", lambda count, kind=int: [0] * count)
    plain = searched(graph, 150, **sizes)
    assert plain.history == compiled.history
    assert plain._made == compiled._made
    one, other = plain.plan(), compiled.plan()
    assert one is not None
    assert other is not None
    assert one.event_ids(graph).tolist() == other.event_ids(graph).tolist()


@settings(max_examples=30)
@given(
    instance=instances(max_ops=12, devices=(1,)), width=st.integers(1, 5), back=st.booleans(),
    seed=st.integers(0, 9), share=st.floats(0.5, 1),
)  # fmt: skip
def test_a_beam_is_the_same_in_python_without_negative_indices_and_with_little_space(
    instance: tuple[ComputationGraph, Cluster], width: int, back: bool, seed: int, share: float
) -> None:
    pytest.importorskip("numba")
    graph, _ = instance
    limit = int(share * order_peak(graph, random_order(graph, seed))) + 1
    score, begin = (
        np.random.default_rng(seed).normal(size=graph.num_ops),
        Beginning.of_graph(graph, back=back),
    )
    attempt = order_search._Attempt(back, limit, width, score, begin)

    def whole(attempt: order_search._Attempt) -> order_search._Beam:
        beam = order_search._Beam(attempt)
        while not beam.ended:
            beam.advance(width + 3)
        return beam

    compiled = whole(attempt)
    with pytest.MonkeyPatch.context() as patch:
        in_python(patch)
        patch.setattr(order_beam, "space", lambda count, kind=int: Items([0] * count))
        patch.setattr(order_search, "loops", lambda function: function)
        patch.setattr(order_search, "_READY", 1)
        patch.setattr(order_search, "_READY_EACH", 0)
        lists: Any = types.SimpleNamespace(field=as_items(begin.field), start=as_items(begin.start))
        plain = whole(dataclasses.replace(attempt, score=as_items(score), begin=lists))
    assert plain._progress == compiled._progress
    one, other = plain.order(), compiled.order()
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert one.tolist() == other.tolist()


@settings(max_examples=60)
@given(values=st.lists(st.integers(0, 5), max_size=60), share=st.floats(0, 1), compiled=st.booleans())
def test_the_least_items_are_moved_and_sorted(values: list[int], share: float, compiled: bool) -> None:
    value, number = np.array(values, np.float64), np.arange(len(values))[::-1].copy()
    expected = sorted(zip(value.tolist(), number.tolist(), strict=True))
    count = int(share * len(values))
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            in_python(patch)
        order_beam._select(value, number, 0, len(values), count)
        found = list(zip(value.tolist(), number.tolist(), strict=True))
        assert sorted(found) == expected
        assert sorted(found[:count]) == expected[:count]
        order_beam._sort(value, number, count, len(values), np.zeros(order_beam._STACK, np.int64))
        assert list(zip(value.tolist(), number.tolist(), strict=True))[count:] == expected[count:]


def test_priorities_guide_it() -> None:
    """The priorities of a good order lead a beam of width one to an equally good order."""
    graph = generate("ordering-layered", 100, seed=5)
    good = searched(graph, 3000).plan()
    assert good is not None
    rank = np.empty(graph.num_ops)
    rank[good.event_ids(graph)] = -np.arange(graph.num_ops)
    config = OrderSearchConfig(width=1, most_width=1, guide=1e6)
    plain, guided = (OrderSearchRun(graph, ONE, 0, config, priorities=each) for each in (None, rank))
    for search in (plain, guided):
        search.run(12)
    assert guided.best == good.objective_value
    assert plain.best >= guided.best


@pytest.mark.parametrize(
    "value",
    [
        {"width": 0},
        {"growth": 1},
        {"most_width": 3},
        {"windows": (0,)},
        {"windows": (8, 2.5)},
        {"windows": 3},
        {"windows": -1},
        {"windows": "64"},
        {"steps": 0.1},
        {"steps": None},
        {"steps": (2,)},
        {"noise": -1},
        {"guide": math.nan},
    ],
)
def test_impossible_settings(value: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"OrderSearchConfig: {next(iter(value))} (is|has)"):
        OrderSearchConfig(**value)  # pyright: ignore[reportArgumentType]


def test_a_single_window_is_refused_by_name() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^OrderSearch: windows is 3; give a sequence of whole numbers, e\.g\. windows=\(64, 256\)$",
    ):
        with_settings(OrderSearch(), parse_settings([("windows", "3")]))


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_for_the_makespan_it_looks_for_an_order_that_fits(seed: int) -> None:
    graph = generate("ordering-layered", 60, seed)
    peak = optimize(graph, ONE, objective=PEAK).objective_value
    best = min(plan.objective_value for plan in heuristic_plans(graph, ONE, PEAK))
    assert peak < best
    for method in ("auto", "order-search"):
        plan = optimize(graph, Cluster.uniform(1, peak), method=method)
        assert (plan.feasible, plan.optimal) == (True, True)
        assert plan.makespan == pytest.approx(graph.runtime.sum())
    with pytest.warns(InfeasiblePlanWarning, match="does not fit|no plan"):
        plan = optimize(graph, Cluster.uniform(1, peak - 1), evaluations=2000)
    assert plan.overflow.sum() == 1
    assert "status" not in plan.provenance


def test_impossible_problems() -> None:
    graph = generate("chain", 4, seed=0)
    with pytest.raises(ConfigError, match="order-search: the cluster has 2 devices"):
        OrderSearchRun(graph, Cluster.uniform(2), 0)
    for wrong in (np.zeros(3), np.full(4, np.nan)):
        with pytest.raises(ConfigError, match="order-search: priorities"):
            OrderSearchRun(graph, ONE, 0, priorities=wrong)


class TestTheMethod:
    def test_from_the_best_heuristic_down(self) -> None:
        graphs = [generate("ordering-layered", n, seed) for seed, n in enumerate((30, 80))]
        plans = optimize_many(
            graphs, ONE, objective=PEAK, method="order-search", evaluations=500, progress=False
        )
        for graph, plan in zip(graphs, plans, strict=True):
            plan.verify(graph)
            known = min(heuristic_plans(graph, ONE, PEAK), key=lambda plan: plan.sort_key)
            assert plan.sort_key <= known.sort_key
            alone = optimize(graph, ONE, objective=PEAK, method="order-search", evaluations=500)
            assert alone.timeline.op.tolist() == plan.timeline.op.tolist()

    def test_a_portfolio_has_it_on_one_device_only(self) -> None:
        graph = generate("ordering-layered", 40, seed=1)
        both = Portfolio(PeakSearch(), OrderSearch())
        one, two = (
            optimize(graph, Cluster.uniform(d), objective=PEAK, method=both, evaluations=300) for d in (1, 2)
        )
        assert one.provenance["evaluations"] > 0
        two.verify(graph)
        with pytest.raises(ConfigError, match="no solver of this portfolio is for peak-memory on 2 devices"):
            optimize(graph, Cluster.uniform(2), objective=PEAK, method=Portfolio(OrderSearch()))

    def test_ctrl_c_keeps_the_best_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        finish, pressed = OrderSearchRun._finish, []

        def pressing(self: OrderSearchRun, beam: object) -> None:
            finish(self, beam)  # pyright: ignore[reportArgumentType]
            if self.evaluations > 20 and not pressed:
                pressed.append(signal.raise_signal(signal.SIGINT))

        monkeypatch.setattr(OrderSearchRun, "_finish", pressing)
        graph = generate("ordering-layered", 300, seed=3)
        plan = optimize(graph, ONE, objective=PEAK, method="order-search", evaluations=10**6)
        assert plan.provenance["stopped"] == "interrupted"
        assert 20 < plan.provenance["evaluations"] < 10**6
        plan.verify(graph)


def test_a_guide_that_has_to_be_made_is_asked_for_once_and_late():
    asked: list[ComputationGraph] = []
    graph = generate("ordering-layered", 60, seed=3)

    def priorities(given: ComputationGraph) -> np.ndarray:
        asked.append(given)
        return np.arange(given.num_ops, dtype=np.float64)

    def search(guide_after: int) -> OrderSearchRun:
        config = OrderSearchConfig(width=2, most_width=8, guide_after=guide_after)
        return OrderSearchRun(graph, ONE, 0, config, priorities=priorities)

    early = search(500)
    early.run(5)
    assert not asked
    early.run(200)
    assert asked == [graph]
    plan = early.plan()
    assert plan is not None
    assert plan.provenance["guided"]
    never = search(10**9)
    never.run(200)
    assert asked == [graph]
    plan = never.plan()
    assert plan is not None
    assert "guided" not in plan.provenance


@pytest.mark.parametrize(("limit", "runs"), [(None, True), (60.0, True), (29.0, False)])
def test_the_network_does_not_run_in_a_search_with_a_short_time_limit(
    limit: float | None, runs: bool, monkeypatch: pytest.MonkeyPatch
):
    asked: list[ComputationGraph] = []

    def priorities(self: OrderSearch, given: ComputationGraph) -> np.ndarray:
        asked.append(given)
        return np.arange(given.num_ops, dtype=np.float64)

    monkeypatch.setattr(OrderSearch, "_priorities", priorities)
    solver = OrderSearch(weights="default", guide_after=500, width=2, most_width=8)
    graph = generate("ordering-layered", 60, seed=3)
    optimize(graph, ONE, objective=PEAK, method=solver, evaluations=200, time_limit=limit)
    assert bool(asked) is runs


@pytest.mark.parametrize(("weights", "message"), [("no-file", "no file 'no-file'"), (3, "got 3")])
def test_weights_that_there_are_not_are_refused_at_once(weights: object, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^weights: .*{message}"):
        OrderSearch(weights=weights)


@pytest.mark.parametrize("method", ["order-search", "auto", "depth-first-dp"])
def test_a_proven_peak_that_does_not_fit_is_impossible(method: str) -> None:
    graph = generate("layered", 25, seed=1)
    options: Any = {"objective": PEAK, "method": method, "evaluations": 2000}
    least = depth_first_dp(graph).peak
    fits = optimize(graph, Cluster.uniform(1, least), **options)
    assert (fits.peak_memory.tolist(), fits.provenance["status"]) == ([least], "optimal")
    with pytest.warns(InfeasiblePlanWarning, match="can fit the memory, as the solver has proven; the least"):
        plan = optimize(graph, Cluster.uniform(1, least - 1), **options)
    assert not plan.impossible
    assert (plan.status, plan.provenance["status"]) == ("infeasible", "impossible")
    assert plan.provenance.get("evaluations", 0) < 2000


@pytest.mark.parametrize("method", ["order-search", "auto"])
def test_plans_say_that_their_peak_is_proven(method: str) -> None:
    graph = generate("layered", 25, seed=1)
    options: Any = {"objective": PEAK, "method": method, "evaluations": 2000, "seed": 0}
    plan = optimize(graph, ONE, **options)
    assert plan.objective_value == depth_first_dp(graph).peak > plan.lower_bound
    said = plan.provenance
    assert (said["status"], said["bound"], said["stopped"]) == ("optimal", plan.objective_value, "optimal")
    assert said["evaluations"] < 2000
    assert "optimal, as the solver has proven" in str(plan)
    # A plan with the same peak that was made before the proof may be the best one.
    again = optimize(graph, ONE, warm_start=plan, **options)
    assert again.provenance["status"] == "optimal"
    # The optimum of a contracted graph is none of the graph.
    contracted = optimize(graph, ONE, contract=True, **options)
    assert contracted.optimal or "status" not in contracted.provenance
