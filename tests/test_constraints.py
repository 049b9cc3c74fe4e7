"""Pins and colocation by pattern: in graphs, in both importers, in `optimize` and in the command."""

import dataclasses
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from brute_force import brute_force
from importer_cases import graphs
from strategies import instances

from regal_jax import Cluster, GraphBuilder, Plan, compare, from_jax, optimize, optimize_many, save_graph
from regal_jax.cli import main
from regal_jax.errors import ConfigError, InfeasiblePlanWarning, PlanError
from regal_jax.graph import constrain
from regal_jax.plan import Objective, lower_bound

TWO = Cluster.uniform(2, transfer="free")


def towers(name="towers"):
    """Two chains that two devices would divide: encoder/a, encoder/b and decoder/a, decoder/b."""
    builder = GraphBuilder(name)
    for part in ("encoder", "decoder"):
        builder.add_op(f"{part}/a", runtime=1.0, outputs=[4])
        builder.add_op(f"{part}/b", runtime=1.0, inputs=[f"{part}/a"], outputs=[4])
    builder.add_op("odd[0]", runtime=1.0)
    return builder.build()


def placement(plan):
    return dict(zip(plan.op_names, plan.placement.tolist(), strict=True))


# The function -----------------------------------------------------------------------------------


def test_pins_restrict_the_ops_that_match_and_no_others():
    graph = constrain(towers(), pin={"encoder/*": 1, "*/b": [2, 1, 1], "odd[0]": np.array(3)})
    assert graph.allowed_devices == ((1,), (1,), None, (1, 2), (3,))
    assert graph.op_names == towers().op_names
    # The pin and the op's own allowed devices both hold.
    assert constrain(graph, pin={"decoder/b": [0, 2]}).allowed_devices[3] == (2,)
    assert constrain(graph) is graph


def test_colocated_patterns_share_a_device_and_overlaps_unite():
    def partition(graph):
        return graph.colocation_leader.tolist()

    assert partition(constrain(towers(), colocate="encoder/*")) == [0, 0, 2, 3, 4]
    assert partition(constrain(towers(), colocate=["encoder/*", "decoder/*"])) == [0, 0, 2, 2, 4]
    assert partition(constrain(towers(), colocate=["encoder/*", "decoder/*", "*/b"])) == [0, 0, 0, 0, 4]
    once = constrain(towers(), colocate=["encoder/*", "decoder/*"])
    assert partition(constrain(once, colocate=["*/a"])) == [0, 0, 0, 0, 4]
    assert partition(constrain(once, colocate=["odd[0]"])) == [0, 0, 2, 2, 4]


def test_a_new_group_is_no_old_one_that_has_its_name():
    builder = GraphBuilder()
    for name, group in (("x", "y"), ("y", None), ("z", None)):
        builder.add_op(name, colocation_group=group)
    graph = constrain(builder.build(), colocate=["[yz]"])
    assert graph.colocation_leader.tolist() == [0, 1, 1]


@hypothesis.given(graphs(), st.data())
def test_constraints_are_those_of_brute_force(graph, data):
    """The allowed placements: those that both the graph and the patterns allow."""
    names = st.sampled_from(graph.op_names)
    pin = data.draw(st.dictionaries(names, st.lists(st.integers(0, 2), min_size=1, max_size=3), max_size=3))
    pairs = data.draw(st.lists(st.sampled_from(["*", *graph.op_names]), max_size=2))

    def holds(place, allowed, groups):
        fits = all(a is None or k in a for k, a in zip(place, allowed, strict=True))
        return fits and all(len({place[o] for o in ops}) == 1 for ops in groups)

    def members(graph):
        kinds = set(graph.colocation_group) - {None}
        return [[o for o, g in enumerate(graph.colocation_group) if g == kind] for kind in kinds]

    asked = [
        range(graph.num_ops) if p == "*" and p not in graph.op_names else [graph.op_index[p]] for p in pairs
    ]
    wanted = [tuple(pin[n]) if n in pin else None for n in graph.op_names]
    try:
        made = constrain(graph, pin, pairs)
    except ConfigError:
        made = None
    found = 0
    for _ in range(30):
        place = data.draw(st.lists(st.integers(0, 2), min_size=graph.num_ops, max_size=graph.num_ops))
        place = [place[0]] * graph.num_ops if data.draw(st.booleans()) else place
        right = holds(place, graph.allowed_devices, members(graph)) and holds(place, wanted, asked)
        found += right
        assert right == (made is not None and holds(place, made.allowed_devices, members(made)))
    assert made is not None or not found


