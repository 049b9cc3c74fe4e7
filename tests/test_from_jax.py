"""`from_jax`: hand-known graphs, exact sizes, residents, control flow, refusals, and Keras models."""

import functools
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from importer_cases import op
from jax.experimental import io_callback

from regal_jax.errors import ConfigError, FormatError, GraphError
from regal_jax.graph import Cluster
from regal_jax.importers.jax_program import from_jax
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.plan import Plan, decode_order, insert_transfers

# A device on which an elementwise op on n float32 numbers takes n seconds.
SLOW = DeviceProfile("slow", 1.0, 1.0, 1e30)


def f32(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def one_device(graph, devices=1):
    """The plan of everything in program order, on the first device where it may run."""
    cluster = Cluster.uniform(devices, transfer="blocking")
    placement = np.array([(a or (0,))[0] for a in graph.allowed_devices])
    order = np.arange(graph.num_ops)
    return Plan.from_events(graph, cluster, placement, insert_transfers(graph, cluster, placement, order))


# Shapes of graphs -------------------------------------------------------------------------------


def test_add_is_two_inputs_a_barrier_and_one_op():
    graph = from_jax(lambda a, b: a + b, f32(2, 3), f32(2, 3))
    assert graph.op_names == ("a", "b", "start", "add")
    assert graph.op_kinds == ("input", "input", "start", "add")
    assert graph.resident.tolist() == [True, True, False, False]
    assert op(graph, "a") == {
        "kind": "input", "inputs": [], "after": [], "sizes": [24], "keep": [True], "temp": 0,
        "runtime": 0.0, "group": None, "devices": (0,),
    }  # fmt: skip
    assert op(graph, "start")["after"] == ["a", "b"]
    assert op(graph, "start")["sizes"] == []
    assert op(graph, "add")["inputs"] == ["a:0", "b:0"]
    assert op(graph, "add")["after"] == ["start"]
    assert op(graph, "add")["keep"] == [True]
    assert graph.time_unit == "s"


def test_matmul_size_and_a_value_read_twice_is_one_edge():
    graph = from_jax(lambda a, b: jnp.multiply(*[a @ b] * 2), f32(2, 3), f32(3, 5), profile=SLOW)
    assert op(graph, "dot_general")["sizes"] == [2 * 5 * 4]
    assert op(graph, "dot_general")["runtime"] == 2 * 2 * 3 * 5
    assert op(graph, "dot_general")["keep"] == [False]
    assert op(graph, "mul")["inputs"] == ["dot_general:0"]


def test_a_split_has_one_output_for_each_part_and_unused_parts_count():
    graph = from_jax(lambda x: jax.lax.split(x, (1, 2, 4))[1], f32(7))
    assert op(graph, "split")["sizes"] == [4, 8, 16]
    assert op(graph, "split")["keep"] == [False, True, False]
    assert one_device(graph).peak_memory.tolist() == [28 + 28]


def test_scalar_literals_are_no_ops():
    assert from_jax(lambda x: x * 2.0 + 1.0, f32(3)).op_names == ("x", "start", "mul", "add")


@pytest.mark.parametrize(
    ("fn", "kinds"),
    [
        (jax.jit(lambda x: jax.jit(lambda y: jnp.sin(y))(x) + 1.0), ["sin", "add"]),
        (jax.nn.relu, ["max"]),
        (jax.checkpoint(lambda x: jnp.sin(jnp.cos(x))), ["cos", "sin"]),
        (jax.vmap(lambda x: x * 2.0), ["mul"]),
        (jax.grad(lambda x: jnp.sum(x * x)), ["broadcast_in_dim", "mul", "mul", "add_any"]),
    ],
)
def test_calls_are_inlined(fn, kinds):
    graph = from_jax(fn, f32(3))
    assert list(graph.op_kinds[2:]) == kinds


def test_softplus_is_inlined_wherever_it_is_called_from():
    graph = from_jax(lambda x: jax.nn.softplus(x) * 2.0, f32(3))
    assert not {"jit", "custom_jvp_call"} & set(graph.op_kinds)
    assert graph.op_kinds[-1] == "mul"
    assert "exp" in graph.op_kinds


def test_custom_vjp_is_inlined_forward_and_backward():
    @jax.custom_vjp
    def double(x):
        return x * 2.0

    double.defvjp(lambda x: (x * 2.0, None), lambda _, g: (jnp.negative(g),))
    assert from_jax(double, f32(3)).op_kinds[2:] == ("mul",)
    # The forward value is dead in the gradient of a sum.
    assert from_jax(jax.grad(lambda x: jnp.sum(double(x))), f32(3)).op_kinds[2:] == (
        "broadcast_in_dim",
        "neg",
    )


def test_remat_computes_again():
    block = jax.checkpoint(lambda x: jnp.sum(jnp.sin(jnp.sin(x))))
    graph = from_jax(jax.grad(block), f32(3))
    # The forward pass is dead code, apart from the sine that the backward pass recomputes.
    assert graph.op_kinds.count("sin") == 1
    assert graph.op_kinds.count("cos") == 2


def test_dead_code_is_dropped_also_inside_calls():
    @jax.jit
    def pair(x):
        return jnp.sin(x), jnp.cos(x)

    assert from_jax(lambda x: pair(x)[0], f32(3)).op_kinds[2:] == ("sin",)


def test_the_same_jitted_function_twice_gives_distinct_ops():
    @jax.jit
    def layer(x):
        return jnp.sin(x)

    graph = from_jax(lambda x: layer(layer(x)), f32(3))
    assert graph.op_names[2:] == ("layer/sin", "layer/sin_1")
    assert op(graph, "layer/sin_1")["inputs"] == ["layer/sin:0"]


def test_names_tell_the_scope_and_the_backward_pass():
    def loss(x):
        with jax.named_scope("encoder"), jax.named_scope("layer0"):
            return jnp.sum(jnp.sin(x))

    graph = from_jax(jax.value_and_grad(loss), f32(3))
    assert graph.op_names[2:] == (
        "encoder/layer0/sin",
        "encoder/layer0/cos",
        "encoder/layer0/reduce_sum",
        "backward/encoder/layer0/broadcast_in_dim",
        "backward/encoder/layer0/mul",
    )


def test_an_op_called_like_an_argument_gets_another_name():
    graph = from_jax(lambda sin, start: jnp.sin(sin) + start, f32(3), f32(3))
    assert graph.op_names == ("sin", "start", "start_1", "sin_1", "add")


def test_tracing_twice_gives_the_same_graph():
    def build():
        return from_jax(lambda x: jnp.linalg.norm(jax.nn.softmax(x)), f32(3))

    assert build().content_hash == build().content_hash


def test_graph_name_is_the_function_or_what_the_user_says():
    def model(x, scale):
        return x * scale

    partial = functools.partial(model, scale=2.0)
    assert from_jax(partial, f32(3)).name == "model"
    assert from_jax(model, f32(3), f32(3), name="mine").name == "mine"


# Sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (jnp.bool_, 5),
        (jnp.int8, 5),
        (jnp.bfloat16, 10),
        (jnp.float32, 20),
        (jnp.complex64, 40),
        (jnp.int4, 3),
    ],
)
def test_sizes_follow_the_dtype(dtype, size):
    graph = from_jax(lambda x: jnp.concatenate([x, x]), jax.ShapeDtypeStruct((5,), dtype))
    assert graph.tensor_bytes.tolist() == [size, 2 * size if dtype != jnp.int4 else 5]


