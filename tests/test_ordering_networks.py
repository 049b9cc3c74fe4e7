"""Tests of Topoformer and its baselines: plain loops and invariances."""

import dataclasses
import functools
import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import nnx
from policy_cases import chain, randomised, renumbered, without_edges
from strategies import random_graph

from regal_jax.errors import ConfigError, FormatError
from regal_jax.ordering import (
    ENCODERS,
    Topoformer,
    TopoformerConfig,
    attention,
    infer,
    load_topoformer,
    make_order_inputs,
    named_encoder,
    read_topoformer_metadata,
    save_topoformer,
    standardised,
)
from regal_jax.problem import Bucket

SIZES = {"layers": 2, "width": 8, "head_width": 3, "eigenvectors": 3}
EDGES = (2, 2, 0, 2, 2, 0, 0)
CASES = {
    "topoformer": TopoformerConfig(heads=(2, 1, 0, 1, 3, 1, 2), **SIZES),
    "transformer": TopoformerConfig("transformer", heads=(2,) * 7, **SIZES),
    "gnn": TopoformerConfig("transformer", heads=EDGES, **SIZES),
    "gat-forward": TopoformerConfig("gat", heads=(2, 2, 0, 0, 0, 0, 0), **SIZES),
    "gat": TopoformerConfig("gat", heads=EDGES, **SIZES),
    "mlp": TopoformerConfig("mlp", **SIZES),
}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def assert_close(found, expected):
    """Priorities agree up to the rounding of the largest one, since all are divided by their spread."""
    atol = max(1e-5, 4e-6 * float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)


cases = pytest.mark.parametrize("config", CASES.values(), ids=CASES)


@functools.cache
def weighted(config):
    """A network whose output depends on every weight."""
    return randomised(nnx.eval_shape(lambda: Topoformer(config, rngs=nnx.Rngs(0))))


@functools.cache
def compiled(config, method="logits"):
    graphdef, state = nnx.split(weighted(config))
    return jax.jit(lambda inputs: getattr(nnx.merge(graphdef, state), method)(inputs))


@functools.cache
def graph(n, seed=0):
    return random_graph(np.random.default_rng(seed), n)


def inputs_of(graphs, config, ops=10, **options):
    return make_order_inputs(graphs, config, ops, **options)


# Against plain loops --------------------------------------------------------------------------------


def norm(x, weights):
    deviation = x - x.mean()
    return deviation / math.sqrt((deviation**2).mean() + 1e-6) * weights["scale"] + weights["bias"]


def linear(x, weights):
    return x @ weights["kernel"] + weights.get("bias", 0)


def gelu(x):
    return np.array([v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x])


def sees(config, head, i, j, code):
    """Whether the head attends from op ``i`` to op ``j``, whose relation to ``i`` this is."""
    if config.encoder == "topoformer":
        return [c for c, heads in enumerate(config.heads, 1) for _ in range(heads)][head] == code
    on = [c for c, heads in enumerate(config.heads, 1) if heads]
    return i == j or code in on


def attended(config, x, codes, weights):
    """The attention of one layer, one pair after another."""
    n, size = len(x), config.head_width
    heads = sum(config.heads) if config.encoder == "topoformer" else max(config.heads)
    projected = np.array([linear(v, weights["project"]) for v in x])
    found = np.zeros((n, heads * size))
    for head in range(heads):
        part = [slice((k * heads + head) * size, (k * heads + head + 1) * size) for k in range(3)]
        for i in range(n):
            seen = [j for j in range(n) if sees(config, head, i, j, codes[i, j])]
            if config.encoder == "gat":
                values = projected[:, part[0]]
                mine = values[i] @ weights["receiver"][head]
                scores = [mine + values[j] @ weights["sender"][head] for j in seen]
                scores = [s if s > 0 else 0.2 * s for s in scores]
            else:
                queries, keys, values = (projected[:, p] for p in part)
                scores = [queries[i] @ keys[j] / math.sqrt(size) for j in seen]
            total = sum(math.exp(s) for s in scores)
            for s, j in zip(scores, seen, strict=True):
                found[i, head * size : (head + 1) * size] += math.exp(s) / total * values[j]
    return np.array([linear(v, weights["output"]) for v in found])


