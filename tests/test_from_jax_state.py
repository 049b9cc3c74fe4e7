"""`from_jax` and state: in-place Flax NNX steps equal their functional twins, and no effect is dropped."""

import collections
import dataclasses
import functools
import subprocess
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from importer_cases import op

from regal_jax.errors import FormatError
from regal_jax.importers.jax_program import from_jax

X, Y = jax.ShapeDtypeStruct((3, 8), jnp.float32), jax.ShapeDtypeStruct((3, 4), jnp.float32)


@pytest.fixture(autouse=True)
def implicit_promotion():
    """Programs of users and optax rely on this behaviour."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


class Block(nnx.Module):
    def __init__(self, rngs):
        self.dense = nnx.Linear(8, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.dropout(nnx.relu(self.norm(self.dense(x))))


class Model(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.layers = nnx.List([Block(rngs) for _ in range(2)])
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def loss_fn(model, x, y):
    return jnp.mean((model(x) - y) ** 2)


def train_step(model, optimizer, x, y):
    loss, gradient = nnx.value_and_grad(loss_fn)(model, x, y)
    optimizer.update(model, gradient)
    return loss


@pytest.fixture(scope="module")
def parts():
    model = Model()
    return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)


def functional_step(model):
    """The same step by hand: split, `jax.value_and_grad`, optax; a pure function and its arguments."""
    graphdef, params, rest = nnx.split(model, nnx.Param, ...)
    adam = optax.adam(1e-3)
    moments = jax.eval_shape(adam.init, params)

    def step(params, rest, moments, count, x, y):
        def loss(params):
            model = nnx.merge(graphdef, params, rest, copy=True)
            value = loss_fn(model, x, y)
            return value, nnx.state(model, nnx.Not(nnx.Param))

        (value, new_rest), gradient = jax.value_and_grad(loss, has_aux=True)(params)
        updates, moments = adam.update(gradient, moments, params)
        return value, optax.apply_updates(params, updates), new_rest, moments, count + 1

    return step, (params, rest, moments, jax.ShapeDtypeStruct((), jnp.uint32), X, Y)


def work(graph):
    """Kind and runtime of each op, and therefore all flops and bytes."""
    return sorted(
        (kind, float(runtime), int(temp))
        for kind, runtime, temp in zip(graph.op_kinds, graph.runtime, graph.temp_bytes, strict=True)
    )


@pytest.mark.parametrize("jit", [False, True])
def test_an_in_place_step_is_its_functional_twin(parts, jit):
    graph = from_jax(nnx.jit(train_step) if jit else train_step, *parts, X, Y)
    step, args = functional_step(parts[0])
    twin = from_jax(step, *args, resident_argnums=(0, 1, 2, 3), donate_argnums=(0, 1, 2, 3))
    assert work(graph) == work(twin)
    assert len(graph.edge_op) == len(twin.edge_op)
    assert int(graph.tensor_bytes[graph.tensor_keep].sum()) == int(twin.tensor_bytes[twin.tensor_keep].sum())
    # Forward products, gradients of weights, gradients of inputs except the first.
    assert graph.op_kinds.count("dot_general") == 3 + 3 + 2


def test_residents_are_all_of_the_state_and_what_changes_is_donated(parts):
    graph = from_jax(train_step, *parts, X, Y)
    state = jax.tree.leaves(nnx.state(parts))
    residents = [o for o, kind in enumerate(graph.op_kinds) if kind == "parameter"]
    assert len(residents) == len(state)
    sizes = graph.tensor_bytes[residents]  # Sources come first, with one tensor each.
    assert sizes.sum() == sum(x.size * x.dtype.itemsize for x in state)
    assert [graph.op_names[o] for o, kind in enumerate(graph.op_kinds) if kind == "input"] == ["x", "y"]
    # Of the state, only the key of the shared random stream does not change.
    kept = [graph.op_names[o] for o in residents if graph.tensor_keep[o]]
    assert kept == ["model/layers_0/dropout/rngs/key", "model/layers_1/dropout/rngs/key"]
    # The loss, a new array for each state array that changes, and the batch.
    assert graph.tensor_keep.sum() == 1 + len(state) + 2


def test_names_are_flax_paths_for_arrays_and_ops(parts):
    names = set(from_jax(nnx.jit(train_step), *parts, X, Y).op_names)
    assert {
        "model/layers_0/dense/kernel",
        "model/layers_1/norm/mean",
        "model/layers_0/dropout/rngs/count",
        "optimizer/opt_state_0/mu/layers_1/dense/kernel",
        "optimizer/step",
        "layers_0/dense/dot_general",
        "layers_1/norm/rsqrt",
        "head/dot_general",
        "backward/layers_1/dense/dot_general",
        "optimizer/sqrt",
    } <= names


def test_ops_of_two_modules_stand_below_their_arguments():
    first, second = (nnx.Linear(8, 8, rngs=nnx.Rngs(0)) for _ in range(2))
    graph = from_jax(lambda generator, critic, x: critic(generator(x)), first, second, X)
    assert {"generator/dot_general", "critic/dot_general"} <= set(graph.op_names)


def test_donation_can_be_switched_off(parts):
    graph = from_jax(train_step, *parts, X, Y, donate_argnums=())
    state = [name for name in graph.op_names if name.startswith("model/")]
    assert state
    assert all(op(graph, name)["keep"] == [True] for name in state)


def test_the_users_objects_stay_as_they_are(parts):
    before = jax.tree.leaves(nnx.state(parts))
    graphdef = nnx.graphdef(parts)
    from_jax(train_step, *parts, X, Y)
    assert all(a is b for a, b in zip(before, jax.tree.leaves(nnx.state(parts)), strict=True))
    assert nnx.graphdef(parts) == graphdef
    assert type(parts[0]) is Model


def test_statistics_counters_metrics_and_new_variables_are_results():
    norm = nnx.BatchNorm(8, rngs=nnx.Rngs(0))
    graph = from_jax(norm, X)
    assert op(graph, "model/mean")["keep"] == op(graph, "model/var")["keep"] == [False]
    assert op(graph, "model/scale")["keep"] == [True]
    # x; scale and bias; the result, the new mean and the new variance.
    assert sum(op(graph, n)["keep"] == [True] for n in graph.op_names) == 1 + 2 + 3
    norm.eval()
    assert op(from_jax(norm, X), "model/mean")["keep"] == [True]

    graph = from_jax(lambda rngs, x: x + rngs.normal(x.shape), nnx.Rngs(0), X)
    assert op(graph, "rngs/default/count")["keep"] == [False]
    assert op(graph, "rngs/default/add")["keep"] == [True]

    graph = from_jax(lambda metric, x: metric.update(values=x), nnx.metrics.Average(), X)
    assert op(graph, "metric/add")["keep"] == op(graph, "metric/add_1")["keep"] == [True]

    def remember(model, x):
        model.last = nnx.Variable(jnp.tanh(x))

    assert op(from_jax(remember, nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X), "tanh")["keep"] == [True]


@pytest.mark.parametrize("kind", ["hijax", "ref"])
def test_variables_of_every_kind_are_followed(kind):
    def double(v):
        v[...] = v[...] * 2

    graph = from_jax(double, nnx.Variable(jnp.ones(3), **{kind: True}))
    assert graph.op_kinds == ("parameter", "start", "mul")
    assert op(graph, "mul")["keep"] == [True]


def test_however_the_objects_come_the_graph_has_the_same_ops(parts):
    model, optimizer = parts
    whole = work(from_jax(train_step, model, optimizer, X, Y))
    everything = {"model": model, "optimizer": optimizer, "x": X, "y": Y}
    abstract = nnx.eval_shape(lambda: (m := Model(), nnx.Optimizer(m, optax.adam(1e-3), wrt=nnx.Param)))
    for fn, args, kwargs in (
        (functools.partial(train_step, model, optimizer), (X, Y), {}),
        (functools.partial(train_step, optimizer=optimizer), (model,), {"x": X, "y": Y}),
        (lambda batch: train_step(**batch), (everything,), {}),
        (train_step, (), everything),
        (train_step, (*abstract, X, Y), {}),
    ):
        assert work(from_jax(fn, *args, kwargs=kwargs)) == whole


def test_objects_that_share_variables_share_them_in_the_graph():
    layer = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    graph = from_jax(lambda a, b, x: a(x) + b(x), layer, layer, X)
    assert graph.op_kinds.count("parameter") == 2
    assert op(graph, "dot_general")["inputs"] == op(graph, "dot_general_1")["inputs"]


def test_a_functional_use_of_nnx_has_no_more_results_than_it_returns():
    layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(layer)
    graph = from_jax(lambda state, x: nnx.merge(graphdef, state)(x), state, X)
    assert graph.op_names[:3] == ("state/bias", "state/kernel", "x")
    assert graph.tensor_keep.sum() == 4


class Graph(nnx.Module, pytree=False):
    """Cases that make names difficult: not a pytree, a jitted call, an ``update`` that is not a method."""

    def __init__(self):
        self.dense = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
        self.calls = nnx.Variable(jnp.zeros(()))

    @nnx.jit
    def __call__(self, x):
        self.calls[...] += 1
        return self.update(self.dense(x))

    @staticmethod
    def update(x):
        return x


@pytest.mark.parametrize("graph_mode", [False, True])
def test_classes_and_modes_of_every_kind(graph_mode):
    with nnx.set_graph_mode(graph_mode):
        step = nnx.jit(lambda model, x: nnx.grad(lambda model: jnp.sum(model(x)))(model))
        graph = from_jax(step, nnx.Linear(8, 8, rngs=nnx.Rngs(0)), X)
    assert graph.op_kinds.count("dot_general") == 1
    graph = from_jax(Graph(), X)
    assert graph.op_names[:5] == ("model/calls", "model/dense/bias", "model/dense/kernel", "x", "start")
    assert {"add", "dense/dot_general"} <= set(graph.op_names)
    assert op(graph, "add")["keep"] == [True]


def test_many_objects_keep_their_order():
    layers = [nnx.Variable(jnp.zeros(i)) for i in range(12)]
    graph = from_jax(lambda layers: [jnp.sum(v[...]) for v in layers], layers)
    assert graph.tensor_bytes[:12].tolist() == [4 * i for i in range(12)]
    assert graph.op_names[11] == "layers/11"


def test_gradients_and_loops_of_nnx():
    layer = nnx.Linear(8, 4, rngs=nnx.Rngs(0))
    graph = from_jax(nnx.grad(lambda model, x: jnp.sum(model(x))), layer, X)
    # The gradient of the weights; the forward pass is dead code.
    assert graph.op_kinds.count("dot_general") == 1

    make = nnx.vmap(lambda key: nnx.Linear(8, 8, rngs=nnx.Rngs(key)))
    stack = make(jax.random.split(jax.random.key(0), 5))
    run = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
    graph = from_jax(lambda layers, x: run(x, layers), stack, X)
    assert op(graph, "layers/kernel")["sizes"] == [5 * 8 * 8 * 4]
    assert op(graph, "scan")["inputs"]


# Changes that a trace does not show ---------------------------------------------------------------------


def refused(fn, *args):
    with pytest.raises(FormatError) as caught:
        from_jax(fn, *args)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_state_that_is_closed_over_and_changed_is_refused(parts):
    count = nnx.Variable(jnp.zeros(()))

    def counting(x):
        count[...] = count[...] + 1
        return x

    for message in (refused(counting, X), refused(lambda x, y: train_step(*parts, x, y), X, Y)):
        assert message.endswith(
            "(it changes an NNX object that it closes over: pass the object as an argument)"
        )


TOTAL = 0.0


def test_arrays_put_into_what_is_closed_over_are_refused():
    log, table, space = [], collections.defaultdict(list), types.SimpleNamespace(total=0.0)
    counter = 0.0

    def append(x):
        log.append(jnp.sum(x))
        return x

    def tabulate(x):
        table["sums"].append(jnp.sum(x))
        return x

    def assign(x):
        space.total = space.total + jnp.sum(x)
        return x

    def count(x):
        nonlocal counter
        counter = counter + jnp.sum(x)
        return x

    def everywhere(x):
        global TOTAL
        TOTAL = TOTAL + jnp.sum(x)
        return x

    cases = {"log": append, "table['sums']": tabulate, "space.total": assign, "counter": count}
    for where, fn in {**cases, "TOTAL": everywhere}.items():
        assert refused(fn, X).startswith(f"the function stores an array that it computes in {where!r}")
    # Objects of other packages are also checked, with the objects that they hold.
    meter = type("Meter", (), {"__module__": "elsewhere.meters"})()
    meter.inner = type("Window", (), {"__module__": "elsewhere.meters"})()

    def measure(x):
        meter.inner.last = jnp.sum(x)
        return x

    assert "'meter.inner.last'" in refused(measure, X)
    # Helpers, transformations and repeated traces hide nothing.
    assert "'log'" in refused(jax.jit(lambda x: append(x)), X)
    assert "'log'" in refused(jax.value_and_grad(lambda x: jnp.sum(append(x))), X)


@dataclasses.dataclass(slots=True)
class Slotted:
    last: Any = None


class Sums:
    latest: Any = None

    def __call__(self, x):
        type(self).latest = jnp.sum(x)
        return x

    def put(self, x):
        KEPT["put"] = jnp.sum(x)
        return x

    @staticmethod
    def note(x):
        KEPT["noted"] = jnp.sum(x)
        return x


KEPT = {}
SUMS = Sums()


@jax.jit
def jitted(x):
    KEPT["jitted"] = jnp.sum(x)
    return x


def test_arrays_are_found_however_deep_and_wherever_they_are_put():
    tree, rows = {"a": {"b": {"c": {"d": {}}}}}, [[[[[]]]]]
    slotted, cells = Slotted(), np.empty(2, object)

    def deep(x):
        tree["a"]["b"]["c"]["d"]["e"] = jnp.sum(x)
        return x

    def deep_list(x):
        rows[0][0][0][0].append(jnp.sum(x))
        return x

    def slot(x):
        slotted.last = jnp.sum(x)
        return x

    def cell(x):
        cells[1] = jnp.sum(x)
        return x

    def default(x, cache=[]):  # noqa: B006
        cache.append(jnp.sum(x))
        return x

    def keyword(x, *, cache=[]):  # noqa: B006
        cache.append(jnp.sum(x))
        return x

    def own(x):
        own.last = jnp.sum(x)
        return x

    def bound(cache, x):
        cache.append(jnp.sum(x))
        return x

    cases = [
        ("tree['a']['b']['c']['d']['e']", deep),
        ("rows", deep_list),
        ("slotted.last", slot),
        ("cells", cell),
        ("cache", default),
        ("cache", keyword),
        ("own.last", own),
        ("args", functools.partial(bound, [])),
        ("latest", SUMS),
        ("KEPT['put']", lambda x: SUMS.put(x)),
        ("KEPT['noted']", lambda x: Sums.note(x)),
        ("KEPT['jitted']", lambda x: jitted(x)),
    ]
    for where, fn in cases:
        KEPT.clear()
        assert refused(fn, X).startswith(f"the function stores an array that it computes in {where!r}")


def test_arrays_put_into_an_argument_are_refused_and_taking_out_is_no_change():
    def descend(params, x):
        params["w"] = params["w"] - x
        return jnp.sum(params["w"])

    assert "changes its argument 'params/w' in place" in refused(descend, {"w": X}, X)

    def grow(values):
        values.append(values[0] * 2)
        return values[0]

    assert "changes its argument 'values/1' in place" in refused(grow, [X])
    assert from_jax(lambda batch: batch.pop("x") * 2, {"x": X}).op_kinds[-1] == "mul"


def test_writes_to_a_mutable_array_that_is_closed_over_stay():
    total = jax.new_ref(jnp.zeros((3, 8)))

    def fn(x):
        total[...] += x
        return jnp.sum(x)

    graph = from_jax(fn, X)
    assert {"get", "add", "swap"} <= set(graph.op_kinds)


def test_flax_is_loaded_only_by_those_who_use_it():
    script = (
        "import sys, jax.numpy as jnp, regal_jax\n"
        "regal_jax.from_jax(lambda d: d['x'] * 2, {'x': jnp.ones(3)})\n"
        "assert 'flax' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
