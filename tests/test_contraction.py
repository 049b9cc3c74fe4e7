"""Contraction: the guarantees of a contracted plan hold for the expanded plan."""

import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances, random_keys

import regal_jax
from benchmarks.__main__ import main as benchmark
from regal_jax import Cluster, GraphBuilder, contract, optimize, optimize_many, save_graph
from regal_jax.cli import main as cli
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, GraphError, PlanError
from regal_jax.graph.merging import ANCHOR_KINDS, _plain_kind
from regal_jax.graph.quotient import quotient
from regal_jax.heuristics import HEURISTICS
from regal_jax.plan import Plan, decode_order, decode_placement

TWO = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
OPTIONS = (
    {},
    {"max_share": 1.0},
    {"max_share": 1.0, "spare_memory": True},
    {"max_share": 0.2, "max_members": 3},
    {"max_share": 0.0},
    {"max_share": 1.0, "devices": 1, "anchors": ()},
)


def chains(seed=0):
    """A random graph whose heavy ops are each followed by three light ones."""
    graph = generate("erdos-renyi", 12, seed)
    builder = GraphBuilder(f"chains-{seed}")
    offset, tensors = graph.inputs
    for o in range(graph.num_ops):
        reads = [f"op{graph.tensor_op[t]}_3" for t in tensors[offset[o] : offset[o + 1]]]
        builder.add_op(f"op{o}_0", kind="dot", runtime=float(graph.runtime[o]), inputs=reads, outputs=[50])
        for i in range(3):
            builder.add_op(f"op{o}_{i + 1}", kind="add", runtime=1.0, inputs=[f"op{o}_{i}"], outputs=[50])
    return builder.build()


def random_plan(graph, cluster, rng, objective="makespan"):
    """The plan that random keys decode to."""
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    placement = decode_placement(graph, cluster, random_keys(rng, (n, d)))
    keys = random_keys(rng, (n,)), random_keys(rng, (t, d))
    events = decode_order(graph, cluster, placement, *keys)
    return Plan.from_events(graph, cluster, placement, events, objective=objective)


def check_expansion(made, cluster, seed):
    plan = random_plan(made.graph, cluster, np.random.default_rng(seed))
    plan.verify(made.graph)
    whole = made.expand(plan)
    whole.verify(made.original)
    assert whole.makespan <= plan.makespan * (1 + 1e-12)
    assert (whole.peak_memory <= plan.peak_memory).all()
    assert (whole.overflow <= plan.overflow).all()
    assert whole.num_transfers == plan.num_transfers
    assert whole.transfer_bytes == plan.transfer_bytes
    # Members of merged ops run one after another, and merged ops in the order of the plan.
    ops = made.op[whole.timeline.op[whole.timeline.port < 0]]
    runs = ops[np.flatnonzero(np.diff(ops, prepend=-1))]
    assert runs.tolist() == plan.timeline.op[plan.timeline.port < 0].tolist()


def check_graph(made):
    graph, small = made.original, made.graph
    assert sorted(o for ops in made.members for o in ops.tolist()) == list(range(graph.num_ops))
    for i, ops in enumerate(made.members):
        assert (made.op[ops] == i).all()
        assert small.op_names[i] in {graph.op_names[o] for o in ops}
    np.testing.assert_allclose(small.runtime.sum(axis=0), graph.runtime.sum(axis=0), rtol=1e-12)
    assert small.tensor_keep.sum() == graph.tensor_keep.sum()
    for field in ("tensor_bytes", "tensor_keep"):
        assert getattr(small, field).tolist() == getattr(graph, field)[made.tensor].tolist()
    # Each edge between sets exists exactly once, and there is no other edge.
    cross = {
        (t, made.op[o])
        for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True)
        if made.op[graph.tensor_op[t]] != made.op[o]
    }
    edges = zip(made.tensor[small.edge_tensor].tolist(), small.edge_op.tolist(), strict=True)
    assert set(edges) == cross


