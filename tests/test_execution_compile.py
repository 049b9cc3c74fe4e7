"""`regal_jax.compile`: equal results, less memory by XLA's own report, and no side effects."""

import dataclasses
import json
import os
import re
import subprocess
import sys
import threading
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import regal_jax
from regal_jax.errors import ConfigError, FormatError, PlanError
from regal_jax.execution import Schedule
from regal_jax.execution.xla import hook, prediction, program
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.errors import DonationLost, NotSupported
from regal_jax.execution.xla.module_proto import new_module
from regal_jax.execution.xla.sequence import complete_orders, orders_of, put_orders
from regal_jax.importers.jax_call import static_key
from regal_jax.storage.varint import read_varint

X = np.linspace(-1, 1, 48 * 48, dtype=np.float32).reshape(48, 48)
DEFAULT = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_DEFAULT"}
"""An option with which XLA's other scheduler is not a candidate."""
QUICK = {"evaluations": 200, "method": "order-search"}
EMITTERS = {"xla_cpu_use_fusion_emitters": True} if jax.__version_info__ < (0, 11) else {}
"""XLA's emitters of fusions, which are its default and off in other tests."""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REGAL_JAX_CACHE", str(tmp_path / "cache"))


def wide(x):
    """Products that XLA computes before it sums any of them, though each could be summed before the next."""
    parts = [jnp.sin(jnp.tanh(x * i) @ x) @ x for i in range(1, 6)]
    return sum(part.sum() for part in parts)


def step(w, x):
    a, b = jnp.tanh(x @ w), jnp.sin(w @ x.T)
    return w + a.sum() + 0.1 * b.sum(), (a * b.T).sum()


def scanned(x):
    return jax.lax.scan(lambda c, _: (jnp.sin(c) + 1e-3 * wide(c), c.sum()), x, None, length=3)


def branched(x):
    return jax.lax.cond(x.sum() > 0, wide, lambda x: x.sum(), x)


def looped(x):
    return jax.lax.while_loop(
        lambda c: c[1] < 3, lambda c: (c[0] * 0.5 + 1e-3 * wide(c[0]), c[1] + 1), (x, 0)
    )


CONSTANT = np.arange(48 * 48, dtype=np.float32).reshape(48, 48)


def closed(x):
    return {"sum": x @ CONSTANT, "pair": (x + 1, [wide(x)])}


def compiled(fn, *args, **options):
    return regal_jax.compile(fn, *args, **{**QUICK, **options})


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (wide, (X,)),
        pytest.param(jax.grad(wide), (X,), marks=pytest.mark.slow),
        (step, (X, X)),
        (scanned, (X,)),
        (branched, (X,)),
        pytest.param(branched, (-abs(X),), marks=pytest.mark.slow),
        (looped, (X,)),
        (closed, (X,)),
        (lambda x: x + 1, (X,)),
        (lambda x: x, (X,)),
        (lambda: (), ()),
        (lambda x: jnp.sum(x), (np.zeros((0,), np.float32),)),
        (lambda x: {"a": jax.random.normal(jax.random.key(0), x["b"].shape)}, ({"b": X},)),
    ],
)
def test_results_are_equal_and_memory_is_no_larger(fn, args):
    made = compiled(fn, *args)
    before, after = made.statistics.before, made.statistics.after
    assert after.total <= before.total
    assert_same(made(*args), jax.jit(fn)(*args))
    # The statistics equal XLA's own report.
    stats = made.memory_analysis()
    assert after.temp == stats.temp_size_in_bytes
    plain = jax.jit(lambda *a: fn(*a)).lower(*args).compile().memory_analysis()
    assert before.temp == plain.temp_size_in_bytes


@pytest.mark.parametrize("fn", [wide, scanned, pytest.param(branched, marks=pytest.mark.slow)])
def test_orders_are_better_than_xlas(fn):
    made = compiled(fn, X)
    assert made.statistics.after.temp < made.statistics.before.temp
    assert made.statistics.reordered
    assert not made.statistics.reason
    # The text has the requested order in every computation.
    ran = orders_of(hook.module_of(made.compiled))
    assert all(tuple(ran[name]) == order for name, order in made.schedule.orders.items())


def test_bodies_of_loops_are_ordered():
    made = compiled(scanned, X)
    entry = hook.module_of(made.compiled)
    names = {c.id: c.name for c in entry.computations}
    assert set(made.schedule.orders) - {names[entry.entry_computation_id]}


