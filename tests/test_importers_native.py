"""Our own JSON: an exact round trip, and an error that locates each wrong field."""

import copy
import json

import hypothesis
import pytest
from importer_cases import NATIVE, WORKFLOW, controls, graphs, reads

from regal_jax.errors import FormatError, GraphError
from regal_jax.graph import GraphBuilder
from regal_jax.importers import format_native, parse_native, parse_wfformat


@hypothesis.given(graphs())
def test_round_trip_is_exact(graph):
    text = format_native(graph)
    again = parse_native(text)
    assert again.content_hash == graph.content_hash
    assert again.name == graph.name
    assert format_native(again) == text


def test_reads_a_document_written_by_hand():
    graph = parse_native(NATIVE)
    assert graph.name == "tiny"
    assert graph.time_unit == "us"
    assert graph.op_names == ("a:1", "b", "c")
    assert graph.op_kinds == ("conv", "", "")
    assert graph.runtime.tolist() == [[1.5, 2.0], [0.1, 0.1], [0.0, 0.0]]
    assert graph.temp_bytes.tolist() == [0, 4, 0]
    assert graph.allowed_devices == (None, (0, 1), None)
    assert graph.colocation_group == (None, "g", None)
    assert graph.tensor_bytes.tolist() == [8, 16]
    assert graph.tensor_keep.tolist() == [False, True]
    assert reads(graph) == [(0, 1), (1, 1)]
    assert controls(graph) == [(2, 1)]


@pytest.mark.parametrize("fields", [{"name": "\ud800"}, {"name": "a", "kind": "x\udfff"}])
def test_a_graph_holds_no_text_that_no_file_can_hold(fields):
    builder = GraphBuilder("g")
    builder.add_op(**fields)
    with pytest.raises(GraphError, match="has a lone surrogate"):
        builder.build()


HEAD = '{"format": "regal_jax.graph", "version": 1, "name": "g", "time_unit": "s", "ops": ['
V1 = (
    HEAD
    + """
    {"name": "w", "kind": "parameter", "outputs": [{"size_bytes": 4, "keep": true}]},
    {"name": "x", "kind": "input", "outputs": [{"size_bytes": 4}]},
    {"name": "start", "kind": "start", "control_inputs": ["w", "x", "busy", "odd", "late"]},
    {"name": "free", "kind": "input", "outputs": [{"size_bytes": 4}]},
    {"name": "busy", "kind": "input", "runtime": 1, "outputs": [{"size_bytes": 4}]},
    {"name": "odd", "kind": "load", "outputs": [{"size_bytes": 4}]},
    {"name": "late", "kind": "input", "control_inputs": ["w"], "outputs": [{"size_bytes": 4}]},
    {"name": "add", "inputs": ["w:0", "x:0"], "control_inputs": ["start"]}]}"""
)


def test_version_1_says_by_start_who_is_resident():
    graph = parse_native(V1)
    assert [name for name, r in zip(graph.op_names, graph.resident, strict=True) if r] == ["w", "x"]
    # Files of version 2 state which ops are resident, so nothing is inferred.
    assert not parse_native(V1.replace('"version": 1', '"version": 2')).resident.any()
    assert parse_native(format_native(graph)).resident.tolist() == graph.resident.tolist()
    assert '"resident": true' in format_native(graph)


def test_one_op_a_line_is_readable_text():
    lines = format_native(parse_native(NATIVE)).splitlines()
    assert sum(line.startswith('{"name": ') for line in lines) == 3


