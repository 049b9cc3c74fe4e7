"""Placements by peak memory: their peaks equal the exact replay's, and are near the optimum."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_loops import as_items
from policy_cases import renumbered
from strategies import instances, random_graph

from regal_jax.datasets import generate
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, allowed_matrix
from regal_jax.heuristics import peaks, run_heuristic
from regal_jax.heuristics.numbering import neutral_numbers
from regal_jax.heuristics.orders import dfs_order, lpmf_order, random_order
from regal_jax.heuristics.peak_climb import LEAST_GAIN, REORDERED, WIDTHS
from regal_jax.heuristics.peaks import PeakBalance, least_peak_balance
from regal_jax.heuristics.peaks_kernel import make_state, penalise, refine
from regal_jax.heuristics.work import counting
from regal_jax.heuristics.xla import xla_post_order
from regal_jax.plan import decode_placement, insert_transfers, replay
from regal_jax.runtime.compiling import for_loops, loops

seeds = st.integers(0, 2**32 - 1)


def _peaks(graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, order: np.ndarray) -> np.ndarray:
    events = insert_transfers(graph, cluster, placement, order)
    return replay(graph, cluster, placement, events).peak_memory


def _layers(sizes: list[tuple[int, int]], colocated: bool = True) -> ComputationGraph:
    """A chain of layers ``(weights, activations)``; the weights are in memory from beginning to end."""
    builder = GraphBuilder("layers")
    for i, (weights, _) in enumerate(sizes):
        group = f"layer{i}" if colocated else None
        builder.add_op(f"w{i}", runtime=0, outputs=[weights], keep=[0], colocation_group=group)
    builder.add_op("start", runtime=0, control_inputs=[f"w{i}" for i in range(len(sizes))])
    for i, (_, activations) in enumerate(sizes):
        reads = [f"w{i}"] + ([f"a{i - 1}"] if i else [])
        group = f"layer{i}" if colocated else None
        builder.add_op(
            f"a{i}",
            runtime=1,
            outputs=[activations],
            inputs=reads,
            control_inputs=["start"],
            colocation_group=group,
        )
    return builder.build()


@given(instance=instances(max_ops=12), seed=seeds)
def test_peaks_are_those_of_the_exact_replay(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    order = random_order(graph, seed=seed % 7)
    placement = decode_placement(graph, cluster, rng.random((graph.num_ops, cluster.num_devices)))
    found = PeakBalance(graph, cluster, order).peaks(placement)
    # Peaks are counted at all events. At events of other devices, a device holds no more than at its own.
    assert found.tolist() == _peaks(graph, cluster, placement, order).tolist()


@given(instance=instances(max_ops=12), seed=seeds)
def test_placements_are_allowed_and_no_worse_than_where_they_began(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    graph, cluster = instance
    order = lpmf_order(graph)
    balance = PeakBalance(graph, cluster, order)
    cut = balance.cut(np.random.default_rng(seed).random(graph.num_ops))
    best = balance.refine(cut)
    for placement in (cut, best):
        assert allowed_matrix(graph, cluster)[np.arange(graph.num_ops), placement].all()
        assert (placement == placement[graph.colocation_leader]).all()
    assert balance.peaks(best).max() <= balance.peaks(cut).max()
    assert (balance.refine(cut, tries=0) == cut).all()


def test_cut_makes_peaks_alike_where_sums_of_bytes_would_not() -> None:
    """Early layers have large activations and late layers large weights, as in networks for images."""
    graph = _layers([(2, 40), (2, 40), (2, 20), (10, 8), (20, 4), (40, 2), (40, 2), (40, 2)])
    cluster, order = Cluster.uniform(2, transfer="blocking"), lpmf_order(graph)
    along = np.empty(graph.num_ops)
    along[order] = np.arange(graph.num_ops)
    balance = PeakBalance(graph, cluster, order)
    placement = balance.cut(along)
    # Weights of 36 and activations of 80 against weights of 120 and activations of 6, a copy among them.
    names = {name: int(k) for name, k in zip(graph.op_names, placement, strict=True)}
    assert [names[f"a{i}"] for i in range(8)] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert [names[f"w{i}"] for i in range(8)] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert balance.peaks(placement).tolist() == [116, 126]
    assert (balance.cut() == placement).all()
    bytes_of = np.bincount(graph.tensor_op, graph.tensor_bytes, graph.num_ops)
    equal = np.cumsum(bytes_of[order])[np.argsort(order)] * 2 > bytes_of.sum()
    equal = equal[graph.colocation_leader].astype(np.int64)
    assert balance.peaks(equal).max() > 126


@pytest.mark.parametrize("devices", [1, 2, 3, 5, 7])
def test_cut_shares_out_among_any_number_of_devices(devices: int) -> None:
    graph = _layers([(10, 1)] * 35)
    cluster, order = Cluster.uniform(devices, transfer="blocking"), lpmf_order(graph)
    along = np.array([float(name[1:]) if name != "start" else 0.0 for name in graph.op_names])
    placement = PeakBalance(graph, cluster, order).cut(along)
    layers = placement[[name[0] == "a" for name in graph.op_names]]
    assert (np.diff(layers) >= 0).all()
    counts = np.bincount(layers, minlength=devices)
    assert counts.max() - counts.min() <= 2


def test_what_is_only_read_goes_where_it_is_first_read() -> None:
    graph = _layers([(10, 1)] * 8, colocated=False)
    along = np.array([float(name[1:]) if name[0] == "a" else -1.0 for name in graph.op_names])
    placement = PeakBalance(graph, Cluster.uniform(2, transfer="blocking"), lpmf_order(graph)).cut(along)
    at = dict(zip(graph.op_names, placement.tolist(), strict=True))
    assert all(at[f"w{i}"] == at[f"a{i}"] == int(i >= 4) for i in range(8))


def test_refinement_comes_near_the_best_placement() -> None:
    """Brute force over all placements of 9 ops in the same order, 40 graphs."""
    cluster, many, ratios, begun = Cluster.uniform(2, transfer="blocking"), [], [], []
    for seed in range(40):
        graph = random_graph(np.random.default_rng(seed), 9, 2, constraints=False)
        order = lpmf_order(graph)
        balance = PeakBalance(graph, cluster, order)
        best = min(balance.peaks(np.array(p)).max() for p in itertools.product(range(2), repeat=9))
        start = balance.cut(np.argsort(order).astype(float))
        assert best <= balance.peaks(balance.refine(start)).max()
        ratios.append(balance.peaks(balance.refine(start)).max() / best)
        begun.append(balance.peaks(start).max() / best)
        many.append(balance.peaks(balance.blocks()).max() / best)
    assert np.mean(ratios) - 1 < (np.mean(begun) - 1) / 3
    assert min(many) >= 1
    assert np.mean(many) - 1 < (np.mean(ratios) - 1) / 10


@given(instance=instances(max_ops=12), seed=seeds)
def test_balanced_order_is_the_least_of_several(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    graph, cluster = instance
    numbers = np.random.default_rng(seed).permutation(graph.num_ops)
    order = least_peak_balance(graph, cluster, numbers)[0].order
    # The renumbered graph has the same order.
    same = least_peak_balance(renumbered(graph, numbers), cluster, np.arange(graph.num_ops))[0].order
    assert numbers[order].tolist() == same.tolist()
    least, placement = least_peak_balance(graph, cluster, np.arange(graph.num_ops))
    best = _least(graph, cluster, least.order)
    assert least.value(placement) == best
    for other in (lpmf_order, xla_post_order, dfs_order):
        assert best <= _least(graph, cluster, other(graph))


def test_neutral_numbers_are_those_of_the_renumbered_graph() -> None:
    graph, cluster = generate("layered", 60, 0), Cluster.uniform(2, transfer="blocking")
    numbers = np.random.default_rng(0).permutation(graph.num_ops)
    ours, theirs = neutral_numbers(graph, cluster), neutral_numbers(renumbered(graph, numbers), cluster)
    assert theirs[numbers].tolist() == ours.tolist()
    assert sorted(ours.tolist()) == list(range(graph.num_ops))


def _least(graph: ComputationGraph, cluster: Cluster, order: np.ndarray) -> tuple[float, float]:
    balance = PeakBalance(graph, cluster, order)
    return balance.value(balance.refine(balance.cut(np.argsort(order)), tries=80))


@given(instance=instances(max_ops=30), seed=seeds)
def test_compiled_loops_do_what_numpy_does(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    pytest.importorskip("numba")
    graph, cluster = instance
    _compare_loops(graph, cluster, np.random.default_rng(seed))


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_compiled_loops_do_what_numpy_does_on_larger_graphs(devices: int) -> None:
    """Of so many ops the loops sum up some of the positions only."""
    pytest.importorskip("numba")
    cluster = Cluster.uniform(devices, transfer="blocking")
    for seed in range(3):
        graph = generate("layered", 150 + seed, seed)
        _compare_loops(graph, cluster, np.random.default_rng(seed))


def _compare_loops(graph: ComputationGraph, cluster: Cluster, rng: np.random.Generator) -> None:
    """Compiled loops, the same loops in Python without negative indices, and NumPy."""
    start = rng.integers(cluster.num_devices, size=graph.num_ops)
    order = lpmf_order(graph)
    compiled = PeakBalance(graph, cluster, order)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(peaks, "_kernel", lambda: None)
        plain = PeakBalance(graph, cluster, order)
    highest = plain.peaks(start)
    assert compiled.peaks(start).tolist() == highest.tolist()
    assert compiled.cut().tolist() == plain.cut().tolist()
    for tries in (0, 1, 240):
        found = plain.refine(start, tries)
        assert compiled.refine(start, tries).tolist() == found.tolist()
        if graph.num_ops:
            begun = start[order], np.arange(graph.num_ops), cluster.num_devices, graph.num_tensors
            state = make_state(*begun)
            state.penalty[:] = plain.penalty(highest)
            state = as_items(state)
            refine(as_items(compiled.layout), state, tries, (4, 12, 48), 0, 0, 1e-9)
            assert state.found == found[order].tolist()
            assert state.found_order == list(range(graph.num_ops))
    assert compiled.looked == plain.looked


@given(
    peaks=st.lists(st.integers(0, 50), min_size=1, max_size=5), seed=seeds, equal=st.booleans(),
)  # fmt: skip
def test_devices_with_little_memory_count_as_full(peaks: list[int], seed: int, equal: bool) -> None:
    """Without penalties where memory is equal or enough; otherwise a full device has the highest peak."""
    memory = np.random.default_rng(seed).integers(0, 60, len(peaks)).astype(float)
    memory[1:] = np.where(equal, memory[0], memory[1:])
    penalty = np.full(len(peaks), np.nan)
    penalise(np.array(peaks, float), memory, penalty)
    assert (penalty >= 0).all()
    highest = max(peaks)
    if (peaks <= memory).all():
        np.testing.assert_array_equal(penalty, np.maximum(0, highest - memory))
    elif sum(peaks) <= memory.sum():
        # The same sum fits where full devices have their memory and the others have equal peaks.
        full = penalty > 0
        level = (memory + penalty)[full].max(initial=0) or sum(peaks) / len(peaks)
        assert np.isclose(np.minimum(memory, level).sum(), sum(peaks))
    else:
        np.testing.assert_array_equal(penalty, memory.max() - memory)
    if equal or (memory >= highest).all():
        assert (penalty == 0).all()


def _descend(
    balance: PeakBalance, placement: np.ndarray, order: np.ndarray, tries: int, reorder: bool = True
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """A descent of peak search: placement, order, and their peaks."""
    ops, devices, tensors = balance.order, len(balance.peaks(placement)), len(balance.layout.begin)
    state = for_loops(make_state(placement[ops], np.argsort(ops)[order], devices, tensors))
    reordered = REORDERED if reorder else 0
    loops(refine)(for_loops(balance.layout), state, tries, WIDTHS, 0, reordered, LEAST_GAIN)
    found = np.empty(len(ops), np.int64)
    found[ops] = state.found
    return found, ops[state.found_order], list(state.peaks)


@given(instance=instances(max_ops=12), seed=seeds)
def test_descents_end_in_schedules_that_may_be_and_are_no_worse(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    """Orders respect all edges, and the peaks are those of the exact replay."""
    graph, cluster = instance
    order, given = lpmf_order(graph), random_order(graph, seed=seed % 7)
    balance = PeakBalance(graph, cluster, order)
    cut = balance.cut(np.random.default_rng(seed).random(graph.num_ops))
    if not graph.num_ops:
        return
    found, moved, lowered = _descend(balance, cut, given, 60)
    assert lowered == _peaks(graph, cluster, found, moved).tolist()
    assert max(lowered) <= _peaks(graph, cluster, cut, given).max()
    assert allowed_matrix(graph, cluster)[np.arange(graph.num_ops), found].all()
    assert (found == found[graph.colocation_leader]).all()
    found, moved, lowered = _descend(balance, cut, given, 60, reorder=False)
    assert (moved == given).all()
    assert lowered == _peaks(graph, cluster, found, given).tolist()
    found, moved, _ = _descend(balance, cut, given, 0)
    assert (found == cut).all()
    assert (moved == given).all()


def test_a_descent_moves_readers_before_the_peak_and_producers_behind_it() -> None:
    """On one device only the order is left, and three large tensors need not be in memory at once."""
    builder = GraphBuilder("order")
    builder.add_op("in", runtime=1, outputs=[1])
    for k in range(3):
        builder.add_op(f"big{k}", runtime=1, outputs=[100], inputs=["in"])
        builder.add_op(f"small{k}", runtime=1, outputs=[1], inputs=[f"big{k}"])
    builder.add_op("out", runtime=1, outputs=[1], inputs=[f"small{k}" for k in range(3)])
    graph, cluster = builder.build(), Cluster.uniform(1, transfer="blocking")
    names = ["in", "big0", "big1", "big2", "small0", "small1", "small2", "out"]
    order, zero = np.array([graph.op_index[name] for name in names]), np.zeros(graph.num_ops, np.int64)
    balance = PeakBalance(graph, cluster, order)
    assert balance.peaks(zero).max() == 301
    lowered = max(_descend(balance, zero, order, 100)[2])
    best = min(
        _peaks(graph, cluster, zero, np.array(each)).max()
        for each in itertools.permutations(range(graph.num_ops))
        if _respects(graph, each)
    )
    assert lowered == best < 110
    assert _descend(balance, zero, order, 100, reorder=False)[2] == [301]


def _respects(graph: ComputationGraph, order: tuple[int, ...]) -> bool:
    place = np.argsort(order)
    return bool((place[graph.edge_producer] < place[graph.edge_op]).all())


def test_the_least_balance_is_found_once_and_counted_each_time() -> None:
    graph, cluster = generate("layered", 60, 0), Cluster.uniform(2, transfer="blocking")
    counts, found = [], []
    for _ in range(2):
        with counting() as work:
            balance, placement = least_peak_balance(graph, cluster, np.arange(graph.num_ops))
        counts.append(work.placements)
        found.append((balance.order, placement))
    assert counts[0] == counts[1] > 0
    assert found[0][1] is found[1][1]
    assert not found[0][1].flags.writeable
    with counting() as work:
        least_peak_balance(graph, cluster, np.arange(graph.num_ops), tries=1)
    assert 0 < work.placements < counts[0]


@given(instance=instances(max_ops=12), seed=seeds)
def test_numbers_of_ops_decide_nothing(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    place, along, order = rng.permutation(graph.num_ops), rng.random(graph.num_ops), lpmf_order(graph)
    other = renumbered(graph, place)
    moved = np.empty_like(along)
    moved[place] = along
    first, second = PeakBalance(graph, cluster, order), PeakBalance(other, cluster, place[order])
    for a, b in zip(_steps(first, along), _steps(second, moved), strict=True):
        assert a.tolist() == b[place].tolist()


@given(instance=instances(max_ops=12))
def test_blocks_end_in_placements_that_may_be(instance: tuple[ComputationGraph, Cluster]) -> None:
    graph, cluster = instance
    balance = PeakBalance(graph, cluster, lpmf_order(graph))
    found = balance.blocks(tries=20)
    assert allowed_matrix(graph, cluster)[np.arange(graph.num_ops), found].all()
    assert (found == found[graph.colocation_leader]).all()
    assert found.tolist() == balance.blocks(tries=20).tolist()


def _steps(balance: PeakBalance, along: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    cut = balance.cut(along)
    return cut, balance.refine(cut)


@pytest.mark.parametrize("transfer", ["blocking", "delay:latency=1", "free"])
def test_heuristic_has_smaller_peaks_than_graph_partitions(transfer: str) -> None:
    graph = _layers([(2, 40), (2, 40), (2, 20), (10, 8), (20, 4), (40, 2), (40, 2), (40, 2)] * 2)
    cluster = Cluster.uniform(3, transfer=transfer)
    ours, theirs = (
        max(run_heuristic(name, graph, cluster, "peak-memory").peak_memory)
        for name in ("peak-balance", "partition-dfs")
    )
    assert ours < 0.95 * theirs
