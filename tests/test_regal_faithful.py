"""The papers' policy: networks against plain NumPy, the loss against its formula, and what is left out."""

import dataclasses
import importlib.resources
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from learning_cases import fast_on_first, share_of
from policy_cases import randomised

from regal_jax import Cluster, GraphBuilder, optimize
from regal_jax.errors import ConfigError
from regal_jax.learning import OptimizerConfig, TaskConfig, TrainConfig
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.pool import spread_pool
from regal_jax.learning.step import Learner, rollout, train_step
from regal_jax.plan import Objective
from regal_jax.policies import (
    SHIPPED,
    Ablation,
    FeatureSet,
    Policy,
    PolicyConfig,
    Transfers,
    Value,
    action_parameters,
    default_policy,
    is_shipped,
    log_prob,
    make_inputs,
    shipped_policy,
    to_proposal,
)
from regal_jax.problem import make_problem
from regal_jax.search import BrkgaConfig
from regal_jax.solvers import Brkga, Guide

TWO = Cluster.uniform(2, transfer="blocking")
PAPER = Ablation(
    features=FeatureSet.RAW,
    transfers=Transfers.UNIFORM,
    share_rounds=True,
    residual=False,
    norm=False,
    control_messages=False,
)
FAITHFUL = [name for name in SHIPPED if name != "regal-primed"]
FOLDER = importlib.resources.files("regal_jax.policies") / "trained"


def faithful(**settings):
    bins = {"means": (0.125, 0.375, 0.625, 0.875), "variances": (0.08, 0.02, 0.005, 0.001)}
    return PolicyConfig(
        **{"prior": "none", "guided_share": 1.0, "width": 6, "ablation": PAPER, **bins, **settings}
    )


def small_graph(control=True):
    """Six ops: one tensor with two readers, one op that reads two tensors of another, and a control edge."""
    builder = GraphBuilder("small")
    builder.add_op("a", runtime=2.0, outputs=[10, 30])
    builder.add_op("b", runtime=3.0, outputs=[20], inputs=[(0, 0)])
    builder.add_op("c", runtime=5.0, outputs=[5], inputs=[(0, 0), (0, 1)], temp_bytes=7)
    builder.add_op("d", runtime=1.0, outputs=[1], inputs=["b", "c"])
    builder.add_op("e", runtime=4.0, control_inputs=["c"] if control else [])
    builder.add_op("f", runtime=0.0, inputs=["d"])
    return builder.build()


def mlp(weights, x):
    hidden = np.maximum(x @ weights["hidden"]["kernel"] + weights["hidden"]["bias"], 0)
    return hidden @ weights["output"]["kernel"] + weights["output"]["bias"]


def raw_features(graph):
    """Features by their definition: log(1 + x / mean of the graph), of each op and of each tensor."""
    sizes = np.asarray(graph.tensor_bytes, float)
    outputs = np.zeros(graph.num_ops)
    for tensor, op in enumerate(graph.tensor_op):
        outputs[op] += sizes[tensor]
    amounts = [graph.runtime / graph.runtime.mean(), graph.temp_bytes / sizes.mean(), outputs / sizes.mean()]
    return np.log1p(np.stack(amounts, axis=1)), np.log1p(sizes / sizes.mean())


def embeddings(weights, graph, rounds):
    """Equation 1 of the workshop text, one edge after another."""
    nodes, tensors = raw_features(graph)
    h = mlp(weights["node"], nodes)
    if not rounds:
        return h
    width = h.shape[1]
    turn = weights["rounds"][0]
    sender, receiver = turn["from_op"]["kernel"][:, : 2 * width], turn["from_op"]["kernel"][:, 2 * width :]
    out = turn["message"]["kernel"]
    for _ in range(rounds):
        summed = np.zeros_like(h)
        for tensor, op in zip(graph.edge_tensor, graph.edge_op, strict=True):
            s, t = graph.tensor_op[tensor], op
            h_e = mlp(weights["edge"], tensors[[tensor]][None])[0]
            inner = h[s] @ sender + h[t] @ receiver + h_e @ turn["from_edge"]["kernel"]
            inner = np.maximum(inner + turn["from_edge"]["bias"], 0)
            # The halves are MLP_msg, whose message goes to the target, and MLP'_msg, to the source.
            summed[t] += inner[:width] @ out[:width]
            summed[s] += inner[width:] @ out[width:]
        h = mlp(turn["update"], np.concatenate([h, summed], axis=1))
    return h


def plain_weights(network):
    state = nnx.to_pure_dict(nnx.state(network, nnx.Param))
    return jax.tree.map(lambda x: np.asarray(x, np.float64), state)


def applied(network, inputs):
    graphdef, state = nnx.split(network)
    return jax.jit(lambda state, inputs: nnx.merge(graphdef, state)(*inputs))(state, inputs)


