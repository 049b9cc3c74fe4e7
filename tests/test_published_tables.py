"""Tables of docs/results.md whose results are in the repository are what these results say."""

import functools
import importlib
import json
import pathlib
import re

import pytest

from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.ordering_table import ordering_fields
from regal_jax.experiments.records import Records, read_evaluation
from regal_jax.experiments.robust_table import (
    robust_differences,
    robust_differences_markdown,
    robust_fields,
    robust_markdown,
)
from regal_jax.experiments.suites import named_suite
from regal_jax.experiments.tables import table_markdown

# The package has a function of this name.
compare_module = importlib.import_module("regal_jax.experiments.compare")
ROOT = pathlib.Path(__file__).parents[1]
EVERY = sorted(path for path in (ROOT / "benchmarks" / "tables").iterdir() if path.is_dir())
ROBUST = [path for path in EVERY if path.name.startswith("robust-scheduling")]
ORDERS = ROOT / "benchmarks" / "tables" / "topological-order-wide"
ROUNDS = ROOT / "benchmarks" / "tables" / "figure-4b"
FOLDERS = [path for path in EVERY if path not in (*ROBUST, ORDERS, ROUNDS)]
FULL = (
    "devices-4",
    "devices-8",
    "policy-peak-memory",
    "table-1-real-makespan",
    "table-1-real-peak-memory",
    "table-1-synthetic-makespan",
)
"""Tables of which the full form was run."""
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
    _, there, text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").partition(mark)
    assert there, mark
    published = cells(first_table(text))
    assert set(published) == set(found)
    for method, row in published.items():
        assert row == {name: found[method][name] for name in row}


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
    _, there, text = (
        (ROOT / "docs" / "results.md").read_text("utf-8").partition(f"<!-- table: {ORDERS.name} -->")
    )
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
    _, there, text = (ROOT / "docs" / "results.md").read_text("utf-8").partition("<!-- figure: figure-4b -->")
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
    documents = "\n\n".join(
        (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("results", "ablations")
    )
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