def test_prng_keys_and_empty_arrays():
    key = jax.eval_shape(lambda: jax.random.key(0))
    graph = from_jax(lambda key, x: (jax.random.split(key, 3), x + 1.0), key, f32(0, 4))
    assert op(graph, "key")["sizes"] == [8]
    assert op(graph, "random_split")["sizes"] == [24]
    assert op(graph, "x")["sizes"] == op(graph, "add")["sizes"] == [0]


def test_a_terabyte_is_traced_and_nothing_runs():
    def fn(x):
        jax.pure_callback(lambda _: pytest.fail("executed"), f32(), x)
        return jnp.sum(x @ x)

    graph = from_jax(fn, f32(2**20, 2**20))
    assert op(graph, "x")["sizes"] == [2**42]
    assert op(graph, "dot_general")["sizes"] == [2**42]


# Control flow -----------------------------------------------------------------------------------


def test_scan_is_one_op_and_costs_its_length():
    def fn(x):
        return jax.lax.scan(lambda c, _: (jnp.sin(c) + 1.0, c), x, None, length=5)

    graph = from_jax(fn, f32(8), profile=DeviceProfile("slow", 1.0, 1.0, 1e30, 100.0))
    assert op(graph, "scan")["sizes"] == [32, 5 * 32]
    assert op(graph, "scan")["runtime"] == 5 * ((10 * 8 + 100) + (8 + 100))
    assert op(graph, "scan")["temp"] == 2 * 32  # The sine and the sum together.


