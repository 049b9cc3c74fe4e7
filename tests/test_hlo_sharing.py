"""The model that `regal_jax.compile` searches: temporary memory, with the buffers that XLA reuses."""

import pytest

from regal_jax.heuristics.order_costs import order_peak
from regal_jax.heuristics.orders import given_order
from regal_jax.importers.hlo_program import order_computations

# Arrays of 4 KiB. `mul` is read once and element by element, `dot` twice, `flip` is not elementwise.
TEXT = """HloModule m, is_scheduled=true

%wave (p: f32[32,32]) -> f32[32,32] {{
  %p = f32[32,32] parameter(0)
  ROOT %s = f32[32,32] sine(%p)
}}

%flip (q: f32[32,32]) -> f32[32,32] {{
  %q = f32[32,32] parameter(0)
  %n = f32[32,32] negate(%q)
  ROOT %t = f32[32,32] transpose(%n), dimensions={{1,0}}
}}

ENTRY %main (x: f32[32,32]) -> f32[32,32] {{
  %x = f32[32,32] parameter(0)
  %dot = f32[32,32] dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %mid = f32[32,32] fusion(%dot), kind={kind}, calls=%{calls}
  {more}ROOT %out = f32[32,32] dot(%mid, %{last}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


def _graphs(**parts):
    graphs = {}
    text = TEXT.format(**{"kind": "kLoop", "calls": "wave", "more": "", "last": "x"} | parts)
    order_computations(text, lambda name, graph: graphs.setdefault(name, graph) and 0)
    return graphs


@pytest.mark.parametrize(
    ("parts", "arrays"),
    [
        # The argument, what the fusion writes over the product, and the result.
        ({}, 3),
        ({"calls": "flip"}, 3),
        ({"last": "dot"}, 4),  # The product is read again.
        ({"last": "dot", "kind": "kCustom"}, 4),
        ({"more": "%two = f32[32,32] fusion(%dot), kind=kLoop, calls=%wave\n  ", "last": "two"}, 4),
    ],
)
def test_peaks_by_hand(parts, arrays):
    graph = _graphs(**parts)["main"]
    assert order_peak(graph, given_order(graph)) == arrays * 32 * 32 * 4


def test_results_of_the_program_have_their_sizes():
    graph = _graphs()["main"]
    assert {graph.op_names[o] for o in range(graph.num_ops)} == {"x", "start", "dot", "mid", "out"}
    assert _sizes(graph) == {"x": 4096, "dot": 4096, "out": 4096}


def test_what_enters_and_leaves_a_body_has_no_size():
    text = """HloModule m, is_scheduled=true

%twice (p: f32[32,32]) -> f32[32,32] {
  %p = f32[32,32] parameter(0)
  %dot = f32[32,32] dot(%p, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %two = f32[32,32] dot(%dot, %p), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[32,32]) -> f32[32,32] {
  %x = f32[32,32] parameter(0)
  ROOT %c = f32[32,32] call(%x), to_apply=%twice
}
"""
    graphs = {}
    order_computations(text, lambda name, graph: graphs.setdefault(name, graph) and 4096)
    assert _sizes(graphs["twice"]) == {"p": 0, "dot": 4096, "two": 0}
    assert graphs["main"].temp_bytes.tolist()[-1] == 4096


def _sizes(graph):
    pairs = zip(graph.tensor_op, graph.tensor_bytes.tolist(), strict=True)
    return {graph.op_names[o]: size for o, size in pairs}
