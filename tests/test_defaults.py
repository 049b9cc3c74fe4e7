"""The default method on links that take time.

It contracts graphs, follows the searches that improve plans, and is not worse with more devices or with
limits that do not bind."""

import dataclasses

import numpy as np
import pytest

from regal_jax import Auto, Brkga, Cluster, GraphBuilder, load_example, optimize, optimize_many
from regal_jax.datasets import generate, load_sample
from regal_jax.heuristics import (
    HEURISTICS,
    ListSearchConfig,
    ListSearchRun,
    heuristic_plans,
    run_heuristic,
)
from regal_jax.plan import Objective, contract_for
from regal_jax.search import Status
from regal_jax.solvers.loop import turns as budget
from regal_jax.solvers.loop.turns import Turn, next_turn

LINK = "blocking:latency=10us,bandwidth=25GB/s"
FAST = "blocking:latency=5us,bandwidth=300GB/s"


@pytest.fixture(scope="module")
def step():
    """A training step of about 200 ops."""
    return load_example("mlp")


@pytest.fixture(scope="module")
def model():
    return next(graph for record, graph in load_sample("train") if "crossvit" in record["path"])


def chains(number, length, seed):
    """Chains of short ops with large tensors, each of which starts with the results of up to two others."""
    random, builder = np.random.default_rng(seed), GraphBuilder(f"chains-{seed}")
    for i in range(number):
        before = random.choice(i, size=min(i, int(random.integers(3))), replace=False) if i else ()
        inputs = [f"{k}.{length - 1}:0" for k in before]
        for j in range(length):
            size = int(random.integers(2**14, 2**18))
            builder.add_op(f"{i}.{j}", runtime=random.uniform(1e-6, 3e-6), outputs=[size], inputs=inputs)
            inputs = [f"{i}.{j}:0"]
    return builder.build()


def same(a, b):
    np.testing.assert_array_equal(a.placement, b.placement)
    np.testing.assert_array_equal(a.timeline.op, b.timeline.op)
    np.testing.assert_array_equal(a.timeline.start, b.timeline.start)


class TestLimitsThatDoNotBind:
    @pytest.mark.parametrize("name", sorted(HEURISTICS))
    def test_no_heuristic_notices(self, step, name):
        free = run_heuristic(name, step, Cluster.uniform(4, transfer=FAST))
        # More than any device holds, and less than all tensors together.
        wide = max(1.01 * float(free.peak_memory.max()), 0.5 * float(step.tensor_bytes.sum()))
        same(free, run_heuristic(name, step, Cluster.uniform(4, wide, FAST)))

    # The stages of "auto" include BRKGA.
    @pytest.mark.parametrize("method", ["auto", pytest.param("brkga", marks=pytest.mark.slow)])
    def test_the_plan_is_the_same(self, model, method):
        options = {"evaluations": 300, "seed": 1, "method": method}
        free = optimize(model, Cluster.uniform(4, transfer=FAST), **options)
        wide = float(model.tensor_bytes.sum()) * 0.9
        assert wide > free.peak_memory.max()
        same(free, optimize(model, Cluster.uniform(4, wide, FAST), **options))

    def test_the_contracted_graph_is_the_same(self, step):
        free = contract_for(step, Cluster.uniform(2), Objective.MAKESPAN)
        wide = float(step.tensor_bytes.sum()) * 0.99
        alone = run_heuristic("given", step, Cluster.uniform(1)).peak_memory.max()
        assert wide > alone
        assert (
            contract_for(step, Cluster.uniform(2, wide), Objective.MAKESPAN).graph.num_ops
            == free.graph.num_ops
        )
        tight = contract_for(step, Cluster.uniform(2, 0.5 * float(alone)), Objective.MAKESPAN)
        assert tight.graph.num_ops > free.graph.num_ops


class TestMoreDevices:
    @pytest.mark.parametrize("transfer", [LINK, FAST])
    def test_heuristics_know_the_plans_for_fewer(self, step, transfer):
        best = [
            min(
                heuristic_plans(step, Cluster.uniform(d, transfer=transfer)), key=lambda p: p.sort_key
            ).makespan
            for d in (1, 2, 4, 8)
        ]
        assert best == sorted(best, reverse=True)

    def test_the_default_is_no_worse(self, step):
        made = [
            optimize(step, Cluster.uniform(d, transfer=FAST), evaluations=1500).makespan for d in (2, 4, 8)
        ]
        assert made[1] <= made[0] * 1.02
        assert made[2] <= made[1] * 1.02

    def test_the_fastest_of_unequal_ones(self):
        graph = generate("layered", 40, 3)
        slow = graph.runtime[:, None] * np.array([9.0, 1.0, 9.0, 1.0])
        both = [graph.runtime[:, None] * np.ones(2), slow]
        plans = [
            run_heuristic("partition-list", dataclasses.replace(graph, runtime=runtime), cluster)
            for runtime, cluster in zip(both, (Cluster.uniform(2), Cluster.uniform(4)), strict=True)
        ]
        assert plans[1].makespan <= plans[0].makespan


