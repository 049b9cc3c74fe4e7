"""ONNX models in the order of a plan: the content of the file, and its runs in ONNX Runtime."""

import builtins
import dataclasses
import errno
import itertools
import json
import os
import pathlib

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import regal_jax
from regal_jax.cli import main
from regal_jax.errors import ConfigError, FormatError, MissingExtraError, PlanError
from regal_jax.execution import DEVICE_KEY, apply_to_onnx, compare_onnx, measure_onnx, session_options
from regal_jax.execution.onnx.compare import same_values
from regal_jax.execution.onnx.order import NodeOrders
from regal_jax.graph import Cluster
from regal_jax.heuristics.order_costs import order_peak
from regal_jax.importers import from_onnx
from regal_jax.importers.onnx_model import onnx_ops
from regal_jax.plan import Plan, contract
from regal_jax.plan.contraction import contract_for

onnxruntime = pytest.importorskip("onnxruntime")

N = 1 << 10
KB = 4 * N
"""Bytes of a small tensor in these tests."""


def info(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def node(kind, inputs, outputs, **attributes):
    return helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes)


def model(nodes, inputs, outputs, weights=(), **fields):
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    opsets = fields.pop("opset_imports", [helper.make_opsetid("", 17)])
    made = helper.make_model(graph, opset_imports=opsets, ir_version=10, **fields)
    onnx.checker.check_model(made)
    return made


def names(proto):
    return [n.name for n in proto.graph.node]


def branches(count=3, wide=4):
    """Branches that widen the input, change it and sum it; in the file all wide tensors come first."""
    rows = range(count)
    nodes = [node("Concat", ["x"] * wide, [f"wide{i}"], axis=0) for i in rows]
    nodes += [node("Softmax", [f"wide{i}"], [f"soft{i}"], axis=0) for i in rows]
    nodes += [node("ReduceSum", [f"soft{i}"], [f"small{i}"], keepdims=1) for i in rows]
    nodes += [node("Sum", [f"small{i}" for i in rows], ["y"])]
    return model(nodes, [info("x", N)], [info("y", 1)])


def planned(proto, order=None, devices=1, placement=None, **options):
    """A plan that takes the nodes in the order of names ``order``, residents and start first."""
    graph = from_onnx(proto, **options)
    ops = list(graph.topological_order)
    if order is not None:
        index = {name: i for i, name in enumerate(order)}
        # A stable sort: ops that are not in `order` stay first.
        ops.sort(key=lambda o: index.get(graph.op_names[o], -1))
    place = [0] * graph.num_ops if placement is None else [placement(name) for name in graph.op_names]
    events, position = [], set()
    for op in ops:  # Each transfer is directly before its first reader.
        for tensor in graph.edge_tensor[graph.edge_op == op]:
            move = graph.num_ops + int(tensor) * devices + place[op]
            if place[graph.tensor_op[tensor]] != place[op] and move not in position:
                position.add(move)
                events.append(move)
        events.append(int(op))
    return Plan.from_events(graph, Cluster.uniform(devices), place, events)


def outputs(proto, **options):
    return measure_onnx(proto, threads=1, **options).outputs


def test_order_in_the_file_and_order_executed_are_the_plans():
    proto = branches()
    order = [f"{part}{i}" for i in (2, 0, 1) for part in ("wide", "soft", "small")] + ["y"]
    before = proto.SerializeToString()
    made = apply_to_onnx(planned(proto, order), proto)
    assert names(made) == order
    run = measure_onnx(made, threads=1)
    assert list(run.order) == order
    # This differs from ONNX Runtime's default, so that the setting has an effect.
    assert list(measure_onnx(made, order="default", threads=1).order) != order
    assert same_values(run.outputs, outputs(proto))
    assert proto.SerializeToString() == before


