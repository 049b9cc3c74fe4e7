"""Plans: files, verification, traces, summaries."""

import dataclasses
import gzip
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances
from test_replay import WORKED_PLACES, random_schedule, worked

from regal_jax.errors import ConfigError, FormatError, PlanError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, TransferModel, constrain
from regal_jax.heuristics import run_heuristic
from regal_jax.plan import Objective, Plan, Timeline, needed_transfers, transfer_event, verify

BLOCKING = Cluster((1000, 120), "blocking", "1s", 10)


def worked_plan(cluster: Cluster = BLOCKING, **kwargs) -> tuple[Plan, ComputationGraph]:
    graph = worked().build()
    events: list[int] = []
    for name in ("load", "init", "split", "split:1", "left", "right", "right:0", "join", "join:0", "report"):
        if ":" not in name:
            events.append(graph.op_index[name])
        elif cluster.transfer is TransferModel.BLOCKING:
            tensor = graph.tensor_index(name)
            events.append(transfer_event(graph, cluster, tensor, 0 if name == "right:0" else 1))
    return Plan.from_events(graph, cluster, np.array(WORKED_PLACES), events, **kwargs), graph


def assert_same(a: Plan, b: Plan) -> None:
    """Checks equality bit for bit, including types."""
    for field in dataclasses.fields(Plan):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if isinstance(x, Timeline):
            for inner in dataclasses.fields(Timeline):
                u, v = getattr(x, inner.name), getattr(y, inner.name)
                for p, q in zip(u, v, strict=True) if isinstance(u, tuple) else [(u, v)]:
                    assert np.asarray(p).dtype == np.asarray(q).dtype, inner.name
                    assert np.asarray(p).tobytes() == np.asarray(q).tobytes(), inner.name
        elif isinstance(x, np.ndarray):
            assert x.dtype == y.dtype
            assert x.tobytes() == y.tobytes()
        else:
            assert type(x) is type(y), field.name
            assert x == y, field.name


# What a plan says --------------------------------------------------------------------------------


def test_a_plan_that_does_not_fit_is_not_called_optimal():
    graph = worked().build()
    for memory, word in ((math.inf, True), (1, False)):
        plan = run_heuristic("single-device", graph, Cluster.uniform(1, memory))
        assert plan.makespan == plan.lower_bound
        for text in (str(plan), repr(plan)):
            assert ("optimal" in text) == word
            assert ("OVERFLOW" in text) != word


def test_transfers_may_move_more_bytes_than_int64_holds():
    builder, size = GraphBuilder("large"), 2**61
    builder.add_op("a", outputs=[size])
    for k in range(5):
        builder.add_op(f"to {k}", inputs=["a:0"], allowed_devices=[k + 1])
    graph = builder.build()
    plan = run_heuristic("single-device", graph, Cluster.uniform(6, transfer="blocking"))
    assert plan.transfer_bytes == plan.num_transfers * size >= 2**63
    again = Plan.from_json(plan.to_json())
    again.verify(graph)
    assert again.transfer_bytes == plan.transfer_bytes


def test_the_figures_of_the_worked_example():
    plan, _ = worked_plan()
    assert (plan.makespan, plan.one_device_makespan, plan.lower_bound) == (32, 18, 17)
    assert (plan.num_transfers, plan.transfer_bytes) == (3, 120)
    assert plan.feasible
    assert plan.objective_value == 32
    plan, _ = worked_plan(Cluster((125, 100), "free"), objective="peak-memory")
    assert plan.overflow.tolist() == [5, 15]
    assert not plan.feasible
    assert plan.sort_key == (20, 130)
    assert (plan.num_transfers, plan.transfer_bytes) == (3, 120)


def test_a_summary_that_a_person_wants_to_read():
    made = {"method": "brkga", "evaluations": 5000, "seed": 0}
    text = str(worked_plan(Cluster((1000, 100), "blocking", 1, 10), provenance=made)[0])
    assert text == "\n".join(
        [
            "plan for 'worked': 7 ops on 2 devices",
            "  objective    makespan: 88.2 % above the lower bound of 17 s",
            "  makespan     32 s, 0.562 x the speed of one device (18 s)",
            "  peak memory  device 0  130 B of 1000 B, 13 %",
            "               device 1  115 B of 100 B  OVERFLOW by 15 B",
            "  transfers    3 (120 B), blocking over links of latency 1, bandwidth 10",
            "  made by      brkga, 5,000 evaluations, seed 0",
        ]
    )
    assert "optimal" in str(worked_plan(Cluster((math.inf, math.inf), "free"))[0])


