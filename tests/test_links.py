"""Links: a latency and a bandwidth for each pair of devices, names, defaults."""

import dataclasses
import functools
import json
import math
import pathlib
import re

import jax
import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph, random_keys

from regal_jax import Brkga, encoding, optimize
from regal_jax.datasets import generate
from regal_jax.encoding import gene_shapes
from regal_jax.errors import ClusterError, FormatError
from regal_jax.graph import (
    DEFAULT_LINK,
    LINKS,
    Cluster,
    GraphBuilder,
    mean_transfer_times,
    transfer_times,
)
from regal_jax.graph.cluster import MAX_LINKS
from regal_jax.graph.links import link_name
from regal_jax.graph.units import parse_bandwidth, parse_time
from regal_jax.heuristics import best_heuristic, run_heuristic
from regal_jax.heuristics.exact import cp_sat
from regal_jax.heuristics.heft import heft_schedule
from regal_jax.heuristics.list_kernel import schedule
from regal_jax.heuristics.list_scheduling import (
    QUICK_RULES,
    kernel_arguments,
    list_schedule,
    placement_and_events,
    quick_schedule,
)
from regal_jax.heuristics.placements import partition_placement
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.plan import Plan, decode_order, decode_placement, makespan_upper_bound, replay
from regal_jax.problem import Bucket, make_problem
from regal_jax.runtime.compiling import run_loops
from regal_jax.simulate import simulate

INF = math.inf
# All entries are 2 us in two notations: the table is uniform, but its texts differ.
ALIKE = [["", "2us", "0.002ms"], ["0.002ms", "", "2us"], ["2us", "2us", ""]]
DOCS = pathlib.Path(__file__).parent.parent / "docs"
decode = jax.jit(encoding.decode)


# Values -----------------------------------------------------------------------------------------------


def test_a_table_says_what_each_pair_has():
    cluster = Cluster((1, 2, 3), "delay", [[0, "5us", 1], [2, 0, 3], [4, 5, 0]], "50GB/s")
    assert cluster.between(0, 1) == ("5us", "50GB/s")
    assert cluster.between(1, 0) == (2.0, "50GB/s")
    assert len(cluster.links) == 6
    assert all(
        cluster.links[cluster.link_index[i, j]] == cluster.between(i, j)
        for i in range(3)
        for j in range(3)
        if i != j
    )
    assert (np.diag(cluster.link_index) == 0).all()
    with pytest.raises(ValueError, match="read-only"):
        cluster.link_index[0, 1] = 0
    assert hash(cluster) == hash(dataclasses.replace(cluster))
    assert dataclasses.replace(cluster, memory=(1, 2, 4)).latency == cluster.latency


def test_arrays_and_what_stands_on_the_diagonal():
    rows = [[INF, 5.0], [6.0, -1.0]]
    cluster = Cluster((1, 1), latency=np.array(rows), bandwidth=np.array([[0, 3], [4, np.nan]], np.float32))
    assert cluster == Cluster((1, 1), latency=[[0, 5], [6, 0]], bandwidth=[["x", 3.0], [4.0, None]])
    assert cluster == Cluster((1, 1), latency=list(map(np.array, rows)), bandwidth=((0, 3.0), [4, 0]))
    assert json.dumps(cluster.latency) == "[[0.0, 5.0], [6.0, 0.0]]"


def test_a_uniform_table_is_the_one_number():
    table = [[7, 5, 5], [5, 7, 5], [5, 5, 7]]
    assert Cluster((1, 1, 1), latency=table, bandwidth=table) == Cluster((1, 1, 1), None, 5, 5)
    alike = Cluster((1, 1, 1), latency=ALIKE)
    assert len(alike.links) == 2
    assert alike != Cluster((1, 1, 1), latency="2us")


@pytest.mark.parametrize("text", ["blocking", "nvlink4", "delay:latency=3,bandwidth=2"])
def test_a_single_device_has_no_link(text):
    one = Cluster.uniform(1, transfer=text)
    assert (one.latency, one.bandwidth, len(one.links)) == (0.0, INF, 1)
    assert str(one) == "1 device(s) of unlimited"
    assert Cluster((1,), latency=[[5]]) == Cluster((1,))
    with pytest.raises(ClusterError, match="latency"):
        Cluster((1,), latency=-1)