def update(params, x):
    """A step that keeps the old parameters alive, so that XLA copies what it overwrites."""

    def loss(params):
        for w in params:
            x_ = jnp.tanh(x @ w)
        return (x_ * sum(w.sum() for w in params)).sum() + sum(wide(w) for w in params)

    gradients = jax.grad(loss)(params)
    return [w - 0.01 * g for w, g in zip(params, gradients, strict=True)]


def scattered(state):
    """A loop that ends with a scatter makes the new value of an argument that it does not read."""
    a, c = state
    total = sum((jnp.tanh(c * i) @ a).sum() for i in range(1, 5))
    made = a.T @ c
    return (made + total).at[jnp.array([0, 3])].add(made[:2]), total, a + 1


@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (step, lambda: (jnp.array(X), jnp.array(X))),
        (update, lambda: ([jnp.array(X), jnp.array(X.T), jnp.array(X * X)], jnp.array(X))),
        (scanned, lambda: (jnp.array(X),)),
        pytest.param(looped, lambda: (jnp.array(X),), marks=pytest.mark.slow),
        (lambda x: x, lambda: (jnp.array(X),)),
        (lambda x: (x.T @ x, x + 1), lambda: (jnp.array(X),)),
        (lambda x: x.at[2:4].set(1.0), lambda: (jnp.array(X),)),
        (lambda x: (jnp.concatenate([x[1:], x[:1]]) + 1, x.max()), lambda: (jnp.array(X),)),
    ],
)
def test_donated_arguments_stay_donated(fn, make):
    expected = jax.jit(fn)(*make())
    plain = jax.jit(lambda *a: fn(*a), donate_argnums=0).lower(*make()).compile()
    made = compiled(fn, *make(), donate_argnums=0)
    assert made.memory_analysis().alias_size_in_bytes == plain.memory_analysis().alias_size_in_bytes > 0
    args = make()
    assert_same(made(*args), expected)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(args[0]))
    assert_same(made(*make()), expected)


def test_factorisations_beside_a_donated_argument_are_reordered():
    def factors(x):
        first = jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(len(x)))
        inner = first @ jax.scipy.linalg.lu(x)[2]
        second = jnp.linalg.cholesky(inner @ inner.T + 9 * jnp.eye(len(x)))
        return second, second, wide(x)

    made = compiled(factors, jnp.array(X), donate_argnums=0, compiler_options=EMITTERS)
    assert made.statistics.reordered, made.statistics.reason
    assert_same(made(jnp.array(X)), jax.jit(factors).lower(X).compile(EMITTERS)(X))


