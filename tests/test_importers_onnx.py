"""ONNX models: light models of the package onnx, and small models with costs computed by hand."""

import builtins
import pathlib

import numpy as np
import onnx
import pytest
from importer_cases import Count, controls
from onnx import TensorProto, helper

from regal_jax.errors import ConfigError, FormatError, GraphError, MissingExtraError
from regal_jax.graph import Cluster
from regal_jax.importers import DeviceProfile, from_onnx, load_graph, onnx_cost
from regal_jax.importers.einsum import einsum_flops
from regal_jax.importers.onnx_values import values_of
from regal_jax.plan import Plan

LIGHT = sorted((pathlib.Path(onnx.__file__).parent / "backend/test/data/light").glob("*.onnx"))


def info(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name, *shape, dtype=TensorProto.FLOAT):
    values = np.zeros(shape, helper.tensor_dtype_to_np_dtype(dtype))
    return helper.make_tensor(name, dtype, shape, values.tobytes(), raw=True)


def model(nodes, inputs, outputs, weights=(), **fields):
    made = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, weights), **fields)
    made.opset_import[0].version = 17
    return made


def replayed(graph):
    return Plan.from_events(graph, Cluster.uniform(1), [0] * graph.num_ops, graph.topological_order)


def op(graph, name):
    o = graph.op_names.index(name)
    size = graph.tensor_bytes[graph.output_offset[o] : graph.output_offset[o + 1]]
    return graph.op_kinds[o], graph.runtime[o], size.tolist()


RELU = [helper.make_node("Relu", ["x"], ["y"])]


def test_the_light_models_are_there():
    assert len(LIGHT) == 9


# Nodes that are no constants, and parameters in millions, from the papers and model cards.
PUBLISHED = {
    "light_bvlc_alexnet": 60.97,
    "light_resnet50": 25.61,
    "light_squeezenet": 1.24,
    "light_vgg19": 143.67,
}


@pytest.mark.parametrize("path", LIGHT, ids=lambda p: p.stem)
def test_light_model_imports_and_replays(path):
    graph = load_graph(path)
    proto = onnx.load(path)
    left = [n for n in proto.graph.node if n.op_type != "ConstantOfShape"]
    kinds = np.array(graph.op_kinds)
    computes = [k for k in kinds if k not in ("parameter", "input", "start")]
    assert computes == [n.op_type for n in left]
    assert (kinds == "input").sum() == 1
    assert (kinds == "start").sum() == 1
    plan = replayed(graph)
    assert plan.makespan == pytest.approx(graph.runtime.sum())
    # Residents stay, and come before anything computes.
    resident = graph.tensor_bytes[np.isin(graph.tensor_op, np.flatnonzero(kinds == "parameter"))].sum()
    assert plan.peak_memory[0] > resident
    order = kinds[graph.topological_order]
    assert set(order[: list(order).index("start")]) <= {"parameter", "input"}
    assert graph.tensor_keep.sum() == (kinds == "parameter").sum() + len(proto.graph.output)
    if path.stem in PUBLISHED:
        assert resident / 4e6 == pytest.approx(PUBLISHED[path.stem], abs=0.06)


@pytest.mark.parametrize(("name", "gigaflops"), [("resnet50", 2 * 4.09), ("vgg19", 2 * 19.6)])
def test_flops_agree_with_published_counts(name, gigaflops):
    # Multiply-adds: 19.6e9 for VGG-19 (He et al. 2015); 4.09e9 for ResNet-50 with the strides in its 3x3
    # convolutions, as here (torchvision).
    path = next(p for p in LIGHT if name in p.stem)
    assert load_graph(path, profile=Count("flops")).runtime.sum() == pytest.approx(gigaflops * 1e9, rel=0.02)


def test_a_small_model_op_by_op():
    proto = model(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
            helper.make_node("Add", ["y", "b"], ["z"]),
            helper.make_node("Add", ["z", "b"], ["u"], name="mm"),
            helper.make_node("Gemm", ["u", "w2"], ["v"], transA=1),
        ],
        [info("x", "batch", 4)],
        [info("v", None, None), info("z", None, None)],
        [weight("w", 4, 5), weight("b", 5), weight("w2", 2, 7), weight("unused", 9)],
    )
    graph = from_onnx(proto, dims={"batch": 2}, profile=Count("flops"))
    assert graph.op_names == ("x", "w", "b", "w2", "start", "mm", "Add_1", "mm_2", "Gemm_3")
    assert op(graph, "x") == ("input", 0, [32])
    assert op(graph, "w2") == ("parameter", 0, [56])
    assert op(graph, "start") == ("start", 0, [])
    assert op(graph, "mm") == ("MatMul", 2 * 2 * 4 * 5, [40])
    assert op(graph, "Add_1") == ("Add", 10, [40])
    assert op(graph, "Gemm_3") == ("Gemm", 2 * 5 * 2 * 7, [140])
    assert graph.allowed_devices == ((0,), *[None] * 8)
    groups = dict(zip(graph.op_names, graph.colocation_group, strict=True))
    assert groups["w"] == groups["mm"] == "mm"
    assert groups["b"] == groups["Add_1"] == "Add_1"
    assert groups["mm_2"] is None  # reads b too, but not first
    assert [graph.tensor_name(t) for t in np.flatnonzero(graph.tensor_keep)] == [
        "w:0", "b:0", "w2:0", "Add_1:0", "Gemm_3:0",
    ]  # fmt: skip
    # All four residents precede ``start``, which precedes the ops that read only residents.
    assert controls(graph) == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 5)]
    traffic = from_onnx(proto, dims={"batch": 2}, profile=Count("bytes"))
    assert op(traffic, "mm")[1] == pytest.approx(32 + 80 + 40)


