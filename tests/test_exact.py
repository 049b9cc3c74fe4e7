"""Brute force against naive enumeration, CP-SAT against brute force, heuristics against both."""

import dataclasses
import itertools
import json
import math
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances

from benchmarks.__main__ import main as benchmarks
from regal_jax import contract, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, MissingExtraError, PlanError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, TransferModel
from regal_jax.heuristics import HEURISTICS, best_heuristic
from regal_jax.heuristics.exact import cp_sat, is_provable, prove
from regal_jax.importers import save_graph
from regal_jax.plan import Objective, Plan, adapt_plan, replay, transfer_event
from regal_jax.plan.summary import shortage
from regal_jax.runtime.compiling import usable
from regal_jax.solvers import Auto, CpSat
from regal_jax.solvers.loop.outcome import finished_plan

Instance = tuple[ComputationGraph, Cluster]


def _naive(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> tuple[float, float] | None:
    """The best plan over all placements and permutations of their events, by the replay only."""
    n, d = graph.num_ops, cluster.num_devices
    best = None
    for place in itertools.product(range(d), repeat=n):
        placement = np.array(place)
        events = list(range(n))
        if cluster.transfer is TransferModel.BLOCKING:
            pairs = zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True)
            moves = {(t, place[v]) for t, v in pairs if place[v] != place[graph.tensor_op[t]]}
            events += [transfer_event(graph, cluster, t, k) for t, k in moves]
        if len(events) > 6:
            return None
        for order in itertools.permutations(events):
            try:
                line = replay(graph, cluster, placement, order)
            except PlanError:
                continue
            over = float(np.maximum(line.peak_memory - np.array(cluster.memory), 0).sum())
            value = line.makespan if objective is Objective.MAKESPAN else float(line.peak_memory.max())
            best = min(best, (over, value)) if best else (over, value)
    return best


@pytest.mark.parametrize("objective", list(Objective))
@settings(max_examples=60)
@given(instance=instances(max_ops=4, devices=(1, 2)))
def test_brute_force_equals_naive_enumeration(objective: Objective, instance: Instance) -> None:
    expected = _naive(*instance, objective)
    if expected is not None:
        assert brute_force(*instance, objective).sort_key == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("objective", list(Objective))
@settings(max_examples=40)
@given(instance=instances(max_ops=6, devices=(1, 2, 3)))
def test_no_heuristic_beats_brute_force(objective: Objective, instance: Instance) -> None:
    best = brute_force(*instance, objective)
    over, value = best.sort_key
    for plan in best_heuristic(*instance, objective):
        assert plan.sort_key >= (over - 1e-9, value - 1e-9 * (1 + value)), plan.provenance
    assert value >= best.lower_bound * (1 - 1e-12)


def _unlimited(cluster: Cluster) -> Cluster:
    return dataclasses.replace(cluster, memory=(np.inf,) * cluster.num_devices)


