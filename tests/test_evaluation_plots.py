"""Figures of evaluations are drawn and show the given data."""

import numpy as np
import pytest

from regal_jax.errors import ConfigError
from regal_jax.viz import (
    plot_entropies,
    plot_improvements,
    plot_limits,
    plot_quality,
    plot_rounds,
    plot_seconds,
)

PNG = b"\x89PNG\r\n\x1a\n"


def heights(ax, colour):
    from matplotlib.colors import to_rgba

    return sum(p.get_height() for p in ax.patches if p.get_facecolor() == to_rgba(colour))


def test_improvements(tmp_path):
    saved = {"REGAL": np.array([0.1, 0.2, -0.3, 0.0, np.nan]), "$x_": np.array([0.0])}
    figure = plot_improvements(saved, "BRKGA 5K", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    left, right = figure.axes
    assert left.get_title("left") == "REGAL: better 50.0%, worse 25.0%, ties 25.0%"
    assert right.get_title("left") == "$x_: better 0.0%, worse 0.0%, ties 100.0%"
    assert left.get_xlabel() == "improvement over BRKGA 5K (%)"
    assert left.get_ylabel() == "graphs"
    assert (heights(left, "#59a14f"), heights(left, "#d62728")) == (2, 1)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_panel_for_each_method(count):
    figure = plot_improvements({f"m{i}": np.array([0.1]) for i in range(count)}, "BRKGA 5K")
    assert sum(ax.get_visible() for ax in figure.axes) == count


def test_entropies(tmp_path):
    figure = plot_entropies({"REGAL": np.array([1.0, 2.0, np.nan])}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    (ax,) = figure.axes
    assert ax.get_title("left") == "REGAL: mean 1.50 nats"
    assert ax.get_xlabel() == "entropy of placement actions (nats)"
    assert sum(p.get_height() for p in ax.patches) == 2


def test_limits(tmp_path):
    curves = {"BRKGA": {1000: (-0.1, -0.2, 0.0), 5000: (0.0, -0.1, 0.1)}, "REGAL": {5000: (0.05, 0.0, 0.1)}}
    figure = plot_limits(curves, "BRKGA 5K", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("evaluations", "mean improvement over BRKGA 5K (%)")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["1,000", "5,000"]
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [-10, 0])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [5])


def test_rounds(tmp_path):
    figure = plot_rounds({4: [0.02, 0.05], 0: [0.01]}, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    (ax,) = figure.axes
    assert ax.get_xlabel() == "rounds of message passing T"
    np.testing.assert_allclose(ax.lines[-1].get_xydata(), [[0, 1], [4, 5]])


def test_seconds(tmp_path):
    figure = plot_seconds(
        {"BRKGA": np.array([1.0, 3.0, 2.0]), "CP-SAT": np.array([60.0, np.nan])}, tmp_path / "a.png"
    )
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_yticklabels()] == ["BRKGA", "CP-SAT"]
    assert [p.get_width() for p in ax.patches] == [2, 60]


def test_quality_over_seconds(tmp_path):
    points = {"BRKGA": [(0.5, (0.2, 0.1, 0.3)), (5.0, (0.1, 0.0, 0.2))], "Auto": [(2.0, (0.0, 0.0, 0.0))]}
    figure = plot_quality(points, tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(PNG)
    (ax,) = figure.axes
    assert ax.get_xscale() == "log"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["BRKGA", "Auto"]
    drawn = [line.get_xydata().tolist() for line in ax.lines]
    assert drawn == [[[0.5, 20.0], [5.0, 10.0]], [[2.0, 0.0]]]
    assert -1 < ax.get_ylim()[0] < 0
    many = plot_quality({f"method {i}": [(1.0, (0.1, 0.1, 0.1))] for i in range(20)}).axes[0]
    looks = {(line.get_color(), line.get_marker()) for line in many.lines if line.get_marker() in "os^D"}
    assert len(looks) == 20


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plot_improvements({}, "x"),
        lambda: plot_improvements({"a": np.array([np.nan])}, "x"),
        lambda: plot_entropies({"a": np.array([])}),
        lambda: plot_limits({}, "x"),
        lambda: plot_limits({"a": {}}, "x"),
        lambda: plot_rounds({}),
        lambda: plot_rounds({1: []}),
        lambda: plot_seconds({}),
        lambda: plot_quality({}),
        lambda: plot_quality({"a": []}),
        lambda: plot_seconds({"a": np.array([np.nan])}),
    ],
)
def test_nothing_to_draw(draw):
    with pytest.raises(ConfigError, match=r"leave it out|give"):
        draw()