def test_inputs_of_unknown_size_and_place():
    proto = model(
        [helper.make_node("Relu", ["x"], ["y"])], [info("x", "batch", None, 4)], [info("y", "batch", "k", 4)]
    )
    with pytest.warns(UserWarning, match="taken as 1"):
        assert from_onnx(proto).tensor_bytes.tolist() == [16, 16]
    proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    graph = from_onnx(proto, dims={"batch": 3}, input_devices=None, name="mine")
    assert graph.tensor_bytes.tolist() == [48, 48]
    assert graph.allowed_devices == (None,) * 3
    assert graph.name == "mine"
    assert from_onnx(proto, dims={"batch": 3}, input_devices=[1, 2]).allowed_devices[0] == (1, 2)


def _cost(nodes, inputs, weights=(), output=None, **options):
    output = output or helper.make_empty_tensor_value_info(nodes[-1].output[0])
    proto = model(nodes, inputs, [output], weights)
    return pytest.approx(from_onnx(proto, profile=Count("flops"), **options).runtime[-1])


@pytest.mark.parametrize(
    ("node", "inputs", "flops"),
    [
        (("Conv", ["x", "w"], {"group": 2}), [("x", 1, 4, 8, 8), ("w", 6, 2, 3, 3)], 2 * 6 * 6 * 6 * 2 * 9),
        (("ConvTranspose", ["x", "w"], {}), [("x", 1, 4, 8, 8), ("w", 4, 6, 3, 3)], 2 * 4 * 64 * 6 * 9),
        (("MatMul", ["x", "w"], {}), [("x", 3, 2, 4), ("w", 3, 4, 5)], 2 * 3 * 2 * 4 * 5),
        (("MaxPool", ["x"], {"kernel_shape": [2, 2], "strides": [2, 2]}), [("x", 1, 3, 8, 8)], 3 * 16 * 4),
        (("GlobalAveragePool", ["x"], {}), [("x", 1, 3, 8, 8)], 192),
        (("LSTM", ["x", "w", "r"], {"hidden_size": 5}), [("x", 7, 2, 3), ("w", 1, 20, 3), ("r", 1, 20, 5)],
         2 * 7 * 2 * (60 + 100)),
        (("Einsum", ["x", "w"], {"equation": "bij,bjk->bki"}), [("x", 3, 2, 4), ("w", 3, 4, 5)],
         2 * 3 * 2 * 4 * 5),
        (("Einsum", ["x", "w"], {"equation": "...ij, ...jk"}), [("x", 3, 6, 2, 4), ("w", 3, 6, 4, 5)],
         2 * 3 * 6 * 2 * 4 * 5),
        (("Einsum", ["x", "w"], {"equation": "ij,jk"}), [("x", 2, 0), ("w", 0, 5)], 0),
        (("Relu", ["x"], {}), [("x", 3, 4)], 12),
        (("ReduceSum", ["x"], {"keepdims": 0}), [("x", 3, 4)], 12),
        (("Identity", ["x"], {}), [("x", 3, 4)], 0),
    ],
)  # fmt: skip
def test_flops_by_hand(node, inputs, flops):
    kind, names, attributes = node
    made = helper.make_node(kind, names, ["out"], **attributes)
    assert _cost([made], [info(*i) for i in inputs]) == flops


@pytest.mark.parametrize(
    ("equation", "shapes", "products"),
    [
        ("...ij,...jk->...ik", [(3, 1, 2, 4), (6, 4, 5)], 3 * 6 * 2 * 4 * 5),
        ("ij,jk", [(2, 4), (1, 5)], 2 * 4 * 5),
        ("ij,jk", [(2, 0), (1, 5)], 0),
        ("...,...", [(2,), (3,)], 2),  # ONNX does not check such axes.
        ("i...,...i", [(3, 7), (7, 3)], 3 * 7),
        ("ij,jk", [(), (4, 5)], 4 * 5),  # The rank of an operand is not known.
    ],
)
def test_axes_of_einstein_sums_are_broadcast(equation, shapes, products):
    assert einsum_flops(equation, shapes) == 2 * products


@pytest.mark.parametrize(
    ("shapes", "attributes", "past", "keys"),
    [
        ([(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)], {}, [], 5),
        ([(2, 3, 32), (2, 5, 16), (2, 5, 12)], {"q_num_heads": 4, "kv_num_heads": 2}, [], 5),
        ([(2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 6)], {}, [(2, 2, 7, 8), (2, 2, 7, 6)], 12),
    ],
)
def test_attention_is_two_products(shapes, attributes, past, keys):
    """2 sequences, 4 heads, 3 queries; 8 numbers in a key and 6 in a value."""
    names = ["q", "k", "v", *(["", "past_k", "past_v"] if past else [])]
    inputs = [info(n, *s) for n, s in zip(filter(None, names), shapes + past, strict=True)]
    node = helper.make_node("Attention", names, ["y", "new_k", "new_v"][: 3 if past else 1], **attributes)
    proto = model([node], inputs, [helper.make_empty_tensor_value_info("y")])
    proto.opset_import[0].version = 23
    assert from_onnx(proto, profile=Count("flops")).runtime[-1] == 2 * 2 * 4 * 3 * keys * (8 + 6)


