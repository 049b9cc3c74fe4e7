"""Loops for the host, compiled if Numba is installed and with the same results without it."""

import ast
import collections
import errno
import functools
import importlib
import os
import pathlib
import subprocess
import sys
import textwrap
import types

import numpy as np
import pytest
from plain_loops import as_items, watched

from regal_jax.datasets import generate
from regal_jax.graph import Cluster
from regal_jax.heuristics import (
    insertion_kernel,
    list_climb,
    list_kernel,
    order_costs,
    order_peak,
    order_windows,
    peaks,
    schedule_peaks,
)
from regal_jax.heuristics.heft import heft_schedule
from regal_jax.heuristics.levels import levels, quantised, standing
from regal_jax.heuristics.list_scheduling import MEMORY_RULES, TIME_RULES, list_schedule, quick_schedule
from regal_jax.heuristics.list_search import ListSearchRun
from regal_jax.heuristics.orders import lpmf_order
from regal_jax.heuristics.peaks import PeakBalance, least_peak_balance
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.ordering import TopoformerConfig, make_order_inputs
from regal_jax.ordering.relations import distinct_edges
from regal_jax.runtime import compiling, pointers

_CACHES = (compiling.installed, compiling.usable, peaks._kernel)


@pytest.fixture
def nothing_known():
    """Clears the cached state of Numba's availability before and after a test."""
    for cache in _CACHES:
        cache.cache_clear()
    yield
    for cache in _CACHES:
        cache.cache_clear()


def test_without_numba_the_results_are_the_same(monkeypatch, nothing_known):
    pytest.importorskip("numba")
    graph, cluster = generate("layered", 60, 1), Cluster.uniform(3, transfer="blocking")
    assert compiling.usable()
    monkeypatch.setattr(compiling, "_COMPILING", -1)
    numbers = np.argsort(graph.topological_order)
    compiled = least_peak_balance(graph, cluster, numbers), lpmf_order(graph)
    schedule = quick_schedule(graph, cluster, numbers)
    rules = (*TIME_RULES, *MEMORY_RULES)
    lists = [list_schedule(graph, cluster, rule) for rule in rules]
    search = ListSearchRun(graph, cluster, 0)
    search.run(60)
    found = search.plan()
    for cache in _CACHES:
        cache.cache_clear()
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    # What this module uses when it is imported without Numba.
    monkeypatch.setattr(list_climb, "_call", pointers.call)
    plain = least_peak_balance(graph, cluster, numbers), lpmf_order(graph)
    (ours, placement), (theirs, same) = compiled[0], plain[0]
    assert (ours._kernel is None, theirs._kernel is None) == (False, True)
    assert (ours.order.tolist(), placement.tolist()) == (theirs.order.tolist(), same.tolist())
    assert compiled[1].tolist() == plain[1].tolist()
    for one, same in zip(schedule, quick_schedule(graph, cluster, numbers), strict=True):
        assert one.tolist() == same.tolist()
    for rule, made in zip(rules, lists, strict=True):
        for one, same in zip(made, list_schedule(graph, cluster, rule), strict=True):
            assert one.tolist() == same.tolist()
    again = ListSearchRun(graph, cluster, 0)
    again.run(60)
    assert again.history == search.history
    assert again.plan().timeline.op.tolist() == found.timeline.op.tolist()


def test_loops_do_the_same_in_python_without_negative_indices(monkeypatch):
    pytest.importorskip("numba")
    cluster = Cluster.uniform(3, transfer="delay:latency=1")

    def results():
        graph = generate("layered", 60, 1)  # A new graph remembers nothing.
        links, order = distinct_edges(graph), graph.topological_order
        paths = levels(links.source, links.target, order, graph.runtime)
        return [
            *paths,
            *standing(quantised(np.stack(paths[:2])), graph.runtime),
            *heft_schedule(graph, cluster),
            upward_rank(graph, cluster),
            lpmf_order(graph),
            order_peak(graph, order),
            order_windows.Profile(order_costs.order_costs(graph), order).peaks,
            make_order_inputs([graph], TopoformerConfig(layers=1, eigenvectors=2)).features,
        ]

    monkeypatch.setattr(compiling, "_stays_in_python", lambda function, seconds: False)
    compiled = results()
    monkeypatch.setattr(compiling, "_stays_in_python", lambda function, seconds: True)
    monkeypatch.setattr(compiling, "_lists", as_items)
    monkeypatch.setattr(order_windows, "loops", watched)
    for one, same in zip(results(), compiled, strict=True):
        np.testing.assert_array_equal(one, same)


def test_a_numba_that_refuses_is_told_of_once(monkeypatch, nothing_known):
    monkeypatch.setattr(compiling, "installed", lambda: True)

    def refuse(name):
        raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 3.0.")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.warns(UserWarning, match=r"Numba cannot be imported, .* needs NumPy 2.4 or less"):
        assert not compiling.usable()
    assert not compiling.usable()
    assert (
        PeakBalance(generate("layered", 9, 0), Cluster.uniform(2, transfer="blocking"), np.arange(9))._kernel
        is None
    )


