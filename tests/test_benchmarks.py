"""The benchmarks measure the right quantities and report what they cannot measure."""

import dataclasses
import functools
import json
import pathlib
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
import scipy.stats
from test_simulate import check, random_genes

from benchmarks import first_plan, fresh, loops, throughput
from benchmarks.__main__ import COMMANDS, main, parser
from benchmarks.cases import SECTIONS, SIZES, GraphCase, benchmarks, select
from benchmarks.compare import compare
from benchmarks.makespans import programs, rank_correlation, various_plans
from benchmarks.measure import Options, measure
from benchmarks.peers import peer, peer_text
from benchmarks.python_decoder import PythonDecoder, genes_in_order
from benchmarks.python_peers import PEERS
from benchmarks.results import Record, Results, load, save, speed_ratio
from benchmarks.searches import search
from benchmarks.throughput import check_implementation, solver
from benchmarks.timing import Contender, Outcome, Series, Skipped, interleaved, looped
from regal_jax import from_jax, save_graph
from regal_jax.datasets import generate
from regal_jax.encoding import decode, genes_to_keys
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import decode_order, decode_placement, replay
from regal_jax.problem import Bucket, make_problem
from regal_jax.programs import clear
from regal_jax.runtime.compiling import installed
from regal_jax.search import Status
from regal_jax.simulate import IMPLEMENTATIONS, simulate
from regal_jax.solve import solve

ROOT = pathlib.Path(__file__).parents[1]

# The cases ------------------------------------------------------------------------------------------


def small_cases() -> list[GraphCase]:
    """Small versions of the timed cases; the simulator ignores differences of the search."""
    search = {"objective": "makespan", "proposal": "uniform", "population": 3, "evaluations": 3, "graphs": 2}
    search |= {"method": "brkga"}
    every = (case for b in benchmarks("full") for case in b.cases.values())
    return list(dict.fromkeys(dataclasses.replace(case.small(), **search) for case in every))


@functools.partial(jax.jit, static_argnames="implementation")
def simulated(problem, genes, implementation):
    return simulate(problem, decode(problem, genes), implementation=implementation, positions=True)


# "xla" takes longest to compile; test_simulate.py compares it with the replay, too.
@pytest.mark.parametrize(
    ("case", "implementation"),
    [
        pytest.param(case, name, marks=pytest.mark.slow if name == "xla" else ())
        for case in small_cases()
        for name in IMPLEMENTATIONS
    ],
    ids=lambda c: c if isinstance(c, str) else f"{c.family}-{c.spread}-d{c.devices}-{c.transfer}",
)
def test_what_is_timed_equals_the_replay(case, implementation):
    try:
        check_implementation(implementation)
    except Skipped as reason:
        pytest.skip(str(reason))
    graphs, cluster = case.make_graphs(), case.cluster()
    problem = make_problem(graphs, cluster, Bucket(48, 48, 128, 0))  # A single shape needs few compilations.
    genes = random_genes(problem, np.random.default_rng(case.seed), case.population)
    check(graphs, [cluster] * len(graphs), genes, simulated(problem, genes, implementation))


def test_names_are_distinct_and_every_section_is_there():
    for size in SIZES:
        names = [b.name for b in benchmarks(size)]
        assert len(set(names)) == len(names)
        assert {name.split("/")[0] for name in names} <= SECTIONS.keys()
    assert {b.section for b in benchmarks("full")} == SECTIONS.keys()


def test_the_default_population_is_that_of_the_library():
    from regal_jax import BrkgaConfig

    assert GraphCase().config() == BrkgaConfig()


def test_selection():
    assert [b.name for b in select(["throughput/er-1*"], "full")] == [
        "throughput/er-100",
        "throughput/er-1000",
    ]
    assert {b.section for b in select(["phases", "compile"])} == {"phases", "compile"}
    assert select([]) == benchmarks()
    with pytest.raises(ConfigError, match="'nonsense'; sections are throughput"):
        select(["phases", "nonsense"])


# Timing ---------------------------------------------------------------------------------------------


def test_contenders_take_turns():
    calls = []

    def contender(label, warm):
        return Contender(label, lambda: calls.append(label) or Outcome(float(len(calls)), 5), warm=warm)

    series = interleaved([contender("a", True), contender("b", False)], repeats=2)
    assert calls == ["a", "a", "b", "a", "b"]
    assert series["a"] == Series((2.0, 4.0), evaluations=5, first=1.0)
    assert series["b"].first is None
    assert series["a"].median == 3
    assert series["a"].rates()["evaluations_per_second"] == pytest.approx(5 / 3)


