"""Packing of pieces of memory: nothing overlaps, and blocks of arguments and results are used."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regal_jax.importers import hlo_pieces
from regal_jax.importers.hlo_lifetimes import step_lifetimes
from regal_jax.importers.hlo_packing import Packable
from regal_jax.importers.hlo_pieces import Piece, live_bytes, make_pieces, pack_pieces
from regal_jax.importers.hlo_temp import TempModel
from regal_jax.importers.hlo_text import parse_module
from regal_jax.importers.hlo_values import read_values

ALIGNMENT = 64


def piece(size, *spans, fixed=False):
    return Piece([0], size, list(spans), None, 0 if fixed else None)


def test_none_and_one():
    assert pack_pieces([]).heap == 0
    assert live_bytes([]) == 0
    alone = pack_pieces([piece(100, (0, 3))])
    assert (alone.heap, alone.places) == (100, [(-1, 0)])


def test_blocks_hold_what_fits_while_they_are_free():
    result = piece(200, (6, 9), fixed=True)
    assert pack_pieces([result, piece(100, (0, 5)), piece(50, (1, 4))]).heap == 0
    # Alive together with the result, or too large for its memory.
    assert pack_pieces([result, piece(100, (0, 6))]).heap == 100
    assert pack_pieces([result, piece(201, (0, 5))]).heap == 201
    # Between two lives of what is in the block.
    argument = piece(128, (0, 2), (7, 9), fixed=True)
    packed = pack_pieces([argument, piece(128, (3, 6))])
    assert (packed.heap, packed.places) == (0, [(0, 0), (0, 0)])


def test_the_highest_piece_is_moved():
    """Large pieces first leave a gap; the search closes it."""
    rows = [piece(128, (0, 1)), piece(192, (1, 2)), piece(64, (2, 3)), piece(256, (3, 4)), piece(128, (0, 2))]
    assert pack_pieces(rows).heap == live_bytes(rows) == 448


pieces = st.lists(
    st.builds(
        lambda size, start, life, gap, again, fixed: piece(
            size,
            (start, start + life),
            *([(start + life + gap, start + life + gap)] if again else []),
            fixed=fixed,
        ),
        st.integers(0, 600),
        st.integers(0, 12),
        st.integers(0, 6),
        st.integers(2, 5),
        st.booleans(),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=200, deadline=None)
@given(pieces)
def test_pieces_that_live_together_never_overlap(rows):
    packed = pack_pieces(rows)
    blocks = [row.size for row in rows if row.fixed]
    moments = range(40)
    live = [sum(r.size for r in rows if any(s <= m <= e for s, e in r.spans)) for m in moments]
    assert live_bytes(rows) == max(live)
    assert packed.heap >= live_bytes(rows) - sum(blocks)
    top = 0
    for i, (row, (block, offset)) in enumerate(zip(rows, packed.places, strict=True)):
        assert offset % ALIGNMENT == 0
        assert (block, offset) == (i, 0) if row.fixed else True
        if block >= 0:
            assert rows[block].fixed
            assert offset + row.size <= rows[block].size
        else:
            top = max(top, offset + row.size)
        for other, place in zip(rows[:i], packed.places[:i], strict=True):
            together = any(a <= d and c <= b for a, b in row.spans for c, d in other.spans)
            if together and place[0] == block:
                assert offset >= place[1] + other.size or place[1] >= offset + row.size
    assert packed.heap == top


@settings(max_examples=100, deadline=None)
@given(pieces, st.randoms(use_true_random=False))
def test_each_piece_takes_the_smallest_gap(rows, random):
    """Compared with all addresses at which a piece could be placed, compiled and in Python."""
    packer = hlo_pieces._Packer(rows)
    order = random.sample(packer.free, len(packer.free))
    address, heap = packer.pack(order)
    with pytest.MonkeyPatch.context() as patch:
        for name, made in {
            "usable": lambda: False,
            "loops": lambda f: f,
            "for_loops": np.ndarray.tolist,
        }.items():
            patch.setattr(hlo_pieces, name, made)
        patch.setattr(packer, "given", Packable(*(column.tolist() for column in packer.packable)))
        assert packer.pack(order) == (address, heap)
    taken = [tuple(row) for row in packer.walls.T.tolist()]
    for i in order:
        near = sorted(
            {(low, high) for a, b, low, high in taken if any(a <= d and c <= b for c, d in rows[i].spans)}
        )
        ends = [0]
        gaps = []
        for low, high in near:
            gaps.append((low - max(ends), max(ends)))
            ends.append(high)
        fitting = [gap for gap in gaps if gap[0] >= rows[i].size]
        expected = min(fitting)[1] if fitting else max(ends)
        assert address[i] == expected
        taken += [(a, b, expected, -(-(expected + rows[i].size) // 64) * 64) for a, b in rows[i].spans]
    assert heap == max([0, *(address[i] + rows[i].size - packer.heap for i in order)])


def test_a_search_among_packings():
    """Twelve buffers of four sizes, for which the best of the three first packings has gaps."""
    sizes = (256, 192, 128, 320, 64, 192, 128, 256, 320, 64, 192, 128)
    lives = ((0, 3), (2, 5), (1, 2), (4, 7), (3, 8), (6, 9), (0, 6), (8, 9), (7, 9), (5, 5), (9, 9), (3, 4))
    rows = [piece(size, span) for size, span in zip(sizes, lives, strict=True)]
    packer = hlo_pieces._Packer(rows)
    life = {i: last - first + 1 for i, (first, last) in enumerate(lives)}
    first = min(
        packer.pack(sorted(packer.free, key=key))[1]
        for key in (
            lambda i: (-sizes[i], -life[i], i),
            lambda i: (-sizes[i] * life[i], i),
            lambda i: (-life[i], -sizes[i], i),
        )
    )
    assert live_bytes(rows) <= pack_pieces(rows).heap < first


TEXT = """HloModule m, is_scheduled=true, input_output_alias={{ {{}}: (0, {{}}, may-alias) }}

