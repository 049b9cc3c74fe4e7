"""Public functions refuse arguments of another kind in one line, with an error of the library."""

import dataclasses

import jax
import numpy as np
import pytest

import regal_jax
from regal_jax import Cluster, gflownet, importers, learning, ordering, plan, policies, robust, viz
from regal_jax.corpus import (
    card_facts,
    check_corpus,
    finish,
    read_family_splits,
    write_card,
    write_family_splits,
    write_sample,
)
from regal_jax.datasets import (
    Recipe,
    build_set,
    generate,
    iterate_set,
    load_corpus,
    load_graphs,
    load_sample,
    read_set,
    with_noise,
)
from regal_jax.errors import ConfigError, FormatError, GraphError, PlanError
from regal_jax.experiments import EvaluationConfig, make_method, run_evaluation, tune
from regal_jax.graph import constrain, induced, topology_hash, without_residents
from regal_jax.heuristics import best_heuristic, run_heuristic
from regal_jax.learning.gflownet import train_gflownet
from regal_jax.learning.insertion import train_insertion
from regal_jax.learning.ordering import train_orders
from regal_jax.problem import Bucket, make_problem
from regal_jax.solvers import ApproximateDp, Brkga, Heuristic, Portfolio, with_settings

GRAPH, CLUSTER = generate("layered", 12, seed=0), Cluster.uniform(2)
PLAN = regal_jax.optimize(GRAPH, CLUSTER, method="bfs")
KEYS = jax.random.split(jax.random.key(0), 1)


def schedules(key=KEYS[0], **options):
    return gflownet.sample_schedules(gflownet.default_gflownet(), GRAPH, CLUSTER, key, **options)


def one_device():
    return make_problem([GRAPH], Cluster.uniform(1, transfer="free"), Bucket.of(GRAPH))


def trained(**options):
    return learning.train(learning.TrainConfig(), [GRAPH], [GRAPH], "out", **options)


