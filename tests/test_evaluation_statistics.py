"""The figures of an evaluation: intervals against SciPy, tables against values computed by hand."""

import csv
import json
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from regal_jax.errors import FormatError
from regal_jax.experiments import bootstrap, geometric_gap, improvement, report
from regal_jax.experiments.contrasts import contrasts
from regal_jax.experiments.paper import DATASETS, PAPER
from regal_jax.experiments.rounds import best_validation
from regal_jax.experiments.tables import markdown_table
from regal_jax.policies import placement_entropy

MANY = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=30)


@pytest.mark.parametrize("size", [8, 60, 500])
@pytest.mark.parametrize("shape", ["normal", "exponential"])
def test_intervals_are_those_of_scipy(size, shape):
    values = getattr(np.random.default_rng(size), shape)(size=size)
    ours = bootstrap(values)
    assert ours.mean == values.mean()
    theirs = scipy.stats.bootstrap((values,), np.mean, n_resamples=10_000, method="BCa", rng=7)
    # The two draw different resamples, so the ends differ by the sampling error of a quantile.
    np.testing.assert_allclose(ours[1:], theirs.confidence_interval, atol=0.25 * theirs.standard_error)
    assert bootstrap(values) == ours
    assert bootstrap(values, seed=1) != ours


def test_intervals_of_nothing_of_one_and_of_equals():
    assert all(math.isnan(x) for x in bootstrap(np.array([])))
    assert all(math.isnan(x) for x in bootstrap(np.array([np.nan])))
    assert bootstrap(np.array([0.25])) == (0.25, 0.25, 0.25)
    assert bootstrap(np.full(9, -1.5)) == (-1.5, -1.5, -1.5)
    assert bootstrap(np.array([np.nan, 3.0, np.nan])) == (3.0, 3.0, 3.0)


@given(MANY)
def test_intervals_lie_among_the_values(values):
    found = bootstrap(np.array(values), resamples=200)
    assert min(values) - 1e-9 <= found.low <= found.high <= max(values) + 1e-9
    mirrored = bootstrap(-np.array(values), resamples=200)
    np.testing.assert_allclose([mirrored.mean, -mirrored.high], [-found.mean, found.low], atol=1e-6)


def test_geometric_gap():
    ratios = np.array([1.0, 2.0, 4.0, np.nan])
    assert geometric_gap(ratios).mean == pytest.approx(scipy.stats.gmean(ratios[:3]) - 1)
    assert geometric_gap(np.ones(4)) == (0, 0, 0)
    low, high = bootstrap(np.log(ratios))[1:]
    np.testing.assert_allclose(geometric_gap(ratios)[1:], np.exp([low, high]) - 1)


@pytest.mark.parametrize(
    ("value", "overflow", "reference", "reference_overflow", "expected"),
    [
        (90, 0, 100, 0, 0.1),
        (130, 0, 100, 0, -0.3),
        (0, 0, 0, 0, 0),
        (5, 0, 0, 0, -1),
        (90, 1, 100, 0, -1),  # Faster than the reference, but it exceeds the memory.
        (900, 0, 100, 7, 1),  # Slower, but it fits and the reference does not.
        (900, 3, 100, 4, np.nan),  # Neither fits: overflow has a column of its own.
        (900, 400, 100, 4, np.nan),
        (np.nan, np.nan, 100, 0, np.nan),
        (90, 0, np.nan, np.nan, np.nan),
    ],
)
def test_improvement(value, overflow, reference, reference_overflow, expected):
    arrays = (np.array([float(x)]) for x in (value, overflow, reference, reference_overflow))
    np.testing.assert_allclose(improvement(*arrays), [expected])


def test_the_entropy_of_actions():
    assert placement_entropy(np.zeros((5, 2), np.uint8)) == 0
    assert placement_entropy(np.zeros((0, 2), np.uint8)) == 0
    assert placement_entropy(np.arange(16).reshape(8, 2)) == pytest.approx(np.log(16))
    actions = np.random.default_rng(0).integers(4, size=(30, 2)) ** 2
    counts = np.bincount(actions.ravel())
    assert placement_entropy(actions) == pytest.approx(scipy.stats.entropy(counts[counts > 0]))


