"""Graphs: construction, and errors for invalid input."""

import dataclasses
import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from strategies import instances
from work import lines_of

from regal_jax import optimize
from regal_jax.errors import GraphError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.graph.topology import stable_order
from regal_jax.plan import Plan, insert_transfers
from regal_jax.runtime import compiling


def refused(builder: GraphBuilder, message: str) -> None:
    with pytest.raises(GraphError, match=message) as caught:
        builder.build()
    assert "\n" not in str(caught.value)


def small() -> ComputationGraph:
    b = GraphBuilder("small", time_unit="us")
    b.add_op("b", kind="k", runtime="1ms", inputs=["a:1", "a"], outputs=["1KiB"], keep=[0], temp_bytes=2.5)
    b.add_op(
        "a", runtime=np.float32(0.5), outputs=[3, 4.2], allowed_devices=[np.int64(1), 0], colocation_group="g"
    )
    b.add_op("c", inputs=[(1, 0)], control_inputs=["b", 0], colocation_group="g")
    return b.build()


def test_a_graph_says_what_was_put_in():
    g = small()
    assert (g.num_ops, g.num_tensors, g.op_names) == (3, 3, ("b", "a", "c"))
    assert g.runtime.tolist() == [1000, 0.5, 0]
    assert (g.temp_bytes.tolist(), g.tensor_bytes.tolist()) == ([3, 0, 0], [1024, 3, 5])
    assert (g.tensor_op.tolist(), g.tensor_port.tolist(), g.tensor_keep.tolist()) == (
        [0, 1, 1],
        [0, 0, 1],
        [1, 0, 0],
    )
    assert list(zip(g.edge_tensor.tolist(), g.edge_op.tolist(), strict=True)) == [(1, 0), (1, 2), (2, 0)]
    assert (g.control_source.tolist(), g.control_target.tolist()) == ([0], [2])
    assert [x.tolist() for x in g.inputs] == [[0, 2, 2, 3], [1, 2, 1]]
    assert g.topological_order.tolist() == [1, 0, 2]
    assert g.colocation_leader.tolist() == [0, 1, 1]
    assert g.allowed_devices == (None, (0, 1), None)
    assert [g.tensor_index(g.tensor_name(t)) for t in range(3)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("field", "value"),
    [("outputs", "12"), ("outputs", 5), ("inputs", "a:0"), ("control_inputs", "a"), ("allowed_devices", 5)],
)
def test_lists_are_not_single_values(field, value):
    b = GraphBuilder("g")
    b.add_op("a", outputs=[1])
    with pytest.raises(
        GraphError, match=rf"op 'bad': {field}: {value!r} must be a list, such as \[{value!r}\]"
    ):
        b.add_op("bad", **{field: value})
    b.add_op("bad")
    assert b.build().num_ops == 2


@pytest.mark.parametrize("name", ["a:2", "a:", "a", "x:0", "", "a:-1", "a:" + "9" * 5000])
def test_tensors_that_are_not_there(name):
    with pytest.raises(GraphError, match="no tensor"):
        small().tensor_index(name)


def test_an_empty_graph():
    refused(GraphBuilder("nothing"), "'nothing': empty")


def test_a_cycle_is_named():
    b = GraphBuilder()
    for i in range(4):
        b.add_op(f"n{i}", outputs=[1], inputs=[f"n{(i - 1) % 4}:0"])
    b.add_op("outside", inputs=["n0:0"])
    with pytest.raises(GraphError, match="cycle") as caught:
        b.build()
    walk = str(caught.value).split("cycle ")[1].split(";")[0].split(" -> ")
    assert len(walk) == 5
    assert walk[0] == walk[-1]
    assert all(int(v[1]) == (int(u[1]) + 1) % 4 for u, v in itertools.pairwise(walk)), "along its edges"


