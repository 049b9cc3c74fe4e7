"""`regal_jax.execute`: results, order, memory and failures on several devices."""

import itertools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from random_plans import random_plan

from regal_jax import Cluster, Plan, PlanError, execute, from_jax
from regal_jax.errors import ClusterError, ConfigError, FormatError
from regal_jax.execution import ExecutionRecord, PlannedFunction, measure_cluster
from regal_jax.execution.devices.actions import Move, Segment, actions_of
from regal_jax.execution.devices.links import fit_link
from regal_jax.graph import allowed_matrix, transfer_times
from regal_jax.importers.jax_program import trace_call
from regal_jax.plan import insert_transfers
from regal_jax.runtime import interrupts

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
FREE, BLOCKING = "free", "blocking:latency=1us,bandwidth=1GB/s"


def net(w, x):
    hidden = jnp.tanh(x @ w)
    left, right = jnp.sin(hidden) @ w, jnp.cos(hidden) @ w.T
    return {"y": left + right, "loss": (left * right).sum(), "x": x, "twice": [left, left], "c": 3.0}


def loss(w, x):
    return net(w, x)["loss"]


def looped(w, x):
    def body(carry, scale):
        return jnp.tanh(carry @ w) * scale, carry.sum()

    last, sums = jax.lax.scan(body, x, jnp.arange(3.0))
    chosen = jax.lax.cond(sums[0] > 0, lambda a: a + 1, lambda a: a @ w, last)
    return jax.lax.fori_loop(0, 2, lambda i, a: a * 0.5, chosen), sums


def keyed(w, x):
    key = jax.random.key(3)
    first, second = jax.random.split(key)
    return w + jax.random.normal(first, w.shape), jax.random.uniform(second, x.shape) + np.float32(2)


def same(ours, reference):
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), ours, reference)


def close(ours, reference):
    """Checks equality up to the rounding of fused ops, which for a sum is that of its largest terms."""

    def check(a, b):
        np.testing.assert_allclose(a, b, rtol=2e-6, atol=max(2e-6, 4e-7 * np.abs(b).max(initial=0)))

    jax.tree.map(check, ours, reference)


@pytest.fixture(scope="module")
def reference():
    return {fn: jax.jit(fn)(X, X) for fn in (net, looped, keyed)} | {loss: jax.jit(jax.grad(loss))(X, X)}


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([net, loss, looped, keyed]), st.sampled_from([FREE, BLOCKING])
)
def test_random_plans_give_the_results_of_jit(reference, seed, fn, transfer):
    rng = np.random.default_rng(seed)
    whole = jax.grad(fn) if fn is loss else fn
    graph = from_jax(whole, X, X)
    plan = random_plan(graph, Cluster.uniform(int(rng.integers(1, 5)), transfer=transfer), rng)
    close(execute(plan, whole)(X, X), reference[fn])


def planned(fn, *args, devices=2, seed=0, transfer=BLOCKING, **options):
    graph = from_jax(fn, *args, **options)
    return random_plan(graph, Cluster.uniform(devices, transfer=transfer), np.random.default_rng(seed))


def test_it_is_called_like_the_function_and_compiles_once(monkeypatch):
    plan = planned(net, X, X)
    compiled = []
    module = "regal_jax.execution.devices.function.compile_segment"
    from regal_jax.execution.devices.segments import compile_segment

    monkeypatch.setattr(module, lambda *a: compiled.append(a) or compile_segment(*a))
    run = execute(plan, net)
    assert isinstance(run, PlannedFunction)
    first = run(X, jnp.asarray(X))
    count = len(compiled)
    assert count > 1
    close(run(x=X, w=X), first)  # To JAX, a call with keyword arguments is another signature.
    close(run(X, X + 1), jax.jit(net)(X, X + 1))
    assert len(compiled) == 2 * count
    assert set(first) == {"y", "loss", "x", "twice", "c"}