def test_all_ops_that_leave_a_group_no_device_are_named():
    builder = GraphBuilder("three")
    for name, devices in {"a": [0, 1], "b": [1, 2], "c": [0, 1, 2], "d": [0, 2]}.items():
        builder.add_op(name, runtime=1.0, allowed_devices=devices)
    with pytest.raises(
        ConfigError, match=r"'a' \(devices 0, 1\), 'b' \(devices 1, 2\) and 'd' \(devices 0, 2\)"
    ):
        constrain(builder.build(), colocate="*")


@pytest.mark.parametrize(
    ("pin", "colocate", "message"),
    [
        ({"enkoder/*": 0}, (), r"pin: no op of graph 'towers' matches 'enkoder/\*'; the nearest .*'encoder/"),
        ({}, ["Encoder/*"], r"colocate: no op of graph 'towers' matches 'Encoder/\*'; the nearest names are"),
        (
            {"encoder/*": 0, "*/a": 1},
            (),
            r"op 'encoder/a': the pin '\*/a' allows device 1, the pin 'encoder/\*'",
        ),
        (
            {"encoder/a": 0, "encoder/b": 1},
            "encoder/*",
            "'encoder/a' .device 0. and 'encoder/b' .device 1. share",
        ),
        ({"encoder/a": [0, 2]}, (), "there is no device 2; the cluster has 2, from 0"),
        ({"encoder/a": -1}, (), "-1 must be the index of a device, from 0"),
        ({"encoder/a": True}, (), "True must be the index"),
        ({"encoder/a": "0"}, (), "'0' must be the index"),
        ({"encoder/a": []}, (), "must be the index"),
        ({0: 0}, (), "pin: 0 must be the name of an op"),
        ({"encoder/a": b"\x00"}, (), r"pin: 'encoder/a': b'\\x00' must be the index of a device"),
        ({}, b"ab", r"colocate: b'ab' must be a pattern"),
        (["encoder/a"], (), "must be a mapping"),
        ({}, [3], "colocate: 3 must be the name"),
    ],
)
def test_what_cannot_hold_is_refused_in_one_line(pin, colocate, message):
    for call in (
        lambda: constrain(towers(), pin, colocate, devices=2),
        lambda: optimize(towers(), TWO, pin=pin, colocate=colocate, method="critical-path"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_pin_against_the_graph_itself_says_so():
    graph = constrain(towers(), pin={"encoder/a": 0})
    with pytest.raises(ConfigError, match="allows device 1, the graph itself device 0"):
        constrain(graph, pin={"encoder/*": 1})
    traced = from_jax(jnp.sin, jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(ConfigError, match="place inputs with input_devices"):
        constrain(traced, pin={"*": 1})


# Lower bounds -----------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", list(Objective))
@hypothesis.settings(max_examples=100)
@hypothesis.given(instance=instances(max_ops=5, devices=(2, 3), constraints=False), data=st.data())
def test_no_plan_beats_the_bounds_of_a_graph_with_pins(objective, instance, data):
    graph, cluster = instance
    cluster = dataclasses.replace(cluster, memory=(math.inf,) * cluster.num_devices)
    devices = st.lists(st.integers(0, cluster.num_devices - 1), min_size=1, max_size=2)
    pin = data.draw(st.dictionaries(st.sampled_from(graph.op_names), devices))
    patterns = [f"op[{a}{b}]" for a, b in itertools.pairwise(range(graph.num_ops))]
    try:
        pinned = constrain(graph, pin, data.draw(st.lists(st.sampled_from(patterns))) if patterns else [])
    except ConfigError:
        hypothesis.reject()
    bound = lower_bound(pinned, cluster, objective)
    assert bound >= lower_bound(graph, cluster, objective)
    assert brute_force(pinned, cluster, objective).objective_value * (1 + 1e-12) >= bound


def independent(*runtimes):
    builder = GraphBuilder("independent")
    for i, runtime in enumerate(runtimes):
        builder.add_op(f"op{i}", runtime=runtime)
    return builder.build()


def sender():
    builder = GraphBuilder("sender")
    builder.add_op("a", runtime=1.0, outputs=[8, 80])
    builder.add_op("b", runtime=1.0, inputs=["a:0"])
    return builder.build()


@pytest.mark.parametrize(
    ("graph", "devices", "pin", "colocate", "bound"),
    [
        # Without constraints: 12 s on three devices.
        (independent(*[2.0] * 6), 3, {}, (), 4.0),
        (independent(*[2.0] * 6), 3, {"op[0-3]": 1}, (), 8.0),
        (independent(*[2.0] * 6), 3, {"*": (0, 1)}, (), 6.0),
        (independent(*[2.0] * 6), 3, {"op[0-3]": (0, 1), "op[45]": 0}, (), 6.0),
        (independent(*[2.0] * 6), 3, {}, "op[0-3]", 8.0),
        # The best device of the group is not allowed for one of its ops.
        (independent([1.0, 9.0], [5.0, 1.0]), 2, {}, (), 1.0),
        (independent([1.0, 9.0], [5.0, 1.0]), 2, {}, "*", 6.0),
        (independent([1.0, 9.0], [5.0, 1.0]), 2, {"op0": 1}, "*", 10.0),
        # Eight bytes at 1 B/s after a latency of 2 s.
        (sender(), 2, {}, (), 2.0),
        (sender(), 2, {"a": 0}, (), 2.0),
        (sender(), 2, {"a": 0, "b": 1}, (), 12.0),
        (sender(), 3, {"a": (0, 1), "b": (0, 2)}, (), 2.0),
        (sender(), 3, {"a": 0, "b": (1, 2)}, (), 12.0),
    ],
)
@pytest.mark.parametrize("model", ["blocking", "delay"])
def test_bounds_that_are_met(graph, devices, pin, colocate, bound, model):
    cluster = Cluster((math.inf,) * devices, model, latency=2, bandwidth=1)
    pinned = constrain(graph, pin, colocate)
    assert lower_bound(pinned, cluster, Objective.MAKESPAN) == bound
    assert brute_force(pinned, cluster).makespan == bound


def fan(sources, readers):
    """Each reader reads the outputs of all sources, of 10 s at 1 B/s."""
    builder = GraphBuilder("fan")
    for i in range(sources):
        builder.add_op(f"a{i}", runtime=1.0, outputs=[10])
    for i in range(readers):
        builder.add_op(f"b{i}", runtime=1.0, inputs=[f"a{k}:0" for k in range(sources)])
    return builder.build()


@pytest.mark.parametrize(
    ("graph", "devices", "pin", "bound"),
    [
        # Both readers on device 1 use one copy.
        (fan(1, 2), 2, {"a0": 0, "b*": 1}, 12.0),
        (fan(2, 1), 2, {"a*": 0, "b*": 1}, 22.0),
        (fan(2, 1), 3, {"a*": (0, 2), "b*": 1}, 21.0),
        (fan(1, 2), 3, {"a0": 0, "b0": 1, "b1": 2}, 21.0),
        (fan(1, 2), 3, {"a0": 0, "b0": (1, 2), "b1": (1, 2)}, 12.0),
        (fan(1, 2), 3, {"a0": 0, "b*": 0}, 3.0),
    ],
)
def test_blocking_transfers_take_the_time_of_both_devices(graph, devices, pin, bound):
    pinned, cluster = constrain(graph, pin), Cluster((math.inf,) * devices, "blocking", bandwidth=1)
    assert lower_bound(pinned, cluster, Objective.MAKESPAN) == bound
    assert brute_force(pinned, cluster).makespan <= bound + 1.0
    late = dataclasses.replace(cluster, transfer="delay")
    assert lower_bound(pinned, late, Objective.MAKESPAN) == min(bound, 12.0)


def test_the_shortest_link_between_their_devices_counts():
    latency = [[0, 9, 5], [9, 0, 9], [4, 9, 0]]
    cluster = Cluster((math.inf,) * 3, "delay", latency=latency)
    for pin, bound in (
        ({"a": 0, "b": (1, 2)}, 7.0),
        ({"a": (1, 2), "b": 0}, 6.0),
        ({"a": 1, "b": (0, 2)}, 11.0),
        ({"a": (0, 1), "b": 1}, 2.0),
    ):
        pinned = constrain(sender(), pin)
        assert lower_bound(pinned, cluster, Objective.MAKESPAN) == bound
        assert brute_force(pinned, cluster).makespan == bound


# Importers --------------------------------------------------------------------------------------


def test_from_jax_pins_and_colocates():
    def fn(x):
        with jax.named_scope("encoder"):
            x = jnp.cos(jnp.sin(x))
        return jnp.tanh(x)

    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    graph = from_jax(fn, x, pin={"encoder/*": 1}, colocate=["encoder/cos", "tanh"])
    allowed = dict(zip(graph.op_names, graph.allowed_devices, strict=True))
    assert allowed == {"x": (0,), "start": None, "encoder/sin": (1,), "encoder/cos": (1,), "tanh": None}
    with pytest.raises(ConfigError, match="no op of graph 'fn' matches"):
        from_jax(fn, x, pin={"decoder/*": 1})


# The search -------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"method": "critical-path"}, {"evaluations": 200}, {"contract": True}])
def test_plans_obey_and_verify_against_the_graph_as_it_was(options):
    graph = towers()
    plan = optimize(graph, TWO, pin={"encoder/*": 1}, colocate=["decoder/*", "odd*"], **options)
    plan.verify(graph)
    where = placement(plan)
    assert where["encoder/a"] == where["encoder/b"] == 1
    assert where["decoder/a"] == where["decoder/b"]
    assert plan.graph_hash == graph.content_hash
    assert plan.pin == {"encoder/*": (1,)}
    assert plan.colocate == ("decoder/*", "odd*")
    # Two parallel chains of 2 s and one op more: 3 s is also the optimum without pins.
    assert plan.makespan == 3.0
    assert optimize(graph, TWO, pin={"*": 0}, **options).makespan == 5.0


@pytest.mark.parametrize(
    ("pin", "colocate"),
    [
        ({"encoder/*": {1, 0}}, {"decoder/*"}),
        ({"encoder/*": frozenset([1])}, dict.fromkeys(["decoder/*"])),
        ({"encoder/*": (k for k in (1,))}, (pattern for pattern in ("decoder/*",))),
    ],
    ids=["sets", "frozen", "generators"],
)
def test_sets_and_generators_are_collections(pin, colocate, tmp_path):
    graph = towers()
    plan = optimize(graph, TWO, pin=pin, colocate=colocate, method="critical-path")
    assert (plan.pin["encoder/*"][-1], plan.colocate) == (1, ("decoder/*",))
    plan.save(tmp_path / "plan.json")
    Plan.load(tmp_path / "plan.json").verify(graph)


def test_every_method_of_a_comparison_obeys_the_pins():
    pins = {"encoder/*": 1, "odd*": [1]}
    plans = compare(
        towers(), TWO, ["bfs", "auto"], evaluations=50, pin=pins, colocate=(p for p in ["decoder/*"])
    ).plans
    for plan in plans.values():
        plan.verify(towers())
        where = placement(plan)
        assert [where[op] for op in ("encoder/a", "encoder/b", "odd[0]")] == [1, 1, 1]
        assert where["decoder/a"] == where["decoder/b"]


def test_a_plan_that_meets_the_bound_of_its_pins_is_optimal_and_ends_the_search():
    graph, seen = towers(), []
    assert lower_bound(graph, TWO, Objective.MAKESPAN) == 2.5
    for pin, colocate, bound in (({"*": 0}, (), 5.0), ({}, ["*/*"], 4.0), ({"*oder/*": [1]}, "odd*", 4.0)):
        plan = optimize(graph, TWO, pin=pin, colocate=colocate, evaluations=10**6, on_improvement=seen.append)
        assert plan.makespan == plan.lower_bound == bound
        assert plan.optimal
        assert plan.provenance["stopped"] == "optimal"
        assert plan.provenance["evaluations"] < 1000
        assert seen[-1].plan.lower_bound == bound
        plan.verify(graph)
        seen[-1].plan.verify(graph)


def test_a_plan_obeys_its_pins_or_does_not_verify():
    graph = towers()
    plan = optimize(graph, TWO, pin={"encoder/*": 1, "odd*": 0}, colocate="decoder/*", method="critical-path")
    for changes, message in (
        ({"pin": {"encoder/*": (0,)}}, "'encoder/a' may not run on device 0|may not run on device 1"),
        ({"colocate": ("*",), "pin": {}}, "the rest of its colocation group"),
        ({"pin": {"encoder/*": (2,)}}, "constraints are not for its graph: pin: .* no device 2"),
        ({"pin": {"encoder/*": ()}}, "constraints are not for its graph"),
        ({"colocate": ("nothing",)}, "constraints are not for its graph: colocate: no op"),
        ({"lower_bound": 2.5 + 2**-40}, "the lower_bound is 2.5"),
    ):
        with pytest.raises(PlanError, match=message) as caught:
            dataclasses.replace(plan, **changes).verify(graph)
        assert "\n" not in str(caught.value)
    all_at_0 = optimize(graph, TWO, pin={"*": 0}, method="critical-path")
    with pytest.raises(PlanError, match=r"the lower_bound is 2\.5, the plan says 5"):
        dataclasses.replace(all_at_0, pin={}).verify(graph)


def test_a_plan_says_that_its_pins_leave_too_little_memory():
    graph = towers()
    cluster = Cluster.uniform(2, memory=11, transfer="free")
    with pytest.warns(InfeasiblePlanWarning):
        plan = optimize(graph, dataclasses.replace(cluster, memory=(7, 100)), pin={"*": 0}, evaluations=50)
    assert plan.impossible
    plan.verify(graph)
    with pytest.raises(PlanError, match="which is not proven"):
        dataclasses.replace(plan, pin={}, lower_bound=2.5).verify(graph)


def test_many_graphs_are_pinned_alike_and_each_plan_is_of_its_own():
    many, seen = [towers("one"), towers("two")], {}
    plans = optimize_many(
        many, TWO, pin={"*/b": 1}, method="critical-path", progress=False, on_plan=seen.__setitem__
    )
    for i, (graph, plan) in enumerate(zip(many, plans, strict=True)):
        plan.verify(graph)
        seen[i].verify(graph)
        assert placement(plan)["encoder/b"] == placement(seen[i])["decoder/b"] == 1


# The command ------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_graph(towers(), "towers.json")
    return "towers.json"


def test_the_command_pins_and_its_plan_verifies(file):
    args = ["--transfer", "free", "--method", "critical-path", "--quiet", "--out", "plan.json"]
    args += [
        "--pin",
        "encoder/*=1",
        "--pin",
        "decoder/*=0,1",
        "--colocate",
        "decoder/*",
        "--colocate",
        "odd[0]",
    ]
    assert main(["optimize", file, *args]) == 0
    where = placement(Plan.load("plan.json"))
    assert where["encoder/a"] == where["encoder/b"] == 1
    assert where["decoder/a"] == where["decoder/b"]
    assert Plan.load("plan.json").pin == {"encoder/*": (1,), "decoder/*": (0, 1)}
    assert main(["verify", "plan.json", file]) == 0


@pytest.mark.parametrize(
    "args",
    [
        ["--pin", "encoder/*"],
        ["--pin", "encoder/*=x"],
        ["--pin", "=0"],
        ["--pin", "encoder/*=2"],
        ["--pin", "a=0", "--pin", "a=1"],
        ["--pin", "nothing=0"],
        ["--colocate", "nothing"],
        ["--dim", "batch=8"],
        ["--dim", "batch"],
        ["--dim", "batch=0"],
    ],
)
def test_the_command_refuses_in_one_line(args, file, capsys):
    try:
        code = main(["optimize", file, "--method", "critical-path", *args])
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1, err


def test_the_command_gives_dimensions_their_sizes(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    made = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 3]) for name in "xy"]
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    path = tmp_path / "model.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", made[:1], made[1:])), str(path))
    assert main(["show", str(path), "--dim", "batch=8"]) == 0
    out, err = capsys.readouterr()
    assert "192 B" in out  # Two arrays of shape (8, 3).
    assert err == ""
    assert main(["show", str(path)]) == 0
    assert "'batch' is taken as 1" in capsys.readouterr().err
    for args in (["--dim", "length=8"], ["--dim", "batch=1", "--dim", "batch=2"]):
        assert main(["show", str(path), *args]) == 2
        assert capsys.readouterr().err.count("\n") == 1
