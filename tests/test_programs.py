"""Compiled programs: bounded memory, the cache on disk, and `ResourceError`."""

import ctypes
import json
import os
import pathlib
import stat
import subprocess
import sys

import jax
import numpy as np
import pytest

from regal_jax import Cluster, optimize, save_graph
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, ResourceError
from regal_jax.programs import clear, count, kept, mapped_regions, program, region_limit, stored, use_cache

MAPPED = mapped_regions() and region_limit()
linux = pytest.mark.skipif(not MAPPED, reason="the system does not tell of mapped regions")
TWO = Cluster.uniform(2)


def child(code, *arguments, drop=(), **environment):
    """The lines that a new process prints."""
    inherited = {name: value for name, value in os.environ.items() if name not in drop}
    done = subprocess.run(
        [sys.executable, *(["-c", code] if isinstance(code, str) else [str(code)]), *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture
def few(monkeypatch):
    clear()
    monkeypatch.setattr(kept, "_most", lambda: 3)
    yield
    clear()


def test_a_program_is_kept_until_others_were_used_since(few):
    traces = []

    @program(static=(1,))
    def scaled(x, factor):
        traces.append((x.shape, factor))
        return x * factor

    def call(size, factor):
        assert scaled(np.ones(size, np.float32), factor).tolist() == [factor] * size

    for size, factor in ((1, 2.0), (2, 2.0), (1, 3.0), (1, 2.0)):
        call(size, factor)
    assert len(traces) == count() == 3
    call(3, 2.0)  # This program replaces the least recently used one.
    assert count() == 3
    call(1, 2.0)
    call(1, 3.0)
    assert len(traces) == 4
    call(2, 2.0)
    assert len(traces) == 5


def test_arguments_go_where_they_belong(few):
    @program(static=(0, 3), donate=(2,))
    def joined(name, x, state, more, y):
        return {name: x + state["a"] * y, "more": more is None}

    for y in (2.0, 3.0):
        out = joined("z", np.float32(1), {"a": jax.numpy.full(2, 5.0)}, None, np.float32(y))
        np.testing.assert_array_equal(out["z"], [1 + 5 * y] * 2)
    assert count() == 1


def test_what_is_given_up_gives_its_regions_back():
    """In a separate process: of 20 programs of a search one is kept."""
    code = (
        "import numpy as np\n"
        "from regal_jax.programs import clear, mapped_regions, program\n"
        "import jax, jax.numpy as jnp\n"
        "@program()\n"
        "def work(x):\n"
        "    return jnp.sort(x) + jnp.cumsum(jnp.sin(x)), jax.lax.top_k(x, 2)\n"
        "for n in range(10, 34):\n"
        "    work(np.ones(n, np.float32))\n"
        "    if n % 8 == 1:\n"
        "        print(mapped_regions())\n"
    )
    first, second, third = map(int, child(code, REGAL_JAX_PROGRAMS="1", JAX_ENABLE_COMPILATION_CACHE="0"))
    assert second - first <= 8
    assert third - second <= 8


@pytest.mark.slow
@linux
def test_a_process_of_many_shapes_stops_growing():
    """12 shapes with different sizes, devices, objectives and methods."""
    code = (
        "from regal_jax import Cluster, optimize\n"
        "from regal_jax.datasets import generate\n"
        "import itertools, pathlib\n"
        "shapes = itertools.product((8, 40, 110), (1, 3), ('makespan', 'peak-memory'))\n"
        "for i, (ops, devices, objective) in enumerate(shapes):\n"
        "    optimize(generate('erdos-renyi', ops, i), Cluster.uniform(devices), objective=objective,\n"
        "             method=('brkga', 'annealing')[i % 2], evaluations=20, warm_start=False)\n"
        "    if i % 4 == 3:\n"
        "        print(pathlib.Path('/proc/self/maps').read_bytes().count(b'\\n'))\n"
    )
    first, second, third = map(int, child(code, REGAL_JAX_PROGRAMS="4"))
    assert second - first <= 60
    assert third - second <= 60


def test_padded_devices_change_no_plan():
    """With five devices, of which six are simulated, no op runs on the sixth."""
    graph = generate("layered", 40, 0)
    plan = optimize(graph, Cluster.uniform(5), evaluations=600, warm_start=False)
    plan.verify(graph)
    assert set(plan.placement.tolist()) <= set(range(5))
    assert plan.makespan == pytest.approx(plan.provenance["history"]["best"][-1], rel=1e-5)


def test_memory_is_returned_after_every_thirty_two_programs_that_were_given_up(few, monkeypatch):
    returned = []
    monkeypatch.setattr(kept, "return_memory", lambda: returned.append(kept.given_up()))
    began = kept.given_up()

    @program()
    def same(x):
        return x

    for size in range(1, 80):
        same(np.zeros(size, np.float32))
    given_up = kept.given_up()
    assert len(returned) == given_up // 32 - began // 32 >= 2


@linux
def test_what_was_freed_in_small_pieces_is_returned():
    """In a separate process, because another process may have free memory already."""
    code = """
import ctypes, os, pathlib
from regal_jax.programs.regions import return_memory

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
pieces = []
for _ in range(100_000):
    pieces.append(libc.malloc(1000))
    ctypes.memset(pieces[-1], 1, 1000)
# What is in use at the end keeps the rest from the system.
last = pieces.pop()
for piece in pieces:
    libc.free(piece)
before = resident()
return_memory()
print(before - resident())
"""
    if not hasattr(ctypes.CDLL(None), "malloc_trim"):
        pytest.skip("another C library")
    (returned,) = map(int, child(code))
    assert returned > 50e6


def test_near_the_limit_programs_are_given_up_first(few, monkeypatch):
    regions = iter([900, 100])
    monkeypatch.setattr(kept, "region_limit", lambda: 1000)
    monkeypatch.setattr(kept, "mapped_regions", lambda: 0)
    double = program()(lambda x: 2 * x)
    double(np.ones(1))
    monkeypatch.setattr(kept, "mapped_regions", lambda: next(regions))
    assert double(np.ones(2)).tolist() == [2, 2]
    assert count() == 1


def test_at_the_limit_there_is_one_clear_line(few, monkeypatch):
    monkeypatch.setattr(kept, "region_limit", lambda: 1000)
    monkeypatch.setattr(kept, "mapped_regions", lambda: 960)
    with pytest.raises(ResourceError, match=r"960 mapped regions of 1000 .* raise vm.max_map_count") as error:
        optimize(generate("layered", 30, 0), TWO, method="brkga", evaluations=20, warm_start=False)
    assert "\n" not in str(error.value)


def test_the_command_says_it_in_one_line(few, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(kept, "region_limit", lambda: 1000)
    monkeypatch.setattr(kept, "mapped_regions", lambda: 960)
    save_graph(generate("layered", 30, 0), tmp_path / "graph.json")
    assert main(["optimize", str(tmp_path / "graph.json"), "--method", "brkga", "--quiet"]) == 2
    assert "vm.max_map_count" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_an_impossible_number_of_programs_is_refused(value, monkeypatch):
    monkeypatch.setenv("REGAL_JAX_PROGRAMS", value)
    kept._most.cache_clear()
    try:
        with pytest.raises(ConfigError, match="REGAL_JAX_PROGRAMS"):
            kept._most()
    finally:
        kept._most.cache_clear()


def test_what_xla_flags_say_stands(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    kept.options.cache_clear()
    try:
        assert kept.options()["xla_cpu_parallel_codegen_split_count"] == 1
        kept.options.cache_clear()
        monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=4")
        assert "xla_cpu_parallel_codegen_split_count" not in kept.options()
    finally:
        kept.options.cache_clear()


# On disk ---------------------------------------------------------------------------------------------------

CHOSEN = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "REGAL_JAX_CACHE")
SEARCH = """
import collections, json, sys
import regal_jax, jax
from regal_jax import Cluster, optimize
before = jax.config.jax_compilation_cache_dir
from regal_jax.datasets import generate
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda name, **_: seen.update([name.rpartition("/")[2]]))
options = {"method": "brkga", "evaluations": 300, "warm_start": False}
plan = optimize(generate("erdos-renyi", 30, 0), Cluster.uniform(2), **options)
print(json.dumps({
    "before": before, "after": jax.config.jax_compilation_cache_dir, "plan": plan.makespan,
    "least": jax.config.jax_persistent_cache_min_compile_time_secs, "hits": seen["cache_hits"],
}))
"""


def searched(**environment):
    return json.loads(child(SEARCH, drop=CHOSEN, **environment)[-1])


def test_the_next_process_finds_the_programs_and_the_same_plan(tmp_path):
    first, second = (searched(XDG_CACHE_HOME=str(tmp_path)) for _ in range(2))
    assert first["before"] is None
    folder = pathlib.Path(first["after"])
    assert folder.parent == tmp_path / "regal_jax" / "jax"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert any(file.name.startswith("jit__run_chunk") for file in folder.iterdir())
    assert (first["hits"], second["hits"] >= 2) == (0, True)
    assert first["plan"] == second["plan"]


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"REGAL_JAX_CACHE": "off"}, None),
        ({"JAX_ENABLE_COMPILATION_CACHE": "0"}, None),
        ({"JAX_COMPILATION_CACHE_DIR": "{tmp}/mine"}, "{tmp}/mine"),
        ({"REGAL_JAX_CACHE": "{tmp}/ours"}, "{tmp}/ours/*"),
        ({"XDG_CACHE_HOME": "/dev/null"}, None),
        ({"XDG_CACHE_HOME": "", "HOME": "/nonexistent"}, "any"),
    ],
)
def test_who_chooses_a_folder_or_none_has_it(environment, folder, tmp_path, monkeypatch):
    for name in (*CHOSEN, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.format(tmp=tmp_path))
    names = ("jax_compilation_cache_dir", "jax_enable_compilation_cache")
    names += ("jax_persistent_cache_min_compile_time_secs",)
    before = {name: getattr(jax.config, name) for name in names}
    chosen = environment.get("JAX_COMPILATION_CACHE_DIR")
    use_cache.cache_clear()
    try:
        jax.config.update("jax_compilation_cache_dir", chosen and chosen.format(tmp=tmp_path))
        jax.config.update("jax_enable_compilation_cache", "JAX_ENABLE_COMPILATION_CACHE" not in environment)
        use_cache()
        found = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        use_cache.cache_clear()
    expected = folder and folder.format(tmp=tmp_path)
    if expected == "any":  # Root may write everywhere.
        assert found is None or found.startswith("/nonexistent")
    elif expected and expected.endswith("/*"):
        assert str(pathlib.Path(found).parent) == expected[:-2]
    else:
        assert found == expected