def test_a_scatter_makes_the_new_value_of_a_donated_argument():
    def state():
        return [jnp.array(X), jnp.array(X) * 0.01]

    # XLA's emitters of fusions ended the process.
    made = compiled(scattered, state(), donate_argnums=0, compiler_options=EMITTERS)
    assert made.statistics.reordered
    assert made.statistics.after.alias == 2 * X.nbytes
    for one, two in zip(made(state()), scattered(state()), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


def test_a_donated_argument_is_returned_transposed():
    made = compiled(lambda x: (x.T, wide(x)), jnp.array(X), donate_argnums=0, compiler_options=EMITTERS)
    assert made.statistics.reordered
    np.testing.assert_array_equal(made(jnp.array(X))[0], X.T)


DEFAULT_FLAGS = """
import jax, jax.numpy as jnp, numpy as np, regal_jax

def step(state):
    a, b, c, d, e = state
    total = sum((jnp.sin(jnp.tanh(a * i) @ a) @ a).sum() for i in range(1, 5)) * 1e-3
    c = c.at[jnp.array([0, 3])].add(d[:2])
    return [a.T, jnp.roll(b, 1, 0) + total, c, jnp.cumsum(e, 0) * 0.1, d.at[2].set(e[1])], total

make = lambda: [jnp.array(np.random.default_rng(i).normal(size=(32, 32)), jnp.float32) for i in range(5)]
fn = regal_jax.compile(step, make(), donate_argnums=0, evaluations=50)
assert fn.statistics.reordered
one, two = make(), make()
for _ in range(3):
    (one, x), (two, y) = jax.jit(step)(one), fn(two)
    for left, right in zip([*one, x], [*two, y], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)
"""


def test_results_are_equal_with_xlas_default_flags():
    # Other tests have flags that change which instructions XLA fuses.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", DEFAULT_FLAGS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_order_of_ours_keeps_donation():
    made = compiled(wide_step, jnp.array(X), donate_argnums=0, compiler_options=DEFAULT)
    assert made.schedule.orders
    assert made.statistics.after.alias == made.statistics.before.alias == X.nbytes
    x = jnp.array(X)
    assert_same(made(x), jax.jit(wide_step)(X))
    assert x.is_deleted()


def mixed(state, x):
    """A step with donated state: read late, transposed, passed on, updated in slices, in a loop."""
    w, m, t, rest = state["w"], state["m"], state["t"], state["rest"]
    y = jnp.tanh(x @ w)
    m = 0.9 * m + (y.T @ y) * 1e-3
    rest = jax.lax.fori_loop(0, 2, lambda _, r: r @ w.T * 1e-2 + m, rest)
    late = (w.sum() + m.T @ w).sum()
    state = {"w": w.T * 0.5 + m, "m": m, "t": t + 1, "rest": rest.at[3].set(y[0])}
    return state, late


# By default, two random orders of each program.
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize("name", ["update", "mixed"])
def test_any_legal_order_gives_equal_results(name, seed):
    def arguments():
        if name == "update":
            return [jnp.array(X), jnp.array(X.T), jnp.array(X * X)], jnp.array(X)
        state = {"w": jnp.array(X), "m": jnp.array(X.T), "t": jnp.int32(0), "rest": jnp.array(X * X)}
        return state, jnp.array(X)

    fn = {"update": update, "mixed": mixed}[name]
    lowered = jax.jit(lambda *args: fn(*args), donate_argnums=0).lower(*arguments())
    plain = hook.compile_recorded(lowered, {}, f"{name}{seed}")
    module = hook.module_of(plain)
    alias, before = program.alias_of(module), program.memory_use(plain)
    elide_copies(module)
    rng = np.random.default_rng(seed)
    steps = {n: [str(x) for x in rng.permutation(order)] for n, order in orders_of(module).items()}
    orders = complete_orders(module, steps)
    schedule = Schedule(f"{name}{seed}", orders, alias, before, 0, 0, "")
    made = program.realise(lowered, {}, schedule).compiled
    args = arguments()
    assert_same(made(*args), jax.jit(fn)(*arguments()))
    assert [leaf.is_deleted() for leaf in jax.tree.leaves(args)] == [True] * (
        len(jax.tree.leaves(args)) - 1
    ) + [False]
    assert orders != {n: tuple(order) for n, order in orders_of(module).items()}


def wide_step(x):
    return x + 1e-3 * wide(x), wide(x * 2)


def test_shapes_instead_of_arrays_static_arguments_and_types():
    made = compiled(
        lambda n, x: wide(x) * n, 2, jax.ShapeDtypeStruct((48, 48), jnp.float32), static_argnums=0
    )
    assert_same(made(X), jax.jit(wide)(X) * 2)
    assert "is_scheduled=true" in made.as_text()
    assert made.cost_analysis()["flops"] > 0
    with pytest.raises(TypeError, match="compiled"):
        made(np.zeros(3, np.float32))


def test_the_decorator_compiles_once_for_each_signature(monkeypatch):
    calls = []
    real = program.find_candidates
    monkeypatch.setattr(program, "find_candidates", lambda *a: calls.append(1) or real(*a))

    @regal_jax.compile(static_argnums=1, **QUICK)
    def fn(x, power):
        "Its text."
        return wide(x) ** power

    assert fn.__doc__ == "Its text."
    assert_same(fn(X, 1), jax.jit(wide)(X))
    fn(X, 1)
    assert len(calls) == 1
    fn(X, 2)
    fn(X[:, :], 2)
    fn(X[:40, :40], 2)
    assert len(calls) == 3
    assert fn.program(X, 2).statistics.source == "searched"
    with pytest.raises(ConfigError, match="JAX transforms"):
        jax.jit(lambda x: fn(x, 1))(X)


def test_static_arguments_differ_by_their_type_as_in_jit():
    fn = regal_jax.compile(static_argnums=1, **QUICK)(lambda x, n: x * (2 if n is True else 3))
    assert_same(fn(X, 1), X * 3)
    assert_same(fn(X, True), X * 2)
    with pytest.raises(ConfigError, match="static argument 1 is a dict, which has no hash"):
        fn(X, {})


def test_settings_of_jax_belong_to_the_signature_of_a_call():
    fn = regal_jax.compile(**QUICK)(lambda x: (-x, jnp.arange(3)))
    assert fn(X)[1].dtype == np.int32
    with jax.enable_x64(True):
        assert fn(X)[1].dtype == np.int64
    assert fn(X)[1].dtype == np.int32


def test_keyword_arguments():
    def fn(x, *, scale, flip=False):
        return wide(x) * scale["by"] * (-1 if flip else 1)

    want, named = jax.jit(wide)(X) * 3, {"scale": {"by": np.float32(3)}}
    made = compiled(fn, X, kwargs={**named, "flip": True}, static_argnames="flip")
    assert_same(made(X, **named), -want)
    assert "median run" in made.report(X, **named)
    with pytest.raises(TypeError):
        made(X, np.float32(3))
    assert_same(compiled(lambda *, x: wide(x), kwargs={"x": X})(x=X), jax.jit(wide)(X))
    with pytest.raises(ConfigError, match="kwargs: give a Mapping, got int"):
        compiled(wide, X, kwargs=3)
    decorated = regal_jax.compile(static_argnames=("flip",), **QUICK)(fn)
    assert_same(decorated(X, **named), want)
    assert_same(decorated(X, flip=True, **named), -want)
    with pytest.raises(ConfigError, match="static argument 'flip' is a list, which has no hash"):
        decorated(X, flip=[], **named)


@pytest.mark.parametrize("static", [{"static_argnums": 1}, {"static_argnames": ["power"]}])
def test_static_arguments_are_static_by_place_and_by_name(static):
    fn = regal_jax.compile(**static, **QUICK)(lambda x, power=1: wide(x) if power == 1 else x)
    assert_same(fn(X, 2), X)
    assert_same(fn(X, power=2), X)
    assert_same(fn(x=X, power=1), jax.jit(wide)(X))
    assert_same(fn(X), jax.jit(wide)(X))


@pytest.mark.parametrize("donated", [{"donate_argnums": 0}, {"donate_argnames": "x"}])
def test_arguments_are_donated_by_place_and_by_name(donated):
    fn = regal_jax.compile(**donated, **QUICK)(lambda x, y: x + wide(y))
    x, y = jnp.array(X), jnp.array(X)
    want = X + jax.jit(wide)(y)
    assert_same(fn(x, y), want)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)
    x = jnp.array(X)
    assert_same(fn(y=y, x=x), want)
    assert (x.is_deleted(), y.is_deleted()) == (True, False)