@pytest.mark.parametrize("transfer", [FREE, BLOCKING])
def test_the_order_is_that_of_the_plan(transfer):
    plan = planned(jax.grad(loss), X, X, devices=3, transfer=transfer)
    run = execute(plan, jax.grad(loss), trace=True)
    assert run.record is None
    run(X, X)
    record = run.record
    assert isinstance(record, ExecutionRecord)
    line = plan.timeline
    traced = trace_call(jax.grad(loss), (X, X), {}, frozenset(), "f")
    first = len(plan.op_names) - len(traced.program.equations)
    for k in range(3):
        events = line.op[(line.device == k) & (line.port < 0) & (line.op >= first)]
        mine = np.flatnonzero((record.device == k) & record.segments)
        assert [op for i in mine for op in record.ops[i]] == events.tolist()
    assert (~record.segments).sum() == plan.num_transfers
    # Nothing runs before what it reads.
    done = {}
    for ops, d, s, finish in zip(record.ops, record.device, record.source, record.finish, strict=True):
        done |= {(op, int(d)): finish for op in ops if s < 0}
    for ops, s, start in zip(record.ops, record.source, record.start, strict=True):
        if s >= 0:
            assert done.get((ops[0], int(s)), 0.0) <= start
    # One device does one thing at a time.
    for k in range(3):
        mine = np.flatnonzero(record.device == k)
        order = mine[np.argsort(record.start[mine], kind="stable")]
        assert (record.start[order][1:] >= record.finish[order][:-1]).all()


def test_segments_end_at_transfers_only():
    plan = planned(net, X, X, devices=2)
    actions = actions_of(plan, trace_call(net, (X, X), {}, frozenset(), "f"))
    assert any(isinstance(action, Move) for action in actions)
    for k in range(2):
        mine = [a for a in actions if a.device == k or (isinstance(a, Move) and a.source == k)]
        for a, b in itertools.pairwise(mine):
            assert not (isinstance(a, Segment) and isinstance(b, Segment))


def test_record_as_picture_and_trace(tmp_path):
    plan = planned(net, X, X)
    run = execute(plan, net, trace=True)
    run(X, X)
    record = run.record
    assert "segments" in repr(record)
    record.save_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    measured = [e for e in events if e["ph"] == "X" and e["pid"] > 2]
    assert len(measured) == len(record.ops)
    assert sum(e["dur"] for e in measured) == pytest.approx(1e6 * (record.finish - record.start).sum())
    above, below = record.plot(tmp_path / "both.png").axes
    assert [text.get_text() for text in above.get_legend().get_texts()] == ["ops", "transfers"]
    assert above.get_title("left").startswith("planned: ")
    assert below.get_title("left").startswith("measured: ")
    assert (tmp_path / "both.png").stat().st_size > 0


def test_programs_without_work():
    for fn, args in ((lambda: 3.0, ()), (lambda x: x, (X,)), (lambda x: (x, x), (X,))):
        graph_args = args or (X,)
        whole = fn if args else (lambda x: 3.0)
        run = execute(planned(whole, *graph_args), whole, trace=True)
        same(run(*graph_args), whole(*graph_args))
        assert run.record.makespan == 0.0
        assert len(run.record.ops) == 0


def test_one_op():
    run = execute(planned(jnp.negative, X, devices=1), jnp.negative, trace=True)
    same(run(X), -X)
    assert [len(ops) for ops in run.record.ops] == [1]


def test_arrays_that_it_closes_over_and_static_arguments():
    held = jnp.asarray(X) * 2

    def fn(n, x):
        return x @ held + n

    run = execute(planned(fn, 3, X, static_argnums=0), fn, static_argnums=0)
    close(run(3, X), X @ held + 3)
    close(run(4, X), X @ held + 4)


def test_static_arguments_differ_by_their_type_as_in_jit():
    def fn(x, n):
        return x * (2 if isinstance(n[0] if isinstance(n, tuple) else n, bool) else 3)

    run = execute(planned(fn, X, 1, static_argnums=1), fn, static_argnums=1)
    for value, factor in ((1, 3), (True, 2), (1, 3), ((1,), 3), ((True,), 2), ((1.0,), 3)):
        close(run(X, value), X * factor)
    with pytest.raises(ConfigError, match="static argument 1 is a list, which has no hash; give a tuple"):
        run(X, [1])