def plain_logits(config, inputs, row):
    """Logits of one graph in float64."""
    state = nnx.to_pure_dict(nnx.state(weighted(config)))
    state = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state)
    n = int(inputs.mask[row].sum())
    x = np.concatenate([inputs.features[row, :n], inputs.spectral[row, :n]], axis=1).astype(float)
    h = np.array([linear(v, state["node"]) for v in x])
    for layer in range(config.layers):
        weights = state["layers"][layer]
        if any(config.heads):
            normed = np.array([norm(v, weights["first"]) for v in h])
            h = h + attended(config, normed, inputs.relations[row], weights["attention"])
        hidden = [gelu(linear(norm(v, weights["second"]), weights["hidden"])) for v in h]
        h = h + np.array([linear(v, weights["output"]) for v in hidden])
    head = state["priorities"]
    return np.array([linear(np.maximum(linear(v, head["hidden"]), 0), head["output"])[0] for v in h])


@pytest.mark.parametrize("edges", [False, True])
@cases
def test_networks_are_their_formulas(config, edges):
    inputs = inputs_of([graph(10), graph(7, 1)], config, edges=edges)
    found = np.asarray(compiled(config)(inputs))
    for row, n in enumerate((10, 7)):
        np.testing.assert_allclose(found[row, :n], plain_logits(config, inputs, row), rtol=1e-4, atol=1e-4)
    assert found.dtype == np.float32


@cases
def test_scores_in_blocks_of_rows_find_the_same(config, monkeypatch):
    """Four rows at a time, and the last block has two."""
    inputs = inputs_of([graph(10), graph(7, 1)], config, edges=True)
    heads = sum(config.heads[c - 1] for c in (3, 6, 7)) if config.encoder == "topoformer" else 2
    monkeypatch.setattr(attention, "_BLOCK", 4 * heads * 2 * 10)
    graphdef, state = nnx.split(weighted(config))
    found = jax.jit(lambda inputs: nnx.merge(graphdef, state).logits(inputs))(inputs)
    np.testing.assert_allclose(found, compiled(config)(inputs), **CLOSE)


def test_edges_are_those_of_the_graph():
    config = CASES["topoformer"]
    graphs = [graph(10), graph(7, 1), without_edges(graph(3))]
    inputs = inputs_of(graphs, config, 10, edges=True)
    counts = []
    for edges, codes in zip(inputs.edges, inputs.relations, strict=True):
        real = [(i, j) for i, j in edges.tolist() if i < 10]
        assert sorted(real) == [tuple(pair) for pair in np.argwhere((codes == 1) | (codes == 2)).tolist()]
        assert (edges[len(real) :] == 10).all()
        counts.append(len(real))
    assert counts[2] == 0 < counts[1]
    assert inputs.edges.shape == (3, 10 if max(counts) <= 10 else 20, 2)
    assert inputs_of([without_edges(graph(3))], config, edges=True).edges.shape == (1, 10, 2)


def test_inference_on_a_cpu_lists_edges(monkeypatch):
    listed, make = [], infer.make_order_inputs

    def noted(*given, **options):
        listed.append(make(*given, **options).edges is not None)
        return make(*given, **options)

    monkeypatch.setattr(infer, "make_order_inputs", noted)
    config = CASES["topoformer"]
    found = infer.graph_priorities(weighted(config), graph(10))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(infer.graph_priorities(weighted(config), graph(10)), found, **CLOSE)
    assert listed == [True, False]


# What must not matter -------------------------------------------------------------------------------


# `test_networks_are_their_formulas` lists the edges of all networks, beside padding and company, too.
@pytest.mark.parametrize(
    ("config", "edges"),
    [
        pytest.param(
            config,
            edges,
            id=f"{name}-{edges}",
            marks=pytest.mark.slow if edges != (name == "topoformer") else (),
        )
        for name, config in CASES.items()
        for edges in (False, True)
    ],
)
def test_padding_and_company_change_nothing(config, edges):
    alone = np.asarray(compiled(config, "__call__")(inputs_of([graph(7, 1)], config, 7, edges=edges)))
    both = inputs_of([graph(10), graph(7, 1)], config, 12, edges=edges)
    found = np.asarray(compiled(config, "__call__")(both))
    assert_close(found[1, :7], alone[0])
    assert not found[1, 7:].any()
    # The values of padding have no effect.
    rng = np.random.default_rng(0)
    features = both.features.copy()
    features[1, 7:] = rng.normal(size=(5, 8))
    again = compiled(config, "__call__")(dataclasses.replace(both, features=features))
    assert_close(again, found)