def test_summaries_of_extreme_plans():
    b = GraphBuilder()
    b.add_op("a")
    one = Plan.from_events(b.build(), Cluster((0,)), np.array([0]), [0])
    assert "1 op on 1 device" in str(one)
    many = Plan.from_events(
        b.build(), Cluster((1.0,) * 20, "blocking"), np.array([0]), [0], objective="peak-memory"
    )
    assert "other 12" in str(many)


def test_provenance_is_kept_as_json_will_give_it_back():
    given_ = {"seed": np.int64(3), "a": np.array([1.5, np.nan]), "t": (1, None, True), "n": {"x": math.inf}}
    plan, _ = worked_plan(provenance=given_)
    assert plan.provenance == {"seed": 3, "a": [1.5, None], "t": [1, None, True], "n": {"x": None}}
    with pytest.raises(PlanError, match=r"provenance\.a\[0\] is of type object"):
        worked_plan(provenance={"a": [object()]})


# Files -------------------------------------------------------------------------------------------


def test_what_scripts_rely_on():
    document = json.loads(worked_plan()[0].to_json())
    assert document["makespan"] == 32
    assert document["peak_memory"] == [130, 115]
    assert document["placement"] == dict(
        zip(["load", "init", "split", "left", "right", "join", "report"], WORKED_PLACES, strict=True)
    )
    assert document["events"][2] == {"kind": "compute", "op": "split", "device": 0, "start": 2, "finish": 5}
    assert document["events"][3] == {
        "kind": "transfer", "tensor": "split:1", "source": 0, "device": 1, "start": 5, "finish": 10,
    }  # fmt: skip
    assert len(document["events"]) == 10
    assert (document["format"], document["version"]) == ("regal_jax.plan", 1)
    assert document["graph"] == {
        "name": "worked", "hash": worked().build().content_hash, "time_unit": "s",
    }  # fmt: skip
    assert document["cluster"]["memory"] == [1000, 120]
    assert document["transfers"] == {"count": 3, "bytes": 120}


def test_infinity_is_valid_json():
    plan, _ = worked_plan(Cluster((math.inf, 5.5), "free"))
    document = json.loads(plan.to_json(), parse_constant=lambda text: pytest.fail(text))
    assert document["cluster"] == {"memory": [None, 5], "transfer": "free", "latency": 0, "bandwidth": None}
    assert Plan.from_json(plan.to_json()).cluster == plan.cluster


@given(instances(), st.integers(0, 2**20), st.sampled_from(Objective))
def test_a_loaded_plan_equals_the_saved_one_and_is_right(instance, seed, objective):
    graph, cluster = instance
    graph = dataclasses.replace(graph, op_kinds=tuple(f"k{o % 3}" * (o % 2) for o in range(graph.num_ops)))
    placement, order = random_schedule(graph, cluster, seed)
    plan = Plan.from_events(graph, cluster, placement, order, objective=objective, provenance={"seed": seed})
    plan.verify(graph)
    loaded = Plan.from_json(plan.to_json())
    assert_same(plan, loaded)
    loaded.verify(graph)


def test_save_and_load(tmp_path):
    plan, _ = worked_plan(provenance={"text": "ä\ud800\n"})
    path = tmp_path / "plan.json"
    path.write_text("old")
    plan.save(path)
    assert_same(plan, Plan.load(str(path)))
    assert os.listdir(tmp_path) == ["plan.json"], "no temporary file is left"
    with pytest.raises(FormatError, match=r"absent\.json: cannot be read: No such file .*; check the path"):
        Plan.load(tmp_path / "absent.json")
    for write in (plan.save, plan.save_trace, plan.plot):
        with pytest.raises(FormatError, match=r"absent.plan\.svg: cannot be written: No such file"):
            write(tmp_path / "absent" / "plan.svg")


@pytest.mark.parametrize(
    ("path", "said"),
    [("a\0.json", r"'a\\x00.json': no file can have"), ("\ud800.png", "no file can have such a name"),
     (3, "path: give the name of a file, got int"), (b"a.png", "give the name of a file, got bytes")],
)  # fmt: skip
def test_what_can_be_no_path(path, said):
    plan, _ = worked_plan()
    for write in (plan.save, plan.save_trace, plan.plot):
        with pytest.raises(FormatError, match=said):
            write(path)
    with pytest.raises(FormatError, match=said if isinstance(path, str) else "or the path of its file, got"):
        Plan.load(path)