def test_options_name_arguments_by_place_or_by_name():
    def fn(x, n, mode="a"):
        return 2 * x * n if mode == "a" else x - n

    plan = planned(fn, X, 3, "a", devices=1, static_argnums=("n", 2))
    for static in (1, 2), ("n", "mode"), (1, "mode"):
        run = execute(plan, fn, static_argnums=static, donate_argnums="x")
        for call in (
            lambda run=run: run(jnp.asarray(X), 3),
            lambda run=run: run(jnp.asarray(X), n=3),
            lambda run=run: run(mode="a", n=3, x=jnp.asarray(X)),
        ):
            close(call(), X * 6)
        assert len(run._programs) == 3
    x = jnp.array(X)
    run(x=x, n=3)
    assert x.is_deleted()
    with pytest.raises(ConfigError, match="static argument 'n' is a list, which has no hash"):
        run(X, n=[3])


def test_empty_arguments_by_other_names_are_other_programs():
    def fn(x, a=None, b=None):
        return x * (2 if a is None else 3) * (1 if b is None else 5)

    run = execute(planned(fn, X), fn)
    close(run(X, a={}), X * 3)
    close(run(X, b={}), X * 10)
    close(run(X), X * 2)


def test_results_share_no_memory_with_arguments_constants_or_each_other():
    held = jnp.asarray(X) * 2

    def fn(x):
        twice = x * 3
        return {"argument": x, "constant": held, "one": twice, "other": twice}

    x = jnp.asarray(X)
    run = execute(planned(fn, x), fn)
    donate = jax.jit(jnp.negative, donate_argnums=0)
    for _ in range(2):
        jax.tree.map(donate, run(x))
    same(run(x), fn(x))
    # Donated arguments are returned as they are, and equal results can be donated in the next call.
    state = {"a": jnp.asarray(X), "b": jnp.asarray(X) + 1}

    def step(state):
        return {"a": state["a"], "b": state["a"]}

    run = execute(planned(step, state, devices=1), step, donate_argnums=0)
    for _ in range(3):
        state = run(state)
    same(state, {"a": X, "b": X})


@pytest.mark.parametrize("given", ["text", jax.ShapeDtypeStruct((8, 8), jnp.float32)])
def test_arguments_that_are_no_arrays_are_refused(given):
    run = execute(planned(net, X, X), net)
    with pytest.raises(
        ConfigError, match=r"regal_jax.execute: .* is no array; name what is static in static_"
    ):
        run(given, X)


def test_settings_of_jax_belong_to_the_signature_of_a_call():
    def fn(x):
        return -x, jnp.arange(3)

    run = execute(planned(fn, X), fn)
    assert run(X)[1].dtype == np.int32
    with jax.enable_x64(True):
        assert run(X)[1].dtype == np.int64
    assert run(X)[1].dtype == np.int32


@pytest.mark.parametrize("dtype", [jnp.int4, jnp.uint2])
def test_types_of_less_than_a_byte_pass_between_segments(dtype):
    def fn(x):
        return (x.astype(dtype) + dtype(1)).astype(jnp.int32) * 2

    x = jnp.arange(3)
    for seed in range(4):
        same(execute(planned(fn, x, devices=3, seed=seed), fn)(x), (x + 1) * 2)


def test_what_runs_is_a_function():
    with pytest.raises(ConfigError, match=r"regal_jax.execute: fn: give the function of the plan, got 3"):
        execute(planned(jnp.negative, X), 3)  # pyright: ignore[reportArgumentType]


def test_devices_are_those_of_jax():
    with pytest.raises(ConfigError, match=r"devices: 0 is no device; give some of jax.devices\(\)"):
        execute(planned(jnp.negative, X), jnp.negative, devices=[0, 1])