def test_measured_memory_falls_by_what_the_plan_says(tmp_path):
    proto = branches()
    order = [f"{part}{i}" for i in range(3) for part in ("wide", "soft", "small")] + ["y"]
    onnx.save(proto, tmp_path / "a.onnx")
    onnx.save(apply_to_onnx(planned(proto, order), proto), tmp_path / "b.onnx")
    found = compare_onnx(tmp_path / "a.onnx", tmp_path / "b.onnx", threads=1)
    # By hand; Softmax overwrites its input. File: three wide tensors and a sum. Plan: one, and three sums.
    assert found.predicted_before == found.before.peak_bytes == 3 * 4 * KB + 4
    assert found.predicted_after == found.after.peak_bytes == 4 * KB + 3 * 4
    assert found.equal is True
    assert not found.worse
    assert found.after.in_use_bytes >= found.after.peak_bytes
    assert found.after.held_bytes >= found.after.in_use_bytes
    table = str(found).splitlines()
    assert table[0].split() == ["predicted", "measured", "arena", "seconds"]
    assert "48.00 KiB  48.00 KiB" in table[3]
    assert "16.01 KiB  16.01 KiB" in table[4]
    assert table[5] == "outputs: equal"
    # With the models exchanged, the result is reported as worse.
    assert compare_onnx(tmp_path / "b.onnx", tmp_path / "a.onnx", threads=1).worse
    again = compare_onnx(proto, apply_to_onnx(planned(proto, order), proto), threads=1)
    assert (again.predicted_before, again.predicted_after) == (found.predicted_before, found.predicted_after)


@st.composite
def random_models(draw):
    """Models whose nodes read one to three values, initializers or constants; some are results."""
    count = draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    nodes, values = [], ["x", "w"]
    for i in range(count):
        kind = draw(st.sampled_from(["Relu", "Exp", "Add", "Sum", "Clip", "Constant", "Identity", "Softmax"]))
        pick = lambda: draw(st.sampled_from(values))  # noqa: E731
        more = {}
        if kind == "Constant":
            reads, more = [], {"value": numpy_helper.from_array(rng.standard_normal(4).astype("f"))}
        elif kind == "Clip":  # An optional input that is left out.
            nodes.append(node("Constant", [], [f"top{i}"], value=numpy_helper.from_array(np.float32(0.5))))
            reads = [pick(), "", f"top{i}"]
        else:
            reads = [pick() for _ in range({"Add": 2, "Sum": 3}.get(kind, 1))]
        nodes.append(node(kind, reads, [f"v{i}"], **more))
        values.append(f"v{i}")
    made = [n.name for n in nodes]
    results = draw(st.lists(st.sampled_from(made), unique=True, max_size=3)) or [made[-1]]
    if all(n.op_type == "Constant" for n in nodes):
        nodes.append(node("Relu", ["x"], ["last"]))
        results = ["last"]
    weights = [numpy_helper.from_array(rng.standard_normal(4).astype("f"), "w")]
    read = {value for each in nodes for value in each.input}
    results = list(dict.fromkeys([*results, *(name for name in made if name not in read)]))
    typed = [info(name, *(() if name.startswith("top") else (4,))) for name in results]
    return model(nodes, [info("x", 4)], typed, weights), rng


@settings(max_examples=25, deadline=None)
@given(random_models())
def test_any_order_gives_equal_outputs_and_keeps_everything_else(drawn):
    proto, rng = drawn
    graph = from_onnx(proto)
    order = _random_order(graph, rng)
    plan = Plan.from_events(graph, Cluster.uniform(1), [0] * graph.num_ops, order)
    made = apply_to_onnx(plan, proto)
    onnx.checker.check_model(made, full_check=True)
    constant = {n.name for n in proto.graph.node if n.op_type == "Constant"}
    ops = [graph.op_names[o] for o in order if not graph.resident[o] and graph.op_kinds[o] != "start"]
    assert [name for name in names(made) if name not in constant] == ops
    _assert_constants_are_late(made)
    run = measure_onnx(made, threads=1)
    assert list(run.order) == ops  # Constants are initializers to ONNX Runtime.
    assert same_values(run.outputs, outputs(proto))
    # The graph does not represent all overwriting that ONNX Runtime does.
    orders = NodeOrders(made, onnx_ops(made, in_place=True))
    assert (
        run.peak_bytes
        <= orders.peak(orders.filed())
        <= order_peak(_without_residents(graph), np.array(order))
    )
    # Without the two changes the result equals the model.
    for each in made.graph.node:
        del each.metadata_props[:]
    back = {n.name: n for n in made.graph.node}
    again = [back[name] for name in names(proto)]
    del made.graph.node[:]
    made.graph.node.extend(again)
    assert made.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)


def _without_residents(graph):
    return dataclasses.replace(graph, tensor_bytes=np.where(graph.tensor_resident, 0, graph.tensor_bytes))


def _random_order(graph, rng):
    before = [set() for _ in range(graph.num_ops)]
    for o, t in zip(graph.edge_op, graph.edge_tensor, strict=True):
        before[o].add(int(graph.tensor_op[t]))
    for a, b in zip(graph.control_source, graph.control_target, strict=True):
        before[b].add(int(a))
    order, left = [], set(range(graph.num_ops))
    while left:
        ready = sorted(o for o in left if not before[o] & left)
        order.append(int(rng.choice(ready)))
        left.remove(order[-1])
    return order


