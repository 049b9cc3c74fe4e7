"""Flop counts against XLA's own, rooflines by hand, profiles and their refusals."""

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from regal_jax.errors import ConfigError
from regal_jax.importers.flat_jaxpr import flatten
from regal_jax.importers.op_cost import op_seconds, op_work
from regal_jax.importers.roofline import PROFILES, DeviceProfile, find_profile


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def works(fn, *args):
    """The work of every op of ``fn``, by primitive (the last of each name)."""
    return {e.primitive: op_work(e) for e in flatten(jax.make_jaxpr(fn)(*args)).equations}


def work(fn, *args):
    (only,) = works(fn, *args).values()
    return only


def xla_flops(fn, *args):
    return jax.jit(fn).lower(*args).cost_analysis().get("flops", 0.0)


# Exact counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dimensions", "lhs", "rhs", "by_hand"),
    [
        ((((1,), (0,)), ((), ())), (3, 4), (4, 5), 2 * 3 * 4 * 5),
        ((((2,), (1,)), ((0,), (0,))), (7, 3, 4), (7, 4, 5), 2 * 7 * 3 * 4 * 5),
        ((((0, 1), (1, 0)), ((), ())), (3, 4, 2), (4, 3, 6), 2 * 2 * 6 * 12),
        ((((), ()), ((), ())), (3,), (4,), 2 * 12),
        ((((0,), (0,)), ((), ())), (9,), (9,), 2 * 9),
        ((((1,), (0,)), ((), ())), (3, 0), (0, 5), 0),
    ],
)
def test_dot_general_counts_as_xla_does(dimensions, lhs, rhs, by_hand):
    def fn(a, b):
        return jax.lax.dot_general(a, b, dimensions)

    found = work(fn, f32(*lhs), f32(*rhs))
    assert found.flops == by_hand
    assert found.matrix
    if by_hand and len(dimensions[0][0]):  # XLA counts an outer product as a plain product.
        assert found.flops == xla_flops(fn, f32(*lhs), f32(*rhs))
    out = jax.eval_shape(fn, f32(*lhs), f32(*rhs))
    assert found.bytes == 4 * (math.prod(lhs) + math.prod(rhs) + out.size)


@hypothesis.settings(max_examples=40)
@hypothesis.given(
    size=st.tuples(st.integers(5, 9), st.integers(5, 9)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    lhs_dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    rhs_dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    groups=st.sampled_from([(1, 1), (2, 1), (4, 1), (1, 2), (1, 3)]),
)
def test_convolutions_count_as_xla_does(size, kernel, strides, pad, lhs_dilation, rhs_dilation, groups):
    feature_groups, batch_groups = groups

    def fn(x, w):
        return jax.lax.conv_general_dilated(
            x, w, strides, [pad, pad[::-1]], lhs_dilation, rhs_dilation,
            ("NHWC", "HWIO", "NHWC"), feature_groups, batch_groups,
        )  # fmt: skip

    x, w = f32(6, *size, 4), f32(*kernel, 4 // feature_groups, 12)
    assert work(fn, x, w).flops == xla_flops(fn, x, w)


def test_a_convolution_by_hand():
    def fn(x, w):
        return jax.lax.conv(x, w, (1, 1), "SAME")

    # 5 x 5 positions of a 3 x 3 kernel, of which the border falls outside: 13 of 15 in each dimension.
    found = work(fn, f32(2, 3, 5, 5), f32(7, 3, 3, 3))
    assert found.flops == 2 * 13 * 13 * 2 * 3 * 7
    assert found.matrix


def test_gradients_of_a_convolution_count_as_much_as_xla_says():
    def loss(x, w):
        return jnp.sum(jax.lax.conv(x, w, (2, 2), "SAME"))

    args = f32(2, 3, 9, 9), f32(4, 3, 3, 3)
    program = flatten(jax.make_jaxpr(jax.grad(loss, argnums=(0, 1)))(*args))
    flops = sum(op_work(e).flops for e in program.equations if e.primitive == "conv_general_dilated")
    assert flops > 0
    assert flops == pytest.approx(xla_flops(jax.grad(loss, argnums=(0, 1)), *args), rel=0.01)


@pytest.mark.parametrize(
    ("fn", "shape", "flops"),
    [
        (lambda x: x + x, (4, 5), 20),
        (jnp.exp, (4, 5), 200),
        (lambda x: jax.lax.reduce_sum_p.bind(x, axes=(0,), out_sharding=None), (4, 5), 20),
        (lambda x: jax.lax.cumsum(x, 1), (4, 5), 20),
        (lambda x: jax.lax.sort(x, dimension=0), (8, 5), 40 * 3),
        (lambda x: jax.lax.top_k(x, 2), (5, 8), 40 * 3),
        (lambda x: jax.lax.fft(x.astype(jnp.complex64), "FFT", (8,)), (5, 8), 5 * 40 * 3),
        (lambda x: jax.lax.reduce_window(x, 0.0, jax.lax.add, (2, 3), (1, 1), "SAME"), (4, 6), 24 * 6),
        (lambda x: jax.lax.transpose(x, (1, 0)), (4, 5), 0),
        (lambda x: jax.random.bits(jax.random.wrap_key_data(jnp.zeros(2, jnp.uint32)), (7,)), (1,), 350),
    ],
)
def test_other_counts(fn, shape, flops):
    assert list(works(fn, f32(*shape)).values())[-1].flops == pytest.approx(flops)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.reshape(x, (20,)),
        lambda x: jax.lax.squeeze(x[None], (0,)),
        lambda x: jax.lax.bitcast_convert_type(x, jnp.int32),
    ],
)
def test_views_take_no_time(fn):
    equation = flatten(jax.make_jaxpr(fn)(f32(4, 5))).equations[-1]
    assert op_seconds(equation, DeviceProfile("slow", 1.0, 1.0, 1.0, 1.0), 1) == 0