def test_an_empty_path_names_no_file():
    plan, _ = worked_plan()
    for write in (plan.save, plan.save_trace):
        with pytest.raises(FormatError, match="path: '' names no file; give the name of one"):
            write("")


def test_plans_and_traces_are_gzipped_by_name(tmp_path):
    plan, _ = worked_plan()
    path, trace = tmp_path / "plan.json.gz", tmp_path / "trace.json.gz"
    plan.save(path)
    plan.save_trace(trace)
    assert gzip.decompress(path.read_bytes()).decode() == plan.to_json()
    assert json.loads(gzip.decompress(trace.read_bytes())) == plan.to_chrome_trace()
    assert_same(plan, Plan.load(path))
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(FormatError, match=r"plan\.json\.gz: damaged gzip"):
        Plan.load(path)


def test_a_byte_order_mark_is_no_part_of_a_plan(tmp_path):
    plan, _ = worked_plan()
    (tmp_path / "plan.json").write_text(plan.to_json(), encoding="utf-8-sig")
    assert Plan.load(tmp_path / "plan.json").to_json() == plan.to_json()


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    plan, _ = worked_plan()
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr("pathlib.Path.replace", fail)
    with pytest.raises(FormatError, match="cannot be written: disk full"):
        plan.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


def test_verify_and_compare_say_what_they_take():
    plan, _ = worked_plan()
    with pytest.raises(ConfigError, match="graph: give a ComputationGraph, got str"):
        plan.verify("graph.json")
    with pytest.raises(ConfigError, match="other: give a Plan, got int"):
        plan.compare(3)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[]", "5", '"x"', "{}", "[" * 100_000, '{"a":' * 100_000, "NaN", "\0",
        '{"format": 3}', "9" * 5000,
    ],
)  # fmt: skip
def test_garbage_is_refused(text, tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(FormatError, match=r"plan\.json: plan: ") as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "plan.json"
    path.write_bytes(b"\xff\xfe\x00garbage")
    with pytest.raises(FormatError, match="not UTF-8"):
        Plan.load(path)


def test_every_truncation_is_refused():
    text = worked_plan()[0].to_json().rstrip()
    for length in range(0, len(text), 7):
        with pytest.raises(FormatError, match=r"^plan: "):
            Plan.from_json(text[:length])


PATHS = [
    ("version",), ("graph",), ("graph", "hash"), ("graph", "time_unit"), ("cluster",), ("cluster", "memory"),
    ("cluster", "transfer"), ("cluster", "latency"), ("objective",), ("makespan",), ("peak_memory",),
    ("peak_memory", 0), ("lower_bound",), ("one_device_makespan",), ("transfers",), ("transfers", "count"),
    ("provenance",), ("placement",), ("placement", "join"), ("events",), ("events", 0), ("events", 0, "kind"),
    ("events", 0, "op"), ("events", 0, "device"), ("events", 0, "start"), ("events", 3, "tensor"),
    ("events", 3, "source"), ("events", 3, "finish"), ("memory_profile",), ("memory_profile", 0),
    ("memory_profile", 0, "time"), ("memory_profile", 0, "time", 1), ("memory_profile", 1, "bytes"),
    ("memory_profile", 1, "bytes", 0), ("cluster", "memory", 1), ("format",),
]  # fmt: skip
WRONG = ["x", -7, 2.5, None, True, [], [[]], {}, {"a": 1}, 10**30, "DELETE"]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: ".".join(map(str, p)))
def test_wrong_values_and_missing_fields_are_refused_or_found(path):
    """Any wrong value of a field raises FormatError or PlanError."""
    plan, graph = worked_plan()
    for wrong in WRONG:
        document = json.loads(plan.to_json())
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if wrong == "DELETE":
            del holder[path[-1]]
        else:
            holder[path[-1]] = wrong
        harmless = (path == ("provenance",) and isinstance(wrong, dict)) or (
            path == ("cluster", "memory", 1) and wrong in (None, 2.5, 10**30)
        )
        if harmless or (path == ("version",) and wrong is True):
            continue
        with pytest.raises((FormatError, PlanError)) as caught:
            Plan.from_json(json.dumps(document)).verify(graph)
        assert "\n" not in str(caught.value)