def test_the_decorator_binds_methods_and_needs_parentheses():
    class Model:
        scale = 3

        @regal_jax.compile(static_argnums=0, **QUICK)
        def __call__(self, x):
            return x * self.scale

    assert_same(Model()(X), X * 3)
    with pytest.raises(
        ConfigError, match=r"'wide' takes arguments; .* @regal_jax.compile\(\) for a decorator"
    ):
        regal_jax.compile(wide)


def test_a_callable_object_may_have_attributes_of_any_name():
    class Scale:
        def __init__(self):
            self._programs = self._options = None

        def __call__(self, x):
            return 2 * x

    assert regal_jax.compile(evaluations=10)(Scale())(jnp.ones(2)).tolist() == [2, 2]


def test_a_second_time_nothing_is_searched(monkeypatch):
    first = compiled(wide, X)
    monkeypatch.setattr(program, "find_candidates", None)
    second = compiled(wide, X)
    assert second.statistics.source == "kept"
    assert second.statistics.after == first.statistics.after
    assert second.schedule == first.schedule
    assert_same(second(X), first(X))
    with pytest.raises(TypeError, match="not callable"):
        compiled(wide, X, seed=1)
    with pytest.raises(TypeError, match="not callable"):
        compiled(wide, X, cache=False)


def everything(x, n, unused, key):
    """Results of many types, of no elements and of no dimensions, and an argument that is not needed."""
    big = wide(x)
    kinds = (jnp.bfloat16, jnp.complex64, jnp.int4, jnp.float8_e4m3fn)
    made = [(x[:2] + big).astype(kind) for kind in kinds]
    return {"made": made, "none": x[:0], "flags": x > 0, "count": n + 1, "key": key}, x + big


