"""The public interface of the package: cost of the import, and exported names."""

import subprocess
import sys

import pytest

import regal_jax


def _in_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_every_public_name_is_there():
    for name in regal_jax.__all__:
        assert getattr(regal_jax, name) is not None
    assert set(regal_jax.__all__) <= set(dir(regal_jax))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = regal_jax.nonsense


# Modules that `import jax` loads do not count. Neither does pymetis, which every warm start uses.
_LOADED = """
import sys
{first}
before = set(sys.modules)
{then}
packages = {{name.partition(".")[0] for name in sys.modules.keys() - before}} - sys.stdlib_module_names
# Light, and who loads it first depends on versions.
print(*sorted(packages - {{"typing_extensions"}}))
"""


@pytest.mark.parametrize(
    ("first", "then", "loaded"),
    [
        ("", "import regal_jax", "regal_jax"),
        ("import jax", "from regal_jax import optimize, optimize_many, BrkgaConfig", "pymetis regal_jax"),
        (
            "import jax.extend",
            "from regal_jax import from_jax, from_onnx, load_graph, save_graph",
            "regal_jax",
        ),
        ("import numpy", "from regal_jax import Cluster, GraphBuilder, Plan, load_graph", "regal_jax"),
        ("", "import regal_jax.cli", "regal_jax"),
        ("import jax", "from regal_jax.policies import is_shipped; is_shipped('makespan', 2)", "regal_jax"),
    ],
)
def test_imports_load_nothing_that_they_do_not_need(first, then, loaded):
    assert _in_fresh_process(_LOADED.format(first=first, then=then)) == loaded


def test_import_alone_loads_no_room():
    code = "import sys, regal_jax; print([m for m in sys.modules if m.startswith('regal_jax.')])"
    assert _in_fresh_process(code) == "['regal_jax.runtime', 'regal_jax.runtime.lazy']"


def test_a_search_without_a_bar_loads_no_bar_and_no_extra():
    heavy = ["chex", "flax", "google.protobuf", "keras", "matplotlib", "onnx", "optax", "ortools", "scipy"]
    heavy += ["torch", "tqdm"]
    code = (
        "import sys\n"
        "from regal_jax import Cluster, load_graph, optimize, from_jax\n"
        "from regal_jax.datasets import generate\n"
        "optimize(generate('chain', 2, 0), Cluster.uniform(1), method='bfs')\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    assert _in_fresh_process(code) == "[]"


def test_import_starts_no_backend():
    code = (
        "from regal_jax import optimize, load_graph, Cluster, Plan, from_jax\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge._backends)"
    )
    assert _in_fresh_process(code) == "{}"


@pytest.mark.parametrize("room", ["errors", "graph", "plan", "heuristics", "importers", "viz", "cli"])
def test_host_rooms_do_not_load_jax(room):
    assert _in_fresh_process(f"import sys, regal_jax.{room}; print('jax' in sys.modules)") == "False"