@pytest.mark.parametrize(
    ("latency", "bandwidth", "message"),
    [
        ([[0, 1]], None, "latency: a table needs a row and a column for each of the 2 devices"),
        ([[0, 1], [1]], None, "latency: a table needs"),
        ([0, 1], None, "latency: a table needs"),
        (np.zeros((2, 2, 2)), None, "latency"),
        (["01", "10"], None, "latency: a table needs"),
        (None, np.ones((3, 3)), "bandwidth: a table needs"),
        ([[0, -1], [1, 0]], None, r"latency\[0\]\[1\]: must be zero or more"),
        ([[0, 1], [math.nan, 0]], None, r"latency\[1\]\[0\]"),
        ([[0, 1], [INF, 0]], None, r"latency\[1\]\[0\]: must be finite"),
        ([[0, "5lightyears"], [1, 0]], None, r"latency\[0\]\[1\]: cannot read"),
        ([[0, True], [1, 0]], None, r"latency\[0\]\[1\]"),
        ([[0, 1], [None, 0]], None, r"latency\[1\]\[0\]"),
        ([[0, 1], [[1], 0]], None, r"latency\[1\]\[0\]"),
        (None, [[1, 0], [1, 1]], r"bandwidth\[0\]\[1\]: must be more than zero"),
        (None, [[1, "50Gb/s"], [1, 1]], r"bandwidth\[0\]\[1\]: '50Gb/s' reads as bits"),
    ],
)
def test_bad_tables_are_refused_in_one_line(latency, bandwidth, message):
    with pytest.raises(ClusterError, match=message) as caught:
        Cluster((1, 1), "delay", latency, bandwidth)
    assert "\n" not in str(caught.value)


def test_too_many_links_and_free_ones_with_a_cost():
    d = math.isqrt(MAX_LINKS) + 2
    with pytest.raises(ClusterError, match=f"at most {MAX_LINKS} are supported"):
        Cluster((1,) * d, latency=np.arange(d * d, dtype=float).reshape(d, d))
    with pytest.raises(ClusterError, match="use 'delay'"):
        Cluster((1, 1), "free", [[0, 0], [1, 0]])
    with pytest.raises(ClusterError, match="use 'delay'"):
        Cluster((1, 1), "free", 0, [[0, INF], [1, 0]])
    assert Cluster((1, 1), "free", [[5, 0], [0, 5]]) == Cluster((1, 1), "free")