def test_the_roofline():
    roofline = DeviceProfile("slow", matrix_flops=10, vector_flops=10, bandwidth=5, launch_overhead=1)
    assert roofline.seconds(100, 20, "float32", matrix=True) == 11
    assert roofline.seconds(100, 200, "float32", matrix=False) == 41


def test_constants_become_parameters():
    nodes = [
        helper.make_node("Constant", [], ["c"], value=weight("", 3)),
        helper.make_node("ConstantOfShape", ["s"], ["k"]),
        helper.make_node("Sum", ["x", "c", "k"], ["y"]),
    ]
    shape = helper.make_tensor("s", TensorProto.INT64, [1], [3])
    graph = from_onnx(model(nodes, [info("x", 3)], [info("y", 3)], [shape]))
    assert graph.op_kinds == ("input", "parameter", "parameter", "start", "Sum")
    assert graph.resident.tolist() == [True, True, True, False, False]
    assert graph.tensor_bytes.tolist() == [12, 12, 12, 12]


def test_optional_inputs_and_outputs_may_be_left_out():
    nodes = [
        helper.make_node("Clip", ["x", "", "hi"], ["y"]),
        helper.make_node("Dropout", ["y"], ["z", ""]),
        helper.make_node("MaxPool", ["z"], ["", "i"], kernel_shape=[1]),
    ]
    graph = from_onnx(model(nodes, [info("x", 1, 1, 3)], [info("z", 1, 1, 3)], [weight("hi")]))
    assert graph.op_kinds[-3:] == ("Clip", "Dropout", "MaxPool")
    assert np.diff(graph.output_offset)[-3:].tolist() == [1, 1, 1]


def _body():
    body = helper.make_graph(
        [helper.make_node("MatMul", ["s", "w"], ["t"]), helper.make_node("Identity", ["t"], ["scan_out"])],
        "body",
        [info("s", 2, 4), info("i", 4)],
        [info("t", 2, 4), info("scan_out", 2, 4)],
    )
    return helper.make_node("Scan", ["x", "seq"], ["y", "ys"], body=body, num_scan_inputs=1)


def test_a_scan_is_one_op_of_its_length_and_reads_what_its_body_reads():
    proto = model([_body()], [info("x", 2, 4), info("seq", 10, 4)], [info("y", 2, 4)], [weight("w", 4, 4)])
    graph = from_onnx(proto, profile=Count("flops"))
    assert graph.op_names == ("x", "seq", "w", "start", "Scan_0")
    assert graph.runtime[-1] == 10 * 2 * 2 * 4 * 4
    assert graph.edge_producer.tolist() == [0, 1, 2]
    assert op(graph, "Scan_0")[2] == [32, 320]


@pytest.mark.parametrize(("axes", "shape"), [([0], (10, 4)), ([1], (4, 10)), ([-1], (4, 10))])
def test_a_scan_is_as_long_as_the_axis_that_it_scans(axes, shape):
    scan = _body()
    scan.attribute.append(helper.make_attribute("scan_input_axes", axes))
    proto = model([scan], [info("x", 2, 4), info("seq", *shape)], [info("y", 2, 4)], [weight("w", 4, 4)])
    assert from_onnx(proto, profile=Count("flops")).runtime[-1] == 10 * 2 * 2 * 4 * 4


def test_the_values_of_a_body_are_collected_once(monkeypatch):
    """Branches of merged decoders have thousands of nodes."""
    collected = []
    monkeypatch.setattr(onnx_cost, "values_of", lambda body: collected.append(body.name) or values_of(body))

    def branch(name):
        nodes = [helper.make_node("Relu", [f"{name}{i}" if i else "x"], [f"{name}{i + 1}"]) for i in range(9)]
        return helper.make_graph(nodes, name, [], [info(f"{name}9", 2)])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    scalar = info("c", dtype=TensorProto.BOOL)
    assert _cost([choice], [info("x", 2), scalar], output=info("y", 2)) == 9 * 2
    assert sorted(collected) == ["a", "b"]


def test_an_if_is_its_slowest_branch_and_a_loop_its_trips():
    def branch(name, width):
        nodes = [helper.make_node("MatMul", ["x", f"w{width}"], [name])]
        return helper.make_graph(nodes, name, [], [info(name, 2, width)])

    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", 3), else_branch=branch("b", 9))
    weights = [weight("w3", 4, 3), weight("w9", 4, 9)]
    scalar = info("c", dtype=TensorProto.BOOL)
    assert _cost([choice], [info("x", 2, 4), scalar], weights) == 2 * 2 * 4 * 9
    # Its width depends on the branch; the larger one counts.
    graph = from_onnx(
        model([choice], [info("x", 2, 4), scalar], [helper.make_empty_tensor_value_info("y")], weights)
    )
    assert graph.tensor_bytes[-1] == 4 * 2 * 9
    step = helper.make_graph(
        [helper.make_node("Relu", ["s"], ["t"]), helper.make_node("Identity", ["go"], ["went"])],
        "step",
        [info("i", dtype=TensorProto.INT64), info("go", dtype=TensorProto.BOOL), info("s", 5)],
        [info("went", dtype=TensorProto.BOOL), info("t", 5)],
    )
    loop = helper.make_node("Loop", ["", "c", "x"], ["y"], body=step)
    assert _cost([loop], [info("x", 5), scalar], output=info("y", 5)) == 5
    assert _cost([loop], [info("x", 5), scalar], output=info("y", 5), loop_trips=7) == 35