def test_nested_scans_multiply():
    def inner(c, _):
        return jax.lax.scan(lambda d, _: (d + 1.0, None), c, None, length=3)[0], None

    graph = from_jax(lambda x: jax.lax.scan(inner, x, None, length=7)[0], f32(2), profile=SLOW)
    assert op(graph, "scan")["runtime"] == 7 * 3 * 2


@pytest.mark.parametrize(("count", "seconds"), [(None, 1), (10, 10), (0, 0)])
def test_while_costs_the_stated_trip_count(count, seconds):
    def fn(x):
        return jax.lax.while_loop(lambda c: c[0] < 3.0, lambda c: c + 1.0, x)

    options = {} if count is None else {"while_trip_count": count}
    graph = from_jax(fn, f32(8), profile=SLOW, **options)
    # In each iteration the condition compares one number, and the body adds eight.
    assert op(graph, "while")["runtime"] == seconds * (1 + 8)


def test_cond_costs_its_slowest_branch_and_its_results_are_no_scratch():
    def fn(p, x):
        return jax.lax.cond(p, lambda y: jnp.sin(y) + 1.0, lambda y: y, x)

    graph = from_jax(fn, jax.ShapeDtypeStruct((), jnp.bool_), f32(8), profile=SLOW)
    assert op(graph, "cond")["runtime"] == 10 * 8 + 8
    assert op(graph, "cond")["temp"] == 32
    assert op(graph, "cond")["sizes"] == [32]


def test_scratch_of_a_body_is_its_peak_of_live_values():
    def body(c, _):
        first, _ = jax.lax.split(c, (4, 4))
        s = jnp.sin(first)
        return jnp.concatenate([s, s]), None

    graph = from_jax(lambda x: jax.lax.scan(body, x, None, length=3)[0], f32(8))
    # Split 16 + 16; first and sine 16 + 16; sine and result 16 + 32.
    assert op(graph, "scan")["temp"] == 48


def test_a_custom_linear_solve_costs_its_solve():
    graph = from_jax(jnp.linalg.solve, f32(6, 6), f32(6), profile=SLOW)
    # Two triangular solves and a permutation; with the transposed solve it would be twice as much.
    assert 2 * 6 * 6 <= op(graph, "custom_linear_solve")["runtime"] < 100


def test_a_loop_reads_the_constants_of_functions_jitted_inside_it():
    table = jnp.arange(8.0)
    add = jax.jit(lambda c: c + table)
    graph = from_jax(lambda x: jax.lax.scan(lambda c, _: (add(c), None), x, None, length=3)[0], f32(8))
    assert op(graph, "constant_0")["sizes"] == [32]
    assert op(graph, "scan")["inputs"] == ["x:0", "constant_0:0"]


# Residents, inputs, donation, results -----------------------------------------------------------


def test_parameters_stand_with_their_first_reader():
    def fn(params, x):
        return jnp.sin(x * params["b"] * params["a"]) + params["a"] + params["c"]

    params = {"a": f32(3), "b": f32(3), "c": f32(3), "unused": f32(9)}
    graph = from_jax(fn, params, f32(3), resident_argnums=0)
    groups = {name: op(graph, f"params/{name}")["group"] for name in params}
    assert groups == {"a": "mul_1", "b": "mul", "c": "add_1", "unused": None}
    assert [op(graph, name)["group"] for name in ("mul", "mul_1", "add_1", "sin", "add", "x")] == [
        "mul", "mul_1", "add_1", None, None, None,
    ]  # fmt: skip
    assert all(op(graph, f"params/{name}")["devices"] is None for name in params)
    assert {op(graph, f"params/{name}")["kind"] for name in params} == {"parameter"}
    assert op(graph, "x")["kind"] == "input"


def test_two_parameters_with_one_first_reader_share_its_group():
    graph = from_jax(lambda a, b: a * b, f32(3), f32(3), resident_argnums=(0, 1))
    assert [op(graph, name)["group"] for name in ("a", "b", "mul")] == ["mul"] * 3


def test_closed_over_arrays_are_parameters_each_once():
    table = np.ones((4, 4), np.float32)
    inner = jax.jit(lambda x: x @ table)
    graph = from_jax(lambda x: inner(x @ table) + jax.jit(lambda y: y + table)(x), f32(4, 4))
    constants = [name for name in graph.op_names if name.startswith("constant")]
    assert {op(graph, name)["kind"] for name in constants} == {"parameter"}
    assert op(graph, "constant_0")["keep"] == [True]
    assert op(graph, "constant_0")["group"] == "dot_general"


