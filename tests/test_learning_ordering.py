"""Training of Topoformer: its gradient, its baseline, its graphs, and interrupted runs."""

import dataclasses
import functools
import itertools
import json
import signal

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ordering_cases import all_orders, chain, isolated, padded, probability, replayed

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.importers import save_graph
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.ordering import (
    OrderDataConfig,
    OrderOptimizerConfig,
    OrderTrainConfig,
    train_orders,
)
from regal_jax.learning.ordering import train as train_module
from regal_jax.learning.ordering.data import OrderSource, make_batch
from regal_jax.learning.ordering.step import OrderLearner, _flipped, order_step
from regal_jax.learning.record import Record
from regal_jax.ordering import (
    Topoformer,
    TopoformerConfig,
    decode_orders,
    infer,
    load_topoformer,
    make_order_inputs,
    save_topoformer,
)
from regal_jax.ordering.decoders import encoded, read, sampled_orders
from regal_jax.problem import Bucket, make_problem
from regal_jax.solve import keys_of

BUCKET = Bucket(16, 16, 32, 0)
MODEL = TopoformerConfig(layers=1, width=8, head_width=4, heads=(1, 0, 0, 1, 0, 0, 1), eigenvectors=0)
AUTOREGRESSIVE = dataclasses.replace(MODEL, decoder="autoregressive")


