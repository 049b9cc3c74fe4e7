"""The command as scripts and users call it: output, exit codes, errors of one line."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from regal_jax.cli import machine, main
from regal_jax.examples import DEFAULT_EXAMPLE
from regal_jax.graph import DEFAULT_LINK, LINKS, Cluster
from regal_jax.importers import FORMATS, load_graph
from regal_jax.plan import Plan

STG = """\
4
0 0 0
1 3 1 0
2 5 1 0
3 2 1 1
4 4 2 1 2
5 0 2 3 4
"""


@pytest.fixture
def stg(tmp_path):
    path = tmp_path / "graph.stg"
    path.write_text(STG)
    return str(path)


@pytest.fixture(autouse=True)
def _no_shared_cache(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*args):
    return main([str(a) for a in args])


def refusal(command, argument, capsys):
    """What the one line of error says of an argument, before it names the help of the command."""
    with pytest.raises(SystemExit, match=r"^2$"):
        run(*command)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    begin, end = f"error: argument {argument}: ", f"; try regal-jax {command[0]}"
    assert begin in said.err
    assert end in said.err
    return said.err.partition(begin)[2].rpartition(end)[0]


def test_the_collector_of_garbage_is_left_as_it_was(stg, monkeypatch):
    before, within, own = gc.get_threshold(), [], Plan.verify

    def verify(plan, graph):
        within.append(gc.get_threshold()[0])
        own(plan, graph)

    monkeypatch.setattr(Plan, "verify", verify)
    try:
        for young in (700, 0, 10**6):
            gc.set_threshold(young, 10, 10)
            assert run("optimize", stg, "--method", "bfs", "--quiet") == 0
            assert gc.get_threshold() == (young, 10, 10)
    finally:
        gc.set_threshold(*before)
    assert within[0] > 700
    assert within[1:] == [0, 10**6]


def test_the_process_ends_without_looking_for_garbage(stg, monkeypatch):
    at_the_end = []
    hooks = SimpleNamespace(
        register=at_the_end.append, unregister=lambda f: at_the_end.remove(f) if f in at_the_end else None
    )
    monkeypatch.setattr(machine, "atexit", hooks)
    for _ in range(2):
        assert run("optimize", stg, "--method", "bfs", "--quiet") == 0
    assert at_the_end == [machine._end]


def test_optimize_keeps_its_contract(stg, tmp_path, capsys):
    plan_file, trace, plot = tmp_path / "plan.json", tmp_path / "trace.json", tmp_path / "plan.png"
    code = run(
        "optimize", stg, "--devices", 2, "--memory", "16GiB", "--transfer",
        "blocking:latency=0,bandwidth=inf", "--objective", "makespan", "--evaluations", 300, "--seed", 0,
        "--policy", "none", "--out", plan_file, "--trace", trace, "--plot", plot,
    )  # fmt: skip
    out, err = capsys.readouterr()
    assert code == 0
    assert err == ""
    assert "makespan" in out
    document = json.loads(plan_file.read_text())
    # Two chains of 3 + 2 and 5 + 4 with a cross edge: 1 then 2 and 4 cannot end before 9.
    assert document["makespan"] == 9
    assert len(document["peak_memory"]) == 2
    assert document["placement"].keys() == {"0", "1", "2", "3", "4", "5"}
    computes = [e for e in document["events"] if e["kind"] == "compute"]
    assert sorted(e["op"] for e in computes) == ["0", "1", "2", "3", "4", "5"]
    for event in document["events"]:
        assert event["start"] <= event["finish"] <= 9
        if event["kind"] == "compute":
            assert event["device"] == document["placement"][event["op"]]
        else:
            op, port = event["tensor"].split(":")
            assert port == "0"
            assert event["source"] == document["placement"][op] != event["device"]
    assert isinstance(json.loads(trace.read_text())["traceEvents"], list)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert run("verify", plan_file, stg) == 0
    Plan.load(plan_file).save(f"{plan_file}.gz")
    capsys.readouterr()
    for file in (plan_file, f"{plan_file}.gz"):
        assert run("show", file) == 0
        assert "makespan" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ("optimize", "--device", "2"),
            "regal-jax optimize: error: unrecognized arguments: --device; did you mean --devices?",
        ),
        (
            ("order", "a.json", "--devices", "2"),
            "regal-jax order: error: unrecognized arguments: --devices 2; try regal-jax order --help",
        ),
        (
            ("compile", "a.json"),
            "regal-jax compile: error: unrecognized arguments: a.json; try regal-jax compile --help",
        ),
    ],
    ids=str,
)
def test_an_unknown_option_is_an_error_of_its_command(command, said, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        run(*command)
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_a_plan_of_another_graph_than_the_example_needs_its_file(stg, tmp_path, capsys):
    plan = tmp_path / "plan.json"
    assert run("optimize", stg, "--method", "bfs", "--out", plan) == 0
    assert run("verify", plan) == 2
    assert "name the file of that graph, too" in capsys.readouterr().err


def test_a_graph_is_not_advised_to_be_written_in_a_format_that_is_only_read(tmp_path, capsys):
    assert run("generate", "layered", "--ops", 9, "--out", tmp_path / "graph.txt") == 2
    err = capsys.readouterr().err
    assert "use one of json" in err
    assert "onnx" not in err


def test_times_that_have_no_reciprocal_can_be_plotted(tmp_path):
    ops = [
        {"name": "a", "runtime": 5e-324, "outputs": [{"size_bytes": 1}]},
        {"name": "b", "runtime": 5e-324, "inputs": ["a:0"]},
    ]
    file = tmp_path / "tiny.json"
    file.write_text(
        json.dumps({"format": "regal_jax.graph", "version": 2, "name": "t", "time_unit": "s", "ops": ops})
    )
    assert run("optimize", file, "--plot", tmp_path / "tiny.png") == 0
    assert (tmp_path / "tiny.png").exists()


def test_same_seed_same_plan(stg, tmp_path):
    for name in ("a.json", "b.json"):
        assert run("optimize", stg, "--evaluations", 200, "--seed", 7, "--out", name, "--quiet") == 0
    a, b = Plan.load("a.json"), Plan.load("b.json")
    assert a.timeline.op.tolist() == b.timeline.op.tolist()
    assert a.makespan == b.makespan


@pytest.mark.parametrize("transfer", ["delay:latency=2,bandwidth=10", "free", "blocking:latency=1"])
def test_transfer_models(stg, transfer):
    assert (
        run(
            "optimize",
            stg,
            "--transfer",
            transfer,
            "--evaluations",
            200,
            "--out",
            "p.json",
            "--quiet",
            "--no-warm-start",
        )
        == 0
    )
    assert run("verify", "p.json", stg) == 0


def test_method_names_a_heuristic(stg):
    assert run("optimize", stg, "--method", "critical-path", "--out", "p.json", "--quiet") == 0
    assert Plan.load("p.json").provenance["method"] == "critical-path"


@pytest.mark.parametrize(
    "method", [pytest.param("annealing", marks=pytest.mark.slow), "local-search", "auto"]
)
def test_method_names_a_search(stg, method):
    assert run("optimize", stg, "--method", method, "--evaluations", 30, "--out", "p.json", "--quiet") == 0
    assert Plan.load("p.json").provenance["method"] == method
    assert run("verify", "p.json", stg) == 0


def test_verify_refutes_a_tampered_plan(stg, capsys):
    assert run("optimize", stg, "--evaluations", 100, "--out", "p.json", "--quiet") == 0
    with open("p.json") as file:
        document = json.load(file)
    document["events"][-1]["finish"] += 1
    with open("p.json", "w") as file:
        json.dump(document, file)
    assert run("verify", "p.json", stg) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("command", ["order", "optimize"])
def test_a_plan_that_does_not_fit_is_reported_by_the_command_that_ran(command, capsys):
    assert run("generate", "chain", "--ops", 3, "--out", "g.json") == 0
    assert run(command, "g.json", "--memory", 1, "--method", "bfs", "--quiet") == 3
    assert capsys.readouterr().err.startswith(f"regal-jax {command}: no plan can fit")


def test_infeasible_memory_exits_3_and_says_by_how_much(capsys):
    with open("big.json", "w") as file:
        json.dump(
            {
                "format": "regal_jax.graph",
                "version": 1,
                "name": "big",
                "time_unit": "s",
                "ops": [
                    {"name": "a", "runtime": 1.0, "outputs": [{"size_bytes": 1000, "keep": True}]},
                    {"name": "b", "runtime": 1.0, "inputs": ["a:0"], "outputs": [{"size_bytes": 24}]},
                ],
            },
            file,
        )
    code = run("optimize", "big.json", "--memory", 1000, "--evaluations", 100, "--out", "p.json")
    err = capsys.readouterr().err
    assert code == 3
    assert "24 bytes" in err
    assert err.count("\n") == 1
    assert not Plan.load("p.json").feasible


def test_generate_import_show(capsys):
    assert run("generate", "erdos-renyi", "--ops", 20, "--seed", 3, "--out", "g.pbtxt") == 0
    assert run("import", "g.pbtxt", "--out", "g.json.gz") == 0
    assert load_graph("g.json.gz").num_ops == load_graph("g.pbtxt").num_ops >= 20
    assert run("show", "g.json.gz") == 0
    assert "critical path" in capsys.readouterr().out
    assert run("show") == 0
    assert "examples" in capsys.readouterr().out


@pytest.mark.parametrize("out", [(), ("--out", "g.json")])
def test_an_unknown_family_is_told_without_an_output_too(out, capsys):
    said = refusal(("generate", "nope", *out), "FAMILY", capsys)
    assert said.startswith("unknown 'nope'; use one of erdos-renyi, ")


def test_a_plan_that_is_shown_has_no_options_of_a_graph(stg, capsys):
    assert run("optimize", stg, "--method", "bfs", "--quiet", "--out", "plan.json") == 0
    assert run("show", "plan.json") == 0
    shown = capsys.readouterr().out
    Path("plan").write_bytes(Path("plan.json").read_bytes())
    assert run("show", "plan") == 0  # The content tells, not the name.
    assert capsys.readouterr().out == shown
    for options in (["--example", "mlp"], ["--profile", "cpu"], ["--dim", "batch=2"], ["--in-place"]):
        assert run("show", "plan.json", *options) == 2
        assert f"{options[0]} has no meaning for the plan 'plan.json'" in capsys.readouterr().err


BAD = {
    "no such file": ["optimize", "absent.stg"],
    "a folder": ["optimize", "."],
    "unknown suffix": ["optimize", "graph.xyz"],
    "unknown example": ["optimize", "--example", "nonsense"],
    "both sources": ["optimize", "graph.stg", "--example", "mlp"],
    "no device": ["optimize", "graph.stg", "--devices", "0"],
    "bad memory": ["optimize", "graph.stg", "--memory", "lots"],
    "negative memory": ["optimize", "graph.stg", "--memory=-1"],
    "memory list": ["optimize", "graph.stg", "--memory", "1GiB,2GiB,3GiB"],
    "bad transfer": ["optimize", "graph.stg", "--transfer", "teleport"],
    "bad transfer option": ["optimize", "graph.stg", "--transfer", "blocking:speed=3"],
    "zero bandwidth": ["optimize", "graph.stg", "--transfer", "blocking:bandwidth=0"],
    "bad objective": ["optimize", "graph.stg", "--objective", "beauty"],
    "bad budget": ["optimize", "graph.stg", "--evaluations", "0"],
    "bad seed": ["optimize", "graph.stg", "--seed", "-1"],
    "bad method": ["optimize", "graph.stg", "--method", "magic"],
    "bad format": ["optimize", "graph.stg", "--format", "magic"],
    "no out folder": ["optimize", "graph.stg", "--out", "absent/plan.json"],
    "bad family": ["generate", "nonsense", "--out", "g.json"],
    "bad suffix": ["generate", "layered", "--out", "g.xyz"],
    "garbage": ["optimize", "garbage.pbtxt"],
    "empty": ["optimize", "empty.json"],
    "nested": ["optimize", "nested.json"],
    "garbage plan": ["verify", "garbage.pbtxt", "graph.stg"],
    "a picture of the list of examples": ["show", "--plot", "x.png"],
    "a device of the list of examples": ["show", "--profile", "cpu"],
    "no command": [],
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_exits_2_with_one_line(what, stg, tmp_path, capsys):
    (tmp_path / "garbage.pbtxt").write_bytes(b"\xff\x00node {{{")
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "nested.json").write_text("[" * 200_000)
    try:
        code = main(BAD[what])
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2, err
    assert err.count("\n") == 1, err
    assert "regal-jax" in err
    assert "Traceback" not in err


def test_as_a_process_it_prints_no_traceback(tmp_path):
    (tmp_path / "cycle.json").write_text(
        '{"format": "regal_jax.graph", "version": 1, "name": "c", "time_unit": "s", "ops": ['
        '{"name": "a", "control_inputs": ["b"]}, {"name": "b", "control_inputs": ["a"]}]}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "regal_jax.cli", "optimize", "cycle.json"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cycle" in done.stderr


def test_help_teaches(capsys):
    for arguments in (["--help"], ["optimize", "--help"], ["--version"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 0
    out = capsys.readouterr().out
    assert "rendezvous" in out
    assert all(suffix in out for each in FORMATS.values() for suffix in each.suffixes if ".gz" not in suffix)
    assert "exit codes" in out
    assert "jaxlib" in out


def test_a_plan_goes_down_a_pipe(stg, tmp_path):
    command = [sys.executable, "-m", "regal_jax.cli", "optimize", stg]
    done = subprocess.run(
        [*command, "--method", "bfs", "--quiet", "--out", "/dev/stdout"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(tmp_path)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["format"] == "regal_jax.plan"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--plot", "plan.xyz"], "'.xyz'"),
        (["--plot", "plan"], "use .png"),
        (["--out", "graph.stg"], "cannot write 'graph.stg': it is an input"),
        (["--out", "x" * 300], "File name too long; name another file"),
        (["--out", "/proc/plan.json"], "cannot write '/proc/plan.json': No such file or directory"),
        (["--plot", "/proc/plan.png"], "cannot write '/proc/plan.png': No such file or directory"),
        (["--out-dir", "/proc"], "--out-dir: cannot write in '/proc': No such file or directory"),
        (["--out-dir", "/proc/plans"], "--out-dir: cannot write in '/proc/plans': No such file"),
        (["--trace", "link.stg"], "cannot write 'link.stg': it is an input"),
        (["--out", "p.png", "--plot", "./p.png"], "cannot write './p.png': it is written for another option"),
        (["--warm-start", "p.json", "--trace", "p.json"], "cannot write 'p.json': it is an input"),
        (["--policy", "p.json", "--out", "p.json"], "cannot write 'p.json': it is an input"),
        (["--transfer", "blocking:latency=1,latency=2"], "latency twice"),
    ],
)
def test_what_cannot_be_written_or_meant_is_refused_before_the_search(
    stg, capsys, monkeypatch, arguments, said
):
    monkeypatch.setattr("regal_jax.api.optimize", lambda *_, **__: pytest.fail("searched"))
    os.symlink("graph.stg", "link.stg")
    Path("p.json").write_text("kept")
    assert run("optimize", stg, *arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert (Path("graph.stg").read_text(), Path("p.json").read_text()) == (STG, "kept")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (["optimize", "--seed", "1", "--pin", "a=0", "--pin", "b=0", "--seed=1"], "--seed"),
        (["order", "--method", "beam", "--method", "auto"], "--method"),
        (["optimize", "--contract", "--quiet", "--quiet", "--no-contract"], "--contract/--no-contract"),
        (["evaluate", "--out", "a", "--graphs", "b", "--graphs", "c"], "--graphs"),
        (["dataset", "build", "--out", "a", "--out", "b"], "--out"),
    ],
)
def test_an_option_that_names_one_thing_is_given_once(command, option, capsys):
    assert refusal(command, option, capsys) == "is given twice; give it once"


@pytest.mark.parametrize(
    ("command", "argument"),
    [
        (["optimize", "--out", ""], "--out"),
        (["optimize", "a.json", "", "--out-dir", "plans"], "FILE"),
        (["optimize", "--method", ""], "--method"),
        (["optimize", "--watch=", "--out-dir", "plans"], "--watch"),
        (["optimize", "--warm-start", "", "--warm-start", "p.json"], "--warm-start"),
        (["compile", "--out", ""], "--out"),
        (["dataset", "show", ""], "PATH"),
        (["verify", "", "a.json"], "PLAN"),
    ],
)
def test_an_empty_argument_is_none(command, argument, capsys):
    assert refusal(command, argument, capsys) == "is empty; give a value"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), Cluster.uniform(2)),
        (("--transfer", "pcie4x16"), Cluster.uniform(2)),
        (("--transfer", "blocking"), Cluster.uniform(2, transfer="blocking")),
        (
            ("--transfer", "delay:nvlink4", "--memory", "8GiB,9GiB"),
            Cluster(("8GiB", "9GiB"), "delay:nvlink4"),
        ),
        (
            ("--devices", 4, "--nodes", 2, "--transfer", "delay:nvlink4", "--between", "latency=1ms"),
            Cluster.nodes(2, 2, within="nvlink4", between="latency=1ms", transfer="delay"),
        ),
        (
            ("--devices", 2, "--nodes", 2, "--memory", "1GiB,2GiB", "--between", "ethernet-10g"),
            Cluster(("1GiB", "2GiB"), "ethernet-10g"),
        ),
    ],
    ids=str,
)
def test_the_link_is_what_was_asked_for_and_is_said(stg, options, expected, capsys):
    assert run("optimize", stg, "--method", "critical-path", "--out", "plan.json", *options) == 0
    assert (
        f"{expected.transfer}{f' over {expected.over}' if expected.over else ''}\n" in capsys.readouterr().out
    )
    assert Plan.load("plan.json").cluster == expected
    assert run("verify", "plan.json", stg) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--transfer", "nvlink9"), ", ".join(LINKS)),
        (("--nodes", 2), "give the link of the machines, too: --between LINK"),
        (("--between", "nvlink4"), "--between LINK needs several machines"),
        (("--nodes", 3, "--between", "nvlink4"), "2 devices do not make 3 equal machines"),
        (("--nodes", 2, "--between", "x"), "no link is called 'x'"),
        (("--nodes", 2, "--between", "nvlink4", "--transfer", "free:"), "no link is called ''"),
    ],
    ids=str,
)
def test_links_that_cannot_be(stg, options, message, capsys):
    assert run("optimize", stg, *options) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_help_names_the_links_and_the_default(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        run("optimize", "--help")
    said = " ".join(capsys.readouterr().out.split())
    assert f"Links: {', '.join(LINKS)} (docs/links.md)" in said
    default = LINKS[DEFAULT_LINK]
    assert f"blocking transfers over {DEFAULT_LINK} ({default.latency}, {default.bandwidth})" in said


@pytest.mark.parametrize(
    ("command", "default"),
    [
        ("optimize", f"default: the example {DEFAULT_EXAMPLE}"),
        ("optimize", "brkga with any --policy except default and none"),
        ("verify", f"default: the example {DEFAULT_EXAMPLE}"),
        ("show", "default: list the examples"),
        ("order", "how many candidates are evaluated (default 5000)"),
        ("propose", "brkga proposes whole populations, at least so many (default 1000)"),
        ("train", "regal guides the search"),
    ],
)
def test_help_names_the_defaults_of_its_command(capsys, command, default):
    with pytest.raises(SystemExit, match=r"^0$"):
        run(command, "--help")
    assert default in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "command",
    [
        ["optimize", "--out-dir", ""],
        ["order", "--out-dir", ""],
        ["dataset", "build", "--out", ""],
        ["corpus", "build", "--out", ""],
        ["corpus", "sample", "corpus", "--out", ""],
    ],
)
def test_an_empty_name_is_no_folder(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 2
    assert "is empty; give a folder" in capsys.readouterr().err