def test_a_cycle_through_control_edges_and_a_long_one():
    b = GraphBuilder()
    b.add_op("a", outputs=[1], control_inputs=["b"])
    b.add_op("b", inputs=["a:0"])
    refused(b, r"cycle (a -> b -> a|b -> a -> b); remove")
    b = GraphBuilder()
    b.add_op("self", outputs=[1], inputs=["self:0"])
    refused(b, "cycle self -> self")
    b = GraphBuilder()
    for i in range(5000):
        b.add_op(f"n{i}", outputs=[1], inputs=[f"n{(i - 1) % 5000}:0"])
    with pytest.raises(GraphError, match=r"cycle .*\.\.\.") as caught:
        b.build()
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("inputs", ["x:0"], "'x:0' is missing"),
        ("inputs", ["first:1"], "'first:1' is missing"),
        ("inputs", [(0, 1)], "is missing"),
        ("inputs", [(-1, 0)], "is missing"),
        ("inputs", [(7, 0)], "is missing"),
        ("inputs", [(0.5, 0)], "is missing"),
        ("inputs", ["first:" + "9" * 5000], "is missing"),
        ("control_inputs", ["x"], "'x' is missing"),
        ("control_inputs", [9], "op 9 is missing"),
        ("control_inputs", [-1], "op -1 is missing"),
        ("control_inputs", [None], "op None is missing"),
        ("runtime", -1, "zero or more"),
        ("runtime", math.nan, "zero or more"),
        ("runtime", math.inf, "finite"),
        ("runtime", "5 parsecs", "cannot read"),
        ("runtime", [1, -2], "zero or more"),
        ("runtime", [], "an empty list"),
        ("runtime", np.array([]), "an empty list"),
        ("runtime", None, "expected a number"),
        ("runtime", True, "expected a number"),
        ("allowed_devices", [], "at least one"),
        ("allowed_devices", [-1], "device indices"),
        ("allowed_devices", [True], "device indices"),
        ("allowed_devices", [0.5], "device indices"),
        ("kind", 5, "must be texts"),
        ("kind", "a\0", "has a null character"),
        ("colocation_group", 5, "must be texts"),
    ],
)
def test_bad_fields_are_refused(field, value, message):
    b = GraphBuilder()
    b.add_op("first", outputs=[1])
    b.add_op("bad", **{field: value})
    refused(b, message)


@pytest.mark.parametrize("size", [-1, math.nan, math.inf, "x", None, 2**63, 1e300, "-1KiB", True])
@pytest.mark.parametrize("field", ["outputs", "temp_bytes"])
def test_bad_sizes_are_refused_and_leave_nothing_behind(field, size):
    b = GraphBuilder()
    with pytest.raises(GraphError, match="'bad'") as caught:
        b.add_op("bad", **{field: [size] if field == "outputs" else size})
    assert "\n" not in str(caught.value)
    b.add_op("good")
    assert b.build().op_names == ("good",)


@pytest.mark.parametrize("port", [1, -1, "0", 0.0, None, [0]])
def test_keep_of_no_output(port):
    with pytest.raises(GraphError, match="it has 1 outputs"):
        GraphBuilder().add_op("a", outputs=[1], keep=[port])


@pytest.mark.parametrize("devices", [[0, "1"], [[0]], [None, 0]])
def test_devices_that_cannot_be_sorted(devices):
    with pytest.raises(GraphError, match=r"^graph 'graph': op 'a': allowed_devices .* device indices"):
        GraphBuilder().add_op("a", allowed_devices=devices)


def test_runtimes_may_be_an_array():
    b = GraphBuilder()
    b.add_op("a", runtime=np.array([1.0, 2.0]))
    b.add_op("b", runtime=3)
    assert b.build().runtime.tolist() == [[1.0, 2.0], [3.0, 3.0]]


