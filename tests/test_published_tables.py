"""Tables of docs/results whose results are in the repository are what these results say."""

import functools
import importlib
import json
import pathlib
import re

import pytest

from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.contrasts import contrasts
from regal_jax.experiments.ordering_table import ordering_fields
from regal_jax.experiments.records import Records, read_evaluation
from regal_jax.experiments.robust_table import (
    robust_differences,
    robust_differences_markdown,
    robust_fields,
    robust_markdown,
)
from regal_jax.experiments.suites import named_suite
from regal_jax.experiments.tables import row_fields, table_markdown

# The package has a function of this name.
compare_module = importlib.import_module("regal_jax.experiments.compare")
realistic_module = importlib.import_module("regal_jax.experiments.realistic_table")
ROOT = pathlib.Path(__file__).parents[1]
EVERY = sorted(path for path in (ROOT / "benchmarks" / "tables").iterdir() if path.is_dir())
ROBUST = [path for path in EVERY if path.name.startswith("robust-scheduling")]
ORDERS = ROOT / "benchmarks" / "tables" / "topological-order-wide"
ROUNDS = ROOT / "benchmarks" / "tables" / "figure-4b"
REALISTIC = ROOT / "benchmarks" / "tables" / "realistic"
SECONDS = ROOT / "benchmarks" / "tables" / "policy-seconds"
FOLDERS = [path for path in EVERY if path not in (*ROBUST, ORDERS, ROUNDS, REALISTIC, SECONDS)]
FULL = (
    "devices-4",
    "devices-8",
    "larger-graphs-makespan",
    "larger-graphs-peak-memory",
    "policy-peak-memory",
    "real-links-2",
    "real-links-4",
    "table-1-real-makespan",
    "table-1-real-peak-memory",
    "table-1-synthetic-makespan",
)
"""Tables of which the full form was run."""
RESULTS = "\n\n".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "results").glob("*.md"))
)
ABLATIONS = (ROOT / "docs" / "ablations" / "robust.md").read_text(encoding="utf-8")
CONTRASTS = re.findall(r"<!-- contrasts: (\S+) -->", RESULTS)
INTERVAL = re.compile(r" \[[^]]*\]")


def cells(lines):
    """Method -> column -> cell without its interval, of the first table in ``lines``."""
    table = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    head = [cell.strip() for cell in table[0]]
    rows = {}
    for row in table[2:]:
        values = [INTERVAL.sub("", cell.replace("**", "")).strip() for cell in row]
        rows[values[0]] = dict(zip(head, values, strict=True))
    return rows


def points(curve):
    """Budget -> improvement of Figure 3, as the document has them."""
    return {f"{limit:,}": f"{100 * point.mean:+z.1f} %" for limit, point in curve.items()}


