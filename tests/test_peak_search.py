"""Search among placements and orders of small peaks: exact, within its budget, better than its beginning."""

import collections
import itertools
import math
import signal
from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loops import Items, as_items
from strategies import instances, random_graph, stacked

from regal_jax import Cluster, GraphBuilder, from_jax, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph, op_classes
from regal_jax.heuristics import PeakSearchConfig, PeakSearchRun, heuristic_plans, peak_climb
from regal_jax.heuristics.peaks_kernel import penalise
from regal_jax.plan import Objective
from regal_jax.runtime import compiling, pointers

seeds = st.integers(0, 2**32 - 1)
TWO = Cluster.uniform(2, transfer="blocking")
PEAK = Objective.PEAK_MEMORY


@settings(max_examples=60)
@given(
    instance=instances(max_ops=20), seed=st.integers(0, 2**32 - 1), evaluations=st.integers(0, 600),
    tries=st.integers(1, 50),
)  # fmt: skip
def test_what_it_says_is_what_the_replay_says(
    instance: tuple[ComputationGraph, Cluster], seed: int, evaluations: int, tries: int
) -> None:
    graph, cluster = instance
    if cluster.num_devices == 1:
        with pytest.raises(ConfigError, match="peak-search: the cluster has 1 device"):
            PeakSearchRun(graph, cluster, seed)
        return
    search = PeakSearchRun(graph, cluster, seed, PeakSearchConfig(tries))
    search.run(evaluations)
    assert search.evaluations <= evaluations
    plan = search.plan()
    if plan is None:
        assert evaluations <= 2
        return
    plan.verify(graph)
    if math.isfinite(search.best):
        assert plan.feasible
        assert plan.objective_value == search.best
    told = [math.inf if value is None else value for _, value in search.history]
    assert told == sorted(told, reverse=True)
    assert told[-1] == search.best
    numbers = [number for number, _ in search.history]
    assert numbers == sorted(set(numbers))


def test_it_goes_on_where_it_was_and_never_back() -> None:
    graph = generate("layered", 60, 0)
    once, twice = PeakSearchRun(graph, TWO, 7), PeakSearchRun(graph, TWO, 7)
    once.run(2000)
    peaks = []
    while twice.evaluations < once.evaluations:
        before = twice.evaluations
        twice.run(105)
        peaks.append(twice.best)
        assert before < twice.evaluations <= before + 105
    assert peaks == sorted(peaks, reverse=True)
    count = len([number for number, _ in once.history if number <= twice.evaluations])
    assert twice.history[:count] == once.history[:count]


@pytest.mark.parametrize("seed", range(6))
def test_no_better_than_the_optimum(seed: int) -> None:
    graph = random_graph(np.random.default_rng(seed), 6, 2, inputs_per_op=1.0)
    search = PeakSearchRun(graph, TWO, seed)
    search.run(500)
    assert search.best >= brute_force(graph, TWO, PEAK).objective_value