def test_lists_may_be_iterators():
    b = GraphBuilder()
    b.add_op("a", outputs=iter([1, 2]), keep=iter([1]), allowed_devices=iter([1, 0]))
    b.add_op("b", inputs=iter(["a:1"]), control_inputs=iter(["a"]))
    g = b.build()
    assert (g.tensor_keep.tolist(), g.allowed_devices[0]) == ([False, True], (0, 1))
    assert (g.edge_tensor.tolist(), g.control_source.tolist()) == ([1], [0])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("runtime", [[1], [2, 3]], r"runtime: expected a number, got \[1\]"),
        ("outputs", np.array(3), r"outputs: array\(3\) must be a list"),
        ("allowed_devices", np.array(3), r"allowed_devices: array\(3\) must be a list"),
        ("allowed_devices", b"\x01", r"allowed_devices: b'\\x01' must be a list"),
        ("outputs", bytearray(b"\x01"), r"outputs: bytearray\(b'\\x01'\) must be a list"),
        ("resident", [True], r"resident: \[True\] must be true or false"),
        ("resident", 2, "resident: 2 must be true or false"),
        ("kind", np.array(3), "kind 3 and colocation_group None must be texts"),
        ("colocation_group", np.array(3), "kind '' and colocation_group 3 must be texts"),
    ],
)
def test_nested_lists_and_arrays_without_axes_are_refused(field, value, message):
    def build(others):
        b = GraphBuilder()
        b.add_op("a", **{field: value})
        for name in others:
            b.add_op(name)
        return b.build()

    for others in ([], ["b"]):
        with pytest.raises(GraphError, match=f"^graph 'graph': op 'a': {message}"):
            build(others)


@pytest.mark.parametrize("unit", ["S", "min", "", None, ["s"]])
def test_units_that_there_are_not(unit):
    b = GraphBuilder(time_unit=unit)
    b.add_op("a", runtime="1ms")
    refused(b, "^graph 'graph': time_unit: unknown .*; use one of s, ms, us, ns$")


@pytest.mark.parametrize("unit", ["µs", "μs"])
def test_all_spellings_of_a_microsecond_are_one_unit(unit, tmp_path):
    def graph(unit):
        b = GraphBuilder(time_unit=unit)
        b.add_op("a", runtime="1ms")
        return b.build()

    made = graph(unit)
    assert (made.time_unit, made.runtime.tolist()) == ("us", [1000.0])
    assert made.content_hash == graph("us").content_hash
    optimize(made, Cluster.uniform(2), method="bfs").save(tmp_path / "plan.json")
    Plan.load(tmp_path / "plan.json").verify(made)


@pytest.mark.parametrize("names", [("a", "a"), ("", "b"), ("\ud800", "b"), ("a\0", "b"), ("a", "\0b")])
def test_bad_names(names):
    b = GraphBuilder()
    for name in names:
        b.add_op(name)
    refused(b, "duplicate name|non-empty text|lone surrogate|has a null character; leave it out")


@pytest.mark.parametrize(
    ("name", "message"), [(3, "^graph 3: name: give a text"), ("\ud800", "name: has a lone surrogate")]
)
def test_bad_names_of_graphs(name, message):
    b = GraphBuilder(name)
    b.add_op("a")
    refused(b, message)


@pytest.mark.parametrize("ref", [3, None, (0,), (0, 0, 0)])
def test_inputs_that_name_no_tensor(ref):
    b = GraphBuilder()
    b.add_op("a", outputs=[1])
    b.add_op("b", inputs=[ref])
    refused(b, r"op 'b': input .*: give 'OP:PORT' or \(op index, port\)")


@pytest.mark.parametrize("name", [None, 3, ["a"]])
def test_names_of_ops_are_texts(name):
    with pytest.raises(GraphError, match="its name must be a text"):
        GraphBuilder().add_op(name)


def test_sizes_that_add_up_beyond_int64():
    b = GraphBuilder()
    for i in range(4):
        b.add_op(f"n{i}", outputs=[2**61])
    refused(b, "add up")


def test_large_sizes_are_exact():
    b = GraphBuilder()
    b.add_op("a", outputs=[2**61 - 1, np.int64(2**60 + 1)])
    assert b.build().tensor_bytes.tolist() == [2**61 - 1, 2**60 + 1]