OF_GRAPHS = {
    "lower_bound": lambda g: plan.lower_bound(g, CLUSTER, "makespan"),
    "why_impossible": lambda g: plan.why_impossible(g, CLUSTER),
    "makespan_upper_bound": lambda g: plan.makespan_upper_bound(g, CLUSTER),
    "critical_path": lambda g: plan.critical_path(g, GRAPH.runtime),
    "parallelism": plan.parallelism,
    "contract_for": lambda g: plan.contract_for(g, CLUSTER, "makespan"),
    "decode_order": lambda g: plan.decode_order(g, CLUSTER, PLAN.placement, np.zeros(12), np.zeros((12, 2))),
    "decode_placement": lambda g: plan.decode_placement(g, CLUSTER, np.zeros((12, 2))),
    "replay": lambda g: plan.replay(g, CLUSTER, PLAN.placement, PLAN.event_ids(GRAPH)),
    "outcome": lambda g: plan.outcome(g, CLUSTER, PLAN.placement, PLAN.event_ids(GRAPH)),
    "event_ids": PLAN.event_ids,
    "insert_transfers": lambda g: plan.insert_transfers(g, CLUSTER, PLAN.placement, np.arange(12)),
    "order_bound": plan.order_bound,
    "plan_fitness": lambda g: plan.plan_fitness(PLAN, g),
    "adapt_plan": lambda g: plan.adapt_plan(PLAN, g, CLUSTER),
    "make_order_inputs": lambda g: ordering.make_order_inputs([g], ordering.TopoformerConfig()),
    "decode_orders": lambda g: ordering.decode_orders(ordering.default_topoformer(), [g], KEYS),
    "graph_priorities": lambda g: ordering.graph_priorities(ordering.default_topoformer(), g),
    "make_inputs": lambda g: policies.make_inputs([g], CLUSTER, None, policies.PolicyConfig()),
    "relation_matrix": ordering.relation_matrix,
    "make_schedule_inputs": lambda g: gflownet.make_schedule_inputs(g, CLUSTER),
    "start_times": lambda g: robust.start_times(g, CLUSTER, np.zeros((1, 12), int), np.zeros((1, 12), int)),
    "candidates": lambda g: robust.Candidates.of(g, CLUSTER, np.zeros((1, 12), int), np.zeros((1, 12), int)),
    "candidates_of_plans": lambda g: robust.Candidates.of_plans(g, [PLAN]),
    "speedup": lambda g: robust.speedup(g, np.ones(1)),
    "time_scale": robust.time_scale,
    "constrain": constrain,
    "induced": lambda g: induced(g, np.ones(12, bool)),
    "without_residents": without_residents,
    "topology_hash": topology_hash,
    "format_native": importers.format_native,
    "format_stg": importers.format_stg,
    "format_cost_graph": importers.format_cost_graph,
    "run_heuristic": lambda g: run_heuristic("bfs", g, CLUSTER),
    "best_heuristic": lambda g: best_heuristic(g, CLUSTER),
}
OF_CLUSTERS = {
    "lower_bound": lambda c: plan.lower_bound(GRAPH, c, "makespan"),
    "why_impossible": lambda c: plan.why_impossible(GRAPH, c),
    "contract_for": lambda c: plan.contract_for(GRAPH, c, "makespan"),
    "decode_order": lambda c: plan.decode_order(GRAPH, c, PLAN.placement, np.zeros(12), np.zeros((12, 2))),
    "replay": lambda c: plan.replay(GRAPH, c, PLAN.placement, PLAN.event_ids(GRAPH)),
    "outcome": lambda c: plan.outcome(GRAPH, c, PLAN.placement, PLAN.event_ids(GRAPH)),
    "adapt_plan": lambda c: plan.adapt_plan(PLAN, GRAPH, c),
    "make_inputs": lambda c: policies.make_inputs([GRAPH], [c], None, policies.PolicyConfig()),
    "candidates": lambda c: robust.Candidates.of(GRAPH, c, np.zeros((1, 12), int), np.zeros((1, 12), int)),
    "make_schedule_inputs": lambda c: gflownet.make_schedule_inputs(GRAPH, c),
    "run_heuristic": lambda c: run_heuristic("bfs", GRAPH, c),
    "best_heuristic": lambda c: best_heuristic(GRAPH, c),
    "start_times": lambda c: robust.start_times(GRAPH, c, np.zeros((1, 12), int), np.zeros((1, 12), int)),
}


@pytest.mark.parametrize("wrong", [None, 3, "graph.json", [], {}], ids=repr)
@pytest.mark.parametrize("name", OF_GRAPHS)
def test_what_is_no_graph(name, wrong):
    with pytest.raises(ConfigError, match=r"graphs?: give a ComputationGraph, got ") as error:
        OF_GRAPHS[name](wrong)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [None, 2, "nvlink4", [], {}], ids=repr)
@pytest.mark.parametrize("name", OF_CLUSTERS)
def test_what_is_no_cluster(name, wrong):
    with pytest.raises(ConfigError, match="cluster: give a Cluster, got "):
        OF_CLUSTERS[name](wrong)


def test_functions_of_pairs_take_names():
    assert plan.lower_bound(graph=GRAPH, cluster=CLUSTER, objective="makespan") == PLAN.lower_bound
    assert plan.lower_bound(GRAPH, objective="makespan", cluster=CLUSTER) == PLAN.lower_bound
    with pytest.raises(TypeError, match="missing a required argument: 'objective'"):
        plan.lower_bound(GRAPH, cluster=CLUSTER)