def _rows_of_a_loop(count, go, ends=False, nested=False):
    """A loop that returns its state and a row for each iteration, and the sum of a row of exponentials."""
    went = (
        helper.make_node("Not", ["go"], ["went"]) if ends else helper.make_node("Identity", ["go"], ["went"])
    )
    nodes = [helper.make_node("Relu", ["s"], ["t"]), helper.make_node("Neg", ["t"], ["r"]), went]
    row = info("r", 5)
    if nested:
        inner = helper.make_graph(
            [helper.make_node("Exp", ["t"], ["e"]), helper.make_node("Identity", ["g"], ["h"])],
            "inner",
            [info("j", dtype=TensorProto.INT64), info("g", dtype=TensorProto.BOOL)],
            [info("h", dtype=TensorProto.BOOL), info("e", 5)],
        )
        nodes.append(helper.make_node("Loop", ["three", ""], ["rr"], body=inner))
        row = helper.make_tensor_value_info("rr", TensorProto.FLOAT, None)
    step = helper.make_graph(
        nodes,
        "step",
        [info("i", dtype=TensorProto.INT64), info("go", dtype=TensorProto.BOOL), info("s", 5)],
        [info("went", dtype=TensorProto.BOOL), info("t", 5), row],
    )
    loop = helper.make_node("Loop", [count, go, "x"], ["y", "rows"], body=step)
    constants = [
        helper.make_tensor("four", TensorProto.INT64, [], [4]),
        helper.make_tensor("three", TensorProto.INT64, [1], [3]),
        helper.make_tensor("endless", TensorProto.INT64, [], [2**63 - 1]),
        helper.make_tensor("true", TensorProto.BOOL, [], [True]),
        helper.make_tensor("false", TensorProto.BOOL, [], [False]),
    ]
    given = [info("x", 5), info("c", dtype=TensorProto.BOOL), info("n", dtype=TensorProto.INT64)]
    out = [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)]
    return model([loop, helper.make_node("Exp", ["rows"], ["z"])], given, out, constants)


