"""Beams of partial orders against brute force, a plain Python beam and the replay."""

import math

import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ordering_cases import (
    BUCKET,
    CLUSTER,
    all_orders,
    before,
    chain,
    graph_of,
    isolated,
    problem_of,
    replayed,
)

from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics import approximate_dp as on_host
from regal_jax.ordering import approximate_dp, beam, beam_search, greedy, log_prob, peaks
from regal_jax.plan import Objective
from regal_jax.problem import Bucket, make_problem

seeds = st.integers(0, 2**32 - 1)
EVERYTHING, FEW = 64, 3
SPECIAL = {"one": chain(1), "chain": chain(6), "isolated": isolated(6)}


def priorities_of(seed, graphs=1, size=BUCKET.ops):
    return (2 * np.random.default_rng(seed).standard_normal((graphs, size))).astype(np.float32)


def held_after(graph, done):
    """Bytes held after the ops of a set, in any order."""
    readers = [set() for _ in range(graph.num_tensors)]
    for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
        readers[t].add(o)
    total = 0
    for t, size in enumerate(graph.tensor_bytes.tolist()):
        producer = int(graph.tensor_op[t])
        made = producer in done or graph.tensor_resident[t]
        wanted = producer not in done or readers[t] - done or graph.tensor_keep[t]
        total += size if made and wanted else 0
    return total


def partial_peak(graph, order):
    """Bytes at the peak of the ops of a partial order."""
    most = held_after(graph, frozenset())
    for step, op in enumerate(order):
        outputs = graph.tensor_bytes[(graph.tensor_op == op) & ~graph.tensor_resident].sum()
        during = held_after(graph, frozenset(order[:step])) + outputs + graph.temp_bytes[op]
        most = max(most, int(during))
    return most


def plain_beam(graph, width, rule, priority):
    """The same beam in plain Python, with tuples and sets; orders, the best first."""
    waits, states = before(graph), [((), 0.0)]
    for _ in range(graph.num_ops):
        best = {}
        for rank, (order, score) in enumerate(states):
            ready = [o for o in range(graph.num_ops) if o not in order and waits[o] <= set(order)]
            total = math.fsum(math.exp(priority[o]) for o in ready)
            residents = [o for o in ready if graph.resident[o] and o in graph.tensor_op]
            for op in residents[:1] if residents and rule != "probability" else ready:
                longer, gained = (*order, op), score + priority[op] - math.log(total)
                peak, held = partial_peak(graph, longer), held_after(graph, frozenset(longer))
                cost = {"probability": (-gained,), "peak": (peak,), "held": (held, peak)}[rule]
                candidate = (peak, *cost, rank, op), (*cost, rank, op), longer, gained
                key = frozenset(longer)
                best[key] = min(best.get(key, candidate), candidate)
        ranked = sorted(best.values(), key=lambda candidate: candidate[1])[:width]
        states = [(order, score) for _, _, order, score in ranked]
    return states[0]


def found_by(rule, problem, width, priority):
    if rule == "probability":
        return beam_search(problem, priority, width)
    return approximate_dp(problem, width, held=rule == "held")


RULES = ("probability", "peak", "held")
# By default, `test_equals_a_plain_beam` has the third rule.
most_rules = pytest.mark.parametrize("rule", [*RULES[:2], pytest.param("held", marks=pytest.mark.slow)])


@most_rules
@settings(max_examples=30)
@given(seeds, st.integers(1, 6))
def test_a_beam_that_holds_everything_is_exact(rule, seed, num_ops):
    graph = graph_of(seed, num_ops)
    found = found_by(rule, problem_of(graph), EVERYTHING, priorities_of(seed))
    best = brute_force(graph, CLUSTER, Objective.PEAK_MEMORY)
    assert found.peak.tolist() == [max(best.peak_memory)]
    assert replayed(graph, found.orders[0]) == found.peak[0]


