"""Residents are in memory on their home from time 0, whatever the order of events: everywhere."""

import dataclasses
import json
import math

import jax
import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances, random_keys

import regal_jax
from regal_jax import Cluster, GraphBuilder, optimize
from regal_jax.datasets import load_sample
from regal_jax.errors import FormatError, GraphError, InfeasiblePlanWarning
from regal_jax.heuristics.exact import cp_sat
from regal_jax.heuristics.list_scheduling import MEMORY_RULES, list_schedule
from regal_jax.heuristics.orders import lpmf_order
from regal_jax.heuristics.xla import xla_list_order
from regal_jax.importers import format_cost_graph
from regal_jax.plan import (
    Objective,
    Plan,
    decode_order,
    decode_placement,
    insert_transfers,
    lower_bound,
    replay,
)
from regal_jax.problem import Bucket, Decisions, make_problem, memory_unit
from regal_jax.simulate import simulate
from regal_jax.viz import plot_plan

GIB = 2**30


# What using it showed ------------------------------------------------------------------------------


def program():
    """``sum(x) + sum(big) + sum(small)`` of 0.5, 3 and 2 GiB; ``small`` is donated and on device 0."""

    def f(x, big, small):
        return x.sum() + big.sum() + small.sum()

    arrays = [jax.ShapeDtypeStruct((int(size * GIB) // 4,), np.float32) for size in (0.5, 3, 2)]
    return regal_jax.from_jax(f, *arrays, resident_argnums=(0, 1), donate_argnums=2)


LIMITED = Cluster((3.05 * GIB, 2.9 * GIB), "blocking", latency="10us", bandwidth="25GB/s")


def test_an_input_cannot_leave_before_a_parameter_appears():
    """``small`` goes to device 1 first, and the event of ``big`` comes when there is room for it."""
    graph = program()
    assert graph.op_kinds[:3] == ("parameter", "parameter", "input")
    assert np.flatnonzero(graph.resident).tolist() == [0, 1, 2]
    x, small = 0, 2
    placement = np.zeros(graph.num_ops, int)
    readers = {int(t): int(o) for t, o in zip(graph.edge_tensor[:3], graph.edge_op[:3], strict=True)}
    placement[[x, readers[x], readers[small]]] = 1
    order = [small, *[o for o in graph.topological_order.tolist() if o != small]]
    events = insert_transfers(graph, LIMITED, placement, order).tolist()
    events.insert(1, events.pop(events.index(graph.num_ops + small * 2 + 1)))
    plan = Plan.from_events(graph, LIMITED, placement, events)
    assert plan.timeline.memory_bytes[0][0] == plan.peak_memory[0] == 5 * GIB
    assert not plan.feasible


@pytest.mark.parametrize("method", ["critical-path", "peak-balance", "brkga"])
def test_no_method_says_that_it_fits(method):
    """``big`` fits on device 0 only, where ``small`` is."""
    graph = program()
    with pytest.warns(InfeasiblePlanWarning):
        plan = optimize(graph, LIMITED, method=method, evaluations=500)
    plan.verify(graph)
    assert not plan.feasible
    assert plan.overflow.sum() >= 0.1 * GIB


# An oracle of a few lines --------------------------------------------------------------------------


def recount(graph, cluster, placement, events):
    """Peaks by finding at every event the tensors that each device must hold."""
    n, d, events = graph.num_ops, cluster.num_devices, list(events)
    at = {event: i for i, event in enumerate(events)}
    peaks = [[0] * (len(events) + 1) for _ in range(d)]  # The first is time 0, the others the events.
    for t in range(graph.num_tensors):
        producer, size = int(graph.tensor_op[t]), int(graph.tensor_bytes[t])
        home, born = int(placement[producer]), at[producer] + 1
        reads = {}
        for o in graph.edge_op[graph.edge_tensor == t].tolist():
            reads.setdefault(int(placement[o]), []).append(at[o] + 1)
        local, left = reads.pop(home, []), []
        for k, readers in reads.items():
            sent = at.get(n + t * d + k, min(readers) - 1) + 1
            left.append(sent)
            for i in range(sent, max(readers) + 1):
                peaks[k][i] += size
        last = len(events) if graph.tensor_keep[t] else max([born, *local, *left])
        for i in range(0 if graph.resident[producer] else born, last + 1):
            peaks[home][i] += size
    for o in range(n):
        peaks[placement[o]][at[o] + 1] += int(graph.temp_bytes[o])
    return [max(row) for row in peaks], [row[0] for row in peaks]


def random_keyed(graph, cluster, seed):
    rng, n, t, d = np.random.default_rng(seed), graph.num_ops, graph.num_tensors, cluster.num_devices
    shapes = (n, d), (n,), (t, d)
    affinity, priority, transfer = (random_keys(rng, shape, bool(seed % 2)) for shape in shapes)
    placement = decode_placement(graph, cluster, affinity)
    return placement, priority, transfer, decode_order(graph, cluster, placement, priority, transfer)


@settings(max_examples=200)
@given(instances(), st.integers(0, 2**20))
def test_replay_equals_a_recount(instance, seed):
    graph, cluster = instance
    placement, _, _, events = random_keyed(graph, cluster, seed)
    line = replay(graph, cluster, placement, events)
    peaks, first = recount(graph, cluster, placement, events.tolist())
    assert line.peak_memory.tolist() == peaks
    assert [int(held[0]) for held in line.memory_bytes] == first
    assert [float(time[0]) for time in line.memory_time] == [0.0] * cluster.num_devices
    there, held = np.zeros(cluster.num_devices, int), graph.resident[graph.tensor_op]
    np.add.at(there, placement[graph.tensor_op[held]], graph.tensor_bytes[held])
    assert first == there.tolist()
    assert (line.peak_memory >= there).all()


BUCKET = Bucket(ops=12, tensors=36, edges=64, controls=32)


@pytest.mark.parametrize("implementation", ["xla", "host"])
# Transfers that take no time are delays of 0.
@pytest.mark.parametrize(
    "transfer", ["blocking", *(pytest.param(each, marks=pytest.mark.slow) for each in ("delay", "free"))]
)
def test_simulators_equal_a_recount(implementation, transfer):
    run = jax.jit(lambda problem, decisions: simulate(problem, decisions, implementation=implementation))

    @settings(max_examples=40)
    @given(instances(devices=(3,), transfers=(transfer,)), st.integers(0, 2**20))
    def check(instance, seed):
        graph, cluster = instance
        assert memory_unit(graph) == 1
        placement, priority, keys, events = random_keyed(graph, cluster, seed)
        problem = dataclasses.replace(make_problem([graph], cluster, BUCKET), unlimited=False)
        n, t = graph.num_ops, graph.num_tensors
        sent = transfer == "blocking"
        decisions = Decisions(
            np.pad(placement, (0, BUCKET.ops - n))[None, None].astype(np.int32),
            np.pad(priority, (0, BUCKET.ops - n))[None, None],
            np.pad(keys, ((0, BUCKET.tensors - t), (0, 0)))[None, None, : sent * BUCKET.tensors],
        )
        peaks = np.asarray(run(problem, decisions).peak_memory)[0, 0]
        assert peaks.tolist() == recount(graph, cluster, placement, events.tolist())[0]

    check()


# Bounds and exact methods --------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(instances(max_ops=5, devices=(1, 2, 3)))
def test_no_plan_beats_the_bound(instance):
    graph, cluster = instance
    best = brute_force(graph, cluster, Objective.PEAK_MEMORY)
    assert float(best.peak_memory.max()) >= lower_bound(graph, cluster, Objective.PEAK_MEMORY)
    placement = best.placement[best.timeline.op]
    events = np.where(best.timeline.port < 0, best.timeline.op, best.event_ids(graph))
    assert placement.shape == events.shape
    assert best.peak_memory.tolist() == recount(graph, cluster, best.placement, events.tolist())[0]


def bound_of(build, devices=2):
    builder = GraphBuilder()
    build(builder)
    return lower_bound(builder.build(), Cluster.uniform(devices), Objective.PEAK_MEMORY)


def test_bounds_by_hand():
    def pinned(b):
        b.add_op("w", outputs=[30], resident=True, allowed_devices=[0])
        b.add_op("x", outputs=[30], resident=True, allowed_devices=[0])

    assert bound_of(pinned) == 60

    def spread(b):
        for name in "abc":
            b.add_op(name, outputs=[30], resident=True)

    assert bound_of(spread) == 45
    assert bound_of(spread, 1) == 90

    def two_of_three(b):
        for name in "abc":
            b.add_op(name, outputs=[30], resident=True, allowed_devices=[0, 1])

    assert bound_of(two_of_three, 3) == 45

    def together(b):
        for name in "ab":
            b.add_op(name, outputs=[30], resident=True, colocation_group="g")

    assert bound_of(together, 4) == 60

    def kept_beside(b):
        """``use`` needs 10 + 5 + 1: on device 0 in addition to 30, of which it reads 10, or on device 1."""
        b.add_op("w", outputs=[20, 10], keep=[0, 1], resident=True, allowed_devices=[0])
        b.add_op("use", runtime=1, inputs=["w:1"], outputs=[5], temp_bytes=1, allowed_devices=[0])

    assert bound_of(kept_beside) == 36

    def group_beside(b):
        b.add_op("w", outputs=[20], keep=[0], resident=True, colocation_group="g")
        b.add_op("v", outputs=[10], keep=[0], resident=True, colocation_group="g")
        b.add_op("use", runtime=1, inputs=["v"], outputs=[5], temp_bytes=1, colocation_group="g")

    assert bound_of(group_beside, 8) == 36

    def others_beside(b):
        """Wherever ``use`` runs, 180 bytes stay in memory and 10 are added."""
        for name in "abc":
            b.add_op(name, outputs=[60], keep=[0], resident=True)
        b.add_op("use", runtime=1, inputs=["a"], outputs=[10])

    assert bound_of(others_beside) == 95
    assert bound_of(others_beside, 1) == 190


def test_exact_methods_know_that_a_resident_is_there_before_its_turn():
    """Even if the event of ``w`` comes after ``big`` and ``w`` is freed later, the peak is 100 + 50."""
    builder = GraphBuilder()
    builder.add_op("big", runtime=1, temp_bytes=100)
    builder.add_op("w", outputs=[50], resident=True)
    builder.add_op("use", runtime=1, inputs=["w"], control_inputs=["big"], outputs=[10])
    problem = builder.build(), Cluster.uniform(1), Objective.PEAK_MEMORY
    assert lower_bound(*problem) == 100
    assert brute_force(*problem).objective_value == 150
    assert cp_sat(*problem, workers=1).provenance["bound"] == 150


# Heuristics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", MEMORY_RULES)
def test_list_schedules_know_that_residents_are_there(rule):
    """The device of ``w`` has no room for ``heavy``, which has a higher rank and would go there first."""
    builder = GraphBuilder()
    builder.add_op("heavy", runtime=100, temp_bytes=60, outputs=[1])
    builder.add_op("w", outputs=[50], keep=[0], resident=True, allowed_devices=[0])
    builder.add_op("use", runtime=1, inputs=["w"], allowed_devices=[0])
    graph, cluster = builder.build(), Cluster((100, 100), "free")
    plan = Plan.from_events(graph, cluster, *list_schedule(graph, cluster, rule))
    assert plan.placement[0] == 1
    assert plan.feasible


@pytest.mark.parametrize("make", [lpmf_order, xla_list_order])
def test_orders_know_that_to_take_a_resident_allocates_nothing(make):
    """``w`` is larger than ``big`` but in memory already, so ``use`` can free it first."""
    builder = GraphBuilder()
    builder.add_op("big", runtime=1, temp_bytes=60)
    builder.add_op("w", outputs=[100], resident=True)
    builder.add_op("use", runtime=1, inputs=["w"], outputs=[1], keep=[0])
    graph, cluster = builder.build(), Cluster.uniform(1)
    assert make(graph).tolist() == [1, 2, 0]
    assert replay(graph, cluster, np.zeros(3, int), make(graph)).peak_memory.tolist() == [101]


# What a graph may say ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runtime": 1.0}, "takes time"),
        ({"runtime": [0.0, 1.0]}, "takes time"),
        ({"temp_bytes": 1}, "has temp_bytes"),
        ({"inputs": ["a"]}, "reads a tensor"),
        ({"control_inputs": ["a"]}, "waits for another op"),
    ],
)
def test_what_is_there_from_the_beginning_waits_for_nothing(options, message):
    builder = GraphBuilder("g")
    builder.add_op("a", outputs=[1])
    builder.add_op("w", outputs=[1], resident=True, **options)
    with pytest.raises(GraphError, match=f"'w': is resident but {message}") as error:
        builder.build()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("resident", [[1], [0, 2], ["yes", "no"], None, 3])
def test_marks_that_are_none(resident):
    builder = GraphBuilder("g")
    builder.add_op("a")
    builder.add_op("b")
    with pytest.raises(GraphError, match="resident"):
        dataclasses.replace(builder.build(), resident=resident)


def test_hashes_without_residents_are_those_of_older_releases():
    builder = GraphBuilder("g", "us")
    builder.add_op("a", kind="k", outputs=[4], keep=[0])
    builder.add_op("b", runtime=2.5, inputs=["a"], allowed_devices=[0, 1], colocation_group="c")
    graph = builder.build()
    # Computed by version 0.1 of the package.
    assert graph.content_hash == "2d7c0f26eee633ec18284372e2d213b6de406cd33a0c8a5ac7d57da3f0f56cd1"
    marked = dataclasses.replace(graph, resident=[True, False])
    assert marked.content_hash != graph.content_hash
    assert dataclasses.replace(marked, resident=()).content_hash == graph.content_hash


@pytest.mark.parametrize("transfer", ["blocking", "delay", "free"])
@pytest.mark.parametrize(
    ("outputs", "keep", "end"), [([], [], 0), ([0], [], 0), ([7], [0], 7), ([7, 5], [1], 5), ([7], [], 0)]
)
def test_a_graph_of_one_resident(transfer, outputs, keep, end):
    """An unread resident that is not kept is held until its own event."""
    builder = GraphBuilder()
    builder.add_op("w", outputs=outputs, keep=keep, resident=True)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer=transfer)
    for objective in Objective:
        plan = optimize(graph, cluster, objective=objective, method="critical-path")
        plan.verify(graph)
        assert plan.makespan == 0
        assert plan.peak_memory.max() == plan.timeline.memory_bytes[plan.placement[0]][0] == sum(outputs)
        assert plan.timeline.memory_bytes[plan.placement[0]][-1] == end
    assert brute_force(graph, cluster, Objective.PEAK_MEMORY).objective_value == sum(outputs)