@pytest.mark.parametrize(
    "read", [read_set, lambda path: list(iterate_set(path)), lambda p: load_graphs(p, "test")]
)
@pytest.mark.parametrize("wrong", [None, 3, [], b"set"], ids=repr)
def test_sets_have_paths(read, wrong):
    with pytest.raises(FormatError, match="path: give the name of a file, got "):
        read(wrong)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: plan.verify(3, GRAPH), "plan: give a Plan, got int"),
        (lambda: plan.adapt_plan(None, GRAPH, CLUSTER), "plan: give a Plan, got NoneType"),
        (lambda: plan.plan_fitness("plan.json", GRAPH), "plan: give a Plan, got str"),
        (
            lambda: plan.adapt_plan(PLAN, GRAPH, CLUSTER, provenance="x"),
            "provenance: give a Mapping, got str",
        ),
        (
            lambda: plan.Plan.from_events(GRAPH, CLUSTER, PLAN.placement, [], provenance="x"),
            "provenance: give a Mapping, got str",
        ),
        (lambda: plan.contract(GRAPH).expand("plan.json"), "plan: give a Plan, got str"),
        (lambda: PLAN.placement_of(["op1"]), "op: give a str, got list"),
        (lambda: GRAPH.tensor_index(3), "name: give a str, got int"),
        (lambda: constrain(GRAPH, {"op1": 0}, devices="2"), "devices: must be a whole number of at least 1"),
        (
            lambda: dataclasses.replace(GRAPH, op_names=None),
            "op_names: give a list with an entry for each op",
        ),
        (lambda: dataclasses.replace(GRAPH, runtime=3.0), "runtime: shape (); give one number each"),
        (
            lambda: regal_jax.optimize(GRAPH, CLUSTER, method="list-search", warm_start=np.array(3)),
            "warm_start: give True, False, a Plan",
        ),
        (
            lambda: plan.insert_transfers(GRAPH, CLUSTER, None, range(12)),
            "placement: give whole numbers in one row",
        ),
        (
            lambda: plan.insert_transfers(GRAPH, CLUSTER, [0, 1], range(12)),
            "placement has shape (2,), expected (12,)",
        ),
        (
            lambda: plan.insert_transfers(GRAPH, CLUSTER, PLAN.placement, "x"),
            "op_order: give whole numbers in one row",
        ),
        *(
            (
                lambda order=order: plan.insert_transfers(GRAPH, CLUSTER, PLAN.placement, order),
                "op_order: give each of the 12 ops once",
            )
            for order in ([0] * 12, range(11), range(1, 13), range(-1, 11), [])
        ),
        (lambda: plan.order_bound(GRAPH, 3), "order: give whole numbers in one row"),
        (lambda: plan.order_bound(GRAPH, [0, 0]), "order: give each of the 12 ops once"),
        (lambda: policies.shipped_policy([], "makespan", 2), "policy: give a str, got list"),
        (lambda: policies.default_policy("makespan", [2]), "num_devices: must be a whole number"),
        (lambda: ordering.shipped_topoformer([]), "weights: give a str, got list"),
        (lambda: gflownet.shipped_gflownet(3), "weights: give a str, got int"),
        (lambda: gflownet.make_schedule_inputs(GRAPH, CLUSTER, ops=10**30), "schedule inputs: ops: must be"),
        (lambda: ordering.decode_orders(ordering.default_topoformer(), 3, KEYS), "graphs: give a Sequence"),
        (lambda: ordering.decode_orders(3, [GRAPH], KEYS), "model: give a Topoformer, got int"),
        (
            lambda: ordering.decode_orders(ordering.default_topoformer(), [GRAPH], KEYS, seconds="9"),
            "seconds: is '9'; give a number of at least 0",
        ),
        (
            lambda: ordering.decode_orders(
                ordering.default_topoformer(), [GRAPH], KEYS, decoding=np.array(["beam", "sample"])
            ),
            "decoding: unknown array(['beam', 'sample']",
        ),
        (lambda: ordering.greedy(3, np.zeros((1, 12), np.float32)), "problem: give a Problem, got int"),
        (lambda: ordering.greedy(one_device(), [0.0] * 12), "priorities: must be float32 [1, 64] for this"),
        (lambda: ordering.sample(one_device(), 3, KEYS, 1), "for this problem, got int; give one number per"),
        (
            lambda: ordering.peaks(one_device(), [[0]]),
            "orders: must be int32 [1, S, 64] for this problem, got",
        ),
        (
            lambda: ordering.sample(
                one_device(), np.zeros((1, 64), np.float32), KEYS, 1, implementation=np.arange(2)
            ),
            "implementation: unknown array([0, 1]); use one of xla, host",
        ),
        (
            lambda: ApproximateDp(implementation=np.arange(2)),
            "ApproximateDp: implementation is array([0, 1]); give 'host'",
        ),
        (lambda: ordering.graph_priorities(3, GRAPH), "model: give a Topoformer, got int"),
        (lambda: schedules(key=0), "key: give a typed key, such as jax.random.key(0), got 0"),
        (lambda: schedules(key=KEYS), "key: give a typed key, such as jax.random.key(0), got "),
        (lambda: schedules(seconds=-1), "seconds: is -1; give a number of at least 0"),
        (
            lambda: policies.make_inputs(3, CLUSTER, None, policies.PolicyConfig()),
            "graphs: give a Sequence, got int",
        ),
        (
            lambda: policies.make_inputs([GRAPH], 3, None, policies.PolicyConfig()),
            "clusters: give a Sequence, got int",
        ),
        (lambda: policies.make_features([GRAPH], CLUSTER, None, 3), "config: give a FeatureConfig, got int"),
        (lambda: policies.make_prior([GRAPH], CLUSTER, None, 3), "config: give a PolicyConfig, got int"),
        (lambda: robust.Candidates.of_plans(GRAPH, [3]), "plans: give a Plan, got int"),
        (lambda: robust.Candidates.of_plans(GRAPH, 3), "plans: give an Iterable, got int"),
        (lambda: robust.noisy(GRAPH, CLUSTER).measure([3]), "plans: give a Plan, got int"),
        (lambda: robust.noisy(GRAPH, CLUSTER).measure(3), "plans: give an Iterable, got int"),
        (lambda: learning.train(3, [GRAPH], [GRAPH], "out"), "config: give a TrainConfig, got int"),
        (
            lambda: trained(implementation="pallas-gpu"),
            "implementation: unknown 'pallas-gpu'; use one of xla",
        ),
        (lambda: trained(implementation=[]), "implementation: unknown []; use one of xla"),
        (lambda: trained(devices=3), "devices: give a list of JAX devices, got int"),
        (lambda: trained(devices=[3]), "devices: give a list of different JAX devices, got [3]"),
        (lambda: learning.training_graphs(3), "config: give a TrainConfig, got int"),
        (lambda: train_orders(3, "out"), "config: give an OrderTrainConfig, got int"),
        (lambda: train_gflownet(3, "out"), "config: give a GflownetTrainConfig, got int"),
        (lambda: train_insertion(3, "out"), "config: give an InsertionTrainConfig, got int"),
        (lambda: robust.cover(3, 2, robust.Scenarios(), KEYS[0]), "found: give a Candidates, got int"),
        (lambda: regal_jax.compare(GRAPH, CLUSTER, 3), "methods: give a list of at least one method, got 3"),
        (lambda: regal_jax.compare(GRAPH, CLUSTER, None), "methods: give a list of at least one method"),
        (lambda: regal_jax.load_example([]), "example: there is no []"),
        (lambda: regal_jax.load_graph("graph.json", []), "format [] is unknown"),
        (lambda: regal_jax.save_graph(GRAPH, "graph.json", 3), "format 3 is unknown"),
        (lambda: regal_jax.save_graph(3, "graph.json"), "graph: give a ComputationGraph, got int"),
        (lambda: regal_jax.optimize_many([GRAPH], CLUSTER, devices=3), "devices: give a list of JAX devices"),
        (
            lambda: regal_jax.optimize_many([GRAPH], CLUSTER, store=3),
            "path: give the name of a file, got int",
        ),
        (lambda: Portfolio(Brkga(), shares=3), "Portfolio: shares: give an Iterable, got int"),
        (lambda: Heuristic(3), "Heuristic: heuristic: give a str, got int"),
        (lambda: run_heuristic(3, GRAPH, CLUSTER), "method: unknown heuristic 3"),
        (lambda: run_heuristic("bfs", GRAPH, CLUSTER, seed=[]), "seed: must be a whole number"),
        (lambda: with_settings(Brkga(), 3), "settings: give a Mapping, got int"),
        (lambda: importers.parse_native(3), "give text, got int"),
        (lambda: importers.parse_wfformat(None), "give text, got NoneType"),
        (lambda: importers.parse_stg(3), "text: give a str, got int"),
        (lambda: importers.parse_cost_graph(3), "text: give a str, got int"),
        (lambda: importers.parse_hlo(3), "text: give a str, got int"),
        (lambda: check_corpus(3), "path: give the name of a file, got int"),
        (lambda: check_corpus("corpus", progress=5), "progress: 5 is no function"),
        (lambda: card_facts("corpus", progress=5), "progress: 5 is no function"),
        (lambda: write_card("card", None), "path: give the name of a file, got NoneType"),
        (lambda: write_sample(None, "out"), "path: give the name of a file, got NoneType"),
        (lambda: write_sample("corpus", "out", progress=5), "progress: 5 is no function"),
        (lambda: write_family_splits(None, "out"), "path: give the name of a file, got NoneType"),
        (lambda: write_family_splits("corpus", None), "path: give the name of a file, got NoneType"),
        (lambda: finish(None), "path: give the name of a file, got NoneType"),
        (lambda: card_facts(None), "path: give the name of a file, got NoneType"),
        (lambda: read_family_splits(None), "path: give the name of a file, got NoneType"),
        (lambda: viz.plot_limits(3, "brkga"), "curves: give a Mapping, got int"),
        (lambda: viz.plot_sizes(3), "groups: give a Mapping, got int"),
        (lambda: viz.plot_targets(None), "points: give a Mapping, got NoneType"),
        (lambda: EvaluationConfig("sample", options={3: {}}), "options: name: give a str, got int"),
        (lambda: EvaluationConfig("sample", policies={3: "x"}), "policies: name: give a str, got int"),
        (lambda: EvaluationConfig("sample", split=3), "split: there is no 3; use one of train"),
        (lambda: make_method(3), "method: give a str, got int"),
        (lambda: make_method("brkga", settings=3), "settings: give a Mapping, got int"),
        (lambda: run_evaluation(3, "out"), "config: give an EvaluationConfig, got int"),
        (lambda: tune(3, CLUSTER), "graphs: give an Iterable, got int"),
        (lambda: tune([GRAPH], ["x"]), "cluster: give a Cluster, e.g. Cluster.uniform(2), got 'x'"),
        (lambda: tune([GRAPH], CLUSTER, grid=3), "grid: give a Mapping, got int"),
        (lambda: tune([GRAPH], CLUSTER, results=3), "path: give the name of a file, got int"),
        (lambda: load_corpus(3), "path: give the name of a file, got int"),
        (lambda: load_corpus("corpus", max_ops=-1), "max_ops: must be a whole number of at least 0, got -1"),
        (
            lambda: load_corpus("corpus", max_ops=float("nan")),
            "max_ops: must be a whole number of at least 0",
        ),
        (lambda: load_sample(folder=None), "path: give the name of a file, got NoneType"),
        (
            lambda: load_graphs("sample", "test", max_ops="10"),
            "max_ops: must be a whole number of at least 0",
        ),
        (
            lambda: load_graphs("sample", "test", contracted_for=3),
            "contracted_for: give a cluster and an objective, got 3",
        ),
        (lambda: load_graphs("sample", []), "split: there is no []; use one of train"),
        (lambda: read_set("set", progress=3), "progress: 3 is no function"),
        (lambda: with_noise(3, 0), "graph: give a ComputationGraph, got int"),
        (lambda: generate([], 3, 0), "family: unknown []"),
        (lambda: generate("chain", 10**12, 0), "n: must be a whole number of at most 10000000"),
        (lambda: Recipe(topologies=3), "topologies: give a Sequence, got int"),
        (lambda: Recipe(parameters=None), "parameters: give a Mapping, got NoneType"),
        (lambda: build_set("set", sizes=3), "sizes: give a Mapping, got int"),
        (lambda: build_set("set", recipe="x"), "recipe: give a Recipe, got str"),
        (lambda: build_set("set", keep=3), "keep: 3 is no function"),
        (lambda: build_set("set", filter_settings=3), "filter_settings: give a Mapping, got int"),
        (lambda: build_set("set", progress=5), "progress: 5 is no function"),
        (lambda: build_set("set", archive="yes"), "archive: give a bool, got str"),
    ],
)
def test_what_cannot_be(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ConfigError, FormatError, GraphError, PlanError)) as error:
        call()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())
