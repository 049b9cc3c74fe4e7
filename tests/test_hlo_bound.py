"""No order of a program takes less memory than the bound, in XLA's hands or with moved buffers."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hlo_temp import CASES, FLIP, TEXT, WAVE

from regal_jax.execution.xla import hook, program
from regal_jax.execution.xla.prediction import Predictor
from regal_jax.execution.xla.program import OTHER_SCHEDULER, QUICK
from regal_jax.execution.xla.sequence import complete_orders, orders_of
from regal_jax.importers.hlo_bound import memory_bound
from regal_jax.importers.hlo_shapes import leaves
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import parse_module

ARRAY = 4096


@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.slow if n % 2 else ()) for n in range(len(CASES))]
)
def test_no_order_is_below_it(number: int) -> None:
    fn, args, donated = CASES[number]
    lowered = jax.jit(lambda *a: fn(*a), donate_argnums=donated).lower(*args)
    plain = hook.compile_recorded(lowered, QUICK, f"bound {number}")
    use = program.memory_use(plain)
    bound = memory_bound(parse_module(plain.as_text() or ""))
    assert use.argument + use.output - use.alias <= bound + 64  # Tables of results are no arrays.
    other = program.memory_use(hook.compile_lowered(lowered, {**QUICK, **OTHER_SCHEDULER}))
    assert bound <= min(use.total, other.total)
    module = hook.module_of(plain)
    text = parse_module(hook.text_of(module))
    predictor = Predictor(module, text, True)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        steps = {n: [str(x) for x in rng.permutation(row)] for n, row in orders_of(module).items()}
        temp = predictor.temp_bytes(complete_orders(module, steps), -1)
        assert temp >= 0
        assert memory_bound(text) <= use.total - use.temp + temp


ALIAS = ", input_output_alias={ {}: (0, {}, may-alias) }"


@pytest.mark.parametrize(
    ("parts", "arrays"),
    [
        # The argument and the result; one more value, over which the wave writes; then `b` and `d`.
        ({"middle": WAVE, "last": "b", "root": "d"}, 3),
        # A transposition does not write over its operand, but one of the two may be where the result will be.
        ({"middle": FLIP, "last": "b", "root": "d"}, 3),
        # While `d` is made, `a` is needed later, and there are `b` and `d`.
        ({"middle": WAVE, "last": "b", "root": "a"}, 4),
        ({"middle": "%b = f32[1024]{0} bitcast(%a)", "last": "a", "root": "d"}, 3),
        # The result is in the argument, which `d` reads beside `b`.
        ({"middle": WAVE, "last": "b", "root": "d", "alias": ALIAS}, 3),
    ],
)
def test_bounds_by_hand(parts: dict[str, str], arrays: int) -> None:
    assert memory_bound(parse_module(TEXT.format(**{"alias": "", **parts}))) == arrays * ARRAY


def test_a_value_larger_than_every_result_is_in_the_heap() -> None:
    text = """HloModule m, is_scheduled=true
ENTRY %main (x: f32[8]) -> (f32[8], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %a = f32[16]{0} concatenate(%x, %x), dimensions={0}
  %b = f32[16]{0} reverse(%a), dimensions={0}
  %c = f32[8]{0} slice(%b), slice={[0:8]}
  %d = f32[8]{0} slice(%b), slice={[8:16]}
  ROOT %r = (f32[8]{0}, f32[8]{0}) tuple(%c, %d)
}
"""
    # Alive at once are 128 bytes and the argument, as many as results and argument have together. But 64
    # bytes do not fit into results of 32 bytes.
    assert memory_bound(parse_module(text)) == 3 * 32 + 128


def test_a_program_without_steps() -> None:
    text = "HloModule m, is_scheduled=true\nENTRY %main (x: f32[8]) -> f32[8] {\n  {0}\n}\n"
    assert memory_bound(parse_module(text.replace("{0}", "ROOT %x = f32[8]{0} parameter(0)"))) == 64


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, list[str], dict[str, tuple[str, ...]]]:
    """The text of a program of up to five steps, their names, and what each one reads."""
    size, lines = {"x": 64}, ["%x = f32[64]{0} parameter(0)"]
    reads: dict[str, tuple[str, ...]] = {}
    for name in "abcde"[: draw(st.integers(1, 5))]:
        kind, one, two = (
            draw(st.sampled_from(["negate", "reverse", "concatenate", "slice"])),
            *(draw(st.sampled_from(sorted(size))) for _ in range(2)),
        )
        count, rest = size[one], ""
        if kind == "concatenate":
            count, rest = count + size[two], ", dimensions={0}"
        elif kind == "slice":
            count = max(16, count // 2)
            rest = f", slice={{[0:{count}]}}"
        elif kind == "reverse":
            rest = ", dimensions={0}"
        reads[name] = (one, two) if kind == "concatenate" else (one,)
        operands = ", ".join(f"%{each}" for each in reads[name])
        lines.append(f"%{name} = f32[{count}]{{0}} {kind}({operands}){rest}")
        size[name] = count
    used = {name for row in reads.values() for name in row}
    ends = [name for name in reads if name not in used]
    shapes = ", ".join(f"f32[{size[name]}]{{0}}" for name in ends)
    lines.append(f"ROOT %r = ({shapes}) tuple({', '.join(f'%{name}' for name in ends)})")
    head = f"ENTRY %main (x: f32[64]) -> ({shapes}) {{"
    text = "\n".join(["HloModule m, is_scheduled=true", head, *lines, "}", ""])
    return text, list(reads), reads


@settings(max_examples=60)
@given(case=programs())
def test_all_orders_of_small_programs(case: tuple[str, list[str], dict[str, tuple[str, ...]]]) -> None:
    text, names, reads = case
    module = parse_module(text)
    model, bound = TempModel(module), memory_bound(module)
    ends = 4 * 64 + sum(shape.bytes for shape in leaves(module.entry.root.shape))
    temps = []
    for order in itertools.permutations(names):
        if all(set(reads[name]) <= {"x", *order[:i]} for i, name in enumerate(order)):
            temps.append(model.temp_bytes({"main": ["x", *order, "r"]}))
    assert ends <= bound <= ends + min(temps)
