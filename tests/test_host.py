"""The compiled host kernel: tests specific to it. test_simulate.py compares it with the replay."""

import json
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
import time
import types
from concurrent.futures import ThreadPoolExecutor

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax.datasets import generate
from regal_jax.encoding import decode, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.problem import Bucket, make_problem
from regal_jax.programs.words import module_word
from regal_jax.runtime import compiling
from regal_jax.runtime.compiling import pipeline
from regal_jax.simulate import generate_kernel, host, host_call, host_kernel, simulate

HEADER = pathlib.Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h"


def draw(problem, population, seed=0):
    rng = np.random.default_rng(seed)
    lead = (problem.num_graphs, population)
    return {
        k: rng.integers(0, 65536, (*lead, *leaf.shape), dtype=np.uint16)
        for k, leaf in gene_shapes(problem).items()
    }


def run(problem, genes, **options):
    return simulate(problem, decode(problem, genes), positions=True, **options)


# The interface of XLA --------------------------------------------------------------------------------


def fields(struct: str) -> list[str]:
    """Names of the fields of a struct of the header, in order; nested structs by their type."""
    body = re.search(rf"(?:typedef )?struct {struct} {{(.*?)\n}}", HEADER.read_text(), re.S)[1]
    body = re.sub(r"//.*", "", body)
    return re.findall(r"(\w+)(?:\)|;)", body)


def test_the_layout_of_the_call_frame_is_that_of_the_header():
    frame = fields("XLA_FFI_CallFrame")
    assert frame == [
        *("struct_size", "extension_start", "api", "ctx", "stage"),
        "args",
        "rets",
        "attrs",
        "future",
    ]
    assert fields("XLA_FFI_Args") == ["struct_size", "extension_start", "size", "types", "args"]
    assert fields("XLA_FFI_Rets") == ["struct_size", "extension_start", "size", "types", "rets"]
    # Five words, then two structs of five words each; the second struct is the list.
    assert (host_call._EXTENSION, host_call._API, host_call._CONTEXT) == (1, 2, 3)
    assert (host_call._ARGS, host_call._RESULTS) == (5 + 4, 5 + 5 + 4)
    buffer = fields("XLA_FFI_Buffer")
    places = (host_call._BUFFER_DATA, host_call._BUFFER_RANK, host_call._BUFFER_DIMS)
    assert tuple(buffer[i] for i in places) == ("data", "rank", "dims")


def test_the_functions_of_the_runtime_stand_where_they_are_called():
    api = fields("XLA_FFI_Api")
    assert api[:4] == ["struct_size", "extension_start", "api_version", "internal_api"]
    # The version is a struct of three words.
    functions = {name: 6 + i for i, name in enumerate(api[4:])}
    assert functions["XLA_FFI_Error_Destroy"] == host_call._API_ERROR_DESTROY
    assert functions["XLA_FFI_ThreadPool_Schedule"] == host_call._API_SCHEDULE
    assert functions["XLA_FFI_ThreadPool_NumThreads"] == host_call._API_NUM_THREADS
    assert fields("XLA_FFI_Api_Version") == [
        "struct_size",
        "extension_start",
        "major_version",
        "minor_version",
    ]
    assert fields("XLA_FFI_ThreadPool_Schedule_Args") == [
        "struct_size",
        "extension_start",
        "ctx",
        "task",
        "data",
    ]
    assert fields("XLA_FFI_ThreadPool_NumThreads_Args") == [
        *("struct_size", "extension_start", "ctx", "num_threads")
    ]
    assert fields("XLA_FFI_Error_Destroy_Args") == ["struct_size", "extension_start", "error"]
    assert fields("XLA_FFI_Metadata")[:2] == ["struct_size", "api_version"]


# Size and company ------------------------------------------------------------------------------------


# By default, test_simulate.py has queues of three levels.
@pytest.mark.slow
@pytest.mark.parametrize("transfer", ["blocking", pytest.param("free", marks=pytest.mark.slow)])
def test_three_hundred_thousand_events(transfer):
    # More ops than three levels of 64 bits hold. No op waits for another, so the order is that of the keys.
    n = 2**18 + 1000
    builder = GraphBuilder()
    for o in range(n):
        builder.add_op(f"o{o}", runtime=1.0)
    graph = builder.build()
    problem = make_problem([graph], Cluster.uniform(2, transfer=transfer), Bucket.exact(graph))
    genes = draw(problem, 2)
    result = jax.jit(lambda p, g: run(p, g, implementation="host", memory=False))(problem, genes)
    for p in range(2):
        expected = np.lexsort((np.arange(n), -genes["priority"][0, p].astype(np.int32)))
        np.testing.assert_array_equal(np.argsort(result.op_position[0, p]), expected)