def test_rounds_end_early_but_not_before_three():
    assert len(interleaved([Contender("a", lambda: Outcome(1.0))], 9, patience=0.0)["a"].values) == 3


def test_ratios_are_of_the_same_round():
    # Each round is twice as slow, regardless of the load in it.
    ours, other = Series((2.0, 20.0, 4.0), evaluations=10), Series((1.0, 10.0, 2.0), evaluations=10)
    assert speed_ratio(ours, other) == 0.5
    assert speed_ratio(ours, dataclasses.replace(other, evaluations=5)) == 1
    for none in (None, 0):
        idle = dataclasses.replace(other, evaluations=none)
        for pair in ((ours, idle), (idle, ours)):
            with pytest.raises(ValueError, match="without evaluations"):
                speed_ratio(*pair)


def test_short_calls_are_looped():
    calls = []
    contender = looped("a", lambda: calls.append(1), evaluations=3)
    contender.run()
    assert len(calls) == 2
    assert contender.run().evaluations == 3
    assert len(calls) > 10


def test_ctrl_c_in_a_search_ends_the_benchmark(monkeypatch):
    def interrupted(*args, **options):
        result = solve(*args, **options)
        return dataclasses.replace(result, status=(Status.INTERRUPTED,))

    contender = solver(GraphCase(ops=12, population=10, evaluations=10))
    monkeypatch.setattr(throughput, "solve", interrupted)
    with pytest.raises(KeyboardInterrupt):
        contender.run()


def test_a_case_names_its_encoding():
    case = GraphCase(
        ops=12, population=10, evaluations=26, encoding="schedule", transfer="blocking:latency=5"
    )
    found = solver(case).run()
    other = solver(dataclasses.replace(case, encoding="chromosome")).run()
    assert found.evaluations == other.evaluations == 26
    assert found.best < other.best


def test_padding_is_counted():
    case = GraphCase(ops=20, graphs=3, population=10)
    used = sum(g.num_ops * 5 for g in case.make_graphs())
    bucket = Bucket.of(case.make_graphs()[0])
    assert len({Bucket.of(g) for g in case.make_graphs()}) == 1
    benchmark = dataclasses.replace(select(["padding"])[0], cases={"": case})
    record = measure(benchmark, Options(fresh=False))
    total = 3 * (bucket.ops * 3 + bucket.tensors * 2)
    assert record.series["padded genes"].median == pytest.approx(1 - used / total)
    assert record.series["copies"].median == 0
    assert record.series["wasted"].median == pytest.approx(1 - used / total)
    many = dataclasses.replace(benchmark, cases={"": dataclasses.replace(case, graphs=56)})
    filled = measure(many, Options(fresh=False)).series
    assert filled["copies"].median == pytest.approx(1 / 8)
    assert filled["padded genes"].median == pytest.approx(1 - used / total)


# Peers ----------------------------------------------------------------------------------------------


def plain():
    builder = GraphBuilder("plain")
    builder.add_op("last", runtime=2.5, outputs=[7], inputs=["left", "right"])
    builder.add_op("first", runtime=1, outputs=[10])
    builder.add_op("left", runtime=0.1, outputs=[20], inputs=["first"])
    builder.add_op("right", runtime=3, outputs=[30], inputs=["first"])
    return builder


def test_the_peer_reads_this():
    assert peer_text(plain().build()) == "\n".join(
        ["4", "1 10 0", "0.10000000000000001 20 1 0", "3 30 1 0", "2.5 7 2 1 2", ""]
    )


@pytest.mark.parametrize(
    ("what", "options"),
    [
        ("without exactly one output", {"inputs": ["left"]}),
        ("without exactly one output", {"outputs": [1, 2]}),
        ("control edges", {"outputs": [1], "control_inputs": ["left"]}),
        ("scratch memory", {"outputs": [1], "temp_bytes": 3}),
        ("tensors to keep", {"outputs": [1], "keep": [0]}),
        ("residents", {"outputs": [1], "resident": True}),
        ("ops tied to devices", {"outputs": [1], "allowed_devices": [0]}),
        ("colocation groups", {"outputs": [1], "colocation_group": "g"}),
    ],
)
def test_what_a_peer_cannot_know_is_refused(what, options):
    builder = plain()
    builder.add_op("odd", **options)
    with pytest.raises(ConfigError, match=f"'plain' has .*{what}"):
        peer_text(builder.build())