def trap(seed, fillers):
    """A graph whose cheapest first op holds memory to the end: least peak memory first is not optimal."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder(f"trap{seed}")
    for i in range(2):
        builder.add_op(f"large{i}", outputs=[int(rng.integers(60, 90))])
        builder.add_op(f"small{i}", outputs=[1], inputs=[(2 * i, 0)])
    for i in range(fillers):
        builder.add_op(f"filler{i}", outputs=[int(rng.integers(20, 30))])
    read = [(1, 0), (3, 0), *((4 + i, 0) for i in range(fillers))]
    builder.add_op("sink", outputs=[1], inputs=read, temp_bytes=seed)
    return builder.build()


GRAPHS = (trap(0, 1), trap(1, 2))
HELD_OUT = (trap(2, 1), trap(3, 2))


def weightless(num_ops):
    builder = GraphBuilder(f"weightless{num_ops}")
    for o in range(num_ops):
        builder.add_op(f"op{o}", outputs=[0])
    return builder.build()


def config_of(model=MODEL, **optimizer):
    settings = {"steps": 24, "batch": 2, "samples": 16, "learning_rate": 0.03, "epoch_graphs": 10}
    settings |= {"clip": 1e6, "checkpoint_every": 10}
    return OrderTrainConfig(model=model, optimizer=OrderOptimizerConfig(**{**settings, **optimizer}))


def step_of(learner, graphs, devices=1, state=None):
    """The state and metrics after a step."""
    mesh = Mesh(np.array(jax.devices()[:devices]), (AXIS,))
    place = lambda tree, spec: jax.device_put(tree, NamedSharding(mesh, spec))  # noqa: E731
    state = place(learner.init() if state is None else state, PartitionSpec())
    batch = place(make_batch(graphs, learner.config.model, BUCKET), PartitionSpec(AXIS))
    key = place(jax.random.key(3), PartitionSpec())
    state, metrics = order_step(learner, mesh, state, batch, key)
    return state, {name: float(value) for name, value in metrics._asdict().items()}


def gradient_of(state):
    """The gradient of the first step: Adam keeps a tenth of it, and nothing is clipped."""
    (adam,) = [part for part in jax.tree.leaves(state.optimizer, is_leaf=is_adam) if is_adam(part)]
    return jax.tree.map(lambda leaf: np.asarray(leaf, float) * 10, nnx.to_pure_dict(adam.mu))


def is_adam(part):
    return hasattr(part, "mu")


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


# The gradient ---------------------------------------------------------------------------------------


@functools.cache
def peaks_of(graph):
    """The peaks of `all_orders` by the replay."""
    return np.array([replayed(graph, order) for order in all_orders(graph)], float)


def unit_of(graph):
    return (graph.tensor_bytes.sum() + graph.temp_bytes.sum()) / graph.num_ops


def logs_of(learner, batch):
    """A function from weights to (log-probabilities of all orders, raw priorities) of each graph."""
    if learner.config.model.decoder == "priorities":
        run = jax.jit(lambda weights: learner.model(weights).logits(batch.inputs))

        def by_priorities(weights):
            for graph, row in zip(GRAPHS, np.asarray(run(weights), float), strict=True):
                raw = row[: graph.num_ops]
                y = (raw - raw.mean()) / raw.std() * learner.config.model.alpha
                yield np.log([probability(graph, y, order) for order in all_orders(graph)]), raw

        return by_priorities
    most = max(len(all_orders(graph)) for graph in GRAPHS)
    orders = np.array(
        [padded(all_orders(g)[np.arange(most) % len(all_orders(g))], BUCKET.ops) for g in GRAPHS]
    )

    @jax.jit
    def scored(weights):
        model = learner.model(weights)
        return model.decoder.log_prob(batch.problem, model.embed(batch.inputs), orders)

    def by_attention(weights):
        for graph, row in zip(GRAPHS, np.asarray(scored(weights), float), strict=True):
            yield row[: len(all_orders(graph))], np.zeros(1)

    return by_attention


def shares_of(learner, weights, batch):
    """The frequency of each order of each graph among the samples of the first step."""
    model = learner.model(weights)
    _, draw = jax.random.split(jax.random.fold_in(jax.random.key(3), 0))
    guide = jax.jit(lambda inputs: read(model, encoded(model, inputs), inputs.mask))(batch.inputs)
    keys = keys_of(draw, batch.identity)
    drawn = np.asarray(sampled_orders(model, batch.problem, guide, keys, learner.config.optimizer.samples))
    for graph, rows in zip(GRAPHS, drawn, strict=True):
        number = {order.tobytes(): i for i, order in enumerate(all_orders(graph))}
        found = [number[np.ascontiguousarray(row[: graph.num_ops]).tobytes()] for row in rows]
        yield np.bincount(found, minlength=len(number)) / len(rows)


def explicit_loss(learner, logs, shares, greedy):
    """The loss from replayed peaks, in float64."""
    o, total = learner.config.optimizer, 0.0
    for graph, share, (log, raw), b in zip(GRAPHS, shares, logs, greedy, strict=True):
        peak = peaks_of(graph)
        mean = share @ peak
        advantage = (peak - b) / unit_of(graph)
        if o.standardise:
            advantage = (peak - mean) / np.sqrt(share @ (peak - mean) ** 2)
        total += share @ (advantage * log) + o.logit_norm * (raw**2).mean()
    return total / len(GRAPHS)


def expected_peak(logs):
    means = [
        np.exp(log) @ peaks_of(graph) / unit_of(graph) for graph, (log, _) in zip(GRAPHS, logs, strict=True)
    ]
    return np.mean(means)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [
        (MODEL, {}),
        (MODEL, {"standardise": True, "logit_norm": 0.5}),
        pytest.param(AUTOREGRESSIVE, {}, marks=pytest.mark.slow),
    ],
    ids=["paper", "one-shot", "autoregressive"],
)
def test_the_gradient_is_that_of_the_loss_and_on_average_that_of_the_expected_peak(model, optimizer):
    learner = OrderLearner(config_of(model, samples=4096, **optimizer))
    state, metrics = step_of(learner, GRAPHS)
    weights, gradient = learner.init().policy, jax.tree.leaves(gradient_of(state))
    batch = make_batch(GRAPHS, model, BUCKET)
    logs, shares = logs_of(learner, batch), list(shares_of(learner, weights, batch))
    orders = decode_orders(
        learner.model(weights), GRAPHS, keys_of(jax.random.key(0), batch.identity), decoding="greedy"
    )
    greedy = [replayed(*pair) for pair in zip(GRAPHS, orders, strict=True)]
    rng, width, found, averages = np.random.default_rng(0), 4e-3, [], []
    for _ in range(4):
        direction = [rng.normal(size=leaf.shape).astype(np.float32) for leaf in jax.tree.leaves(weights)]
        ends = [moved(weights, direction, h) for h in (width, -width)]
        ends = [list(logs(end)) for end in ends]
        found.append(sum((g * d).sum() for g, d in zip(gradient, direction, strict=True)))
        losses = [explicit_loss(learner, end, shares, greedy) for end in ends]
        np.testing.assert_allclose(found[-1], (losses[0] - losses[1]) / (2 * width), rtol=0.02, atol=2e-3)
        averages.append((expected_peak(ends[0]) - expected_peak(ends[1])) / (2 * width))
    if not optimizer:
        assert np.linalg.norm(np.subtract(found, averages)) < 0.2 * np.linalg.norm(averages)
    reference = [replayed(g, np.asarray(order)) for g, order in zip(GRAPHS, batch.order, strict=True)]
    now = list(zip(GRAPHS, shares, logs(weights), reference, greedy, strict=True))
    expected = {
        "improvement": np.mean([1 - share @ peaks_of(g) / r for g, share, _, r, _ in now]),
        "entropy": np.mean([-(share @ log) / g.num_ops for g, share, (log, _), _, _ in now]),
        "gradient": np.sqrt(sum((g**2).sum() for g in gradient)),
        "norm": np.sqrt(np.mean([(raw**2).mean() for _, _, (_, raw), _, _ in now])),
        "learning_rate": 0.03,
    }
    if not optimizer:
        expected["baseline"] = np.mean([1 - b / r for *_, r, b in now])
        squares = [share @ ((peaks_of(g) - b) / unit_of(g)) ** 2 for g, share, _, _, b in now]
        expected["spread"] = np.sqrt(np.mean(squares))
    for name, value in expected.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-6, err_msg=name)


def moved(weights, direction, h):
    leaves, tree = jax.tree.flatten(weights)
    return tree.unflatten([leaf + np.float32(h) * d for leaf, d in zip(leaves, direction, strict=True)])


# By default two devices train it in test_distributed.py.
@pytest.mark.slow
def test_two_devices_do_what_one_does():
    learner = OrderLearner(config_of())
    (one, metrics), (two, other) = (step_of(learner, GRAPHS, devices) for devices in (1, 2))
    assert metrics["gradient"] > 0
    for name, value in metrics.items():
        np.testing.assert_allclose(other[name], value, rtol=1e-5, err_msg=name)
    for a, b in zip(*(jax.tree.leaves(gradient_of(state)) for state in (one, two)), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "graphs", [(chain(1), chain(9)), (weightless(1), weightless(6))], ids=["one order", "no bytes"]
)
def test_where_nothing_can_be_gained_nothing_changes(graphs):
    learner = OrderLearner(config_of())
    state, metrics = step_of(learner, graphs)
    assert {metrics[name] for name in ("improvement", "baseline", "spread", "gradient")} == {0.0}
    assert np.isfinite(list(metrics.values())).all()
    same(state.policy, learner.init().policy)
    assert int(state.step) == 1


# By default, the gradient of standardised advantages is tested above.
@pytest.mark.slow
def test_standardised_advantages_of_equal_peaks_are_not_blown_up():
    # In float32, the mean of three equal numbers may differ from them; this difference must not be scaled up.
    size = np.float32(2**23 + 1)
    assert int(size * np.float32(3)) != 3 * int(size)
    builder = GraphBuilder("one")
    builder.add_op("op", outputs=[int(size)])
    learner = OrderLearner(config_of(samples=3, standardise=True))
    _, metrics = step_of(learner, (builder.build(), weightless(6)))
    assert metrics["spread"] < 0.02
    _, metrics = step_of(learner, GRAPHS)
    np.testing.assert_allclose(metrics["spread"], 1, rtol=0.3)


def test_the_sign_of_an_eigenvector_is_drawn_for_each_graph_and_step():
    batch = make_batch(GRAPHS * 4, dataclasses.replace(MODEL, eigenvectors=3), BUCKET)
    flipped = jax.jit(lambda key: _flipped(batch, key).spectral)
    (first, second), before = (np.asarray(flipped(jax.random.key(i))) for i in (0, 1)), batch.inputs.spectral
    largest = np.abs(before).argmax(axis=1)[:, None]
    signs = [
        np.take_along_axis(x / np.where(before == 0, 1, before), largest, axis=1)[:, 0]
        for x in (first, second)
    ]
    for sign, x in zip(signs, (first, second), strict=True):
        assert set(np.unique(sign)) == {-1.0, 1.0}
        np.testing.assert_array_equal(x, before * sign[:, None])
        # Those of one graph differ, and so do those of different graphs.
        assert len(np.unique(sign, axis=0)) > 2
    assert (signs[0] != signs[1]).any()


def test_the_rate_falls_after_each_epoch():
    learner = OrderLearner(config_of(decay=0.5))
    rates = [float(learner.schedule(step)) for step in (0, 4, 5, 10)]
    np.testing.assert_allclose(rates, [0.03, 0.03, 0.015, 0.0075])
    assert OrderOptimizerConfig(batch=8, epoch_graphs=9).epoch == 2


# Graphs ---------------------------------------------------------------------------------------------


def test_graphs_of_sets_join_layered_ones_by_their_share():
    data = OrderDataConfig(ops=(5, 7), validation_graphs=3, share=0.25)
    graphs = [trap(seed, fillers) for seed in range(3) for fillers in (1, 2)] + [isolated(70)]
    source = OrderSource(data, MODEL, 0, graphs, graphs[:2])
    pools = [source.pool(step) for step in range(2000)]
    assert set(pools) == {0, 1, 2, 3}
    np.testing.assert_allclose(np.mean(np.array(pools) >= 2), 0.25, atol=0.03)
    np.testing.assert_allclose(np.mean(np.array(pools) == 3), 0.25 / 7, atol=0.02)
    known = {tuple(row) for row in make_batch(graphs, MODEL).identity.tolist()}
    for pool, ops in ((0, {5}), (1, {7}), (2, {6, 7}), (3, {70})):
        step = pools.index(pool)
        batch = source.batch(step, 4)
        assert set(np.asarray(batch.problem.num_ops).tolist()) <= ops
        rows = [tuple(row) for row in np.asarray(batch.identity).tolist()]
        # Each copy of a graph has random numbers of its own.
        assert len(set(rows)) == 4
        assert len(set(np.asarray(batch.unit).tolist())) == (1 if pool == 3 else 4)
        assert len(set(rows) & known) == {0: 0, 1: 0, 2: 4, 3: 1}[pool]
        same(batch, OrderSource(data, MODEL, 0, graphs).batch(step, 4))
    layered = [step for step in range(20) if pools[step] == 0][:2]
    assert len({tuple(row) for s in layered for row in np.asarray(source.batch(s, 4).identity).tolist()}) == 8
    sizes = [np.asarray(batch.problem.num_ops).tolist() for batch in source.validation(2)]
    assert sizes == [[5, 5], [5], [7, 7], [7], [6, 7]]
    for share, chosen in ((0, {0, 1}), (1, {2, 3})):
        other = dataclasses.replace(source, data=dataclasses.replace(data, share=share))
        assert {other.pool(step) for step in range(200)} == chosen
    assert {OrderSource(data, MODEL, 0).pool(step) for step in range(200)} == {0, 1}


def test_a_batch_is_what_its_graphs_are():
    batch = make_batch([*GRAPHS, weightless(1)], MODEL, BUCKET)
    for row, graph in enumerate(GRAPHS):
        order = np.asarray(batch.order)[row]
        assert sorted(order.tolist()) == list(range(BUCKET.ops))
        assert order[: graph.num_ops].tolist() in all_orders(graph).tolist()
    np.testing.assert_allclose(batch.unit, [*map(unit_of, GRAPHS), 0], rtol=1e-6)


# Runs -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """The config of a run on the traps alone."""
    folder = tmp_path_factory.mktemp("sets")
    for name, graphs in (("train", GRAPHS), ("validation", HELD_OUT)):
        (folder / name).mkdir()
        for graph in graphs:
            save_graph(graph, folder / name / f"{graph.name}.json")
    data = OrderDataConfig(train=(str(folder),), validation=(str(folder),), share=1, validation_graphs=0)
    return dataclasses.replace(config_of(), data=data, seed=2)  # The initial weights give poor orders.


def run(config, out, **options):
    return train_orders(config, out, **{"progress": False, "devices": jax.devices()[:1], **options})


@pytest.fixture(scope="module")
def whole(sets, tmp_path_factory):
    """An uninterrupted run, and its result."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    return folder, run(sets, folder)