@pytest.mark.parametrize(
    ("options", "trips"),
    [
        ({"count": "four", "go": ""}, 4),
        ({"count": "three", "go": "true"}, 3),
        # The number is not in the model, cannot be one, or the loop may end before.
        *(
            ({"count": "four", "go": "true", **other}, 7)
            for other in ({"count": "n"}, {"count": "endless"}, {"go": "c"}, {"go": "false"}, {"ends": True})
        ),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_makes_a_row_for_each_iteration(options, trips, nested, recwarn):
    graph = from_onnx(_rows_of_a_loop(**options, nested=nested), loop_trips=7, profile=Count("flops"))
    rows, ends = trips * (3 if nested else 1), "ends" in options
    assert op(graph, "Loop_0")[1:] == (trips * (5 + 5 + ends + 15 * nested), [20, 20 * rows])
    assert op(graph, "Exp_1")[1:] == (5 * rows, [20 * rows])
    assert not recwarn.list


def test_constants_in_bodies_are_parameters():
    def branch(name, *nodes):
        result = nodes[-1].output[0]
        return helper.make_graph(nodes, name, [], [info(result, 10)], [weight("w", 10)])

    c = helper.make_node("Constant", [], ["k"], value=weight("k", 10))
    inner = helper.make_node(
        "If",
        ["c"],
        ["o"],
        name="inner",
        then_branch=branch("a", c, helper.make_node("Add", ["k", "w"], ["p"])),
        else_branch=branch("b", helper.make_node("Add", ["x", "w"], ["q"])),
    )
    outer = helper.make_node(
        "If",
        ["c"],
        ["y"],
        name="outer",
        then_branch=branch("d", inner, helper.make_node("Mul", ["o", "w"], ["r"])),
        else_branch=branch("e", helper.make_node("Neg", ["x"], ["s"])),
    )
    inputs = [info("x", 10), info("c", dtype=TensorProto.BOOL), info("outer/w", 0)]
    graph = from_onnx(model([outer], inputs, [info("y", 10)]))
    found = [name for name, kind in zip(graph.op_names, graph.op_kinds, strict=True) if kind == "parameter"]
    assert sorted(found) == ["outer/k", "outer/w_2", "outer/w_3", "outer/w_4", "outer/w_5"]
    assert [op(graph, name)[2] for name in found] == [[40]] * 5
    # The value of the inner node is the only one that a body makes beside the result.
    assert replayed(graph).peak_memory[0] == 40 + 1 + 5 * 40 + 40 + graph.temp_bytes[-1] == 321


def test_a_scan_of_version_8_runs_its_body_for_each_step_of_each_sequence():
    scan = _body()
    scan.input.insert(0, "")  # Lengths of the sequences.
    scan.attribute.remove(next(a for a in scan.attribute if a.name == "num_scan_inputs"))
    scan.attribute.append(helper.make_attribute("num_scan_inputs", 1))
    proto = model(
        [scan], [info("x", 3, 2, 4), info("seq", 3, 10, 4)], [info("y", 3, 2, 4)], [weight("w", 4, 4)]
    )
    proto.opset_import[0].version = 8
    graph = from_onnx(proto, profile=Count("flops"))
    assert graph.runtime[-1] == 3 * 10 * 2 * 2 * 4 * 4
    assert op(graph, "Scan_0")[2] == [3 * 32, 3 * 320]


def test_the_scratch_of_bodies_is_their_peak_of_live_values():
    def branch(name, count):
        nodes = [helper.make_node("Exp", ["x"], [f"{name}0"])]
        nodes += [helper.make_node("Mul", [f"{name}{i}", "x"], [f"{name}{i + 1}"]) for i in range(count)]
        nodes += [helper.make_node("Constant", [], [f"{name}c"], value=weight("c", 10))]
        nodes += [helper.make_node("Add", [f"{name}0", f"{name}{count}"], [name])]
        return helper.make_graph(nodes, name, [], [info(name, 10)])

    scalar, inputs = info("c", dtype=TensorProto.BOOL), [info("x", 10), info("c", dtype=TensorProto.BOOL)]
    choice = helper.make_node("If", ["c"], ["y"], then_branch=branch("a", 1), else_branch=branch("b", 3))
    # The first value, and two of the chain; the result is that of the node.
    graph = from_onnx(model([choice], inputs, [info("y", 10)]))
    assert graph.temp_bytes[-1] == 3 * 40
    assert graph.temp_bytes[:-1].max() == 0
    inner = helper.make_graph([choice], "inner", [], [info("y", 10)])
    other = helper.make_graph([helper.make_node("Exp", ["x"], ["u"])], "other", [], [info("u", 10)])
    outer = helper.make_node("If", ["c"], ["z"], then_branch=inner, else_branch=other)
    assert from_onnx(model([outer], inputs, [info("z", 10)])).temp_bytes[-1] == 3 * 40
    step = helper.make_graph(
        [
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("Add", ["r", "s"], ["t"]),
            helper.make_node("Identity", ["go"], ["went"]),
        ],
        "step",
        [info("i", dtype=TensorProto.INT64), info("go", dtype=TensorProto.BOOL), info("s", 10)],
        [info("went", dtype=TensorProto.BOOL), info("t", 10)],
    )
    # The results of an iteration stand beside those of the one before.
    loop = helper.make_node("Loop", ["", "c", "x"], ["y"], body=step)
    assert from_onnx(model([loop], [info("x", 10), scalar], [info("y", 10)])).temp_bytes[-1] == 80


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_kinds_of_another_domain_are_other_ops(domain):
    def seconds(kind, where, profile, **attributes):
        node = helper.make_node(kind, ["x", "w"], ["y"], domain=where, **attributes)
        proto = model([node], [info("x", 4, 6), info("w", 6, 4)], [info("y", 4, 4)])
        proto.opset_import.add(domain="ai.onnx", version=17)
        proto.opset_import.add(domain="mine", version=1)
        proto.opset_import.add(domain="com.microsoft", version=1)
        return from_onnx(proto, profile=profile).runtime[-1]

    assert seconds("MatMul", domain, Count("flops")) == 2 * 4 * 4 * 6
    assert seconds("MatMul", "mine", Count("flops")) == 24
    assert seconds("FusedMatMul", "com.microsoft", Count("flops")) == 2 * 4 * 4 * 6
    assert seconds("FusedMatMul", "com.microsoft", Count("flops"), transA=1) == 2 * 4 * 4 * 4
    assert seconds("FusedMatMul", "mine", Count("flops")) == 24
    # Neither a view nor a constant, nor one with attributes of ONNX's op.
    assert seconds("Reshape", "mine", Count("bytes")) == 4 * (24 + 24 + 16)
    assert seconds("Constant", "mine", Count("bytes")) == 4 * (24 + 24 + 16)
    assert seconds("Einsum", "mine", Count("flops")) == 24


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (("Split", ["x"], ["y", "z", "u"], {"num_outputs": 2}), "its num_outputs is 2, and it has 3 outputs"),
        (
            ("Split", ["x"], ["y", "z"], {"num_outputs": 2**62}),
            "its num_outputs is 4611686018427387904, and it",
        ),
        (("GatherND", ["x", "i"], ["y"], {"batch_dims": -1}), "its batch_dims is negative"),
        (("LayerNormalization", ["x", "v"], ["y", "m"], {"axis": 2**31}), "its axis is 2147483648, and no"),
        (("Expand", ["x", "i"], ["y"], {}), "it reads a shape of 1099511627776 dimensions"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_values_on_which_shape_inference_crashes_or_hangs_are_refused(node, reason, inside):
    kind, reads, makes, attributes = node
    made = helper.make_node(kind, reads, makes, name="bad", **attributes)
    inputs = [info("x", 4, 6), info("i", 2**40, dtype=TensorProto.INT64), info("v", 6)]
    if inside:
        body = helper.make_graph([made], "body", [], [info("y")])
        made = helper.make_node("If", ["c"], ["out"], then_branch=body, else_branch=body)
        inputs.append(info("c", dtype=TensorProto.BOOL))
    proto = model([made], inputs, [info("out" if inside else "y")])
    proto.opset_import[0].version = 18
    with pytest.raises(FormatError, match=f"^ONNX node 'bad': {reason}"):
        from_onnx(proto)


@pytest.mark.parametrize("where", ["graph", "body", "outside of the body", "after another"])
def test_long_shapes_that_other_nodes_compute_are_refused(where):
    """Early versions of `Expand` take the length of any shape for the rank of the result."""

    def made(length):
        shape = helper.make_node("Abs", ["i"], ["s"])
        bad = helper.make_node("Expand", ["x", "s"], ["y"], name="bad")
        nodes = [shape, bad]
        if where == "after another":  # Whose shape is short.
            short = helper.make_node("Abs", ["j"], ["one"])
            nodes = [short, shape, helper.make_node("Expand", ["s", "one"], ["t"]), bad]
            bad.input[1] = "t"
        elif where != "graph":
            inner = [bad] if where == "outside of the body" else nodes
            body = helper.make_graph(inner, "body", [], [info("y", 4, 6)])
            nodes = [shape] if where == "outside of the body" else []
            nodes.append(helper.make_node("If", ["c"], ["out"], then_branch=body, else_branch=body))
        ints = {"i": length, "j": 1}
        inputs = [info("x", 4, 6), *(info(n, size, dtype=TensorProto.INT64) for n, size in ints.items())]
        inputs.append(info("c", dtype=TensorProto.BOOL))
        proto = model(nodes, inputs, [info(nodes[-1].output[0], 4, 6)])
        proto.opset_import[0].version = 11
        return proto

    with pytest.raises(FormatError, match=r"^ONNX node 'bad': it reads a shape of 1099511627776 dimensions"):
        from_onnx(made(2**40))
    assert from_onnx(made(2)).op_kinds[-1] in ("Expand", "If")


def test_local_functions_that_multiply_are_refused():
    def function(i):
        calls = [(["a"], ["b"]), (["b"], ["c"])]
        nodes = [helper.make_node(f"f{i + 1}", *call, domain="mine") for call in calls]
        if i == 30:
            nodes = [helper.make_node("Relu", ["a"], ["c"])]
        ours = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
        return helper.make_function("mine", f"f{i}", ["a"], ["c"], nodes, ours)

    def calling(first):
        node = helper.make_node(f"f{first}", ["x"], ["y"], domain="mine")
        made = model([node], [info("x", 2)], [info("y", 2)], functions=[function(i) for i in range(31)])
        made.opset_import.add(domain="mine", version=1)
        return made

    assert from_onnx(calling(26)).op_kinds.count("Relu") == 16
    with pytest.raises(FormatError, match="has 1073741824 nodes with its local functions inlined, more than"):
        from_onnx(calling(0))


def test_long_vectors_are_no_shapes(monkeypatch):
    """Data propagation makes an object for each element of a tensor of one axis."""
    asked, plain = [], onnx.shape_inference.infer_shapes

    def infer(proto, data_prop=False, **options):
        assert not (data_prop and proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value > 2**24)
        asked.append(data_prop)
        return plain(proto, data_prop=data_prop, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer)

    def vector(size, *nodes):
        nodes = [helper.make_node("Mul", ["x", "x"], ["y"]), *nodes]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        return from_onnx(model(nodes, [info("x", size)], [result]))

    shaped = [
        helper.make_node("Shape", ["y"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
    ]
    assert op(vector(2**40), "Mul_0")[2] == [2**42]
    assert asked == [False]
    # Shorter ones may be shapes, and so may somewhat longer ones where a size is not known otherwise.
    assert op(vector(10, *shaped), "ConstantOfShape_2")[2] == [40]
    assert op(vector(2**17, *shaped), "ConstantOfShape_2")[2] == [2**19]
    assert asked == [False, False, True, False, True]
    with pytest.warns(UserWarning, match="leaves 1 values open, the first 'z'"):
        vector(2**40, *shaped, helper.make_node("Relu", ["z"], ["r"]))


def test_external_weights_are_not_needed(tmp_path):
    big = weight("w", 4, 5)
    big.ClearField("raw_data")
    big.data_location = TensorProto.EXTERNAL
    big.external_data.add(key="location", value="gone.bin")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = tmp_path / "model.onnx"
    path.write_bytes(model(nodes, [info("x", 2, 4)], [info("y", 2, 5)], [big]).SerializeToString())
    assert load_graph(path).tensor_bytes.tolist() == [32, 80, 40]
    shape = helper.make_tensor("s", TensorProto.INT64, [2], [5, 2])
    shape.ClearField("int64_data")
    shape.data_location = TensorProto.EXTERNAL
    shape.external_data.add(key="location", value="gone.bin")
    reshape = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    assert from_onnx(model(reshape, [info("x", 10)], [info("y", 5, 2)], [shape])).tensor_bytes.tolist() == [
        40,
        16,
        40,
    ]


def test_large_weights_are_not_sent_through_inference(monkeypatch):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    wide = model(nodes, [info("x", 2, 100)], [info("y", 2, 100)], [weight("w", 100, 100)])
    before, infer, sizes = wide.SerializeToString(), onnx.shape_inference.infer_shapes, []

    def measured(proto, **options):
        sizes.append(proto.ByteSize())
        return infer(proto, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", measured)
    assert from_onnx(wide).tensor_bytes.tolist() == [800, 40_000, 800]
    assert sizes[0] < 1000
    assert wide.SerializeToString() == before


def test_small_element_types():
    nodes = [helper.make_node("DequantizeLinear", ["q", "s"], ["y"])]
    proto = model(nodes, [info("q", 5, dtype=TensorProto.INT4), info("s")], [info("y", 5)])
    proto.opset_import[0].version = 21
    assert from_onnx(proto).tensor_bytes.tolist() == [3, 4, 20]


def test_what_inference_leaves_open_is_said():
    proto = model(
        [helper.make_node("NonZero", ["x"], ["y"])],
        [info("x", 3)],
        [info("y", None, None, dtype=TensorProto.INT64)],
    )
    with pytest.warns(UserWarning, match="leaves 1 values open, the first 'y'"):
        graph = from_onnx(proto)
    assert graph.tensor_bytes.tolist() == [12, 8]
    custom = helper.make_node("Mystery", ["x"], ["y"], domain="mine")
    proto = model([custom], [info("x", 3)], [helper.make_empty_tensor_value_info("y")])
    proto.opset_import.add(domain="mine", version=1)
    with pytest.warns(UserWarning, match="leaves 1 values open"):
        assert from_onnx(proto).tensor_bytes.tolist() == [12, 0]


@pytest.mark.parametrize(
    ("kind", "shapes", "reason"),
    [
        ("MatMul", [(4, 5), (16, 8)], r"\(op_type:MatMul\): .* Incompatible dimensions"),
        ("Add", [(4, 8), (3, 8)], r"\(op_type:Add\): .* Incompatible dimensions"),
        ("Relu", [(4, 9)], r"\(op_type:Relu\): .* differ in dimension 1: \(9\) vs \(8\)"),
        ("Relu", [(32,)], r"\(op_type:Relu\): .* differ in rank"),
    ],
)
def test_shapes_that_contradict_each_other_are_said(kind, shapes, reason):
    names = ["x", "y"][: len(shapes)]
    inputs = [info(name, *shape) for name, shape in zip(names, shapes, strict=True)]
    proto = model([helper.make_node(kind, names, ["z"])], inputs, [info("z", 4, 8)])
    with pytest.warns(UserWarning, match=rf"ONNX shape inference reports an error: .*{reason}.*; sizes may"):
        assert from_onnx(proto).tensor_bytes.tolist()[-1] == 4 * 4 * 8


def test_symbolic_dimensions_have_the_given_sizes_or_1_with_a_warning(tmp_path):
    proto = model(
        [helper.make_node("Add", ["x", "y"], ["z"])],
        [info("x", "batch", "length"), info("y", "batch", "length")],
        [info("z", "batch", "length")],
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    graph = load_graph(path, dims={"batch": 8, "length": 3})
    assert graph.tensor_bytes.tolist() == [96, 96, 96]
    message = r"'x': the symbolic dimension 'length' is taken as 1; give sizes with dims=\{'length': SIZE\}"
    with pytest.warns(UserWarning, match=message) as caught:
        assert load_graph(path, dims={"batch": 8}).tensor_bytes.tolist() == [32, 32, 32]
    assert len(caught) == 1
    with pytest.warns(
        UserWarning, match=r"dimension 'batch' is taken as 1, and so are 1 others; .*--dim batch"
    ):
        assert load_graph(path).tensor_bytes.tolist() == [4, 4, 4]
    nameless = model(RELU, [info("x", None, 3)], [info("y", None, 3)])
    with pytest.warns(UserWarning, match="'x': a dimension without size or name is taken as 1"):
        assert from_onnx(nameless).tensor_bytes.tolist() == [12, 12]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 3}, "dims: give a Mapping, got int"),
        ({"input_devices": 1}, r"input_devices: 1 must be indices of devices, e\.g\. \(0, 1\)"),
        ({"input_devices": b"\x00"}, r"input_devices: b'\\x00' must be indices of devices"),
        ({"loop_trips": -1}, "loop_trips: -1 must be a whole number of at least 0"),
        ({"loop_trips": 1.5}, r"loop_trips: 1\.5 must be"),
    ],
)
def test_options_of_another_kind_are_refused(options, message):
    proto = model(RELU, [info("x", 2)], [info("y", 2)])
    with pytest.raises(ConfigError, match=message):
        from_onnx(proto, **options)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8", 2**63])
def test_sizes_of_dimensions_that_cannot_be_are_refused(size):
    proto = model(RELU, [info("x", "batch")], [info("y", "batch")])
    with pytest.raises(ConfigError, match=r"dims: 'batch' is .* must be a whole number of at least 1"):
        from_onnx(proto, dims={"batch": size})


def test_model_functions_are_inlined():
    function = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 17)],
    )
    proto = model([helper.make_node("Twice", ["x"], ["y"], domain="mine")], [info("x", 3)], [info("y", 3)],
                  functions=[function])  # fmt: skip
    proto.opset_import.add(domain="mine", version=1)
    assert from_onnx(proto).op_kinds == ("input", "start", "Add")


