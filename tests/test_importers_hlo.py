"""Compiled XLA programs: texts whose figures were computed by hand, and programs that JAX compiles."""

import gzip
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from importer_cases import Count

from regal_jax import Cluster, optimize
from regal_jax.cli.main import main
from regal_jax.errors import ConfigError, FormatError, GraphError
from regal_jax.heuristics import run_heuristic
from regal_jax.importers import from_hlo, load_graph, parse_hlo, save_graph
from regal_jax.plan import Plan

FLOPS, BYTES = Count("flops"), Count("bytes")
ONE = Cluster.uniform(1)

ADD = """%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}
"""

HAND = f"""HloModule hand, is_scheduled=true, entry_computation_layout={{(f32[8,4]{{1,0}})->f32[8]{{0}}}}

FileNames
1 "x.py"

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}

{ADD}
%fused (p0: f32[8,4], p1: f32[8,4]) -> (f32[8,4], f32[8]) {{
  %p0 = f32[8,4]{{1,0}} parameter(0)
  %p1 = f32[8,4]{{1,0}} parameter(1)
  %e = f32[8,4]{{1,0}} exponential(%p0), metadata={{op_name="jit(f)/exp, (" stack_frame_id=1}}
  %m = f32[8,4]{{1,0}} multiply(%e, %p1)
  %zero = f32[] constant(0)
  %r = f32[8]{{0}} reduce(%m, %zero), dimensions={{1}}, to_apply=%add
  ROOT %t = (f32[8,4]{{1,0}}, /*index=1*/f32[8]{{0}}) tuple(%m, %r)
}}

ENTRY %main (a: f32[8,4], b: f32[4,2]) -> (f32[8,2], f32[8]) {{
  %a = f32[8,4]{{1,0}} parameter(0), metadata={{op_name="a"}}
  %b = f32[4,2]{{1,0:T(8,128)(2,1)S(1)}} parameter(1)
  %table = f32[2,2]{{1,0}} constant({{
    {{ 1, 2 }},
    {{ 3, 4 }} }})
  %copy = f32[8,4]{{0,1}} copy(%a)
  %two = (f32[8,4]{{1,0}}, f32[8]{{0}}) fusion(%copy, %a), kind=kLoop, calls=%fused
  %big = f32[8,4]{{1,0}} get-tuple-element(%two), index=0
  %sums = f32[8]{{0}} get-tuple-element(%two), index=1
  %flat = f32[32]{{0}} bitcast(%big)
  %back = f32[8,4]{{1,0}} bitcast(f32[32]{{0}} %flat)
  %dot = f32[8,2]{{1,0}} dot(%back, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}},
    CONTROL
  ROOT %out = (f32[8,2]{{1,0}}, f32[8]{{0}}) tuple(%dot, %sums)
}}
""".replace("CONTROL", "control-predecessors={%copy}")


def program(lines, before="", header=""):
    """A module of one entry computation."""
    body = "\n".join("  " + line.strip() for line in lines.strip().splitlines())
    return f"HloModule m, is_scheduled=true{header}\n\n{before}\nENTRY %main () -> f32[] {{\n{body}\n}}\n"


def op(graph, name):
    """Runtime, sizes of outputs, scratch memory of an op, and the ops whose tensors it reads."""
    o = graph.op_names.index(name)
    sizes = graph.tensor_bytes[graph.output_offset[o] : graph.output_offset[o + 1]].tolist()
    read = graph.tensor_op[graph.edge_tensor[graph.edge_op == o]]
    return graph.runtime[o], sizes, int(graph.temp_bytes[o]), [graph.op_names[p] for p in sorted(set(read))]


def controls(graph):
    names = graph.op_names
    pairs = zip(graph.control_source, graph.control_target, strict=True)
    return {(names[before], names[after]) for before, after in pairs}


def kept(graph):
    return sorted(graph.op_names[o] for o in graph.tensor_op[graph.tensor_keep])