def records(folder, kind):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in r.items() if k != "seconds"} for r in lines if r["kind"] == kind]


def final_state(config, folder):
    state, _ = Checkpoints(folder / "checkpoints").restore(OrderLearner(config).init())
    return state


def shares_saved(model, graphs):
    orders = decode_orders(model, graphs, jax.random.split(jax.random.key(0), len(graphs)), decoding="greedy")
    references = np.asarray(make_batch(graphs, MODEL, BUCKET).order)
    return [1 - replayed(g, o) / replayed(g, r) for g, o, r in zip(graphs, orders, references, strict=True)]


def test_the_best_orders_of_a_small_problem_are_learned(whole, sets):
    folder, result = whole
    assert (result.finished, result.steps) == (True, 24)
    references = np.asarray(make_batch(HELD_OUT, MODEL, BUCKET).order)
    possible = [1 - peaks_of(g).min() / replayed(g, r) for g, r in zip(HELD_OUT, references, strict=True)]
    assert min(possible) > 0.02
    np.testing.assert_allclose(result.best.improvement, np.mean(possible), rtol=1e-5)
    np.testing.assert_allclose(shares_saved(result.model, HELD_OUT), possible, rtol=1e-5)
    found = [r["improvement"] for r in records(folder, "train")]
    assert np.mean(found[-5:]) > np.mean(found[:5]) + 0.05
    assert records(folder, "validation")[0]["improvement"] < result.best.improvement
    assert load_topoformer(folder / "policy.safetensors").config == MODEL
    assert {p.name for p in folder.iterdir()} == {
        "checkpoints", "config.json", "metrics.jsonl", "policy.safetensors",
    }  # fmt: skip


