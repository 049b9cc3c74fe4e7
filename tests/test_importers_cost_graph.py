"""TensorFlow CostGraphDef text, both directions."""

import dataclasses

import hypothesis
import numpy as np
import pytest
from importer_cases import COST_GRAPH, controls, graphs, links, reads

from regal_jax.errors import FormatError, GraphError
from regal_jax.graph import GraphBuilder
from regal_jax.importers import format_cost_graph, parse_cost_graph


def test_reads_every_field_as_documented():
    graph = parse_cost_graph(COST_GRAPH, name="g")
    assert graph.name == "g"
    assert graph.time_unit == "us"
    assert graph.op_names == ("_SOURCE", "a", "b")
    assert graph.runtime.tolist() == [0.0, 58.0, 47.0]
    assert graph.temp_bytes.tolist() == [0, 0, 11]
    # b: its own output and its persistent memory, both kept (is_final); a's unknown size counts 0.
    assert graph.tensor_op.tolist() == [0, 1, 1, 2, 2]
    assert graph.tensor_bytes.tolist() == [0, 70, 0, 52, 9]
    assert graph.tensor_keep.tolist() == [False, False, False, True, True]
    assert reads(graph) == [(1, 2), (2, 2)]
    assert controls(graph) == [(0, 1)]


def test_the_shape_of_regals_published_data():
    # Ids and ports of 0 are omitted; heads wait for the source by control_input alone.
    text = """
    node { name: "_SOURCE" output_info { alias_input_port: -1 } }
    node { name: "op_1" id: 1 control_input: 0 compute_cost: 58
           output_info { size: 70 alias_input_port: -1 } }
    node { name: "op_2" id: 2 control_input: 0 compute_cost: 47
           output_info { size: 52 alias_input_port: -1 } }
    node { name: "op_3" id: 3 input_info { preceding_node: 1 } input_info { preceding_node: 2 }
           compute_cost: 58 output_info { size: 55 alias_input_port: -1 } }
    node { name: "op_4" id: 4 input_info { preceding_port: 0 } }"""
    graph = parse_cost_graph(text)
    assert graph.tensor_bytes.tolist() == [0, 70, 52, 55]
    assert links(graph) == [
        (0, 4),
        (1, 3),
        (2, 3),
    ]
    assert graph.control_target.tolist() == [1, 2]
    assert parse_cost_graph(format_cost_graph(graph)).content_hash == graph.content_hash


@hypothesis.given(graphs(plain=True))
def test_round_trip_of_what_the_format_can_hold(graph):
    assert parse_cost_graph(format_cost_graph(graph)).content_hash == graph.content_hash


def test_outputs_are_written_as_aliases_of_nothing():
    # The default of alias_input_port, 0, means that the output aliases input 0.
    assert format_cost_graph(_graph()).count("alias_input_port: -1") == 4


def test_persistent_memory_makes_the_round_trip():
    text = 'node { name: "v" persistent_memory_size: 9 output_info { size: 4 } } node { id: 1 input_info {} }'
    graph = parse_cost_graph(text)
    assert graph.op_names == ("v", "node_1")
    assert graph.tensor_bytes.tolist() == [4, 9]
    assert graph.tensor_keep.tolist() == [False, True]
    assert parse_cost_graph(format_cost_graph(graph)).content_hash == graph.content_hash


def test_names_are_made_distinct():
    graph = parse_cost_graph(
        'node { name: "a" } node { name: "a" id: 1 } node { name: "a_1" id: 2 } node { id: 3 }'
    )
    assert graph.op_names == ("a", "a_1_", "a_1", "node_3")


@pytest.mark.parametrize(
    ("unit", "runtime", "cost"), [("s", 0.25, 250_000), ("ms", 1.1, 1100), ("ns", 3000, 3), ("us", 7, 7)]
)
def test_costs_are_written_in_microseconds(unit, runtime, cost):
    builder = GraphBuilder("g", unit)
    builder.add_op("a", runtime=runtime)
    again = parse_cost_graph(format_cost_graph(builder.build()))
    assert again.runtime.tolist() == [cost]


def _graph(**fields):
    builder = GraphBuilder("g", "us")
    builder.add_op("first", runtime=1, outputs=[1, 2])
    builder.add_op("x", **{"runtime": 1, "outputs": [1, 2], "inputs": ["first:0"], **fields})
    builder.add_op("y", inputs=["x:0", "x:1"])
    return builder.build()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"runtime": 1.5}, r"op 'x': runtime .*1\.5.* us is not whole"),
        ({"allowed_devices": [1]}, r"op 'x': allowed_devices \(1,\) has no place"),
        ({"colocation_group": "g"}, "op 'x': colocation_group 'g' has no place"),
        ({"keep": [0]}, "op 'x': keep on 1 of 2 outputs"),
    ],
)
def test_what_the_format_cannot_hold_is_refused_or_left_out(fields, message):
    graph = _graph(**fields)
    with pytest.raises(FormatError, match=message):
        format_cost_graph(graph)
    again = parse_cost_graph(format_cost_graph(graph, lossy=True))
    assert again.op_names == graph.op_names
    assert again.runtime.tolist() == np.rint(graph.runtime).tolist()
    assert again.tensor_keep.sum() == (2 if "keep" in fields else 0)


def test_runtimes_a_device_and_too_long_ones_are_refused():
    graph = _graph()
    with pytest.raises(FormatError, match="one runtime per op, not one per device"):
        format_cost_graph(
            dataclasses.replace(graph, runtime=graph.runtime[:, None].repeat(2, axis=1)), lossy=True
        )
    with pytest.raises(FormatError, match="op 'x': runtime 1e\\+19 us does not fit"):
        format_cost_graph(_graph(runtime=1e19))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "without nodes"),
        ("hello", 'line 1: not a CostGraphDef.*"hello"'),
        ("node {", "not a CostGraphDef"),
        ("node { nam: 'a' }", 'no field named "nam"'),
        ("node { id: 99999999999 }", "not a CostGraphDef"),
        ("node { name: 3 }", "not a CostGraphDef"),
        ("node {} node {}", "id 0 is taken already"),
        ("node { name: 'a' compute_cost: -4 }", "node 'a': compute_cost -4"),
        ("node { name: 'a' output_info { size: -2 } }", "node 'a': output_info size -2"),
        ("node { name: 'a' temporary_memory_size: -2 }", "node 'a': temporary_memory_size -2"),
        ("node { name: 'a' control_input: 5 }", "node 'a': control_input 5 is no node"),
        ("node { name: 'a' input_info { preceding_node: 5 } }", "node 'a': preceding_node 5 is no node"),
        (
            "node { name: 'a' } node { name: 'b' id: 1 input_info {} }",
            "node 'b': preceding_port 0: 'a' has 0 outputs",
        ),
        ("node { id: 1 control_input: 2 } node { id: 2 control_input: 1 }", "cycle"),
        ("node { name: 'a' output_info { size: 9223372036854775807 } }", "finite and at most"),
        ("node {" * 5000, "not a CostGraphDef"),
    ],
)
def test_bad_text_is_refused(text, message):
    with pytest.raises((FormatError, GraphError), match=message) as error:
        parse_cost_graph(text)
    assert "\n" not in str(error.value)


def test_the_message_class_is_private():
    from google.protobuf import descriptor_pool

    format_cost_graph(_graph())
    with pytest.raises(KeyError, match="CostGraphDef"):
        descriptor_pool.Default().FindMessageTypeByName("tensorflow.CostGraphDef")
