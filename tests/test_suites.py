"""The papers' tables and figures as files, and the control that begins with the quick schedule."""

import json
import pathlib
import shlex

import numpy as np
import pytest

from regal_jax import Cluster, optimize
from regal_jax.cli import main
from regal_jax.cli.parser import build_parser
from regal_jax.datasets import RoomForImprovement, generate
from regal_jax.errors import ConfigError
from regal_jax.experiments import EvaluationConfig, make_method, report, run_evaluation, suites
from regal_jax.experiments.graphs import evaluation_graphs, evaluation_tasks, graphs_digest
from regal_jax.experiments.jobs import UNTRAINED, UNTRAINED_BY_HAND, make_jobs
from regal_jax.experiments.quick_start import QuickStart
from regal_jax.experiments.records import code_word
from regal_jax.experiments.suites import named_suite, suite_names
from regal_jax.heuristics.even_split import one_device_peak
from regal_jax.heuristics.list_scheduling import quick_schedule
from regal_jax.heuristics.peaks import least_peak_balance
from regal_jax.importers import save_graph
from regal_jax.plan import Objective, lower_bound, replay
from regal_jax.policies import Balance, PolicyConfig
from regal_jax.policies.measured import measure
from regal_jax.search import BrkgaConfig
from regal_jax.solvers import Brkga, Portfolio

TWO = Cluster.uniform(2, transfer="blocking")
PAPER = {
    "brkga", "tuned-brkga", "gp-dfs", "local-search", "cp-sat", "idrs", "gas", "regal-faithful",
    "regal-faithful-workshop", "regal-primed", "regal-primed-untrained", "brkga-quick-start",
}  # fmt: skip


def test_a_file_with_a_base_has_only_what_differs():
    for small in (False, True):
        assert named_suite("devices-8", small=small) == {
            **named_suite("devices-4", small=small),
            "devices": 8,
        }
    two, four = named_suite("new-families-links-2"), named_suite("new-families-links-4")
    assert {name for name in two if two[name] != four[name]} == {"devices", "policies"}
    assert set(two["policies"]) == set(four["policies"])
    assert four["policies"]["regal-primed-untrained"] == two["policies"]["regal-primed-untrained"]
    assert "base" not in four


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", suite_names())
def test_every_file_is_a_valid_evaluation(name, small):
    config = EvaluationConfig.from_document(named_suite(name, small=small))
    assert config.suite == "regal"
    if name.startswith("table-1"):
        assert set(config.methods) >= PAPER
        assert (config.evaluations, config.devices) == (5000, 2)
        # Files that the comment's commands make.
        assert config.tuned.endswith(".json")
        assert {"gas", "idrs"} <= {*config.policies}
    if name.startswith("figures"):
        assert 5000 in config.limits
    if name == "figure-4b":
        assert [len(runs) for runs in config.rounds.values()] == [5] * 4
        assert "0" in config.rounds
    if name.startswith("devices"):
        assert config.devices == int(name[-1])
        assert {"cp-sat", "brkga-quick-start", "regal-primed-untrained"} <= {*config.methods}
    if name == "training-set":
        assert config.split == "train"
    # The filter of the synthetic sets must not see the searches that it is judged by.
    assert RoomForImprovement().seed not in (*config.seeds, config.other_seed)
    # No row is called REGAL: the papers' own figures are.
    assert not {"regal", "REGAL"} & {*config.methods, *config.policies}


@pytest.mark.parametrize("name", suite_names())
def test_the_commands_in_a_file_are_ones_that_the_program_takes(name):
    file = pathlib.Path(suites.__file__).with_name("table_files") / f"{name}.toml"
    comment = "".join(line[1:] for line in file.read_text().splitlines(keepends=True) if line[0] == "#")
    lines = comment.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line)[1:] for line in lines if line.strip().startswith("regal-jax ")]
    assert commands
    for words in commands:
        assert build_parser().parse_args([word.replace("SEED", "0") for word in words]).run


def test_names_of_tables():
    tables = {"table-1-synthetic-makespan", "table-1-real-makespan", "table-1-real-peak-memory"}
    assert {*tables, "training-set", "noise-copies", "figure-4b", "memory-limits"} <= {*suite_names()}
    with pytest.raises(ConfigError, match="there is no 'other'; use one of cp-sat-minute"):
        named_suite("other")