def first_table(text):
    return re.search(r"^\|.*?(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)[0].splitlines()


@pytest.fixture
def quick(monkeypatch):
    """Intervals of two resamples, since only means are compared."""
    for name in ("bootstrap", "geometric_gap"):
        few = functools.partial(getattr(compare_module, name), resamples=2)
        monkeypatch.setattr(compare_module, name, few)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_table_is_what_its_results_say(folder, quick):
    document, records = read_evaluation(folder), Records(folder)
    hashes = [graph["hash"] for graph in document["graphs"]]
    for job in document["jobs"]:
        refused = records.refusals(job["key"], hashes)
        assert all(records.get(job["key"], graph) or graph in refused for graph in hashes), job["title"]
        assert not job["guided"] or len(job["identity"]["policy"]) == 16
    assert len(document["code"]) == 64
    comparison = compare_module.compare(document, records)
    found = cells(first_table(table_markdown(comparison, document["config"])))
    if comparison.curves:
        found = {title: {"method": title, **points(curve)} for title, curve in comparison.curves.items()}
    mark = f"<!-- table: {folder.name} -->"
    _, there, text = RESULTS.partition(mark)
    assert there, mark
    published = cells(first_table(text))
    assert set(published) == set(found)
    for method, row in published.items():
        assert row == {name: found[method][name] for name in row}


def test_there_are_contrasts():
    assert {"table-1-synthetic-makespan", "table-1-real-makespan"} <= {*CONTRASTS}
    assert len(set(CONTRASTS)) == len(CONTRASTS)


@pytest.mark.parametrize("name", CONTRASTS)
def test_contrasts_are_what_the_results_say(name, quick):
    folder = ROOT / "benchmarks" / "tables" / name
    comparison = compare_module.compare(read_evaluation(folder), Records(folder))
    found = {
        (line["method"], line["against"]): (
            f"{100 * line['change']:+z.2f} %",
            f"{line['lower']}, {line['higher']}",
        )
        for line in contrasts(comparison, resamples=2)
    }
    head, _, *rows = first_table(RESULTS.partition(f"<!-- contrasts: {name} -->")[2])
    assert [cell.strip() for cell in head.strip("|").split("|")] == [
        "method", "against", "change", "lower, higher",
    ]  # fmt: skip
    assert rows
    for row in rows:
        method, against, change, graphs = (
            INTERVAL.sub("", cell.replace("**", "")).strip() for cell in row.strip("|").split("|")
        )
        assert (change, graphs) == found[method, against], (name, method, against)


def test_the_table_of_realistic_cases_is_what_its_results_say(monkeypatch):
    monkeypatch.setattr(
        realistic_module, "geometric_gap", functools.partial(realistic_module.geometric_gap, resamples=2)
    )
    document = read_evaluation(REALISTIC)
    comparison = compare_module.compare(document, Records(REALISTIC))
    lines = {}
    for line in realistic_module.groups_fields(comparison):
        lines.setdefault(line["group"], {})[line["method"]] = line
    published = cells(first_table(RESULTS.partition("<!-- table: realistic -->")[2]))
    assert set(published) == set(lines)
    for group, row in published.items():
        auto, reference = lines[group]["Auto"], lines[group]["BRKGA 5K, warm starts"]
        other = lines[group]["BRKGA 5K, warm starts, other seed"]
        assert row == {
            "cases": group,
            "number": str(auto["cases"]),
            "`auto` over BRKGA": f"{auto['ratio']:.3f}",
            "BRKGA, other seed": f"{other['ratio']:.3f}",
            "`auto` over one device": f"{auto['over_one_device']:.3f}",
            "plans that fit: `auto`, BRKGA": f"{auto['fit']}, {reference['fit']}",
        }


def test_the_overhead_of_a_policy_is_what_its_results_say(quick):
    comparison = compare_module.compare(read_evaluation(SECONDS), Records(SECONDS))
    rows = {row.title: row_fields(comparison, row) for row in comparison.rows}
    published = cells(first_table(RESULTS.partition("<!-- table: policy-seconds -->")[2]))
    assert set(published) == set(rows)
    for method, row in published.items():
        assert row == {
            "method": method,
            "overhead": f"{100 * rows[method]['overhead']:+z.1f} %",
            "s per graph": f"{rows[method]['seconds_per_graph']:.3g}",
        }


@pytest.mark.parametrize("folder", [REALISTIC, SECONDS], ids=lambda folder: folder.name)
def test_the_settings_of_further_tables_are_those_of_their_files(folder):
    config = read_evaluation(folder)["config"]
    file = ROOT / "benchmarks" / f"{folder.name.replace('-', '_')}.toml"
    wanted = EvaluationConfig.read(file)
    assert {name: config[name] for name in wanted} == wanted


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_settings_are_those_of_its_file(folder):
    config = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))["config"]
    wanted = named_suite(folder.name, small=folder.name not in FULL)
    wanted.pop("digest", None)
    assert {name: config[name] for name in wanted} == wanted


def test_the_table_of_orders_is_what_its_results_say(quick):
    document, records = read_evaluation(ORDERS), Records(ORDERS)
    lines = {}
    for line in ordering_fields(compare_module.compare(document, records)):
        lines.setdefault(line["method"], []).append(line)
    _, there, text = RESULTS.partition(f"<!-- table: {ORDERS.name} -->")
    assert there
    published = cells(first_table(text))
    assert set(published) == set(lines) - {"Lower bound"}
    for method, row in published.items():
        each = lines[method]
        assert [line["set"] for line in each] == [f"layered {size}" for size in (500, 1000, 2000)]
        assert [line["graphs"] for line in each] == [26] * 3
        gaps = [f"{100 * line['gap']:+.2f} %" for line in each]
        assert [row[f"{size} ops"] for size in (500, 1000, 2000)] == gaps
        assert row["processor s per graph"] == " / ".join(f"{line['processor_seconds']:.3g}" for line in each)
        assert row["times faster"] == " / ".join(f"{1 / line['of_processor']:.0f}" for line in each)
        above = [line["above_xla"] for line in each]
        assert row["above XLA"] == ("" if None in above else str(sum(above)))