def peak(graph):
    """Peak memory of the order of the text, by the exact replay."""
    order = graph.topological_order
    assert order.tolist() == list(range(graph.num_ops))
    plan = Plan.from_events(graph, ONE, [0] * graph.num_ops, order, objective="peak-memory")
    plan.verify(graph)
    return int(plan.peak_memory[0])


def test_a_program_by_hand():
    graph = parse_hlo(HAND, profile=FLOPS)
    assert graph.name == "hand"
    assert graph.op_names == ("a", "b", "start", "copy", "two", "dot")
    assert graph.op_kinds == ("parameter", "parameter", "start", "copy", "fusion", "dot")
    assert graph.resident.tolist() == [True, True, False, False, False, False]
    assert op(graph, "a") == (0, [128], 0, [])
    assert op(graph, "b") == (0, [32], 0, [])
    assert op(graph, "copy") == (0, [128], 0, ["a"])
    # 32 exponentials at 10, 32 products, a sum over 32.
    assert op(graph, "two") == (384, [128, 32], 0, ["a", "copy"])
    assert op(graph, "dot") == (2 * 16 * 4, [64], 0, ["b", "two"])
    assert kept(graph) == ["a", "b", "dot", "two"]
    assert controls(graph) == {("a", "start"), ("b", "start"), ("start", "copy"), ("copy", "dot")}
    # Parameters share the device of their first reader.
    assert graph.colocation_group == ("a", "b", None, "a", None, "b")
    # 160 of parameters, 128 of the copy, 160 of the fusion; the copy then goes.
    assert peak(graph) == 448
    traffic = parse_hlo(HAND, profile=BYTES).runtime.tolist()
    assert traffic == [0, 0, 0, 256, 128 + 128 + 160, 128 + 32 + 64]


STATE = "(s32[], f32[16]{0}, f32[16]{0})"
LOOP = f"""%body (s: {STATE}) -> {STATE} {{
  %s = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[16]{{0}} get-tuple-element(%s), index=1
  %w = f32[16]{{0}} get-tuple-element(%s), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %t1 = f32[16]{{0}} multiply(%x, %w)
  %t2 = f32[16]{{0}} exponential(%t1)
  %y = f32[16]{{0}} add(%t2, %w)
  ROOT %r = {STATE} tuple(%next, %y, %w)
}}

%cond (s.1: {STATE}) -> pred[] {{
  %s.1 = {STATE} parameter(0)
  %i.1 = s32[] get-tuple-element(%s.1), index=0
  %five = s32[] constant(5)
  ROOT %less = pred[] compare(%i.1, %five), direction=LT
}}
"""
LOOPED = f"""%w0 = f32[16]{{0}} parameter(0)
  %zero = s32[] constant(0)
  %i0 = s32[] copy(%zero)
  %x0 = f32[16]{{0}} negate(%w0)
  %init = {STATE} tuple(%i0, %x0, %w0)
  %loop = {STATE} while(%init), condition=%cond, body=%body CONFIG
  %x1 = f32[16]{{0}} get-tuple-element(%loop), index=1
  %w1 = f32[16]{{0}} get-tuple-element(%loop), index=2
  ROOT %end = f32[16]{{0}} add(%x1, %w1)
"""


def test_the_state_of_a_loop_is_overwritten_and_what_it_only_reads_passes():
    known = ', backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0","step":"1"}}'
    graph = parse_hlo(program(LOOPED.replace("CONFIG", known), LOOP), profile=FLOPS)
    assert graph.op_names == ("w0", "start", "i0", "x0", "loop", "end")
    # An iteration: 1 + 16 + 160 + 16 in the body and 1 in the condition; t1 and t2 are alive together, y is
    # the state.
    assert op(graph, "loop") == (5 * 194, [], 128, ["w0", "i0", "x0"])
    assert op(graph, "end") == (16, [64], 0, ["w0", "x0"])
    assert ("loop", "end") in controls(graph)
    assert graph.colocation_group == ("w0", None, "w0", "w0", "w0", "w0")
    assert peak(graph) == 64 + 4 + 64 + 128
    unknown = parse_hlo(program(LOOPED.replace("CONFIG", ""), LOOP), profile=FLOPS, while_trip_count=3)
    assert op(unknown, "loop")[0] == 3 * 194