def test_functions_that_call_themselves_are_refused():
    call = helper.make_node("Again", ["x"], ["y"], domain="mine")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    function = helper.make_function("mine", "Again", ["x"], ["y"], [call], opsets)
    proto = model([call], [info("x", 3)], [info("y", 3)], functions=[function])
    proto.opset_import.add(domain="mine", version=1)
    with pytest.raises(
        FormatError, match=r"^ONNX shape inference fails: .*; check the model with onnx\.checker"
    ):
        from_onnx(proto)


def test_a_model_without_inputs_needs_no_start():
    nodes = [helper.make_node("RandomNormal", [], ["y"], shape=[3])]
    graph = from_onnx(model(nodes, [], [info("y", 3)]))
    assert graph.op_kinds == ("RandomNormal",)


@pytest.mark.parametrize(
    ("proto", "options", "message"),
    [
        (model([], [info("x", 3)], [info("x", 3)]), {}, "without nodes"),
        (
            model([helper.make_node("Constant", [], ["c"], value=weight("", 3))], [], [info("c", 3)]),
            {},
            "constants alone",
        ),
        (model(RELU, [], [info("y", 3)]), {}, "node 'Relu_0' reads 'x', which no node produces"),
        (
            model(RELU, [info("x", 3)], [info("y", 3), info("z", 3)]),
            {},
            "the ONNX model has an output 'z', which no node produces; mend the name",
        ),
        (model([*RELU, *RELU], [info("x", 3)], [info("y", 3)]), {}, "'y' is produced twice"),
        (
            model(RELU, [info("x", 3)], [info("y", 3)]),
            {"dims": {"n": 3}},
            "no input has a dimension 'n'",
        ),
        (model(RELU, [info("x", *[2**60] * 20)], [info("y", 3)]), {}, "too many elements"),
        (
            model(RELU, [info("x", 3)], [info("y", 3)]),
            {"dims": {1: 3, "n": 3}},
            "no input has a dimension 1;",
        ),
        (
            model(
                [
                    *(helper.make_node("Constant", [], ["c"], value=weight("", n)) for n in (1, 3)),
                    helper.make_node("Add", ["x", "c"], ["y"]),
                ],
                [info("x", 3)],
                [info("y", 3)],
            ),
            {},
            "'c' is produced twice",
        ),
        (
            model(
                [helper.make_node("Add", ["x", "w"], ["y"])],
                [info("x", 3)],
                [info("y", 3)],
                [weight("w", 3), weight("w", 3)],
            ),
            {},
            "'w' is produced twice",
        ),
        (model(RELU, [info("x", 2**61)], [info("y", 2**61)]), {}, "at most"),
        (
            model([helper.make_node("Relu", ["y"], ["x"]), *RELU], [], [info("y", 3)]),
            {},
            "cycle Relu_[01] -> Relu_[01]|ONNX shape inference fails",
        ),
        (model(RELU, [info("x", 3)], [info("", 3)]), {}, "has no name"),
    ],
)
def test_bad_model_is_refused(proto, options, message):
    with pytest.raises((FormatError, GraphError), match=message) as error:
        from_onnx(proto, **options)
    assert "\n" not in str(error.value)


