"""``python -m benchmarks certify``: its checks can fail, and its file and page report the results."""

import json

import jax
import numpy as np
import pytest

from benchmarks import certify
from benchmarks.__main__ import main
from benchmarks.cases import GraphCase
from benchmarks.certify_checks import Check, checks, first_difference, replay_difference
from benchmarks.measure import Options, measure
from benchmarks.on_cpu import on_cpu
from benchmarks.phases import copied_bytes_per_second
from benchmarks.random_cases import random_cluster, random_graph, random_keys
from benchmarks.results import OF_BANDWIDTH
from benchmarks.throughput import solver
from regal_jax.encoding import decode, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.problem import make_problem
from regal_jax.simulate import simulate


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_smoke(tmp_path, capsys, monkeypatch, training):
    """All checks, or those whose programs take less time to compile."""
    every, long = checks("smoke"), ("training steps", "optimize_many, method auto")
    chosen = [(name, call) for name, call in every if training or name not in long]
    monkeypatch.setattr(certify, "checks", lambda size: iter(chosen))
    measured = {"throughput", "implementations"} | ({"training"} if training else set())
    monkeypatch.setitem(
        certify._MEASURED, "smoke", tuple(name for name in certify._MEASURED["smoke"] if name in measured)
    )
    out = tmp_path / "cpu.json"
    assert main(["certify", "--size", "smoke", "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert (document["schema"], document["version"], document["passed"]) == ("regal_jax.certificate", 1, True)
    passed = {check["name"]: check["passed"] for check in document["checks"]}
    assert [name for name, _ in chosen] == list(passed)
    for transfer in ("blocking", "delay", "free"):
        assert passed[f"simulator xla, transfers {transfer}"] is True
        assert passed[f"schedule generation xla, transfers {transfer}"] is True
    assert passed["optimize_many, method brkga"] is True
    assert not training or passed["training steps"] is passed["optimize_many, method auto"] is True
    if jax.default_backend() == "cpu":
        assert passed["simulator pallas, transfers free"] is None
        assert passed["schedule generation pallas, transfers free"] is None
    records = {record["name"]: record for record in document["records"]}
    assert records.keys() == {f"{name}/er-12" for name in measured}
    page = out.with_suffix(".md").read_text()
    assert ": certified" in page.splitlines()[0]
    assert "| throughput/er-12 | regal_jax |" in page
    assert "No time was left" not in page
    said = capsys.readouterr().out
    assert "passed  optimize_many, method brkga: " in said
    if training:
        assert records["training/er-12"]["series"]["regal_jax"]["evaluations"] == 2 * 4 * 26
        assert "| training/er-12 | regal_jax |" in page
        assert "passed  training steps: 3 steps" in said


def simulated():
    rng = np.random.default_rng(0)
    graphs = [random_graph(rng, 8, 2)]
    clusters = [random_cluster(rng, 2, "blocking")]
    problem = make_problem(graphs, clusters)
    genes = {k: random_keys(rng, (1, 2, *leaf.shape)) for k, leaf in gene_shapes(problem).items()}

    @jax.jit
    def both(problem, genes):
        decisions = decode(problem, genes)
        return decisions.placement, simulate(problem, decisions, positions=True)

    return graphs, clusters, genes, *jax.device_get(both(problem, genes))


def test_every_difference_is_found():
    *given, placement, result = simulated()
    assert first_difference(*given, placement, result) is None
    other = placement.copy()
    other[0, 1, 3] ^= 1
    assert "candidate 1: the placement differs" in first_difference(*given, other, result)
    swapped = result.op_position.copy()
    swapped[0, 0, [0, 1]] = swapped[0, 0, [1, 0]]
    assert "order of events" in first_difference(*given, placement, result._replace(op_position=swapped))
    padded = result.op_position.copy()
    padded[0, 0, -1] = 5
    assert "order of events" in first_difference(*given, placement, result._replace(op_position=padded))
    late = result._replace(makespan=result.makespan * np.float32(1.001))
    assert "candidate 0: makespan" in first_difference(*given, placement, late)
    peaks = result.peak_memory.copy()
    peaks[0, 1, 1] += 1
    more = result._replace(peak_memory=peaks)
    assert "candidate 1: peaks" in first_difference(*given, placement, more)


def test_every_difference_of_a_generated_schedule_is_found():
    graphs, clusters, _, placement, result = simulated()
    assert replay_difference(graphs, clusters, placement, result) is None
    padded = result.op_position.copy()
    padded[0, 0, -1] = 5
    wrong = result._replace(op_position=padded)
    assert "candidate 0: " in replay_difference(graphs, clusters, placement, wrong)
    late = result._replace(makespan=result.makespan * np.float32(1.001))
    assert "candidate 0: makespan" in replay_difference(graphs, clusters, placement, late)
    peaks = result.peak_memory.copy()
    peaks[0, 1, 1] += 1
    more = result._replace(peak_memory=peaks)
    assert "candidate 1: peaks" in replay_difference(graphs, clusters, placement, more)


def only(monkeypatch, *found, measured=()):
    monkeypatch.setattr(certify, "checks", lambda size: ((c.name, lambda c=c: c) for c in found))
    monkeypatch.setitem(certify._MEASURED, "smoke", measured)


def test_a_failed_check_fails_the_command(tmp_path, monkeypatch, capsys):
    only(monkeypatch, Check("first", True, "equal", 1.0), Check("second", False, "a | differs", 2.0))
    out = tmp_path / "c.json"
    assert main(["certify", "--size", "smoke", "--out", str(out)]) == 1
    assert json.loads(out.read_text())["passed"] is False
    page = out.with_suffix(".md").read_text()
    assert "not certified" in page.splitlines()[0]
    assert "| second | **no** | 2.0 | a \\| differs |" in page
    assert capsys.readouterr().err == ("python -m benchmarks certify: 1 checks failed, the first: second\n")


def test_nothing_starts_when_the_time_is_over(tmp_path, monkeypatch):
    only(monkeypatch, Check("never", True, "", 0.0), measured=("throughput",))
    out = tmp_path / "c.json"
    # The reserve is the whole minute.
    assert main(["certify", "--size", "smoke", "--minutes", "1", "--out", str(out)]) == 1
    document = json.loads(out.read_text())
    assert document["checks"] == [
        {"name": "never", "passed": False, "detail": "no time was left for it", "seconds": 0.0}
    ]
    assert document["left_out"] == ["throughput/er-12"]
    assert "No time was left for: throughput/er-12." in out.with_suffix(".md").read_text()


def test_a_measurement_that_fails_costs_only_itself(tmp_path, monkeypatch):
    only(monkeypatch, measured=("implementations", "throughput"))
    real = certify.measure

    def failing(benchmark, options):
        if benchmark.section == "implementations":
            raise RuntimeError("RESOURCE_EXHAUSTED: out\nof memory")
        return real(benchmark, options)

    monkeypatch.setattr(certify, "measure", failing)
    out = tmp_path / "c.json"
    assert main(["certify", "--size", "smoke", "--out", str(out)]) == 0
    first, second = json.loads(out.read_text())["records"]
    assert first["skipped"] == {"all": "RuntimeError: RESOURCE_EXHAUSTED: out of memory"}
    assert second["series"]


def test_a_check_that_raises_has_failed(monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("no such\ndevice")

    monkeypatch.setattr("benchmarks.certify_checks.optimize_many", broken)
    found = dict(checks("smoke"))["optimize_many, method brkga"]()
    assert (found.passed, found.detail) == (False, "RuntimeError: no such device")


@pytest.mark.parametrize(
    ("out", "message"), [("none/c.json", "no folder .*none'; make it first"), ("c.md", "is the JSON file")]
)
def test_refusals(tmp_path, capsys, out, message):
    assert main(["certify", "--out", str(tmp_path / out)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    with pytest.raises(ConfigError, match=message):
        raise ConfigError(line)


@pytest.mark.slow
def test_the_cpu_beside_an_accelerator_makes_the_same_search():
    case = GraphCase(ops=12, population=10, evaluations=26)
    contender = on_cpu(case)
    first, second = contender.run(), contender.run()
    assert (first.evaluations, first.best) == (second.evaluations, second.best)
    if jax.default_backend() == "cpu":
        ours = solver(case).run()
        assert (first.evaluations, first.best) == (ours.evaluations, ours.best)
    contender.close()


@pytest.mark.slow
def test_a_cpu_process_that_ends_is_an_error():
    contender = on_cpu(GraphCase(family="none such"))
    # After the first, another process starts.
    for _ in range(2):
        with pytest.raises(ConfigError, match="process on the CPU ended with 1"):
            contender.run()
        contender.close()


@pytest.mark.slow
def test_shares_of_bandwidth_are_shares(monkeypatch):
    from benchmarks.cases import select

    (benchmark,) = select(["phases"], "smoke")
    monkeypatch.setattr("benchmarks.measure.copied_bytes_per_second", lambda: 1e9)
    record = measure(benchmark, Options(repeats=1, fresh=False))
    phases = {"sampling", "decode", "simulate", "memory", "selection", "crossover", "generation"}
    assert phases <= set(record.series)
    for label, series in record.series.items():
        moved = record.derived[f"{label}{OF_BANDWIDTH}"] * series.median * 1e9
        assert moved == pytest.approx(round(moved), abs=1e-3)
        assert moved > 0
    # The counter is an argument and a result.
    assert record.derived[f"dispatch{OF_BANDWIDTH}"] * record.series["dispatch"].median * 1e9 < 1000


@pytest.mark.slow
def test_the_bandwidth_is_one_of_memory():
    assert 1e8 < copied_bytes_per_second() < 1e14