def check_convex(made):
    """Checks that no path leaves a set and returns to it."""
    graph = made.original
    for i in range(made.graph.num_ops):
        left = np.zeros(graph.num_ops, dtype=bool)
        after = [[] for _ in range(graph.num_ops)]
        for u, v in zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True):
            after[u].append(v)
        for u, v in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
            after[u].append(v)
        for u in graph.topological_order.tolist():
            for v in after[u]:
                if left[u] or (made.op[u] == i and made.op[v] != i):
                    left[v] = True
        assert not (left & (made.op == i)).any()


@given(instances(max_ops=20), st.sampled_from(OPTIONS), st.integers(0, 2**32 - 1))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plan_of_the_contracted_graph_expands_to_one_no_worse(instance, options, seed):
    graph, cluster = instance
    made = contract(graph, **options)
    check_graph(made)
    check_convex(made)
    check_expansion(made, cluster, seed)


@given(instances(max_ops=20, constraints=False), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_sets_of_consecutive_ops_keep_the_promise(instance, seed):
    """The bounds do not depend on the rules: they hold for any acyclic partition."""
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    leader = np.empty(graph.num_ops, dtype=np.int64)
    cuts = np.sort(rng.integers(0, graph.num_ops + 1, size=rng.integers(0, 5)))
    for ops in np.split(graph.topological_order, cuts):
        # Residents form a separate set without predecessors.
        for part in (ops[graph.resident[ops]], ops[~graph.resident[ops]]):
            leader[part] = part[:1] if len(part) else 0
    made = quotient(graph, leader)
    made = regal_jax.Contraction(graph, made.graph, made.op, made.members, made.tensor)
    check_expansion(made, cluster, seed)


@given(instances(max_ops=20), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_contraction_comes_to_an_end(instance, seed):
    """If no op is heavy and times do not matter, one pass suffices; else it ends when nothing changes."""
    graph, _ = instance
    once = contract(graph, anchors=(), max_share=1.0, devices=1)
    if not graph.runtime.any() or graph.num_ops == 1:
        return
    again = contract(once.graph, anchors=(), max_share=1.0, devices=1)
    assert again.graph is once.graph
    for _ in range(graph.num_ops):
        before, graph = graph, contract(graph, max_share=0.2).graph
        assert graph.num_ops <= before.num_ops
        if graph is before:
            break
    else:
        pytest.fail("still changing")


def by_hand():
    """``load`` 5 s -> ``cast`` -> ``dot`` 6 s -> ``relu`` -> ``left`` and ``right``, 5 s each -> ``add``."""
    builder = GraphBuilder("by-hand")
    builder.add_op("load", kind="load", runtime=5, outputs=[40])
    builder.add_op("cast", kind="convert_element_type", runtime=1, inputs=["load"], outputs=[20])
    builder.add_op("dot", kind="dot_general", runtime=6, inputs=["cast"], outputs=[30], temp_bytes=10)
    builder.add_op("relu", kind="max", runtime=1, inputs=["dot"], outputs=[30])
    builder.add_op("left", kind="scan", runtime=5, inputs=["relu"], outputs=[10])
    builder.add_op("right", kind="scan", runtime=5, inputs=["relu"], outputs=[10])
    builder.add_op("add", kind="add", runtime=1, inputs=["left", "right"], outputs=[10], keep=[0])
    return builder.build()


def test_by_hand():
    """``add`` is not merged: ``left`` must not wait for ``right``. All numbers were computed by hand."""
    made = contract(by_hand(), max_share=0.2)
    small = made.graph
    assert [ops.tolist() for ops in made.members] == [[0, 1], [2, 3], [4], [5], [6]]
    assert small.op_names == ("load", "dot", "left", "right", "add")
    assert small.runtime.tolist() == [6, 7, 5, 5, 1]
    # load holds 40, cast 40 + 20, of which 20 are the output; dot 30 + 10 on top of its input, relu 30 + 30
    # when the input's 20 have gone.
    assert small.temp_bytes.tolist() == [40, 10, 0, 0, 0]
    assert small.tensor_bytes.tolist() == [20, 30, 10, 10, 10]
    assert [small.tensor_name(t) for t in small.edge_tensor] == [
        "load:0", "dot:0", "dot:0", "left:0", "right:0"
    ]  # fmt: skip
    # relu's 30 bytes take 1 + 3 s to device 1, from 13 to 17; right's 10 bytes 2 s back, from 22 to 24.
    events = [0, 1, 5 + 1 * 2 + 1, 2, 3, 5 + 3 * 2 + 0, 4]
    plan = Plan.from_events(small, TWO, np.array([0, 0, 0, 1, 0]), events)
    whole = made.expand(plan)
    assert plan.makespan == whole.makespan == 25
    assert plan.peak_memory.tolist() == whole.peak_memory.tolist() == [60, 40]
    assert whole.timeline.start.tolist() == [0, 5, 6, 12, 13, 17, 17, 22, 24]
    assert whole.placement.tolist() == [0, 0, 0, 0, 0, 1, 0]
    assert whole.provenance["contraction"] == {"ops": 5, "of": 7, "objective_value": 25}
    assert str(made) == "7 ops contracted to 5"


def test_spared_memory():
    """``sum`` frees much memory: it runs early to spare memory, and is merged with its reader otherwise."""
    builder = GraphBuilder()
    builder.add_op("big", kind="dot", runtime=10, outputs=[1000])
    builder.add_op("other", kind="dot", runtime=10, outputs=[10])
    builder.add_op("use", kind="dot", runtime=10, inputs=["big"])
    builder.add_op("sum", kind="reduce_sum", runtime=0.1, inputs=["big"], outputs=[10])
    builder.add_op("mul", kind="mul", runtime=0.1, inputs=["sum", "other"], outputs=[10], keep=[0])
    graph = builder.build()
    members = [ops.tolist() for ops in contract(graph).members]
    assert members == [[0], [1], [2], [3, 4]]
    spared = contract(graph, spare_memory=True)
    assert spared.graph is graph
    assert spared.expand(HEURISTICS["lpmf"](graph, TWO)).graph_hash == graph.content_hash


def test_parameters_of_one_group_become_one():
    """As traced from JAX: ``start`` waits for all of them, so none can join its reader."""
    builder = GraphBuilder()
    for name, group in (("w", "layer"), ("b", "layer"), ("v", "other")):
        builder.add_op(name, kind="parameter", outputs=[8], keep=[0], colocation_group=group, resident=True)
    builder.add_op("start", kind="start", control_inputs=["w", "b", "v"])
    builder.add_op(
        "dot",
        kind="dot",
        runtime=1,
        inputs=["w", "b", "v"],
        control_inputs=["start"],
        colocation_group="layer",
    )
    made = contract(builder.build())
    assert [ops.tolist() for ops in made.members] == [[0, 1], [2], [3], [4]]
    assert made.graph.colocation_group == ("layer", "other", None, "layer")
    assert made.graph.resident.tolist() == [True, True, False, False]


def test_residents_and_others_are_no_set():
    builder = GraphBuilder("two")
    builder.add_op("w", outputs=[8], resident=True)
    builder.add_op("use", runtime=1, inputs=["w"])
    graph = builder.build()
    assert contract(graph, max_share=1.0).graph is graph
    with pytest.raises(GraphError, match="'use' and 'w' cannot be merged: one of them is resident"):
        quotient(graph, np.array([0, 0]))


def test_unread_residents_are_counted_when_merged():
    """``a`` and ``b`` are in memory together at time 0, and nobody reads the second output of ``a``."""
    builder = GraphBuilder()
    builder.add_op("a", outputs=[8, 100], colocation_group="g", resident=True)
    builder.add_op("b", outputs=[8], colocation_group="g", resident=True)
    builder.add_op("use", kind="dot", runtime=1, inputs=["a:0", "b:0"])
    made = contract(builder.build())
    assert [ops.tolist() for ops in made.members] == [[0, 1], [2]]
    plan = Plan.from_events(made.graph, Cluster.uniform(1), np.zeros(2, int), [0, 1])
    assert plan.peak_memory.tolist() == made.expand(plan).peak_memory.tolist() == [116]


def test_sets_that_close_a_circle_are_refused():
    with pytest.raises(GraphError, match="cycle"):
        quotient(by_hand(), np.array([0, 1, 2, 0, 4, 5, 6]))


def test_devices_are_respected():
    builder = GraphBuilder()
    builder.add_op("a", outputs=[1], runtime=1, allowed_devices=[0])
    builder.add_op("b", inputs=["a"], outputs=[1], runtime=1, colocation_group="g")
    builder.add_op("c", inputs=["b"], outputs=[1], runtime=1, allowed_devices=[0, 1])
    builder.add_op("d", inputs=["c"], runtime=1, allowed_devices=[0, 1], colocation_group="g")
    made = contract(builder.build(), max_share=1.0)
    # b may go where d may: its group is one with c's devices.
    assert [ops.tolist() for ops in made.members] == [[0], [1, 2, 3]]
    assert made.graph.allowed_devices == ((0,), (0, 1))
    assert made.graph.colocation_group == (None, "g")
    builder = GraphBuilder()
    builder.add_op("a", outputs=[1], allowed_devices=[0])
    builder.add_op("b", inputs=["a"], allowed_devices=[1])
    apart = builder.build()
    assert contract(apart, max_share=1.0).graph is apart
    with pytest.raises(GraphError, match="no allowed device"):
        quotient(apart, np.array([0, 0]))


def test_one_op():
    builder = GraphBuilder()
    builder.add_op("only", runtime=2.0)
    graph = builder.build()
    made = contract(graph)
    assert made.graph is graph
    assert made.op.tolist() == [0]
    assert optimize(graph, Cluster.uniform(1), contract=True, method="bfs").makespan == 2.0


@pytest.mark.parametrize(
    ("kind", "anchor"),
    [
        ("dot_general", True), ("MatMul", True), ("aten.mm.default", True), ("aten::addmm", True),
        ("torch.ops.aten.convolution_backward.default", True), ("Conv", True),
        ("convert_element_type", False), ("aten.add.Tensor", False), ("Reshape", False), ("", False),
    ],
)  # fmt: skip
def test_kinds_of_all_importers_are_known(kind, anchor):
    assert (_plain_kind(kind) in ANCHOR_KINDS) == anchor


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_share": 2}, "max_share"),
        ({"max_share": math.nan}, "max_share"),
        ({"max_share": True}, "max_share"),
        ({"max_members": 0}, "max_members"),
        ({"max_members": 1.5}, "max_members"),
        ({"devices": 0}, "devices"),
        ({"anchors": "dot"}, "anchors"),
        ({"anchors": [1]}, "anchors"),
        ({"anchors": 3}, "anchors"),
    ],
)
def test_bad_arguments(options, said):
    with pytest.raises(ConfigError, match=f"^{said}: ") as error:
        contract(by_hand(), **options)
    assert "\n" not in str(error.value)