def test_the_folder_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    assert not stored._ours(tmp_path)


def test_the_folder_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "_MOST_BYTES", 1000)
    for i in range(10):
        (tmp_path / f"program{i}").write_bytes(b"x" * 99)
        os.utime(tmp_path / f"program{i}", (i, i))
    stored._prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == 10
    (tmp_path / "program10").write_bytes(b"x" * 99)
    stored._prune(tmp_path)
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {f"program{i}" for i in (6, 7, 8, 9, 10)}


@linux
@pytest.mark.slow
def test_ten_thousand_graphs_in_one_process():
    """10 to 2000 ops, 1 to 16 devices, both objectives, four methods: memory and regions stay bounded."""
    script = pathlib.Path(__file__).with_name("many_shapes.py")
    lines = [json.loads(line) for line in child(script, 10_000, 2000, 500)]
    assert lines[-1]["graphs"] == 10_000
    half = [line for line in lines if line["graphs"] >= 5000]
    # XLA's newer emitters of fusions, the only ones from JAX 0.11 on, need about four times the regions.
    regions = 8000 if jax.__version_info__ < (0, 11) else 16_000
    for what, most, growth in (("regions", regions, 1.1), ("mib", 6000, 1.25)):
        assert max(line[what] for line in lines) < most
        assert max(line[what] for line in half) < growth * max(
            line[what] for line in lines if 2000 <= line["graphs"] < 5000
        )