def test_machines_of_several_devices():
    cluster = Cluster.nodes(2, 2, within="nvlink4", between="latency=50us", memory="8GiB", transfer="delay")
    near, far = LINKS["nvlink4"].link, ("50us", INF)
    assert [cluster.between(0, k) for k in (1, 2, 3)] == [near, far, far]
    assert [cluster.between(3, k) for k in (0, 1, 2)] == [far, far, near]
    assert cluster.memory == (8 * 2.0**30,) * 4
    assert "over links of latency 3us, bandwidth 375GB/s (as nvlink4) and links of latency 50us" in str(
        cluster
    )
    same = Cluster.nodes(1, 2, within="nvlink4", between="nvlink4", memory=np.int64(5))
    assert same == Cluster.uniform(2, 5, "nvlink4")
    one = Cluster.nodes(1, 3, within="pcie3x16", between="nvlink4")
    assert one == Cluster.uniform(3, transfer="pcie3x16")
    apart = Cluster.nodes(3, 1, within="nvlink4", between="pcie3x16", memory=[1, 2, 3])
    assert apart == Cluster((1, 2, 3), "pcie3x16")
    pairs = [[None, "nvlink4"], ["pcie4x16", None]]
    assert Cluster.linked((1, 1), pairs).between(1, 0) == LINKS["pcie4x16"].link


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Cluster.nodes(2, 2, within="nvlink9", between="nvlink4"), "no link is called 'nvlink9'"),
        (lambda: Cluster.nodes(0, 2, within="nvlink4", between="nvlink4"), "nodes must be a whole number"),
        (lambda: Cluster.nodes(2, 1.5, within="nvlink4", between="nvlink4"), "devices must be a whole"),
        (lambda: Cluster.nodes(512, 512, within="nvlink4", between="nvlink4"), "at most 1024"),
        (lambda: Cluster.nodes(2, 2, within="nvlink4", between="nvlink4", memory=[1, 2]), "2 capacities"),
        (lambda: Cluster.nodes(2, 2, within="nvlink4", between="nvlink4", transfer="x:nvlink4"), "a model"),
        (lambda: Cluster.linked((1, 1), [["nvlink4"]]), "links: a table needs"),
        (lambda: Cluster.linked((1, 1), [[None, None], ["nvlink4", None]]), "give a link as text"),
        (lambda: Cluster.linked((1, 1), [[None, []], ["nvlink4", None]]), r"links\[0\]\[1\]: give a link as"),
        (lambda: Cluster.linked((1, 1), 5), "links: a table needs"),
        (lambda: Cluster.linked(5, [[None]]), "one capacity a device"),
    ],
)  # fmt: skip
def test_bad_groups_are_refused_in_one_line(make, message):
    with pytest.raises(ClusterError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


# Names ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LINKS)
def test_named_links(name):
    named = LINKS[name]
    assert 0 < parse_time(named.latency, "us") <= 100
    nominal = parse_bandwidth(named.nominal, "s")
    assert 0.5 * nominal < parse_bandwidth(named.bandwidth, "s") < nominal
    assert named.basis
    assert link_name(named.link) == name  # So that no two have the same numbers.
    blocking = Cluster.uniform(2, "16GiB", name)
    assert blocking == Cluster.uniform(2, "16GiB", f"blocking:{name}")
    assert blocking == Cluster((2.0**34,) * 2, "blocking", named.latency, named.bandwidth)
    assert dataclasses.replace(blocking, transfer="delay") == Cluster.uniform(2, "16GiB", f"delay:{name}")
    assert f"(as {name})" in str(blocking)


def test_the_page_of_links_has_the_table():
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| (\S+) \| (\S+) \|", (DOCS / "links.md").read_text(), re.M)
    assert rows == [(name, link.latency, link.bandwidth, link.nominal) for name, link in LINKS.items()]


@pytest.mark.parametrize(
    "text",
    ["nvlink", "pcie4x16:delay", "blocking:link=pcie4x16", "delay:nvlink4,latency=1us", "delay:", "nvlink4:"],
)
def test_other_texts_are_refused_with_the_names(text):
    with pytest.raises(ClusterError, match=", ".join(LINKS)):
        Cluster.uniform(2, transfer=text)


def test_a_link_is_given_once():
    for other in ({"latency": 5}, {"bandwidth": [[1, 2], [3, 4]]}):
        with pytest.raises(ClusterError, match="leave one out"):
            Cluster((1, 1), "delay:nvlink4", **other)


# Defaults ---------------------------------------------------------------------------------------------


def test_without_a_word_transfers_take_time():
    default = Cluster.uniform(2)
    assert default == Cluster((INF, INF)) == Cluster.uniform(2, transfer=f"blocking:{DEFAULT_LINK}")
    assert transfer_times(_one_megabyte(), default).tolist() == [[10 + 40]]
    assert f"(as {DEFAULT_LINK})" in str(default)


@pytest.mark.parametrize("text", ["blocking", "delay", "free"])
def test_a_model_alone_costs_nothing(text):
    cluster = Cluster.uniform(2, transfer=text)
    assert (cluster.transfer, cluster.latency, cluster.bandwidth) == (text, 0.0, INF)
    assert cluster == Cluster((INF, INF), text)
    assert "at no cost" in str(cluster)


def test_a_latency_or_a_bandwidth_leaves_the_other_at_no_cost():
    assert Cluster((1, 1), latency=5) == Cluster((1, 1), "blocking", 5, INF)
    assert Cluster((1, 1), bandwidth=5) == Cluster((1, 1), "blocking", 0, 5)


def test_what_means_the_papers_transfers_still_does():
    from regal_jax.datasets import RoomForImprovement
    from regal_jax.experiments import EvaluationConfig
    from regal_jax.learning import TrainConfig

    free = Cluster.uniform(2, transfer="blocking")
    filter_ = RoomForImprovement()
    assert filter_.cluster == free
    assert filter_.as_document() == {
        "low": 1000,
        "high": 10_000,
        "improvement": 0.2,
        "seed": 2_020_001,
        "devices": 2,
        "memory": [None, None],
        "transfer": "blocking",
        "latency": 0.0,
        "bandwidth": None,
    }
    assert EvaluationConfig(graphs="sample").cluster == free
    named = EvaluationConfig(graphs="sample", transfer="delay:nvlink4", memory="8GiB")
    assert named.cluster == Cluster.uniform(2, "8GiB", "delay:nvlink4")
    assert TrainConfig().task.cluster(2) == free


def _one_megabyte():
    builder = GraphBuilder("one", "us")
    builder.add_op("a", outputs=[10**6])
    return builder.build()


# What happens over them -------------------------------------------------------------------------------


def _worked_example():
    """That of docs/design.md, part 1."""
    b = GraphBuilder("worked")
    b.add_op("load", runtime=2, outputs=[20])
    b.add_op("init", runtime=1, outputs=[50], keep=[0])
    b.add_op("split", runtime=3, outputs=[30, 40], inputs=["load:0"], temp_bytes=15)
    b.add_op("left", runtime=4, outputs=[10], inputs=["split:0"])
    b.add_op("right", runtime=5, outputs=[20], inputs=["split:1", "init:0"], control_inputs=["left"])
    b.add_op("join", runtime=2, outputs=[60], inputs=["left:0", "right:0", "split:1"])
    b.add_op("report", runtime=1, outputs=[5], inputs=["join:0"])
    return b.build()


@pytest.mark.parametrize(
    ("model", "makespan"),
    # There 1 + size / 10, back 4 + size / 5: right:0 takes 8 s and not 3. By hand: 32 + 5 and 28 + 5.
    [("blocking", 37), ("delay", 33)],
)
def test_the_worked_example_with_a_slower_way_back(model, makespan):
    graph = _worked_example()
    cluster = Cluster((1000, 1000), model, [[0, 1], [4, 0]], [[1, 10], [5, 1]])
    sent = [(graph.tensor_index(name), k) for name, k in (("split:1", 1), ("right:0", 0), ("join:0", 1))]
    first, second, third = (graph.num_ops + t * 2 + k for t, k in sent)
    events = [0, 1, 2, first, 3, 4, second, 5, third, 6] if model == "blocking" else range(7)
    placement = np.array([0, 1, 0, 0, 1, 0, 1])
    line = replay(graph, cluster, placement, list(events))
    assert line.makespan == makespan
    plan = Plan.from_events(graph, cluster, placement, list(events))
    plan.verify(graph)
    # Over the link of the other direction it is another plan.
    other = dataclasses.replace(
        plan, cluster=Cluster((1000, 1000), model, [[0, 4], [1, 0]], [[1, 5], [10, 1]])
    )
    with pytest.raises(ValueError, match=r"start|finish|input|makespan|two things"):
        other.verify(graph)


def oracle(graph, cluster, place, events):
    """Makespan of the events, one after another, from the given tables."""
    n, d = graph.num_ops, cluster.num_devices
    latency, bandwidth = (np.broadcast_to(q, (d, d)) for q in (cluster.latency, cluster.bandwidth))
    home, blocking = place[graph.tensor_op], cluster.transfer == "blocking"
    clock, finish = [0.0] * d, {}
    runtime = np.broadcast_to(graph.runtime.reshape(n, -1), (n, d))
    for event in events.tolist():
        t, k = divmod(event - n, d) if event >= n else (0, place[event])
        if event >= n:
            h = home[t]
            moved = latency[h, k] + graph.tensor_bytes[t] / bandwidth[h, k]
            clock[h] = clock[k] = max(clock[h], clock[k]) + moved
            continue
        waits = [finish[u] for u in graph.control_source[graph.control_target == event]]
        for t in graph.edge_tensor[graph.edge_op == event]:
            h, late = home[t], 0.0
            if h != k and not blocking:
                late = latency[h, k] + graph.tensor_bytes[t] / bandwidth[h, k]
            waits.append(finish[graph.tensor_op[t]] + late)
        clock[k] = finish[event] = max([clock[k], *waits]) + runtime[event, k]
    return max(clock)


def _table(rng, devices, values):
    return rng.choice(values, (devices, devices))


@functools.cache
def _implementations():
    from test_pallas import INTERPRET

    from regal_jax.simulate.pallas_gpu import run_pallas
    from regal_jax.simulate.simulate import with_peaks

    def fused(problem, decisions):
        run = functools.partial(run_pallas, interpret=INTERPRET)
        return with_peaks(run, problem, decisions, memory=True, positions=True)

    named = {
        name: functools.partial(simulate, implementation=name, positions=True) for name in ("xla", "host")
    }
    return {name: jax.jit(run) for name, run in {**named, "pallas": fused}.items()}


def _candidates(problem, rng, count):
    lead = (problem.num_graphs, count)
    return {k: random_keys(rng, lead + leaf.shape, True) for k, leaf in gene_shapes(problem).items()}


# By default, devices that are padded have transfers that do not block.
@pytest.mark.parametrize("model", ["blocking", pytest.param("delay", marks=pytest.mark.slow)])
def test_every_implementation_the_replay_and_an_oracle_agree(model):
    @settings(max_examples=8, database=None)
    @given(st.integers(2, 8), st.integers(0, 2**32 - 1))
    def cases(num_ops, seed):
        rng, d = np.random.default_rng(seed), 3
        graph = random_graph(rng, num_ops, d, inputs_per_op=1.5)
        # Six links of which no two are alike: the bucket and L are the same in all cases.
        latency = np.arange(9.0).reshape(d, d) / 4 + rng.integers(4)
        cluster = Cluster((INF,) * d, model, latency, _table(rng, d, [0.5, 3.0, INF]))
        problem = make_problem([graph], cluster, Bucket(8, 24, 40, 20))
        assert problem.num_links == 8
        genes = _candidates(problem, rng, 2)
        results = {name: run(problem, decode(problem, genes)) for name, run in _implementations().items()}
        for p in range(2):
            keys = {k: leaf[0, p] for k, leaf in genes.items()}
            place = decode_placement(graph, cluster, keys["affinity"][: graph.num_ops])
            events = decode_order(
                graph,
                cluster,
                place,
                keys["priority"][: graph.num_ops],
                keys["transfer_priority"][: graph.num_tensors],
            )
            line = replay(graph, cluster, place, events)
            assert line.makespan == oracle(graph, cluster, place, events)
            for result in results.values():
                np.testing.assert_allclose(result.makespan[0, p], line.makespan, rtol=1e-5)
                assert result.makespan[0, p] == results["xla"].makespan[0, p]
                assert np.array_equal(result.op_position, results["xla"].op_position)

    cases()


@pytest.mark.parametrize("model", ["blocking", pytest.param("delay", marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", range(4))
def test_a_table_that_is_uniform_gives_what_the_number_gives_bit_for_bit(model, seed):
    rng = np.random.default_rng(seed)
    graph = dataclasses.replace(random_graph(rng, 20, 3), time_unit="us")
    number = Cluster((INF,) * 3, model, "2us", "3B/s")
    table = Cluster((INF,) * 3, model, ALIKE, "3B/s")
    assert (len(number.links), len(table.links)) == (1, 2)
    for make in (heft_schedule, *(functools.partial(list_schedule, rule=rule) for rule in QUICK_RULES)):
        assert all(map(np.array_equal, make(graph, number), make(graph, table)))
    numbers = np.argsort(graph.topological_order)
    one, other = (quick_schedule(graph, cluster, numbers) for cluster in (number, table))
    assert all(map(np.array_equal, one, other))
    assert makespan_upper_bound(graph, number) == makespan_upper_bound(graph, table)
    assert mean_transfer_times(graph, number).tolist() == transfer_times(graph, number)[:, 0].tolist()
    np.testing.assert_allclose(mean_transfer_times(graph, number), mean_transfer_times(graph, table))
    problem, same = make_problem([graph], number), make_problem([graph], table)
    genes = _candidates(problem, rng, 5)
    for name in ("xla", "host"):
        run = _implementations()[name]
        ours, theirs = run(problem, decode(problem, genes)), run(same, decode(same, genes))
        assert all(map(np.array_equal, ours, theirs))


def test_clusters_with_few_and_many_links_share_a_batch():
    rng = np.random.default_rng(1)
    graphs = [random_graph(rng, 15, 4) for _ in range(3)]
    memory = (INF,) * 4
    clusters = [
        Cluster(memory, "blocking", 2),
        Cluster(memory, "blocking", np.where(np.eye(4), 0, [[1, 2, 1, 2]])),
        Cluster(memory, "blocking", np.arange(16.0).reshape(4, 4)),
    ]
    together = make_problem(graphs, clusters)
    assert (together.num_links, [len(cluster.links) for cluster in clusters]) == (16, [1, 2, 12])
    genes = _candidates(together, rng, 4)
    all_of_them = _implementations()["host"](together, decode(together, genes))
    for b, (graph, cluster) in enumerate(zip(graphs, clusters, strict=True)):
        alone = make_problem([graph], cluster, together.bucket)
        own = {k: leaf[b : b + 1] for k, leaf in genes.items()}
        result = _implementations()["host"](alone, decode(alone, own))
        assert np.array_equal(result.makespan[0], all_of_them.makespan[b])


@pytest.mark.parametrize("model", [pytest.param("blocking", marks=pytest.mark.slow), "delay"])
def test_devices_that_are_padded_change_no_link(model):
    rng = np.random.default_rng(2)
    graph = random_graph(rng, 15, 3)
    cluster = Cluster((INF,) * 3, model, np.arange(9.0).reshape(3, 3))
    padded = make_problem([graph], cluster, devices=4)
    problem = make_problem([graph], cluster)
    genes = _candidates(padded, rng, 4)
    own = {k: leaf if k == "priority" else leaf[..., :3] for k, leaf in genes.items()}
    for name in ("xla", "host"):
        run = _implementations()[name]
        ours, theirs = run(problem, decode(problem, own)), run(padded, decode(padded, genes))
        assert np.array_equal(ours.makespan, theirs.makespan)


# Searches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["blocking", "delay"])
@pytest.mark.parametrize("seed", range(4))
def test_constraint_programming_agrees_with_brute_force(model, seed):
    rng, d = np.random.default_rng(seed), 2 + seed % 2
    builder = GraphBuilder("whole")
    for v in range(5):
        inputs = [f"{u}:0" for u in range(v) if rng.random() < 0.6]
        builder.add_op(
            str(v), runtime=int(rng.integers(2, 9)), outputs=[int(rng.integers(1, 5))], inputs=inputs
        )
    graph = builder.build()
    cluster = Cluster((INF,) * d, model, rng.integers(0, 4, (d, d)), _table(rng, d, [1, 2, INF]))
    exact, best = cp_sat(graph, cluster, time_limit=60), brute_force(graph, cluster)
    assert exact.provenance["status"] == "optimal"
    assert exact.makespan == best.makespan
    assert all(plan.makespan >= best.makespan for plan in best_heuristic(graph, cluster))


def _fan():
    """An op whose output two long ops read."""
    builder = GraphBuilder("fan")
    builder.add_op("root", runtime=1, outputs=[1])
    for leaf in "ab":
        builder.add_op(leaf, runtime=20, inputs=["root:0"])
    return builder.build()


@pytest.mark.parametrize("model", ["blocking", "delay"])
@pytest.mark.parametrize("cheap", [(0, 1), (1, 0)])
def test_equal_devices_are_not_alike_where_their_links_are_not(model, cheap):
    # Fixing the root's device, as for interchangeable devices, would cost 9, since one direction is faster.
    graph, latency = _fan(), np.full((2, 2), 10)
    latency[cheap] = 1
    cluster = Cluster((INF, INF), model, latency)
    for plan in (brute_force(graph, cluster), cp_sat(graph, cluster)):
        assert (plan.makespan, plan.placement[0]) == (22, cheap[0])


@pytest.mark.parametrize("model", ["blocking", "delay"])
@pytest.mark.parametrize("seed", range(5))
def test_what_list_schedules_say_of_times_is_exact(model, seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, 25, 3)
    cluster = Cluster((INF,) * 3, model, _table(rng, 3, [0, 1, 5]), _table(rng, 3, [0.5, 3, INF]))
    for rule in QUICK_RULES:
        rank, price = upward_rank(graph, cluster), np.zeros(graph.num_ops * 3)
        state = run_loops(schedule, *kernel_arguments(graph, cluster), rank, price, *rule.numbers, INF)
        line = replay(graph, cluster, *placement_and_events(state))
        assert max(state.clock) == pytest.approx(line.makespan, rel=1e-12)


@pytest.mark.parametrize("model", ["blocking", "delay"])
def test_list_schedules_and_heft_take_the_short_way(model):
    latency = np.array([[0, 50, 1], [1, 0, 50], [50, 50, 0]])
    cluster = Cluster((INF,) * 3, model, latency)
    builder = GraphBuilder("pinned")
    builder.add_op("root", runtime=1, outputs=[1], allowed_devices=[0])
    for leaf in "ab":
        builder.add_op(leaf, runtime=20, inputs=["root:0"])
    plan = run_heuristic("critical-path", builder.build(), cluster)
    assert plan.makespan == 22
    assert sorted(plan.placement.tolist()) == [0, 0, 2]
    if model == "delay":
        graph = builder.build()
        assert replay(graph, cluster, *heft_schedule(graph, cluster)).makespan == 22


def test_parts_that_talk_go_to_one_machine():
    builder = GraphBuilder("talk")
    for part in "abcd":  # Four dense parts; the first talks with the third and the second with the fourth.
        for v in range(12):
            inputs = [f"{part}{u}:0" for u in range(v)]
            if part in "cd":
                inputs.append(f"{'ab'['cd'.index(part)]}{v}:0")
            builder.add_op(f"{part}{v}", runtime=1, outputs=[1000], inputs=inputs)
    graph = builder.build()
    for node in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 0]):
        links = [["nvlink4" if a == b else "ethernet-10g" for b in node] for a in node]
        place = partition_placement(graph, Cluster.linked((INF,) * 4, links))
        a, b, c, d = place.reshape(4, 12)
        assert all(len(set(part.tolist())) == 1 for part in (a, b, c, d))
        assert (node[a[0]], node[b[0]]) == (node[c[0]], node[d[0]])
        assert len({a[0], b[0], c[0], d[0]}) == 4


# By default, test_oracles.py has links that are alike.
@pytest.mark.slow
def test_a_long_search_finds_what_brute_force_proves():
    rng = np.random.default_rng(3)
    graph = random_graph(rng, 5, 3, constraints=False)
    cluster = Cluster((INF,) * 3, "blocking", latency=np.arange(9.0).reshape(3, 3) / 8)
    best = brute_force(graph, cluster)
    solver = Brkga(restart_after=2000)
    plan = optimize(graph, cluster, method=solver, evaluations=10_000, seed=0, warm_start=False)
    plan.verify(graph)
    assert plan.makespan == pytest.approx(best.makespan, rel=1e-6)


# Files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster.uniform(4),
        Cluster.uniform(4, "1GiB", "free"),
        Cluster.nodes(2, 2, within="nvlink4", between="ethernet-100g", memory="80GiB"),
        Cluster((1, 2, 3, INF), "delay", np.arange(16.0).reshape(4, 4), [["1GB/s", INF, 3, 4]] * 4),
    ],
    ids=str,
)
def test_plan_files_keep_links(cluster, tmp_path):
    graph = generate("layered", 12, 0)
    plan = run_heuristic("critical-path", graph, cluster)
    plan.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.cluster == plan.cluster
    again.verify(graph)
    if cluster.over:
        assert f"{cluster.transfer} over {cluster.over}" in str(again)


