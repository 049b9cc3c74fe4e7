"""The tables of docs/results and docs/ablations are what the results in benchmarks/tables say."""

import importlib
import json
import re

import pytest

from benchmarks.__main__ import main
from benchmarks.publish import DOCUMENTS, ROOT, TABLES, copy_results, plain, renewed, unfinished
from regal_jax.errors import ConfigError, FormatError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.records import Records, read_evaluation, write_evaluation
from regal_jax.experiments.suites import named_suite

FOLDERS = sorted(path for path in TABLES.iterdir() if path.is_dir())
TEXTS = {path: path.read_text(encoding="utf-8") for path in DOCUMENTS}
WHOLE = "\n\n".join(TEXTS.values())
SUITES = (
    "cp-sat-minute",
    "cp-sat-minute-peak-memory",
    "devices-4",
    "devices-8",
    "insertion-policy-limits-2",
    "insertion-policy-limits-4",
    "insertion-policy-links-2",
    "insertion-policy-links-4",
    "larger-graphs-makespan",
    "larger-graphs-peak-memory",
    "memory-limits",
    "new-families-insertion-limits-2",
    "new-families-insertion-limits-4",
    "new-families-insertion-links-2",
    "new-families-insertion-links-4",
    "policy-peak-memory",
    "real-links-2",
    "real-links-4",
    "table-1-real-makespan",
    "table-1-real-peak-memory",
    "table-1-synthetic-makespan",
)
"""Suites of which the full form was run."""


@pytest.fixture
def quick(monkeypatch):
    """Intervals of two resamples, since they are not compared."""
    for room, names in {
        "compare": ("bootstrap", "geometric_gap"),
        "contrasts": ("geometric_gap",),
        "ordering_table": ("bootstrap",),
        "realistic_table": ("geometric_gap",),
        "robust_table": ("bootstrap",),
        "tables": ("geometric_gap",),
    }.items():
        # The package has functions with the names of two of these modules.
        module = importlib.import_module(f"regal_jax.experiments.{room}")
        for name in names:
            few = getattr(module, name)
            monkeypatch.setattr(module, name, lambda *a, few=few, **_: few(*a, resamples=2))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.parent.name + "/" + path.stem)
def test_the_tables_of_a_document_are_what_the_results_say(path, quick):
    text = TEXTS[path]
    assert plain(renewed(text, TABLES)).splitlines() == plain(text).splitlines()


@pytest.mark.slow
def test_the_intervals_of_the_documents_are_what_the_results_say():
    for text in TEXTS.values():
        assert renewed(text, TABLES).splitlines() == text.splitlines()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_result_is_there_and_in_a_document(folder):
    assert re.search(rf"<!-- table: {folder.name}[ \w]*-->", WHOLE)
    document, records = read_evaluation(folder), Records(folder)
    # Results of robust scheduling by an earlier version do not name it.
    assert len(document.get("code", 64 * "-" if folder.name.startswith("robust") else "")) == 64
    assert unfinished(document, records) == []
    for job in document["jobs"]:
        assert not job.get("guided") or len(job["identity"]["policy"]) == 16


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_settings_are_those_of_its_file(folder):
    config = read_evaluation(folder)["config"]
    file = ROOT / "benchmarks" / f"{folder.name.replace('-', '_')}.toml"
    if file.exists():
        read = EvaluationConfig.read(file)
    else:
        read = named_suite(folder.name, small=folder.name not in SUITES)
        read.pop("digest", None)
    whole = json.loads(json.dumps(EvaluationConfig.from_document(read).as_document()))
    # Results of an earlier version lack settings that were added later.
    wanted = {name: whole[name] for name in config if file.exists() or name in read}
    assert {name: config[name] for name in wanted} == wanted


def record(key, graph, value, **more):
    fields = {"key": key, "graph": graph, "value": value, "overflow": 0, "evaluations": 5, "seconds": 0.1}
    return {**fields, **more}