%wave (p: f32[32,32]) -> f32[32,32] {{
  %p = f32[32,32]{{1,0}} parameter(0)
  ROOT %s = f32[32,32]{{1,0}} sine(%p)
}}

ENTRY %main (x: f32[32,32], y: f32[32,32]) -> f32[32,32] {{
  %x = f32[32,32]{{1,0}} parameter(0)
  %y = f32[32,32]{{1,0}} parameter(1)
  %a = f32[32,32]{{1,0}} dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %b = f32[32,32]{{1,0}} fusion(%a), kind=kLoop, calls=%wave
  %c = f32[32,32]{{1,0}} dot(%b, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  {more}ROOT %d = f32[32,32]{{1,0}} dot(%{last}, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""


@pytest.mark.parametrize(
    ("more", "last", "names", "arrays"),
    [
        # The result is written while `c` is read, and `a` while the argument is read: the heap has both.
        ("", "c", ["ab", "c", "dx"], 2),
        # After its last reader and before the result, the memory of the argument holds `c`.
        (
            "%e = f32[32,32]{1,0} dot(%c, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n  ",
            "e",
            ["ab", "c", "dx", "e"],
            1,
        ),
    ],
)
def test_pieces_of_a_program_by_hand(more, last, names, arrays):
    module = parse_module(TEXT.format(more=more, last=last))
    values = read_values(module)
    rows = TempModel(dataclasses.replace(module, attributes={})).pieces({}, values)
    found = ["".join(sorted(values.maker[v].instruction.name for v in row.values)) for row in rows]
    assert sorted(found) == names  # `y` is not moved, and the fusion `b` is written over `a`.
    assert pack_pieces(rows).heap == arrays * 4096


CALL = """HloModule m, is_scheduled=true

%body (p: f32[32]) -> f32[32] {{
  %p = f32[32]{{0}} parameter(0)
  %a = f32[32]{{0}} dot(%p, %p)
  %b = f32[8]{{0}} slice(%a), slice={{[0:8]}}
  %c = f32[32]{{0}} dot(%b, %b)
  ROOT %d = f32[32]{{0}} dot(%c, %c)
}}

ENTRY %main (x: f32[32]) -> f32[32] {{
  %x = f32[32]{{0}} parameter(0)
  %call = f32[32]{{0}} call(%x), to_apply=%body{attributes}
  ROOT %e = f32[32]{{0}} dot(%call, %call)
}}
"""
ONE_KERNEL = ', frontend_attributes={xla_cpu_small_call="true"}'


def pieces_of_call(offsets, attributes=ONE_KERNEL):
    """Names of the values of each piece with their offsets, and its size; all are in block 0."""
    values = read_values(parse_module(CALL.format(attributes=attributes)))
    name = {node.instruction.name: value for value, node in enumerate(values.maker)}
    where = {name[key]: (0, offset) for key, offset in offsets.items()}
    found = make_pieces(values, step_lifetimes(values, {}), where)
    told = {value: key for key, value in name.items()}
    return [({told[v]: row.offsets.get(v, 0) for v in row.values}, row.size) for row in found]


def test_values_of_one_kernel_that_overlap_in_part_move_together():
    # They count as alive during all of the call, so that XLA may have put them into the same bytes.
    assert pieces_of_call({"a": 0, "b": 64, "c": 192}) == [({"a": 0, "b": 64}, 128), ({"c": 0}, 128)]
    assert pieces_of_call({"a": 64, "b": 0, "c": 192}) == [
        ({"a": 0}, 128),
        ({"b": 0}, 32),
        ({"c": 0}, 128),
    ]
    # The last one begins below the others; it joins two that do not overlap.
    assert pieces_of_call({"a": 64, "b": 32, "c": 0}) == [({"a": 64, "c": 0, "b": 32}, 192)]
    # The same bytes: as values that are written over each other.
    assert pieces_of_call({"a": 0, "b": 0, "c": 128}) == [({"a": 0, "b": 0}, 128), ({"c": 0}, 128)]


def test_an_unknown_overlap_is_refused():
    # Without the attribute, the second value is made while the first one is read.
    assert len(pieces_of_call({"a": 0, "b": 128, "c": 160}, "")) == 3
    with pytest.raises(ValueError, match="two values overlap in part"):
        pieces_of_call({"a": 0, "b": 64, "c": 192}, "")
    # A value outside of the call has its own place.
    with pytest.raises(ValueError, match="two values overlap in part"):
        pieces_of_call({"d": 0, "e": 64})