@pytest.mark.parametrize("runtime", [1e308, 8e307, 5.1e306])
def test_runtimes_that_add_up_to_too_much(runtime):
    b = GraphBuilder()
    b.add_op("a", runtime=runtime)
    b.add_op("b", runtime=runtime)
    refused(b, "runtimes add up")


def test_runtimes_for_different_numbers_of_devices():
    b = GraphBuilder()
    b.add_op("a", runtime=[1, 2])
    b.add_op("b", runtime=[1, 2, 3])
    refused(b, r"\[2, 3\] devices")
    b = GraphBuilder()
    b.add_op("a", runtime=[1, 2])
    b.add_op("b", runtime=3)
    assert b.build().runtime.tolist() == [[1, 2], [3, 3]]


def test_a_colocation_group_without_a_common_device():
    b = GraphBuilder()
    b.add_op("a", allowed_devices=[0, 1], colocation_group="g")
    b.add_op("b", allowed_devices=[2], colocation_group="g")
    refused(b, "'g' no device")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"op_kinds": ("k",)}, "op_kinds: has 1 entries, expected 3"),
        ({"runtime": [1.0]}, "runtime: has 1"),
        ({"tensor_bytes": [1]}, "tensor_bytes: has 1"),
        ({"edge_op": [1]}, "edge_tensor: has 3 entries, expected 1"),
        ({"control_target": [1, 2]}, "control_source"),
        ({"runtime": np.zeros((3, 0))}, "runtime: shape"),
        ({"runtime": np.zeros((3, 1, 1))}, "runtime: shape"),
        ({"runtime": ["a", "b", "c"]}, "runtime: not an array"),
        ({"tensor_bytes": [1.5, 2, 3]}, "tensor_bytes: not an array of whole"),
        ({"tensor_bytes": [math.nan, 2, 3]}, "tensor_bytes: not"),
        ({"tensor_bytes": [2**70, 2, 3]}, "tensor_bytes: not"),
        ({"tensor_bytes": [[1], [2], [3]]}, "shape"),
        ({"tensor_bytes": [-1, 2, 3]}, "zero or more"),
        ({"temp_bytes": [-1, 2, 3]}, "zero or more"),
        ({"tensor_keep": [2, 0, 0]}, "true or false"),
        ({"tensor_op": [0, 1, 3]}, "op 3 is missing"),
        ({"tensor_op": [0, 2, 1]}, "non-decreasing"),
        ({"edge_tensor": [-1, 1, 2]}, "tensor -1 is missing"),
        ({"edge_op": [0, 0, 9]}, "op 9 is missing"),
        ({"edge_tensor": [2, 1, 1]}, "must be sorted"),
        ({"edge_tensor": [1, 1, 1], "edge_op": [0, 0, 2]}, "twice"),
        ({"time_unit": "h"}, "time_unit"),
        ({"allowed_devices": (None, (1, 0), None)}, "ascending"),
        ({"allowed_devices": (None, 3, None)}, "allowed_devices"),
        ({"allowed_devices": (None, ("0",), None)}, "indices"),
        ({"control_source": [5]}, "op 5 is missing"),
    ],
)
def test_graphs_written_by_hand_are_checked(changes, message):
    with pytest.raises(GraphError, match=message) as caught:
        dataclasses.replace(small(), **changes)
    assert "\n" not in str(caught.value)


def test_the_hash_sees_what_matters_and_nothing_else():
    graph = small()
    assert graph.content_hash == small().content_hash == dataclasses.replace(graph, name="x").content_hash
    spelled = dataclasses.replace(
        graph, allowed_devices=[None, [np.int64(0), 1], None], op_names=list(graph.op_names)
    )
    assert spelled.content_hash == graph.content_hash
    changed = [
        {"time_unit": "ms"},
        {"runtime": [1000, 0.5, 1]},
        {"temp_bytes": [3, 0, 1]},
        {"tensor_keep": [1, 0, 1]},
        {"tensor_bytes": [1024, 3, 6]},
        {"op_names": ("b", "a", "d")},
        {"edge_op": [0, 2, 2]},
        {"allowed_devices": (None, (0,), None)},
        {"colocation_group": (None, "g", None)},
        {"control_source": [1]},
    ]
    hashes = {dataclasses.replace(graph, **c).content_hash for c in changed} | {graph.content_hash}
    assert len(hashes) == len(changed) + 1