@pytest.fixture
def graphs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [generate("layered", 12, seed=seed) for seed in range(2)]
    (tmp_path / "set").mkdir()
    for graph in made:
        save_graph(graph, tmp_path / "set" / f"{graph.name}.json")
    return made


def test_a_table_is_one_command(graphs, capsys):
    quick = (
        "--graphs",
        "set",
        "--evaluations",
        "60",
        "--methods",
        "brkga,regal-faithful",
        "--no-warm-up",
        "--quiet",
    )
    assert main(["evaluate", "--suite", "table-1-synthetic-makespan", "--small", *quick, "--out", "out"]) == 0
    capsys.readouterr()
    settings = json.loads(pathlib.Path("out/evaluation.json").read_text())
    assert settings["config"]["policies"]["idrs"] == "regal-faithful"
    assert settings["config"]["seeds"] == [0]
    # Which code and which weights made the results.
    assert settings["code"] == code_word()
    policies = {job["name"]: job["identity"].get("policy") for job in settings["jobs"]}
    assert policies["brkga"] is None
    assert len(policies["regal-faithful"]) == 16
    table = pathlib.Path("out/table.md").read_text()
    assert "| regal-faithful |" in table
    assert "| REGAL |" not in table
    assert pathlib.Path("out/quality.png").exists()


def test_other_graphs_than_those_of_the_digest_are_refused(graphs):
    digest = graphs_digest(graphs)
    assert digest == graphs_digest(graphs[::-1])
    assert digest != graphs_digest(graphs[:1])
    assert len(evaluation_graphs(EvaluationConfig("set", digest=digest[:12]))) == 2
    with pytest.raises(ConfigError, match="set has other graphs than this table is for"):
        evaluation_graphs(EvaluationConfig("set", digest="0" * 12 if digest[0] != "0" else "1" * 12))
    with pytest.raises(ConfigError, match="digest: give hexadecimal digits"):
        EvaluationConfig("set", digest="xyz")


def test_a_capacity_is_relative_to_an_even_split(graphs):
    free = evaluation_tasks(EvaluationConfig("set"))
    assert all(np.isinf(task.cluster.memory).all() for task in free)
    for task in evaluation_tasks(EvaluationConfig("set", capacity=1.5)):
        least = lower_bound(task.graph, TWO, Objective.PEAK_MEMORY)
        want = np.ceil(max(1.5 * one_device_peak(task.graph) / 2, least))
        assert task.cluster.memory == (want, want)
    for task in evaluation_tasks(EvaluationConfig("set", capacity=1.5, memory_ratio=(1, 3))):
        least, whole = lower_bound(task.graph, TWO, Objective.PEAK_MEMORY), 1.5 * one_device_peak(task.graph)
        assert task.cluster.memory == (np.ceil(whole / 4), np.ceil(max(whole * 3 / 4, least)))
    for wrong in ({"capacity": 1.5, "memory_ratio": [1]}, {"memory_ratio": [1, 3]}):
        with pytest.raises(ConfigError, match="give a number for each of the 2 devices, and capacity"):
            EvaluationConfig("set", **wrong)
    for wrong in (3, "1,3", [1, 0], [1, "x"]):
        with pytest.raises(ConfigError, match="memory_ratio: must be a"):
            EvaluationConfig("set", capacity=1.5, memory_ratio=wrong)  # pyright: ignore[reportArgumentType]


# Controls --------------------------------------------------------------------------------------------


def test_the_quick_start_is_the_schedule_of_the_prior():
    graph = generate("layered", 20, seed=3)
    method = make_method("brkga-quick-start")
    assert method.solver == Portfolio(QuickStart(), Brkga(), shares=(0.02, 1))
    plan = optimize(graph, TWO, method=QuickStart(), evaluations=50, warm_start=False, progress=False)
    schedule = quick_schedule(graph, TWO, measure(graph, TWO, Balance.WORK, ()).numbers)
    assert plan.makespan == replay(graph, TWO, schedule.placement, schedule.events).makespan
    assert plan.provenance["evaluations"] == 1
    memory = {"objective": "peak-memory", "evaluations": 50, "warm_start": False, "progress": False}
    plan = optimize(graph, TWO, method=QuickStart(), **memory)
    balance, placement = least_peak_balance(graph, TWO, measure(graph, TWO, Balance.BYTES, ()).numbers)
    assert plan.objective_value == balance.peaks(placement).max()