def test_a_training_step_with_donated_state():
    optimiser = optax.sgd(1e-2, momentum=0.9)

    def step(params, state, x):
        value, gradient = jax.value_and_grad(lambda w: loss(w, x))(params)
        updates, state = optimiser.update(gradient, state)
        return optax.apply_updates(params, updates), state, value

    params, state = jnp.asarray(X), optimiser.init(jnp.asarray(X))
    plan = planned(step, params, state, X, resident_argnums=(0, 1), donate_argnums=(0, 1))
    run = execute(plan, step, donate_argnums=(0, 1))
    expected = (params, state)
    ours = jax.tree.map(jnp.copy, expected)
    for _ in range(3):
        *expected, value = jax.jit(step)(*expected, X)
        *ours, mine = run(*ours, X)
        close((ours, mine), (expected, value))


def test_donated_arguments_are_given_away():
    def fn(a, b):
        return jnp.sin(a) + 1, b * 2

    # One device, so that nothing is copied.
    a, b = jnp.asarray(X) + 0, jnp.asarray(X) + 0
    execute(planned(fn, a, b, devices=1, donate_argnums=0), fn, donate_argnums=0)(a, b)
    assert a.is_deleted()
    assert not b.is_deleted()


def test_nnx_objects_are_updated_in_place():
    model = nnx.Linear(8, 8, rngs=nnx.Rngs(0))
    twin = nnx.clone(model)

    def step(model, x):
        gradient = nnx.grad(lambda m: (m(x) ** 2).sum())(model)
        nnx.update(model, jax.tree.map(lambda p, g: p - 0.1 * g, nnx.state(model), nnx.state(gradient)))
        return model(x).sum()

    run = execute(planned(step, model, X), step)
    for _ in range(2):
        close(run(model, X), nnx.jit(step)(twin, X))
    close(nnx.state(model), nnx.state(twin))
    assert not np.array_equal(model.kernel[...], nnx.Linear(8, 8, rngs=nnx.Rngs(0)).kernel[...])


class Layer:
    """A callable object whose attributes have the names of those of planned and compiled functions."""

    __name__ = "layer"

    def __init__(self):
        self.plan, self.record, self._fn, self._programs, self._lock = 1, 2, jnp.cos, None, None

    def __call__(self, x):
        return jnp.sin(x) @ x


def test_attributes_of_a_callable_object_stay_its_own():
    layer = Layer()
    plan = planned(layer, X)
    run = execute(plan, layer)
    close(run(X), layer(X))
    assert (run.plan, run.record, run.__name__) == (plan, None, "layer")


class Counts(nnx.Module):
    """A dropout layer that has a flag, a table of settings, and a number of its calls."""

    def __init__(self):
        self.drop, self.scales = nnx.Dropout(0.5, rngs=nnx.Rngs(0)), {"by": 2}
        self.calls, self.counting = 0, False

    def __call__(self, x):
        self.calls += self.counting
        return self.drop(x) * self.scales["by"]


def test_a_flag_of_an_nnx_object_that_changes_is_another_program():
    def fn(model, x):
        return model(x) + jnp.sin(x)

    model, still = Counts(), Counts()
    still.eval()
    plan = planned(fn, still, X)
    run = execute(planned(fn, model, X), fn)
    assert not np.array_equal(run(model, X), np.sin(X) + 2 * X)
    model.eval()
    with pytest.raises(PlanError, match="plan the graph of this function"):
        run(model, X)
    run = execute(plan, fn)
    close(run(model, X), np.sin(X) + 2 * X)
    model.scales["by"] = 3
    close(run(model, X), np.sin(X) + 3 * X)


def test_changes_of_nnx_objects_that_are_no_arrays_are_refused():
    def adds(model, x):
        model.kept = nnx.Variable(x)
        return model(x)

    model = Counts()
    with pytest.raises(FormatError, match="changes an NNX object in more than its arrays"):
        execute(planned(adds, model, X), adds)(model, X)
    assert not hasattr(model, "kept")
    model.counting = True
    with pytest.raises(FormatError, match=r"keep numbers that change in an nnx.Variable"):
        execute(planned(Counts.__call__, model, X), Counts.__call__)(model, X)