def test_the_papers_figures():
    """The improvements that the ICLR text states or implies."""
    assert PAPER["regal"]["TF runtime"].improvement == pytest.approx(0.076, abs=5e-4)
    assert PAPER["regal"]["synthetic runtime"].improvement == pytest.approx(0.049, abs=5e-4)
    assert PAPER["gp-dfs"]["synthetic runtime"].improvement == pytest.approx(-0.554, abs=5e-4)
    assert PAPER["idrs"]["TF peak memory"].improvement == pytest.approx(-0.041, abs=5e-4)
    assert all(PAPER["brkga"][name].improvement == 0 for names in DATASETS.values() for name in names)


# A report of results that were made by hand ------------------------------------------------------------

GRAPHS = ("a", "b", "c", "d")


def job(name, role, seed, title=None, evaluations=100, guided=False):
    return {
        "key": f"{name}/{role}/{seed}", "name": name, "title": title or name.upper(), "role": role,
        "seed": seed, "evaluations": evaluations, "guided": guided,
    }  # fmt: skip


def document(jobs, **settings):
    config = {
        "objective": "makespan", "memory": "inf", "devices": 2, "transfer": "blocking", "evaluations": 100,
        "limits": [10, 100, 200], "rounds": {}, **settings,
    }  # fmt: skip
    return {
        "format": "regal_jax.evaluation", "version": 1, "config": config, "jobs": jobs,
        "graphs": [{"hash": h, "name": f"graph-{h}", "ops": 5} for h in GRAPHS],
        "left_out": {"gas": "needs a policy"},
    }  # fmt: skip


def write(folder, jobs, results, **settings):
    folder.mkdir(exist_ok=True)
    (folder / "evaluation.json").write_text(json.dumps(document(jobs, **settings)))
    lines = []
    for (key, graph), fields in results.items():
        if not isinstance(fields, dict):
            fields = {"value": fields}
        if "error" not in fields:
            fields = {"overflow": 0.0, "evaluations": 100, "seconds": 0.5, **fields}
        lines.append(json.dumps({"key": key, "graph": graph, **fields}) + "\n")
    (folder / "results.jsonl").write_text("".join(lines))


def column(key, values):
    return {(key, graph): value for graph, value in zip(GRAPHS, values, strict=True)}


@pytest.fixture
def made(tmp_path):
    history = {"evaluations": [20, 90, 150], "best": [None, 60.0, 40.0]}
    jobs = [
        job("brkga", "table", 0, "BRKGA 100"),
        job("brkga", "table", 1, "BRKGA 100"),
        job("regal-faithful", "table", 0, guided=True),
        job("cp-sat", "table", 0, "CP-SAT", evaluations=0),
        job("brkga", "other-seed", 7, "BRKGA 100"),
        job("brkga", "curve", 0, "BRKGA", 200),
    ]
    results = {
        **column("brkga/table/0", [90.0, 100.0, 200.0, {"value": 9.0, "overflow": 5.0}]),
        **column("brkga/table/1", [110.0, 100.0, 200.0, {"value": 8.0, "overflow": 3.0}]),
        **column("regal-faithful/table/0", [80.0, 100.0, {"value": 1.0, "overflow": 2.0}, 50.0]),
        **column("cp-sat/table/0", [50.0, 80.0, 100.0, {"error": "too large"}]),
        **column("brkga/other-seed/7", [100.0, 100.0, 220.0, {"value": 9.0, "overflow": 4.0}]),
        **column(
            "brkga/curve/0", [{"value": 40.0, "history": history, "evaluations": 195, "seconds": 2.0}] * 4
        ),
    }
    for fields, seconds, entropy in zip(range(4), (1, 2, 4, 8), (0.5, 1.0, 1.5, 2.0), strict=True):
        key = ("regal-faithful/table/0", GRAPHS[fields])
        value = results[key] if isinstance(results[key], dict) else {"value": results[key]}
        results[key] = {**value, "seconds": seconds, "action_entropy": entropy}
    write(tmp_path / "out", jobs, results)
    return tmp_path / "out"


def test_a_seed_with_which_neither_fits_counts_as_no_improvement(tmp_path):
    jobs = [job(name, "table", seed) for name in ("brkga", "auto") for seed in (0, 1)]
    over = {"value": 9.0, "overflow": 5.0}
    results = {
        **column("brkga/table/0", [over, over, 100.0, over]),
        **column("brkga/table/1", [over, over, over, over]),
        **column("auto/table/0", [over, 50.0, over, over]),
        **column("auto/table/1", [50.0, 50.0, 50.0, over]),
    }
    write(tmp_path / "out", jobs, results)
    (_, auto) = report(tmp_path / "out").comparison.rows
    # On the third graph -1, 0, 0.5 and 1 of the four pairs of seeds.
    np.testing.assert_array_equal(auto.saved, [0.5, 1, (-1 + 0 + 0.5 + 1) / 4, np.nan])