def test_an_update_is_in_place_unless_the_old_content_is_read_later():
    text = """%p = f32[16]{0} parameter(0)
    %c = s32[] constant(3)
    %x = f32[16]{0} negate(%p)
    %part = f32[4]{0} slice(%x), slice={[0:4]}
    %new = f32[16]{0} dynamic-update-slice(%x, %part, %c)
    ROOT %sum = f32[16]{0} add(%new, LAST)"""
    alone = parse_hlo(program(text.replace("LAST", "%p")), profile=BYTES)
    # Only the part is read and written: 16 bytes twice, and 4 of the index.
    assert op(alone, "new") == (36, [], 0, ["x", "part"])
    assert {("new", "sum"), ("part", "new")} <= controls(alone)
    assert peak(alone) == 64 + 64 + 64  # p, x, sum; part is gone.
    both = parse_hlo(program(text.replace("LAST", "%x")), profile=BYTES)
    assert op(both, "new")[1] == [64]
    assert not {("new", "sum"), ("part", "new")} & controls(both)
    assert peak(both) == 64 + 64 + 64 + 64

    fused = """%f (q0: f32[16], q1: f32[4], q2: s32[]) -> f32[16] {
      %q0 = f32[16]{0} parameter(0)
      %q1 = f32[4]{0} parameter(1)
      %q2 = s32[] parameter(2)
      %q3 = f32[4]{0} negate(%q1)
      ROOT %q4 = f32[16]{0} dynamic-update-slice(%q0, %q3, %q2)
    }
    """
    call = text.replace("dynamic-update-slice(%x, %part, %c)", "fusion(%x, %part, %c), calls=%f")
    graph = parse_hlo(program(call.replace("LAST", "%p"), fused), profile=BYTES)
    assert op(graph, "new") == (36, [], 0, ["x", "part"])  # 16 and 4 read, 16 written.
    assert peak(graph) == 192


def test_a_donated_parameter_takes_the_result():
    text = """%p = f32[16]{0} parameter(0)
    %n = f32[16]{0} negate(%p)
    ROOT %out = f32[16]{0} add(%n, %p)"""
    plain = parse_hlo(program(text))
    assert (peak(plain), kept(plain)) == (192, ["out", "p"])
    donated = parse_hlo(program(text, header=", input_output_alias={ {}: (0, {}, may-alias) }"))
    assert (peak(donated), kept(donated)) == (128, ["p"])
    assert op(donated, "out")[1:] == ([], 0, ["p", "n"])
    late = """%p = f32[16]{0} parameter(0)
    %q = f32[16]{0} parameter(1)
    %out = f32[16]{0} negate(%q)
    %n = f32[4]{0} slice(%p), slice={[0:4]}
    ROOT %r = (f32[16]{0}, f32[4]{0}) tuple(%out, %n)"""
    header = ", input_output_alias={ {0}: (0, {}, must-alias), {1}: (7, {}) }"
    graph = parse_hlo(program(late, header=header))
    # The result is made before the parameter's last reader has run, so both are in memory.
    assert op(graph, "out")[1] == [64]
    assert kept(graph) == ["n", "out", "q"]
    assert peak(graph) == 64 + 64 + 64 + 16