def changes(reference, x):
    reference[...] += jnp.sin(x) @ x
    y = jnp.cos(x)
    reference[0] += y[0]
    return reference[:1] * 2 + y[:1]


@pytest.mark.parametrize("how", ["made", "given", "closed over"])
@pytest.mark.parametrize("seed", range(2))
def test_a_reference_keeps_its_array_between_segments_and_after_the_call(how, seed):
    ours, theirs = jax.new_ref(jnp.asarray(X)), jax.new_ref(jnp.asarray(X))

    def made(x):
        reference = jax.new_ref(x)
        return changes(reference, x), jax.freeze(reference)

    def closed(x):
        return changes(ours, x)

    fn, args = {"made": (made, [X]), "given": (changes, [ours, X]), "closed over": (closed, [X])}[how]
    touching = ("reference", "constant_", "new_ref", "get", "swap", "addupdate", "freeze")
    names = [name for name in from_jax(fn, *args).op_names if name.startswith(touching)]
    graph = from_jax(fn, *args, pin=dict.fromkeys(names, 1), input_devices={0: int(how == "given")})
    plan = random_plan(graph, Cluster.uniform(3, transfer=BLOCKING), np.random.default_rng(seed))
    actions = actions_of(plan, trace_call(fn, args, {}, frozenset(), "fn"))
    segments = [action for action in actions if isinstance(action, Segment)]
    assert sum(segment.device == 1 for segment in segments) > 1
    run = execute(plan, fn)
    for _ in range(2):
        close(run(*args), jax.jit(made)(X) if how == "made" else jax.jit(changes)(theirs, X))
    if how != "made":
        close(ours[...], theirs[...])


def test_values_are_released_after_their_last_reader(monkeypatch):
    """A chain of ops that changes its device each time holds few arrays at once."""

    def chain(x):
        for i in range(8):
            x = jnp.sin(x) + i
        return x

    graph = from_jax(chain, X)
    place = np.arange(graph.num_ops) // 2 % 2
    place[:2] = 0
    cluster = Cluster.uniform(2, transfer=FREE)
    plan = Plan.from_events(graph, cluster, place, np.arange(graph.num_ops))
    most = []
    from regal_jax.execution.devices.run import Run

    put = Run._put

    def noted(self, value, device, array):
        put(self, value, device, array)
        most.append(len(self._values))

    monkeypatch.setattr(Run, "_put", noted)
    close(execute(plan, chain)(X), jax.jit(chain)(X))
    assert len(most) > 8
    # At most three arrays: the next operand, its copy, and one that is being sent.
    assert max(most) <= 3


def test_ordered_effects_keep_their_order():
    seen = []

    def fn(x):
        for i in range(6):
            jax.debug.callback(lambda y, i=i: seen.append(i), x, ordered=True)
            x = x + 1
        return x

    plan = planned(fn, X, devices=3, seed=1)
    assert len(set(plan.placement.tolist())) > 1
    close(execute(plan, fn)(X), X + 6)
    jax.effects_barrier()
    assert seen == list(range(6))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_barrier_waits_for_the_effects_of_all_devices(ordered):
    seen = []

    def fn(x, a):
        for _ in range(6):
            a = a @ a  # So that the operand of the callback is not there when the call returns.
        jax.debug.callback(lambda y: seen.append(1), a[0, 0], ordered=ordered)
        return x + 1

    a = jnp.zeros((1000, 1000))
    graph = from_jax(fn, X, a)
    assert graph.op_kinds[-1] == "add"
    cluster = Cluster.uniform(2)
    placement = allowed_matrix(graph, cluster)[:, 1].astype(int)
    placement[-1] = 0
    assert set(placement) == {0, 1}
    events = insert_transfers(graph, cluster, placement, np.arange(graph.num_ops))
    run = execute(Plan.from_events(graph, cluster, placement, events), fn)
    for calls in (1, 2):
        run(X, a)
        jax.effects_barrier()
        assert len(seen) == calls


