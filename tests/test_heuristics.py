"""Host heuristics: valid plans everywhere, known small cases, published examples, determinism."""

import dataclasses
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import renumbered
from strategies import instances, random_graph

from regal_jax.datasets import generate
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.heuristics import HEURISTICS, PeakSearchRun, best_heuristic, list_kernel, run_heuristic
from regal_jax.heuristics.even_split import even_split
from regal_jax.heuristics.heft import graham_schedule, heft_schedule
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.list_scheduling import Rule, kernel_arguments, list_schedule
from regal_jax.heuristics.orders import bfs_order, dfs, dfs_order, lpmf, lpmf_order, random_order
from regal_jax.heuristics.placements import partition_placement, single_device_placement
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.xla import post_order, xla_dfs_order, xla_list_order, xla_post_order
from regal_jax.plan import Objective, Plan, critical_path, replay
from regal_jax.runtime.compiling import run_loops, usable

ORDERS = {
    "bfs": bfs_order,
    "dfs": dfs_order,
    "lpmf": lpmf_order,
    "random": random_order,
    "list": xla_list_order,
    "xla-dfs": xla_dfs_order,
    "post": xla_post_order,
}


def _chain(n: int) -> ComputationGraph:
    builder = GraphBuilder("chain")
    for o in range(n):
        builder.add_op(f"o{o}", runtime=1.0, outputs=[8], inputs=[(o - 1, 0)] if o else [])
    return builder.build()


def _independent(runtimes: list[float]) -> ComputationGraph:
    builder = GraphBuilder("independent")
    for o, runtime in enumerate(runtimes):
        builder.add_op(f"o{o}", runtime=runtime, outputs=[1])
    return builder.build()


def _random_dag(n: int, seed: int, degree: float = 2.0) -> ComputationGraph:
    rng = np.random.default_rng(seed)
    edge = np.triu(rng.random((n, n)) < 2 * degree / max(n - 1, 1), 1)
    builder = GraphBuilder(f"er{n}")
    for o in range(n):
        runtime, size = float(rng.integers(1, 100)), int(rng.integers(1, 100))
        reads = [(int(u), 0) for u in np.flatnonzero(edge[:, o])]
        builder.add_op(f"o{o}", runtime=runtime, outputs=[size], inputs=reads)
    return builder.build()


def _names(graph: ComputationGraph, order: np.ndarray) -> str:
    return " ".join(graph.op_names[o] for o in order)


# Every heuristic, every feature ---------------------------------------------------------------------


def _check_constraints(graph: ComputationGraph, cluster: Cluster, plan: Plan) -> None:
    groups: dict[str, int] = {}
    for o, k in enumerate(plan.placement.tolist()):
        assert 0 <= k < cluster.num_devices
        assert graph.allowed_devices[o] is None or k in graph.allowed_devices[o]
        group = graph.colocation_group[o]
        assert group is None or groups.setdefault(group, k) == k


@pytest.mark.parametrize("name", HEURISTICS)
@pytest.mark.parametrize("objective", list(Objective))
@settings(max_examples=25)
@given(instance=instances(max_ops=25))
def test_every_plan_is_valid(
    name: str, objective: Objective, instance: tuple[ComputationGraph, Cluster]
) -> None:
    graph, cluster = instance
    plan = HEURISTICS[name](graph, cluster, objective, seed=3)
    # `from_events` replays the plan, so its order is valid.
    _check_constraints(graph, cluster, plan)
    assert plan.objective is objective
    assert plan.objective_value >= plan.lower_bound * (1 - 1e-12)
    assert plan.provenance["method"] == name or name == "xla-best"
    again = HEURISTICS[name](graph, cluster, objective, seed=3)
    assert np.array_equal(again.placement, plan.placement)
    assert np.array_equal(again.timeline.op, plan.timeline.op)
    assert np.array_equal(again.timeline.port, plan.timeline.port)