BAD_OPS = [
    ('{"name": "a", "runtme": 1}', r"ops\[0\]: unknown key 'runtme'"),
    ('{"runtime": 1}', r"ops\[0\]: 'name' is missing"),
    ('{"name": 3}', r"ops\[0\]\.name: expected a text, got 3"),
    ('{"name": ""}', "non-empty"),
    ('{"name": "a"}, {"name": "a"}', "'a' is the name of another op, too"),
    ('{"name": "\\ud800"}', r"ops\[0\]\.name: .*lone surrogate"),
    ('{"name": "a", "runtime": -1}', r"ops\[0\]\.runtime: -1 must be finite and zero or more"),
    ('{"name": "a", "runtime": 1e999}', "1e999 is not allowed"),
    ('{"name": "a", "runtime": NaN}', "NaN is not allowed"),
    ('{"name": "a", "runtime": Infinity}', "Infinity is not allowed"),
    ('{"name": "a", "runtime": 1' + "0" * 400 + "}", "401 digits"),
    ('{"name": "a", "runtime": 1' + "0" * 5000 + "}", "5001 digits"),
    ('{"name": "a", "runtime": "5us"}', r"ops\[0\]\.runtime: expected a number"),
    ('{"name": "a", "runtime": true}', "expected a number"),
    ('{"name": "a", "runtime": [1, null]}', r"ops\[0\]\.runtime\[1\]: expected a number, got null"),
    ('{"name": "a", "runtime": []}', "runtime: an empty list"),
    ('{"name": "a", "runtime": [1, 2]}, {"name": "b", "runtime": [1, 2, 3]}', r"runtimes for \[2, 3\]"),
    (
        '{"name": "a", "runtime": [1]}, {"name": "b", "runtime": [1, 2]}',
        r"runtimes for \[1, 2\] devices; use one",
    ),
    ('{"name": "a", "temp_bytes": 1.5}', r"ops\[0\]\.temp_bytes: expected a whole number"),
    ('{"name": "a", "temp_bytes": -1}', r"ops\[0\]\.temp_bytes: -1 must be"),
    ('{"name": "a", "allowed_devices": []}', "allowed_devices"),
    ('{"name": "a", "allowed_devices": [-1]}', r"ops\[0\]\.allowed_devices\[0\]"),
    ('{"name": "a", "colocation_group": 1}', r"ops\[0\]\.colocation_group: expected a text"),
    ('{"name": "a", "resident": 1}', r"ops\[0\]\.resident: expected true or false, got 1"),
    ('{"name": "a", "resident": true, "runtime": 1}', "'a': is resident but takes time"),
    ('{"name": "a", "outputs": [{}]}', r"ops\[0\]\.outputs\[0\]: 'size_bytes' is missing"),
    ('{"name": "a", "outputs": [8]}', r"ops\[0\]\.outputs\[0\]: expected an object"),
    ('{"name": "a", "outputs": [{"size_bytes": 4611686018427387905}]}', "must be from 0 to"),
    ('{"name": "a", "outputs": [{"size_bytes": 8, "keep": 1}]}', r"keep: expected true or false, got 1"),
    ('{"name": "a", "inputs": ["b:0"]}', r"ops\[0\]\.inputs\[0\]: no op is called 'b'"),
    ('{"name": "a", "inputs": ["b"]}', "write OP:PORT"),
    ('{"name": "a", "inputs": ["b:-1"]}', "write OP:PORT"),
    ('{"name": "a"}, {"name": "b", "inputs": ["a:0"]}', r"ops\[1\]\.inputs\[0\]: op 'a' has 0 outputs"),
    ('{"name": "a", "control_inputs": ["b"]}', r"ops\[0\]\.control_inputs\[0\]: no op is called 'b'"),
    ('{"name": "a", "control_inputs": "b"}', "expected a list"),
    ('{"name": "a", "name": "b"}', "key 'name' twice"),
    (
        '{"name": "a", "control_inputs": ["b"]}, {"name": "b", "control_inputs": ["a"]}',
        "cycle a -> b -> a|cycle b",
    ),
    ("", "empty; add at least one op"),
    ("3", r"ops\[0\]: expected an object, got 3"),
]


@pytest.mark.parametrize(("ops", "message"), BAD_OPS)
def test_bad_op_is_refused_with_its_place(ops, message):
    with pytest.raises((FormatError, GraphError), match=message) as error:
        parse_native(HEAD + ops + "]}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: line 1, column 1"),
        ('{"format": "regal_jax.graph",', "not JSON"),
        ("[]", "expected an object, got a list"),
        ("{}", "'format' is missing"),
        (HEAD.replace("regal_jax.graph", "other") + "]}", "format: expected 'regal_jax.graph', got 'other'"),
        ('{"format": "regal_jax.plan", "cluster": {}}', "expected 'regal_jax.graph', got 'regal_jax.plan'"),
        (HEAD.replace(": 1", ": 3") + "]}", "version 3 of regal_jax.graph is not known"),
        (HEAD.replace(": 1", ": 3") + '], "more": 1}', "version 3 of regal_jax.graph is not known"),
        (HEAD.replace(": 1", ": 0") + "]}", "version 0 of regal_jax.graph is not known"),
        (HEAD.replace('"s"', '"h"') + "]}", "time_unit: unknown unit 'h'"),
        (HEAD + '], "more": 1}', "unknown key 'more'"),
        ("[" * 100_000, "nests too deep|not JSON"),
        ('{"a":' * 100_000, "nests too deep|not JSON"),
        ("[" * 100_000 + "]" * 100_000, "nests too deep"),
    ],
)
def test_bad_document_is_refused(text, message):
    with pytest.raises(FormatError, match=message) as error:
        parse_native(text)
    assert "\n" not in str(error.value)


STRANGE = [None, True, -1, 0.5, 10**30, -1e308, "x", "a:1:0", "", "\ud800", [], [[]], {}, {"x": 1}, ["x"]]


def _places(value, path=()):
    yield path
    members = enumerate(value) if isinstance(value, list) else ()
    for key, item in value.items() if isinstance(value, dict) else members:
        yield from _places(item, (*path, key))


@pytest.mark.parametrize(("parse", "text"), [(parse_native, NATIVE), (parse_wfformat, WORKFLOW)])
def test_any_value_in_any_place_is_read_or_refused(parse, text):
    document = json.loads(text)
    messages = []
    for path in _places(document):
        for strange in [*STRANGE, "gone"]:
            changed = copy.deepcopy(document)
            parent = changed
            for key in path[:-1]:
                parent = parent[key]
            if not path:
                changed = strange
            elif strange == "gone":
                del parent[path[-1]]
            else:
                parent[path[-1]] = copy.deepcopy(strange)
            try:
                parse(json.dumps(changed)).content_hash  # noqa: B018
            except (FormatError, GraphError) as error:
                messages.append(str(error))
    assert len(messages) > 300
    assert not any("\n" in message for message in messages)