# Who says so, and who shows it ---------------------------------------------------------------------


def test_what_cost_graphs_cannot_say_is_refused():
    builder = GraphBuilder("g")
    builder.add_op("w", outputs=[4], resident=True)
    with pytest.raises(FormatError, match="op 'w': resident has no place in a CostGraphDef"):
        format_cost_graph(builder.build())
    assert "node" in format_cost_graph(builder.build(), lossy=True)


def test_parameters_and_inputs_of_the_sample_are_resident():
    for _, graph in load_sample():
        sources = [kind in ("parameter", "input") for kind in graph.op_kinds]
        assert graph.resident.tolist() == sources


def test_the_first_thing_shown_is_what_is_held_at_time_0():
    builder = GraphBuilder()
    builder.add_op("w", outputs=[40], keep=[0], resident=True)
    builder.add_op("x", outputs=[60], resident=True)
    builder.add_op("use", runtime=2, inputs=["w", "x"], outputs=[1])
    graph = builder.build()
    plan = optimize(graph, Cluster.uniform(1), method="given")
    counters = [e for e in plan.to_chrome_trace()["traceEvents"] if e["ph"] == "C"]
    assert (counters[0]["ts"], counters[0]["args"]["bytes"]) == (0, 100)
    (profile,) = json.loads(plan.to_json())["memory_profile"]
    assert profile == {"time": [0, 0, 2, 2], "bytes": [100, 101, 100, 40]}
    (curve,) = plot_plan(plan).axes[1].lines
    assert curve.get_xdata()[0] == 0
    assert math.isclose(curve.get_ydata()[0], 101)  # ``use`` also begins at time 0.