@settings(max_examples=60)
@given(instance=instances(max_ops=30), seed=st.integers(0, 5))
def test_every_order_is_topological(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, _ = instance
    for name, make in ORDERS.items():
        order = random_order(graph, seed) if name == "random" else make(graph)
        position = np.empty(graph.num_ops, dtype=int)
        position[order] = np.arange(graph.num_ops)
        assert sorted(order.tolist()) == list(range(graph.num_ops))
        assert (position[graph.edge_producer] < position[graph.edge_op]).all(), name
        assert (position[graph.control_source] < position[graph.control_target]).all(), name


_RULES = [
    Rule(),
    Rule(look=4, waste=0.5, behind=0.5, rank=0.3, finish=False),
    Rule(look=32, goal="fit"),
    Rule(look=32, goal="peak"),
]


@settings(max_examples=60)
@given(instance=instances(max_ops=30), rule=st.sampled_from(_RULES))
def test_list_scheduling_sees_the_clocks_and_the_memory_that_the_replay_sees(
    instance: tuple[ComputationGraph, Cluster], rule: Rule
) -> None:
    graph, cluster = instance
    placement, events = list_schedule(graph, cluster, rule)
    timeline = replay(graph, cluster, placement, events)
    numbers = (
        upward_rank(graph, cluster),
        np.zeros(graph.num_ops * cluster.num_devices),
        *rule.numbers,
        math.inf,
    )
    state = run_loops(list_kernel.schedule, *kernel_arguments(graph, cluster), *numbers)
    assert max(state.finish) == pytest.approx(timeline.makespan, rel=1e-12)
    if rule.goal != "time":
        # The rule may overestimate peaks but never underestimates them.
        assert (timeline.peak_memory <= np.array(state.most)).all()


def test_zero_cost_transfers_ride_along_with_an_earlier_meeting() -> None:
    # b and c on device 1 read one output of a each, and a blocking transfer occupies both devices. The second
    # output is sent with the first, at time 1, since device 0 is busy when c is due.
    builder = GraphBuilder("ride")
    builder.add_op("a", runtime=1.0, outputs=[1, 1], allowed_devices=[0])
    builder.add_op("b", runtime=1.0, inputs=["a:0"], outputs=[1], allowed_devices=[1])
    builder.add_op("long", runtime=10.0, allowed_devices=[0], control_inputs=["a"])
    builder.add_op("c", runtime=1.0, inputs=["a:1", "b"], allowed_devices=[1])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="blocking")
    assert run_heuristic("critical-path", graph, cluster).makespan == 11.0
    placement, events = list_schedule(graph, cluster, Rule(look=4, rank=0.0, finish=False))
    assert replay(graph, cluster, placement, events).makespan == 11.0
    # A transfer that takes time cannot be inserted earlier, so the second one waits for device 0.
    costly = Cluster.uniform(2, transfer="blocking:latency=1")
    plan = run_heuristic("critical-path", graph, costly)
    assert plan.makespan == 13.0


def test_no_early_copy_where_memory_matters() -> None:
    builder = GraphBuilder("hog")
    builder.add_op("a", runtime=1.0, outputs=[1, 50], allowed_devices=[0])
    builder.add_op("b", runtime=1.0, inputs=["a:0"], allowed_devices=[1])
    builder.add_op("hog", runtime=5.0, temp_bytes=100, control_inputs=["b"], allowed_devices=[1])
    builder.add_op("c", runtime=1.0, inputs=["a:1"], control_inputs=["hog"], allowed_devices=[1])
    graph = builder.build()
    # The second tensor could be sent with the first, but then the op "hog" would exceed the memory.
    assert (
        run_heuristic("critical-path", graph, Cluster.uniform(2, transfer="blocking")).peak_memory[1] == 150
    )
    assert run_heuristic("critical-path", graph, Cluster.uniform(2, memory=101, transfer="blocking")).feasible


# Known cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("transfer", ["blocking", "delay:latency=3", "free"])
@pytest.mark.parametrize("devices", [1, 2, 3, 4])
def test_one_op(transfer: str, devices: int) -> None:
    plans = best_heuristic(_independent([2.5]), Cluster.uniform(devices, transfer=transfer))
    assert plans
    for plan in plans:
        assert plan.makespan == 2.5


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("transfer", ["blocking", "free"])
def test_no_edges_and_no_runtimes(transfer: str, devices: int) -> None:
    cluster = Cluster.uniform(devices, transfer=transfer)
    assert all(plan.makespan == 0 for plan in best_heuristic(_independent([0.0] * 9), cluster))
    plan = run_heuristic("critical-path", _independent([1.0] * 8), cluster)
    assert plan.makespan == 8 / devices