def test_factorisations_count_their_leading_term():
    found = works(lambda x: jax.lax.linalg.cholesky(x, symmetrize_input=False), f32(2, 6, 6))
    assert found["cholesky"].flops == pytest.approx(2 * 6**3 / 3)
    found = works(lambda a, b: jax.lax.linalg.triangular_solve(a, b, left_side=True), f32(6, 6), f32(6, 4))
    assert found["triangular_solve"].flops == 6 * 6 * 4


def test_a_scalar_combiner_is_not_a_launch_of_its_own():
    def fn(x):
        return jax.lax.reduce(x, jnp.float32(0), lambda a, b: a + b * 2.0, (0,))

    (equation,) = flatten(jax.make_jaxpr(fn)(f32(4, 5))).equations
    assert op_seconds(equation, DeviceProfile("slow", 1.0, 1.0, 1e30, 100.0), 1) == 100 + 20


def test_a_kernel_does_its_body_at_each_step_of_its_grid_and_moves_its_operands_once():
    def product(x, y, o_ref):
        o_ref[...] = x[...] @ y[...]

    def blocks(rows, columns):
        return pl.pallas_call(
            product,
            out_shape=f32(64, 48),
            grid=(rows, columns),
            in_specs=[
                pl.BlockSpec((64 // rows, 32), lambda i, j: (i, 0)),
                pl.BlockSpec((32, 48 // columns), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((64 // rows, 48 // columns), lambda i, j: (i, j)),
        )

    flops, moved = 2 * 64 * 32 * 48, 4 * (64 * 32 + 32 * 48 + 64 * 48)
    for bandwidth, seconds in ((1e9, flops / 2 + 7), (1e-3, moved / 1e-3 + 7)):
        profile = DeviceProfile("toy", 2.0, 1e30, bandwidth, 7.0)
        for grid in ((1, 1), (4, 2), (8, 6)):
            (equation,) = flatten(jax.make_jaxpr(blocks(*grid))(f32(64, 32), f32(32, 48))).equations
            assert op_seconds(equation, profile, 1) == pytest.approx(seconds)

    def double(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2

    def repeated(x, steps):
        spec = pl.BlockSpec((8,), lambda i: (0,))
        return pl.pallas_call(double, out_shape=f32(8), grid=(steps,), in_specs=[spec], out_specs=spec)(x)

    # The size of a grid that is computed is that of a loop that is not in the trace.
    (equation,) = flatten(jax.make_jaxpr(repeated)(f32(8), jnp.int32(3))).equations
    assert op_seconds(equation, DeviceProfile("toy", 1.0, 1.0, 1e9, 7.0), 5) == 5 * 8 + 7


def test_gather_reads_what_it_returns_and_scatter_copies():
    def take(x, i):
        return jnp.take(x, i, axis=0, mode="clip")

    index = jax.ShapeDtypeStruct((3,), jnp.int32)
    assert works(take, f32(1000, 10), index)["gather"].bytes == 2 * 3 * 40 + 3 * 4
    found = works(lambda x, i, y: x.at[i].add(y), f32(1000, 10), index, f32(3, 10))
    (name,) = (n for n in found if n.startswith("scatter"))
    assert found[name].bytes >= 2 * 1000 * 40
    assert found[name].flops == 30


def test_complex_products_are_four_real_ones():
    complex64 = jax.ShapeDtypeStruct((4, 4), jnp.complex64)
    assert work(jnp.matmul, complex64, complex64).flops == 4 * 128


# The roofline -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flops", "traffic", "dtype", "matrix", "seconds"),
    [
        (100, 10, "float32", False, 100 / 5 + 3),
        (100, 10, "float32", True, 100 / 20 + 3),
        (100, 10, "bfloat16", True, 100 / 50 + 3),
        (100, 10, "float64", True, 100 / 5 + 3),
        (100, 1000, "bfloat16", True, 1000 / 8 + 3),
        (100, 10, "complex64", True, 100 / 20 + 3),
        (0, 0, "bool", False, 3),
    ],
)
def test_the_roofline_by_hand(flops, traffic, dtype, matrix, seconds):
    profile = DeviceProfile("toy", {"float32": 20, "bfloat16": 50}, {"float32": 5}, 8, 3)
    assert profile.seconds(flops, traffic, dtype, matrix=matrix) == pytest.approx(seconds)


def test_a_large_product_on_an_h200_is_bound_by_its_flops():
    a = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    (equation,) = flatten(jax.make_jaxpr(jnp.matmul)(a, a)).equations
    assert op_seconds(equation, PROFILES["h200"], 1) == pytest.approx(2 * 8192**3 / 989.4e12 + 2e-6)


def test_units_are_read():
    profile = DeviceProfile("mine", 1e12, 1e11, "50GB/s", "5us")
    assert (profile.bandwidth, profile.launch_overhead) == pytest.approx((50e9, 5e-6))
    assert find_profile(profile) is profile


@pytest.mark.parametrize("name", ["h200", "h100", "a100", "tpu-v5e", "cpu"])
def test_named_profiles_are_sane(name):
    profile = find_profile(name)
    assert profile.name == name
    assert profile.rate("float32", matrix=False) <= profile.rate("float32", matrix=True)
    assert profile.rate("float32", matrix=True) <= profile.rate("bfloat16", matrix=True)
    assert 1e11 < float(profile.bandwidth) < 1e13
    assert 0 < float(profile.launch_overhead) < 1e-4


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"matrix_flops": 0}, "matrix_flops for float32 is 0"),
        ({"matrix_flops": {"bfloat16": math.nan}}, "matrix_flops for bfloat16 is nan"),
        ({"vector_flops": -1.0}, "vector_flops for float32 is -1.0"),
        ({"vector_flops": {"float64": 1.0}}, "names no 'float32'"),
        ({"bandwidth": 0}, "bandwidth: must be more than zero"),
        ({"bandwidth": "fast"}, "bandwidth: cannot read 'fast'"),
        ({"launch_overhead": math.inf}, "launch_overhead: must be finite"),
        ({"launch_overhead": -1}, "launch_overhead: must be zero or more"),
    ],
)
def test_impossible_profiles_are_refused(fields, message):
    good = {"name": "bad", "matrix_flops": 1.0, "vector_flops": 1.0, "bandwidth": 1.0}
    with pytest.raises(ConfigError, match=message):
        DeviceProfile(**{**good, **fields})


def test_an_unknown_profile_lists_the_known_ones():
    with pytest.raises(ConfigError, match="'tpu-v9'; use one of h200, h100, a100, tpu-v5e, cpu"):
        find_profile("tpu-v9")