def test_asynchronous_pairs():
    text = """%p = f32[16]{0} parameter(0)
    %x = f32[16]{0} negate(%p)
    %cs = (f32[16]{0}, f32[16]{0}, u32[]) copy-start(%x)
    %ag = (f32[16]{0}, f32[64]{0}) all-gather-start(%x), dimensions={0}, replica_groups={{0,1,2,3}}
    %ar = f32[16]{0} all-reduce-start(%p), to_apply=%add
    %cc = ((f32[16]{0}), f32[4]{0}, s32[]) custom-call-start(%x), custom_call_target="what(),{"
    %cd = f32[16]{0} copy-done(%cs)
    %gd = f32[64]{0} all-gather-done(%ag)
    %rd = f32[16]{0} all-reduce-done(%ar)
    %ccd = f32[4]{0} custom-call-done(%cc)
    %s = f32[16]{0} add(%cd, %rd)
    ROOT %t = (f32[16]{0}, f32[64]{0}, f32[4]{0}) tuple(%s, %gd, %ccd)"""
    graph = parse_hlo(program(text, ADD), profile=BYTES)
    assert op(graph, "cs") == (128, [64, 4], 0, ["x"])
    assert op(graph, "ag")[1:] == ([256], 0, ["x"])
    assert op(graph, "ar")[1:] == ([64], 0, ["p"])
    assert op(graph, "cc")[1:] == ([4 * 4, 4], 0, ["x"])
    # The source of a copy stays until it is done.
    assert op(graph, "cd") == (0, [], 0, ["x", "cs"])
    assert op(graph, "gd") == (0, [], 0, ["x", "ag"])
    assert op(graph, "s")[1:] == ([64], 0, ["cs", "ar"])
    assert {("cd", "s"), ("rd", "s")} <= controls(graph)
    assert kept(graph) == ["ag", "cc", "p", "s"]
    # p, x, cs 68, ag 256, ar 64, cc 20; after the waits: p, cs 64, ar 64, ag, cc 16 and s.
    assert peak(graph) == 64 + 64 + 68 + 256 + 64 + 20


def test_branches_and_calls():
    text = """%p = f32[16]{0} parameter(0)
    %which = s32[] parameter(1)
    %arg = (f32[16]{0}) tuple(%p)
    %br = (f32[16]{0}) conditional(%which, %arg, %arg), branch_computations={%cheap, %dear}
    %y = f32[16]{0} get-tuple-element(%br), index=0
    ROOT %z = f32[16]{0} call(%y), to_apply=%callee"""
    before = """%cheap (a: (f32[16])) -> (f32[16]) {
      %a = (f32[16]{0}) parameter(0)
      ROOT %same = (f32[16]{0}) bitcast(%a)
    }
    %dear (b: (f32[16])) -> (f32[16]) {
      %b = (f32[16]{0}) parameter(0)
      %b0 = f32[16]{0} get-tuple-element(%b), index=0
      %b1 = f32[16]{0} negate(%b0)
      %b2 = f32[16]{0} negate(%b1)
      ROOT %b3 = (f32[16]{0}) tuple(%b2)
    }
    %callee (c: f32[16]) -> f32[16] {
      %c = f32[16]{0} parameter(0)
      ROOT %c1 = f32[16]{0} tanh(%c)
    }
    """
    graph = parse_hlo(program(text, before), profile=FLOPS)
    assert op(graph, "br") == (32, [64], 64, ["p", "which"])
    assert op(graph, "z") == (160, [64], 0, ["br"])


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("pred[3]{0}", 3), ("s4[5]{0:E(4)}", 3), ("u4[4]", 2), ("s2[5]", 2), ("bf16[3]", 6), ("f16[3]", 6),
        ("f8e4m3fn[3]", 3), ("f8e5m2[2,2]{1,0}", 4), ("f4e2m1fn[3]", 2), ("f64[2]", 16), ("c64[2]", 16),
        ("c128[2]{0}", 32), ("s8[7]", 7), ("u64[1]", 8), ("token[]", 0), ("opaque[]", 0), ("f32[]", 4),
        ("f32[<=4,2]{1,0}", 32), ("f32[0,9]", 0), ("f32[2]{0:T(8,128)S(5)}", 0), ("f32[2]{0:S(1)}", 8),
    ],
)  # fmt: skip
def test_sizes(shape, size):
    graph = parse_hlo(
        program(f"%p = {shape} parameter(0)\n%x = {shape} copy(%p)\nROOT %y = {shape} copy(%x)")
    )
    assert graph.tensor_bytes.tolist() == [size] * 3


