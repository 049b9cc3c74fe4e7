"""The compiled step: no host transfers, one compilation, and an even division among devices."""

import dataclasses
import functools
import importlib
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from learning_cases import (
    GRAPHS,
    HELD_OUT,
    fast_on_first,
    one_device,
    share_of,
    spread_of,
    stopped_after,
    tiny_config,
)
from policy_cases import chain

from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics.even_split import one_device_peak
from regal_jax.learning import TaskConfig, train
from regal_jax.learning import step as step_module
from regal_jax.learning import validate as validate_module
from regal_jax.learning.mesh import AXIS, everywhere
from regal_jax.learning.pool import SpreadPool, make_pools, spread_pool
from regal_jax.learning.reference import with_references
from regal_jax.learning.step import Learner, table_on, train_step
from regal_jax.plan import Objective, lower_bound
from regal_jax.policies import to_proposal
from regal_jax.problem import Bucket, make_problem
from regal_jax.programs import kept, on_mesh
from regal_jax.search import Stopping
from regal_jax.solve import ENCODINGS, keys_of, solve

LEAVES_THE_DEVICE = ("callback", "ffi", "feed", "debug", "host")


def primitives(jaxpr):
    """Names of all primitives in a jaxpr and in those within it."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def suspects(names):
    return {name for name in names if any(word in name for word in LEAVES_THE_DEVICE)}


def traced(learner, count=1):
    state, (mesh, pool) = learner.init(), spread_of(learner.config, count=count)
    _ = table_on(learner, mesh)
    step = lambda state, pool, key: train_step(learner, mesh, state, pool, key)  # noqa: E731
    return set(primitives(jax.make_jaxpr(step)(state, pool, jax.random.key(0)).jaxpr))


@pytest.mark.parametrize("baseline", ["leave-one-out", pytest.param("learned", marks=pytest.mark.slow)])
def test_nothing_in_it_leaves_the_device(baseline):
    config = tiny_config(baseline=baseline)
    names = traced(Learner(config, "xla"), 2)
    assert names >= {"while", "sort", "all_gather", "psum", "random_bits"}
    assert len(names) > 40
    assert not suspects(names)


def test_what_would_leave_it_is_found():
    def loop(x):
        jax.debug.callback(print, x)
        return x

    found = jax.make_jaxpr(jax.jit(lambda x: jax.lax.map(loop, x)))(jnp.zeros(2))
    assert suspects(primitives(found.jaxpr))


@pytest.mark.slow
def test_searches_and_references_have_the_encoding_of_the_task(tmp_path):
    """One op and several; the same searches outside of training find the same."""
    graphs = (*(generate("layered", n, seed=3) for n in (12, 9)), fast_on_first(1, 0))
    task = TaskConfig(transfer="blocking:latency=25us", evaluations=20, encoding="schedule")
    config = dataclasses.replace(tiny_config(), task=task)
    learner, key = Learner(config), jax.random.key(5)
    pool = share_of(config, graphs).pool
    logits = jax.jit(lambda features, prior: learner.networks()[0](features, prior))(
        pool.features, pool.prior
    )
    actions, fitness = jax.jit(step_module.rollout, static_argnums=0)(
        learner, pool, logits, learner.table, key
    )
    keys = keys_of(jax.random.split(key)[1], pool.identity)
    encoding = ENCODINGS["schedule"]
    options = {"config": config.search, "encoding": encoding}

    @jax.jit
    def guided(pool, table, action):
        guide = to_proposal(config.policy, table, action, pool.problem, pool.prior)
        return encoding.proposal(pool.problem, guide)

    for action, found in zip(actions, fitness, strict=True):
        proposal = guided(pool, learner.table, action)
        alone = solve(pool.problem, keys, Stopping(20), proposal=proposal, **options)
        np.testing.assert_array_equal(alone.fitness, found)
    # A whole run would compile a step of training, too. What it leaves behind is in test_learning_resume.py.
    path = tmp_path / "references.jsonl"
    found = with_references(config, share_of(config, graphs), path, jax.devices()[:1]).pool.reference
    uniform, key = encoding.proposal(pool.problem), jax.random.fold_in(jax.random.key(config.seed), 2**31)
    alone = [
        solve(
            pool.problem,
            keys_of(jax.random.fold_in(key, r), pool.identity),
            Stopping(20),
            proposal=uniform,
            **options,
        ).fitness
        for r in range(config.optimizer.reference_seeds)
    ]
    np.testing.assert_array_equal(found, np.mean(alone, axis=0))
    for line in path.read_text().splitlines():
        assert json.loads(line)["settings"]["task"]["encoding"] == "schedule"
    assert config.as_document()["task"]["encoding"] == "schedule"


def take(learner, count, graphs, steps):
    """The state and the metrics after each of some steps."""
    mesh, pool = spread_of(learner.config, graphs, count)
    state, key = everywhere((learner.init(), jax.random.key(3)), mesh)
    history = []
    for _ in range(steps):
        state, metrics = train_step(learner, mesh, state, pool, key)
        history.append({name: np.asarray(value) for name, value in metrics._asdict().items()})
    return state, history


def test_devices_share_a_batch_and_change_nothing():
    config = tiny_config(baseline="learned")
    learner = Learner(config)
    one, two = (take(learner, count, GRAPHS, 1) for count in (1, 2))
    for name in ("improvement", "matched", "learning_rate"):
        assert one[1][0][name] == two[1][0][name], name
    for name, value in one[1][0].items():
        np.testing.assert_allclose(two[1][0][name], value, rtol=1e-4, err_msg=name)
    assert one[1][0]["gradient"] > 0
    assert one[1][0]["value_error"] > 0
    assert len(two[0].step.sharding.device_set) == 2
    # Compare the optimizer's moments, not the weights: the first step of Adam is the sign of the gradient,
    # which rounding changes where the gradient is almost 0.
    for field in ("policy_optimizer", "value_optimizer"):
        moments = [jax.tree.leaves(getattr(state, field)) for state in (one[0], two[0])]
        for x, y in zip(*moments, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-6)


# By default, test_learning_resume.py has runs that go on.
@pytest.mark.slow
def test_it_is_compiled_once_and_not_again_after_a_restore(tmp_path):
    def count():
        return sum(
            f._jitted._cache_size() for key, f in kept._kept.items() if key[0] is step_module._train_step
        )

    config = tiny_config(baseline="learned")  # As above; test_learning_resume.py has runs of the other.
    before = count()
    one_device(config, tmp_path / "a")
    first = count()
    # Other tests may have compiled it.
    assert first - before <= 1
    # The same settings in another folder, in two halves.
    stopped_after(3, config, tmp_path / "b")
    assert one_device(config, tmp_path / "b").finished
    assert count() == first


def test_every_step_has_other_graphs_and_numbers():
    config = tiny_config(baseline="learned")
    _, history = take(Learner(config), 1, GRAPHS, 4)
    assert len({float(metrics["improvement"]) for metrics in history}) == 4
    assert len({float(metrics["learning_rate"]) for metrics in history}) == 4


def test_a_graph_that_is_there_twice_is_searched_with_other_numbers():
    """A batch with one graph four times has four different samples."""
    config = tiny_config(batch=4)
    mesh, pool = spread_of(config, GRAPHS[:1])
    identity = batch_of(mesh, pool, 4).identity
    assert (identity[:, 0] == identity[0, 0]).all()
    assert len(np.unique(identity[:, 1])) == 4
    np.testing.assert_array_equal(identity[0], pool.pool.identity[0])


def batch_of(mesh, pool, size):
    """The batch that `_batch` makes on all devices together."""
    whole = jax.sharding.PartitionSpec(AXIS)
    take_batch = on_mesh(
        lambda pool: step_module._batch(jax.random.key(0), pool, size, mesh.size),
        mesh,
        (SpreadPool.specs(),),
        whole,
    )
    return jax.tree.map(np.asarray, jax.jit(take_batch)(pool))


# By default, two devices share a batch above.
@pytest.mark.slow
def test_a_batch_is_the_same_wherever_its_graphs_are():
    """Bit for bit, for more, fewer and as many graphs as devices and as the batch has."""
    config = tiny_config()
    for graphs in (GRAPHS[:1], GRAPHS, (*GRAPHS, *HELD_OUT, chain(5))):
        one, *others = (jax.tree.leaves(batch_of(*spread_of(config, graphs, n), 4)) for n in (1, 2, 4))
        for spread in others:
            for whole, part in zip(one, spread, strict=True):
                assert whole.dtype == part.dtype
                np.testing.assert_array_equal(whole.view(np.uint8), part.view(np.uint8))


def test_pools_hold_every_graph_once_and_are_few():
    graphs = [chain(n) for n in (1, 2, 30, 31, 100, 150, 3)]
    config = tiny_config()
    cluster = config.task.cluster(2)
    for most in (1, 2, 3, 100):
        pools = make_pools(graphs, cluster, config.policy, most)
        assert len(pools) <= most
        assert sorted(i for share in pools for i in share.members) == list(range(7))
        for share in pools:
            assert share.pool.size == len(share.members)
            np.testing.assert_array_equal(
                share.pool.features.node_mask.sum(1), [graphs[i].num_ops for i in share.members]
            )
    assert len(pools) == len(set(map(Bucket.of, graphs)))
    # Neighbours in size are joined, not the largest with the smallest.
    small, large = make_pools(graphs, cluster, config.policy, 2)
    assert max(graphs[i].num_ops for i in small.members) < min(graphs[i].num_ops for i in large.members)


def test_every_graph_has_a_capacity_of_its_own():
    graphs = [generate("layered", n, 0) for n in (8, 16)]
    task = TaskConfig(capacity=1.2)
    clusters = [task.cluster_of(graph, 2) for graph in graphs]
    wanted = [max(0.6 * one_device_peak(graph), bound_of(graph)) for graph in graphs]
    assert [cluster.memory for cluster in clusters] == [(math.ceil(w), math.ceil(w)) for w in wanted]
    assert task.cluster_of(graphs[0], 2).transfer == task.cluster(2).transfer
    config = dataclasses.replace(tiny_config(), task=task)
    cluster_of = functools.partial(task.cluster_of, devices=2)
    (share,) = make_pools(graphs, cluster_of, config.policy, 1)
    assert not share.pool.problem.unlimited
    chex.assert_trees_all_equal(share.pool.problem, make_problem(graphs, clusters, share.pool.problem.bucket))
    assert TaskConfig().cluster_of(graphs[0], 2) == TaskConfig().cluster(2)


def bound_of(graph):
    return lower_bound(graph, Cluster.uniform(2), Objective.PEAK_MEMORY)


def judged(config, count, reference):
    """A validation on some devices, with these references."""
    learner, share = Learner(config), share_of(config)
    pool = dataclasses.replace(share.pool, reference=jnp.asarray(reference, jnp.float32))
    mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))
    spread = spread_pool(dataclasses.replace(share, pool=pool), mesh)
    weights, key = everywhere((learner.init().policy, jax.random.key(5)), mesh)
    return validate_module.validate(learner, mesh, weights, [spread], key)


@pytest.mark.slow
def test_validation_goes_through_the_graphs_in_parts_and_on_several_devices(monkeypatch):
    config, reference = tiny_config(), [3.0, 0.0, 0.01]
    whole = judged(config, 1, reference)
    # A reference of 0 counts as matched; a reference far below all plans is missed.
    assert whole.matched == pytest.approx(2 / 3)
    assert whole.worst == 1 - config.optimizer.worst == -1
    assert 0 < whole.best < 1
    assert whole.improvement > (whole.worst + whole.best) / 3 - 1e-6
    assert judged(tiny_config(worst=math.inf), 1, reference).worst < -10
    for count in (2, 4):
        np.testing.assert_allclose(judged(config, count, reference), whole, rtol=1e-6)
    monkeypatch.setattr(validate_module, "_CHUNK", 2)
    for count in (1, 2):
        np.testing.assert_allclose(judged(config, count, reference), whole, rtol=1e-6)


def test_graphs_of_one_op_and_without_edges_can_be_trained_on(tmp_path, monkeypatch):
    class Said(list):
        """The text of a progress bar."""

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def set_description(self, text, refresh=True):
            if refresh:
                self.append(text)

        def update(self, _):
            self.append("update")

        def set_postfix(self, **_):
            pass

    bars = []
    for room in ("train", "loop"):
        # The package has the function `train`.
        module = importlib.import_module(f"regal_jax.learning.{room}")
        monkeypatch.setattr(module, "progress_bar", lambda *_: bars.append(Said()) or bars[-1])
    builder = GraphBuilder("lonely")
    builder.add_op("op", runtime=1.0)
    graphs = [builder.build(), fast_on_first(2, 0), chain(2)]
    # As many graphs as other tests have, whose programs are compiled.
    config = tiny_config(baseline="learned")
    result = train(config, graphs, graphs[:2], tmp_path, progress=False, devices=jax.devices()[:1])
    assert result.finished
    assert np.isfinite(result.best.improvement)
    # The progress bar names the compilation of each program once.
    assert bars[0][:2] == ["references (compiling)", "update"]
    assert bars[2] == ["validation (compiling)", "train (compiling)", *["update"] * 12]


def test_no_graphs_and_devices_that_do_not_divide(tmp_path):
    config = tiny_config()
    for graphs, held_out in (((), HELD_OUT), (GRAPHS, ())):
        with pytest.raises(ConfigError, match="no graphs"):
            train(config, graphs, held_out, tmp_path / "a", progress=False)
    with pytest.raises(
        ConfigError, match=r"a batch of 4 graphs does not divide among 3; change optimizer\.batch"
    ):
        one_device(config, tmp_path / "b", devices=jax.devices()[:3])