def test_arrays_are_read_only_copies():
    sizes = np.array([1, 2, 3])
    graph = dataclasses.replace(small(), tensor_bytes=sizes)
    sizes[0] = 99
    assert graph.tensor_bytes[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        graph.tensor_bytes[0] = 5


@given(instances(max_ops=12))
def test_topological_order_is_kahns_with_the_lowest_index_first(instance):
    graph, n = instance[0], instance[0].num_ops
    before = {o: set() for o in range(n)}
    for u, v in zip(graph.edge_producer, graph.edge_op, strict=True):
        before[int(v)].add(int(u))
    for u, v in zip(graph.control_source, graph.control_target, strict=True):
        before[int(v)].add(int(u))
    done: list[int] = []
    while len(done) < n:
        done.append(min(o for o in range(n) if o not in done and before[o] <= set(done)))
    assert graph.topological_order.tolist() == done


def chain(n: int) -> ComputationGraph:
    b = GraphBuilder("chain")
    for i in range(n):
        b.add_op(f"n{i}", runtime=1, outputs=[8], inputs=[f"n{i - 1}:0"] if i else [])
    return b.build()


def hub(readers: int) -> ComputationGraph:
    b = GraphBuilder("hub")
    b.add_op("hub", runtime=1, outputs=[8])
    for i in range(readers):
        b.add_op(f"n{i}", runtime=1, inputs=["hub:0"])
    return b.build()


@pytest.mark.parametrize("model", ["blocking", "delay"])
@pytest.mark.parametrize("graph", [chain(10_000), hub(5000)], ids=["chain", "hub"])
def test_long_and_wide_graphs_need_no_recursion(graph, model):
    cluster = Cluster((math.inf,) * 4, model)
    placement = np.arange(graph.num_ops) % 4
    for eager in (False, True):
        events = insert_transfers(graph, cluster, placement, graph.topological_order, eager=eager)
        plan = Plan.from_events(graph, cluster, placement, events)
        Plan.from_json(plan.to_json()).verify(graph)
    wanted = 10_000 if graph.name == "chain" else 1 + 5000 / 4
    assert plan.makespan == wanted
    assert plan.num_transfers == (9999 if graph.name == "chain" else 3)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("model", ["blocking", "delay"])
@pytest.mark.parametrize("make", [pytest.param(chain, marks=pytest.mark.slow), hub])
def test_twice_the_ops_are_twice_the_work(make, model, eager, monkeypatch):
    # The tracer counts lines of Python and sees none in compiled loops.
    for name in ("installed", "usable"):
        monkeypatch.setattr(compiling, name, lambda: False)
    cluster = Cluster((math.inf,) * 4, model)

    def work(n: int) -> int:
        graph = make(n)
        placement = np.arange(graph.num_ops) % 4

        def plan_and_verify() -> None:
            events = insert_transfers(graph, cluster, placement, graph.topological_order, eager=eager)
            plan = Plan.from_events(graph, cluster, placement, events)
            Plan.from_json(plan.to_json()).verify(graph)

        return lines_of(plan_and_verify)

    work(10)
    assert work(600) < 2.2 * work(300)


def test_importing_graph_and_plan_loads_neither_jax_nor_matplotlib():
    code = (
        "import sys, regal_jax.graph, regal_jax.plan, regal_jax.viz;"
        "print([m for m in ('jax', 'jaxlib', 'matplotlib', 'flax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("count", [1, 7, 2**16, 2**16 + 1])
def test_stable_order(count):
    ids = np.random.default_rng(count).integers(count, size=500)
    ids[::3] = count - 1
    assert stable_order(ids, count).tolist() == sorted(range(500), key=ids.__getitem__)
    assert stable_order(ids[:0], count).tolist() == []
