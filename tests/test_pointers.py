"""Calls of compiled loops by address."""

import sys

import numpy as np
import pytest

from regal_jax.runtime import compiling, pointers
from regal_jax.runtime.compiling import for_loops, loops, only_borrows

numba = pytest.importorskip("numba")
_call = pointers.caller()


@only_borrows
def _add(total, values, scale):
    for i in range(len(values)):
        total[0] += scale * values[i]
    return total


@only_borrows
def _twice(function, total, values, scale):
    _call(function, (total, values, scale), 0)
    return _call(function, (total, values, scale), 0)[0]


def test_a_call_by_address_is_a_call():
    total, values = np.zeros(1), np.arange(4.0)
    arguments = for_loops(total), for_loops(values), 0.5
    address = pointers.address_of(_add, 0, *arguments)
    assert isinstance(address, int)
    assert total[0] == 0
    assert loops(_twice)(address, *arguments) == 2 * 0.5 * 6
    assert arguments[0][0] == 6
    # Its code is not part of the caller's, which is compiled again since code from the cache has no text.
    caller = numba.njit(_twice)
    assert caller(address, *arguments) == 4 * 0.5 * 6
    (code,) = caller.inspect_llvm().values()
    (added,) = compiling.compiled(_add).overloads.values()
    assert added.fndesc.llvm_func_name not in code


def test_references_are_counted_where_the_caller_does():
    values = np.arange(3.0)
    total = np.zeros(1)
    arguments = for_loops(total), for_loops(values), 1.0
    address = pointers.address_of(_add, 0, *arguments)
    caller = numba.njit(_twice)
    before = sys.getrefcount(arguments[0])
    for _ in range(100):
        caller(address, *arguments)
    after = sys.getrefcount(arguments[0])
    assert after == before
    assert arguments[0][0] == 2 * 100 * 3


def _counted(total):
    return total


def test_what_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="_counted counts references; decorate it with only_borrows"):
        pointers.address_of(_counted, 0, np.zeros(1))
    with pytest.raises(TypeError, match="_add does not return its argument 2"):
        pointers.address_of(_add, 2, np.zeros(1), np.zeros(2), 0.5)


def test_in_python_the_address_is_the_function(monkeypatch):
    monkeypatch.setattr(compiling, "usable", lambda: False)
    assert pointers.address_of(_add, 0, [0.0], [1.0], 1.0) is _add
    assert pointers.caller() is pointers.call
    assert pointers.call(_add, ([0.0], [1.0, 2.0], 2.0), 0) == [6.0]