@cases
def test_numbers_of_ops_do_not_matter(config):
    inputs = inputs_of([graph(10)], config)
    place = np.random.default_rng(5).permutation(10)
    moved = dataclasses.replace(
        inputs,
        features=inputs.features[:, place],
        spectral=inputs.spectral[:, place],
        relations=inputs.relations[:, place][:, :, place],
    )
    embed = compiled(config, "embed")
    np.testing.assert_allclose(embed(moved), np.asarray(embed(inputs))[:, place], **CLOSE)


def test_renumbered_graphs_have_renumbered_inputs():
    config = dataclasses.replace(CASES["topoformer"], eigenvectors=0)
    place = np.random.default_rng(6).permutation(10)
    moved = np.asarray(compiled(config)(inputs_of([renumbered(graph(10), place)], config)))
    np.testing.assert_allclose(moved[:, place], compiled(config)(inputs_of([graph(10)], config)), **CLOSE)


def test_a_bucket_is_a_size_to_pad_to():
    config, given = CASES["topoformer"], graph(10)
    padded = inputs_of([given], config, Bucket.of(given).ops)
    found = compiled(config)(padded)
    assert found.shape == (1, Bucket.of(given).ops)
    np.testing.assert_allclose(found[:, :10], compiled(config)(inputs_of([given], config)), **CLOSE)


@pytest.mark.parametrize(
    ("name", "together"),
    [
        ("topoformer", 2),
        pytest.param("transformer", 1, marks=pytest.mark.slow),
        pytest.param("gat", 1, marks=pytest.mark.slow),
    ],
)
def test_heads_that_take_turns_find_the_same(name, together, monkeypatch):
    config = dataclasses.replace(CASES[name], layers=1)
    inputs = inputs_of([graph(10), graph(7, 1)], config)

    def results():
        graphdef, state = nnx.split(weighted(config))

        def loss(state):
            return (nnx.merge(graphdef, state)(inputs) ** 3).mean()

        return jax.jit(jax.value_and_grad(loss))(state)

    expected = results()
    monkeypatch.setattr(attention, "_SCORES", together * inputs.relations.size)
    assert attention._together(10, inputs.relations.size) == together
    assert attention._together(7, inputs.relations.size) == 1  # 7 is prime, so heads are computed one by one.
    chex.assert_trees_all_close(results(), expected, rtol=1e-4, atol=1e-5)


# Heads ----------------------------------------------------------------------------------------------


def test_relations_without_heads_do_not_matter_and_others_do():
    config = CASES["topoformer"]
    inputs = inputs_of([graph(10, 3)], config)
    expected = np.asarray(compiled(config)(inputs))
    for code in range(1, 8):
        assert (inputs.relations == code).any()
        without = np.where(inputs.relations == code, 0, inputs.relations).astype(np.uint8)
        found = np.asarray(compiled(config)(dataclasses.replace(inputs, relations=without)))
        assert np.abs(found - expected).max() < 1e-6 if code == 3 else np.abs(found - expected).max() > 1e-3


def test_heads_that_are_switched_off_have_no_weights():
    def count(heads):
        made = nnx.eval_shape(lambda: Topoformer(TopoformerConfig(heads=heads, **SIZES), rngs=nnx.Rngs(0)))
        return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(made)))

    none, one, three = count((0,) * 7), count((0, 0, 0, 1, 0, 0, 0)), count((1, 0, 0, 1, 0, 0, 1))
    # Weights of a head in a layer: queries, keys, values and the output.
    assert three - one == 2 * 2 * 4 * 8 * 3
    assert none == count((0,) * 7) < one
    mlp = nnx.eval_shape(lambda: Topoformer(CASES["mlp"], rngs=nnx.Rngs(0)))
    assert none == sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(mlp)))


@functools.cache
def gradient(config):
    """The weights of a network, and a function of them and of inputs: gradients and priorities."""
    graphdef, state = nnx.split(weighted(config))

    def loss(state, inputs):
        found = nnx.merge(graphdef, state)(inputs)
        return (found**3).sum(), found

    return state, jax.jit(jax.grad(loss, has_aux=True))