def pinned_plan() -> tuple[Plan, ComputationGraph]:
    """A plan whose bound is 3 s by its pin and its group together, else 2 s."""
    builder = GraphBuilder("pinned")
    for name in "abcd":
        builder.add_op(name, runtime=1.0, outputs=[8])
    graph, cluster = builder.build(), Cluster((99, 99), "blocking")
    pin, colocate = {"[cd]": (1,), "a": (0, 1)}, ("[bc]",)
    made = Plan.from_events(constrain(graph, pin, colocate), cluster, np.array([0, 1, 1, 1]), [0, 1, 2, 3])
    return dataclasses.replace(made, graph_hash=graph.content_hash, pin=pin, colocate=colocate), graph


def test_pins_come_back():
    plan, graph = pinned_plan()
    plan.verify(graph)
    assert_same(plan, Plan.from_json(plan.to_json()))
    document = json.loads(plan.to_json())
    assert (document["pin"], document["colocate"]) == ({"[cd]": [1], "a": [0, 1]}, ["[bc]"])
    for field in ("pin", "colocate"):
        other = dataclasses.replace(plan, **{field: type(getattr(plan, field))()})
        assert field not in json.loads(other.to_json())
        assert_same(other, Plan.from_json(other.to_json()))


def test_files_of_earlier_versions_obey_nothing_beyond_their_graph():
    plan, graph = pinned_plan()
    document = json.loads(plan.to_json())
    del document["pin"], document["colocate"]
    # Such files have pins in the provenance, and the lower bound of the graph without pins.
    document |= {"lower_bound": 2.0, "provenance": {"pin": {"[cd]": [1]}, "colocate": ["[bc]"]}}
    old = Plan.from_json(json.dumps(document))
    assert (old.pin, old.colocate) == ({}, ())
    old.verify(graph)


@pytest.mark.parametrize(
    "path", [("pin",), ("pin", "[cd]"), ("pin", "[cd]", 0), ("colocate",), ("colocate", 0)]
)
def test_wrong_pins_are_refused_or_found(path):
    plan, graph = pinned_plan()
    for wrong in [*WRONG, "d", "", "[cd", {"d": [1]}, {"x": [1]}, {"?": [2]}, ["d"], "\u2028"]:
        document = json.loads(plan.to_json())
        holder = document
        for key in path[:-1]:
            holder = holder[key]
        if wrong == "DELETE":
            del holder[path[-1]]
        else:
            holder[path[-1]] = wrong
        with pytest.raises((FormatError, PlanError)) as caught:
            Plan.from_json(json.dumps(document)).verify(graph)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"version": 1', '"version": 2', "version 2 cannot be read, only 1"),
        ('"makespan": 32.0', '"makespan": NaN', "NaN is not allowed"),
        ('"makespan": 32.0', '"makespan": 1e999', "1e999 is not allowed"),
        ('"makespan": 32.0', '"makespan": -Infinity', "-Infinity is not allowed"),
        ('"start": 2.0', '"start": "2"', r"events\[2\]\.start must be a finite number, got '2'"),
        ('"op": "split"', '"op": "nothing"', "no placement"),
        ('"split:1"', '"split:x"', "OP:PORT"),
        ('"transfer": "blocking"', '"transfer": "beam"', "cannot read"),
        ('"latency": "1s"', '"latency": -1', "latency"),
        (
            '"provenance"',
            '"colocation": [], "provenance"',
            "'colocation' is unknown; drop it, or use one of form",
        ),
        ('"time_unit"', '"unit": "s", "time_unit"', r"graph\.'unit' is unknown; .* name, hash, time_unit$"),
        ('"latency"', '"delay": 0, "latency"', r"cluster\.'delay' is unknown"),
        ('"count"', '"number": 0, "count"', r"transfers\.'number' is unknown"),
        ('"op": "split"', '"op": "split", "opkind": "x"', r"events\[2\]\.'opkind' is unknown"),
        ('"tensor"', '"op": "split", "tensor"', r"events\[3\]\.'op' is unknown"),
        ('{"time"', '{"ti\\nme": 0, "time"', r"memory_profile\[0\]\.'ti\\nme' is unknown"),
        ('"load": 0', '"lo\\nad": 5', r"placement\.'lo\\nad' must be an index below 2"),
    ],
)
def test_messages(old, new, message):
    text = worked_plan()[0].to_json()
    assert old in text
    with pytest.raises(FormatError, match=message) as caught:
        Plan.from_json(text.replace(old, new, 1))
    assert "\n" not in str(caught.value)