@pytest.mark.parametrize("donated", [pytest.param((), marks=pytest.mark.slow), (0,)])
def test_a_later_call_loads_the_finished_program(monkeypatch, donated):
    def call():
        made = compiled(everything, X, np.int32(3), 1.0, jax.random.key(0), donate_argnums=donated)
        x = jnp.array(X)
        results = made(x, np.int32(3), 1.0, jax.random.key(0))
        assert x.is_deleted() == bool(donated)
        return made, results

    first, expected = call()
    assert first.statistics.reordered
    monkeypatch.setattr(program, "realise", None)  # Neither compiled nor packed again.
    monkeypatch.setattr(hook, "repack", None)
    second, results = call()
    assert second.statistics.source == "kept"
    assert (second.schedule, second.statistics.after) == (first.schedule, first.statistics.after)
    assert str(second.memory_analysis()) == str(first.memory_analysis())
    assert second.as_text() == first.as_text()
    assert second.report().splitlines()[:-1] == [
        "the order was loaded from disk" if "searched" in line else line
        for line in first.report().splitlines()[:-1]
    ]
    assert_same(jax.random.key_data(results[0].pop("key")), jax.random.key_data(expected[0].pop("key")))
    assert_same(results, expected)


@pytest.mark.parametrize(
    "change", [lambda held: held[:-1], lambda held: bytes(100), lambda held: b"", lambda held: None]
)
def test_a_damaged_program_is_compiled_again(tmp_path, monkeypatch, change):
    first = compiled(wide, X)
    (path,) = (tmp_path / "cache").glob("*/schedule-*.program")
    held = path.read_bytes()
    path.unlink()
    if change(held) is not None:
        path.write_bytes(change(held))
    second = compiled(wide, X)
    assert (second.statistics.source, second.schedule) == ("kept", first.schedule)
    assert path.read_bytes() != change(held)  # It is stored anew.
    monkeypatch.setattr(program, "realise", None)
    assert_same(compiled(wide, X)(X), first(X))


def test_a_program_that_cannot_be_loaded_is_compiled(monkeypatch):
    def fail(*_):
        raise AttributeError("another JAX")

    first = compiled(wide, X)
    monkeypatch.setattr(hook, "_without_steps", fail)
    second = compiled(wide, X)
    assert second.statistics.source == "kept"
    assert second.statistics.after == first.statistics.after