def test_the_baseline_is_replaced_by_what_is_better_and_by_nothing_else(whole, sets):
    folder, result = whole
    checks = records(folder, "validation")
    assert [r["step"] for r in checks] == [0, 5, 10, 15, 20, 24]
    for before, after in itertools.pairwise(checks):
        assert after["baseline"] == max(before["baseline"], before["improvement"])
    good, bad = nnx.state(result.model), OrderLearner(sets).init().policy
    state = OrderLearner(sets).init()
    mesh = Mesh(np.array(jax.devices()[:1]), (AXIS,))
    for policy, baseline, kept in ((good, bad, good), (bad, good, good), (good, good, good)):
        with train_module._Orders(sets, (GRAPHS, HELD_OUT), mesh) as course:
            begun = dataclasses.replace(state, policy=policy, baseline=baseline)
            after, found = course.validate(begun)
            same(after.baseline, kept)
            assert after.policy is begun.policy
            shares = [
                np.mean(shares_saved(OrderLearner(sets).model(w), HELD_OUT)) for w in (policy, baseline)
            ]
            np.testing.assert_allclose(
                [found["improvement"], found["baseline"]], shares, rtol=1e-5, atol=1e-7
            )
            # The baseline's value is known from an earlier validation and is not computed again.
            assert course.validate(after)[1]["baseline"] == max(found["improvement"], found["baseline"])
    last = final_state(sets, folder)
    np.testing.assert_allclose(
        np.mean(shares_saved(OrderLearner(sets).model(last.baseline), HELD_OUT)),
        max(r["improvement"] for r in checks),
        rtol=1e-5,
    )