def fails(x):
    def shout(y):
        raise ValueError("no luck")

    y = jax.pure_callback(shout, jax.ShapeDtypeStruct(x.shape, x.dtype), jnp.sin(x))
    return y + jnp.cos(x) @ x


def test_an_error_in_a_segment_is_raised_and_ends_all_threads():
    plan = planned(fails, X, devices=3)
    before = threading.active_count()
    with pytest.raises(Exception, match="no luck"):
        jax.block_until_ready(execute(plan, fails, trace=True)(X))
    assert threading.active_count() <= before


def test_an_interrupt_ends_all_threads(monkeypatch):
    plan = planned(net, X, X, devices=3)
    run = execute(plan, net)
    run(X, X)

    def pressed():
        raise KeyboardInterrupt

    before = threading.active_count()
    monkeypatch.setattr("regal_jax.execution.devices.run.check_interrupt", pressed)
    # Keep the threads alive, since all of them may end before the first check.
    monkeypatch.setattr("regal_jax.execution.devices.run.Run._act", lambda self, *_: self._stop.wait())
    with pytest.raises(KeyboardInterrupt):
        run(X, X)
    assert threading.active_count() <= before
    assert interrupts.check_interrupt() is None


def test_two_threads_at_once():
    run, results = execute(planned(net, X, X, devices=3), net), {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: run(X, X + i)})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        close(results[i], jax.jit(net)(X, X + i))


@pytest.mark.parametrize("devices", [1, 2])
def test_a_plan_of_ops_with_the_same_names_that_read_others_is_refused(devices):
    def first(a):
        b = jnp.sin(a)
        c, d = jnp.sin(b * 1), jnp.sin(a)
        return b + c, c - d

    def second(a):
        b = jnp.sin(a)
        c = jnp.sin(a * 1)
        d = jnp.sin(c)
        return b + c, c - d

    graph = from_jax(first, X)
    names = from_jax(second, X).op_names
    assert graph.op_names == names
    # The last sine of `first` reads the argument, so it may come before the others.
    last = max(i for i, kind in enumerate(graph.op_kinds) if kind == "sin")
    order = sorted(
        range(graph.num_ops),
        key=lambda o: (graph.op_kinds[o] not in ("parameter", "input", "start"), o != last, o),
    )
    placement = np.zeros(graph.num_ops, int)
    placement[last] = devices - 1
    events = insert_transfers(graph, Cluster.uniform(devices), placement, np.array(order))
    plan = Plan.from_events(graph, Cluster.uniform(devices), placement, events)
    close(execute(plan, first)(X), jax.jit(first)(X))
    with pytest.raises(
        PlanError, match="before a value that it needs is there; plan the graph of this function"
    ):
        execute(plan, second)(X)


def test_ops_that_run_on_several_devices_themselves_are_refused():
    mesh = jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec

    add = jax.shard_map(  # noqa: TID251
        lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=spec("i"), out_specs=spec()
    )

    def fn(x):
        return jax.lax.cond(x[0, 0] < 0, add, lambda x: x[:4], x)

    with pytest.raises(FormatError, match="shard_map runs on 2 devices itself"):
        execute(planned(fn, X), fn)(X)
    both = jax.sharding.NamedSharding(mesh, spec("i"))
    for name, put in (
        ("sharding_constraint", jax.lax.with_sharding_constraint),
        ("device_put", jax.device_put),
    ):

        def placed(x, put=put):
            return put(jnp.sin(x), both) + 1

        with pytest.raises(FormatError, match=f"{name} runs on 2 devices itself"):
            execute(planned(placed, X), placed)(X)
    run = execute(planned(loss, X, X), loss)
    with jax.set_mesh(mesh), pytest.raises(ConfigError, match=r"call the function outside of jax\.set_mesh"):
        run(X, X)
    one = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.set_mesh(one), pytest.raises(ConfigError, match="a mesh of 1 device is set"):
        run(X, X)
    with jax.set_mesh(one):
        close(execute(planned(loss, X, X, devices=1), loss)(X, X), loss(X, X))
    close(run(jax.device_put(X, both), X), loss(X, X))