@pytest.mark.parametrize("rule", ["probability", pytest.param("peak", marks=pytest.mark.slow), "held"])
@settings(max_examples=50)
@given(seeds, st.integers(1, 8))
def test_equals_a_plain_beam(rule, seed, num_ops):
    graph, priority = graph_of(seed, num_ops), priorities_of(seed)
    found = found_by(rule, problem_of(graph), FEW, priority)
    order, score = plain_beam(graph, FEW, rule, priority[0].astype(float))
    assert found.orders[0].tolist() == [*order, *range(num_ops, BUCKET.ops)]
    assert found.peak[0] == replayed(graph, order)
    if rule == "probability":
        assert found.log_prob[0] == pytest.approx(score, rel=1e-5, abs=1e-5)
    else:
        assert found.log_prob is None


# By default, beams of three equal plain ones.
@pytest.mark.slow
@given(seeds, st.integers(1, 8))
def test_a_beam_of_one_is_greedy(seed, num_ops):
    graph, priority = graph_of(seed, num_ops), np.round(priorities_of(seed))
    found = beam_search(problem_of(graph), priority, 1)
    np.testing.assert_array_equal(found.orders, greedy(problem_of(graph), priority))


@most_rules
@pytest.mark.parametrize("name", SPECIAL)
def test_special_graphs(rule, name):
    graph = SPECIAL[name]
    found = found_by(rule, problem_of(graph), EVERYTHING, priorities_of(0))
    assert found.peak[0] == min(replayed(graph, order) for order in all_orders(graph))


def star(leaves):
    """One op that frees many at once, and one that reads them all."""
    builder = GraphBuilder("star")
    builder.add_op("root", outputs=[3, 4])
    for o in range(leaves):
        builder.add_op(f"leaf{o}", outputs=[o % 5 + 1], inputs=[(0, 0), (0, 1)], temp_bytes=(o * 7) % 11)
    builder.add_op("end", inputs=[(o + 1, 0) for o in range(leaves)])
    return builder.build()


def test_more_ready_ops_than_were_foreseen():
    graph = star(20)
    problem = make_problem([graph], CLUSTER)
    priority = priorities_of(3, size=problem.bucket.ops)
    found = beam_search(problem, priority, FEW)
    order, _ = plain_beam(graph, FEW, "probability", priority[0].astype(float))
    assert found.orders[0, : graph.num_ops].tolist() == list(order)
    assert peaks(problem, found.orders[:, None])[0, 0] == found.peak[0] == replayed(graph, order)


@pytest.mark.slow
def test_more_candidates_must_meet_than_were_foreseen(monkeypatch):
    sizes, extend = [], beam._extend

    def noted(*arguments):
        sizes.append(arguments[2][1])
        return extend(*arguments)

    monkeypatch.setattr(beam, "_extend", noted)
    monkeypatch.setattr(beam, "_MEETING", 1)
    graph = isolated(8)
    found = approximate_dp(problem_of(graph), 6)
    assert found.orders[0].tolist() == list(plain_beam(graph, 6, "peak", np.zeros(8))[0])
    assert len(set(sizes)) > 1


@most_rules
def test_hashes_that_agree_lose_no_set(rule, monkeypatch):
    begin = beam._begin

    def collide(problem):
        flow, count = begin(problem)
        return flow._replace(zobrist=flow.zobrist * np.uint32(0)), count

    monkeypatch.setattr(beam, "_begin", collide)
    for seed in range(10):
        graph = graph_of(seed, 5)
        found = found_by(rule, problem_of(graph), EVERYTHING, priorities_of(seed))
        assert found.peak[0] == max(brute_force(graph, CLUSTER, Objective.PEAK_MEMORY).peak_memory)