def rows_of(folder):
    with (folder / "table.csv").open() as file:
        return {row["method"]: row for row in csv.DictReader(file)}


def test_the_table_is_what_one_computes_by_hand(made):
    found = report(made)
    rows = rows_of(made)
    assert list(rows) == ["BRKGA 100", "REGAL-FAITHFUL", "CP-SAT", "BRKGA 100, other seed"]
    # References: 100, 100, 200, and an overflow of 4; the best known: 40, where the curve ends.
    np.testing.assert_array_equal(found.comparison.reference, [100, 100, 200, np.nan])
    np.testing.assert_array_equal(found.comparison.best, [40, 40, 40, 40])
    assert found.comparison.best_by == ["BRKGA"] * 4
    regal = rows["REGAL-FAITHFUL"]
    assert float(regal["improvement"]) == pytest.approx((0.2 + 0 - 1 + 1) / 4)
    # A plan that does not fit counts as twice the best makespan.
    assert float(regal["gap"]) == pytest.approx((80 / 40 * 100 / 40 * 2 * 50 / 40) ** 0.25 - 1)
    assert float(regal["gap_fits"]) == pytest.approx((80 / 40 * 100 / 40 * 50 / 40) ** (1 / 3) - 1)
    assert float(regal["matched"]) == 0.75
    # Of the single searches, 90 and 110 are beaten by 80; all else as before.
    assert float(regal["matched_pairs"]) == 0.75
    assert float(regal["feasible"]) == 0.75
    assert float(regal["seconds_per_graph"]) == 3
    # 1, 2, 4 and 8 seconds instead of 0.5 each.
    assert float(regal["overhead"]) == pytest.approx((2 * 4 * 8 * 16) ** 0.25 - 1)
    assert 1 <= float(regal["overhead_low"]) < float(regal["overhead"]) < float(regal["overhead_high"]) <= 15
    assert (regal["best_graph"], float(regal["best_improvement"])) == ("graph-d", 1)
    assert (regal["worst_graph"], float(regal["worst_improvement"])) == ("graph-c", -1)
    exact = rows["CP-SAT"]
    assert (exact["graphs"], exact["refused"]) == ("3", "1")
    assert "\n- CP-SAT, 1 graph: " in (made / "table.md").read_text()
    assert float(exact["improvement"]) == pytest.approx((0.5 + 0.2 + 0.5) / 3)
    other = rows["BRKGA 100, other seed"]
    # On the last graph neither fits: its overflow has a column of its own.
    assert float(other["improvement"]) == pytest.approx(-0.1 / 3)
    assert float(other["matched"]) == pytest.approx(2 / 3)
    assert [float(row["overflow"]) for row in (regal, other)] == [2, 4]
    assert exact["overflow"] == ""
    plain = rows["BRKGA 100"]
    # Against the mean of its own seeds: +-10 %; the mean overflow is that of both.
    assert float(plain["improvement"]) == pytest.approx(0)
    assert float(plain["matched"]) == pytest.approx((0.5 + 1 + 1) / 3)
    assert float(plain["overflow"]) == 4
    assert (plain["matched_pairs"], float(plain["overhead"])) == ("", 0)
    assert found.comparison.left_out == {"gas": "needs a policy"}


