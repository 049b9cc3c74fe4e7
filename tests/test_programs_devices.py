"""Several devices: empty arguments are left out, splitting compiles nothing, and nothing else changes."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regal_jax.programs import on_mesh, put_spread

AXIS, SAME = "devices", PartitionSpec()
SPREAD = PartitionSpec(AXIS)


def function(tree, empty, factor):
    """Sums over the devices and parts of the arguments; it uses the empty array, too."""
    total = jax.lax.psum(tree["x"].sum() + empty.sum(), AXIS)
    return total * factor, jnp.concatenate([tree["x"], empty]), tree["none"]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_results_are_those_of_shard_map(count):
    mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))
    tree = {"x": jnp.arange(8, dtype=jnp.float32), "none": jnp.zeros((4, 0), jnp.int32)}
    arguments = (tree, jnp.zeros((0,), jnp.float32), jnp.float32(3))
    specs, out = (SPREAD, SPREAD, SAME), (SAME, SPREAD, SPREAD)
    total, x, none = jax.jit(on_mesh(function, mesh, specs, out))(*arguments)
    np.testing.assert_array_equal(total, 84)
    np.testing.assert_array_equal(x, np.arange(8))
    assert (none.shape, none.dtype) == ((4, 0), jnp.int32)


def test_only_arrays_with_elements_enter():
    mesh = Mesh(np.array(jax.devices()[:2]), (AXIS,))
    call = on_mesh(function, mesh, (SPREAD, SPREAD, SAME), (SAME, SPREAD, SPREAD))
    tree = {"x": jnp.zeros(4), "none": jnp.zeros((2, 0), jnp.int32)}
    (equation,) = [
        e for e in jax.make_jaxpr(call)(tree, jnp.zeros(0), jnp.float32(1)).eqns
        if e.primitive.name == "shard_map"
    ]  # fmt: skip
    assert [v.aval.shape for v in equation.invars] == [(4,), ()]


def test_all_arguments_may_be_empty():
    mesh = Mesh(np.array(jax.devices()[:2]), (AXIS,))
    call = jax.jit(on_mesh(lambda x: x + 1, mesh, SPREAD, SPREAD))
    assert call(jnp.zeros((6, 0))).shape == (6, 0)


@pytest.mark.parametrize("count", [1, 4])
def test_arrays_and_keys_are_split_as_by_jax_and_without_a_program(count, monkeypatch):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:count]), (AXIS,)), SPREAD)
    tree = {
        "keys": jax.random.split(jax.random.key(0), 8),
        "x": jax.device_put(np.arange(24.0, dtype=np.float32).reshape(8, 3)),
        "none": jax.device_put(np.zeros((8, 0), np.int32)),
        "host": np.arange(8),
    }
    expected = jax.device_put(tree, sharding)
    compiled = []
    monkeypatch.setattr(jax._src.compiler, "compile_or_get_cached", lambda *_, **__: compiled.append(0))
    found = put_spread(tree, sharding)
    again = put_spread(found, sharding)
    assert not compiled
    for name, array in expected.items():
        for other in (found[name], again[name]):
            assert (other.dtype, other.sharding) == (array.dtype, array.sharding)
            shards = zip(other.addressable_shards, array.addressable_shards, strict=True)
            for mine, theirs in shards:
                assert mine.device == theirs.device
                np.testing.assert_array_equal(*map(words_of, (mine.data, theirs.data)))


def words_of(array):
    return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array


def test_the_process_survives_an_empty_argument():
    """With JAX 0.11.2, the program of `jax.shard_map` itself ends the process."""
    code = """
import jax, numpy as np, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 2)
from jax.sharding import Mesh, PartitionSpec as P
from regal_jax.programs import on_mesh
mesh = Mesh(np.array(jax.devices()), ("i",))
def f(x, empty):
    return jnp.concatenate([x, empty]) * 2
print(jax.jit(on_mesh(f, mesh, (P("i"), P("i")), P("i")))(jnp.arange(4.0), jnp.zeros(0)).tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[0.0, 2.0, 4.0, 6.0]"), done.stderr