@pytest.mark.parametrize("rounds", [0, pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("form", ["means", "alphas"])
def test_the_networks_are_the_paper_s_equations(rounds, form):
    ablation = PAPER
    if form == "alphas":
        ablation = dataclasses.replace(PAPER, alphas=(1.0, 2.0), betas=(1.0, 3.0, 9.0))
    config = faithful(rounds=rounds, ablation=ablation)
    graph = small_graph()
    inputs = make_inputs([graph], TWO, None, config)
    policy = randomised(nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0))))
    weights = plain_weights(policy)
    h = embeddings(weights["network"], graph, rounds)
    hidden = np.maximum(h @ weights["hidden"]["kernel"] + weights["hidden"]["bias"], 0)
    hidden = hidden.reshape(len(h), config.num_keys, 2, -1)
    for choice, (name, logits) in enumerate(zip(("first", "second"), applied(policy, inputs), strict=True)):
        for key in range(config.num_keys):
            want = hidden[:, key, choice] @ weights[name]["kernel"][key] + weights[name]["bias"][key]
            np.testing.assert_allclose(logits[0, : len(h), key], want, rtol=2e-4, atol=2e-4)
    value = randomised(nnx.eval_shape(lambda: Value(config, rngs=nnx.Rngs(0))))
    weights = plain_weights(value)
    mean = mlp(weights["graph"], embeddings(weights["network"], graph, rounds)).mean(axis=0)
    want = mlp(weights, mean)
    np.testing.assert_allclose(applied(value, inputs), want, rtol=2e-4, atol=2e-4)


def test_control_edges_carry_no_message():
    config = faithful()
    with_edge, without = (make_inputs([small_graph(c)], TWO, None, config)[0] for c in (True, False))
    assert int(with_edge.edge_mask.sum()) == int(without.edge_mask.sum()) == 6
    np.testing.assert_array_equal(with_edge.nodes, without.nodes)
    ours = dataclasses.replace(config, ablation=dataclasses.replace(PAPER, control_messages=True))
    assert int(make_inputs([small_graph()], TWO, None, ours)[0].edge_mask.sum()) == 7


def shapes_of(config):
    """The weights of a network, as shapes: nothing is compiled."""
    return nnx.to_pure_dict(nnx.state(nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0))), nnx.Param))


def test_additions_leave_no_weights_behind_when_they_are_off():
    weights = shapes_of(faithful())
    assert sorted(weights) == ["first", "hidden", "network", "second"]
    assert len(weights["network"]["rounds"]) == 1
    assert "norm" not in weights["network"]["rounds"][0]
    full = shapes_of(PolicyConfig(width=6))
    assert {"spectral", "ordered"} <= full.keys()
    assert all("norm" in turn for turn in full["network"]["rounds"].values())


@pytest.mark.parametrize("field", ["residual", "norm", "control_messages"])
def test_switches_are_flags(field):
    with pytest.raises(ConfigError, match=field):
        Ablation(**{field: 1})  # pyright: ignore[reportArgumentType]


# The loss --------------------------------------------------------------------------------------------


def printed_config(**optimizer):
    settings = {"steps": 4, "batch": 3, "samples": 1, "baseline": "learned", "standardise": False}
    settings |= {"entropy": 0.0, "entropy_end": 0.0, "worst": math.inf, "clip": 1e9, "reference_seeds": 1}
    return TrainConfig(
        task=TaskConfig(evaluations=10),
        policy=faithful(rounds=1, width=4),
        search=BrkgaConfig(population=5, elites=1, mutants=1),
        optimizer=OptimizerConfig(**{**settings, **optimizer}),
    )


def test_the_update_is_reinforce_as_printed():
    config = printed_config()
    share = share_of(config, tuple(fast_on_first(5, seed) for seed in range(3)))
    pool = dataclasses.replace(share.pool, reference=jnp.array([0.5, 0.25, 0.125], jnp.float32))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), (AXIS,))
    spread = spread_pool(dataclasses.replace(share, pool=pool), mesh)
    learner, key = Learner(config), jax.random.key(3)
    state = learner.init()

    @jax.jit
    def printed(state, pool, table):
        choose, act = jax.random.split(jax.random.fold_in(key, 0))
        order = jax.random.permutation(choose, 3)
        batch = jax.tree.map(lambda x: x[order], pool)
        policy = learner.policy(state)
        actions, fitness = rollout(learner, batch, policy(batch.features, batch.prior), table, act)
        value = nnx.merge(learner.graphdefs[1], state.value)(batch.features, batch.prior)
        advantage = -fitness[0] / batch.reference - value

        def loss(weights):
            logits = nnx.merge(learner.graphdefs[0], weights)(batch.features, batch.prior)
            return -(advantage * log_prob(logits, actions[0], batch.features.node_mask)).mean()

        return advantage, jax.grad(loss)(state.policy)

    advantage, gradient = jax.device_get(printed(state, pool, learner.table))
    want = math.sqrt(sum(float((x**2).sum()) for x in jax.tree.leaves(gradient)))
    _, metrics = train_step(learner, mesh, state, spread, key)
    assert float(metrics.gradient) == pytest.approx(want, rel=1e-4)
    assert float(metrics.spread) == pytest.approx(float(np.sqrt((advantage**2).mean())), rel=1e-5)


