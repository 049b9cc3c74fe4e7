"""Standard Task Graph files, both directions."""

import hypothesis
import pytest
from importer_cases import STG, controls, graphs, links

from regal_jax.datasets import generate
from regal_jax.errors import FormatError, GraphError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.importers import format_stg, parse_stg
from regal_jax.plan import Objective, Plan, lower_bound


def test_reads_tasks_and_precedences():
    graph = parse_stg(STG, name="g", tensor_bytes=3, time_unit="ms")
    assert graph.name == "g"
    assert graph.time_unit == "ms"
    assert graph.op_names == ("0", "1", "2", "3", "4", "5")
    assert graph.runtime.tolist() == [0, 3, 5, 2, 7, 0]
    assert graph.tensor_bytes.tolist() == [3] * 5  # all but the last dummy
    assert links(graph) == [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4), (3, 5), (4, 5)]
    assert len(graph.control_source) == 0


def test_the_footers_critical_path_is_the_lower_bound():
    # The footer states 12, which is the makespan with enough devices.
    assert lower_bound(parse_stg(STG), Cluster.uniform(4, transfer="free"), Objective.MAKESPAN) == 12


def test_a_graph_from_a_file_comes_back_as_it_was():
    graph = parse_stg(STG)
    assert parse_stg(format_stg(graph)).content_hash == graph.content_hash


@hypothesis.given(graphs())
def test_other_graphs_gain_dummies_and_keep_their_times(graph):
    hypothesis.assume(graph.op_names[0] != "0")  # that may have its dummies already
    if graph.runtime.ndim == 2:
        with pytest.raises(FormatError, match="one runtime per op"):
            format_stg(graph, lossy=True)
        return
    again = parse_stg(format_stg(graph, lossy=True), time_unit=graph.time_unit)
    n = graph.num_ops
    assert again.num_ops == n + 2
    order = graph.topological_order
    assert again.runtime.tolist() == [0, *graph.runtime[order].tolist(), 0]
    place = {int(o): i for i, o in enumerate(order, 1)}
    pairs = {(place[u], place[v]) for u, v in links(graph) + controls(graph)}
    inner = {(u, v) for u, v in links(again) if u > 0 and v < n + 1}
    assert inner == pairs


@pytest.mark.parametrize("runtime", [1e300, 2.0**60, 5e-324, 0.1])
def test_any_runtime_comes_back(runtime):
    builder = GraphBuilder()
    builder.add_op("a", runtime=runtime)
    assert parse_stg(format_stg(builder.build())).runtime.tolist() == [0, runtime, 0]


def test_makespan_on_one_device_is_the_work():
    graph = generate("layered", 40, 0)
    again = parse_stg(format_stg(graph), time_unit="us")
    plan = Plan.from_events(again, Cluster.uniform(1), [0] * 42, again.topological_order)
    assert plan.makespan == graph.runtime.sum()


@pytest.mark.parametrize("edges", [[(0, 2), (1, 2)], [(0, 1), (0, 2)], []])
def test_numbered_ops_that_are_no_dummies_gain_some(edges):
    builder = GraphBuilder("g")
    for o in range(3):
        builder.add_op(str(o), control_inputs=[u for u, v in edges if v == o])
    assert parse_stg(format_stg(builder.build())).num_ops == 5


def test_constraints_are_refused_unless_lossy():
    builder = GraphBuilder("g")
    builder.add_op("a", allowed_devices=[1])
    with pytest.raises(FormatError, match="op 'a': allowed_devices"):
        format_stg(builder.build())
    assert format_stg(builder.build(), lossy=True).startswith("1\n0 0 0\n1 0 1 0\n2 0 1 1\n# 1 'a'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no line has a task"),
        ("# only comments\n", "no line has a task"),
        ("x\n", "line 1: expected the number of tasks alone"),
        ("1 2\n", "line 1: expected the number of tasks alone"),
        ("-1\n", "line 1: expected the number of tasks alone"),
        ("9999999999\n", "line 1: expected the number of tasks alone"),
        ("1\n0 0 0\n1 5 1 0\n", "line 1: 1 tasks need 3 rows .* the file has 2"),
        ("0\n0 0 0\n\n# c\n1 x 1 0\n", "line 5: time 'x'"),
        ("0\n0 0 0\n1 -1 1 0\n", "line 3: time '-1'"),
        ("0\n0 0 0\n1 nan 1 0\n", "line 3: time 'nan'"),
        ("0\n0 0 0\n1 1e999 1 0\n", "line 3: time '1e999'"),
        ("0\n0 0 0\n1 0 2 0\n", "line 3: expected 2 whole numbers"),
        ("0\n0 0 0\n1 0 1 0 9\n", "line 3: two numbers a predecessor"),
        ("0\n0 0 0\n1 0 1 x\n", "line 3: expected 1 whole numbers"),
        ("0\n0 0 0\n1 0\n", "line 3: expected 'id time count"),
        ("0\n0 0 0\n0 0 0\n", "line 3: task 0 has a row already"),
        ("0\n0 0 0\n1 0 1 7\n", "line 3: predecessor 7 has no row"),
        ("0\n0 0 1 1\n1 0 1 0\n", "cycle"),
        ("0\n0 0 0\n٣ 0 1 0\n", "line 3: expected"),
    ],
)
def test_bad_text_is_refused(text, message):
    with pytest.raises((FormatError, GraphError), match=message) as error:
        parse_stg(text)
    assert "\n" not in str(error.value)