def _check_against_brute_force(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> None:
    plan, best = cp_sat(graph, cluster, objective, workers=1), brute_force(graph, cluster, objective)
    events = graph.num_ops + graph.num_tensors * cluster.num_devices
    slack = plan.provenance["resolution"] * events + 1e-9 * (1 + best.objective_value)
    plan.verify(graph)
    assert plan.provenance["status"] == ("optimal" if best.feasible else "impossible")
    # On one device the least peak is the answer, also if it does not fit the memory.
    if best.feasible or (cluster.num_devices == 1 and objective is Objective.PEAK_MEMORY):
        assert abs(plan.objective_value - best.objective_value) <= slack
        assert best.objective_value - slack <= plan.provenance["bound"] <= best.objective_value + 1e-9


@settings(max_examples=60)
@given(instance=instances(max_ops=6, devices=(1, 2, 3)))
def test_cp_sat_makespan_equals_brute_force(instance: Instance) -> None:
    graph, cluster = instance
    _check_against_brute_force(graph, _unlimited(cluster), Objective.MAKESPAN)


@settings(max_examples=40)
@given(instance=instances(max_ops=6, devices=(1,)))
def test_cp_sat_peak_memory_equals_brute_force(instance: Instance) -> None:
    _check_against_brute_force(*instance, Objective.PEAK_MEMORY)


@settings(max_examples=15)
@given(instance=instances(max_ops=5, devices=(2, 3), transfers=["blocking"]))
def test_cp_sat_peak_memory_of_several_devices_equals_brute_force(instance: Instance) -> None:
    graph, cluster = instance
    _check_against_brute_force(graph, _unlimited(cluster), Objective.PEAK_MEMORY)


shares = st.tuples(*[st.floats(0.3, 1.8)] * 3)


def _limited(graph: ComputationGraph, cluster: Cluster, shares: tuple[float, ...]) -> Cluster:
    """Capacities in units of the least possible peak."""
    least = brute_force(graph, _unlimited(cluster), Objective.PEAK_MEMORY).objective_value
    return dataclasses.replace(
        cluster, memory=tuple(float(int(share * least)) for share in shares[: cluster.num_devices])
    )


@pytest.mark.parametrize("objective", list(Objective))
@settings(max_examples=30)
@given(instance=instances(max_ops=5, devices=(1, 2, 3), transfers=["blocking"]), shares=shares)
def test_cp_sat_with_limits_of_memory_equals_brute_force(
    objective: Objective, instance: Instance, shares: tuple[float, ...]
) -> None:
    _check_against_brute_force(instance[0], _limited(*instance, shares), objective)


@settings(max_examples=30)
@given(instance=instances(max_ops=5, devices=(2, 3), transfers=["blocking"]), shares=shares)
def test_a_proof_with_limits_of_memory_equals_brute_force(
    instance: Instance, shares: tuple[float, ...]
) -> None:
    graph, cluster = instance[0], _limited(*instance, shares)
    for objective in Objective:
        best = brute_force(graph, cluster, objective)
        if best.feasible:
            _check_proofs(graph, cluster, best)
        else:
            proof = prove(graph, cluster, dataclasses.replace(best, provenance={}), effort=2.0)
            assert proof.provenance == {"status": "impossible"}
            assert "as the solver has proven" in shortage(proof) or proof.impossible
            assert "no plan fits the memory" in str(proof)


@settings(max_examples=30)
@given(instance=instances(max_ops=5, devices=(2, 3), transfers=["free", "delay"]), shares=shares)
def test_what_ignores_limits_is_only_optimal_if_it_fits(
    instance: Instance, shares: tuple[float, ...]
) -> None:
    """Transfers that do not block are no events of the model with limits."""
    graph, cluster = instance[0], _limited(*instance, shares)
    best, free = brute_force(graph, cluster), brute_force(graph, _unlimited(cluster))
    plan = cp_sat(graph, cluster, workers=1)
    plan.verify(graph)
    assert plan.sort_key >= (best.sort_key[0] - 1e-9, best.sort_key[1] * (1 - 1e-9))
    assert plan.provenance["bound"] <= free.makespan * (1 + 1e-9)
    assert plan.provenance["status"] in (("optimal", "feasible") if plan.feasible else ("infeasible",))
    events = graph.num_ops + graph.num_tensors * cluster.num_devices
    slack = plan.provenance["resolution"] * events + 1e-9 * (1 + best.makespan)
    if best.feasible:
        proof = prove(graph, cluster, dataclasses.replace(best, provenance={}), effort=2.0)
        assert proof.makespan == best.makespan
        for found in (plan, proof):
            assert found.provenance.get("status") != "optimal" or found.makespan <= free.makespan + slack


@pytest.mark.slow
def test_large_graphs_are_modelled_without_limits() -> None:
    graph = generate("layered", 300, seed=0)
    cluster = Cluster.uniform(2, memory=10, transfer="blocking")
    plan = cp_sat(graph, cluster, time_limit=2)
    assert plan.provenance["status"] == "infeasible"
    least = optimize(graph, Cluster.uniform(2), objective="peak-memory", evaluations=2000, progress=False)
    roomy = Cluster.uniform(2, memory=2 * least.objective_value, transfer="blocking")
    assert cp_sat(graph, roomy, time_limit=2).provenance["status"] in ("feasible", "optimal")


@settings(max_examples=40)
@given(instance=instances(max_ops=6, devices=(2, 3)))
def test_a_proof_equals_brute_force(instance: Instance) -> None:
    graph, cluster = instance[0], _unlimited(instance[1])
    _check_proofs(graph, cluster, brute_force(graph, cluster))


def _check_proofs(graph: ComputationGraph, cluster: Cluster, best: Plan) -> None:
    objective = best.objective
    assert is_provable(graph, cluster, objective)
    # A plan that uses one device, which may not fit the memory, and the best one.
    single = HEURISTICS["single-device"](graph, cluster)
    events = single.event_ids(graph)
    one_device = Plan.from_events(graph, cluster, single.placement, events, objective=objective)
    for given_plan in (one_device, best):
        plan = prove(graph, cluster, given_plan, effort=2.0)
        events = graph.num_ops + graph.num_tensors * cluster.num_devices
        value = best.objective_value
        slack = plan.provenance["resolution"] * events + 1e-9 * (1 + value)
        assert plan.provenance["status"] == "optimal"
        assert value - slack <= plan.provenance["bound"] <= value + 1e-9 * (1 + value)
        assert value - slack <= plan.objective_value <= value + slack
        assert plan.sort_key <= given_plan.sort_key
        plan.verify(graph)


def test_auto_proves_plans_of_small_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.uniform(5, transfer="delay:latency=5us,bandwidth=10GB/s")
    graph = generate("layered", 11, seed=9037)
    without = optimize(graph, cluster, method=Auto(prove=False), progress=False)
    assert "status" not in without.provenance
    plan = optimize(graph, cluster, progress=False)
    assert plan.provenance["status"] == "optimal"
    assert plan.makespan == plan.provenance["bound"] == cp_sat(graph, cluster, workers=1).makespan
    assert plan.makespan <= without.makespan
    assert not plan.optimal  # The bound that everybody can check is lower.
    assert "optimal, as the solver has proven" in str(plan)
    plan.verify(graph)
    # Company does not change it.
    again = optimize_many([graph, generate("layered", 9, seed=1)], cluster, progress=False)[0]
    assert (again.makespan, again.provenance["status"]) == (plan.makespan, "optimal")
    # Too few evaluations to be worth a proof, too many ops, no OR-Tools.
    assert "status" not in optimize(graph, cluster, evaluations=1000, progress=False).provenance
    assert not is_provable(generate("layered", 40, seed=1), cluster)
    assert not is_provable(generate("layered", 20, seed=1), Cluster.uniform(2, transfer="blocking"))
    monkeypatch.setitem(sys.modules, "ortools", None)
    assert optimize(graph, cluster, progress=False).sort_key == without.sort_key


def test_auto_proves_plans_of_larger_graphs_with_free_transfers() -> None:
    graph, cluster = generate("erdos-renyi", 100, seed=2), Cluster.uniform(4, transfer="free")
    without = optimize(graph, cluster, method=Auto(prove=False), progress=False)
    plan = optimize(graph, cluster, progress=False)
    assert not without.optimal
    assert plan.provenance["status"] == "optimal"
    assert plan.provenance["bound"] == plan.makespan <= without.makespan
    plan.verify(graph)
    # Too many devices, delays, too many ops.
    assert not is_provable(graph, Cluster.uniform(6, transfer="free"))
    assert not is_provable(graph, Cluster.uniform(4, transfer="delay:latency=5us"))
    assert not is_provable(generate("erdos-renyi", 257, seed=2), Cluster.uniform(2, transfer="free"))


def test_a_proof_is_for_one_graph_and_one_cluster() -> None:
    builder = GraphBuilder("contracted")
    builder.add_op("a", runtime=3.0, outputs=[100])
    builder.add_op("b", runtime=5.0, outputs=[100, 100], control_inputs=["a"])
    builder.add_op("c", outputs=[0], inputs=["b:0", "b:1"])
    builder.add_op("d", runtime=3.0, outputs=[5], inputs=["c:0"])
    builder.add_op("e", runtime=4.0, outputs=[5], inputs=["b:1"])
    graph, cluster = builder.build(), Cluster([math.inf] * 2, "blocking", 0.5, 33.0)
    best, made = brute_force(graph, cluster).makespan, contract(graph)
    small = optimize(made.graph, cluster, progress=False)
    assert small.provenance["status"] == "optimal"
    plan = made.expand(small)
    assert best < plan.makespan == small.makespan
    whole = optimize(graph, cluster, method="cp-sat", progress=False)
    assert whole.provenance["status"] == "optimal"
    faster = Cluster([math.inf] * 2, "blocking", 0.25, 66.0)
    asked = optimize(graph, cluster, method="cp-sat", contract=True, progress=False)
    for other in (plan, asked, adapt_plan(whole, graph, faster), made.project(whole)):
        assert not {"status", "bound", "resolution"} & set(other.provenance)
        assert "as the solver has proven" not in str(other)


def test_what_a_proof_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = generate("layered", 11, seed=9037)
    cluster = Cluster.uniform(5, transfer="delay:latency=5us,bandwidth=10GB/s")
    worst = HEURISTICS["single-device"](graph, cluster)
    monkeypatch.setattr("regal_jax.solvers.loop.call.finished_plan", _told(worst))
    plan = optimize(graph, cluster, progress=False)
    told = plan.provenance
    assert plan.makespan < worst.makespan
    assert told["found_by"] == "cp-sat"
    assert "best_from" not in told
    assert "auto (cp-sat)" in str(plan)
    assert told["history"] == {
        "evaluations": [0, told["evaluations"]],
        "best": [worst.makespan, plan.makespan],
    }


@pytest.mark.skipif(not usable(), reason="BRKGA finds another plan")
def test_a_plan_of_the_solver_that_meets_the_bound_is_optimal() -> None:
    graph, cluster = generate("layered", 20, seed=18), Cluster.uniform(3, transfer="free")
    without = optimize(graph, cluster, method=Auto(prove=False), evaluations=2000, progress=False)
    plan = optimize(graph, cluster, evaluations=2000, progress=False)
    assert (without.provenance["stopped"], without.optimal) == ("budget", False)
    assert (plan.provenance["stopped"], plan.optimal) == ("optimal", True)
    assert plan.provenance["found_by"] == "cp-sat"


@pytest.mark.skipif(not usable(), reason="BRKGA finds another plan")
def test_a_plan_of_the_solver_that_reaches_the_target_is_told() -> None:
    graph = generate("layered", 14, seed=0)
    cluster = Cluster.uniform(4, transfer="delay:latency=5us,bandwidth=10GB/s")
    without = optimize(graph, cluster, method=Auto(prove=False), evaluations=2000, progress=False)
    plan = optimize(graph, cluster, evaluations=2000, progress=False)
    assert plan.makespan < without.makespan
    for target, stopped in ((plan.makespan, "target"), (plan.makespan / 1.001, "budget")):
        found = optimize(graph, cluster, evaluations=2000, target=target, progress=False)
        assert (found.makespan, found.optimal) == (plan.makespan, False)
        assert found.provenance["stopped"] == stopped
        assert found.provenance["found_by"] == "cp-sat"


def _told(worst: Plan) -> Callable[..., Plan]:
    """`finished_plan` with another plan, as if a heuristic had found it and nothing were better."""

    def finished(*arguments: object) -> Plan:
        plan = finished_plan(*arguments)  # pyright: ignore[reportArgumentType]
        said = {**plan.provenance, "best_from": "single-device"}
        said["history"] = {"evaluations": [0], "best": [worst.makespan]}
        return dataclasses.replace(worst, provenance=said)

    return finished


def test_a_proof_ends_in_time() -> None:
    """Where it would take long to build the model, there is no proof; the time of building counts."""
    builder = GraphBuilder("wide")
    for i in range(16):
        builder.add_op(f"o{i}", runtime=1.0, outputs=[1, 1, 1], inputs=[f"o{i - 1}:0"] if i else [])
    assert not is_provable(builder.build(), Cluster.uniform(32, transfer="blocking"))
    graph, cluster = generate("layered", 11, seed=9037), Cluster.uniform(5, transfer="delay:latency=5us")
    plan = HEURISTICS["single-device"](graph, cluster)
    assert prove(graph, cluster, plan, effort=1.0, seconds=1e-9) is plan


def test_times_too_small_for_the_solver() -> None:
    builder = GraphBuilder("tiny")
    for i in range(5):
        builder.add_op(
            f"o{i}", runtime=(i + 1) * 1e-310, outputs=[1], inputs=[f"o{i - 1}:0"] if i % 2 else []
        )
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    assert not is_provable(graph, cluster)
    optimize(graph, cluster, progress=False).verify(graph)


@pytest.mark.parametrize("runtime", [0.0, 2.0])
def test_tensors_that_nobody_reads_decide_no_step(runtime: float) -> None:
    builder = GraphBuilder("unread", time_unit="s")
    for name in "ab":
        builder.add_op(name, runtime=runtime, outputs=[7])
    plan = cp_sat(builder.build(), Cluster.uniform(2, transfer="nvlink4"), workers=1)
    assert plan.makespan == plan.provenance["bound"] == runtime
    assert (plan.provenance["status"], plan.provenance["resolution"]) == ("optimal", 0.0)


def _rendezvous() -> ComputationGraph:
    builder = GraphBuilder("rendezvous")
    builder.add_op("a", runtime=1.0, outputs=[1], allowed_devices=[0])
    builder.add_op("long", runtime=10.0, allowed_devices=[1])
    builder.add_op("b", runtime=2.0, inputs=["a"], allowed_devices=[1])
    builder.add_op("c", runtime=11.0, control_inputs=["a"], allowed_devices=[0])
    return builder.build()


@pytest.mark.parametrize(
    ("transfer", "expected"),
    # free: long, then b. blocking: the copy must fall inside neither "long" nor c: the devices meet at 1,
    # before both. delay: b starts at 21.
    [("free", 12.0), ("blocking", 13.0), ("delay:latency=20", 23.0)],
)
def test_a_copy_of_no_length_is_still_a_meeting(transfer: str, expected: float) -> None:
    graph, cluster = _rendezvous(), Cluster.uniform(2, transfer=transfer)
    assert brute_force(graph, cluster).makespan == expected
    plan = cp_sat(graph, cluster, workers=1)
    assert plan.makespan == expected
    assert plan.provenance["resolution"] == 0.0


def _layered(n: int, seed: int) -> ComputationGraph:
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"layered{n}")
    for o in range(n):
        reads = rng.choice(range(max(0, o - 5), o), size=min(o, 2)).tolist() if o else []
        builder.add_op(
            f"o{o}",
            runtime=float(rng.integers(1, 10)),
            outputs=[int(rng.integers(1, 100))],
            inputs=[(u, 0) for u in reads],
        )
    return builder.build()


