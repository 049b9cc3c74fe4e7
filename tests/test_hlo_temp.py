"""The prediction of temporary memory: equal to what XLA assigns, to the byte, in any order."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax.execution.xla import hook, program
from regal_jax.execution.xla.donation import elide_copies
from regal_jax.execution.xla.prediction import Predictor
from regal_jax.execution.xla.program import OTHER_SCHEDULER, QUICK
from regal_jax.execution.xla.schedule import Schedule
from regal_jax.execution.xla.sequence import complete_orders, orders_of
from regal_jax.importers.hlo_heap import Interval, pack_heap
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import parse_module

KIB = 1024


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def body(w):
    def turn(carry, x):
        y = jnp.tanh(carry @ w + x)
        return y, y.sum(0)

    return turn


def scan_loss(w, carry, xs):
    carry, ys = jax.lax.scan(body(w), carry, xs)
    return (carry**2).sum() + (ys * 2).sum()


def nested(w, carry, xs):
    def outer(carry, x):
        carry, _ = jax.lax.scan(body(w), carry, jnp.stack([x, x * 2]))
        return carry, carry.T @ carry

    return jax.lax.scan(outer, carry, xs)


def branched(flag, x, y):
    return jax.lax.cond(
        flag > 0,
        lambda a, b: (a @ b).sum(0) + jnp.sin(a).T.sum(1),
        lambda a, b: (jnp.cos(a) * b).sum(1),
        x,
        y,
    )


def switched(i, x):
    ways = [lambda a: a @ a, lambda a: jnp.sin(a) @ a.T @ a, lambda a: a * 2]
    return jax.lax.switch(i, ways, x) + x.T


def looped(x, y):
    def turn(state):
        return state[0] + 1, jnp.tanh(state[1] @ state[2]), state[1] + state[2].T

    return jax.lax.while_loop(lambda state: state[0] < 5, turn, (0, x, y))


def in_slices(x):
    return jax.lax.fori_loop(0, 10, lambda i, a: a.at[i].set(a[i - 1] * 2 + a.sum(0)), x)


def sorted_rows(x):
    i = jnp.argsort(x, axis=0)
    return jnp.take_along_axis(x, i, 0) @ x.T, jnp.sort(x.T, axis=1), jax.lax.top_k(x, 3)


def drawn(key):
    return jax.random.normal(key, (64, 64)) @ jax.random.uniform(key, (64, 64))


def train(params, state, xs):
    loss, gradients = jax.value_and_grad(lambda p: scan_loss(p["w"], p["c"], xs))(params)
    state = jax.tree.map(lambda m, g: 0.9 * m + g, state, gradients)
    return jax.tree.map(lambda p, m: p - 0.1 * m, params, state), state, loss


def wide(x):
    parts = [jnp.sin(jnp.tanh(x * i) @ x) @ x for i in range(1, 5)]
    return x + sum(part.sum() for part in parts), parts[0].T


PARAMS = {"w": f32(64, 64), "c": f32(16, 64)}
LOOP = (f32(64, 64), f32(16, 64), f32(5, 16, 64))
CASES = [
    (scan_loss, LOOP, ()),
    (jax.grad(scan_loss, (0, 1, 2)), LOOP, ()),
    (nested, LOOP, ()),
    (branched, (f32(), f32(64, 64), f32(64, 64)), ()),
    (jax.grad(lambda *args: branched(*args).sum(), (1, 2)), (f32(), f32(64, 64), f32(64, 64)), ()),
    (switched, (jax.ShapeDtypeStruct((), jnp.int32), f32(64, 64)), ()),
    (looped, (f32(64, 64), f32(64, 64)), ()),
    (looped, (f32(64, 64), f32(64, 64)), (0, 1)),
    (in_slices, (f32(32, 32),), (0,)),
    (sorted_rows, (f32(32, 32),), ()),
    (drawn, (jax.eval_shape(lambda: jax.random.key(0)),), ()),
    (train, (PARAMS, PARAMS, f32(5, 16, 64)), (0, 1)),
    (wide, (f32(64, 64),), (0,)),
    (lambda x: x + 1, (f32(8),), (0,)),
    (lambda x: x, (f32(8),), ()),
    (lambda x: x * 2, (f32(0, 4),), ()),
    (lambda: jnp.zeros(4), (), ()),
]


def compiled(fn, args, donated, options):
    lowered = jax.jit(lambda *a: fn(*a), donate_argnums=donated).lower(*args)
    return lowered.compile({**QUICK, **options})


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n % 2 else ()) for n in range(len(CASES))]
)
@pytest.mark.parametrize("options", [{}, OTHER_SCHEDULER], ids=["default", "other"])
def test_the_prediction_equals_what_xla_assigns(number, options):
    made = compiled(*CASES[number], options)
    assert TempModel(parse_module(made.as_text())).temp_bytes() == program.memory_use(made).temp


def test_a_sort_does_not_write_over_a_value_with_another_reader():
    def fn(x):
        y = x @ x
        return ((y @ y).sum() + jnp.sort(y, axis=1) @ x).sum()

    made = compiled(fn, (f32(32, 32),), (), {})
    assert TempModel(parse_module(made.as_text())).temp_bytes() == program.memory_use(made).temp


@pytest.mark.parametrize("donated", [(), (0,)])
@pytest.mark.parametrize("number", [6, 12])
def test_the_prediction_holds_for_any_legal_order(number, donated):
    fn, args, _ = CASES[number]
    lowered = jax.jit(lambda *a: fn(*a), donate_argnums=donated).lower(*args)
    plain = hook.compile_recorded(lowered, QUICK, f"{number}{donated}")
    module = hook.module_of(plain)
    alias = program.alias_of(module)
    elide_copies(module)
    predictor = Predictor(module, parse_module(hook.text_of(module)), True)
    own = {name: tuple(row) for name, row in orders_of(module).items()}
    for seed in range(2):
        rng = np.random.default_rng(seed)
        steps = {n: [str(x) for x in rng.permutation(row)] for n, row in orders_of(module).items()}
        orders = complete_orders(module, steps)
        schedule = Schedule("", orders, alias, program.memory_use(plain), 0, 0, "")
        made = program.memory_use(program.realise(lowered, QUICK, schedule).compiled).temp
        assert predictor.temp_bytes(orders, -1) == made
        assert orders != own


# Arrays of 4 KiB; in the heap are the values that are neither arguments nor results.
TEXT = """HloModule m, is_scheduled=true{alias}