class Killed(BaseException):
    """Ends a run in the way in which a kill of the process ends it."""


def stopped(config, out, step, action):
    """A run that is interrupted when the record of a step is written."""
    add = Record.add

    def adding(self, kind, at, values):
        add(self, kind, at, values)
        if (kind, at) == ("train", step):
            action()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Record, "add", adding)
        return run(config, out)


def test_a_run_that_is_interrupted_and_killed_ends_the_same(whole, sets, tmp_path):
    folder, _ = whole
    result = stopped(sets, tmp_path, 7, lambda: signal.raise_signal(signal.SIGINT))
    assert (result.finished, result.steps) == (False, 7)
    assert [r["step"] for r in records(tmp_path, "train")] == list(range(1, 8))

    def die():
        raise Killed

    for step in (12, 18):  # After one checkpoint, and after two validations since.
        with pytest.raises(Killed):
            stopped(sets, tmp_path, step, die)
    assert run(sets, tmp_path).finished
    for kind in ("train", "validation"):
        assert records(tmp_path, kind) == records(folder, kind)
    assert (tmp_path / "policy.safetensors").read_bytes() == (folder / "policy.safetensors").read_bytes()
    same(final_state(sets, tmp_path), final_state(sets, folder))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# By default, test_learning_ahead.py has worker processes.