@pytest.mark.parametrize("transfer", ["free", "blocking"])
def test_cp_sat_twenty_ops(transfer: str) -> None:
    graph, cluster = _layered(20, 0), Cluster.uniform(2, transfer=transfer)
    plan = cp_sat(graph, cluster, time_limit=30)
    assert plan.provenance["status"] == "optimal"
    assert plan.provenance["bound"] == pytest.approx(plan.makespan)
    assert plan.sort_key <= best_heuristic(graph, cluster)[0].sort_key


def test_cp_sat_peak_memory_twenty_ops() -> None:
    graph, cluster = _layered(20, 1), Cluster.uniform(1)
    plan = cp_sat(graph, cluster, "peak-memory", time_limit=30)
    assert plan.provenance["status"] == "optimal"
    assert plan.provenance["bound"] == plan.objective_value
    assert plan.sort_key <= best_heuristic(graph, cluster, "peak-memory")[0].sort_key


def test_cp_sat_out_of_time_still_answers() -> None:
    graph, cluster = _layered(60, 2), Cluster.uniform(3, transfer="blocking")
    plan = cp_sat(graph, cluster, time_limit=1e-3)
    assert plan.provenance["status"] == "feasible"
    assert plan.lower_bound <= plan.provenance["bound"] <= plan.makespan
    assert plan.sort_key <= best_heuristic(graph, cluster)[0].sort_key


