"""Plots are drawn for any plan and show its content."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from test_plan import worked_plan
from work import lines_of

from regal_jax.errors import ConfigError, FormatError, PlanError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import Plan, decode_order
from regal_jax.viz import (
    check_picture,
    plot_entropies,
    plot_execution,
    plot_graph,
    plot_history,
    plot_improvements,
    plot_limits,
    plot_plan,
    plot_quality,
    plot_rounds,
    plot_seconds,
    plot_sizes,
    plot_targets,
    plot_temperatures,
    plot_training,
)

PNG = b"\x89PNG\r\n\x1a\n"


def large(ops: int, devices: int, model: str, kinds: int = 12) -> Plan:
    rng = np.random.default_rng(0)
    b = GraphBuilder("large", time_unit="us")
    for o in range(ops):
        reads = [(int(p), 0) for p in rng.integers(max(0, o - 30), o, size=2)] if o else []
        kind = f"kind{rng.integers(kinds)}" if kinds else ""
        b.add_op(
            f"op{o}", kind=kind, runtime=float(rng.random()), outputs=[int(rng.integers(1e6))], inputs=reads
        )
    graph, cluster = b.build(), Cluster((2e7,) * devices, model)
    placement = rng.integers(devices, size=ops)
    order = decode_order(graph, cluster, placement, rng.random(ops), rng.random((ops, devices)))
    return Plan.from_events(graph, cluster, placement, order)


def polygons(figure) -> dict[str, list[np.ndarray]]:
    """Corners of the boxes in the first panel: computes, then transfers."""
    from matplotlib.collections import PolyCollection

    found = [c for c in figure.axes[0].collections if type(c) is PolyCollection]
    return {
        name: [path.vertices[:4] for path in c.get_paths()]
        for name, c in zip(("compute", "transfer"), found, strict=False)
    }


def test_boxes_lie_where_the_events_are(tmp_path):
    plan, _ = worked_plan()
    figure = plan.plot(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(PNG)
    boxes = polygons(figure)
    compute = [(b[0, 0], b[2, 0], round(b[:, 1].mean())) for b in boxes["compute"]]
    assert compute == [(0, 2, 0), (0, 1, 1), (2, 5, 0), (10, 14, 0), (14, 19, 1), (22, 24, 0), (31, 32, 1)]
    transfer = [(b[0, 0], b[2, 0], round(b[:, 1].mean())) for b in boxes["transfer"]]
    assert transfer == [(5, 10, 0), (19, 22, 1), (24, 31, 0), (5, 10, 1), (19, 22, 0), (24, 31, 1)]
    assert figure.axes[-1].get_xlabel() == "time (s)"
    assert [ax.get_title(loc="left") for ax in figure.axes[1:]] == [
        "device 0: peak 130 B of 1000 B",
        "device 1: peak 115 B of 120 B",
    ]


def test_the_memory_panel_shows_the_profile():
    plan, _ = worked_plan()
    (profile, capacity), figure = plan.plot().axes[2].lines, plan.plot()
    time_, held = profile.get_data()
    level = {0.5: 50, 7: 90, 12: 90, 16: 110, 20: 70, 23: 50, 26: 110, 31.5: 115}
    for moment, expected in level.items():
        assert held[np.searchsorted(time_, moment, side="right") - 1] == expected
    assert max(held) == 115
    assert (time_[-1], held[-1]) == (32, 50)
    assert list(capacity.get_ydata()) == [120, 120]
    assert figure.axes[0].get_legend() is not None


@pytest.mark.parametrize("suffix", ["png", pytest.param("svg", marks=pytest.mark.slow), "pdf"])
def test_formats(tmp_path, suffix):
    worked_plan()[0].plot(tmp_path / f"plan.{suffix}")
    assert (tmp_path / f"plan.{suffix}").stat().st_size > 1000
    for name in ("plan.xyz", "plan"):
        with pytest.raises(ConfigError, match=r"cannot draw .*; use \.png, \.pdf or \.svg"):
            worked_plan()[0].plot(tmp_path / name)


def test_odd_plans_are_drawn(tmp_path):
    b = GraphBuilder("$\\frac{1$ " + "x" * 300)
    b.add_op("$name_{", kind="_SOURCE$")
    empty = Plan.from_events(b.build(), Cluster((0,)), np.array([0]), [0])
    plot_plan(empty, tmp_path / "a.png")
    b.add_op("z", kind="_hidden", runtime=5, outputs=[2**40])
    over = Plan.from_events(b.build(), Cluster((5,) * 12, "free"), np.array([0, 1]), [0, 1])
    figure = plot_plan(over, tmp_path / "b.png")
    assert len(figure.axes) == 1 + 8
    assert any("OVERFLOW by 1.00 TiB" in ax.get_title(loc="left") for ax in figure.axes[1:])
    labels = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert labels == ["_hidden", "_SOURCE$"]


@pytest.mark.parametrize("ops", [2, 70])
def test_odd_names_and_kinds_of_graphs_are_drawn(tmp_path, ops):
    b = GraphBuilder("$\\frac{1$")
    for o in range(ops):
        b.add_op(f"$name_{{{o}", kind=("$_{$", "_hidden")[o % 2], runtime=1.0, outputs=[8])
    figure = plot_graph(b.build(), tmp_path / "graph.png")
    labels = figure.axes[0].get_legend().get_texts() if ops == 2 else figure.axes[2].get_yticklabels()
    assert {text.get_text() for text in labels} == {"$_{$", "_hidden"}


ONES = np.ones(2)
INTERVAL = (0.1, 0.0, 0.2)
HISTORY = {"evaluations": [1, 2], "best": [3.0, 2.0]}
DRAWN = {
    plot_plan: lambda plan, graph: [plan],
    plot_graph: lambda plan, graph: [graph],
    plot_history: lambda plan, graph: [dataclasses.replace(plan, provenance={"history": HISTORY})],
    plot_execution: lambda plan, graph: [plan, *np.zeros((2, 2), int), ONES, ONES],
    plot_sizes: lambda plan, graph: [{"a": [{"ops": 2, "edges": 1, "depth": 2, "width": 1}]}],
    plot_improvements: lambda plan, graph: [{"a": ONES}, "b"],
    plot_entropies: lambda plan, graph: [{"a": ONES}],
    plot_limits: lambda plan, graph: [{"a": {100: INTERVAL}}, "b"],
    plot_rounds: lambda plan, graph: [{2: [0.1]}],
    plot_seconds: lambda plan, graph: [{"a": ONES}],
    plot_quality: lambda plan, graph: [{"a": [(1.0, INTERVAL)]}],
    plot_targets: lambda plan, graph: [{"a": {"proxy": ONES, "noisy": ONES}}],
    plot_temperatures: lambda plan, graph: [{"a": {"1": ONES}}],
    plot_training: lambda plan, graph: [{"a": [(ONES, ONES)]}, "speed-up"],
}


@pytest.mark.parametrize("plot", DRAWN)
def test_widths_that_cannot_be_are_refused(plot):
    arguments = DRAWN[plot](*worked_plan())
    assert plot(*arguments, width=6.0).get_figwidth() >= 5.0
    for width in (0, -1, float("nan"), float("inf"), "x", None, 10**400):
        with pytest.raises(ConfigError, match="width: must be a number of inches from 1 to 200, got "):
            plot(*arguments, width=width)


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (lambda plan, graph: plot_plan(graph), "plan: give a Plan, got ComputationGraph"),
        (lambda plan, graph: plot_history(graph), "plan: give a Plan, got ComputationGraph"),
        (lambda plan, graph: plot_graph(plan), "graph: give a ComputationGraph, got Plan"),
    ],
)
def test_a_graph_is_no_plan(plot, message):
    with pytest.raises(ConfigError, match=message):
        plot(*worked_plan())


@pytest.mark.parametrize(
    ("model", "kinds"), [("blocking", 12), pytest.param("delay", 0, marks=pytest.mark.slow)]
)
def test_thousands_of_ops_are_drawn_together(tmp_path, model, kinds):
    plan = large(3000, 3, model, kinds)
    figure = plan.plot(tmp_path / "plan.png")
    assert len(polygons(figure)["compute"]) == 3000
    # One collection of all computes, and one of all transfers: matplotlib takes its time for each object.
    events = figure.axes[0]
    assert len(events.collections) == 1 + (model == "blocking")
    assert not [*events.lines, *events.patches]
    panels = [(len(ax.lines), len(ax.collections), len(ax.patches)) for ax in figure.axes[1:]]
    assert panels == [(2, 1, 0)] * 3, "the profile and the capacity, and what is below the profile"
    few = large(1500, 3, model, kinds)
    # As many devices and kinds.
    assert lines_of(plan.plot) < 1.1 * lines_of(few.plot)
    assert len(figure.axes[0].get_legend().get_texts()) <= 9
    assert len(figure.axes[0].texts) == 0, "no names where there is no room"


def test_the_history_of_the_incumbent(tmp_path):
    history = {"evaluations": [100, 200, 300], "best": [None, 40e3, 32e3]}
    b = GraphBuilder("g", time_unit="us")
    b.add_op("a", runtime=3e4)
    plan = Plan.from_events(b.build(), Cluster((9,)), np.array([0]), [0], provenance={"history": history})
    figure = plot_history(plan, tmp_path / "history.png")
    assert (tmp_path / "history.png").read_bytes().startswith(PNG)
    curve, bound = figure.axes[0].lines
    assert curve.get_xdata().tolist() == [100, 200, 300]
    assert curve.get_ydata().tolist()[1:] == [40, 32]
    assert list(bound.get_ydata()) == [30, 30]
    assert figure.axes[0].get_ylabel() == "best makespan (ms)"


@pytest.mark.parametrize(
    "history",
    [None, 5, {}, {"evaluations": [1]}, {"evaluations": [1], "best": [1, 2]}, {"evaluations": [], "best": []},
     {"evaluations": [1], "best": [None]}, {"evaluations": [0, float("nan")], "best": [2, 1]},
     {"evaluations": [[1]], "best": [[1]]},
     {"evaluations": "ab", "best": "cd"}],
)  # fmt: skip
def test_plans_without_a_usable_history(history):
    plan = dataclasses.replace(worked_plan()[0], provenance={"history": history})
    with pytest.raises(PlanError, match="provenance"):
        plot_history(plan)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda plan: plot_sizes({"a": [RECORD]}, dict.fromkeys("xyz", np.array([1, 2]))),
            "degrees: has 3 of",
        ),
        (
            lambda plan: plot_targets({"a": {"proxy": TEN, "t": [*TEN[1:], np.nan]}}),
            "points: a: has a number",
        ),
        (
            lambda plan: plot_training({"a": [(TEN, TEN[1:])]}, "y"),
            "curves: a has steps and values of differ",
        ),
        (lambda plan: plot_execution(None, *np.zeros((2, 2), int), ONES, ONES), "plan: "),
        (
            lambda plan: plot_execution(plan, *np.full((2, 2), 7), ONES, ONES),
            "device: has one that the plan la",
        ),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, message):
    with pytest.raises(ConfigError, match=message):
        draw(worked_plan()[0])


def test_drawing_leaves_pyplot_alone():
    code = (
        "import sys; sys.path.insert(0, 'tests'); from test_plan import worked_plan; worked_plan()[0].plot();"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_notebook_shows_the_picture():
    from IPython.core.formatters import PNGFormatter

    assert PNGFormatter()(plot_plan(worked_plan()[0])).startswith(b"\x89PNG")


NAMES = ("_hidden", "$x^2_$ \\frac{", "n" * 300)
TEN = np.linspace(1, 2, 10)
INTERVAL = (0.1, 0.05, 0.2)
RECORD = {"ops": 3, "edges": 2, "depth": 2, "width": 2}


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot_targets({name: {"proxy": TEN, "$t_$": TEN} for name in NAMES}),
        lambda: plot_temperatures({"$x_$": dict.fromkeys(NAMES, TEN)}),
        lambda: plot_training({name: [(TEN, TEN)] for name in NAMES}, "$y_$"),
        lambda: plot_limits({name: {100: INTERVAL} for name in NAMES}, "$x_$"),
        lambda: plot_quality({name: [(1.0, INTERVAL)] for name in NAMES}),
        lambda: plot_sizes({name: [RECORD] for name in NAMES}, {"$x_$": np.array([1, 2])}),
    ],
)
def test_legends_have_every_name_as_it_is_or_without_its_middle(draw):
    figure = draw()
    assert figure._repr_png_().startswith(PNG)
    (legend,) = figure.legends or [figure.axes[0].get_legend()]
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == 3
    assert texts[0].startswith("_hidden")
    assert texts[1].startswith("$x^2_$ \\frac{")
    assert texts[2].startswith("nnn")
    assert max(map(len, texts)) <= 40


def test_titles_and_ticks_have_every_name_as_it_is_or_without_its_middle():
    for figure in (
        plot_seconds(dict.fromkeys(NAMES, TEN)),
        plot_improvements(dict.fromkeys(NAMES, TEN), "$x_$" * 100),
        plot_entropies(dict.fromkeys(NAMES, TEN)),
    ):
        assert figure._repr_png_().startswith(PNG)


def test_numbers_that_have_no_place_on_an_axis_are_refused():
    wrong = np.array([1.0, np.inf])
    for draw in (plot_seconds, plot_entropies, lambda values: plot_improvements(values, "x")):
        with pytest.raises(ConfigError, match="a: has a number that is not finite"):
            draw({"a": wrong})
    with pytest.raises(ConfigError, match="a: has a number that is not finite"):
        plot_temperatures({"a": {"1": wrong}})


def test_legends_of_graphs_and_plans_fit_beside_the_picture():
    b = GraphBuilder("n" * 1000)
    for i in range(12):
        b.add_op(f"o{i}", kind=f"a kind of op with a long name {i}", runtime=1)
    graph = b.build()
    figure = plot_graph(graph)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert len(labels) == 8
    assert labels[-1] == "other"
    assert max(map(len, labels)) <= 24
    assert len(figure.get_suptitle()) < 130
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())
    plan = Plan.from_events(graph, Cluster.uniform(1), np.zeros(12, np.int64), np.arange(12))
    figure = plan.plot()
    figure.canvas.draw()
    right = figure.axes[0].get_legend().get_window_extent().x1
    assert right <= figure.bbox.x1


@pytest.mark.parametrize("suffix", ["pgf", "raw", "rgba"])
def test_formats_that_are_no_files_of_pictures(suffix):
    with pytest.raises(ConfigError, match=f"no picture is of kind '.{suffix}'"):
        check_picture(f"x.{suffix}")


def test_a_picture_that_cannot_be_drawn_replaces_none(tmp_path, monkeypatch):
    path = tmp_path / "graph.PNG"
    b = GraphBuilder()
    b.add_op("a")
    plot_graph(b.build(), path)
    before = path.read_bytes()
    assert before.startswith(PNG)

    def half(self, file, **options):
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", half)
    with pytest.raises(FormatError, match=r"graph.PNG: cannot be written: No space left on device"):
        plot_graph(b.build(), path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["graph.PNG"]