def test_closures_are_removed_and_what_has_effects_stays():
    numba = pytest.importorskip("numba")
    from regal_jax.runtime.closures import Compiler

    def work(x, total):
        last = len(x) - 1

        def add(i, by):
            total[0] += by * x[i]
            total[1 + i] = x[i]
            x[last] += by

        def twice(i):
            add(i, 1)
            add(i, 2)

        same = x
        for i in range(last):
            twice(i)
            same[i] = -i
        return x

    ran = []
    for run in (work, numba.njit(work), numba.njit(pipeline_class=Compiler)(work)):
        x, total = np.arange(4.0), np.zeros(5)
        ran.append([run(x, total).tolist(), total.tolist()])
    assert ran[0] == ran[1] == ran[2]
    # 1 and 2 times 0 + 1 + 2, and 3 added to the last element in each of three turns.
    assert ran[0] == [[0.0, -1.0, -2.0, 12.0], [9.0, 0.0, 1.0, 2.0, 0.0]]


def test_loops_without_arrays_of_their_own_have_no_vector_instructions(monkeypatch):
    numba = pytest.importorskip("numba")
    from numba.core import config

    # Code from the cache cannot be inspected.
    njit = numba.njit
    monkeypatch.setattr(numba, "njit", lambda cache=False, **options: njit(**options))

    from regal_jax.runtime.closures import Compiler, ScalarCompiler
    from regal_jax.runtime.compiling import only_borrows

    @only_borrows
    def scale(x):
        for i in range(len(x)):
            x[i] = 2 * x[i]

    code = []
    for pipeline in (Compiler, ScalarCompiler):
        function = njit(pipeline_class=pipeline)(scale)
        x = np.arange(100.0)
        function(x)
        np.testing.assert_array_equal(x, 2 * np.arange(100.0))
        code.append(next(iter(function.inspect_llvm().values())))
    assert ["x double>" in each for each in code] == [bool(config.LOOP_VECTORIZE), False]
    # The setting holds for these functions alone.
    before = config.LOOP_VECTORIZE
    function = compiling.compiled(scale)
    function(np.zeros(3))
    assert before == config.LOOP_VECTORIZE
    assert "x double>" not in next(iter(function.inspect_llvm().values()))


def test_the_large_kernel_keeps_no_closure():
    pytest.importorskip("numba")
    from numba.core import compiler, inline_closurecall, ir

    from regal_jax.runtime.closures import remove_closures

    removed = []

    def watch(func_ir):
        remove_closures(func_ir)
        values = [s.value for b in func_ir.blocks.values() for s in b.body if isinstance(s, ir.Assign)]
        removed.append([v for v in values if getattr(v, "op", None) == "make_function"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline_closurecall, "dead_code_elimination", watch)
        compiler.run_frontend(list_kernel.schedule, inline_closures=True)
    assert removed == [[]]


def test_a_function_that_only_borrows_leaves_its_arrays_alive_and_makes_none():
    numba = pytest.importorskip("numba")
    for function in (list_kernel.schedule, list_climb.climb, insertion_kernel.insert, schedule_peaks.peaks):
        # A caller that counts references would drop what such a function returns.
        assert not compiling.compiled(function).targetoptions["_nrt"]

    @compiling.only_borrows
    def returns(pair):
        pair[1][0] += 1
        return pair

    @compiling.only_borrows
    def makes(n):
        return np.zeros(n)

    function = compiling.compiled(returns)
    pair = np.zeros(3), np.zeros(2)
    counts = [sys.getrefcount(array) for array in pair]
    for _ in range(100):
        again = function(pair)
    assert all(one is same for one, same in zip(again, pair, strict=True))
    del again
    assert [sys.getrefcount(array) for array in pair] == counts
    assert pair[1].tolist() == [100, 0]
    with pytest.raises(numba.core.errors.NumbaError, match="Only accept returning of array passed into"):
        compiling.compiled(makes)(3)


def test_another_numba_compiles_as_it_does_itself(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setitem(sys.modules, "regal_jax.runtime.closures", None)
    assert compiling.pipeline(scalar=False) == compiling.pipeline(scalar=True) == {}
    assert compiling._without_counts() == {"_nrt": False}
    monkeypatch.setitem(sys.modules, "numba.core.cpu", types.SimpleNamespace(CPUTargetOptions=object))
    assert compiling._without_counts() == {}
    monkeypatch.setitem(sys.modules, "numba.core.cpu", None)
    assert compiling._without_counts() == {}


@pytest.mark.slow
def test_scipys_linear_algebra_is_imported_where_a_function_needs_it(tmp_path):
    pytest.importorskip("numba")
    code = """
        import sys
        import numpy as np
        from regal_jax.heuristics import ahead
        from regal_jax.runtime import compiling
        ahead.replay()
        assert compiling.usable() and "scipy.linalg" not in sys.modules
        # What an earlier process compiled is read without the functions that Numba compiles with.
        assert ("numba.np.linalg" in sys.modules) == (sys.argv[1] == "first")
        import numba
        product = numba.njit(lambda x: x @ x)(2 * np.eye(3))
        assert "scipy.linalg" in sys.modules and product.tolist() == (4 * np.eye(3)).tolist()
    """
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "REGAL_JAX_AHEAD": "off"}
    for process in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), process],
            capture_output=True, text=True, env=environment, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_no_folder_for_the_cache(monkeypatch):
    pytest.importorskip("numba")
    importlib.import_module("regal_jax.runtime.closures")
    asked = []

    def njit(cache=False, **_):
        asked.append(cache)

        def decorate(function):
            if cache:
                raise RuntimeError("cannot cache function: no locator available")
            return function

        return decorate

    monkeypatch.setitem(sys.modules, "numba", types.SimpleNamespace(njit=njit))
    assert compiling.compiled(len) is len
    assert asked == [True, False]