def test_without_jaxs_cache_no_programs_are_stored(tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        compiled(wide, X)
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not list((tmp_path / "cache").glob("*/*.program"))


def test_a_damaged_file_is_made_anew(tmp_path):
    compiled(wide, X)
    (path,) = (tmp_path / "cache").glob("*/schedule-*.json")
    path.write_text(path.read_text()[:100])
    assert compiled(wide, X).statistics.source == "searched"
    assert compiled(wide, X).statistics.source == "kept"


def test_schedules_are_saved_and_given(tmp_path, monkeypatch):
    made = compiled(wide, X)
    made.save_schedule(tmp_path / "plan.json")
    assert Schedule.load(tmp_path / "plan.json") == made.schedule
    monkeypatch.setattr(program, "find_candidates", None)
    again = compiled(wide, X, plan=tmp_path / "plan.json")
    assert again.statistics.source == "given"
    assert again.statistics.after == made.statistics.after
    with pytest.raises(PlanError, match="another program") as raised:
        compiled(scanned, X, plan=tmp_path / "plan.json")
    assert "\n" not in str(raised.value)
    with pytest.raises(FormatError, match=r"absent\.json: cannot be read: No such file"):
        compiled(wide, X, plan=tmp_path / "absent.json")
    with pytest.raises(FormatError, match=r"absent/plan\.json: cannot be written: No such .*; check the dir"):
        made.save_schedule(tmp_path / "absent" / "plan.json")
    document = json.loads((tmp_path / "plan.json").read_text())
    for change in ({"version": 9}, {"orders": 3}, {"before": {}}, {"alias": [[1]]}, {"predicted": -1}):
        (tmp_path / "bad.json").write_text(json.dumps(document | change))
        with pytest.raises(FormatError, match=r"bad\.json"):
            compiled(wide, X, plan=tmp_path / "bad.json")


def test_orders_of_another_program_fall_back():
    schedule = compiled(wide, X).schedule
    wrong = {name: order[1:] for name, order in schedule.orders.items()}
    made = compiled(wide, X, plan=dataclasses.replace(schedule, orders=wrong))
    assert not made.statistics.reordered
    assert "not those of this program" in made.statistics.reason
    assert_same(made(X), jax.jit(wide)(X))


def test_illegal_orders_are_mended():
    made = compiled(wide, X)
    module = hook.module_of(made.compiled)
    backwards = {name: order[::-1] for name, order in orders_of(module).items()}
    put_orders(module, backwards)
    for computation in module.computations:
        order = orders_of(module).get(computation.name)
        names = {i.id: i.name for i in computation.instructions}
        for instruction in computation.instructions if order else ():
            needs = [names[i] for i in (*instruction.operand_ids, *instruction.control_predecessor_ids)]
            assert all(order.index(n) < order.index(instruction.name) for n in needs)


@pytest.mark.parametrize(
    ("error", "reason"), [(PlanError("no order"), "no order"), (ZeroDivisionError("no"), "hook .* failed")]
)
def test_a_hook_that_raises_leaves_the_program_as_it_is(monkeypatch, error, reason):
    def fail(*_):
        raise error

    monkeypatch.setattr(hook, "put_orders", fail)
    # Programs that no other test has, or JAX's persistent cache would have them.
    made = compiled(lambda x: wide(x) + len(reason), X, compiler_options=DEFAULT)
    assert not made.statistics.reordered
    assert re.search(reason, made.statistics.reason)
    assert not hook._requests
    assert_same(made(X), jax.jit(lambda x: wide(x) + len(reason))(X))


def test_a_prediction_that_fails_leaves_the_choice_to_measurement(monkeypatch):
    monkeypatch.setattr(prediction, "TempModel", None)
    made = compiled(lambda x: wide(x) + 5, X, compiler_options=DEFAULT)
    assert made.statistics.reordered
    assert made.statistics.after.temp < made.statistics.before.temp
    assert made.statistics.predicted_before == 0


@pytest.mark.parametrize("donated", [pytest.param((), marks=pytest.mark.slow), 0])
def test_the_report_predicts_what_xla_assigns(donated):
    made = compiled(wide_step, jnp.array(X), donate_argnums=donated)
    stats = made.statistics
    assert (stats.predicted_before, stats.predicted) == (stats.before.temp, stats.after.temp)


def test_orders_are_compiled_until_one_is_as_small_as_predicted(monkeypatch):
    tried = []
    real = program.realise
    monkeypatch.setattr(program, "realise", lambda *a: tried.append(real(*a)) or tried[-1])
    assert compiled(wide, X).statistics.reordered
    assert len(tried) == 1
    # The prediction is 0 bytes for every order, so each next order could be better.
    tried.clear()
    find = program.find_candidates

    def two(*args):
        best = find(*args)[0]
        return [dataclasses.replace(best, steps={k: v[::-1] for k, v in best.steps.items()}), best]

    monkeypatch.setattr(program, "find_candidates", two)
    monkeypatch.setattr(prediction.Predictor, "temp_bytes", lambda *_: 0)
    made = compiled(wide, X, cache=False)
    assert len(tried) == 2
    assert made.statistics.after == min(
        (program.memory_use(one.compiled) for one in tried), key=lambda m: m.total
    )


def test_donation_that_would_be_lost_falls_back(monkeypatch):
    def lose(*_):
        raise DonationLost("lost")

    monkeypatch.setattr(hook, "repack", lose)
    made = compiled(wide_step, jnp.array(X), donate_argnums=0, compiler_options=DEFAULT)
    assert made.statistics.reason == "lost"
    assert made.statistics.after.alias == X.nbytes


@pytest.mark.parametrize("error", [KeyError("unknown"), NotSupported("unknown")])
def test_buffers_that_cannot_be_moved_stay(monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(hook, "repack", fail)
    made = compiled(lambda x: wide(x) + 7, X)
    assert made.statistics.reordered
    assert_same(made(X), jax.jit(lambda x: wide(x) + 7)(X))
    kept = compiled(wide_step, jnp.array(X), donate_argnums=0)
    assert not kept.statistics.reordered
    assert "unknown" in kept.statistics.reason
    assert kept.statistics.after.alias == X.nbytes


def test_nothing_stays_registered(monkeypatch):
    from jax.extend import xla

    compiled(wide, X)
    assert not hook._requests
    assert not xla.clear_hlo_module_transformation("regal_jax_order", xla.PipelineStage.POST_SCHEDULER, "cpu")


def test_programs_of_others_are_not_touched():
    fn = lambda x: wide(x) + 3  # noqa: E731
    before = jax.jit(lambda x: fn(x)).lower(X).compile().as_text()
    schedule = compiled(wide, X).schedule
    with hook._ordering(schedule.tag, schedule.orders):
        during = jax.jit(lambda x: fn(x)).lower(X).compile()
    assert _order(during.as_text()) == _order(before)


def _order(text):
    return [line.split(" = ")[0].strip() for line in text.splitlines() if " = " in line]


def test_threads_do_not_see_each_other():
    programs = [wide, scanned, lambda x: wide(x.T), wide]
    made, errors = [None] * len(programs), []

    def work(i):
        try:
            made[i] = compiled(programs[i], X, cache=False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert not hook._requests
    for fn, one in zip(programs, made, strict=True):
        assert one.statistics.reordered
        assert_same(one(X), jax.jit(fn)(X))


_CHILD = """
import sys, jax, jax.numpy as jnp
sys.path.insert(0, "tests")
import test_execution_compile as t
if sys.argv[1] == "ours":
    assert t.compiled(t.wide, t.X, cache=False).statistics.reordered
    assert t.compiled(t.wide_step, jnp.array(t.X), donate_argnums=0, cache=False).statistics.reordered
print(t.plain_programs())
"""


def plain_programs():
    programs = (
        jax.jit(program._fresh(wide)).lower(X).compile(),
        jax.jit(program._fresh(wide_step), donate_argnums=0).lower(jnp.array(X)).compile(),
    )
    return [(zlib.crc32(repr(_order(p.as_text())).encode()), str(p.memory_analysis())) for p in programs]


def test_the_persistent_cache_is_not_poisoned_in_this_process():
    before = plain_programs()
    assert compiled(wide, X).statistics.reordered
    assert compiled(wide_step, jnp.array(X), donate_argnums=0).statistics.reordered
    assert plain_programs() == before


@pytest.mark.slow
def test_the_persistent_cache_is_not_poisoned(tmp_path):
    def run(what):
        path = os.pathsep.join([os.getcwd(), *sys.path])
        settings = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", _CHILD, what], capture_output=True, text=True, env=os.environ | settings
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip().splitlines()[-1]

    expected = str(plain_programs())
    assert run("ours") == expected
    assert run("plain") == expected
    assert any(tmp_path.glob("jit_wide-*"))


@pytest.mark.parametrize("broken", ["jax.extend.xla", "jaxlib.mlir"])
def test_a_jax_without_the_hook_is_refused_in_one_line(monkeypatch, broken):
    monkeypatch.setitem(sys.modules, broken, None)
    with pytest.raises(ConfigError, match="has no hook behind XLA's scheduler") as raised:
        compiled(wide, X)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"objective": "makespan"}, "objective"),
        ({"candidates": 0}, "candidates"),
        ({"evaluations": 2**31}, "evaluations: must be a whole number of at most 2147483647"),
        ({"time_limit": -1}, "time_limit"),
        ({"evaluations": 0}, "evaluations"),
        ({"seed": -1}, "seed"),
        ({"static_argnums": "x"}, "static_argnums: 'x' must be the index of an argument"),
        ({"donate_argnums": 1.5}, "donate_argnums: 1.5 must be the index of an argument"),
        ({"donate_argnames": [0]}, r"donate_argnames: \[0\] must be the name of an argument"),
        ({"cache": "no"}, "cache is 'no'; give true or false"),
        ({"static_argnums": 4}, r"static_argnums=\(4,\), but only accepts 1 .* Mend the option"),
        ({"donate_argnums": 4}, r"donate_argnums=\(4,\), but only accepts 1"),
        ({"donate_argnames": "zz"}, "invalid argnames {'zz'} in donate_argnames"),
        ({"compiler_options": {"nope": 1}}, "compiler_options: No such compile option: 'nope'; give options"),
        ({"compiler_options": {"xla_cpu_enable_fast_math": [1]}}, r"compiler_options: .* is \[1\]; give"),
        ({"compiler_options": {"xla_cpu_enable_fast_math": None}}, r"compiler_options: .* is None; give"),
    ],
)
def test_impossible_options_are_refused(options, match):
    with pytest.raises(ConfigError, match=match):
        compiled(wide, X, **options)
    with pytest.raises(ConfigError, match="no function"):
        compiled(3, X)