@pytest.mark.parametrize(
    ("line", "flops", "traffic"),
    [
        ("f32[4,6]{1,0} dot(%m, %k), lhs_contracting_dims={0}, rhs_contracting_dims={0}", 2 * 24 * 8, 416),
        ("c64[4]{0} multiply(%c, %c)", 16, 96),
        ("f32[2,4]{1,0} slice(%m), slice={[0:2], [0:4]}", 0, 64),
        ("f32[8,4]{1,0} power(%m, %m)", 320, 3 * 128),
        ("f32[8,4]{1,0} sort(%m), dimensions={0}, to_apply=%add", 32 * 3, 256),
        ('(f32[8,2]{1,0}, s32[8,2]{1,0}) custom-call(%m), custom_call_target="TopK"', 32 * 2, 256),
        ('f32[4,6]{1,0} custom-call(%mt, %k), custom_call_target="__onednn$matmul"', 2 * 24 * 8, 416),
        ('f32[8,4]{1,0} custom-call(%m), custom_call_target="mystery"', 32, 256),
        ("c64[4]{0} fft(%c), fft_type=FFT, fft_length={4}", 5 * 4 * 2, 64),
        # 6x6 outputs of a 3x3 kernel over 6x6 inputs; padding costs nothing: (3*6 - 2)^2 pairs.
        (
            "f32[1,6,6,5]{3,2,1,0} convolution(%i, %w), window={size=3x3 pad=1_1x1_1}, "
            "dim_labels=b01f_01io->b01f",
            2 * 16 * 16 * 2 * 5,
            288 + 360 + 720,
        ),
        (
            "f32[1,2,2,2]{3,2,1,0} reduce-window(%i, %z), window={size=1x3x3x1 stride=1x3x3x1}",
            72 * 9,
            288 + 4 + 32,
        ),
    ],
)  # fmt: skip
def test_costs(line, flops, traffic):
    text = f"""%m = f32[8,4]{{1,0}} parameter(0)
    %mt = f32[4,8]{{1,0}} parameter(1)
    %k = f32[8,6]{{1,0}} parameter(2)
    %c = c64[4]{{0}} parameter(3)
    %i = f32[1,6,6,2]{{3,2,1,0}} parameter(4)
    %w = f32[3,3,2,5]{{3,2,1,0}} parameter(5)
    %z = f32[] constant(0)
    ROOT %op = {line}"""
    assert op(parse_hlo(program(text, ADD), profile=FLOPS), "op")[0] == pytest.approx(flops)
    assert op(parse_hlo(program(text, ADD), profile=BYTES), "op")[0] == traffic


def test_tokens_and_controls_through_what_is_no_op():
    text = """%p = f32[16]{0} parameter(0)
    %a = f32[16]{0} negate(%p)
    %b = f32[16]{0} negate(%p)
    %view = f32[4,4]{1,0} bitcast(%a), control-predecessors={%b}
    %tok = token[] after-all()
    %out = token[] outfeed(%a, %tok)
    %c = f32[4,4]{1,0} negate(%view)
    ROOT %d = f32[16]{0} negate(%p), control-predecessors={%view, %p}"""
    graph = parse_hlo(program(text))
    assert {("b", "c"), ("b", "d"), ("a", "d")} <= controls(graph)
    assert op(graph, "out")[1:] == ([0], 0, ["a", "tok"])


def test_several_profiles_and_options():
    graph = parse_hlo(HAND, profile=["h200", "cpu"], name="mine")
    assert graph.runtime.shape == (6, 2)
    assert graph.name == "mine"
    assert (graph.runtime[3:] > 0).all()
    loose = HAND.replace(", is_scheduled=true", "")
    assert parse_hlo(loose, require_schedule=False).content_hash == parse_hlo(HAND).content_hash
    plain = HAND.replace("%", "")  # Newer texts may leave the sigils out.
    assert parse_hlo(plain).content_hash == parse_hlo(HAND).content_hash
    for options in ({"profile": []}, {"profile": "abacus"}, {"while_trip_count": float("nan")}):
        with pytest.raises(ConfigError, match=f"^{next(iter(options))}: "):
            parse_hlo(HAND, **options)