# Verification ------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["blocking", "delay", "free"])
def test_a_right_plan_verifies_even_if_it_overflows(model):
    plan, graph = worked_plan(Cluster((1, 1), model))
    assert not plan.feasible
    assert verify(plan, graph) is None


def test_a_plan_for_another_graph():
    plan, _ = worked_plan()
    b = worked()
    b.add_op("more")
    with pytest.raises(PlanError, match="not for 'worked'"):
        plan.verify(b.build())


def test_a_plan_for_another_profile_says_so():
    plan, graph = worked_plan()
    faster = dataclasses.replace(graph, runtime=graph.runtime / 3)
    with pytest.raises(PlanError, match=r"other runtimes; make a plan of this graph, or take the profile"):
        plan.verify(faster)
    heavier = dataclasses.replace(graph, tensor_bytes=graph.tensor_bytes * 2)
    with pytest.raises(PlanError, match=r"constraints differ, .* take the options \(in_place, dims, "):
        plan.verify(heavier)


def with_timeline(plan: Plan, **changes) -> Plan:
    return dataclasses.replace(plan, timeline=dataclasses.replace(plan.timeline, **changes))


def test_every_tampered_number_is_found():
    plan, graph = worked_plan()
    line = plan.timeline
    tampered = [
        with_timeline(plan, makespan=31.0),
        with_timeline(plan, peak_memory=line.peak_memory - 1),
        with_timeline(plan, memory_bytes=(line.memory_bytes[0], line.memory_bytes[1] + 1)),
        with_timeline(plan, memory_time=(line.memory_time[0] + 0.5, line.memory_time[1])),
        with_timeline(plan, memory_bytes=(line.memory_bytes[0][:-1], line.memory_bytes[1])),
        dataclasses.replace(plan, lower_bound=1.0),
        dataclasses.replace(plan, one_device_makespan=99.0),
        dataclasses.replace(plan, num_transfers=2),
        dataclasses.replace(plan, transfer_bytes=2),
        dataclasses.replace(plan, time_unit="ms"),
        dataclasses.replace(plan, graph_hash="0" * 64),
        dataclasses.replace(plan, placement=1 - plan.placement),
        dataclasses.replace(plan, op_names=(*plan.op_names[:-1], "other")),
        dataclasses.replace(plan, op_names=(*plan.op_names[:-1], plan.op_names[0])),
        dataclasses.replace(plan, cluster=Cluster((1000, 120), "blocking", 1, 11)),
        dataclasses.replace(plan, cluster=Cluster((1000, 120), "delay", 1, 10)),
    ]
    for field in ("start", "finish"):
        for event in range(line.num_events):
            for by in (-0.25, 0.25, math.nan, np.spacing(64.0)):
                times = getattr(line, field).copy()
                times[event] += by
                tampered.append(with_timeline(plan, **{field: times}))
    for wrong in tampered:
        with pytest.raises(PlanError) as caught:
            wrong.verify(graph)
        assert "\n" not in str(caught.value)


def shuffled(plan: Plan, order: list[int]) -> Plan:
    """The plan with its events in another order or number, with unchanged times."""
    fields = ("op", "port", "device", "source", "start", "finish")
    return with_timeline(plan, **{f: getattr(plan.timeline, f)[order] for f in fields})


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8], "compute 'report' never happens"),
        ([0, 1, 2, 4, 5, 6, 7, 8, 9], "transfer of 'split:1' to device 1 never happens"),
        ([0, 1, 2, 3, 3, 4, 5, 6, 7, 8, 9], "transfer of 'split:1' to device 1 happens more than once"),
        ([0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "compute 'load' happens more than once"),
        ([2, 0, 1, 3, 4, 5, 6, 7, 8, 9], "two things at once"),
        ([], "never happens"),
    ],
)
def test_events_missing_doubled_or_out_of_order(order, message):
    plan, graph = worked_plan()
    with pytest.raises(PlanError, match=message):
        shuffled(plan, order).verify(graph)


def test_a_needless_transfer():
    plan, graph = worked_plan()
    line = plan.timeline
    port = line.port.copy()
    port[3] = 0
    with pytest.raises(PlanError, match="'split:0' to device 1, is not needed"):
        with_timeline(plan, port=port).verify(graph)