def pairs(folder, name):
    """A function of named tuples, in a module that is loaded anew, and their class, called ``name``."""
    (folder / "of_pairs.py").write_text(
        f"import collections\n{name} = collections.namedtuple('{name}', 'a b')\n"
        "def total(pair):\n    return pair.a + pair.b\n"
    )
    sys.modules.pop("of_pairs", None)
    importlib.invalidate_caches()
    module = importlib.import_module("of_pairs")
    return compiling.compiled(module.total), getattr(module, name)


def test_a_cache_that_cannot_be_read_is_none(monkeypatch, tmp_path):
    numba = pytest.importorskip("numba")
    # The environment may name a folder in which there are other functions.
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # A missing class, under the name that the index has; then a damaged index; then nothing is wrong.
    for name, damage, hits in (("Pair", 0, 0), ("Couple", 0, 0), ("Couple", 20, 0), ("Couple", 0, 1)):
        for index in tmp_path.glob("**/*.nbi"):
            index.write_bytes(index.read_bytes()[: -damage or None])
        total, pair = pairs(tmp_path, name)
        assert total(pair(1, 2)) == 3
        assert sum(total.stats.cache_hits.values()) == hits
    sys.modules.pop("of_pairs")


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    numba = pytest.importorskip("numba")
    from numba.core.caching import IndexDataCacheFile

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(IndexDataCacheFile, "_save_data", full)
    total, pair = pairs(tmp_path, "Pair")
    assert total(pair(1, 2)) == 3
    sys.modules.pop("of_pairs")


@pytest.fixture
def loops_of(monkeypatch, tmp_path):
    """A function of numbers that reports who ran it; Numba is installed and compiles at once."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_in_python", collections.defaultdict(float))
    ran = []

    def twice(x):
        return 2 * x

    def compile_it(function):
        def call(x):
            ran.append("compiled")
            call.overloads = ("one",)
            return function(x)

        call.overloads, call.stats = (), types.SimpleNamespace(cache_path=str(tmp_path))
        return call

    compile_it = functools.cache(compile_it)
    monkeypatch.setattr(compiling, "compiled", compile_it)

    def run(seconds):
        ran.clear()
        assert compiling.run_loops(twice, 3, seconds=seconds) == 6
        return ran == ["compiled"]

    compiling._uninterrupted.cache_clear()
    yield run
    compiling._uninterrupted.cache_clear()


def test_small_loops_stay_in_python_until_compiling_pays(loops_of):
    assert [loops_of(0.4) for _ in range(5)] == [False, False, True, True, True]


def test_large_loops_are_compiled_at_once(loops_of):
    assert loops_of(2.0)
    # Once the loops are compiled, small amounts of work use them, too.
    assert loops_of(0.001)


def test_what_is_on_disk_is_used_at_once(loops_of, tmp_path):
    (tmp_path / "module.twice-7.py311.nbi").touch()
    assert loops_of(0.001)


def test_what_may_run_over_lists_calls_no_compiled_part():
    """A compiled part would write to copies of the lists."""
    root = pathlib.Path(compiling.__file__).parents[1]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")}
    calls = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    ran = {node.args[0].id for node in calls if getattr(node.func, "id", "") == "run_loops"}
    assert {"schedule", "execute", "_rank"} <= ran
    for path, tree in trees.items():
        parts = {
            node.targets[0].id
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and getattr(node.value.func, "id", "") == "part"
        }
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name in ran:
                used = {node.id for node in ast.walk(function) if isinstance(node, ast.Name)}
                assert not used & parts, (path.name, function.name)