def hand(old, new):
    assert old in HAND
    return HAND.replace(old, new)


CHAIN = "".join(
    f"""%c{i} (a: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  ROOT %b = f32[] {f"call(%a), to_apply=%c{i - 1}" if i else "negate(%a)"}
}}
"""
    for i in range(3000)
)
DEEP = "(" * 100 + "f32[]" + ")" * 100


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: the text is empty"),
        ("\n \n", "line 1: the text is empty"),
        ("\ngarbage\n", "line 2: does not begin with HloModule"),
        ("module @jit_f {\n}\n", "line 1: does not begin with HloModule; this is StableHLO"),
        ("HloModule m, is_scheduled=true\n", "line 1: the text ends without an ENTRY"),
        ("HloModule m, x={\n", "line 1: a bracket is not closed"),
        (hand(", is_scheduled=true", ""), "line 1: the module has no is_scheduled=true.*require_sched"),
        (hand("ENTRY ", ""), "without an ENTRY"),
        (HAND[: HAND.index("ROOT %out")], "line 39: the text ends inside computation 'main'"),
        (HAND[: HAND.index("kind=kLoop") - 5], "line 32: the instruction does not end"),
        (hand("copy(%a)", "copy(%nobody)"), "line 31: 'copy' reads 'nobody', which no line above it makes"),
        (hand("={%copy}", "={%out}"), "line 37: 'dot' waits for 'out', which no line above it makes"),
        (hand("calls=%fused", "calls=%missing"), "line 32: 'two' calls 'missing'"),
        (hand(", calls=%fused", ""), "line 32: 'two' calls a computation"),
        (hand("index=1\n", "index=2\n"), "line 34: 'sums' takes element '2' of 'two'"),
        (hand("%sums =", "%big ="), "line 34: 'big' is defined twice"),
        (hand("S(1)} parameter(1)", "S(1)} parameter(0)"), "line 27: parameter 'b'"),
        (hand("dims={1}, rhs", "dims={7}, rhs"), r"line 37: lhs_contracting_dims \[7\]"),
        (hand("f32[8,2]{1,0} dot", "zebra[8,2] dot"), "line 37: element type 'zebra' is unknown"),
        (hand("f32[8,2]{1,0} dot", "f32[8,-2] dot"), r"line 37: dimension '-2' of f32\[\]"),
        (hand("f32[8,2]{1,0} dot", "f32[9999999999,9999999999] dot"), "line 37: .* larger than"),
        (hand("f32[8,2]{1,0} dot", "dot"), r"line 37: 'dot\(%back.* is no shape"),
        (hand("f32[8,2]{1,0} dot(", "f32[8,2]{1,0} ("), "line 37: 'dot' has no opcode"),
        (hand("tuple(%dot, %sums)", "tuple(%dot)"), "line 39: the operands of tuple 'out'"),
        (HAND + ADD + ADD, "'add' stands twice"),
        ("HloModule m\n\n%x = f32[] constant(1)\n", "line 3: .*stands in no computation"),
        ("HloModule m\nENTRY %e () -> f32[] {\n}\n", "line 2: computation 'e' has no instructions"),
        ("HloModule m\nENTRY %e () -> f32[] {\n  what is\n}\n", "line 3: 'what is' is no instruction"),
        (program(f"ROOT %p = {DEEP} parameter(0)"), "line 5: tuples nested deeper than 64"),
        (program("%p = f32[] parameter(0)\nROOT %r = f32[] convolution(%p, %p)"), "line 6: .*dim_labels"),
        (program("ROOT %p = f32[4] parameter(x)"), "line 5: parameter 'p' needs a number"),
    ],
)  # fmt: skip
def test_refused(text, message):
    with pytest.raises(FormatError, match=message) as caught:
        parse_hlo(text)
    assert "\n" not in str(caught.value)