@pytest.mark.slow
def test_batches_of_worker_processes_are_the_same(whole, sets, tmp_path, monkeypatch):
    folder, _ = whole
    monkeypatch.setattr(train_module, "spare_workers", lambda: 2)
    assert run(sets, tmp_path).finished
    assert records(tmp_path, "train") == records(folder, "train")


def test_what_goes_wrong_while_graphs_are_made_is_told(sets, tmp_path, monkeypatch):
    batch = OrderSource.batch

    def broken(self, step, *others):
        if step == 3:
            raise ConfigError("no such graph")
        return batch(self, step, *others)

    monkeypatch.setattr(OrderSource, "batch", broken)
    with pytest.raises(ConfigError, match="no such graph"):
        run(sets, tmp_path)
    assert [r["step"] for r in records(tmp_path, "train")] == [1, 2, 3]


def test_weights_to_start_with(whole, sets, tmp_path):
    _, result = whole
    start = tmp_path / "start.safetensors"
    save_topoformer(start, result.model)
    config = dataclasses.replace(sets, start=str(start))
    same(OrderLearner(config).init().policy, nnx.state(result.model))
    for changed, said in (
        (
            {"model": AUTOREGRESSIVE},
            "start.safetensors has decoder = 'priorities', the config 'autoregressive'",
        ),
        ({"start": "absent"}, "start: no file 'absent'; give a file of weights"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(dataclasses.replace(config, **changed), tmp_path / "run")
        assert not (tmp_path / "run" / "config.json").exists()
    folder, _ = whole
    with pytest.raises(ConfigError, match="holds a run with other config and start"):
        run(config, folder)


# Settings -------------------------------------------------------------------------------------------


def test_a_config_comes_back_from_its_document(tmp_path):
    data = OrderDataConfig(ops=[5, 7], train="a", validation=["b"], share=0.25, validation_graphs=0)
    config = dataclasses.replace(config_of(AUTOREGRESSIVE, decay=0.5), seed=3, data=data)
    assert OrderTrainConfig.from_document(config.as_document()) == config
    assert config.data.train == ("a",)
    (tmp_path / "run.toml").write_text('system = "topoformer"\nseed = 4\n[data]\nops = [9]\n')
    loaded = OrderTrainConfig.load(tmp_path / "run.toml")
    assert (loaded.seed, loaded.data.ops, loaded.model) == (4, (9,), TopoformerConfig())
    o = loaded.optimizer
    assert (o.epoch, o.steps / o.epoch, o.learning_rate, o.decay, o.batch) == (125, 326, 1e-4, 0.996, 8)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"data": {"ops": []}}, r"data\.ops: is \(\); give a list of whole numbers from 1 to 65535"),
        ({"data": {"ops": [0]}}, r"data\.ops: is \(0,\); give a list"),
        ({"data": {"ops": [2.5]}}, r"data\.ops: is \(2\.5,\); give a list"),
        ({"data": {"ops": 500}}, r"data\.ops: is 500; give a list"),
        ({"data": {"share": 1.5}}, r"data\.share: is 1\.5; give a number from 0 to 1"),
        ({"data": {"share": -1}}, r"data\.share: is -1"),
        ({"data": {"validation_graphs": 0}}, r"data\.validation_graphs: is 0; give a whole number from 1"),
        ({"optimizer": {"standardise": True}}, r"optimizer\.samples: is 1, but standardise needs at least 2"),
        ({"optimizer": {"learning_rate": 0}}, r"optimizer\.learning_rate: is 0"),
        ({"optimizer": {"logit_norm": -1}}, r"optimizer\.logit_norm: is -1"),
        (
            {"optimizer": {"logit_norm": 0.1}, "model": {"decoder": "autoregressive"}},
            r"optimizer\.logit_norm: is 0\.1, but a network with the autoregressive decoder",
        ),
        ({"model": {"layers": -1}}, r"\[model\] topoformer: layers is -1"),
        ({"task": {}}, "task: there is no such setting; use one of seed, start, data, model, optimizer"),
        ({"system": "regal"}, "system: is 'regal'; give 'topoformer', or leave it out"),
    ],
)
def test_settings_that_cannot_be(document, said):
    with pytest.raises(ConfigError, match=said) as error:
        OrderTrainConfig.from_document(document)
    assert "\n" not in str(error.value)