def test_quality_over_time_has_a_point_for_each_budget(tmp_path):
    jobs = [
        job("brkga", "table", 0, "BRKGA 100"),
        job("auto", "table", 0, "Auto"),
        job("cp-sat", "table", 0, "CP-SAT", evaluations=0),
        job("brkga", "other-seed", 7, "BRKGA 100"),
        job("brkga", "budget-50", 0, "BRKGA", evaluations=50),
        job("brkga", "budget-400", 0, "BRKGA", evaluations=400),
    ]
    for each in jobs[-2:]:
        each["role"] = "budget"
    slow = [{"value": 80.0, "seconds": seconds} for seconds in (1.0, 2.0, 3.0, 100.0)]
    results = {
        **column("brkga/table/0", [100.0] * 4),
        **column("auto/table/0", [90.0] * 4),
        **column("cp-sat/table/0", [{"error": "too large"}] * 4),
        **column("brkga/other-seed/7", [100.0] * 4),
        **column("brkga/budget-50/0", [{"value": v, "seconds": 0.1} for v in (160.0, 160.0, 40.0, 160.0)]),
        **column("brkga/budget-400/0", slow),
    }
    write(tmp_path / "out", jobs, results, budgets=[50, 400])
    found = report(tmp_path / "out")
    assert list(rows_of(tmp_path / "out")) == ["BRKGA 100", "Auto", "BRKGA 100, other seed"]
    times = found.comparison.times
    # The best known values are 80, 80, 40 and 80.
    assert list(times) == ["BRKGA", "Auto"]
    assert list(times["BRKGA"]) == [50, 100, 400]
    assert [seconds for seconds, _ in times["BRKGA"].values()] == [0.1, 0.5, 2.5]
    gaps = [gap.mean for _, gap in times["BRKGA"].values()]
    np.testing.assert_allclose(gaps, [2**0.75 - 1, (1.25**3 * 2.5) ** 0.25 - 1, 2**0.25 - 1])
    assert [gap.mean for _, gap in times["Auto"].values()] == [pytest.approx((1.125**3 * 2.25) ** 0.25 - 1)]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())["times"]
    assert [point["evaluations"] for point in summary["BRKGA"]] == [50, 100, 400]
    assert "quality.png" in found.files


def test_a_method_whose_plans_never_fit_has_no_gap(tmp_path):
    none = [{"value": 9.0, "overflow": 5.0}] * 4
    results = {**column("brkga/table/0", none), **column("auto/table/0", [8.0, 8.0, 8.0, none[0]])}
    write(tmp_path / "out", [job("brkga", "table", 0), job("auto", "table", 0)], results, capacity=1.2)
    table = report(tmp_path / "out").table
    rows = rows_of(tmp_path / "out")
    assert (rows["BRKGA"]["gap"], rows["BRKGA"]["gap_fits"], float(rows["AUTO"]["gap_fits"])) == ("", "", 0)
    assert "| fit the memory | gap where it fits | overflow where none fits |" in table
    # The papers have no such problem.
    assert "paper" not in table
    write(tmp_path / "out", [job("brkga", "table", 0)], column("brkga/table/0", [8.0] * 4), devices=4)
    assert "paper" not in report(tmp_path / "out").table


def test_a_reference_that_fits_with_some_seeds_does_not_improve_on_itself(tmp_path):
    over = {"value": 1.0, "overflow": 5.0}
    results = {
        **column("brkga/table/0", [90.0, 100.0, over, over]),
        **column("brkga/table/1", [110.0, over, over, over]),
        **column("brkga/table/2", [100.0, 200.0, 300.0, over]),
        **column("auto/table/0", [50.0, 75.0, over, 10.0]),
    }
    jobs = [*(job("brkga", "table", seed) for seed in range(3)), job("auto", "table", 0)]
    write(tmp_path / "out", jobs, results, capacity=1.2)
    found = report(tmp_path / "out").comparison
    np.testing.assert_array_equal(found.reference, [100, 150, 300, np.nan])
    plain, auto = found.rows
    np.testing.assert_allclose(plain.saved, [0, 0, 0, np.nan], atol=1e-12)
    # Two thirds of the searches fit on the second graph, a third on the third, where `auto` does not.
    np.testing.assert_allclose(auto.saved, [0.5, 0.5 * 2 / 3 + 1 / 3, -1 / 3, 1])


def test_the_curve_is_read_from_the_history(made):
    curves = report(made).comparison.curves
    assert list(curves) == ["BRKGA"]
    # At 10 there was no population yet; at 100 it is 60, at 200 it is 40 (references 100, 100, 200, none).
    assert list(curves["BRKGA"]) == [100, 200]
    assert curves["BRKGA"][100].mean == pytest.approx((0.4 + 0.4 + 0.7 + 1) / 4)
    assert curves["BRKGA"][200].mean == pytest.approx((0.6 + 0.6 + 0.8 + 1) / 4)