def test_what_is_no_graph_or_no_plan_of_it():
    with pytest.raises(ConfigError, match="give a ComputationGraph"):
        contract("graph.json")
    made = contract(by_hand(), max_share=0.2)
    with pytest.raises(PlanError, match="not for the contracted"):
        made.expand(HEURISTICS["bfs"](made.original, TWO))


def test_a_plan_read_back_from_a_file_expands(tmp_path):
    made = contract(by_hand(), max_share=0.2)
    plan = HEURISTICS["critical-path"](made.graph, TWO)
    plan.save(tmp_path / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    (tmp_path / "plan.json").write_text(json.dumps(document, sort_keys=True))
    again = made.expand(Plan.load(tmp_path / "plan.json"))
    again.verify(made.original)
    assert again.makespan == made.expand(plan).makespan


@pytest.mark.parametrize("objective", ["makespan", "peak-memory"])
def test_optimize_on_the_contracted_graph(objective):
    graph, cluster = chains(), Cluster.uniform(2, 10_000, transfer="delay:latency=1,bandwidth=50")
    made = contract(graph, spare_memory=True)
    assert made.graph.num_ops < graph.num_ops
    plan = optimize(graph, cluster, objective=objective, contract=True, evaluations=300)
    plan.verify(graph)
    assert plan.provenance["contraction"]["ops"] == made.graph.num_ops
    assert plan.provenance["evaluations"] <= 300
    for name, heuristic in HEURISTICS.items():
        known = made.expand(heuristic(made.graph, cluster, objective))
        bound = heuristic(made.graph, cluster, objective).sort_key
        assert plan.sort_key <= (bound[0], bound[1] * (1 + 1e-12)), name
        known.verify(graph)
        assert plan.sort_key <= heuristic(graph, cluster, objective).sort_key, name
    alone = optimize(graph, cluster, objective=objective, contract=True, method="lpmf")
    alone.verify(graph)
    assert alone.provenance["method"] == "lpmf"


def test_many_are_expanded_before_they_are_told():
    graphs, told = [chains(), chains(seed=1), by_hand()], {}
    options = {"contract": True, "method": "critical-path"}
    plans = optimize_many(graphs, TWO, **options, progress=False, on_plan=told.__setitem__)
    for i, (graph, plan) in enumerate(zip(graphs, plans, strict=True)):
        plan.verify(graph)
        assert told[i] is plan
        assert plan.makespan == optimize(graph, TWO, **options).makespan
    with pytest.raises(ConfigError, match=r"^contract: "):
        optimize(graphs[0], TWO, contract="yes")  # pyright: ignore[reportArgumentType]


def test_the_command(tmp_path, capsys):
    save_graph(chains(), tmp_path / "chains.json")
    out = tmp_path / "plan.json"
    assert (
        cli(
            [
                "optimize",
                str(tmp_path / "chains.json"),
                "--contract",
                "--evaluations",
                "100",
                "--out",
                str(out),
            ]
        )
        == 0
    )
    graph = str(tmp_path / "chains.json")
    assert cli(["optimize", graph, "--contract", "--method", "critical-path", "--out", str(out)]) == 0
    assert cli(["verify", str(out), graph]) == 0
    assert Plan.load(out).provenance["contraction"]["of"] == chains().num_ops


@pytest.mark.slow
def test_the_benchmark(tmp_path, capsys):
    (tmp_path / "graphs").mkdir()
    save_graph(by_hand(), tmp_path / "graphs" / "by-hand.json.gz")
    out = tmp_path / "rows.json"
    few = ["--evaluations", "20", "--max-share", "0.2", "--objective", "peak-memory", "--out", str(out)]
    assert benchmark(["contract", "--graphs", str(tmp_path / "graphs"), *few]) == 0
    said = capsys.readouterr().out
    assert "peak-memory, 1 graphs, contracted over original" in said
    rows = json.loads(out.read_text())["rows"]
    assert [row["objective"] for row in rows] == ["peak-memory"]
    assert (rows[0]["original"]["ops"], rows[0]["contracted"]["ops"]) == (7, 5)
    assert rows[0]["original"]["searched"] == rows[0]["contracted"]["searched"] == 60


def test_the_benchmark_refuses_what_is_no_graph(tmp_path, capsys):
    for path, what in ((tmp_path, "no graph in"), (tmp_path / "a.json", "cannot be read")):
        assert benchmark(["contract", "--graphs", str(path)]) == 2
        said = capsys.readouterr().err
        assert what in said
        assert len(said.splitlines()) == 1


def test_the_longest_path_stays():
    """With two devices ``shift``, ready at once, is not put behind ``dot``; with one it may be."""
    builder = GraphBuilder()
    builder.add_op("start", kind="start", outputs=[8])
    builder.add_op("dot", kind="dot", runtime=98, inputs=["start"], outputs=[8])
    builder.add_op("shift", kind="mul", runtime=1, inputs=["start"], outputs=[8])
    builder.add_op("add", kind="add", runtime=1, inputs=["dot", "shift"], outputs=[8], keep=[0])
    graph = builder.build()
    assert [ops.tolist() for ops in contract(graph).members] == [[0], [1], [2], [3]]
    assert [ops.tolist() for ops in contract(graph, devices=1).members] == [[0, 1, 2, 3]]