def _assert_constants_are_late(proto):
    """Nothing but constants stands between a constant and its first reader, or the end."""
    nodes = list(proto.graph.node)
    for i, each in enumerate(nodes):
        if each.op_type in ("Constant", "ConstantOfShape"):
            rest = itertools.dropwhile(lambda n: n.op_type in ("Constant", "ConstantOfShape"), nodes[i + 1 :])
            following = next(rest, None)
            read_later = any(each.output[0] in n.input for n in nodes[i + 1 :])
            assert (following is not None) == read_later
            if following is not None:
                between = [n for n in nodes[i + 1 : nodes.index(following)] if each.output[0] in n.input]
                assert between or each.output[0] in following.input


def test_constant_of_a_constant_comes_before_its_reader():
    nodes = [
        node("Constant", [], ["shape"], value=numpy_helper.from_array(np.array([8], np.int64))),
        node("ConstantOfShape", ["shape"], ["zeros"]),
        node("Constant", [], ["unread"], value=numpy_helper.from_array(np.float32(0))),
        node("Relu", ["x"], ["r"]),
        node("Add", ["r", "zeros"], ["y"]),
    ]
    proto = model(nodes, [info("x", 8)], [info("y", 8)])
    made = apply_to_onnx(planned(proto), proto)
    assert names(made) == ["r", "shape", "zeros", "y", "unread"]
    assert same_values(outputs(made), outputs(proto))


def test_bodies_stay_as_they_are_and_what_they_read_comes_first():
    def body(kind, result):
        nodes = [node(kind, ["late"], [f"{result}_a"]), node("Neg", [f"{result}_a"], [result])]
        return helper.make_graph(nodes, kind, [], [info(result, 4)])

    nodes = [
        node("ReduceMax", ["x"], ["top"], keepdims=0),
        node("Cast", ["top"], ["flag"], to=TensorProto.BOOL),
        node("Exp", ["x"], ["late"]),
        helper.make_node(
            "If", ["flag"], ["z"], name="z", then_branch=body("Relu", "t"), else_branch=body("Abs", "e")
        ),
        node("Tanh", ["x"], ["other"]),
        node("Add", ["z", "other"], ["y"]),
    ]
    proto = model(nodes, [info("x", 4)], [info("y", 4)])
    order = ["other", "late", "top", "flag", "z", "y"]
    made = apply_to_onnx(planned(proto, order), proto)
    assert names(made) == order
    assert made.graph.node[4].attribute == proto.graph.node[3].attribute
    run = measure_onnx(made, threads=1)
    assert [name for name in run.order if name in order] == order
    assert same_values(run.outputs, outputs(proto))


def test_loop():
    body = helper.make_graph(
        [node("Identity", ["go"], ["more"]), node("Add", ["state", "step"], ["next"])],
        "body",
        [info("i", dtype=TensorProto.INT64), info("go", dtype=TensorProto.BOOL), info("state", 4)],
        [info("more", dtype=TensorProto.BOOL), info("next", 4)],
    )
    trips = numpy_helper.from_array(np.array(3, np.int64), "trips")
    nodes = [
        node("Exp", ["x"], ["other"]),
        node("Neg", ["x"], ["step"]),
        node("Loop", ["trips", "", "x"], ["z"], body=body),
        node("Add", ["z", "other"], ["y"]),
    ]
    proto = model(nodes, [info("x", 4)], [info("y", 4)], [trips])
    proto.graph.value_info.append(info("z", 4))
    made = apply_to_onnx(planned(proto, ["step", "z", "other", "y"]), proto)
    assert names(made) == ["step", "z", "other", "y"]
    assert same_values(outputs(made), outputs(proto))


