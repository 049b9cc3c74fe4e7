"""The suite of realistic cases: its cases, runs, resumption and report."""

import collections
import json
import math
import pathlib

import numpy as np
import pytest

from regal_jax.cli import main
from regal_jax.datasets import sample_records
from regal_jax.examples import kept_example
from regal_jax.experiments import EvaluationConfig, report
from regal_jax.experiments import graphs as graphs_module
from regal_jax.experiments import realistic as realistic_module
from regal_jax.experiments.graphs import evaluation_tasks
from regal_jax.experiments.jobs import make_jobs
from regal_jax.experiments.realistic import DEVICES, LINKS, SAMPLE_MODELS, load_models, realistic_cases
from regal_jax.experiments.realistic_table import groups_fields
from regal_jax.plan import Objective

SMALL = {"mlp", "timm/crossvit_9_dagger_240.forward"}


def test_cases():
    cases = realistic_cases()
    assert len(set(cases)) == len(cases) == 20 * len(DEVICES) * len(LINKS) * 4
    # The first cases cover the settings as evenly as all of them.
    assert realistic_cases(60) == cases[:60]
    for field in ("devices", "link", "memory"):
        counts = collections.Counter(getattr(case, field) for case in cases[:120])
        assert min(counts.values()) > 15, field
    assert {case.memory for case in cases if case.objective is Objective.PEAK_MEMORY} == {"unlimited"}


def test_nobody_looks_at_test_families():
    splits = {record["path"].removesuffix(".json.gz"): record["split"] for record in sample_records()}
    assert {splits[name] for name in SAMPLE_MODELS} == {"train", "validation"}
    assert set(load_models(set(SAMPLE_MODELS[:2]))) == set(SAMPLE_MODELS[:2])


@pytest.mark.parametrize("models", [SMALL, pytest.param(None, marks=pytest.mark.slow)], ids=["small", "all"])
def test_limits_are_what_they_say(monkeypatch, models):
    # Another test may have traced the examples in this session.
    monkeypatch.setattr(realistic_module, "load_example", kept_example)
    cases = [case for case in realistic_cases() if models is None or case.model in models]
    monkeypatch.setattr(graphs_module, "realistic_cases", lambda count: cases[:count])
    tasks = list(evaluation_tasks(EvaluationConfig(suite="realistic", cases=40)))
    for task in tasks:
        labels, memory = task.labels, task.cluster.memory[0]
        assert not labels["impossible"]
        assert task.cluster.num_devices == int(labels["devices"])
        assert (memory == math.inf) == (labels["memory"] == "unlimited")
    assert len({task.key for task in tasks}) == 40


@pytest.fixture
def small(monkeypatch):
    """The two smallest models of the first cases."""
    few = [case for case in realistic_cases() if case.model in SMALL and case.devices == 2][:5]
    monkeypatch.setattr(graphs_module, "realistic_cases", lambda count: few[: count or None])
    return few


def test_it_runs_goes_on_and_reports(small, tmp_path, capsys):
    out = str(tmp_path / "out")
    options = ["evaluate", "--suite", "realistic", "--evaluations", "60", "--no-warm-up", "--out", out]
    assert main([*options, "--cases", "2", "--methods", "critical-path"]) == 0
    first = capsys.readouterr().out
    # The reference, the same with another seed, and the heuristic.
    assert "6 results added" in first
    assert "| all | BRKGA 60, warm starts |" in first
    assert main([*options, "--methods", "critical-path"]) == 0
    assert f"{3 * len(small) - 6} results added to {out}, 6 were there" in capsys.readouterr().out
    lines = [json.loads(line) for line in pathlib.Path(out, "results.jsonl").read_text().splitlines()]
    assert len({(line["key"], line["graph"]) for line in lines}) == len(lines) == 3 * len(small)
    made = report(out)
    fields = groups_fields(made.comparison)
    mine = [line for line in fields if line["group"] == "all"]
    assert [line["method"] for line in mine] == [row.title for row in made.comparison.rows]
    reference, other = mine[0], mine[-1]
    assert reference["ratio"] == pytest.approx(1)
    assert reference["cases"] == len(small)
    # By hand: the geometric mean over the cases in which both fit.
    values = np.array([row.values for row in made.comparison.rows])
    ratio = np.exp(np.nanmean(np.log(values[-1] / values[0])))
    assert other["ratio"] == pytest.approx(ratio)
    by_link = [f for f in fields if f["group"].startswith("link") and f["method"] == other["method"]]
    assert sum(line["cases"] for line in by_link) == len(small)


def test_the_reference_has_warm_starts():
    job = make_jobs(EvaluationConfig(suite="realistic", methods=())).jobs[0]
    assert job.method.warm_start
    paper = make_jobs(EvaluationConfig("set", methods=(), limits=())).jobs[0]
    assert not paper.method.warm_start
    jobs = make_jobs(EvaluationConfig(suite="realistic", methods=())).jobs
    assert {job.role for job in jobs} == {"table", "other-seed"}
    config = EvaluationConfig(suite="realistic", cases=1, methods=("list-search",))
    assert "list-search" not in make_jobs(config).left_out
    assert EvaluationConfig.from_document(json.loads(json.dumps(config.as_document()))) == config