def test_all_files_are_there_and_agree(made):
    found = report(made)
    assert set(found.files) == {path.name for path in made.iterdir()} - {"evaluation.json", "results.jsonl"}
    summary = json.loads((made / "summary.json").read_text())
    regal = next(row for row in summary["rows"] if row["name"] == "regal-faithful")
    assert regal["histogram"] == {"better": 0.5, "worse": 0.25, "ties": 0.25}
    assert regal["action_entropy"]["mean"] == pytest.approx(1.25)
    assert summary["curves"]["BRKGA"][0]["evaluations"] == 100
    assert summary["left_out"] == {"gas": "needs a policy"}
    text = (made / "table.md").read_text()
    assert text == found.table
    assert "the mean of its 2 seeds" in text
    assert "| REGAL-FAITHFUL | +5.00 %" in text
    assert "+4.9 % | 18.6 %" in text  # The paper's figures for its synthetic graphs.
    assert "- gas: needs a policy" in text
    with (made / "graphs.csv").open() as file:
        graphs = list(csv.DictReader(file))
    assert [g["hash"] for g in graphs] == list(GRAPHS)
    assert graphs[3]["reference"] == ""
    assert float(graphs[0]["REGAL-FAITHFUL: improvement"]) == pytest.approx(0.2)
    before = {path.name: path.read_bytes() for path in made.iterdir() if path.suffix != ".png"}
    report(made)
    assert before == {path.name: path.read_bytes() for path in made.iterdir() if path.suffix != ".png"}


def test_contrasts_are_what_one_computes_by_hand(made):
    found = report(made)
    with (made / "contrasts.csv").open() as file:
        pairs = {(row["method"], row["against"]): row for row in csv.DictReader(file)}
    titles = [row.title for row in found.comparison.rows]
    assert set(pairs) == {(a, b) for a in titles for b in titles if a != b}
    # Both fit on the first two graphs: 80 over 100, and 100 over 100, the means of two seeds.
    regal = pairs["REGAL-FAITHFUL", "BRKGA 100"]
    assert float(regal["change"]) == pytest.approx(math.sqrt(0.8 * 1.0) - 1)
    assert [regal[name] for name in ("graphs", "lower", "higher")] == ["2", "1", "0"]
    assert -0.2 <= float(regal["change_low"]) < float(regal["change"]) < float(regal["change_high"]) <= 0
    # The other way round everything is inverted.
    other = pairs["BRKGA 100", "REGAL-FAITHFUL"]
    assert [other[name] for name in ("graphs", "lower", "higher")] == ["2", "0", "1"]
    for end, opposite in (("", ""), ("_low", "_high"), ("_high", "_low")):
        product = (1 + float(regal[f"change{end}"])) * (1 + float(other[f"change{opposite}"]))
        assert product == pytest.approx(1)
    # The interval of the first is that of `geometric_gap`.
    gap = geometric_gap(np.array([0.8, 1.0]))
    assert float(regal["change_low"]) == pytest.approx(gap.low)


def test_contrasts_have_processor_seconds_over_those_of_the_other(tmp_path):
    jobs = [job("brkga", "table", 0), job("x", "table", 0), job("x", "table", 1), job("y", "table", 0)]

    def took(*seconds):
        return [{"value": 1.0, "processor_seconds": each} for each in seconds]

    results = {
        **column("brkga/table/0", [*took(1, 2, 4), {"error": "too large"}]),
        # The mean of two seeds, and a graph that the other does not have.
        **column("x/table/0", took(2, 1, 8, 100)),
        **column("x/table/1", took(4, 3, 0, 100)),
        **column("y/table/0", [1.0, 1.0, 1.0, 1.0]),
    }
    write(tmp_path / "out", jobs, results)
    found = {
        (line["method"], line["against"]): line for line in contrasts(report(tmp_path / "out").comparison)
    }
    assert found["X", "BRKGA"]["seconds"] == pytest.approx((3 + 2 + 4) / 7)
    assert found["BRKGA", "X"]["seconds"] == pytest.approx(7 / 9)
    assert found["Y", "X"]["seconds"] is None
    with (tmp_path / "out" / "contrasts.csv").open() as file:
        rows = {(row["method"], row["against"]): row["seconds"] for row in csv.DictReader(file)}
    assert rows["Y", "X"] == ""
    assert float(rows["X", "BRKGA"]) == pytest.approx(9 / 7)