@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_devices_with_little_memory_are_filled(seed: int, devices: int) -> None:
    """On small graphs the peaks of the others are the optimum."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 5, devices, inputs_per_op=1.0, constraints=False)
    least = brute_force(graph, Cluster.uniform(devices, transfer="blocking"), PEAK).objective_value
    memory = [math.inf, *np.floor(rng.random(devices - 1) * least).tolist()]
    cluster = Cluster(memory, transfer="blocking")
    plan = optimize(graph, cluster, objective=PEAK, method="peak-search", evaluations=1000)
    assert plan.feasible
    assert plan.objective_value <= 1.1 * brute_force(graph, cluster, PEAK).objective_value


@pytest.mark.parametrize("shares", [(0.5, 1.5), (0.5, 0.5, 1.5, 1.5)])
def test_unequal_devices_have_peaks_that_equal_ones_have_together(shares: tuple[float, ...]) -> None:
    devices = len(shares)
    for graph in [generate("layered", 80, seed) for seed in range(3)]:
        equal = PeakSearchRun(graph, Cluster.uniform(devices, transfer="blocking"), 0)
        equal.run(2000)
        memory = [math.ceil(1.15 * share * equal.best) for share in shares]
        search = PeakSearchRun(graph, Cluster(memory, transfer="blocking"), 0)
        search.run(2000)
        assert search.best <= max(memory)


def test_it_finds_what_the_heuristics_do_not() -> None:
    graphs = [generate("layered", 80, seed) for seed in range(4)]
    gains = []
    for graph in graphs:
        known = sorted(heuristic_plans(graph, TWO, PEAK), key=lambda plan: plan.sort_key)
        search = PeakSearchRun(graph, TWO, 0, starts=known[:4])
        search.run(5000)
        gains.append(min(search.best / known[0].objective_value, 1))
    assert np.mean(gains) < 0.99


def test_groups_stay_together_and_where_they_may() -> None:
    builder = GraphBuilder("groups")
    for o in range(24):
        builder.add_op(
            f"o{o}",
            runtime=1.0,
            outputs=[8 + 5 * (o % 7)],
            inputs=[(o - 1, 0)] if o % 3 else [],
            colocation_group=f"g{o % 4}" if o % 2 else None,
            allowed_devices=[1] if o == 6 else None,
        )
    graph = builder.build()
    search = PeakSearchRun(graph, Cluster.uniform(3, transfer="blocking"), 0)
    search.run(1500)
    plan = search.plan()
    assert plan is not None
    plan.verify(graph)
    assert search.evaluations > 1300


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"tries": 0}, "tries is 0; give a whole number from 1"),
        ({"tries": True}, "tries is True; give a whole number from 1"),
        ({"tries": 10**30}, "tries is 10{30}; give a whole number from 1 to 2147483647"),
        ({"blocks": ()}, r"blocks has \(\); give whole numbers"),
        ({"blocks": (4, 0.5)}, r"blocks has \(4, 0\.5\); give whole numbers"),
        ({"blocks": (4, 2**31)}, r"blocks has \(4, 2147483648\); give whole numbers from 1 to 2147483647"),
        ({"blocks": 3}, "blocks is 3; give a sequence"),
        ({"blocks": "4"}, "blocks is '4'; give a sequence"),
        ({"blocks": None}, "blocks is None; give a sequence"),
    ],
)
def test_impossible_settings(value: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=f"PeakSearchConfig: {message}"):
        PeakSearchConfig(**value)  # pyright: ignore[reportArgumentType]


_SHARES = "class_share", "connected_share", "peak_share", "reorder_share", "resend_share"


@pytest.mark.parametrize("field", _SHARES)
@pytest.mark.parametrize("share", [-0.1, 1.5, math.nan, "often", True])
def test_impossible_shares(field: str, share: object) -> None:
    with pytest.raises(ConfigError, match=f"PeakSearchConfig: {field} is .*; give a number from 0 to 1"):
        PeakSearchConfig(**{field: share})  # pyright: ignore[reportArgumentType]


@settings(max_examples=25)
@given(
    instance=instances(max_ops=14), seed=st.integers(0, 99), tries=st.integers(1, 30),
    share=st.sampled_from([0.0, 0.5, 1.0]),
)  # fmt: skip
def test_loops_do_the_same_in_python_without_negative_indices(
    instance: tuple[ComputationGraph, Cluster], seed: int, tries: int, share: float
) -> None:
    graph, cluster = instance
    if cluster.num_devices == 1:
        return
    config = PeakSearchConfig(tries, **dict.fromkeys(_SHARES, share))
    compiled = PeakSearchRun(graph, cluster, seed, config)
    compiled.run(200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiling, "usable", lambda: False)
        patch.setattr(compiling, "_lists", as_items)
        patch.setattr(peak_climb, "_call", pointers.call)
        patch.setattr(peak_climb, "_penalise", penalise)
        plain = PeakSearchRun(graph, cluster, seed, config)
        plain.run(200)
        assert isinstance(plain._now.place, Items)
    assert plain.history == compiled.history
    assert plain.evaluations == compiled.evaluations
    for one, other in zip(plain._now, compiled._now, strict=True):
        np.testing.assert_array_equal(one, other)


def _perturbed(search: PeakSearchRun, draws: list[float]) -> list[int]:
    """The placement that a perturbation with these draws leaves to the descent."""
    tried: list[list[int]] = []

    def look(layout: object, state: Any, *_: object) -> int:
        tried.append(list(state.place))
        state.peaks[:] = [1e9] * len(state.peaks)
        return 1

    space = search._state, search._perturbation, search._now, search._hit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peak_climb, "_call", pointers.call)
        peak_climb.climb(look, search._layout, *space, np.array(draws), np.zeros(3), 100, 0.0)
    assert len(tried) == 1
    return tried[0]


@settings(max_examples=25)
@given(instance=instances(max_ops=20, devices=(2,), constraints=False), seed=st.integers(0, 99))
def test_connected_ops_of_a_block_are_the_nearest(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    graph, cluster = instance
    n, random = graph.num_ops, np.random.default_rng(seed)
    config = PeakSearchConfig(1, blocks=(1,), class_share=0, connected_share=1, peak_share=0)
    search = PeakSearchRun(graph, cluster, 0, config)
    search._start()
    # Ops are next to each other if they make or read the same tensor.
    near = nx.Graph()
    near.add_nodes_from(range(n))
    for tensor in range(graph.num_tensors):
        ops = [graph.tensor_op[tensor], *graph.edge_op[graph.edge_tensor == tensor]]
        near.add_edges_from(itertools.combinations(map(int, ops), 2))
    ids = np.array(search._balance.order)
    order, start = np.array(search._now.order), np.array(search._now.place)
    for i in range(n):
        size = float(random.random())
        tried = _perturbed(search, [0.5, 0.0, (i + 0.5) / n, 0.5, 0.25, *[0.5] * 5, size])
        moved = np.flatnonzero(np.array(tried) != start)
        far = nx.single_source_shortest_path_length(near, int(ids[order[i]]))
        least = sorted(far.values())[: int(max(2, n) ** size)]
        assert sorted(far[int(ids[o])] for o in moved) == least


def test_a_block_at_the_peak_has_the_producer_of_a_tensor_that_is_held_there() -> None:
    """Op 11 of a chain makes a large tensor. At the peak it is held beside a small one."""
    builder = GraphBuilder("chain")
    for i in range(20):
        size = 99 if i == 11 else 1
        builder.add_op(f"op{i}", runtime=1, outputs=[size], inputs=[f"op{i - 1}"] if i else [])
    config = PeakSearchConfig(1, blocks=(1000,), class_share=0, connected_share=0, peak_share=1)
    search = PeakSearchRun(builder.build(), TWO, 0, config)
    search._start()
    ids, start = np.array(search._balance.order), np.array(search._now.place)
    drawn = collections.Counter(
        int(ids[np.flatnonzero(np.array(_perturbed(search, [0.5, 0.0, at / 100, *[0.25] * 8])) != start)[0]])
        for at in range(100)
    )
    assert drawn[11] == 99
    assert sum(drawn.values()) == 100


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("rotated", [False, True])
def test_a_perturbation_changes_whole_classes(share: float, rotated: bool) -> None:
    """Layers that are alike: an op is changed with those like it, or alone. No move is tried afterwards."""
    graph = stacked(generate("erdos-renyi", 8, 0), 5)
    n = graph.num_ops
    three = Cluster.uniform(3, transfer="blocking")
    config = PeakSearchConfig(1, blocks=(1000,), class_share=share, connected_share=0, peak_share=0)
    search = PeakSearchRun(graph, three, 0, config)
    search._start()
    start = np.array(search._now.place)
    of, changed = np.array(search._perturbation.class_of), []
    for i in range(n):
        for device in range(3):
            turned = 0.25 if rotated else 0.75
            tried = _perturbed(search, [0.5, 0.0, (i + 0.5) / n, 0.5, turned, (device + 0.5) / 3, *[0.5] * 5])
            o = int(np.array(search._now.order)[i])
            hit = np.flatnonzero(of == of[o]) if share else np.array([o])
            wanted = start.copy()
            wanted[hit] = (start[hit] + 1 + int((device + 0.5) / 3 * 2)) % 3 if rotated else device
            assert tried == wanted.tolist()
            changed.append(len(hit))
            assert not np.any(search._hit)
    assert max(changed) == (np.bincount(op_classes(graph).of).max() if share else 1)
    assert (max(changed) > 2) == (share > 0)


def test_gradients_have_lower_peaks_if_ops_move_in_the_order() -> None:
    """A convolutional network, whose gradients free what the forward pass has left for them."""
    widths = (64, 128, 256, 256, 512, 512, 512, 512)

    def loss(layers: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
        for k, (kernel, bias) in enumerate(layers):
            x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME") + bias[None, :, None, None])
            if k in (0, 1, 3, 5, 7):
                x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return x.sum()

    shape = jax.ShapeDtypeStruct
    layers = [
        (shape((b, a, 3, 3), jnp.float32), shape((b,), jnp.float32))
        for a, b in itertools.pairwise((3, *widths))
    ]
    graph = from_jax(jax.grad(loss), layers, shape((4, 3, 128, 128), jnp.float32), resident_argnums=0)
    best = []
    for share in (0.0, PeakSearchConfig().reorder_share):
        config = PeakSearchConfig(reorder_share=share)
        runs = [PeakSearchRun(graph, TWO, seed, config) for seed in range(3)]
        for run in runs:
            run.run(3000)
            plan = run.plan()
            assert plan is not None
            plan.verify(graph)
            assert max(plan.peak_memory) == run.best
        best.append([run.best for run in runs])
    assert np.log(np.array(best[1]) / best[0]).mean() < -0.05


def test_it_sends_a_tensor_early_where_its_device_has_no_room_for_it() -> None:
    """Devices and order are given, so that only the time of the transfer is left."""
    builder = GraphBuilder("early")
    builder.add_op("make", runtime=1, outputs=[100], allowed_devices=[0])
    builder.add_op(
        "work", runtime=1, outputs=[1], temp_bytes=90, allowed_devices=[0], control_inputs=["make"]
    )
    builder.add_op("use", runtime=1, outputs=[1], inputs=["make", "work"], allowed_devices=[1])
    graph = builder.build()
    for transfer, share, peak in (("blocking", 1.0, 102), ("blocking", 0.0, 191), ("free", 1.0, 191)):
        cluster = Cluster.uniform(2, transfer=transfer)
        search = PeakSearchRun(graph, cluster, 0, PeakSearchConfig(resend_share=share))
        search.run(200)
        plan = search.plan()
        assert plan is not None
        plan.verify(graph)
        assert max(plan.peak_memory) == search.best == peak
        if share:
            assert peak == brute_force(graph, cluster, PEAK).objective_value
    early = PeakSearchRun(graph, TWO, 0, starts=[brute_force(graph, TWO, PEAK)])
    early.run(6)
    assert early.best == 102


def test_it_begins_with_the_orders_of_plans() -> None:
    """What a longer search has found in its own order, with little to find it again."""
    graph = generate("layered", 80, 3)
    long = PeakSearchRun(graph, TWO, 0)
    long.run(5000)
    plan = long.plan()
    assert plan is not None
    short = PeakSearchRun(graph, TWO, 1, starts=[plan])
    short.run(6)
    assert short.best == long.best
    assert short.evaluations == 5


class TestTheMethod:
    def test_from_the_best_heuristic_down(self) -> None:
        graphs = [generate("layered", n, seed) for seed, n in enumerate((30, 80))]
        plans = optimize_many(
            graphs, TWO, objective=PEAK, method="peak-search", evaluations=3000, progress=False
        )
        for graph, plan in zip(graphs, plans, strict=True):
            plan.verify(graph)
            known = min(heuristic_plans(graph, TWO, PEAK), key=lambda plan: plan.sort_key)
            assert plan.sort_key <= known.sort_key
            alone = optimize(graph, TWO, objective=PEAK, method="peak-search", evaluations=3000)
            assert alone.timeline.op.tolist() == plan.timeline.op.tolist()
            history = plan.provenance["history"]
            assert (history["best"][0], history["best"][-1]) == (known.objective_value, plan.objective_value)
        assert any("best_from" not in plan.provenance for plan in plans)

    def test_for_one_objective_and_several_devices(self) -> None:
        graph = generate("layered", 30, 1)
        with pytest.raises(ConfigError, match="peak-search is for peak-memory, not for makespan"):
            optimize(graph, TWO, method="peak-search")
        one = Cluster.uniform(1)
        plan = optimize(graph, one, objective=PEAK, method="peak-search")
        assert plan.provenance["evaluations"] == 0
        assert plan.objective_value == min(p.objective_value for p in heuristic_plans(graph, one, PEAK))

    def test_target_and_time(self) -> None:
        graph = generate("layered", 80, 2)
        options = {"objective": PEAK, "method": "peak-search"}
        whole = optimize(graph, TWO, **options, evaluations=5000)
        some = optimize(graph, TWO, **options, evaluations=5000, target=whole.objective_value * 1.001)
        assert (some.provenance["stopped"], some.objective_value <= whole.objective_value * 1.001) == (
            "target",
            True,
        )
        assert some.provenance["evaluations"] <= whole.provenance["evaluations"]
        late = optimize(graph, TWO, **options, evaluations=10**8, time_limit=0.2)
        assert late.provenance["stopped"] == "time"

    def test_ctrl_c_keeps_the_best_so_far(self, monkeypatch: pytest.MonkeyPatch) -> None:
        advance, pressed = PeakSearchRun._advance, []

        def pressing(self: PeakSearchRun, most: int, goal: float) -> None:
            advance(self, most, goal)
            if self.evaluations > 500 and not pressed:
                pressed.append(signal.raise_signal(signal.SIGINT))

        monkeypatch.setattr(PeakSearchRun, "_advance", pressing)
        graph = generate("layered", 80, 3)
        plan = optimize(graph, TWO, objective=PEAK, method="peak-search", evaluations=10**6)
        assert plan.provenance["stopped"] == "interrupted"
        assert 500 < plan.provenance["evaluations"] < 10**6
        plan.verify(graph)