def test_residents_are_in_memory_before_anything_computes():
    def fn(params, x):
        return jnp.sum(jnp.sin(x)) * params

    graph = from_jax(fn, f32(1000), f32(10), resident_argnums=0)
    cluster = Cluster.uniform(1)
    # The parameter has the lowest priority, so only the barrier makes it come first.
    priority = np.ones(graph.num_ops)
    priority[graph.op_index["params"]] = 0
    order = decode_order(
        graph, cluster, np.zeros(graph.num_ops, int), priority, np.zeros((graph.num_tensors, 1))
    )
    names = [graph.op_names[o] for o in order]
    assert names == ["x", "params", "start", "sin", "reduce_sum", "mul"]
    # The sum runs while params (4000), x (40, held by the caller), the sine and itself are there; the
    # product needs 4000 more.
    assert one_device(graph).peak_memory.tolist() == [4000 + 40 + 4 + 4000]


def test_the_barrier_precedes_exactly_the_ops_that_read_only_residents():
    graph = from_jax(lambda a, b: jnp.sin(a) + b + jnp.arange(3.0), f32(3), f32(3), resident_argnums=0)
    after = {name: op(graph, name)["after"] for name in graph.op_names}
    assert after == {
        "a": [], "b": [], "start": ["a", "b"], "sin": ["start"], "add": [], "iota": ["start"], "add_1": [],
    }  # fmt: skip


def test_donated_arguments_are_freed_after_their_last_reader():
    def fn(x, y):
        return jnp.sin(jnp.sin(x)), y

    kept = from_jax(fn, f32(25), f32(1))
    donated = from_jax(fn, f32(25), f32(1), donate_argnums=(0, 1))
    assert one_device(kept).peak_memory.tolist() == [300 + 4]
    assert one_device(donated).peak_memory.tolist() == [200 + 4]
    assert op(donated, "x")["keep"] == [False]
    assert op(donated, "y")["keep"] == [True]  # It is also a result.


def test_inputs_stand_where_the_user_says():
    def fn(a, b, *, c):
        return a + b["x"] + c

    args = (f32(3), {"x": f32(3)})
    graph = from_jax(fn, *args, kwargs={"c": f32(3)}, input_devices={1: 2, "c": 1})
    assert [op(graph, name)["devices"] for name in ("a", "b/x", "c")] == [(0,), (2,), (1,)]
    graph = from_jax(fn, *args, kwargs={"c": f32(3)}, input_devices=3, resident_argnums="c")
    assert [op(graph, name)["devices"] for name in ("a", "b/x", "c")] == [(3,), (3,), None]


def test_an_output_that_is_an_input_and_unused_arguments():
    graph = from_jax(lambda x, y: x, f32(3), f32(5))
    assert graph.op_names == ("x", "y", "start")
    assert graph.tensor_keep.tolist() == [True, True]
    assert one_device(graph).peak_memory.tolist() == [32]


def test_static_and_number_and_none_arguments():
    def fn(x, mode, scale, nothing):
        assert nothing is None
        return jnp.sin(x) * scale if mode == "sin" else x

    graph = from_jax(fn, f32(3), "sin", 2.0, None, static_argnums=-3, donate_argnums=2)
    assert graph.op_names[:3] == ("x", "scale", "start")
    assert op(graph, "scale")["keep"] == [False]
    assert op(graph, "mul")["inputs"][0] == "sin:0"


def test_no_array_arguments_needs_no_barrier():
    graph = from_jax(lambda: jnp.ones(3) * 2.0)
    assert graph.op_kinds == ("broadcast_in_dim", "mul")


def test_an_empty_function_is_refused():
    with pytest.raises(GraphError, match="empty"):
        from_jax(lambda: ())


def test_nothing_to_compute_but_a_constant_literal():
    graph = from_jax(lambda x: 1.0, f32(3))
    assert graph.op_names == ("x", "start")


# Effects ----------------------------------------------------------------------------------------


def test_effects_stay_and_ordered_ones_keep_their_order():
    def fn(x):
        io_callback(print, None, x, ordered=True)
        jax.debug.print("{}", x)
        io_callback(print, None, x, ordered=True)
        return x

    graph = from_jax(fn, f32(3))
    assert graph.op_names[2:] == ("io_callback", "debug_print", "io_callback_1")
    assert op(graph, "io_callback_1")["after"] == ["start", "io_callback"]
    assert op(graph, "debug_print")["after"] == ["start"]


