"""Numba's translation with fewer places in memory: the results of Python."""

import functools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numba")
import numba
from numba import types
from numba.core import codegen, compiler
from numba.core.typed_passes import PreLowerStripPhis

from regal_jax.runtime.closures import Compiler, ScalarCompiler
from regal_jax.runtime.lowering import assigned_once
from regal_jax.runtime.numba_parts import one_assignment_each


@functools.cache
def scalar(function):
    return numba.njit(pipeline_class=ScalarCompiler, _nrt=False, error_model="numpy")(function)


def ranges(start, stop, step, out):
    """All kinds of ranges; what is left of their variables; loops within loops, and ends in between."""
    count, last = 0, -7
    for i in range(stop):
        count += 1
        if i == 5:
            break
        last = i
    for i in range(start, stop):
        if i % 3 == 0:
            continue
        for j in range(i, start, -1):
            count += j
        else:
            count += 1
        last += i
    for i in range(start, stop, step):
        count += 3 * i
        out[i + 6] = count
    again = range(start, stop)
    for i in again:
        count += i
    for i in again:
        count -= 2 * i
    for i in range(start, stop) if start < 2 else range(stop, start, step):
        count += 5 * i
    out[0], out[1], out[2] = count, last, len(range(start, stop))


def items(numbers, flags, small, at):
    """Items of several kinds, the last one by a literal, and variables with values on some ways only."""
    total, found = 0.0, flags[at]
    for i in range(len(numbers)):
        value = numbers[i]
        if value > 0:
            share = value
            flags[i] = small[i] > 1
        elif i > 0:
            share = numbers[i - 1]
            small[-1] += 1
            numbers[i] = i
        else:
            share = True
        total += share
        numbers[at] = total
    while small[at] < 3:
        small[at] += flags[0] + 1
    numbers[0], numbers[-1] = found, total


@given(*[st.integers(-6, 6)] * 2, st.integers(-3, 3).filter(bool))
def test_ranges(start, stop, step):
    expected, out = [0] * 13, np.zeros(13, np.int64)
    ranges(start, stop, step, expected)
    scalar(ranges)(start, stop, step, out)
    assert out.tolist() == expected


@given(
    st.lists(
        st.tuples(st.integers(-9, 9).map(float), st.booleans(), st.integers(0, 3)), min_size=1, max_size=6
    ),
    st.data(),
)
def test_items(rows, data):
    at = data.draw(st.integers(0, len(rows) - 1))
    expected = [list(column) for column in zip(*rows, strict=True)]
    arrays = [np.array(column, kind) for column, kind in zip(expected, (float, bool, np.int32), strict=True)]
    items(*expected, at)
    scalar(items)(*arrays, at)
    for array, values in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, values)


def test_arrays_with_gaps_and_of_two_dimensions():
    def fill(rows, gaps, row, column):
        for i in range(len(gaps)):
            gaps[i] += 1
            rows[row, column + i] += gaps[-1 - i]

    expected, rows, gaps = np.zeros((3, 4)), np.zeros((3, 4)), np.arange(9)
    fill(expected, np.arange(9)[::3], -1, 1)
    scalar(fill)(rows, gaps[::3], -1, 1)
    np.testing.assert_array_equal(rows, expected)
    assert gaps.tolist() == [1, 1, 2, 4, 4, 5, 7, 7, 8]


def test_a_function_that_counts_references_gives_all_of_them_back():
    def keeps(x, n):
        kept, total = x, 0.0
        for i in range(n):
            last = kept
            kept = np.ones(3) if i % 2 else x
            total += last[i % 3] + kept[-1]
        return total, kept

    function, x = numba.njit(pipeline_class=ScalarCompiler)(keeps), np.arange(3.0)
    before = sys.getrefcount(x)
    for n in range(9):
        total, kept = function(x, n)
        assert (total, kept.tolist()) == (keeps(x, n)[0], keeps(x, n)[1].tolist())
    del kept
    assert sys.getrefcount(x) == before


def test_a_generator_goes_on_where_it_was():
    def counts(n, step):
        twice = 2 * step
        for i in range(n):
            yield i * twice + step

    def total(n, step):
        found = 0
        for each in inner(n, step):
            found = 10 * found + each
        return found

    inner = numba.njit(pipeline_class=ScalarCompiler)(counts)
    assert list(inner(4, 3)) == list(counts(4, 3))
    # 3, 9, 15 and 21 in decimal places.
    assert numba.njit(pipeline_class=ScalarCompiler)(total)(4, 3) == 3000 + 900 + 150 + 21


def test_indices_are_checked_where_numba_is_told_to():
    def beyond(x):
        return x[len(x)]

    with pytest.raises(IndexError):
        numba.njit(pipeline_class=ScalarCompiler, boundscheck=True)(beyond)(np.zeros(3))


@pytest.mark.parametrize(
    ("function", "kinds"),
    [(ranges, "int64 int64 int64 int64[::1]"), (items, "float64[::1] b1[::1] i4[::1] i8")],
)
def test_most_places_in_memory_are_gone(function, kinds, monkeypatch):
    places = []
    add = codegen.CPUCodeLibrary.add_ir_module

    def watch(library, module):
        if function.__name__ in library.name:
            places[-1] += str(module).count(" = alloca ")
        add(library, module)

    monkeypatch.setattr(codegen.CPUCodeLibrary, "add_ir_module", watch)
    for pipeline in (Compiler, ScalarCompiler):
        places.append(0)
        made = numba.njit(pipeline_class=pipeline, _nrt=False, no_cpython_wrapper=True)(function)
        made.compile(tuple(eval(kind, vars(types)) for kind in kinds.split()))
    assert 0 < places[1] < places[0] / 2


def test_variables_that_are_assigned_once():
    def several(x, n):
        first = x + n
        if n > 0:
            inner = first + 1
            twice = inner
        else:
            twice = 0
        total = 0
        while total < twice:
            total += first
        return total

    def sometimes(n):
        if n > 0:
            before = n
        return before

    found = compiler.run_frontend(several)
    found.blocks = one_assignment_each(found.blocks)
    names = assigned_once(PreLowerStripPhis()._strip_phi_nodes(found).blocks)
    assert {"x", "n", "first", "inner"} <= names
    # The others get their values on several ways.
    assert not [name for name in names if name.startswith(("twice.2", "total.2"))]
    names = assigned_once(compiler.run_frontend(sometimes).blocks)
    assert "n" in names
    assert "before" not in names