def test_the_settings_of_the_table_of_orders_are_those_of_its_file():
    config = json.loads((ORDERS / "evaluation.json").read_text("utf-8"))["config"]
    file = ROOT / "benchmarks" / f"{ORDERS.name.replace('-', '_')}.toml"
    wanted = EvaluationConfig.from_document(EvaluationConfig.read(file)).as_document()
    wanted = json.loads(json.dumps(wanted))
    assert {name: wanted[name] for name in config} == config


def test_the_figure_of_rounds_is_what_its_trainings_say():
    config = json.loads((ROUNDS / "evaluation.json").read_text("utf-8"))["config"]
    wanted = named_suite(ROUNDS.name, small=True)
    assert {name: config[name] for name in wanted} == wanted
    reached = json.loads((ROUNDS / "summary.json").read_text("utf-8"))["validation_over_rounds"]
    assert {rounds: len(runs) for rounds, runs in reached.items()} == dict.fromkeys(config["rounds"], 5)
    _, there, text = RESULTS.partition("<!-- figure: figure-4b -->")
    assert there
    published = cells(first_table(text))
    assert {
        rounds: {
            "rounds `T`": rounds,
            "mean": f"{100 * sum(runs) / len(runs):.1f} %",
            "least": f"{100 * min(runs):.1f} %",
            "largest": f"{100 * max(runs):.1f} %",
        }
        for rounds, runs in reached.items()
    } == published


@pytest.mark.parametrize("folder", ROBUST, ids=lambda folder: folder.name)
def test_a_table_of_sources_is_what_its_results_say(folder):
    document, records = read_evaluation(folder), Records(folder)
    for graph in document["graphs"]:
        for job in document["jobs"] if graph["set"] != "temperature" else ():
            assert records.get(job["key"], graph["hash"]), (job["title"], graph["name"])
    text = robust_markdown(document, robust_fields(document, records), ())
    text += "\n" + robust_differences_markdown(robust_differences(document, records))
    sections = re.findall(r"^## ([^(:]*)([(:]).*?\n\n(\|.*?)(?=\n\n|\Z)", text, re.DOTALL | re.MULTILINE)
    names = {
        ("One real graph ", "("): "one",
        ("Synthetic graphs ", "("): "synthetic",
        ("Real graphs ", "("): "real",
    }
    documents = RESULTS + "\n\n" + ABLATIONS
    assert f"<!-- table: {folder.name} " in documents
    for title, kind, table in sections:
        mark = f"<!-- table: {folder.name} {names.get((title, kind), 'differences')} -->"
        _, there, text = documents.partition(mark)
        if not there:
            continue
        found, published = robust_cells(table.splitlines()), robust_cells(first_table(text))
        assert set(published) <= set(found)
        for method, row in published.items():
            assert row == {name: found[method][name] for name in row}, (mark, method)


def robust_cells(lines):
    """Source -> column -> cell, without emphasis; the first column has no name."""
    rows = [[cell.replace("*", "").strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(rows[0][1:], row[1:], strict=True)) for row in rows[2:]}


@pytest.mark.parametrize("folder", ROBUST, ids=lambda folder: folder.name)
def test_the_settings_of_sources_are_those_of_their_file(folder):
    document = read_evaluation(folder)
    file = ROOT / "benchmarks" / f"{folder.name.replace('-', '_')}.toml"
    config = EvaluationConfig.from_document(EvaluationConfig.read(file))
    wanted = json.loads(json.dumps(config.as_document()))
    # Results of an earlier version lack settings that were added later.
    assert {name: wanted[name] for name in document["config"]} == document["config"]