def test_reads_and_writes_of_a_mutable_array_keep_their_order():
    def fn(ref):
        before = ref[...]
        ref[...] = before * 2.0
        return jnp.sum(ref[...])

    graph = from_jax(fn, jax.new_ref(jnp.zeros(3)))
    assert op(graph, "swap")["after"] == ["get"]
    assert op(graph, "get_1")["after"] == ["start", "swap"]


# Runtimes ---------------------------------------------------------------------------------------


def test_several_profiles_give_a_runtime_for_each_device():
    fast = DeviceProfile("fast", 4.0, 2.0, 1e30)
    graph = from_jax(lambda x: jnp.negative(x @ x), f32(4, 4), profile=(SLOW, fast))
    assert graph.runtime.shape == (4, 2)
    assert op(graph, "dot_general")["runtime"] == [128, 32]
    assert op(graph, "neg")["runtime"] == [16, 8]
    assert op(graph, "x")["runtime"] == [0, 0]


# Memory against an independent count ------------------------------------------------------------


def live_peak(fn, args, donated):
    """Peak memory in program order, from the jaxpr: at each step, every value that is alive then."""
    jaxpr = jax.make_jaxpr(fn)(*args).jaxpr
    is_var = lambda v: not isinstance(v, jax.extend.core.Literal)  # noqa: E731
    needed, eqns = set(filter(is_var, jaxpr.outvars)), []
    for eqn in reversed(jaxpr.eqns):
        if needed & set(eqn.outvars):
            eqns.insert(0, eqn)
            needed |= set(filter(is_var, eqn.invars))
    results = set(filter(is_var, jaxpr.outvars))

    def alive(var, step):
        last = max((i for i, e in enumerate(eqns) if var in e.invars), default=-1)
        if var in jaxpr.invars:
            return jaxpr.invars.index(var) not in donated or var in results or step <= last
        made = next(i for i, e in enumerate(eqns) if var in e.outvars)
        return step >= made and (step <= max(last, made) or var in results)

    values = [*jaxpr.invars, *(v for e in eqns for v in e.outvars)]
    sizes = [int(np.prod(v.aval.shape)) * v.aval.dtype.itemsize for v in values]
    steps = range(len(eqns))
    return max(sum(s for v, s in zip(values, sizes, strict=True) if alive(v, i)) for i in steps)


def mlp_gradient(params, x):
    def loss(params):
        for w in params:
            x_next = jnp.tanh(jnp.dot(loss.x, w))
            loss.x = x_next
        return jnp.sum(loss.x)

    loss.x = x
    return jax.grad(loss)(params)


@pytest.mark.parametrize("donate", [(), (0,), (1,), (0, 1)])
def test_peak_memory_of_a_gradient_is_that_of_a_liveness_count(donate):
    args = ([f32(30, 40), f32(40, 20), f32(20, 10)], f32(7, 30))
    graph = from_jax(mlp_gradient, *args, resident_argnums=0, donate_argnums=donate)
    leaves = [i for i in range(4) if (i < 3 and 0 in donate) or (i == 3 and 1 in donate)]
    # A donated source without readers would count only at the start; here all sources have readers.
    assert one_device(graph).peak_memory.tolist() == [live_peak(mlp_gradient, args, leaves)]