@pytest.mark.parametrize("trips", [1, 3, 10])
def test_rows_of_a_loop_take_no_more_memory_than_predicted(trips):
    """Shape inference does not tell the number of rows."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["went"]), node("Add", ["s", "step"], ["t"]), node("Neg", ["t"], ["row"])],
        "body",
        [info("i", dtype=TensorProto.INT64), info("go", dtype=TensorProto.BOOL), info("s", N)],
        [info("went", dtype=TensorProto.BOOL), info("t", N), info("row", N)],
        [numpy_helper.from_array(np.ones(N, np.float32), "step")],
    )
    nodes = [node("Loop", ["trips", "", "x"], ["y", "rows"], body=body)]
    nodes += [node("Exp", ["rows"], ["exp"]), node("ReduceSum", ["exp"], ["z"], keepdims=0)]
    count = numpy_helper.from_array(np.array(trips), "trips")
    proto = model(nodes, [info("x", N)], [info("y", N), info("z")], [count])
    ops = onnx_ops(proto)
    orders = NodeOrders(proto, ops)
    # The state and the rows, beside their exponentials or what one iteration makes, a flag included.
    predicted = orders.peak(orders.filed())
    assert predicted == (1 + trips) * KB + max(trips * KB, 2 * KB + 1)
    assert measure_onnx(proto).peak_bytes <= predicted
    # The plan also has the parameter in the body.
    assert ops.graph.tensor_bytes[ops.graph.op_names.index("y/step")] == KB
    made = apply_to_onnx(planned(proto), proto)
    assert same_values(outputs(made), outputs(proto))


def functions():
    """Two calls; the first function calls the second."""
    opset = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    pair = helper.make_function(
        "own", "pair", ["a"], ["b", "c"], [node("Exp", ["a"], ["b"]), node("Neg", ["a"], ["c"])], opset
    )
    nested = helper.make_function(
        "own",
        "nested",
        ["a"],
        ["d"],
        [helper.make_node("pair", ["a"], ["p", "q"], domain="own"), node("Add", ["p", "q"], ["d"])],
        opset,
    )
    nodes = [
        node("Relu", ["x"], ["u"]),
        helper.make_node("nested", ["u"], ["v"], name="v", domain="own"),
        node("Tanh", ["u"], ["w"]),
        helper.make_node("pair", ["w"], ["m", "n"], name="m", domain="own"),
        node("Sum", ["v", "m", "n"], ["y"]),
    ]
    return model(nodes, [info("x", 4)], [info("y", 4)], functions=[pair, nested], opset_imports=opset)


def test_calls_stand_where_their_last_op_runs():
    proto = functions()
    graph = from_onnx(proto)
    assert graph.op_kinds[2:] == ("Relu", "Exp", "Neg", "Add", "Tanh", "Exp", "Neg", "Sum")
    order = [0, 1, 2, 3, 6, 7, 4, 8, 5, 9]  # pair: Exp 7, Neg 8; nested: Exp 3, Neg 4, Add 5.
    plan = Plan.from_events(graph, Cluster.uniform(1), [0] * 10, order)
    made = apply_to_onnx(plan, proto)
    assert names(made) == ["u", "w", "m", "v", "y"]
    assert list(made.functions) == list(proto.functions)
    assert same_values(outputs(made), outputs(proto))


def test_a_call_on_two_devices_is_refused():
    proto = functions()
    graph = from_onnx(proto)
    place = [0] * 9 + [0]
    place[4] = 1
    plan = Plan.from_events(graph, Cluster.uniform(2, transfer="free"), place, list(range(10)))
    with pytest.raises(PlanError, match=r"'v' calls the local function 'nested'.* \[0, 1\]; inline the"):
        apply_to_onnx(plan, proto)


def test_devices_are_in_the_metadata():
    proto = branches()
    device = {f"{part}{i}": i for i in range(3) for part in ("wide", "soft", "small")}
    plan = planned(proto, devices=3, placement=lambda name: device.get(name, 0))
    made = apply_to_onnx(plan, proto)
    said = {n.name: {e.key: e.value for e in n.metadata_props} for n in made.graph.node}
    assert said == {name: {DEVICE_KEY: str(device.get(name, 0))} for name in names(proto)}
    # Nodes are in the order of the schedule over all devices. An earlier device entry is replaced.
    assert sorted(names(made)) == sorted(names(proto))
    assert same_values(outputs(made), outputs(proto))
    marked = onnx.ModelProto.FromString(proto.SerializeToString())
    marked.graph.node[0].metadata_props.add(key=DEVICE_KEY, value="7")
    marked.graph.node[0].metadata_props.add(key="mine", value="kept")
    first = apply_to_onnx(plan, marked).graph.node[names(made).index("wide0")]
    assert [(e.key, e.value) for e in first.metadata_props] == [(DEVICE_KEY, "0"), ("mine", "kept")]


def test_constants_have_the_device_of_their_reader():
    nodes = [
        node("Constant", [], ["c"], value=numpy_helper.from_array(np.ones(4, "f"))),
        node("Constant", [], ["unread"], value=numpy_helper.from_array(np.ones(4, "f"))),
        node("Add", ["x", "c"], ["y"]),
    ]
    proto = model(nodes, [info("x", 4)], [info("y", 4)])
    plan = planned(proto, devices=2, placement=lambda name: int(name in ("c", "y")))
    said = {n.name: [e.value for e in n.metadata_props] for n in apply_to_onnx(plan, proto).graph.node}
    assert said == {"c": ["1"], "y": ["1"], "unread": []}


def test_plans_with_shared_buffers_are_known(tmp_path, capsys):
    nodes = [
        node("Concat", ["x", "x"], ["a"], axis=1),
        node("Relu", ["a"], ["b"]),
        node("Flatten", ["b"], ["c"]),
        node("ReduceMax", ["x"], ["d"]),
        node("ReduceMax", ["c"], ["e"]),
        node("Add", ["d", "e"], ["y"]),
    ]
    proto = model(nodes, [info("x", 1, N)], [info("y", 1, 1)])
    path, file, out = tmp_path / "model.onnx", tmp_path / "plan.json", tmp_path / "better.onnx"
    onnx.save(proto, path)
    order = ["d", "a", "b", "c", "e", "y"]
    made = apply_to_onnx(planned(proto, order, in_place=True), path)
    assert names(made) == order
    # One buffer for a, b and c, and the input; ONNX Runtime does not count the input.
    assert main(["order", str(path), "--in-place", "--method", "lpmf", "--out", str(file), "--quiet"]) == 0
    plan = Plan.load(file)
    assert plan.objective_value == 3 * KB + 4
    assert measure_onnx(made, threads=1).peak_bytes == 2 * KB + 2 * 4
    assert regal_jax.order(from_onnx(proto), method="lpmf").objective_value == 4 * KB + 4
    assert main(["apply", str(file), str(path), "--out", str(out)]) == 0
    assert main(["verify", str(file), str(path), "--in-place"]) == 0
    assert main(["verify", str(file), str(path)]) == 1
    capsys.readouterr()
    from_onnx(proto)
    regal_jax.save_graph(from_onnx(proto), tmp_path / "g.json")
    assert main(["show", str(tmp_path / "g.json"), "--in-place"]) == 2
    assert "--in-place is for ONNX models; " in capsys.readouterr().err
    assert main(["optimize", str(path), "--in-place"]) == 2
    assert "--in-place: buffers are shared on one device; give --devices 1" in capsys.readouterr().err
    assert main(["order", "--example", "mlp", "--in-place"]) == 2
    assert "--in-place is for ONNX models; leave it out" in capsys.readouterr().err


def test_single_node_and_duplicate_results():
    proto = model([node("Relu", ["x"], ["y"])], [info("x", 4)], [info("y", 4)])
    assert names(apply_to_onnx(planned(proto), proto)) == ["y"]
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Relu", ["x"], ["z"])]
    # Nodes without names, and an output that is listed twice.
    proto = model(nodes, [info("x", 4)], [info("y", 4), info("z", 4)])
    proto.graph.output.append(proto.graph.output[0])
    graph = from_onnx(proto)
    plan = Plan.from_events(graph, Cluster.uniform(1), [0] * 4, [0, 1, 3, 2])
    assert [n.output[0] for n in apply_to_onnx(plan, proto).graph.node] == ["z", "y"]


def test_a_plan_of_the_contracted_graph_is_taken_apart():
    chain = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(200)]
    proto = model(chain, [info("v0", 4)], [info("v200", 4)])
    graph = from_onnx(proto)
    assert contract(graph).graph.num_ops < graph.num_ops
    two = Cluster.uniform(2)
    for small in (contract(graph), contract(graph, devices=2), contract_for(graph, two, "peak-memory")):
        plan = regal_jax.optimize(small.graph, two, method="critical-path")
        assert names(apply_to_onnx(plan, proto)) == names(proto)
    other = contract(graph, max_share=1.0)
    with pytest.raises(PlanError, match="their ops differ"):
        apply_to_onnx(regal_jax.order(other.graph, method="bfs"), proto)


def test_other_plans_are_refused_in_one_line():
    proto = branches()
    other = model([node("Relu", ["x"], ["y"])], [info("x", 4)], [info("y", 4)])
    with pytest.raises(
        PlanError, match=r"^the plan is for graph 'g' .*their ops differ; make a plan of this"
    ):
        apply_to_onnx(planned(other), proto)
    with pytest.raises(PlanError, match=r"other runtimes; .*, or take the profile and the sizes [^;]*$"):
        apply_to_onnx(planned(proto, profile="a100"), proto)
    assert names(apply_to_onnx(planned(proto, profile="a100"), proto, profile="a100")) == names(proto)
    plan = planned(proto)
    plan.timeline.start[-1] += 1
    with pytest.raises(PlanError, match="compute 'y'"):
        apply_to_onnx(plan, proto)
    empty = onnx.ModelProto()
    with pytest.raises(FormatError, match="without nodes"):
        apply_to_onnx(plan, empty)


def test_what_the_checker_refuses_is_refused():
    proto = branches()
    plan = planned(proto)
    proto.ir_version = 0
    with pytest.raises(FormatError, match=r"checker refuses the model: .*ir_version.*; mend the model"):
        apply_to_onnx(plan, proto)


def external(folder):
    weight = numpy_helper.from_array(np.arange(16, dtype="f").reshape(4, 4), "w")
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Exp", ["x"], ["b"]), node("Add", ["a", "b"], ["y"])]
    proto = model(nodes, [info("x", 1, 4)], [info("y", 1, 4)], [weight])
    path = folder / "model.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def test_external_data_is_referred_to_and_not_read(tmp_path, capsys):
    path = external(tmp_path)
    plan = planned(onnx.load(path, load_external_data=False), ["b", "a", "y"])
    plan.save(tmp_path / "p.json")
    before = (tmp_path / "w.bin").read_bytes()
    made = apply_to_onnx(plan, path)
    assert names(made) == ["b", "a", "y"]
    assert made.graph.initializer == onnx.load(path, load_external_data=False).graph.initializer
    out = tmp_path / "better.onnx"
    assert main(["apply", str(tmp_path / "p.json"), str(path), "--out", str(out), "--measure"]) == 0
    assert "outputs: equal" in capsys.readouterr().out
    assert (tmp_path / "w.bin").read_bytes() == before
    (tmp_path / "sub").mkdir()
    elsewhere = str(tmp_path / "sub/better.onnx")
    assert main(["apply", str(tmp_path / "p.json"), str(path), "--out", elsewhere]) == 2
    assert "the data of 'w' is in a file beside" in capsys.readouterr().err
    (tmp_path / "w.bin").unlink()
    assert names(apply_to_onnx(plan, path)) == ["b", "a", "y"]


def test_command(tmp_path, capsys):
    path, out, file = tmp_path / "model.onnx", tmp_path / "better.onnx", tmp_path / "plan.json"
    onnx.save(branches(), path)
    regal_jax.order(from_onnx(path), method="lpmf").save(file)
    assert main(["apply", str(file), str(path), "--out", str(out)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"{path}: 10 nodes, 4 of them elsewhere in the order of {file}", f"saved to {out}"]
    assert names(onnx.load(out)) != names(onnx.load(path))
    # The model is in the better order and the plan in the wide one: the result is worse and is not written.
    plan = planned(onnx.load(out), names(branches()))
    plan.save(file)
    worse = tmp_path / "worse.onnx"
    arguments = ["apply", str(file), str(out), "--out", str(worse), "--measure"]
    assert main(arguments) == 1
    assert not worse.exists()
    assert "takes more memory than another; " in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0
    assert names(onnx.load(worse)) == names(branches())
    assert [p.name for p in tmp_path.iterdir() if ".tmp" in p.name] == []
    assert main(["apply", str(file), str(path), "--out", str(out), "--force"]) == 2
    assert "--force goes with --measure" in capsys.readouterr().err
    absent = str(tmp_path / "absent.onnx")
    assert main(["apply", str(file), absent, "--out", str(out)]) == 2
    assert f"error: {absent}: cannot be read: No such file" in capsys.readouterr().err


def test_what_is_no_model_or_no_plan():
    proto = branches()
    for call in (lambda m: apply_to_onnx(planned(proto), m), measure_onnx, lambda m: compare_onnx(m, m)):
        with pytest.raises(FormatError, match="model: got int; give the path of an"):
            call(3)
    with pytest.raises(ConfigError, match="plan: give a Plan, got NoneType"):
        apply_to_onnx(None, proto)


def test_command_names_the_file_that_a_full_disk_does_not_take(tmp_path, monkeypatch, capsys):
    path, out, file = tmp_path / "model.onnx", tmp_path / "better.onnx", tmp_path / "plan.json"
    onnx.save(branches(), path)
    regal_jax.order(from_onnx(path), method="lpmf").save(file)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "write_bytes", full)
    assert main(["apply", str(file), str(path), "--out", str(out)]) == 2
    assert f"error: {out}: cannot be written: No space left on device; " in capsys.readouterr().err
    assert not out.exists()


def test_command_takes_dimensions_and_inputs(tmp_path, capsys):
    nodes = [node("Gather", ["table", "i"], ["g"]), node("Exp", ["g"], ["e"]), node("Neg", ["e"], ["y"])]
    table = numpy_helper.from_array(np.ones((3, 5), "f"), "table")
    proto = model(nodes, [info("i", "batch", dtype=TensorProto.INT64)], [info("y", "batch", 5)], [table])
    path, out, file = tmp_path / "model.onnx", tmp_path / "better.onnx", tmp_path / "plan.json"
    onnx.save(proto, path)
    planned(proto, dims={"batch": 4}).save(file)
    arguments = ["apply", str(file), str(path), "--out", str(out)]
    with pytest.warns(UserWarning, match="'batch' is taken as 1"), pytest.raises(PlanError, match="dims"):
        apply_to_onnx(Plan.load(file), path)
    np.savez(tmp_path / "inputs.npz", i=np.array([0, 2, 1, 2]))
    inputs = ["--dim", "batch=4", "--measure", "--inputs", str(tmp_path / "inputs.npz")]
    assert main([*arguments, *inputs]) == 0
    assert f"{2 * 4 * 5 * 4} B" in capsys.readouterr().out
    # The inputs may have other sizes than the plan. What is predicted is for those that are measured.
    np.savez(tmp_path / "inputs.npz", i=np.array([0, 2, 1, 2, 0, 1]))
    assert main([*arguments, *inputs]) == 0
    rows = [line.split("  ") for line in capsys.readouterr().out.splitlines() if line.startswith("order of")]
    assert [[cell.strip() for cell in row if cell][1:3] for row in rows] == [[f"{2 * 6 * 5 * 4} B"] * 2] * 2
    np.savez(tmp_path / "inputs.npz", i=np.array([9, 0, 0, 0]))
    assert main([*arguments, *inputs]) == 2
    assert "ONNX Runtime cannot run the model: " in capsys.readouterr().err
    (tmp_path / "inputs.npz").write_text("no")
    assert main([*arguments, *inputs]) == 2
    assert "inputs.npz: not a file of arrays; " in capsys.readouterr().err
    assert main([*arguments, "--dim", "batch=4", "--dim", "batch=5"]) == 2
    assert "a dimension occurs twice" in capsys.readouterr().err


def test_predictions_are_for_the_sizes_of_the_inputs(tmp_path):
    nodes = [node("Add", ["a", "b"], ["s"]), node("Exp", ["s"], ["e"]), node("Neg", ["e"], ["y"])]
    proto = model(nodes, [info("a", "rows", None), info("b", "rows", 3)], [info("y", "rows", 3)])
    for rows in (1, 7):
        given_ = {"a": np.zeros((rows, 3), "f"), "b": np.zeros((rows, 3), "f")}
        for dims in (None, {"rows": 2}):
            found = compare_onnx(proto, proto, given_, dims=dims, threads=1)
            assert found.predicted_before == found.predicted_after == found.before.peak_bytes == rows * 24
    assert [d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim] == ["rows", ""]


def test_measured_settings():
    proto = branches()
    settings = session_options()
    assert settings.execution_order == onnxruntime.ExecutionOrder.PRIORITY_BASED
    assert not settings.enable_mem_reuse
    one = measure_onnx(proto, threads=1)
    assert one.seconds > 0
    # Several runs have the peak of one run, since results of a run are freed before the next.
    assert measure_onnx(proto, threads=1, runs=3).peak_bytes == one.peak_bytes
    block = measure_onnx(proto, threads=1, runs=2, memory_pattern=True)
    assert block.peak_bytes >= one.peak_bytes
    given_ = {"x": np.zeros(N, "f")}
    np.testing.assert_allclose(measure_onnx(proto, given_, threads=1).outputs[0], [3.0], rtol=1e-4)


def test_measuring_refuses_what_cannot_be():
    proto = branches()
    with pytest.raises(ConfigError, match="order: must be one of file, default, got 'best'"):
        measure_onnx(proto, order="best")
    with pytest.raises(ConfigError, match="optimization: must be one of off, "):
        measure_onnx(proto, optimization=0)
    with pytest.raises(ConfigError, match="runs"):
        measure_onnx(proto, runs=0)
    with pytest.raises(ConfigError, match="ONNX Runtime cannot run the model: "):
        measure_onnx(proto, {"y": np.zeros(3)})
    sequence = helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [4])
    length = info("y", dtype=TensorProto.INT64)
    with pytest.raises(ConfigError, match=r"input 'x' is of type seq\(tensor\(float\)\).*; give inputs"):
        measure_onnx(model([node("SequenceLength", ["x"], ["y"])], [sequence], [length]))


def test_random_numbers_are_not_comparable(tmp_path):
    nodes = [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])]
    proto = model(nodes, [info("x", 4)], [info("y", 4)])
    onnx.save(proto, tmp_path / "a.onnx")
    found = compare_onnx(tmp_path / "a.onnx", tmp_path / "a.onnx", threads=1)
    assert found.equal is None
    assert "not compared" in str(found)


def test_equal_outputs():
    one = [np.array([np.nan, 0.0]), {"a": np.array(["x", "y"], object)}, None]
    assert same_values(one, [np.array([np.nan, 0.0]), {"a": np.array(["x", "y"], object)}, None])
    assert not same_values(np.array([0.0]), np.array([-0.0]))
    assert not same_values(np.zeros(2), np.zeros((2, 1)))
    assert not same_values([1.0], [1.0, 2.0])
    assert not same_values({"a": 1}, {"b": 1})


def test_without_onnxruntime(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("onnxruntime"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"'onnxruntime': .* 'regal-jax\[onnxruntime\]'"):
        measure_onnx(branches())
    assert names(apply_to_onnx(planned(branches()), branches())) == names(branches())


@pytest.mark.slow
def test_benchmark_of_an_exported_network(tmp_path, capsys):
    """Predictions equal measurements, and branches take a tenth less than in other orders."""
    pytest.importorskip("torch")
    from benchmarks.__main__ import main as benchmark

    out = tmp_path / "rows.json"
    assert benchmark(["onnx", "inception", "--runs", "1", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert row["equal"] is True
    assert row["plan_predicted"] == row["plan_bytes"]
    assert row["file_predicted"] == row["file_bytes"]
    assert row["plan_bytes"] < 0.9 * min(row[f"{key}_bytes"] for key in ("shipped", "default", "file"))
    assert "inception *" in capsys.readouterr().out
    assert benchmark(["onnx", "nothing"]) == 2
    assert "no network is called 'nothing'; there are residual, " in capsys.readouterr().err


def test_results_that_nothing_reads_are_held_as_predicted():
    k = numpy_helper.from_array(np.array([N]), "k")
    steps = [
        made
        for i in range(4)
        for made in (node("TopK", [f"e{i}", "k"], [f"v{i}", f"i{i}"]), node("Exp", [f"v{i}"], [f"e{i + 1}"]))
    ]
    proto = model(steps, [info("e0", N)], [info("e4", N)], [k])
    plan = regal_jax.order(regal_jax.from_onnx(proto, in_place=True), evaluations=20)
    found = compare_onnx(proto, apply_to_onnx(plan, proto))
    assert found.predicted_after == found.after.peak_bytes
    # The indices of all four, each of eight bytes.
    assert found.predicted_after > 4 * 2 * KB
    apart = regal_jax.from_onnx(proto)
    assert apart.tensor_keep.sum() == 2  # The parameter and the result.


def test_memory_is_measured_from_before_a_first_node_with_a_body():
    body = helper.make_graph(
        [node("Add", ["s", "i"], ["s2"]), node("Identity", ["s2"], ["o2"])],
        "body", [info("s", 64), info("i", 64)], [info("s2", 64), info("o2", 64)],
    )  # fmt: skip
    scan = node("Scan", ["z", "x"], ["fin", "ys"], body=body, num_scan_inputs=1)
    relu = node("Relu", ["w"], ["r"])
    last = [node("ReduceSum", ["ys"], ["q"], keepdims=0), node("Add", ["r", "q"], ["y"])]
    inputs = [info("x", 256, 64), info("z", 64), info("w", 4)]
    first, second = (model([*some, *last], inputs, [info("y", 4)]) for some in ([scan, relu], [relu, scan]))
    rows = 256 * 64 * 4
    for proto in (first, second):
        measured = measure_onnx(proto)
        assert rows <= measured.peak_bytes <= rows + 8 * KB
        assert rows <= measured.in_use_bytes <= rows + 8 * KB
    assert not compare_onnx(second, first).worse