def test_names_cannot_break_a_table():
    head, rule, row = markdown_table(["method", "gap"], [["a|b", "1 %"]]).splitlines()
    assert (head, rule, row) == ("| method | gap |", "| --- | ---: |", "| a\\|b | 1 % |")


def test_contrasts_of_one_method_are_a_head_alone(made, tmp_path):
    report(made)
    write(tmp_path / "out", [job("brkga", "table", 0)], column("brkga/table/0", [1.0, 2.0, 3.0, 4.0]))
    report(tmp_path / "out")
    head, *rows = (tmp_path / "out/contrasts.csv").read_text().splitlines()
    assert not rows
    assert head == (made / "contrasts.csv").read_text().splitlines()[0]


def test_contrasts_of_zeros_and_of_methods_that_never_meet(tmp_path):
    misfit = {"value": 1.0, "overflow": 2.0}
    jobs = [job("brkga", "table", 0), job("x", "table", 0), job("y", "table", 0)]
    results = {
        **column("brkga/table/0", [0.0, 5.0, 4.0, misfit]),
        **column("x/table/0", [0.0, 0.0, 4.003, 3.0]),
        **column("y/table/0", [misfit, misfit, misfit, 3.0]),
    }
    write(tmp_path / "out", jobs, results)
    found = {
        (line["method"], line["against"]): line for line in contrasts(report(tmp_path / "out").comparison)
    }
    # Equal zeros are a ratio of 1; a zero beside another value has none. 0.075 % is no difference.
    line = found["X", "BRKGA"]
    assert line["graphs"] == 2
    assert line["change"] == pytest.approx(math.sqrt(4.003 / 4) - 1)
    assert (line["lower"], line["higher"]) == (0, 0)
    assert ("Y", "BRKGA") not in found
    assert found["Y", "X"]["change"] == 0


def test_a_difference_below_the_tolerance_is_a_tie(tmp_path):
    jobs = [job("brkga", "table", 0), job("x", "table", 0), job("y", "table", 0)]
    results = {
        **column("brkga/table/0", [100.0] * 4),
        **column("x/table/0", [100 * (1 + 5e-10)] * 4),
        **column("y/table/0", [100 * (1 + 2e-9)] * 4),
    }
    write(tmp_path / "out", jobs, results)
    rows = {row.name: row for row in report(tmp_path / "out").comparison.rows}
    assert (rows["x"].matched, rows["y"].matched) == (1, 0)
    assert rows["x"].matched_pairs is None


def test_graphs_that_shared_their_time_are_one_measurement_of_the_overhead(tmp_path):
    jobs = [job("brkga", "table", 0), job("x", "table", 0), job("y", "table", 0)]
    times = {"brkga": (1.0, 1.0, 1.0, 2.0), "x": (2.0, 2.0, 2.0, 1.0)}
    results = {
        key: cell
        for name, seconds in times.items()
        for key, cell in column(f"{name}/table/0", [{"value": 9.0, "seconds": s} for s in seconds]).items()
    }
    # A clock may report 0 s for a very small graph.
    results |= column("y/table/0", [{"value": 9.0, "seconds": 0.0}] * 4)
    write(tmp_path / "out", jobs, results)
    report(tmp_path / "out")
    rows = rows_of(tmp_path / "out")
    # Twice the time for the chunk of three and half the time for the other give no overhead in the mean.
    assert float(rows["X"]["overhead"]) == pytest.approx(0, abs=1e-12)
    assert -0.5 <= float(rows["X"]["overhead_low"]) < 0 < float(rows["X"]["overhead_high"]) <= 1
    assert rows["Y"]["overhead"] == rows["Y"]["overhead_low"] == ""
    assert [float(rows["BRKGA"][f"overhead{end}"]) for end in ("", "_low", "_high")] == [0, 0, 0]


def test_an_unfinished_run_is_reported_as_far_as_it_got(tmp_path):
    jobs = [job("brkga", "table", 0), job("x", "table", 0), job("cp-sat", "table", 0)]
    results = {
        **column("brkga/table/0", [10.0] * 4),
        ("x/table/0", "b"): 9.0,
        **column("cp-sat/table/0", [{"error": "sizes add up to too much"}] * 4),
    }
    write(tmp_path / "out", jobs, results)
    with (tmp_path / "out" / "results.jsonl").open("a") as file:
        file.write('{"key": "x/table/0", "gra')
    comparison = report(tmp_path / "out").comparison
    assert [(row.name, row.graphs) for row in comparison.rows] == [("brkga", 4), ("x", 1)]
    assert comparison.rows[1].improvement.mean == pytest.approx(0.1)
    assert comparison.left_out["cp-sat"] == "sizes add up to too much"