def test_the_search_after_it_has_one_evaluation_less_and_is_never_worse():
    graph = generate("layered", 20, seed=3)
    search = Brkga(population=10, elites=2, mutants=2)
    solver = Portfolio(QuickStart(), search, shares=(0.02, 1))
    options = {"evaluations": 100, "warm_start": False, "progress": False}
    start = optimize(graph, TWO, method=QuickStart(), **options)
    plan = optimize(graph, TWO, method=solver, **options)
    assert plan.makespan <= start.makespan
    assert plan.provenance["evaluations"] <= 100


def test_rows_of_policies_that_ship_and_of_the_untrained_one(graphs):
    config = EvaluationConfig(
        "set",
        methods=("brkga", "regal-faithful", "regal-primed", "plain"),
        policies={"plain": UNTRAINED},
        limits=(),
    )
    jobs = make_jobs(config)
    assert not jobs.left_out
    guided = [job for job in jobs.jobs if job.guided]
    policies = {job.name: job.method.solver.policy for job in guided}  # pyright: ignore[reportAttributeAccessIssue]
    assert policies["regal-faithful"].config.prior == "none"
    assert policies["plain"].config == policies["regal-primed"].config == PolicyConfig()
    assert [job.title for job in jobs.jobs if job.guided] == ["regal-faithful", "regal-primed", "plain"]
    four = EvaluationConfig(
        "set", devices=4, methods=("regal-faithful", "plain"), policies={"plain": UNTRAINED}
    )
    found = make_jobs(four)
    assert {job.name for job in found.jobs if job.guided} == {"plain"}
    assert "needs a policy" in found.left_out["regal-faithful"]
    assert BrkgaConfig() == policies_search(jobs)


def test_a_policy_can_guide_auto_and_have_scales_set_by_hand(graphs):
    config = EvaluationConfig(
        "set",
        methods=("brkga", "auto"),
        policies={"by-hand": UNTRAINED_BY_HAND, "auto-by-hand": UNTRAINED_BY_HAND},
        limits=(),
    )
    jobs = {job.name: job for job in make_jobs(config).jobs if job.role == "table"}
    for name, method in (("by-hand", "brkga"), ("auto-by-hand", "auto")):
        solver = jobs[name].method.solver
        assert solver.name == method
        assert solver.policy.config.ablation.placement_scale == 10  # pyright: ignore[reportAttributeAccessIssue]
        assert jobs[name].title == name
    assert not jobs["by-hand"].method.warm_start
    assert jobs["auto-by-hand"].method.warm_start
    assert len({job.key for job in jobs.values()}) == 4


def policies_search(jobs):
    """The search of the guided rows, which is that of the reference."""
    (reference,) = {job.method.solver.config for job in jobs.jobs if job.name == "brkga"}
    assert {job.method.solver.config for job in jobs.jobs if job.guided} == {reference}
    return reference


# By default, the control has results below.
@pytest.mark.slow
def test_the_control_has_a_curve(graphs, tmp_path):
    config = EvaluationConfig(
        "set", methods=("brkga", "critical-path", "brkga-quick-start"), evaluations=200, limits=(150, 300),
        other_seed=-1, limit=1, warm_up=False,
    )  # fmt: skip
    run_evaluation(config, tmp_path / "out")
    curves = report(tmp_path / "out").comparison.curves
    assert list(curves) == ["BRKGA", "BRKGA, quick start"]
    # A search with a smaller budget is the beginning of one with a larger budget.
    (chosen,) = evaluation_graphs(config)
    reference, *values = (
        make_method(name)([chosen], TWO, evaluations=budget).value[0]
        for name, budget in (("brkga", 200), ("brkga-quick-start", 150), ("brkga-quick-start", 300))
    )
    found = [curves["BRKGA, quick start"][limit].mean for limit in (150, 300)]
    np.testing.assert_allclose(found, 1 - np.array(values) / reference, rtol=1e-5, atol=1e-6)