def test_cp_sat_states_its_resolution() -> None:
    graph = _layered(5, 3)
    odd = dataclasses.replace(graph, runtime=graph.runtime * np.pi)
    plan = cp_sat(odd, Cluster.uniform(2, transfer="blocking"), workers=1)
    assert 0 < plan.provenance["resolution"] < 1e-3
    assert plan.makespan == pytest.approx(
        brute_force(odd, Cluster.uniform(2, transfer="blocking")).makespan, rel=1e-5
    )
    tiny = dataclasses.replace(graph, runtime=graph.runtime * 1e-6)
    plan = cp_sat(tiny, Cluster.uniform(2, transfer="blocking"), workers=1)
    assert plan.provenance["resolution"] == 0.0


@pytest.mark.parametrize("transfer", ["delay", "blocking"])
@pytest.mark.parametrize("model", ["cp_sat", "prove"])
def test_links_so_slow_that_no_good_plan_uses_them(transfer: str, model: str) -> None:
    """The steps of time follow from plans, not from the sum of all transfers."""
    builder = GraphBuilder("far")
    for i in range(6):
        builder.add_op(f"o{i}", runtime=float(i + 1), outputs=[1], inputs=[f"o{i - 3}"] if i >= 3 else [])
    graph, cluster = builder.build(), Cluster([math.inf] * 2, transfer, latency=1e9 / 3)
    # Chains of 1 and 4, 2 and 5, 3 and 6; the best division is 9 and 12.
    assert brute_force(graph, cluster).makespan == 12.0
    start = HEURISTICS["single-device"](graph, cluster)
    plan = (
        cp_sat(graph, cluster, workers=1) if model == "cp_sat" else prove(graph, cluster, start, effort=9.0)
    )
    assert plan.makespan == 12.0
    assert plan.provenance["status"] == "optimal"
    assert plan.provenance["bound"] == pytest.approx(12.0, rel=1e-4)
    assert plan.provenance["resolution"] < 1e-3