@pytest.mark.parametrize(
    ("fn", "args", "cause"),
    [
        (lambda a, b: a, (X, "s"), TypeError),
        (lambda a, b: a, (X,), TypeError),
        (lambda a: a if a.sum() > 0 else -a, (X,), jax.errors.TracerBoolConversionError),
        (lambda a: a, (2**40,), OverflowError),
    ],
)
def test_what_cannot_be_traced_is_refused_in_one_line_with_its_cause(fn, args, cause):
    with pytest.raises(FormatError, match=f"cannot trace '<lambda>': {cause.__name__}: ") as caught:
        compiled(fn, *args)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)


def test_the_report_has_both_programs():
    made = compiled(wide, X)
    text = made.report(X)
    assert "median run" in text
    assert "median run" not in made.report()
    for label in ("temporary", "arguments", "outputs", "aliased", "total", "predicted temporary"):
        assert label in text


def test_modules_keep_what_is_not_described():
    executable = jax.jit(wide).lower(X).compile().runtime_executable()
    serialized = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    module = new_module()
    module.ParseFromString(serialized)
    again = new_module()
    again.ParseFromString(module.SerializeToString())
    assert len(module.SerializeToString()) == len(serialized)
    assert orders_of(again) == orders_of(module)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**32, 2**63 - 1])