# Orders of a network with the autoregressive decoder ------------------------------------------------


def test_every_graph_needs_a_key():
    model = Topoformer(MODEL, rngs=nnx.Rngs(0))
    for keys in (jax.random.split(jax.random.key(0), 1), jax.random.key(0), 3):
        with pytest.raises(ConfigError, match="keys: "):
            decode_orders(model, [chain(3)] * 2, keys)


@pytest.mark.parametrize("model", [MODEL, pytest.param(AUTOREGRESSIVE, marks=pytest.mark.slow)])
def test_many_samples_are_drawn_in_parts(model, monkeypatch):
    network = Topoformer(model, rngs=nnx.Rngs(0))
    keys = jax.random.split(jax.random.key(1), len(GRAPHS))
    whole = decode_orders(network, GRAPHS, keys, candidates=11)
    drawn = []

    def draw(*given):
        drawn.append(given[4:])
        return sampled_orders(*given)

    monkeypatch.setattr(infer, "sampled_orders", draw)
    monkeypatch.setattr(infer, "_VALUES", 1)
    monkeypatch.setattr(infer, "_FEW", 4)
    for one, other in zip(whole, decode_orders(network, GRAPHS, keys, candidates=11), strict=True):
        np.testing.assert_array_equal(one, other)
    assert set(drawn) == {(4, 0), (4, 4), (4, 8)}
    drawn.clear()
    decode_orders(network, GRAPHS, keys, candidates=2**31 - 1, seconds=1e-9)  # One part of each size.
    assert set(drawn) == {(4, 0)}
    with pytest.raises(ConfigError, match="candidates: must be a whole number of at most 2147483647"):
        decode_orders(network, GRAPHS, keys, candidates=2**31)


# By default such networks order graphs in test_topological_order.py.
@pytest.mark.slow
def test_a_network_with_the_autoregressive_decoder_orders_graphs(tmp_path):
    save_topoformer(tmp_path / "network", Topoformer(AUTOREGRESSIVE, rngs=nnx.Rngs(5)))
    model = load_topoformer(tmp_path / "network")
    assert model.decoder is not None
    assert model.decoder.heads == 2
    keys = jax.random.split(jax.random.key(1), 3)
    graphs = [*GRAPHS, chain(1)]
    found = {
        how: decode_orders(model, graphs, keys, decoding=how, candidates=8)
        for how in ("greedy", "sample", "beam")
    }
    embed = jax.jit(model.embed)
    for row, graph in enumerate(graphs):
        problem = make_problem([graph], Cluster.uniform(1, transfer="free"), Bucket.of(graph))
        embeddings = embed(make_order_inputs([graph], AUTOREGRESSIVE, problem.bucket.ops))
        expected = {
            "greedy": model.decoder.greedy(problem, embeddings)[0],
            "beam": model.decoder.beam_search(problem, embeddings, 8).orders[0],
        }
        for how, order in expected.items():
            np.testing.assert_array_equal(found[how][row], np.asarray(order)[: graph.num_ops])
        drawn, _ = model.decoder.sample(problem, embeddings, keys[row : row + 1], 8)
        least = min(replayed(graph, order) for order in np.asarray(drawn)[0])
        assert replayed(graph, found["sample"][row]) == least
        (alone,) = decode_orders(model, [graph], keys[row : row + 1], decoding="sample", candidates=8)
        np.testing.assert_array_equal(alone, found["sample"][row])