def fake_peer(tmp_path, body):
    path = tmp_path / "peer"
    path.write_text(f"#!{sys.executable}\nimport sys, pathlib\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_peer_gets_the_graphs_and_settings_of_the_case(tmp_path):
    log = tmp_path / "log"
    body = (
        f"with open({str(log)!r}, 'a') as f: "
        "f.write(repr([pathlib.Path(sys.argv[1]).read_text(), *sys.argv[2:]]) + '\\n')\n"
        "print('ops 12 evaluations 80 best 3.5 seconds 0.0000 evaluations_per_second 160.0')"
    )
    case = GraphCase(
        ops=12, graphs=2, devices=3, population=20, evaluations=90, objective="peak-memory", seed=4
    )
    outcome = peer(fake_peer(tmp_path, body), case).run()
    assert outcome == Outcome(1.0, 160, 3.5)
    settings = ["3", "90", "20", "peak"]
    expected = [[peer_text(graph), *settings, str(4 + i)] for i, graph in enumerate(case.make_graphs())]
    assert log.read_text().splitlines() == [repr(each) for each in expected]


def test_a_peer_that_says_something_else(tmp_path):
    contender = peer(fake_peer(tmp_path, "print('hello'); sys.exit(3)"), GraphCase(ops=4))
    with pytest.raises(ConfigError, match="ended with 3 and said 'hello'"):
        contender.run()
    with pytest.raises(Skipped, match="uniform proposal, not beta"):
        peer("peer", GraphCase(proposal="beta"))
    with pytest.raises(Skipped, match="not free"):
        peer("peer", GraphCase(transfer="free"))


@pytest.mark.parametrize("family", ["erdos-renyi", "layered"])
@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("levels", [4, 65536])
def test_the_python_decoder_equals_the_replay(family, devices, levels):
    graph, cluster = GraphCase(family, ops=60).make_graphs()[0], Cluster.uniform(devices, transfer="blocking")
    problem = make_problem([graph], cluster, Bucket.exact(graph))
    rng = np.random.default_rng(levels + devices)
    decoder = PythonDecoder(graph, devices)
    for _ in range(5):
        genes = {name: leaf[0, 0] % np.uint32(levels) for name, leaf in random_genes(problem, rng, 1).items()}
        keys = genes_to_keys(genes)
        placement = decode_placement(graph, cluster, keys["affinity"])
        order = decode_order(graph, cluster, placement, keys["priority"], keys["transfer_priority"])
        timeline = replay(graph, cluster, placement, order)
        makespan, peak = decoder(genes_in_order(genes))
        assert makespan == pytest.approx(timeline.makespan, rel=1e-12)
        assert peak == timeline.peak_memory.max()


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("objective", ["makespan", "peak-memory"])
def test_library_peers_spend_the_same_budget(name, objective):
    case = GraphCase(ops=20, population=20, evaluations=150, objective=objective)
    try:
        outcome = PEERS[name](case).run()
    except Skipped as reason:
        pytest.skip(str(reason))
    ours = solver(case).run()
    assert outcome.evaluations == ours.evaluations
    assert outcome.best == pytest.approx(ours.best, rel=0.3)


# Results --------------------------------------------------------------------------------------------


def results(*values, name="throughput/er-12", derived=None):
    series = {"regal_jax": Series(values, evaluations=26, first=2.0, best=1.5)}
    environment = {"commit": None, "dirty": None, "hardware": {}, "versions": {"jax": "1"}}
    return Results(environment, {"size": "smoke"}, [Record(name, {"": {"ops": 12}}, series, derived or {})])


def saved(tmp_path, name, content):
    path = tmp_path / name
    save(content, path)
    return str(path)


def test_results_survive_the_file(tmp_path):
    before = results(1.0, 1.25, derived={"regal_jax vs peer": 0.5})
    before.records[0].skipped["host"] = "absent"
    path = saved(tmp_path, "a.json", before)
    assert load(path) == before
    document = json.loads(pathlib.Path(path).read_text())
    assert document["version"] == 1
    rates = document["records"][0]["series"]["regal_jax"]["rates"]
    assert rates["microseconds_per_evaluation"] == pytest.approx(1.125e6 / 26)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: "{", "not JSON"),
        (lambda d: "[]", "no results of"),
        (lambda d: json.dumps(d | {"schema": "other"}), "no results of"),
        (lambda d: json.dumps(d | {"version": 2}), "version 2, this is 1"),
        (lambda d: json.dumps(d | {"records": [{"name": "a"}]}), "damaged"),
        (lambda d: json.dumps(d | {"records": 3}), "damaged"),
        (lambda d: json.dumps(d).replace("[1.0, 1.25]", "[]"), "damaged"),
        (lambda d: json.dumps(d).replace("[1.0, 1.25]", "[1.0, null]"), "damaged"),
    ],
)
def test_bad_files_are_refused(tmp_path, capsys, change, message):
    path = pathlib.Path(saved(tmp_path, "a.json", results(1.0, 1.25)))
    path.write_text(change(json.loads(path.read_text())))
    with pytest.raises(FormatError, match=message):
        load(path)
    assert main(["compare", str(path), str(path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_compare_passes_equals_and_noise(tmp_path, capsys):
    a = saved(tmp_path, "a.json", results(1.0, 1.3, 1.1, 1.2, 1.15))
    b = saved(tmp_path, "b.json", results(1.25, 1.1, 1.35, 1.12, 1.22))
    assert main(["compare", a, a, "--fail-above", "1"]) == 0
    assert main(["compare", a, b, "--fail-above", "1"]) == 0
    assert "0 slower, 0 faster, 1 same" in capsys.readouterr().out


def test_compare_finds_a_planted_slowdown(tmp_path, capsys):
    a = saved(tmp_path, "a.json", results(1.0, 1.3, 1.1, 1.2, 1.15))
    b = saved(tmp_path, "b.json", results(*(1.4 * v for v in (1.0, 1.3, 1.1, 1.2, 1.15))))
    assert main(["compare", a, b, "--fail-above", "1.3"]) == 1
    captured = capsys.readouterr()
    assert "1 slower" in captured.out
    assert "throughput/er-12 regal_jax, 1.40 x" in captured.err
    assert main(["compare", a, b, "--fail-above", "1.5"]) == 0
    assert main(["compare", a, b]) == 0
    assert main(["compare", b, a, "--fail-above", "1.3"]) == 0
    assert "1 faster" in capsys.readouterr().out


def test_compare_knows_what_it_cannot_tell():
    one, two = results(1.0), results(2.0)
    assert compare(one, two)[0].verdict == "too few repeats"
    other = results(1.0)
    other.records[0].parameters[""]["ops"] = 13
    with pytest.raises(ConfigError, match="same parameters in common"):
        compare(one, other)


def test_compare_by_the_peer_cancels_what_the_machine_did():
    before = results(1.0, 1.0, 1.0, derived={"regal_jax vs peer": 0.5})
    after = results(2.0, 2.0, 2.0, derived={"regal_jax vs peer": 0.5})
    change = compare(before, after)[0]
    assert (change.ratio, change.by_peer) == (2, 1)
    after.records[0].derived["regal_jax vs peer"] = 0.25
    assert compare(before, after)[0].by_peer == 2


# The command ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nonsense"], "no benchmark of size 'default' is called 'nonsense'"),
        (["run", "padding", "--implementation", "abacus"], "unknown 'abacus'; use one of"),
        (["run", "padding", "--peer", "no-such-program"], "is no program that can be run"),
        (["run", "padding", "--out", "no-such-folder/a.json"], "make it first"),
        (["compare", "no-such-file", "no-such-file"], "cannot be read"),
        (["plot", "no-such-file", "--out", "a.png"], "cannot be read"),
    ],
)
def test_bad_input_is_one_line(capsys, arguments, message):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1


def test_every_command_has_its_module_and_the_examples_are_read(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"\n    {name}" in said for name in COMMANDS)
    lines = [line.strip().split("  (")[0] for line in said.split("examples:\n")[1].splitlines()[:-1]]
    examples = [shlex.split(line)[3:] for line in lines]
    assert {words[0] for words in examples} >= COMMANDS.keys() - {"list"}
    for words in examples:
        assert parser(words[0]).parse_args(words).call.__name__ == "run"


def test_list(capsys):
    assert main(["list", "--size", "full"]) == 0
    said = capsys.readouterr().out
    assert all(f"\n  {b.name} " in said for b in benchmarks("full"))


def test_the_command_runs_in_a_process_of_its_own():
    command = [sys.executable, "-m", "benchmarks", "list"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n  throughput/er-100 " in done.stdout


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_smoke(tmp_path, capsys, every):
    """The whole command: its sections, the file, the trace, the figure."""
    out, traces, figure = tmp_path / "a.json", tmp_path / "traces", tmp_path / "a.png"

    line = "ops 12 evaluations 26 best 300 seconds 0.0001 evaluations_per_second 260000.0"
    binary = fake_peer(tmp_path, f"print({line!r})")
    # Compilation takes most of the time. Other tests measure these three: `test_padding_is_counted`, and in
    # test_certify.py `test_smoke` and `test_shares_of_bandwidth_are_shares`.
    others = ("padding", "training", "phases")
    # Their cases differ from those of throughput in one parameter.
    others += () if every else ("batch", "population", "devices", "objective", "transfer")
    # `test_smoke` in test_certify.py, and `test_library_peers_spend_the_same_budget`.
    others += () if every else ("implementations", "python")
    # `test_every_repeat_of_a_start_is_a_new_process`; "memory" starts the same process.
    others += () if every else ("start",)
    # It compiles in a new process; `test_loops_that_take_no_time_are_in_the_sum_alone` has made-up times.
    others += () if every else ("loops",)
    sections = [section for section in SECTIONS if section not in others]
    sections = [section for section in sections if any(b.section == section for b in benchmarks("smoke"))]
    files = ["--out", str(out), "--profile", str(traces), "--peer", binary]
    clear()  # The first call includes compilation only where no earlier test has used the program.
    assert main(["run", *sections, "--size", "smoke", *files]) == 0
    said = capsys.readouterr().out
    document = json.loads(out.read_text())
    assert {"commit", "dirty", "date", "versions", "hardware", "load_average", "settings"} <= document.keys()
    assert {"python", "jax", "jaxlib", "numpy", "numba"} <= document["versions"].keys()
    assert {"cpu", "cores", "accelerator"} <= document["hardware"].keys()
    records = {record["name"]: record for record in document["records"]}
    assert set(records) == {b.name for b in benchmarks("smoke") if b.section in sections}
    assert all(f"\n{name} " in said for name in records)
    throughput = records["throughput/er-12"]
    assert throughput["parameters"][""]["ops"] == 12
    assert throughput["series"]["regal_jax"]["evaluations"] == 26
    assert throughput["series"]["regal_jax"]["first"] > throughput["series"]["regal_jax"]["values"][0]
    assert throughput["derived"]["regal_jax vs peer"] > 0
    assert records["proposal/er-12"]["skipped"]["beta peer"]
    assert set(records["compile/er-12"]["series"]) == {"trace", "lower", "compile", "total"}
    assert not every or records["start/er-12"]["series"]["first call, filled cache"]["values"]
    memory = records["memory/er-12"]["series"]
    assert memory["process peak"]["values"][0] > memory["process before"]["values"][0] > 2**20
    searches = records["searches/er-12"]
    assert (
        searches["series"]["brkga"]["evaluations"] == searches["series"]["list-search"]["evaluations"] == 26
    )
    assert searches["derived"]["list-search vs brkga"] > 0
    assert not every or installed() == bool(records["loops/er-12"]["series"])
    assert list(traces.rglob("*.xplane.pb"))
    assert load(out).records[0].name == "throughput/er-12"
    assert main(["plot", str(out), "--out", str(figure)]) == 0
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_loops_that_take_no_time_are_in_the_sum_alone(monkeypatch):
    rounds = [{"schedule": 2.0, "tiny": 0.01}, {"schedule": 3.0, "tiny": 0.02, "other": 1.0}]
    made = iter(rounds)
    monkeypatch.setattr(loops, "usable", lambda: True)
    monkeypatch.setattr(loops, "python", lambda *args, **caches: json.dumps(next(made)))
    found = loops.loop_times(GraphCase(), 2)
    assert {name: each.values for name, each in found.items()} == {
        "schedule": (2.0, 3.0),
        "all": (2.01, 4.02),
    }
    monkeypatch.setattr(loops, "usable", lambda: False)
    assert measure(select(["loops/makespan"])[0], Options()).skipped == {"all": "Numba is not in use"}


@pytest.mark.parametrize(
    "benchmark", [b for b in benchmarks() if b.section in ("searches", "loops")], ids=lambda b: b.name
)
def test_searches_have_plans(benchmark):
    for label, case in benchmark.cases.items():
        case = dataclasses.replace(case.small(), method=case.method, evaluations=20)
        assert label in ("", case.method)
        outcome = search(case).run()
        assert outcome.evaluations is None or outcome.evaluations >= 1
        assert outcome.best is not None
        assert outcome.best > 0


@pytest.mark.slow
def test_every_repeat_of_a_start_is_a_new_process(monkeypatch):
    made, caches = [], []

    def child(case, implementation, cache):
        made.append(cache)
        caches.append(any(pathlib.Path(cache).iterdir()))
        (pathlib.Path(cache) / "program").touch()
        return {"seconds": 1.0 + len(made)}

    monkeypatch.setattr(fresh, "_child", child)
    monkeypatch.setattr(fresh, "_IMPORTS", {"import": "from regal_jax import optimize"})
    found = fresh.start_times(GraphCase(ops=12), None, 2)
    # The cache of the second process is what the first has left.
    assert (made[0], made[2]) == (made[1], made[3])
    assert made[0] != made[2]
    assert caches == [False, True] * 2
    assert found["first call, empty cache"].values == (2.0, 4.0)
    assert found["first call, filled cache"].values == (3.0, 5.0)
    assert len(found["process, filled cache"].values) == 2
    assert len(found["import"].values) == 2
    assert all(0 < seconds < 60 for seconds in found["import"].values)


@pytest.mark.slow
def test_what_priorities_are_worth(capsys):
    assert main(["orders", "guide", "--ops", "16", "--graphs", "2", "--budgets", "5", "20"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:2] == ["16", "ops"]
    assert [line.split("  ")[0] for line in table[1:]] == [
        "no guide", "random priorities", "network 'default'", "network 'standardised'"
    ]  # fmt: skip
    # The rows are compared with themselves.
    assert table[1].count("+0.00 % ± 0.00") == 2
    assert main(["orders", "proposal", "--ops", "12", "--graphs", "1", "--budgets", "150"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_seconds_of_orders(capsys):
    assert main(["order-seconds", "--ops", "12", "--graphs", "2", "--references", "1", "--samples", "4"]) == 0
    head, reference, network = (line.split() for line in capsys.readouterr().out.splitlines()[1:])
    assert head[:2] == ["ops", "method"]
    assert reference[:3] == ["12", "approximate", "DP"]
    assert network[:2] == ["12", "default"]
    seconds, inputs, gap, ratio = float(network[2]), float(network[4]), network[6], float(network[7])
    assert 0 < inputs < seconds
    assert float(gap.rstrip("%")) >= 0  # Approximate DP is exact on so few ops.
    assert ratio > 0


@pytest.mark.parametrize("document", ["corpus.json", "manifest.json"])
def test_contraction_takes_the_folder_of_a_corpus_or_of_a_set(tmp_path, capsys, document):
    folder = tmp_path / "corpus"
    (folder / "graphs").mkdir(parents=True)
    (folder / document).write_text('{"format": "regal_jax.other"}')
    save_graph(generate("layered", 8, seed=0), folder / "graphs" / "one.json.gz")
    arguments = ["contract", "--graphs", str(folder), "--objective", "peak-memory", "--evaluations", "150"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["one", "peak-memory", "8"]


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(0)
    for _ in range(5):
        a, b = rng.integers(0, 6, 20).astype(float), rng.random(20)
        assert rank_correlation(list(a), list(b)) == pytest.approx(scipy.stats.spearmanr(a, b).statistic)
    assert np.isnan(rank_correlation([1.0, 1.0], [1.0, 2.0]))


def test_various_plans_are_valid_and_differ():
    fn, operands = programs(8)["experts"]
    graph = from_jax(fn, *operands, resident_argnums=0, profile="cpu")
    plans = list(various_plans(graph, Cluster.uniform(2), 5))
    assert len(plans) == 5
    for plan in plans:
        plan.verify(graph)
    assert len({plan.placement.tobytes() for plan in plans}) >= 4


@pytest.mark.parametrize(("method", "objective"), [("heft", "makespan"), ("peak-balance", "peak-memory")])
def test_first_plans(method, objective, monkeypatch, tmp_path, capsys):
    # Without the two processes for each kind of links.
    monkeypatch.setattr(first_plan, "_process", lambda task, folder: first_plan.child(task))
    out = tmp_path / "rows.json"
    few = ["--graphs", "2", "--least", "5", "--most", "8", "--method", method, "--objective", objective]
    assert main(["first-plan", *few, "--out", str(out)]) == 0
    rows = json.loads(out.read_text())
    assert [row["links"] for row in rows] == ["pcie4x16"] * 3 + ["free"] * 3
    assert len({row["plans"] for row in rows[:3]}) == 1
    assert capsys.readouterr().out.count("plans equal") == 2


def test_a_process_of_first_plans_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", "false")
    assert main(["first-plan", "--graphs", "1"]) == 2
    assert "a new process ended with 1" in capsys.readouterr().err
