"""`BestDraft`: the first of the best by exact replay."""

import numpy as np
import pytest

from regal_jax import Cluster
from regal_jax.datasets import generate
from regal_jax.errors import PlanError
from regal_jax.plan import BestDraft, Objective, Plan, insert_transfers


def _drafts(graph, cluster, count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        placement = rng.integers(0, cluster.num_devices, graph.num_ops)
        yield placement, insert_transfers(graph, cluster, placement, graph.topological_order)


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize("memory", [np.inf, 3000])
def test_the_kept_draft_is_the_first_with_the_least_key_of_all_plans(objective, memory):
    graph = generate("layered", 20, 1)
    cluster = Cluster.uniform(3, memory=memory, transfer="pcie4x16")
    best, plans = BestDraft(graph, cluster, objective), []
    for i, (placement, events) in enumerate([*_drafts(graph, cluster, 12)] * 2):
        best.offer(placement, events, {"number": i})
        plans.append(
            Plan.from_events(graph, cluster, placement, events, objective=objective, provenance={"number": i})
        )
        found, least = best.plan(), min(plans, key=lambda plan: plan.sort_key)
        assert found.sort_key == least.sort_key
        assert found.provenance == least.provenance
        assert best.feasible == least.feasible
    assert len({plan.sort_key for plan in plans}) > 3


def test_no_draft_and_impossible_drafts_are_errors():
    graph, cluster = generate("chain", 3, 0), Cluster.uniform(2)
    best = BestDraft(graph, cluster, "makespan")
    assert not best.feasible
    with pytest.raises(PlanError, match="no draft"):
        best.plan()
    with pytest.raises(PlanError, match="never computed"):
        best.offer(np.zeros(3, int), np.arange(2), {})
    with pytest.raises(PlanError, match="there are 2"):
        best.offer(np.full(3, 2), np.arange(3), {})
    best.offer(np.zeros(3, int), np.arange(3), {})
    assert best.plan().makespan == 156