def test_a_plan_for_another_program_is_refused(tmp_path):
    plan = planned(net, X, X)
    plan.save(tmp_path / "plan.json")
    close(execute(tmp_path / "plan.json", net)(X, X), jax.jit(net)(X, X))
    with pytest.raises(PlanError, match=r"ops and the function \d+: op \d+ is '\S+' in the plan"):
        execute(plan, keyed)(X, X)
    with pytest.raises(PlanError, match=r"ops and the function 3: op 0 is 'w' in the plan and 'arg0' in the"):
        execute(plan, jnp.negative)(X)


def test_none_names_no_argument():
    run = execute(planned(net, X, X), net, static_argnums=None, donate_argnums=None)
    close(run(X, X), net(X, X))


def test_numbers_keep_their_weak_type():
    def fn(x):
        return 3, 2.5, 1j, True, jnp.int8(4), x

    run = execute(planned(fn, X), fn)
    results, wanted = run(X), jax.jit(fn)(X)
    assert [jax.typeof(x).weak_type for x in results] == [jax.typeof(x).weak_type for x in wanted]
    same(results, wanted)


def test_bad_options():
    plan = planned(net, X, X, devices=2)
    with pytest.raises(ConfigError, match="the plan is for 2 devices and there are 1"):
        execute(plan, net, devices=jax.devices()[:1])
    with pytest.raises(ConfigError, match="devices: 3 is no list; give some of"):
        execute(plan, net, devices=3)
    with pytest.raises(FormatError, match="plan: give a Plan or the path of its file, got int"):
        execute(3, net)
    with pytest.raises(ConfigError, match="a device of its own"):
        execute(plan, net, devices=[jax.devices()[0]] * 2)
    with pytest.raises(ConfigError, match=r"the argument 1099511627776: .*; give an array"):
        execute(plan, net)(2**40, X)
    with pytest.raises(ConfigError, match="donate_argnums: there is no argument 5"):
        execute(plan, net, donate_argnums=5)(X, X)
    with pytest.raises(ConfigError, match="plan and execute the outer one"):
        jax.jit(execute(plan, net))(X, X)


def test_a_link_is_fitted():
    sizes = (4, 1000, 10**6, 10**7)
    late, rate = fit_link(sizes, [2e-5 + size / 3e9 for size in sizes])
    assert (late, rate) == pytest.approx((2e-5, 3e9))
    # Times that do not depend on the size, and times of 0.
    late, rate = fit_link(sizes, [1e-5] * 4)
    assert late == pytest.approx(1e-5)
    assert rate > 1e15
    assert min(fit_link(sizes, [0.0] * 4)) >= 0


def test_measured_links_make_a_cluster():
    cluster = measure_cluster(jax.devices()[:3], memory="1GiB")
    assert cluster.num_devices == 3
    assert cluster.memory == (2**30,) * 3
    times = transfer_times(from_jax(jnp.negative, X), cluster)
    assert (times >= 0).all()
    assert measure_cluster(jax.devices()[:1]).num_devices == 1
    with pytest.raises(ConfigError, match="is given twice; give each one once"):
        measure_cluster([jax.devices()[0], jax.devices()[1], jax.devices()[0]])
    with pytest.raises(ConfigError, match="give at least one"):
        measure_cluster([])
    for devices in (3, ["cpu"]):
        with pytest.raises(ConfigError, match=r"measure_cluster: devices: .*; give some of jax\.devices"):
            measure_cluster(devices)  # pyright: ignore[reportArgumentType]
    assert measure_cluster(jax.devices()[:1], memory=np.int64(1000)).memory == (1000.0,)  # pyright: ignore[reportArgumentType]
    for options, message in (
        ({"memory": ["1GiB"]}, "memory: 1 for 2 devices; give one for each"),
        ({"memory": None}, r"memory\[0\]: expected a number, got None"),
        ({"clock": 3}, "clock: 3 is no function; give one, or leave it out"),
    ):
        with pytest.raises((ConfigError, ClusterError), match=message):
            measure_cluster(jax.devices()[:2], **options)