@pytest.mark.parametrize(
    ("latency", "message"),
    [
        ([[0, 1]], "a table needs"),
        ([0, 1], "a list"),
        ([[0, {}], [1, 0]], "finite number"),
        ([[0, -1], [1, 0]], "zero or more"),
    ],
)
def test_bad_links_in_a_plan_file(latency, message, tmp_path):
    graph = generate("chain", 3, 0)
    run_heuristic("critical-path", graph, Cluster.uniform(2)).save(tmp_path / "plan.json")
    text = (tmp_path / "plan.json").read_text()
    document = json.loads(text)
    document["cluster"]["latency"] = latency
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=message) as caught:
        Plan.load(tmp_path / "plan.json")
    assert "\n" not in str(caught.value)


def test_what_older_versions_wrote_is_read(tmp_path):
    graph, file = generate("chain", 3, 0), tmp_path / "plan.json"
    run_heuristic("critical-path", graph, Cluster.uniform(2, transfer="blocking")).save(file)
    cluster = json.loads(file.read_text())["cluster"]
    assert cluster == {"memory": [None, None], "transfer": "blocking", "latency": 0.0, "bandwidth": None}
    # Earlier files have an unused link for a single device.
    run_heuristic("critical-path", graph, Cluster.uniform(1)).save(file)
    document = json.loads(file.read_text())
    document["cluster"] |= {"latency": "5us", "bandwidth": 3}
    file.write_text(json.dumps(document))
    plan = Plan.load(file)
    plan.verify(graph)
    assert plan.cluster == Cluster.uniform(1)


def test_a_link_in_numbers_alone_is_blocking():
    text = "latency=5us,bandwidth=50GB/s"
    assert Cluster.uniform(2, transfer=text) == Cluster.uniform(2, transfer=f"blocking:{text}")
    with pytest.raises(ClusterError, match="no link is called 'speed=5'"):
        Cluster.uniform(2, transfer="speed=5")