def test_checks_that_need_no_replay():
    """The plan's own times are compared with each other, so a wrong replay could not hide the fault."""
    plan, graph = worked_plan(Cluster((1000, 1000), "delay", 1, 10))
    start, finish = plan.timeline.start.copy(), plan.timeline.finish.copy()
    start[5], finish[5] = 15, 17  # join would start before right:0 arrives, at 18.
    with pytest.raises(PlanError, match="compute 'join' starts earlier than its input from compute 'right'"):
        with_timeline(plan, start=start, finish=finish).verify(graph)
    start, finish = plan.timeline.start.copy(), plan.timeline.finish.copy()
    start[4], finish[4] = 8, 13  # right would start before its control predecessor left ends, at 9.
    with pytest.raises(
        PlanError, match="compute 'right' starts earlier than its control predecessor compute 'left'"
    ):
        with_timeline(plan, start=start, finish=finish).verify(graph)


def test_an_illegal_placement():
    b = GraphBuilder()
    b.add_op("a")
    b.add_op("b")
    free = b.build()
    plan = Plan.from_events(free, Cluster((9, 9), "blocking"), np.array([0, 1]), [0, 1])
    bound = dataclasses.replace(free, colocation_group=("g", "g"))
    plan = dataclasses.replace(plan, graph_hash=bound.content_hash)
    with pytest.raises(PlanError, match="colocation group 'g'"):
        plan.verify(bound)
    bound = dataclasses.replace(free, allowed_devices=(None, (0,)))
    plan = dataclasses.replace(plan, graph_hash=bound.content_hash)
    with pytest.raises(PlanError, match="may not run on device 1"):
        plan.verify(bound)
    bound = dataclasses.replace(free, runtime=np.ones((2, 3)))
    plan = dataclasses.replace(plan, graph_hash=bound.content_hash)
    with pytest.raises(PlanError, match="cannot run the graph"):
        plan.verify(bound)


def test_a_file_whose_keys_a_tool_has_sorted():
    plan, graph = worked_plan()
    text = json.dumps(json.loads(plan.to_json()), sort_keys=True)
    loaded = Plan.from_json(text)
    assert loaded.op_names == tuple(sorted(plan.op_names))
    loaded.verify(graph)


@given(instances(devices=(2, 3)), st.integers(0, 2**20))
def test_needed_transfers(instance, seed):
    graph, cluster = instance
    placement, _ = random_schedule(graph, cluster, seed)
    wanted = {
        (int(t), int(placement[o]))
        for t, o in zip(graph.edge_tensor, graph.edge_op, strict=True)
        if placement[o] != placement[graph.tensor_op[t]]
    }
    tensor, device = needed_transfers(graph, placement)
    assert list(zip(tensor.tolist(), device.tolist(), strict=True)) == sorted(wanted)


# Traces ------------------------------------------------------------------------------------------


def test_the_trace_of_the_worked_example(tmp_path):
    plan, _ = worked_plan()
    plan.save_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace == plan.to_chrome_trace()
    events = trace["traceEvents"]
    assert all({"ph", "pid", "name"} <= set(e) for e in events)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {1: "device 0", 2: "device 1"}
    spans = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert len(spans) == 7 + 2 * 3, "transfers hold both devices"
    assert (1, "split", 2e6, 3e6) in spans
    assert {(1, "transfer split:1", 5e6, 5e6), (2, "transfer split:1", 5e6, 5e6)} <= set(spans)
    for k in range(2):
        counted = [(e["ts"], e["args"]["bytes"]) for e in events if e["ph"] == "C" and e["pid"] == k + 1]
        line = plan.timeline
        assert [c[0] for c in counted] == (line.memory_time[k] * 1e6).tolist()
        assert [c[1] for c in counted] == line.memory_bytes[k].tolist()


def test_traces_are_in_microseconds_whatever_the_graph_counts_in():
    b = GraphBuilder(time_unit="ms")
    b.add_op("a", runtime=3)
    trace = Plan.from_events(b.build(), Cluster((9,)), np.array([0]), [0]).to_chrome_trace()
    assert [e["dur"] for e in trace["traceEvents"] if e["ph"] == "X"] == [3000]


@pytest.mark.parametrize("name", ["speed", "", 3, None])
def test_an_objective_that_does_not_exist(name):
    with pytest.raises(ConfigError, match=r"^objective: unknown .*; use one of makespan, peak-memory$"):
        Objective(name)