def test_varints(number):
    data, left = b"", number
    while left > 127:
        data, left = data + bytes([left & 127 | 128]), left >> 7
    data += bytes([left])
    assert read_varint(b"x" + data + b"y", 1) == (number, 1 + len(data))
    if number > 127:
        with pytest.raises(ValueError, match="in the middle of a number"):
            read_varint(data[:-1], 0)


def test_programs_that_differ_in_names_do_not_share_an_order():
    # JAX's persistent cache, which the tests switch on, has one program for both.
    def first(x):
        return wide(x) + 11

    def second(other):
        return wide(other) + 11

    for fn in (first, second):
        fn.__name__ = "same"
        jax.jit(fn).lower(X).compile()
    for fn in (second, first):
        made = compiled(fn, X, compiler_options=DEFAULT)
        assert made.statistics.reordered, made.statistics.reason
        assert made.statistics.source == "searched"


def test_programs_of_several_devices_are_refused():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
    with pytest.raises(ConfigError, match="2 devices") as raised:
        compiled(wide, jax.device_put(X, sharding))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("donate", [(), 0])
def test_effects_keep_their_order(donate):
    def fn(x):
        for i in range(3):
            jax.debug.callback(seen.append, x[0, 0] * 0 + i, ordered=True)
        return x + 1e-3 * wide(x), jax.pure_callback(np.sin, jax.ShapeDtypeStruct((48, 48), jnp.float32), x)

    seen = []
    made = compiled(fn, jnp.array(X), donate_argnums=donate)
    seen.clear()
    result = made(jnp.array(X))
    jax.effects_barrier()
    assert [int(i) for i in seen] == [0, 1, 2]
    np.testing.assert_array_equal(result[1], np.sin(X))


def test_the_command(tmp_path, capsys):
    from regal_jax.cli import main

    arguments = [
        "compile",
        "--example",
        "mlp",
        "--batch-size",
        "2",
        "--evaluations",
        "50",
        "--candidates",
        "1",
    ]
    assert main([*arguments, "--out", str(tmp_path / "order.json")]) == 0
    said = capsys.readouterr().out
    assert "temporary" in said
    assert "aliased" in said
    assert Schedule.load(tmp_path / "order.json").before.alias > 0
    assert main(["compile", "--example", "none"]) == 2
    assert "there is no 'none'" in capsys.readouterr().err


def test_settings_on_which_a_trace_depends_are_part_of_its_key():
    with jax.numpy_rank_promotion("allow"):
        allowed = static_key("f", {})
        assert static_key("f", {}) == allowed
    with jax.numpy_rank_promotion("raise"):
        assert static_key("f", {}) != allowed
    before = jax.config.jax_random_seed_offset
    known = static_key("f", {})
    try:
        jax.config.update("jax_random_seed_offset", before + 1)
        assert static_key("f", {}) != known
    finally:
        jax.config.update("jax_random_seed_offset", before)
    assert static_key("f", {}) == known