def test_an_infinite_floor_is_no_floor():
    assert OptimizerConfig(worst=math.inf).worst == math.inf
    for wrong in (1.0, math.nan, -math.inf):
        with pytest.raises(ConfigError, match="worst"):
            OptimizerConfig(worst=wrong)
    with pytest.raises(ConfigError, match="standardise"):
        OptimizerConfig(standardise=1)  # pyright: ignore[reportArgumentType]


# What ships ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("name", FAITHFUL)
def test_every_addition_is_off_in_the_settings_that_ship(name, objective):
    config = TrainConfig.load(str(FOLDER / name / f"{objective}-2.toml"))
    policy, a, o = config.policy, config.policy.ablation, config.optimizer
    assert (policy.num_devices, policy.objective, policy.network) == (2, objective, "gnn")
    assert (policy.prior, policy.placements, policy.orders, policy.reach) == ("none", (), False, 0)
    assert (policy.guided_share, policy.transfers, policy.rounds > 0) == (1.0, "uniform", True)
    assert policy.feature_config.node_names == ("log runtime", "log temp bytes", "log output bytes")
    assert policy.feature_config.edge_names == ("log bytes",)
    assert policy.feature_config.ways == ()
    assert (a.residual, a.norm, a.control_messages, a.share_rounds) == (False, False, False, True)
    assert (a.uniform, a.priority_bias, a.affinity_bias) == (False, 0.0, 0.0)
    assert (o.baseline, o.standardise, o.worst) == ("learned", False, math.inf)
    assert (o.entropy, o.entropy_end, o.reference_seeds) == (0.0, 0.0, 1)
    assert [len(bins) for bins in policy.bins] == [4, 4]
    assert bool(a.alphas) == (name == "regal-faithful-workshop")
    assert config.search == BrkgaConfig()
    assert (config.task.transfer, config.start) == ("blocking", "")


@pytest.mark.parametrize("name", FAITHFUL)
def test_some_action_is_near_uniform_and_none_is_degenerate(name):
    alphas, betas = action_parameters(TrainConfig.load(str(FOLDER / name / "makespan-2.toml")).policy)
    assert min(np.maximum(abs(alphas - 1), abs(betas - 1))) < 0.35
    assert alphas.min() >= 0.1
    assert betas.min() >= 0.1


def test_the_default_is_an_alias():
    for objective in Objective:
        assert default_policy(objective, 2).config == shipped_policy("regal-primed", objective, 2).config
    assert all(is_shipped(objective, 2, name) for objective in Objective for name in FAITHFUL)
    assert not is_shipped("makespan", 3, "regal-faithful")
    with pytest.raises(ConfigError, match="'regal'; use regal-primed, regal-faithful"):
        shipped_policy("regal", "makespan", 2)
    with pytest.raises(ConfigError, match=r"on 3 devices \(there are: makespan-2, peak-memory-2\)"):
        shipped_policy("regal-faithful", "makespan", 3)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize("name", FAITHFUL)
def test_the_weights_that_ship_are_of_the_settings_that_ship(name, objective):
    config = TrainConfig.load(str(FOLDER / name / f"{objective}-2.toml")).policy
    assert shipped_policy(name, objective, 2).config == config


@pytest.mark.parametrize("name", FAITHFUL)
def test_a_policy_by_its_name_guides_the_search_as_the_object_does(name):
    graph = small_graph()
    options = {"evaluations": 60, "warm_start": False, "progress": False}
    named = Brkga(population=20, elites=4, mutants=3, policy=name)
    given = dataclasses.replace(named, policy=shipped_policy(name, "makespan", 2))
    named = optimize(graph, TWO, method=named, **options)
    same = optimize(graph, TWO, method=given, **options)
    np.testing.assert_array_equal(named.timeline.op, same.timeline.op)
    assert named.provenance["history"] == same.provenance["history"]
    assert named.provenance["policy"] == name
    # A policy that is named and not the default: BRKGA, not a portfolio.
    assert optimize(graph, TWO, policy=name, **options).provenance["method"] == "brkga"


def test_names_of_policies():
    for name in ("regal-primed", *FAITHFUL, "default"):
        guide = Guide.of(name)
        assert guide is not None
        assert guide.guides(Objective.MAKESPAN, 2)
        with pytest.raises(ConfigError, match="on 5 devices"):
            guide.guides(Objective.MAKESPAN, 5)
        optional = Guide.of(name, optional=True)
        assert optional is not None
        assert optional.lacks(Objective.MAKESPAN, 5)
        assert not optional.lacks(Objective.MAKESPAN, 2)
    orders = Guide.of("topoformer", optional=True)
    assert orders is not None
    assert not orders.lacks(Objective.MAKESPAN, 5)
    with pytest.raises(ConfigError, match=r"'regal-faithful'.*or a file of weights"):
        Guide.of("regal-unfaithful")


def test_every_individual_comes_from_the_policy_and_transfers_are_uniform():
    config = shipped_policy("regal-faithful", "makespan", 2).config
    graph = small_graph()
    problem = make_problem([graph], TWO)
    actions = jnp.zeros((1, problem.bucket.ops, 3), jnp.uint8)
    proposal = to_proposal(config, Learner(TrainConfig(policy=config)).table, actions, problem)
    assert proposal.share == 1
    assert proposal.transfer_index is None