# The rules differ in the scores of candidates alone, which `test_equals_a_plain_beam` checks for each.
@pytest.mark.parametrize("rule", [RULES[0], pytest.param(RULES[1], marks=pytest.mark.slow)])
def test_padding_and_company_change_nothing(rule):
    graphs = [graph_of(seed, size) for seed, size in ((1, 8), (2, 5), (3, 7))]
    priority = priorities_of(4, graphs=3)
    together = found_by(rule, problem_of(*graphs), FEW, priority)
    wide = problem_of(*graphs[::-1], bucket=Bucket(12, 30, 60, 40))
    more = np.pad(priority[::-1], ((0, 0), (0, 4)), constant_values=9)
    other = found_by(rule, wide, FEW, more)
    np.testing.assert_array_equal(together.orders, other.orders[::-1, :8])
    np.testing.assert_array_equal(together.peak, other.peak[::-1])
    for b in range(3):
        alone = found_by(rule, problem_of(graphs[b]), FEW, priority[b : b + 1])
        np.testing.assert_array_equal(together.orders[b : b + 1], alone.orders)
        if rule == "probability":
            np.testing.assert_array_equal(together.log_prob[b : b + 1], alone.log_prob)
            np.testing.assert_array_equal(together.log_prob[b], other.log_prob[2 - b])


# By default, `test_equals_a_plain_beam` compares them.
@pytest.mark.slow
def test_log_probabilities_are_those_of_the_orders():
    problem, priority = problem_of(graph_of(5, 8)), priorities_of(5)
    found = beam_search(problem, priority, FEW)
    np.testing.assert_allclose(
        found.log_prob, log_prob(problem, priority, found.orders[:, None])[:, 0], rtol=1e-5
    )


@settings(max_examples=30)
@given(seeds, st.integers(1, 8), st.sampled_from([FEW, EVERYTHING]))
def test_approximate_dp_finds_the_peaks_of_the_host(seed, num_ops, width):
    graph = graph_of(seed, num_ops)
    # The beam on the device knows residents by their tensors: one without tensors is an op without cost.
    assume(np.isin(np.flatnonzero(graph.resident), graph.tensor_op).all())
    found, expected = approximate_dp(problem_of(graph), width), on_host(graph, width)
    assert found.peak.tolist() == [expected.peak] == [replayed(graph, found.orders[0])]
    assert not found.optimal[0] or found.peak[0] == on_host(graph, EVERYTHING).peak
    if width == EVERYTHING:
        assert found.optimal.all()


# By default, the graphs of the test above.
@pytest.mark.slow
def test_approximate_dp_finds_the_peaks_of_the_host_in_larger_graphs():
    width = EVERYTHING
    graphs = [generate("ordering-layered", 60, seed) for seed in range(4)]
    found = approximate_dp(make_problem(graphs, CLUSTER), width)
    expected = [on_host(graph, width) for graph in graphs]
    assert found.peak.tolist() == [each.peak for each in expected]
    assert found.optimal.tolist() == [each.optimal for each in expected]
    assert found.states == sum(each.states for each in expected)


def test_approximate_dp_whose_time_is_up_goes_on_with_one():
    for seed in range(4):
        graph = graph_of(seed, 8)
        late, one = (approximate_dp(problem_of(graph), *given) for given in ((FEW, False, 0), (1,)))
        np.testing.assert_array_equal(late.orders, one.orders)
        assert not late.optimal[0] or late.peak[0] == on_host(graph, EVERYTHING).peak


def test_what_a_beam_by_probability_proves():
    graph = isolated(6)
    assert beam_search(problem_of(graph), priorities_of(0), EVERYTHING).optimal[0]
    assert not beam_search(problem_of(graph), priorities_of(0), FEW).optimal[0]


def test_a_beam_that_does_not_fit_into_memory_is_refused(monkeypatch):
    problem = make_problem([generate("layered", 30, 0)], Cluster.uniform(1))
    monkeypatch.setattr(beam, "machine_memory", lambda: 2**20)
    assert approximate_dp(problem, 10).orders.shape[0] == 1
    with pytest.raises(ConfigError, match=r"width: 1,000 partial orders of \d+ ops of 1 graph need about"):
        approximate_dp(problem, 1000)


def test_refusals():
    problem, priority = problem_of(chain(3)), priorities_of(0)
    with pytest.raises(ConfigError, match="2 devices, but orders are for one"):
        approximate_dp(make_problem([chain(3)], Cluster.uniform(2), BUCKET), 2)
    for width in (0, 2.0, 2**31):
        with pytest.raises(ConfigError, match="width"):
            beam_search(problem, priority, width)
    with pytest.raises(ConfigError, match="priorities: must be float32"):
        beam_search(problem, priority[:, :1], 2)