@pytest.fixture
def results(tmp_path):
    """Two methods on three graphs, with results of a job that is no longer there."""
    folder = tmp_path / "out" / "mine"
    folder.mkdir(parents=True)
    common = {"role": "table", "seed": 0, "evaluations": 5, "guided": False, "identity": {}}
    jobs = [
        {"key": "a", "name": "brkga", "title": "First", **common},
        {"key": "b", "name": "auto", "title": "Second", **common},
    ]
    document = {
        "config": EvaluationConfig(graphs="sample", limits=(2, 4)).as_document(),
        "code": "",
        "graphs": [{"hash": name, "name": name, "ops": 1} for name in "xyz"],
        "jobs": jobs,
        "left_out": {},
    }
    write_evaluation(folder, document)
    history = {"evaluations": [1, 3, 4, 5], "best": [9.0, 8.0, 7.0, 6.0]}
    lines = [record(key, graph, value) for key, value in (("a", 4.0), ("b", 3.0)) for graph in "xyz"]
    lines.append(record("a", "x", 4.0, history=history, points={"proxy": [1.0]}))
    lines.append(record("old", "x", 2.0))
    (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_results_are_copied_without_what_no_table_needs(results, tmp_path):
    copy_results(results, tmp_path / "tables" / "mine")
    found = [
        json.loads(line) for line in (tmp_path / "tables" / "mine" / "results.jsonl").read_text().splitlines()
    ]
    assert [(line["key"], line["graph"]) for line in found] == [(k, g) for k in "ab" for g in "xyz"] + [
        ("a", "x")
    ]
    assert found[-1]["history"] == {"evaluations": [1, 4], "best": [9.0, 7.0]}
    assert "points" not in found[-1]
    assert (tmp_path / "tables" / "mine" / "evaluation.json").read_text() == (
        results / "evaluation.json"
    ).read_text()


def test_an_evaluation_that_has_not_ended_is_not_copied(results, tmp_path):
    lines = (results / "results.jsonl").read_text().splitlines(keepends=True)
    without = [line for line in lines if (r := json.loads(line))["key"] != "b" or r["graph"] != "z"]
    (results / "results.jsonl").write_text("".join(without))
    with pytest.raises(ConfigError, match="mine: results of Second are missing; run the command of the eval"):
        copy_results(results, tmp_path / "tables" / "mine")
    assert not (tmp_path / "tables").exists()


TEXT = """# A page

<!-- table: mine -->
| method | improvement over First | note |
|---|---:|---|
| First | 7 | of the paper |
| Second | old | |

<!-- contrasts: mine mine -->
| method | against | here | there |
|---|---|---|---|
| Second | First | ? | ? |

Words.
"""


def test_a_table_gets_its_figures_and_keeps_what_results_do_not_know(results):
    text = renewed(TEXT, results.parent)
    assert text == renewed(text, results.parent)
    assert (
        text
        == """# A page

<!-- table: mine -->
| method | improvement over First | note |
| --- | ---: | ---: |
| First | +0.00 % [+0.00, +0.00] | of the paper |
| Second | +25.00 % [+25.00, +25.00] |  |

<!-- contrasts: mine mine -->
| method | against | here | there |
| --- | --- | ---: | ---: |
| Second | First | **-25.00 % [-25.00, -25.00]** | **-25.00 % [-25.00, -25.00]** |

Words.
"""
    )
    assert "| Second | First | -25.00 % | -25.00 % |" in plain(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("| Second | First |", "| Third | First |", "no 'Third' against 'First'"),
        ("contrasts: mine mine", "contrasts: mine", "no column 'here'; use change"),
        ("| Second | old |", "| Third | old |", "Third"),
        ("| Second | old | |", "| Second | - |", "the table 'mine': the row of 'Second' has 2 cells; give 3"),
        ("table: mine", "table: mine part", "part"),
        ("table: mine", "table: other", "other"),
    ],
)
def test_a_table_without_results_is_refused(results, old, new, message):
    with pytest.raises((ConfigError, FormatError), match=message):
        renewed(TEXT.replace(old, new), results.parent)


def test_seconds_of_pairs_are_a_table_of_their_own(results):
    lines = [json.loads(line) for line in (results / "results.jsonl").read_text().splitlines()]
    for line in lines:
        line["processor_seconds"] = 2.0 if line["key"] == "a" else 3.0
    (results / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = TEXT.replace("contrasts: mine mine", "seconds: mine mine")
    assert "| Second | First | 1.50 | 1.50 |\n" in renewed(text, results.parent)
    text = TEXT.replace("contrasts: mine mine", "contrasts: mine").replace("here | there", "change | seconds")
    found = renewed(text, results.parent)
    assert "| Second | First | **-25.00 % [-25.00, -25.00]** | 1.50 |\n" in found


def test_the_command_checks_and_renews(results, tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.md"
    page.write_text(TEXT)
    for name, value in (("ROOT", tmp_path), ("TABLES", tmp_path / "tables"), ("DOCUMENTS", (page,))):
        monkeypatch.setattr(f"benchmarks.publish.{name}", value)
    assert main(["publish", "--check"]) == 2
    assert "mine" in capsys.readouterr().err
    assert main(["publish", str(results)]) == 0
    assert capsys.readouterr().out == "page.md: renewed\n"
    assert main(["publish", "--check"]) == 0
    page.write_text(TEXT)
    assert main(["publish", "--check"]) == 1
    assert page.read_text() == TEXT
    assert main(["publish", "--check", str(results)]) == 2
    capsys.readouterr()
    page.write_text("Words.\n")
    assert main(["publish", str(results)]) == 0
    assert "mine: no document has its table; put one behind a line <!-- table: mine -->" in (
        capsys.readouterr().out
    )