@pytest.mark.parametrize(
    "settings",
    [
        {"time_limit": 0},
        {"time_limit": math.nan},
        {"time_limit": "1s"},
        {"workers": 0},
        {"workers": 1.5},
        {"workers": True},
    ],
)
def test_settings_are_checked_where_they_are_given(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"^CpSat: {next(iter(settings))}"):
        CpSat(**settings)


def test_what_is_refused() -> None:
    graph = _layered(7, 0)
    with pytest.raises(ConfigError, match="supported with blocking transfers, not free"):
        cp_sat(graph, Cluster.uniform(2, transfer="free"), "peak-memory")
    with pytest.raises(ConfigError, match="time_limit"):
        cp_sat(graph, Cluster.uniform(2, transfer="blocking"), time_limit=0)
    for workers in (0, 1.5, 10_001):
        with pytest.raises(ConfigError, match="workers"):
            cp_sat(graph, Cluster.uniform(2, transfer="blocking"), workers=workers)  # pyright: ignore
    with pytest.raises(ConfigError, match="too little to be counted; choose another time unit"):
        cp_sat(
            dataclasses.replace(graph, runtime=graph.runtime * 1e-310), Cluster.uniform(2, transfer="free")
        )


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(MissingExtraError, match=r"regal-jax\[exact\]"):
        cp_sat(_layered(4, 0), Cluster.uniform(2, transfer="blocking"))