def test_chain_stays_where_it_is_and_fork_spreads() -> None:
    costly = Cluster.uniform(2, transfer="blocking:latency=1")
    plan = run_heuristic("critical-path", _chain(20), costly)
    assert plan.makespan == 20.0
    builder = GraphBuilder("fork")
    builder.add_op("root", runtime=1.0, outputs=[1])
    for branch in "ab":
        builder.add_op(f"{branch}1", runtime=5.0, inputs=["root"], outputs=[1])
        builder.add_op(f"{branch}2", runtime=5.0, inputs=[f"{branch}1"])
    # The root, its copy, and then both branches side by side.
    assert run_heuristic("critical-path", builder.build(), costly).makespan == 12.0


def test_longest_first_on_independent_ops() -> None:
    # Graham's example for list scheduling by length: 11 against the optimum of 9 on three devices.
    graph = _independent([5.0, 5.0, 4.0, 4.0, 3.0, 3.0, 3.0])
    cluster = Cluster.uniform(3, transfer="free")
    placement, events = graham_schedule(graph, cluster)
    assert replay(graph, cluster, placement, events).makespan == 11.0


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 60),
    devices=st.integers(1, 4),
    degree=st.sampled_from([0.0, 1.0, 3.0]),
)
def test_graham_bound(seed: int, n: int, devices: int, degree: float) -> None:
    graph, cluster = _random_dag(n, seed, degree), Cluster.uniform(devices, transfer="free")
    placement, events = graham_schedule(graph, cluster)
    makespan = replay(graph, cluster, placement, events).makespan
    # Graham 1969: work / D + (1 - 1 / D) * longest path, here with the bounds themselves.
    path = critical_path(graph, graph.runtime)
    assert makespan <= graph.runtime.sum() / devices + (1 - 1 / devices) * path + 1e-9