@pytest.mark.parametrize("name", ["topoformer", "gat", "transformer"])
@pytest.mark.parametrize("given", [chain(1), without_edges(chain(4)), chain(4)], ids=["one", "lone", "chain"])
def test_small_graphs_have_finite_priorities_and_gradients(name, given):
    config = CASES[name]
    inputs = inputs_of([given, graph(6)], config, 6)
    state, call = gradient(config)
    slopes, found = call(state, inputs)
    chex.assert_tree_all_finite((slopes, found))
    if given.num_ops == 1:
        assert not found[0].any()
    assert any(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(slopes))


def test_an_op_that_sees_nobody_gets_nothing():
    config = TopoformerConfig(heads=(1, 0, 0, 0, 0, 0, 0), **SIZES)
    attention = weighted(config).layers[0].attention
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 3, 8)), jnp.float32)
    pairs = jnp.asarray(inputs_of([chain(3)], config, 3).relations)

    def of(x, op):
        return attention(x, pairs)[0, op] - attention.output.bias[...]

    found = jax.jit(jax.jacobian(lambda x: of(x, 0)))(x)
    assert not np.asarray(found).any()
    assert not np.asarray(jax.jit(lambda x: of(x, 0))(x)).any()
    assert np.asarray(jax.jit(lambda x: of(x, 1))(x)).any()


# Priorities -----------------------------------------------------------------------------------------


def test_standardised_by_hand():
    mask = np.array([[True, True, True, True], [True, False, True, False], [False, True, False, False]])
    logits = np.array([[1, 3, 5, 7], [4, 1e9, 6, -5], [8, 8, 8, 8]], np.float32)
    found = jax.jit(lambda x: standardised(x, mask, 5.0))(logits)
    root = math.sqrt(5)  # The standard deviation of 1, 3, 5, 7.
    expected = [[5 * d / root for d in (-3, -1, 1, 3)], [-5, 0, 5, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.3e7, 1e-30])
def test_priorities_that_are_all_equal_are_zeros(value):
    logits = np.full((1, 7), value, np.float32)
    mask = np.arange(7)[None] < 5
    weights = np.arange(7, dtype=np.float32)
    call = jax.jit(jax.value_and_grad(lambda x: (standardised(x, mask, 5.0)[0] * weights).sum()))
    found, gradient = call(logits)
    assert float(found) == 0
    np.testing.assert_array_equal(gradient, np.zeros((1, 7)))


def test_priorities_that_differ_by_rounding_alone_are_zeros():
    one = np.float32(0.1)
    logits = np.where(np.arange(6) % 2, one, np.nextafter(one, np.float32(1)))[None].astype(np.float32)
    mask = np.ones((1, 6), bool)
    call = jax.jit(jax.value_and_grad(lambda x: (standardised(x, mask, 5.0) * x).sum()))
    found, gradient = call(logits)
    assert float(found) == 0
    assert not np.asarray(gradient).any()
    assert np.asarray(
        standardised(jnp.asarray(logits + np.linspace(0, 1e-4, 6, dtype=np.float32)), mask, 5.0)
    ).any()


def test_the_gradient_of_standardised_is_that_of_differences():
    rng = np.random.default_rng(0)
    logits, weights = rng.normal(size=(2, 6)).astype(np.float32), rng.normal(size=(2, 6)).astype(np.float32)
    mask = rng.random((2, 6)) < 0.8

    def plain(x):
        rows = []
        for row, real in zip(x, mask, strict=True):
            y = (row - row[real].mean()) / row[real].std() * 2
            rows.append(np.where(real, y, 0))
        return (np.array(rows) * weights).sum()

    found = jax.jit(jax.grad(lambda x: (standardised(x, mask, 2.0) * weights).sum()))(logits)
    step = 1e-6 * np.eye(12).reshape(12, 2, 6)
    slopes = [(plain(logits + s) - plain(logits - s)) / 2e-6 for s in step]
    np.testing.assert_allclose(found.ravel(), slopes, atol=1e-4)


# Configs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "rnn"}, "encoder is 'rnn'; use one of topoformer, mlp, transformer, gat"),
        ({"decoder": "beam"}, "decoder is 'beam'; use one of priorities, autoregressive"),
        ({"layers": -1}, "layers is -1; give a whole number from 0"),
        ({"width": 2.0}, "width is 2.0; give a whole number from 1"),
        ({"heads": (1, 2)}, "heads is \\(1, 2\\); give 7 whole numbers"),
        ({"heads": 10}, "heads is 10; give 7 whole numbers"),
        ({"heads": (1, 1, 1, 1, 1, 1, -1)}, "heads is -1; give a whole number from 0"),
        ({"encoder": "gat", "heads": (1, 2, 0, 0, 0, 0, 0)}, "see the same graph; give one number"),
        ({"alpha": 0}, "alpha: must be a number from 1e-06"),
        ({"eigenvectors": True}, "eigenvectors is True; give a whole number"),
    ],
)
def test_configs_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        TopoformerConfig(**settings)


