"""`profile="measured"`: the ops that are measured, the number of calls, and the stored results."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from regal_jax import from_jax
from regal_jax.errors import ConfigError
from regal_jax.importers import MeasuredProfile
from regal_jax.importers import measured as module
from regal_jax.importers.roofline import PROFILES

X = jax.ShapeDtypeStruct((16, 16), jnp.float32)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("REGAL_JAX_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def measured(monkeypatch):
    """The primitives that were measured; each takes as many seconds as its name has letters."""
    seen = []

    def seconds(self, equation):
        seen.append(equation.primitive)
        return float(len(equation.primitive))

    monkeypatch.setattr(MeasuredProfile, "_measured", seconds)
    return seen


def runtimes(graph):
    return {name: float(graph.runtime[i].max()) for i, name in enumerate(graph.op_names)}


def test_equal_ops_are_measured_once_and_in_no_later_process(measured, folder):
    def fn(x):
        return jnp.tanh(jnp.tanh(x) @ x) + jnp.tanh(x[:8].sum())

    times = runtimes(from_jax(fn, X, profile="measured"))
    # One `tanh` of a matrix and one of a scalar.
    assert sorted(measured) == ["add", "dot_general", "reduce_sum", "slice", "tanh", "tanh"]
    assert times["dot_general"] == len("dot_general")
    assert times["tanh"] == times["tanh_1"] == 4.0
    assert times["x"] == times["start"] == 0.0
    again = runtimes(from_jax(fn, X, profile=MeasuredProfile()))
    assert again == times
    assert len(measured) == 6
    (file,) = folder.rglob("measured-*.jsonl")
    assert len(file.read_text().splitlines()) == 6
    # A torn last line, as a kill leaves it, and a damaged file.
    file.write_text(file.read_text() + '{"op": "a')
    from_jax(fn, X, profile="measured")
    assert len(measured) == 6
    file.write_text("no json\n")
    from_jax(fn, X, profile="measured")
    from_jax(fn, X, profile="measured")
    assert len(measured) == 12


def test_a_disk_that_takes_no_measurements_is_no_error(measured, folder):
    """Here a folder has the name of the file; a full disk fails in the same place."""
    (folder / module._stored(jax.devices()[0]).path).mkdir()
    times = runtimes(from_jax(lambda x: jnp.sin(x) + jnp.cos(x), X, profile="measured"))
    assert (times["sin"], times["cos"], len(measured)) == (3.0, 3.0, 3)


def test_operands_and_scalars_tell_ops_apart(measured):
    from_jax(lambda x: (x * x, x * 2, x * 3, x * (x + 1)), X, profile="measured")
    assert sorted(measured) == ["add", "mul", "mul", "mul", "mul"]


def test_bodies_are_measured_op_by_op(measured):
    def fn(x):
        x, _ = jax.lax.scan(lambda a, _: (jnp.sin(a), None), x, None, length=7)
        return jax.lax.cond(x[0, 0] > 0, jnp.cos, lambda a: jnp.exp(jnp.exp(a)), x)

    times = runtimes(from_jax(fn, X, profile="measured"))
    assert times["scan"] == 7 * 3
    assert times["cond"] == 2 * 3


def test_views_take_no_time(measured):
    assert runtimes(from_jax(lambda x: x.reshape(-1), X, profile="measured"))["reshape"] == 0.0
    assert measured == []


def test_the_time_of_a_program_that_does_nothing_is_subtracted(monkeypatch):
    """A clock that advances by one second at each reading, and by nine for a program of a matrix."""
    ticks = itertools.count()
    profile = MeasuredProfile(clock=lambda: float(next(ticks)))
    taken = iter([9.0, 2.0, 1.0])
    monkeypatch.setattr(MeasuredProfile, "_seconds", lambda *_: next(taken))
    times = runtimes(from_jax(lambda x: jnp.tanh(x @ x), X, profile=profile))
    assert times["dot_general"] == 9.0 - 2.0
    assert times["tanh"] == 0.0  # Runtimes are not negative.


def test_seconds_are_a_median_of_batches():
    now = [0.0]
    calls = []
    # The warm-up, one call to see how long it takes, and five batches of two calls.
    durations = iter([9.0, 1e-3, 1e-3, 1e-3, 5e-3, 5e-3, 2e-3, 2e-3, 3e-3, 3e-3, 1e-3, 1e-3])

    class Program:
        def __call__(self, *arrays):
            calls.append(arrays)
            now[0] += next(durations)
            return arrays

    class Lowered:
        def lower(self, *_):
            return self

        def compile(self):
            return Program()

    profile = MeasuredProfile(clock=lambda: now[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.jax, "jit", lambda _: Lowered())
        assert profile._seconds(lambda x: x, [np.zeros(1)]) == pytest.approx(2e-3)
    assert len(calls) == 12


def test_every_kind_of_operand_can_be_measured():
    def fn(x, i, flag, key):
        y = jnp.where(flag, x[i], 0.0) + jax.random.normal(key, (16,))
        return jnp.sort(y), jnp.take(x, jnp.argmax(y), axis=0), (x > 0.5) & True

    args = (X, jax.ShapeDtypeStruct((), jnp.int32), jax.ShapeDtypeStruct((), jnp.bool_), jax.random.key(0))
    graph = from_jax(fn, *args, profile="measured")
    assert np.isfinite(graph.runtime).all()
    assert (graph.runtime >= 0).all()


def test_a_matrix_product_takes_longer_than_one_of_a_sixteenth_of_its_work():
    def fn(x):
        return x @ x, x[:256, :256] @ x[:256, :256]

    big = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    times = runtimes(from_jax(fn, big, profile="measured"))
    assert times["dot_general"] > times["dot_general_1"] > 0


def test_ops_that_cannot_run_alone_have_a_roofline_and_are_named():
    def fn(x):
        return jax.pure_callback(lambda a: 1 / 0, X, jnp.sin(x)) + x

    with pytest.warns(UserWarning, match="have runtimes of the roofline of 'cpu': pure_callback$"):
        times = runtimes(from_jax(fn, X, profile="measured"))
    roofline = runtimes(from_jax(fn, X, profile="cpu"))
    assert times["pure_callback"] == roofline["pure_callback"]


def test_one_runtime_for_each_device():
    graph = from_jax(jnp.sin, X, profile=["measured", "h200"])
    assert graph.runtime.shape[1] == 2
    assert graph.runtime[-1, 1] == from_jax(jnp.sin, X, profile="h200").runtime[-1].max()


def test_names_of_profiles_are_as_before():
    with pytest.raises(ConfigError, match="MeasuredProfile: device: 3 is no device"):
        MeasuredProfile(3)
    with pytest.raises(
        ConfigError, match=r"unknown device 'clock'; use one of h200, .*, cpu, measured, or a"
    ):
        from_jax(jnp.sin, X, profile="clock")
    assert "measured" not in PROFILES


def test_without_a_cache_nothing_is_stored(monkeypatch, measured, folder):
    monkeypatch.setenv("REGAL_JAX_CACHE", "off")
    from_jax(jnp.sin, X, profile="measured")
    from_jax(jnp.sin, X, profile="MEASURED")
    assert measured == ["sin", "sin"]
    assert not list(folder.rglob("*.jsonl"))
