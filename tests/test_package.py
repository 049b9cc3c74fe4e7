"""The face of the package: what importing it costs, and what it offers."""

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


def test_import_starts_no_backend_and_loads_no_extra():
    heavy = "{'onnx', 'ortools', 'matplotlib', 'flax', 'optax', 'torch', 'keras'}"
    code = (
        "import sys, regal_jax; from regal_jax import optimize, load_graph, Cluster, Plan, from_jax\n"
        "from jax._src import xla_bridge\n"
        f"print(sorted({heavy} & sys.modules.keys()), xla_bridge._backends)"
    )
    assert _in_fresh_process(code) == "[] {}"


@pytest.mark.parametrize("room", ["errors", "graph", "plan", "heuristics", "importers", "viz", "cli"])
def test_host_rooms_do_not_load_jax(room):
    assert _in_fresh_process(f"import sys, regal_jax.{room}; print('jax' in sys.modules)") == "False"