# Many candidates of one graph and many graphs; `test_under_vmap` has few of both.
@pytest.mark.parametrize(
    ("graphs", "population"),
    [(1, 257), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 1), (3, 64), (40, 3)))],
)
def test_chunks_and_threads_cover_every_candidate_once(graphs, population):
    problem = make_problem(
        [generate("layered", 60 + i, i) for i in range(graphs)], Cluster.uniform(3, 2000, transfer="blocking")
    )
    genes = draw(problem, population)
    together = jax.jit(lambda p, g: run(p, g, implementation="host"))(problem, genes)
    xla = jax.jit(lambda p, g: run(p, g, implementation="xla"))(problem, genes)
    chex.assert_trees_all_equal(together, xla)


def test_no_candidates():
    problem = make_problem([generate("layered", 20, 0)], Cluster.uniform(2, transfer="blocking"))
    result = jax.jit(lambda p, g: run(p, g, implementation="host"))(problem, draw(problem, 0))
    assert result.makespan.shape == (1, 0)
    assert result.peak_memory.shape == (1, 0, 2)


def test_under_vmap():
    problem = make_problem([generate("layered", 40, 0)], Cluster.uniform(2, transfer="blocking"))
    genes = jax.tree.map(lambda *x: jnp.stack(x), *[draw(problem, 4, seed) for seed in range(3)])
    mapped = jax.jit(jax.vmap(lambda g: run(problem, g, implementation="host")))(genes)
    for i in range(3):
        alone = run(problem, jax.tree.map(lambda x, i=i: x[i], genes), implementation="host")
        chex.assert_trees_all_equal(jax.tree.map(lambda x, i=i: x[i], mapped), alone)


@pytest.fixture
def nothing_known():
    """Clears the cached availability of the kernel before and after a test."""
    caches = (compiling.installed, host.available)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def test_it_is_chosen_where_numba_is_installed(monkeypatch, nothing_known):
    problem = make_problem([generate("layered", 40, 0)], Cluster.uniform(2, transfer="blocking"))
    genes = draw(problem, 4)
    assert "custom_call" in jax.jit(run).lower(problem, genes).as_text()
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    compiling.installed.cache_clear()
    host.available.cache_clear()
    assert "custom_call" not in jax.jit(lambda *a: run(*a)).lower(problem, genes).as_text()
    with pytest.raises(ConfigError, match=r"'host' needs Numba; pip install 'regal-jax\[cpu\]'"):
        run(problem, genes, implementation="host")


def test_a_kernel_that_cannot_be_made_is_replaced_with_a_warning(monkeypatch, nothing_known):
    def refuse(*_):
        raise ImportError("Numba needs NumPy 2.4 or less. Got NumPy 3.0.")

    monkeypatch.setattr(host, "_register", refuse)
    problem = make_problem([generate("layered", 40, 0)], Cluster.uniform(2, transfer="blocking"))
    genes = draw(problem, 4)
    with pytest.warns(UserWarning, match="simulating with 'xla', .* needs NumPy 2.4 or less"):
        lowered = jax.jit(lambda *a: run(*a)).lower(problem, genes)
    assert "custom_call" not in lowered.as_text()


def test_no_folder_for_the_cache(monkeypatch):
    compiled = []

    def cfunc(signature, cache=False, **options):
        assert options == pipeline(scalar=True)
        compiled.append(cache)
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: types.SimpleNamespace(address=1)

    monkeypatch.setattr(host_call, "cfunc", cfunc)
    assert host_kernel.handler.__wrapped__(True, False).address == 1
    assert compiled == [True, False]


# Processes of their own ------------------------------------------------------------------------------


def python(code: str, **env) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=env, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