%wave (p: f32[32,32]) -> f32[32,32] {{
  %p = f32[32,32]{{1,0}} parameter(0)
  ROOT %s = f32[32,32]{{1,0}} sine(%p)
}}

%flip (q: f32[32,32]) -> f32[32,32] {{
  %q = f32[32,32]{{1,0}} parameter(0)
  ROOT %t = f32[32,32]{{1,0}} transpose(%q), dimensions={{1,0}}
}}

ENTRY %main (x: f32[32,32]) -> f32[32,32] {{
  %x = f32[32,32]{{1,0}} parameter(0)
  %a = f32[32,32]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {middle}
  %d = f32[32,32]{{1,0}} dot(%x, %{last}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %e = f32[32,32]{{1,0}} dot(%d, %{root}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
WAVE = "%b = f32[32,32]{1,0} fusion(%a), kind=kLoop, calls=%wave"
FLIP = "%b = f32[32,32]{1,0} fusion(%a), kind=kLoop, calls=%flip"


@pytest.mark.parametrize(
    ("parts", "arrays"),
    [
        # A value that ends before the result begins uses the memory of the result.
        ({"middle": WAVE, "last": "b", "root": "d"}, 1),
        ({"middle": FLIP, "last": "b", "root": "d"}, 2),
        ({"middle": WAVE, "last": "b", "root": "b"}, 2),
        ({"middle": WAVE, "last": "b", "root": "a"}, 2),
        # A bitcast needs no memory of its own.
        ({"middle": "%b = f32[1024]{0} bitcast(%a)", "last": "a", "root": "d"}, 1),
        # After its last reader, the memory of a donated argument is free for other values.
        (
            {
                "middle": WAVE,
                "last": "b",
                "root": "d",
                "alias": ", input_output_alias={ {}: (0, {}, may-alias) }",
            },
            2,
        ),
    ],
)
def test_rules_by_hand(parts, arrays):
    text = TEXT.format(**{"alias": "", **parts})
    assert TempModel(parse_module(text)).temp_bytes() == arrays * 4 * KIB


def test_a_heap_by_hand():
    assert pack_heap([])[0] == 0
    assert pack_heap([Interval(0, 10, [(0, 5)])])[0] == 10
    # By size: 128 + 60 bytes. By length of life: the second interval first, then both others after it.
    rows = [Interval(0, 100, [(0, 1)]), Interval(1, 60, [(1, 5)]), Interval(2, 90, [(2, 3)])]
    assert pack_heap(rows)[0] == 64 + 100
    # Between its two lives, the place of a buffer is free for another one.
    rows = [Interval(0, 64, [(0, 1), (4, 5)]), Interval(1, 64, [(2, 3)])]
    assert pack_heap(rows)[0] == 64


def test_heaps_hold_all_that_lives_at_once():
    rng = np.random.default_rng(0)
    for _ in range(20):
        starts = rng.integers(0, 30, 25)
        rows = [
            Interval(i, int(size) * 64, [(int(start), int(start + life))])
            for i, (start, life, size) in enumerate(
                zip(starts, rng.integers(0, 12, 25), rng.integers(1, 9, 25), strict=True)
            )
        ]
        live = max(
            sum(r.size for r in rows if r.spans[0][0] <= moment <= r.spans[0][1]) for moment in range(45)
        )
        assert live <= pack_heap(rows)[0] <= sum(r.size for r in rows)
        # Buffers whose lives do not overlap share one place.
        apart = [Interval(i, r.size, [(2 * i, 2 * i + 1)]) for i, r in enumerate(rows)]
        assert pack_heap(apart)[0] == max(r.size for r in rows)


def test_small_heaps_are_those_of_all_first_fits():
    """The two packings are not better than the best of all orders of first fit."""
    rng = np.random.default_rng(1)
    for _ in range(10):
        rows = [
            Interval(i, int(s) * 64, [(int(b), int(b + n))])
            for i, (s, b, n) in enumerate(
                zip(rng.integers(1, 6, 5), rng.integers(0, 6, 5), rng.integers(0, 5, 5), strict=True)
            )
        ]
        assert pack_heap(rows)[0] >= min(map(_first_fit, itertools.permutations(rows)))


def _first_fit(rows):
    placed = []
    for row in rows:
        first, last = row.spans[0]
        meets = [(at, r.size) for at, r in placed if r.spans[0][0] <= last and r.spans[0][1] >= first]
        ends = sorted({0, *(at + size for at, size in meets)})
        at = next(e for e in ends if all(e + row.size <= a or e >= a + size for a, size in meets))
        placed.append((at, row))
    return max(at + row.size for at, row in placed)