def _topcuoglu() -> ComputationGraph:
    runtimes = [
        (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
        (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
    ]  # fmt: skip
    edges = {
        (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
        (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
    }  # fmt: skip
    builder = GraphBuilder("topcuoglu")
    for task, runtime in enumerate(runtimes, start=1):
        out = [pair for pair in edges if pair[0] == task]
        reads = []
        for u, v in edges:
            if v == task:
                port = [pair for pair in edges if pair[0] == u].index((u, v))
                reads.append((u - 1, port))
        builder.add_op(f"n{task}", runtime=runtime, outputs=[edges[pair] for pair in out], inputs=reads)
    return builder.build()


def test_heft_published_example() -> None:
    """Topcuoglu, Hariri and Wu 2002, figure 2 and tables 1 to 3."""
    graph, cluster = _topcuoglu(), Cluster.uniform(3, transfer="delay:bandwidth=1")
    rank = upward_rank(graph, cluster)
    published = [108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667]
    np.testing.assert_allclose(rank, published, atol=5e-4)
    placement, events = heft_schedule(graph, cluster)
    assert replay(graph, cluster, placement, events).makespan == 80.0
    assert (placement + 1).tolist() == [3, 1, 3, 2, 3, 2, 3, 1, 2, 2]
    assert run_heuristic("critical-path", graph, cluster).makespan <= 80.0


def test_heft_needs_insertion_for_its_gap() -> None:
    # x waits for a copy, so device 1 is idle from 0 to 11, and y, which has a lower rank, fits in the gap.
    builder = GraphBuilder("gap")
    builder.add_op("a", runtime=1.0, outputs=[10], allowed_devices=[0])
    builder.add_op("x", runtime=20.0, inputs=["a"], allowed_devices=[1])
    builder.add_op("y", runtime=4.0, allowed_devices=[1])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="delay:bandwidth=1")
    placement, events = heft_schedule(graph, cluster)
    assert replay(graph, cluster, placement, events).makespan == 31.0
    assert _names(graph, events) in ("a y x", "y a x")


def test_heft_keeps_its_times_around_ops_of_no_length() -> None:
    # "zero" is placed at 5, before "long", which also starts at 5. Behind "long" it would delay "last".
    builder = GraphBuilder("zero")
    builder.add_op("s", runtime=5.0, allowed_devices=[1])
    builder.add_op("long", runtime=10.0, control_inputs=["s"], allowed_devices=[0])
    builder.add_op("zero", runtime=0.0, control_inputs=["s"], allowed_devices=[0])
    builder.add_op("last", runtime=8.0, control_inputs=["zero"], allowed_devices=[1])
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    placement, events = heft_schedule(graph, cluster)
    assert replay(graph, cluster, placement, events).makespan == 15.0


def test_xla_list_sees_that_a_ready_op_became_the_last_reader() -> None:
    builder = GraphBuilder("last reader")
    builder.add_op("q", outputs=[100])
    for name, size in (("a", 50), ("b", 60)):
        builder.add_op(name, inputs=["q"], outputs=[size], keep=[0])
    builder.add_op("c", control_inputs=["q"], outputs=[55], keep=[0])
    graph = builder.build()
    assert _names(graph, xla_list_order(graph)) == "q a b c"


def test_xla_orders_differ() -> None:
    """The graph in the comment on XLA's ListScheduler, with a larger B, which the greedy order runs late."""
    builder = GraphBuilder("xla")
    builder.add_op("A", outputs=[1])
    builder.add_op("B", outputs=[3], inputs=["A"])
    builder.add_op("C", outputs=[1], inputs=["B"])
    builder.add_op("D", outputs=[1], inputs=["A"])
    builder.add_op("E", outputs=[1], inputs=["A"])
    builder.add_op("F", outputs=[2], inputs=["D", "E"])
    builder.add_op("G", inputs=["C", "F"])
    graph = builder.build()
    assert _names(graph, xla_list_order(graph)).replace("E D", "D E") == "A D E F B C G"
    assert _names(graph, xla_post_order(graph)) == "A B C D E F G"
    # Everything that leads to F has more extra users (A's count twice there) than what leads to C.
    assert _names(graph, xla_dfs_order(graph)) == "A D E F B C G"
    peaks = {
        name: HEURISTICS[name](graph, Cluster.uniform(1), "peak-memory").objective_value
        for name in ("xla-list", "xla-dfs", "xla-post-order", "xla-best")
    }
    # The peak is A, F and B, or C, D, E and F.
    assert peaks == {"xla-list": 6.0, "xla-dfs": 6.0, "xla-post-order": 5.0, "xla-best": 5.0}


def test_xla_list_frees_bytes_first_then_looks_at_users() -> None:
    builder = GraphBuilder("list")
    builder.add_op("p", outputs=[100])
    builder.add_op("q", outputs=[100])
    builder.add_op("use p", inputs=["p"], outputs=[10])
    builder.add_op("use q", inputs=["q"], outputs=[90])
    builder.add_op("also q", inputs=["q", "use q"])
    builder.add_op("end", inputs=["use p"])
    # p and q cost the same, but q has two users. "use q" costs 90 on balance, less than p; "also q" then
    # frees 190.
    assert _names(builder.build(), xla_list_order(builder.build())) == "q use q also q p use p end"


def test_lpmf_takes_what_stays_under_the_peak() -> None:
    # After "base" 10 of a peak of 50 are held. "heavy" would leave less behind than "light", but not
    # stay under the peak.
    builder = GraphBuilder("lpmf")
    builder.add_op("base", outputs=[10], temp_bytes=40, keep=[0])
    builder.add_op("heavy", control_inputs=["base"], outputs=[1], temp_bytes=100, keep=[0])
    builder.add_op("light", control_inputs=["base"], outputs=[20], keep=[0])
    graph = builder.build()
    assert _names(graph, lpmf_order(graph)) == "base light heavy"
    # Both stay under the peak, so the op that leaves less memory is first.
    roomy = dataclasses.replace(graph, temp_bytes=np.array([200, 100, 0]))
    assert _names(roomy, lpmf_order(roomy)) == "base heavy light"
    # Ties are broken by the lowest index, or by the numbers that are given.
    twins = dataclasses.replace(graph, temp_bytes=np.zeros(3, int), tensor_bytes=np.array([10, 5, 5]))
    assert _names(twins, lpmf_order(twins)) == "base heavy light"
    ops = np.array([1, 2, 0])
    assert _names(twins, ops[lpmf(Links.of(twins, np.argsort(ops)))]) == "base heavy light"
    ops = np.array([2, 1, 0])
    assert _names(twins, ops[lpmf(Links.of(twins, np.argsort(ops)))]) == "base light heavy"


@given(instance=instances(max_ops=20), seed=st.integers(0, 2**32 - 1))
def test_links_by_other_numbers_are_those_of_the_renumbered_graph(
    instance: tuple[ComputationGraph, Cluster], seed: int
) -> None:
    graph, _ = instance
    numbers = np.random.default_rng(seed).permutation(graph.num_ops)
    other = renumbered(graph, numbers)
    ours, theirs = Links.of(graph, numbers), Links.of(other)
    names = "inputs outputs readers before after producer size temp keep resident"
    for name in names.split():
        assert getattr(ours, name) == getattr(theirs, name)
    for make, order in ((lpmf, lpmf_order), (dfs, dfs_order), (post_order, xla_post_order)):
        assert make(ours).tolist() == order(other).tolist()


def test_breadth_and_depth_first() -> None:
    builder = GraphBuilder("tree")
    builder.add_op("r", outputs=[1])
    builder.add_op("a", inputs=["r"], outputs=[1])
    builder.add_op("b", inputs=["r"], outputs=[1])
    builder.add_op("a1", inputs=["a"])
    builder.add_op("b1", inputs=["b"])
    graph = builder.build()
    assert _names(graph, bfs_order(graph)) == "r a b a1 b1"
    assert _names(graph, dfs_order(graph)) == "r a a1 b b1"


# Placements -----------------------------------------------------------------------------------------


def test_partition_cuts_the_thin_edge() -> None:
    builder = GraphBuilder("two clusters")
    for c in "xy":
        for o in range(12):
            reads = [f"{c}{o - 1}"] if o else []
            builder.add_op(f"{c}{o}", runtime=1.0, outputs=[1000], inputs=reads)
    builder.add_op("bridge", runtime=0.0, inputs=["x11", "y11"])
    graph = builder.build()
    placement = partition_placement(graph, Cluster.uniform(2, transfer="blocking"))
    assert len(set(placement[:12])) == len(set(placement[12:24])) == 1
    assert placement[0] != placement[12]


def test_partition_follows_speed() -> None:
    graph = _random_dag(200, 0)
    graph = dataclasses.replace(graph, runtime=np.stack([np.ones(200), np.full(200, 3.0)], axis=1))
    share = (partition_placement(graph, Cluster.uniform(2, transfer="blocking")) == 0).mean()
    assert 0.65 < share < 0.85


HEAVY = """
from regal_jax import Cluster, GraphBuilder
from regal_jax.heuristics.placements import partition_placement
builder = GraphBuilder("heavy")
for i in range(40):
    builder.add_op(f"o{i}", runtime=100 if i == 0 else 1, outputs=[1], inputs=[f"o{i - 1}"] if i else ())
for devices in (3, 4, 8):
    placement = partition_placement(builder.build(), Cluster.uniform(devices))
    assert 1 < len(set(placement.tolist())) <= devices
"""


def test_a_partition_prints_nothing_if_one_op_outweighs_all_others() -> None:
    done = subprocess.run([sys.executable, "-c", HEAVY], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_single_device_is_the_fastest_allowed() -> None:
    builder = GraphBuilder("fast")
    builder.add_op("a", runtime=[5.0, 1.0])
    builder.add_op("b", runtime=[5.0, 1.0], allowed_devices=[0])
    builder.add_op("c", runtime=[1.0, 3.0])
    placement = single_device_placement(builder.build(), Cluster.uniform(2, transfer="blocking"))
    assert placement.tolist() == [0, 0, 0]  # Device 1 is faster, but may not run all of them.
    graph = dataclasses.replace(builder.build(), allowed_devices=(None, None, None))
    assert single_device_placement(graph, Cluster.uniform(2, transfer="blocking")).tolist() == [1, 1, 1]


def test_of_equally_fast_devices_the_one_with_most_memory_has_all_ops():
    graph = generate("layered", 20, seed=0)
    cluster = Cluster((10, math.inf, 1000))
    assert set(single_device_placement(graph, cluster)) == {1}
    assert run_heuristic("single-device", graph, cluster).feasible


def test_memory_is_respected_where_it_can_be() -> None:
    # Four results of 10 bytes are kept. Each device holds 20 bytes, so both devices are needed.
    builder = GraphBuilder("kept")
    builder.add_op("long", runtime=100.0, outputs=[10], keep=[0])
    for o in range(3):
        builder.add_op(f"short{o}", runtime=1.0, outputs=[10], keep=[0])
    graph = builder.build()
    assert run_heuristic(
        "critical-path", graph, Cluster.uniform(2, transfer="blocking")
    ).peak_memory.tolist() in (
        [10, 30],
        [30, 10],
    )
    plan = run_heuristic("critical-path", graph, Cluster.uniform(2, memory=20, transfer="blocking"))
    assert plan.feasible
    assert plan.makespan == 101.0
    # Where one device is too small, order heuristics use a partition by bytes.
    assert run_heuristic("lpmf", graph, Cluster.uniform(2, memory=20, transfer="blocking")).feasible


# Sizes, seeds, errors -------------------------------------------------------------------------------


def test_long_chain_and_wide_op() -> None:
    for plan in best_heuristic(_chain(10_000), Cluster.uniform(2, transfer="blocking")):
        assert plan.makespan >= 10_000.0
    builder = GraphBuilder("wide")
    builder.add_op("hub", runtime=1.0, outputs=[8])
    for o in range(5000):
        builder.add_op(f"o{o}", runtime=1.0, inputs=["hub"])
    plans = best_heuristic(builder.build(), Cluster.uniform(2, transfer="blocking"))
    assert plans[0].makespan == 2501.0


def test_given_is_the_order_of_the_indices() -> None:
    builder = GraphBuilder("given")
    for o in range(4):
        builder.add_op(f"o{o}", runtime=1.0, outputs=[8])
    # "early" has a lower index than "late", which it reads.
    builder.add_op("early", runtime=1.0, inputs=["late"])
    builder.add_op("late", runtime=1.0, outputs=[8], inputs=["o3"])
    plan = run_heuristic("given", builder.build(), Cluster.uniform(1), "peak-memory")
    assert plan.timeline.op.tolist() == [0, 1, 2, 3, 5, 4]
    graph = _random_dag(40, 5)
    methods = {p.provenance["method"] for p in best_heuristic(graph, Cluster.uniform(1))}
    assert methods == set(HEURISTICS) - {"xla-best", "given", "repaired-partition"}


def test_best_heuristic_is_sorted_and_each_ran_once() -> None:
    plans = best_heuristic(_random_dag(60, 1), Cluster.uniform(2, transfer="blocking"))
    methods = sorted(set(HEURISTICS) - {"xla-best", "repaired-partition"})
    assert sorted(p.provenance["method"] for p in plans) == methods
    keys = [plan.sort_key for plan in plans]
    assert keys == sorted(keys)
    assert keys[0] < keys[-1]


def test_partitions_are_repaired_where_a_single_device_has_too_little_memory() -> None:
    graph = generate("erdos-renyi", 80, 0)
    alone = run_heuristic("single-device", graph, Cluster.uniform(1)).peak_memory[0]
    for memory in (alone, math.inf):
        enough = Cluster.uniform(3, memory, "blocking:latency=1us,bandwidth=10GB/s")
        plan = run_heuristic("repaired-partition", graph, enough)
        assert plan.provenance["placement"] == "single device"
        assert "repaired-partition" not in {p.provenance["method"] for p in best_heuristic(graph, enough)}
    tight = even_split(graph, 3, 1.8, "blocking:latency=1us,bandwidth=10GB/s")
    plan = run_heuristic("repaired-partition", graph, tight)
    plan.verify(graph)
    assert plan.feasible
    assert tight.memory[0] < alone
    assert plan.provenance["placement"] == "partition by peaks"
    assert plan.provenance["transfers"] == ("moved" if usable() else "late")
    assert plan.makespan < run_heuristic("single-device", graph, tight).makespan
    same = [run_heuristic("repaired-partition", graph, tight).makespan for _ in range(2)]
    assert same == [plan.makespan] * 2
    assert not run_heuristic("repaired-partition", graph, tight, "peak-memory").feasible


@pytest.mark.parametrize("memory", [[0, 0], [0, 1e9], [math.inf, 0]])
@pytest.mark.parametrize("runtime", [0.0, 1.0])
def test_repairs_of_devices_without_memory_end(memory: list[float], runtime: float) -> None:
    builder = GraphBuilder("wide")
    for i in range(12):
        builder.add_op(f"op{i}", runtime=runtime, outputs=[8], inputs=[f"op{i // 2}"] if i > 1 else [])
    plan = run_heuristic("repaired-partition", builder.build(), Cluster(memory, "blocking:latency=1s"))
    assert plan.feasible == any(memory) or runtime == 0


@pytest.mark.skipif(not usable(), reason="needs Numba")
@pytest.mark.parametrize("transfer", ["free", "delay:pcie4x16", "pcie4x16"])
@pytest.mark.parametrize("devices", [2, 4])
def test_where_nothing_else_fits_a_peak_search_does(transfer: str, devices: int) -> None:
    graph = generate("layered", 40, 0)
    search = PeakSearchRun(graph, Cluster.uniform(devices, transfer=transfer), 0)
    search.run(1000)
    tight = Cluster.uniform(devices, search.best, transfer)
    plan, *others = best_heuristic(graph, tight)
    assert plan.provenance["method"] == "repaired-partition"
    assert plan.provenance["placement"] == "peak search"
    assert (plan.feasible, any(other.feasible for other in others)) == (True, False)
    # It is no search where it is known that no plan fits.
    impossible = Cluster.uniform(devices, int(graph.tensor_bytes.max()) - 1, transfer)
    assert run_heuristic("repaired-partition", graph, impossible).provenance["placement"] == "single device"


@pytest.mark.parametrize("transfer", ["free", "delay:latency=1us", "blocking"])
def test_partitions_that_fit_need_no_repair(transfer: str) -> None:
    graph = generate("layered", 80, 0)
    plan = run_heuristic("repaired-partition", graph, even_split(graph, 3, 2.2, transfer))
    plan.verify(graph)
    assert plan.feasible
    assert plan.provenance["placement"] in {"cut of the order", "partition by peaks"}


def test_list_scheduling_is_near_the_bound_on_random_graphs() -> None:
    # An error in transfers or ranks would exceed these bounds. They are facts of the method, not goldens.
    for seed in range(3):
        graph = _random_dag(100, seed)
        for transfer in ("blocking", "free"):
            plan = run_heuristic("critical-path", graph, Cluster.uniform(2, transfer=transfer))
            assert plan.makespan <= 1.05 * plan.lower_bound


def test_seeds() -> None:
    graph, cluster = _random_dag(60, 2), Cluster.uniform(2, transfer="blocking")
    one, same, other = (
        run_heuristic("random-topological", graph, cluster, seed=seed).timeline.op for seed in (1, 1, 2)
    )
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


def test_errors() -> None:
    graph = _chain(3)
    with pytest.raises(ConfigError, match="unknown heuristic 'nope'; use one of critical-path"):
        run_heuristic("nope", graph, Cluster.uniform(1))
    pinned = dataclasses.replace(graph, allowed_devices=((3,), None, None))
    hetero = dataclasses.replace(graph, runtime=np.ones((3, 2)))
    for name in HEURISTICS:
        with pytest.raises(ClusterError, match="may run on none"):
            run_heuristic(name, pinned, Cluster.uniform(2, transfer="blocking"))
        with pytest.raises(ClusterError, match="runtimes for 2 devices"):
            run_heuristic(name, hetero, Cluster.uniform(3, transfer="blocking"))
    with pytest.raises(ValueError, match="speed"):
        run_heuristic("bfs", graph, Cluster.uniform(1), "speed")


@pytest.mark.slow
def test_forty_thousand_ops() -> None:
    graph = random_graph(np.random.default_rng(0), 40_000, 2)
    for objective in Objective:
        assert (
            len(best_heuristic(graph, Cluster.uniform(2, transfer="blocking"), objective))
            == len(HEURISTICS) - 2
        )
