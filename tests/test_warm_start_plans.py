"""Earlier plans as starts: on other clusters, of contracted graphs, from files, in folders of results."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances, random_cluster, random_graph

from regal_jax import Cluster, contract, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError, PlanError
from regal_jax.graph import TransferModel, allowed_matrix
from regal_jax.heuristics import run_heuristic
from regal_jax.plan import Plan, adapt_plan, decode_order, decode_placement
from regal_jax.solvers.loop import batches, starts


def computes(plan):
    """Names of the ops in the order in which the plan computes them."""
    line = plan.timeline
    return [plan.op_names[o] for o in line.op[line.port < 0]]


@given(instances(), st.sampled_from(TransferModel), st.integers(0, 4), st.integers(0, 99))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_is_carried_over_to_any_cluster(instance, model, more, seed):
    graph, cluster = instance
    plan = run_heuristic("random-topological", graph, cluster, seed=seed)
    assert adapt_plan(plan, graph, cluster).to_json() == plan.to_json()
    if graph.runtime.ndim > 1:
        more = 0
    other = Cluster((10.0,) * (cluster.num_devices + more), model)
    there = adapt_plan(plan, graph, other, "peak-memory")
    there.verify(graph)
    assert there.cluster == other
    assert there.objective == "peak-memory"
    assert there.placement.tolist() == plan.placement.tolist()
    assert computes(there) == computes(plan)
    back = adapt_plan(there, graph, cluster, "makespan")
    back.verify(graph)
    assert back.placement.tolist() == plan.placement.tolist()


@pytest.mark.parametrize("seed", range(40))
def test_fewer_devices_take_what_they_may_and_keep_the_order(seed):
    rng = np.random.default_rng(seed)
    graph = dataclasses.replace(random_graph(rng, 30, 5, residents=0), runtime=rng.exponential(1.0, 30))
    plan = run_heuristic("critical-path", graph, random_cluster(rng, 5), seed=seed)
    few = Cluster.uniform(2)
    graph = dataclasses.replace(
        graph,
        allowed_devices=tuple(None if d is None else tuple({0, *d}) for d in graph.allowed_devices),
    )
    plan = adapt_plan(dataclasses.replace(plan, graph_hash=graph.content_hash), graph, plan.cluster)
    there = adapt_plan(plan, graph, few)
    there.verify(graph)
    assert computes(there) == computes(plan)
    allowed = allowed_matrix(graph, few)
    stays = (plan.placement < 2) & allowed[np.arange(30), np.minimum(plan.placement, 1)]
    assert (there.placement == plan.placement)[stays].all()


def test_a_device_that_is_gone_leaves_its_ops_together_to_the_idlest():
    from regal_jax import GraphBuilder

    b = GraphBuilder("three")
    for name, runtime in (("a", 5.0), ("b", 2.0), ("c", 1.0), ("d", 1.0)):
        b.add_op(name, runtime=runtime)
    graph = b.build()
    plan = Plan.from_events(graph, Cluster.uniform(3), np.array([0, 1, 2, 2]), [0, 1, 2, 3])
    assert adapt_plan(plan, graph, Cluster.uniform(2)).placement.tolist() == [0, 1, 1, 1]


def test_a_plan_of_another_graph_is_not_carried_over():
    graph, other = (generate("erdos-renyi", 20, seed=s) for s in (0, 1))
    plan = run_heuristic("bfs", graph, Cluster.uniform(2))
    with pytest.raises(PlanError, match="not for"):
        adapt_plan(plan, other, Cluster.uniform(2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: {"op": line.op[::-1].copy(), "port": line.port[::-1].copy()}, "comes before"),
        (lambda line: {"op": np.zeros_like(line.op)}, "every op once"),
        (lambda line: {"port": np.where(line.port < 0, -1, 99)}, "does not have"),
    ],
)
def test_a_file_that_is_no_order_is_refused(change, said):
    graph = generate("erdos-renyi", 20, seed=0)
    plan = run_heuristic("partition-dfs", graph, Cluster.uniform(2))
    assert plan.num_transfers
    broken = dataclasses.replace(plan, timeline=dataclasses.replace(plan.timeline, **change(plan.timeline)))
    with pytest.raises(PlanError, match=said):
        adapt_plan(broken, graph, Cluster.uniform(3))


# As starts of a search ----------------------------------------------------------------------------

TWO = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
LITTLE = {"evaluations": 20, "seed": 7}


@pytest.fixture(scope="module")
def graph():
    return generate("erdos-renyi", 40, seed=3)


@pytest.fixture(scope="module")
def good(graph):
    """A plan that is better than those of 20 evaluations and of the heuristics."""
    plan = optimize(graph, TWO, evaluations=5000, method="auto")
    assert plan.sort_key < optimize(graph, TWO, **LITTLE).sort_key
    return plan


@pytest.mark.parametrize(
    "method",
    ["brkga", pytest.param("annealing", marks=pytest.mark.slow), "local-search", "list-search", "auto"],
)
def test_a_search_is_never_worse_than_what_it_began_with(graph, good, method, tmp_path):
    good.save(tmp_path / "good.json")
    worse = run_heuristic("bfs", graph, TWO)
    for start in (good, tmp_path / "good.json", str(tmp_path / "good.json"), [worse, good]):
        plan = optimize(graph, TWO, method=method, warm_start=start, **LITTLE)
        plan.verify(graph)
        assert plan.sort_key <= good.sort_key
        assert "critical-path" in plan.provenance["warm_start"]
        names = [name for name in plan.provenance["warm_start"] if name.startswith("earlier plan")]
        assert len(names) == (2 if isinstance(start, list) else 1)


def test_the_first_population_holds_it(graph, good, monkeypatch):
    """The plan is in the first population, not only in the last comparison: results may be its children."""
    seen = []
    make = batches._warm
    monkeypatch.setattr(batches, "_warm", lambda *args: seen.append(make(*args)) or seen[-1])
    optimize(graph, TWO, method="brkga", warm_start=good, **LITTLE)
    first = {name: np.asarray(leaf[0, 0]) for name, leaf in seen[0].genes.items()}
    n = graph.num_ops
    placement = decode_placement(graph, TWO, first["affinity"][:n])
    assert placement.tolist() == good.placement.tolist()
    transfers = first["transfer_priority"][: graph.num_tensors]
    events = decode_order(graph, TWO, placement, first["priority"][:n], transfers)
    assert events.tolist() == good.event_ids(graph).tolist()


def test_peak_search_begins_with_it(graph):
    options = {"objective": "peak-memory", "method": "peak-search"}
    good = optimize(graph, TWO, evaluations=20000, **options)
    assert optimize(graph, TWO, warm_start=good, **options, **LITTLE).sort_key <= good.sort_key


@pytest.mark.parametrize("contracted", [False, True])
def test_a_plan_for_two_devices_starts_a_search_on_four_and_back(graph, good, contracted):
    four = Cluster.uniform(4, transfer="blocking:latency=1,bandwidth=10")
    options = {**LITTLE, "contract": contracted}
    wide = optimize(graph, four, warm_start=good, **options)
    assert wide.sort_key <= adapt_plan(good, graph, four).sort_key == good.sort_key
    back = optimize(graph, TWO, warm_start=[wide, good], **options)
    assert back.sort_key <= good.sort_key
    slow = Cluster.uniform(2, transfer="delay:latency=9,bandwidth=1")
    there = optimize(graph, slow, warm_start=good, **options)
    assert there.sort_key <= adapt_plan(good, graph, slow).sort_key


def test_a_contracted_search_projects_it_and_compares_on_the_original():
    from test_contraction import chains

    graph = chains()
    good = optimize(graph, TWO, evaluations=3000)
    plan = optimize(graph, TWO, contract=True, warm_start=good, **LITTLE)
    plan.verify(graph)
    assert plan.sort_key <= good.sort_key
    assert contract(graph).graph is not graph


@given(instances(), st.integers(0, 9999))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_projection_undoes_expansion(instance, seed):
    from test_contraction import random_plan

    graph, cluster = instance
    made = contract(graph, max_share=1.0)
    rng = np.random.default_rng(seed)
    plan = random_plan(made.graph, cluster, rng)
    back = made.project(made.expand(plan))
    assert back.placement.tolist() == plan.placement.tolist()
    assert back.event_ids(made.graph).tolist() == plan.event_ids(made.graph).tolist()
    # The projection of any plan is valid.
    made.project(random_plan(graph, cluster, rng)).verify(made.graph)


def test_many_graphs_take_the_plans_that_are_theirs(graph, good):
    other = generate("erdos-renyi", 30, seed=4)
    best = optimize(other, TWO, evaluations=3000)
    graphs = [other, graph, generate("layered", 30, seed=1)]
    plans = optimize_many(graphs, TWO, warm_start=[good, best], progress=False, **LITTLE)
    assert plans[0].sort_key <= best.sort_key
    assert plans[1].sort_key <= good.sort_key
    assert not [name for name in plans[2].provenance["warm_start"] if "earlier" in name]
    again = optimize_many(graphs, TWO, warm_start=plans, progress=False, **LITTLE)
    assert all(a.sort_key <= b.sort_key for a, b in zip(again, plans, strict=True))


def test_interrupted_at_once_it_is_what_there_is(graph, good, monkeypatch):
    def pressed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(starts, "heuristic_plans", pressed)
    plan = optimize(graph, TWO, warm_start=good, **LITTLE)
    assert plan.provenance["stopped"] == "interrupted"
    assert plan.sort_key == good.sort_key


def test_starts_that_are_none(graph, good, tmp_path):
    (tmp_path / "text.json").write_text("{}")
    elsewhere = generate("erdos-renyi", 41, seed=5)
    for start, error, said in (
        (3, ConfigError, "warm_start: give True, False, a Plan"),
        (None, ConfigError, "warm_start: give True, False, a Plan"),
        ([good, True], ConfigError, "warm_start: give True, False, a Plan"),
        (tmp_path / "absent.json", FormatError, "absent.json: cannot be read"),
        (tmp_path / "text.json", FormatError, "text.json: plan"),
    ):
        with pytest.raises(error, match=said) as raised:
            optimize(graph, TWO, warm_start=start, **LITTLE)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="warm_start: the plan is for graph 'erdos-renyi"):
        optimize(elsewhere, TWO, warm_start=good, **LITTLE)
    with pytest.raises(ConfigError, match=r"warm_start: the plan is for .* none of the 2 graphs"):
        optimize_many([elsewhere, elsewhere], TWO, warm_start=good, progress=False, **LITTLE)
    with pytest.raises(ConfigError, match="warm_start: bfs does not use earlier plans"):
        optimize(graph, TWO, warm_start=good, method="bfs")
