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
    plot_targets,
    plot_temperatures,
    plot_training,
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
    assert left.get_title("left") == "REGAL\nbetter 50.0%, worse 25.0%, ties 25.0%"
    assert right.get_title("left") == "$x_\nbetter 0.0%, worse 0.0%, ties 100.0%"
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
    assert ax.get_title("left") == "REGAL\nmean 1.50 nats"
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
    (ax,) = plot_limits({"BRKGA": {10: (1e-8, 0.0, 1e-8), 50: (0.0, 0.0, 0.0)}}, "BRKGA").axes
    assert ax.get_ylim() == (-0.01, 0.01)  # Percent: rounding is no difference.


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


def test_targets_are_drawn(tmp_path):
    points = {
        source: {"proxy": np.arange(4.0), "noisy": scale * np.arange(4.0), "latency": np.ones(4)}
        for source, scale in (("BRKGA", 2.0), ("Random", 2.0))
    }
    figure = plot_targets(points, tmp_path / "targets.png")
    titles = [ax.get_title() for ax in figure.axes]
    assert titles == ["noisy (r = 1.00)", "latency"]
    assert (tmp_path / "targets.png").stat().st_size > 1000
    offsets = [np.asarray(c.get_offsets()) for c in figure.axes[0].collections]
    np.testing.assert_array_equal(offsets[1], np.stack([np.arange(4), 2 * np.arange(4)], axis=1))
    for wrong in ({}, {"a": {"proxy": np.ones(2)}}, {"a": {"noisy": np.ones(2), "latency": np.ones(2)}}):
        with pytest.raises(ConfigError, match="give each source 'proxy'"):
            plot_targets(wrong)
    with pytest.raises(ConfigError, match="different lengths"):
        plot_targets({"a": {"proxy": np.ones(2), "noisy": np.ones(3)}})


def test_temperatures_and_trainings_are_drawn(tmp_path):
    figure = plot_temperatures({"a": {"1": np.ones(3), "0.1": np.arange(3.0)}}, tmp_path / "a.png")
    assert [ax.get_title() for ax in figure.axes] == ["a"]
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == ["1", "0.1"]
    runs = [(np.array([1, 2]), np.array([0.5, 1.0])), (np.array([1]), np.array([2.0]))]
    [ax] = plot_training({"variance": runs, "balance": runs[:1]}, "speed-up", tmp_path / "b.png").axes
    assert len(ax.lines) == 3
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [0.5, 1.0])
    assert all((tmp_path / name).stat().st_size > 1000 for name in ("a.png", "b.png"))
    for wrong in ({}, {"a": {}}, {"a": {"1": np.ones(0)}}):
        with pytest.raises(ConfigError, match="at least one network"):
            plot_temperatures(wrong)
    for wrong in ({}, {"a": []}, {"a": [(np.ones(0), np.ones(0))]}):
        with pytest.raises(ConfigError, match="at least one point"):
            plot_training(wrong, "speed-up")