def test_the_encoders_of_the_tables():
    full = named_encoder("topoformer")
    assert full == TopoformerConfig()
    assert (full.layers, full.width, full.head_width, full.heads, full.alpha) == (4, 256, 64, (10,) * 7, 5.0)
    assert full.groups == tuple(((code,), 10) for code in range(1, 8))
    groups = {
        "mlp": (),
        "transformer": (((1, 2, 3, 4, 5, 6, 7), 10),),
        "gat-forward": (((1, 2), 10),),
        "gat": (((1, 2, 4, 5), 10),),
        "gnn": (((1, 2, 4, 5), 10),),
        "topoformer-edges": (((1,), 10), ((2,), 10), ((4,), 10), ((5,), 10)),
    }
    for name, expected in groups.items():
        assert ENCODERS[name].groups == expected
    assert named_encoder("gat", layers=2).layers == 2
    assert len({hash(config) for config in ENCODERS.values()}) == len(ENCODERS)
    with pytest.raises(ConfigError, match="encoder 'rnn'; use one of mlp, transformer"):
        named_encoder("rnn")
    with pytest.raises(ConfigError, match="setting 'depth'; use those of TopoformerConfig"):
        named_encoder("mlp", depth=3)


def test_inputs_and_models_that_do_not_fit():
    config = CASES["mlp"]
    inputs = inputs_of([chain(2)], dataclasses.replace(config, eigenvectors=2))
    with pytest.raises(ConfigError, match="8 features and 2 eigenvectors, but 8 and 3 are needed"):
        weighted(config)(inputs)
    other = weighted(dataclasses.replace(config, decoder="autoregressive"))
    assert jax.jit(other.embed)(inputs_of([chain(2)], config)).shape == (1, 10, 8)
    with pytest.raises(ConfigError, match="with the decoder 'autoregressive' has no priorities"):
        other.logits(inputs)


# Weights files --------------------------------------------------------------------------------------


@cases
def test_what_was_saved_comes_back(tmp_path, config):
    path = tmp_path / "a network"
    save_topoformer(path, weighted(config), {"data": "layered"})
    loaded = load_topoformer(path)
    assert loaded.config == config
    chex.assert_trees_all_equal(nnx.state(loaded), nnx.state(weighted(config)))
    assert read_topoformer_metadata(path) == {"data": "layered"}
    save_topoformer(tmp_path / "again", loaded, {"data": "layered"})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_files_that_cannot_be_read_and_networks_that_cannot_be_written(tmp_path):
    path = tmp_path / "a network"
    with pytest.raises(ConfigError, match="save_topoformer: give a path, then a Topoformer, got 3"):
        save_topoformer(path, 3)
    with pytest.raises(ConfigError, match="metadata 'config': 'x'; give texts"):
        save_topoformer(path, weighted(CASES["mlp"]), {"config": "x"})
    save_topoformer(path, weighted(CASES["mlp"]))

    def refused(message, **metadata):
        with safetensors.safe_open(path, framework="numpy") as file:
            texts = {**file.metadata(), **metadata}
            tensors = {name: np.array(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        other = tmp_path / "other"
        other.write_bytes(safetensors.numpy.save(tensors, texts))
        with pytest.raises(FormatError, match=message):
            load_topoformer(other)

    config = dataclasses.asdict(CASES["mlp"])
    refused("holds no topoformer of regal_jax", format="regal_jax.policy")
    refused("format version '99', this release reads '1'; train it again", version="99")
    refused("metadata 'config': .*colour", config=json.dumps({**config, "colour": "red"}))
    refused("metadata 'config': topoformer: width is -1", config=json.dumps({**config, "width": -1}))
    refused("metadata 'config'", config="[1]")
    refused("'layers.2.hidden.bias' are missing", config=json.dumps({**config, "layers": 3}))
    refused("'layers.1.hidden.bias' are not a part of", config=json.dumps({**config, "layers": 1}))
    refused(
        r"'node.kernel' are float32 \(11, 8\), expected float32 \(10, 8\)",
        config=json.dumps({**config, "eigenvectors": 2}),
    )