@hypothesis.given(st.data())
def test_peak_memory_of_random_programs_is_that_of_a_liveness_count(data):
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    steps = data.draw(
        st.lists(st.tuples(st.sampled_from("sca"), st.integers(0, 99)), min_size=1, max_size=12)
    )

    def fn(*args):
        values = list(args)
        for kind, pick in steps:
            x = values[pick % len(values)]
            if kind == "s":
                values.append(jnp.sin(x))
            elif kind == "c":
                values.append(jax.lax.concatenate([x, values[-1]], 0))
            else:
                values.append(jnp.sum(x)[None])
        return values[-1], values[len(values) // 2]

    donated = data.draw(st.sets(st.integers(0, len(sizes) - 1)))
    args = [f32(n) for n in sizes]
    graph = from_jax(fn, *args, donate_argnums=tuple(donated))
    used = set(graph.edge_tensor.tolist()) | set(np.flatnonzero(graph.tensor_keep).tolist())
    hypothesis.assume(all(i in used for i in donated))
    assert one_device(graph).peak_memory.tolist() == [live_peak(fn, args, donated)]


# Refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fn", "args", "cause"),
    [
        (lambda x: float(x[0]), (f32(3),), jax.errors.ConcretizationTypeError),
        (lambda x, y: x @ y, (f32(3), f32(4)), TypeError),
        (lambda x: x, ("text",), TypeError),
        (lambda x: x, (), TypeError),
        (lambda x: {}["missing"], (f32(3),), KeyError),
        (lambda x: "text", (f32(3),), TypeError),
        (lambda x: x, (2**40,), OverflowError),
    ],
)
def test_what_cannot_be_traced_is_refused_in_one_line_with_its_cause(fn, args, cause):
    with pytest.raises(FormatError, match=r"cannot trace '<lambda>': \w+: ") as caught:
        from_jax(fn, *args)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value.__cause__, cause)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resident_argnums": 1}, "resident_argnums: there is no argument 1"),
        ({"resident_argnums": -2}, "resident_argnums: there is no argument -2"),
        ({"resident_argnums": "z"}, "resident_argnums: there is no argument 'z'"),
        ({"resident_argnums": b"\x00"}, r"resident_argnums: b'\\x00' must be indices or names of arguments"),
        ({"donate_argnums": (0, 7)}, "donate_argnums: there is no argument 7"),
        ({"static_argnums": 5}, "static_argnums: there is no argument 5"),
        ({"static_argnums": "y"}, "static_argnums: there is no argument 'y'"),
        ({"static_argnums": 1.5}, "static_argnums: 1.5 must be indices or names of arguments"),
        ({"kwargs": 3}, "kwargs: give a Mapping, got int"),
        ({"input_devices": -1}, "input_devices: -1 must be the index of a device"),
        ({"input_devices": {3: 0}}, "input_devices: there is no argument 3"),
        ({"while_trip_count": -1}, "while_trip_count: -1 must be finite"),
        ({"while_trip_count": float("nan")}, "while_trip_count: nan must be finite"),
        ({"profile": "abacus"}, "unknown device 'abacus'; use one of h200"),
        ({"profile": 3}, "unknown device 3; use one of h200"),
        ({"profile": ["h200", ["h100"]]}, "unknown device \\['h100'\\]; use one of h200"),
        ({"profile": ()}, "profile: got no device"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        from_jax(jnp.sin, f32(3), **options)


def test_none_names_no_argument():
    graph = from_jax(jnp.sin, f32(3), static_argnums=None, resident_argnums=None)
    assert graph.content_hash == from_jax(jnp.sin, f32(3)).content_hash


@pytest.mark.parametrize("value", ["text", object()])
def test_arguments_that_are_no_arrays_are_named(value):
    def f(a, b):
        return a

    message = (
        r"^cannot trace 'f': TypeError: the argument 'b/k' is .*, which is no array \(name it in static_"
    )
    with pytest.raises(FormatError, match=message):
        from_jax(f, jnp.ones(3), {"k": value})


# Keras ------------------------------------------------------------------------------------------


@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
@pytest.mark.parametrize(
    "models",
    [
        ("small",),
        pytest.param(("MobileNet", "MobileNetV2", "ResNet50", "DenseNet121"), marks=pytest.mark.slow),
    ],
)
def test_keras_applications(models):
    """Runs in a separate process, because the backend is fixed when Keras is first imported."""
    script = pathlib.Path(__file__).with_name("keras_models.py")
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    run = subprocess.run(
        [sys.executable, str(script), *models], capture_output=True, text=True, env=environment, check=False
    )
    assert run.returncode == 0, run.stderr
    results = json.loads(run.stdout.splitlines()[-1])
    assert re.fullmatch(
        r"the function stores an array that it computes in 'model[^']*\._value', which it closes over, .*"
        r"call keras\.utils\.clear_session\(free_memory=False\) before, or build .*",
        results.pop("refusal"),
    )
    forms = results.pop("forms")
    assert all("dot_general" in kinds for kinds in forms.values())
    # No form makes the weights.
    assert not any("random" in kind for kinds in forms.values() for kind in kinds)
    assert results.keys() == set(models)
    for name, result in results.items():
        assert result["resident_bytes"] == result["expected_bytes"], name
        # Forward, and two products backward; the first layer's input needs no gradient.
        assert result["convolutions"] == 3 * result["layers"] - 1, name
        assert result["named_after_layers"] == result["layers"], name