# By default, several devices search in test_api.py and test_solvers.py.
@pytest.mark.slow
def test_calls_from_several_devices_at_once(tmp_path):
    # The calls of all devices share one pool: no call may wait for a task that cannot start.
    out = python(
        """
        import jax
        jax.config.update("jax_num_cpu_devices", 4)
        import numpy as np
        from jax.sharding import Mesh
        from regal_jax.datasets import generate
        from regal_jax.graph import Cluster
        from regal_jax.problem import make_problem
        from regal_jax.search import Stopping
        from regal_jax.solve import solve
        problem = make_problem([generate("layered", 60, i) for i in range(8)], Cluster.uniform(2))
        keys = jax.random.split(jax.random.key(0), 8)
        mesh = Mesh(np.array(jax.devices()), ("graphs",))
        found = [solve(problem, keys, Stopping(1000), mesh=m).fitness.tolist() for m in (None, mesh)]
        print(found[0] == found[1])
        """,
        **environment(tmp_path),
    )
    assert out == "True\n"


def environment(folder: pathlib.Path) -> dict[str, str]:
    root = pathlib.Path(__file__).parents[1]
    flags = os.environ.get("XLA_FLAGS", "")
    return {"PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONPATH": str(root), "XLA_FLAGS": flags}


# By default, test_programs.py has a process that finds the programs of another one.
@pytest.mark.slow
def test_a_new_process_finds_the_compiled_program_in_the_cache(tmp_path):
    # A program holds the name of the custom call and not its address, so other processes can use it.
    code = """
        import json
        import jax
        jax.config.update("jax_compilation_cache_dir", "CACHE")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
        from jax._src import monitoring
        hits = []
        monitoring.register_event_listener(lambda event, **_: hits.append(event))
        import numpy as np
        from regal_jax.datasets import generate
        from regal_jax.encoding import decode, gene_shapes
        from regal_jax.graph import Cluster
        from regal_jax.problem import make_problem
        from regal_jax.simulate import simulate
        problem = make_problem([generate("layered", 30, 0)], [Cluster.uniform(2)])
        rng = np.random.default_rng(0)
        genes = {
            k: rng.integers(0, 65536, (1, 4, *leaf.shape), dtype=np.uint16)
            for k, leaf in gene_shapes(problem).items()
        }
        run = jax.jit(lambda p, g: simulate(p, decode(p, g), implementation="host").makespan)
        makespan = np.asarray(run(problem, genes)).tolist()
        count = lambda ending: sum(event.endswith(ending) for event in hits)
        print(json.dumps([makespan, count("cache_hits"), count("cache_misses")]))
        """.replace("CACHE", str(tmp_path / "cache"))
    first, second = (json.loads(python(code, **environment(tmp_path))) for _ in range(2))
    assert first[0] == second[0]
    assert first[2] > 0
    assert second[1] > 0
    assert second[2] == 0


def test_a_new_process_finds_the_compiled_kernels(tmp_path):
    kernels = (host_kernel, generate_kernel)
    for kernel in kernels:
        kernel.handler(True, False)
    code = """
        from regal_jax.simulate import generate_kernel, host_kernel
        for kernel in (host_kernel, generate_kernel):
            print(kernel.handler(True, False).cache_hits)
        """
    cache = {name: os.environ[name] for name in ("NUMBA_CACHE_DIR",) if name in os.environ}
    assert python(code, **environment(tmp_path), **cache) == "1\n1\n"


def test_traces_do_not_depend_on_what_is_registered(monkeypatch):
    before = module_word(host.__name__)
    monkeypatch.setattr(host._registered, "names", {"another"})
    assert module_word(host.__name__) == before
    monkeypatch.setattr(host, "_registered", {"another"})  # As a set it would be another module.
    assert module_word(host.__name__) != before


def test_threads_register_a_variant_once(monkeypatch):
    calls, both = [], threading.Barrier(2, timeout=60)

    def address(*variant):
        time.sleep(0.05)
        return 1

    monkeypatch.setattr(host._registered, "names", set())
    monkeypatch.setattr(host, "_address", address)
    monkeypatch.setattr(host.jax.ffi, "pycapsule", lambda address: address)
    monkeypatch.setattr(host.jax.ffi, "register_ffi_target", lambda name, *_, **__: calls.append(name))

    def register(_):
        both.wait()
        return host._register.__wrapped__("simulate", True, False)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(register, range(2))) == ["regal_jax_simulate_events"] * 2
    assert calls == ["regal_jax_simulate_events"]