def test_texts_that_nest_without_end_are_refused():
    chain = "%t0 = f32[] parameter(0)\n" + "\n".join(
        f"%t{i} = (f32[]) tuple(%t{i - 1})" for i in range(1, 3000)
    )
    with pytest.raises(FormatError, match="the operands of tuple 't2' are not its shape"):
        parse_hlo(program(chain))
    with pytest.raises(FormatError, match="the instruction does not end"):
        parse_hlo(program("%c = f32[] constant(" + "{" * 100_000))
    graph = parse_hlo(program("%p = f32[] parameter(0)\nROOT %r = f32[] call(%p), to_apply=%c2999", CHAIN))
    assert graph.num_ops == 3


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_texts_raise_only_our_errors(data):
    text = data.draw(st.sampled_from([HAND, program(LOOPED.replace("CONFIG", ""), LOOP)]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        end = min(len(text), at + data.draw(st.integers(0, 30)))
        kind = data.draw(st.sampled_from(["cut", "drop", "insert", "move", "line"]))
        if kind == "cut":
            text = text[:at]
        elif kind == "drop":
            text = text[:at] + text[end:]
        elif kind == "insert":
            piece = data.draw(st.text(st.sampled_from('(){}[]%,="0189-_ \nabx/*:\\<'), max_size=4))
            text = text[:at] + piece + text[at:]
        elif kind == "move":
            to = data.draw(st.integers(0, len(text)))
            text = text[:to] + text[at:end] + text[to:]
        else:
            lines = text.split("\n")
            lines.insert(data.draw(st.integers(0, len(lines))), data.draw(st.sampled_from(lines)))
            text = "\n".join(lines)
    try:
        graph = parse_hlo(text)
    except (FormatError, GraphError) as error:
        message = str(error)
    else:
        message = ""
        peak(graph)
    assert "\n" not in message


def mlp(params, x, y):
    def loss(params):
        h = x
        for w, b in params:
            h = jnp.tanh(h @ w + b[None])
        return jnp.mean((h - y) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def conv(weights, x):
    def loss(weights):
        h = jax.nn.relu(jax.lax.conv(x, weights[0], (2, 2), "SAME"))
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
        return jnp.sum(jax.nn.softmax(jax.lax.conv(h, weights[1], (1, 1), "SAME")) ** 2)

    return jax.value_and_grad(loss)(weights)


def attention(params, x):
    def loss(params):
        q, k, v = (x @ params[n] for n in "qkv")
        s = jax.nn.softmax(jnp.einsum("btd,bsd->bts", q, k) / 4)
        h = x + jnp.einsum("bts,bsd->btd", s, v)
        return jnp.mean((h + jax.nn.gelu(h @ params["u"]) @ params["d"]) ** 2)

    return jax.value_and_grad(loss)(params)


def looped(w, x):
    def loss(w):
        end, rows = jax.lax.scan(lambda c, _: (jnp.tanh(c @ w), c.sum()), x, None, length=6)
        return end.sum() + rows.sum()

    return jax.grad(loss)(w)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


LAYERS = [(f32(64, 64), f32(64))] * 3
HEADS = {**dict.fromkeys("qkv", f32(32, 32)), "u": f32(32, 128), "d": f32(128, 32)}
PROGRAMS = {
    "mlp": (mlp, (LAYERS, f32(128, 64), f32(128, 64)), ()),
    "mlp, donated": (mlp, (LAYERS, f32(128, 64), f32(128, 64)), (0,)),
    "conv": (conv, ((f32(8, 3, 3, 3), f32(16, 8, 3, 3)), f32(4, 3, 32, 32)), ()),
    "attention": (attention, (HEADS, f32(4, 32, 32)), ()),
    "scan": (looped, (f32(64, 64), f32(32, 64)), ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_jax_compiles(name):
    fn, args, donate = PROGRAMS[name]
    compiled = jax.jit(fn, donate_argnums=donate).lower(*args).compile()
    graph = from_hlo(compiled, name=name)
    xlas = peak(graph)
    stats = compiled.memory_analysis()
    parameters = [o for o, kind in enumerate(graph.op_kinds) if kind == "parameter"]
    assert graph.tensor_bytes[np.isin(graph.tensor_op, parameters)].sum() == stats.argument_size_in_bytes
    # XLA holds its results from the beginning to the end, and shares more buffers than it must.
    total = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    total += stats.temp_size_in_bytes
    assert total - stats.output_size_in_bytes <= xlas <= 1.16 * total
    given = optimize(graph, ONE, objective="peak-memory", method="given")
    assert given.peak_memory[0] == xlas
    best = optimize(graph, ONE, objective="peak-memory", method="xla-best")
    best.verify(graph)
    assert best.makespan == pytest.approx(given.makespan)


def dependencies(text):
    """Pairs of instructions of the entry, the second after the first, found by a regular expression."""
    entry = text[text.index("\nENTRY") :]
    line = re.compile(r"^  (?:ROOT )?%(\S+) = .*? ([a-z][a-z-]*)\((.*)$", re.MULTILINE)
    # Instruction that only names memory -> the instructions that make its content.
    behind: dict[str, set[str]] = {}
    pairs = set()
    for name, opcode, rest in line.findall(entry):
        rest = re.sub(r"(calls|body|condition|to_apply)=%[\w.-]+|_computations=\{[^}]*\}", "", rest)
        reads = {source for other in re.findall(r"%([\w.-]+)", rest) for source in behind.get(other, {other})}
        if opcode in ("tuple", "get-tuple-element", "bitcast"):
            behind[name] = reads
        elif opcode == "constant":
            behind[name] = set()
        else:
            pairs |= {(source, name) for source in reads}
    return pairs


@pytest.mark.parametrize("name", ["mlp, donated", "attention", "scan"])
def test_other_orders_keep_the_dependencies_of_the_text(name):
    fn, args, donate = PROGRAMS[name]
    text = jax.jit(fn, donate_argnums=donate).lower(*args).compile().as_text()
    graph = parse_hlo(text)
    pairs = dependencies(text)
    assert pairs
    assert {o for pair in pairs for o in pair} <= set(graph.op_names)
    for seed in range(3):
        plan = run_heuristic("random-topological", graph, ONE, "peak-memory", seed=seed)
        at = {graph.op_names[o]: i for i, o in enumerate(plan.timeline.op.tolist())}
        assert len(at) == graph.num_ops
        assert all(at[before] < at[after] for before, after in pairs)


def test_the_search_is_never_worse_than_xlas_own_order():
    fn, args, _ = PROGRAMS["attention"]
    graph = from_hlo(jax.jit(fn).lower(*args).compile())
    best = optimize(graph, ONE, objective="peak-memory", evaluations=200)
    best.verify(graph)
    assert best.peak_memory[0] <= peak(graph)


def test_files(tmp_path: pathlib.Path, capsys):
    plain, packed = tmp_path / "step.hlo.txt", tmp_path / "step.hlo.gz"
    plain.write_text(HAND)
    packed.write_bytes(gzip.compress(HAND.encode()))
    want = parse_hlo(HAND, profile="a100")
    for path in (plain, packed):
        for graph in (
            load_graph(path, profile="a100"),
            from_hlo(path, profile="a100"),
            from_hlo(str(path), profile="a100"),
        ):
            assert (graph.name, graph.content_hash) == ("step", want.content_hash)
    assert from_hlo(HAND).content_hash == parse_hlo(HAND).content_hash
    save_graph(want, tmp_path / "step.json")
    assert load_graph(tmp_path / "step.json").content_hash == want.content_hash
    assert main(["show", str(plain), "--profile", "a100"]) == 0
    assert want.content_hash in capsys.readouterr().out
    given = ["--method", "given", "--objective", "peak-memory", "--devices", "1"]
    assert main(["optimize", str(plain), *given]) == 0
    assert "448" in capsys.readouterr().out
    with pytest.raises(FormatError, match=r"cannot be written; save as \.json"):
        save_graph(want, plain)
    plain.write_text(HAND[:300])
    with pytest.raises(FormatError, match=r"step.hlo.txt: line"):
        load_graph(plain)
    with pytest.raises(FormatError, match="int is no compiled program"):
        from_hlo(3)