class TestContraction:
    def test_it_is_decided_for_each_graph(self, step):
        cluster = Cluster.uniform(4, transfer=FAST)
        both = optimize(step, cluster, evaluations=1500)
        both.verify(step)
        told = [part["contracted"] for part in both.provenance["parts"] if "contracted" in part]
        assert told == [contract_for(step, cluster, Objective.MAKESPAN).graph.num_ops]
        # `auto` does not search a contraction that merges few ops; other methods contract only if asked.
        for graph, options in ((generate("erdos-renyi", 40, 0), {}), (step, {"contract": False})):
            plan = optimize(graph, cluster, evaluations=100, **options)
            assert not any("contracted" in part for part in plan.provenance["parts"])
        assert "contraction" not in optimize(step, cluster, method="brkga", evaluations=100).provenance

    def test_where_it_does_not_pay_it_costs_little(self, step):
        cluster, ratios = Cluster.uniform(2, transfer=FAST), []
        for seed in range(3):  # Single seeds differ by several percent, either way.
            both, without = (
                optimize(step, cluster, contract=contract, evaluations=2000, seed=seed).makespan
                for contract in (None, False)
            )
            ratios.append(both / without)
        assert np.mean(ratios) <= 1.03

    def test_it_pays(self):
        cluster, ratios = Cluster.uniform(2, transfer=LINK), []
        # Trained insertion moves make up for a part of what contraction gains.
        method = Auto(list_search=ListSearchConfig(insertion_policy="none"))
        for seed in range(6):
            graph = chains(60, 20, seed)
            both, original = (
                optimize(
                    graph, cluster, method=method, evaluations=600, contract=how, warm_start=False
                ).makespan
                for how in (None, False)
            )
            ratios.append(both / original)
        assert np.mean(ratios) < 0.95


def turn(stage, spent, *, gained=False, status=Status.BUDGET):
    return Turn(stage, spent, spent, (), gained, {"evaluations": [], "best": []}, status, 0.0)


class TestTheBudget:
    HOST, ACC = 0, 1

    def test_what_pays_has_the_rest(self):
        both = Auto(policy="default").agenda(Objective.MAKESPAN, 2)
        assert next_turn([], 1000, both) == (self.HOST, 1000)
        assert next_turn([], 1000, Brkga().agenda(Objective.MAKESPAN, 2)) == (0, 1000)
        assert next_turn([turn(self.HOST, 1000)], 1000, both) is None
        host = turn(self.HOST, 400)
        assert next_turn([host], 1000, both) == (self.ACC, 100)
        assert next_turn([host, turn(self.ACC, 100, gained=True)], 1000, both) == (self.ACC, 500)
        assert next_turn([host, turn(self.ACC, 100)], 1000, both) == (self.HOST, 500)
        assert next_turn([host, turn(self.ACC, 100), turn(self.HOST, 500)], 1000, both) is None
        for status in (Status.TARGET, Status.TIME, Status.INTERRUPTED):
            assert next_turn([turn(self.HOST, 400, status=status)], 1000, both) is None
        # The budget is too small for the first step of the first search, so the other gets it.
        assert next_turn([turn(self.HOST, 0)], 7, both) == (self.ACC, 7)

    def test_a_search_that_stalls_gives_its_rest_away(self, model):
        # The best plan uses one device, so no later schedule improves on the first.
        cluster = Cluster.uniform(2, transfer="blocking:latency=1s,bandwidth=1GB/s")
        plan = optimize(model, cluster, evaluations=1000, policy="default")
        shares = [(next(n for n in p if n.endswith("Config")), p["share"]) for p in plan.provenance["parts"]]
        assert shares[0] == ("ListSearchConfig", pytest.approx(budget.step_evaluations(1000, 4) / 1000))
        assert [name for name, _ in shares][1:] == ["BrkgaConfig", "ListSearchConfig"]
        assert sum(share for _, share in shares) == pytest.approx(1, abs=1e-3)

    def test_company_changes_no_decision(self, step, model):
        graphs = [step, model, generate("layered", 30, 0)]
        cluster = Cluster.uniform(2, transfer=FAST)
        options = {"evaluations": 400, "seed": 3}
        for graph, plan in zip(
            graphs, optimize_many(graphs, cluster, progress=False, **options), strict=True
        ):
            alone = optimize(graph, cluster, **options)
            same(alone, plan)
            assert alone.provenance["parts"] == plan.provenance["parts"]


def test_list_search_moves_what_belongs_together():
    """Two chains that meet once: if transfers take long, only moves of whole chains pay."""
    builder = GraphBuilder("chains")
    for chain in "ab":
        for i in range(12):
            inputs = [f"{chain}{i - 1}:0"] if i else []
            builder.add_op(f"{chain}{i}", runtime=1.0, inputs=inputs, outputs=[1000])
    builder.add_op("join", runtime=1.0, inputs=["a11:0", "b11:0"])
    graph = builder.build()
    cluster = Cluster.uniform(2, transfer="blocking:latency=5,bandwidth=1e9")
    search = ListSearchRun(graph, cluster, 0)
    # Leave out the starts that come from partitions.
    search._begin = type(search._begin)(list(search._begin)[:6])
    search.run(400)
    assert search.best == pytest.approx(12 + 5 + 1, rel=1e-5)