def test_inputs_and_parameters_may_be_outputs():
    outputs = [info(name, 3) for name in ("y", "x", "w", "c")]
    constant = helper.make_node("Constant", [], ["c"], value=weight("", 3))
    graph = from_onnx(model([*RELU, constant], [info("x", 3)], outputs, [weight("w", 3)]))
    assert set(graph.op_names) == {"x", "w", "c", "start", "Relu_0"}
    assert graph.tensor_keep.all()


@pytest.mark.parametrize("given", [b"", 3, None])
def test_what_is_no_model_is_refused(given):
    with pytest.raises(
        FormatError, match=f"model: got {type(given).__name__}; give the path of an .onnx file"
    ):
        from_onnx(given)


def test_a_model_that_names_no_opset_is_refused():
    proto = model(RELU, [info("x", 3)], [info("y", 3)])
    del proto.opset_import[:]
    with pytest.raises(FormatError, match=r"ONNX shape inference fails: .*Relu"):
        from_onnx(proto)


def test_without_the_package_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without_onnx(name, *args, **kwargs):
        if name.split(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_onnx)
    with pytest.raises(MissingExtraError, match=r"regal-jax\[onnx\]"):
        load_graph(LIGHT[0])


def test_values_share_buffers_as_in_onnx_runtime():
    """By hand: the values that may be overwritten in every order, and those that may not."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], name="a"),
        helper.make_node("Relu", ["a"], ["b"], name="b"),  # Overwrites a, which has no other reader.
        helper.make_node("Reshape", ["b", "shape"], ["c"], name="c"),  # A view.
        helper.make_node("Tanh", ["c"], ["d"], name="d"),  # Overwrites the view c, and thereby a.
        helper.make_node("Sigmoid", ["d"], ["e"], name="e"),  # d has two readers.
        helper.make_node("Softmax", ["d"], ["f"], name="f"),
        helper.make_node("Relu", ["x"], ["g"], name="g"),  # Inputs are not overwritten.
        helper.make_node("Flatten", ["x"], ["h"], name="h"),  # Views of inputs are allowed.
        helper.make_node("Relu", ["h"], ["i"], name="i"),  # A view of an input is not overwritten.
        helper.make_node("Relu", ["i"], ["y"], name="y"),  # Results have buffers of their own.
        helper.make_node("Relu", ["e"], ["z"], name="z"),
        # The elements have another size.
        helper.make_node("Cast", ["f"], ["j"], name="j", to=TensorProto.DOUBLE),
        helper.make_node("Relu", ["j"], ["k"], name="k", domain="own"),  # A Relu of another domain.
        helper.make_node("Identity", ["y"], ["l"], name="l"),  # Views of results are allowed.
        helper.make_node("Relu", ["l"], ["m"], name="m"),
    ]
    shape = helper.make_tensor("shape", TensorProto.INT64, [1], [16])
    made = model(nodes, [info("x", 4, 4)], [info("y", 4, 4), info("z", 16)], [shape])
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.graph.value_info.append(info("k", 16, dtype=TensorProto.DOUBLE))
    graph = from_onnx(made, in_place=True)
    plain = from_onnx(made)
    shared = {name for name in graph.op_names if op(graph, name)[2] != op(plain, name)[2]}
    assert shared == {"b", "c", "d", "h", "l"}
    assert all(op(graph, name)[2] == [0] for name in shared)

    def read(graph, name):
        o = graph.op_names.index(name)
        return {graph.op_names[graph.tensor_op[t]] for t in graph.edge_tensor[graph.edge_op == o]}

    assert read(graph, "e") == {"d", "a"}
    assert read(graph, "d") == {"c", "a"}
    assert read(graph, "i") == {"h", "x"}
    assert read(plain, "e") == {"d"}
    assert graph.content_hash != plain.content_hash