def test_result_is_a_plan_of_its_own() -> None:
    plan = cp_sat(_layered(6, 4), Cluster.uniform(2, transfer="blocking"), workers=1)
    assert isinstance(plan, Plan)
    assert plan.provenance["method"] == "cp-sat"


def test_ctrl_c_means_afterwards_what_it_meant_before():
    # A failure would end the process, so use a separate one.
    code = """
        import signal
        from regal_jax import Cluster
        from regal_jax.datasets import generate
        from regal_jax.heuristics.exact import cp_sat
        cp_sat(generate("chain", 3, 0), Cluster.uniform(2))
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            print("interrupted")
        """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert done.stdout == "interrupted\n", done.stderr


def test_the_benchmark_of_optima(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "optima.json"
    for transfer in ("delay", "free"):
        options = ["--graphs", "2", "--transfer", transfer, "--evaluations", "300", "--seconds", "5"]
        assert benchmarks(["optima", *options, "--out", str(out)]) == 0
        rows = json.loads(out.read_text())
        assert [row["status"] for row in rows] == ["optimal"] * 2
        for row in rows:
            assert row["auto"]["value"] >= row["bound"] * (1 - 1e-9)
    assert "free; CP-SAT proves 2 in 5 s each" in capsys.readouterr().out


@pytest.mark.parametrize("objective", list(Objective))
def test_the_benchmark_of_optima_with_limits_of_memory(
    objective: Objective, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "optima.json"
    options = ["--graphs", "2", "--most-ops", "10", "--most-devices", "2", "--capacity", "1.2"]
    options += [
        "--transfer",
        "blocking",
        "--objective",
        str(objective),
        "--evaluations",
        "300",
        "--seconds",
        "10",
    ]
    assert benchmarks(["optima", *options, "--out", str(out)]) == 0
    for row in json.loads(out.read_text()):
        assert row["ops"] == 10
        assert row["status"] in ("optimal", "impossible")
        if row["auto"]["fits"]:
            assert row["auto"]["value"] >= row["bound"] * (1 - 1e-9)
    assert "do not fit" in capsys.readouterr().out


def test_the_benchmark_of_optima_of_a_folder(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "graphs", tmp_path / "optima.json"
    folder.mkdir()
    for name, seed in (("a", 0), ("b", 1)):
        save_graph(_layered(12, seed), folder / f"{name}.stg", lossy=True)
    options = ["--data", str(folder), "--graphs", "1", "--evaluations", "300", "--seconds", "5"]
    assert benchmarks(["optima", *options, "--transfer", "free", "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [(row["graph"], row["devices"]) for row in rows] == [("a", d) for d in (2, 4, 8, 16)]
    assert "4 cases, free" in capsys.readouterr().out
    assert benchmarks(["optima", *options]) == 2
    assert "a: its sizes or runtimes are all zero; use --transfer free" in capsys.readouterr().err