def test_damage_within_an_evaluation_is_named(made):
    whole = json.loads((made / "evaluation.json").read_text())
    for name in ("config", "graphs", "jobs", "left_out"):
        for damage in (None, "x", 3):
            (made / "evaluation.json").write_text(json.dumps({**whole, name: damage}))
            with pytest.raises(FormatError, match=rf"json: damaged evaluation \({name} is no"):
                report(made)
    (made / "evaluation.json").write_text(json.dumps(whole))
    first, *rest = (made / "results.jsonl").read_text().splitlines()
    for name in ("schedules", "placements", "processor_seconds"):
        for damage in ("x", [1]):
            lines = [json.dumps({**json.loads(first), name: damage}), *rest]
            (made / "results.jsonl").write_text("\n".join(lines) + "\n")
            with pytest.raises(FormatError, match=rf"results\.jsonl: a {name} is no number; delete its line"):
                report(made)


@pytest.mark.parametrize(
    ("name", "damage"),
    [("objective", "x"), ("devices", None), ("evaluations", "many"), ("capacity", "x"), ("rounds", [1])],
)
def test_settings_of_a_damaged_evaluation_are_named(made, name, damage):
    whole = json.loads((made / "evaluation.json").read_text())
    whole["config"][name] = damage
    (made / "evaluation.json").write_text(json.dumps(whole))
    with pytest.raises(FormatError, match=r"out: damaged evaluation .* run 'regal-jax evaluate' again"):
        report(made)


def test_what_is_no_evaluation(tmp_path, made):
    with pytest.raises(FormatError, match="no evaluation there"):
        report(tmp_path)
    write(tmp_path / "empty", [job("brkga", "table", 0)], {})
    with pytest.raises(FormatError, match="no result in it yet"):
        report(tmp_path / "empty")
    refused = {("brkga/table/0", "a"): {"error": "graph 'a' has three devices"}}
    write(tmp_path / "refused", [job("brkga", "table", 0)], refused)
    with pytest.raises(FormatError, match="no method has a result; brkga: graph 'a' has three devices"):
        report(tmp_path / "refused")
    (made / "results.jsonl").write_text('{"key": "x", "graph": "a"}\n')
    with pytest.raises(FormatError, match="line 1 is not a result"):
        report(made)
    (made / "results.jsonl").write_text("")
    (made / "evaluation.json").write_text('{"format": "regal_jax.evaluation", "version": 2}')
    with pytest.raises(FormatError, match="version 2 is not known"):
        report(made)
    (made / "evaluation.json").write_text('{"format": "regal_jax.evaluation", "version": 1}')
    with pytest.raises(FormatError, match="damaged evaluation"):
        report(made)


def test_validation_over_rounds(tmp_path, made):
    run = tmp_path / "run"
    run.mkdir()
    lines = [("train", 9.0), ("validation", 0.01), ("validation", 0.04), ("validation", 0.02)]
    text = "".join(json.dumps({"step": 1, "kind": kind, "improvement": x}) + "\n" for kind, x in lines)
    (run / "metrics.jsonl").write_text(text + '{"step": 9, "ki')
    assert best_validation(str(run)) == 0.04
    with pytest.raises(FormatError, match="cannot be read"):
        best_validation(str(tmp_path / "none.safetensors"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="holds no validation"):
        best_validation(str(tmp_path / "empty"))
    settings = json.loads((made / "evaluation.json").read_text())
    settings["config"]["rounds"] = {"0": [str(run)], "4": [str(run), str(run)]}
    (made / "evaluation.json").write_text(json.dumps(settings))
    assert "rounds.png" in report(made).files
    settings["config"]["rounds"] = {"0": ["nowhere"]}
    (made / "evaluation.json").write_text(json.dumps(settings))
    found = report(made)
    assert "rounds.png" not in found.files
    assert "rounds.png is not drawn: nowhere" in found.problems[0]


def test_cells_of_a_table_stay_in_their_row():
    assert markdown_table(["a", "b"], [["line\nbreak", "x | y"]]).splitlines() == [
        "| a | b |", "| --- | ---: |", "| line break | x \\| y |"
    ]  # fmt: skip
