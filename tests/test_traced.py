"""Traced programs on disk: any file gives the same program or none."""

import functools
import hashlib
import importlib
import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from learning_cases import spread_of, tiny_config

from regal_jax import Cluster, optimize
from regal_jax.datasets import generate
from regal_jax.encoding import PlanMoves
from regal_jax.learning.step import Learner
from regal_jax.plan import Objective
from regal_jax.problem import Bucket, make_problem
from regal_jax.programs import clear, stored, traced
from regal_jax.programs.words import UnnamedError, module_word, module_words, tree_word, word
from regal_jax.search import BrkgaConfig, BrkgaSearcher, Inputs, Limits, Stopping, UniformProposal, brkga
from regal_jax.search.run import _run_chunk, _start
from regal_jax.simulate import simulate
from regal_jax.solve import CHROMOSOME, graph_keys
from regal_jax.solve.solve import _fitness

brkga_module, loop_module = map(importlib.import_module, ("regal_jax.search.brkga", "regal_jax.search.loop"))
validate_module = importlib.import_module("regal_jax.learning.validate")
GRAPH = generate("erdos-renyi", 30, 0)
TWO = Cluster.uniform(2, transfer="blocking")
PROGRAMS = ["_run_chunk", "_start", "keys_of"]
"""What `searched` traces."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where traces go; nothing is in memory."""
    monkeypatch.setattr(traced, "trace_folder", lambda: tmp_path)
    clear()
    yield tmp_path
    clear()


@pytest.fixture
def exports(monkeypatch):
    """Names of the programs that were traced."""
    made = []
    export = traced._export

    def counted(path, *rest):
        made.append(path.name.rpartition("-")[0])
        return export(path, *rest)

    monkeypatch.setattr(traced, "_export", counted)
    return made


def searched(**options):
    clear()
    return optimize(GRAPH, TWO, method="brkga", evaluations=300, warm_start=False, **options)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A plan, and the folder of traced programs that found it; tests must not change them."""
    path = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(traced, "trace_folder", lambda: path)
        return searched(), path


def same(one, other):
    assert one.makespan == other.makespan
    np.testing.assert_array_equal(one.placement, other.placement)
    assert one.provenance["history"] == other.provenance["history"]


def test_what_is_on_the_disk_is_not_traced_again_and_changes_no_plan(folder, exports, monkeypatch):
    first = searched()
    assert sorted(exports) == PROGRAMS
    assert len(list(folder.iterdir())) == len(PROGRAMS)
    second = searched()
    assert len(exports) == len(PROGRAMS)
    same(first, second)
    monkeypatch.setattr(traced, "trace_folder", lambda: None)
    same(first, searched())
    assert len(exports) == len(PROGRAMS)


# By default, the programs of a search without a policy.
@pytest.mark.slow
def test_a_policy_is_on_the_disk_too(folder, exports):
    first = searched(policy="default")
    assert "_propose" in exports
    count = len(exports)
    same(first, searched(policy="default"))
    assert len(exports) == count


# By default, test_programs.py has a process that finds the programs of another one.
@pytest.mark.slow
def test_another_process_finds_them(tmp_path):
    code = (
        "from regal_jax import Cluster, optimize\n"
        "from regal_jax.datasets import generate\n"
        "from regal_jax.programs import traced\n"
        "made, export = [], traced._export\n"
        "traced._export = lambda *a: made.append(a) or export(*a)\n"
        "plan = optimize(generate('layered', 20, 0), Cluster.uniform(2), method='brkga', evaluations=100)\n"
        "print(len(made), plan.makespan)\n"
    )
    lines = [
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=environment(tmp_path),
        ).stdout.split()
        for _ in range(2)
    ]
    assert int(lines[0][0]) >= 2
    assert lines[1] == ["0", lines[0][1]]


def environment(folder):
    import os

    return {**os.environ, "REGAL_JAX_CACHE": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}


def cut(data):
    return data[: len(data) // 2]


def flipped(data):
    return data[:-100] + bytes([data[-100] ^ 1]) + data[-99:]


def of_another(data):
    head, _, body = data.partition(b"\n")
    return json.dumps({**json.loads(head), "about": {}}).encode() + b"\n" + body


def calling(data):
    head, _, body = data.partition(b"\n")
    return json.dumps({**json.loads(head), "calls": ["nobody_knows"]}).encode() + b"\n" + body


def nonsense(data):
    """A complete file of another format with a valid digest."""
    head, body = json.loads(data.partition(b"\n")[0]), b"nonsense" * 100
    return json.dumps({**head, "digest": hashlib.sha256(body).hexdigest()}).encode() + b"\n" + body


@pytest.mark.parametrize(
    "damage",
    [
        # By default, a file that ends too early; the test below has programs of other functions.
        cut,
        *(
            pytest.param(d, marks=pytest.mark.slow)
            for d in (of_another, lambda data: b"", flipped, calling, nonsense)
        ),
    ],
)
def test_a_file_that_is_not_right_is_made_again(damage, kept, folder, exports):
    first, right = kept
    for file in right.iterdir():
        (folder / file.name).write_bytes(damage(file.read_bytes()))
    same(first, searched())
    assert sorted(exports) == PROGRAMS
    assert {file.name for file in folder.iterdir()} == {file.name for file in right.iterdir()}
    # The files that were written again are valid.
    same(first, searched())
    assert len(exports) == len(PROGRAMS)


def test_what_was_traced_with_another_function_or_constant_is_not_taken(kept, folder, exports, monkeypatch):
    first, right = kept
    shutil.copytree(right, folder, dirs_exist_ok=True)
    improve = brkga_module.improve

    def worse(incumbent, genes, fitness):
        return improve(incumbent, genes, fitness + 1)

    with monkeypatch.context() as patch:
        patch.setattr(brkga_module, "improve", worse)
        other = searched()
    assert other.provenance["history"] != first.provenance["history"]
    assert sorted(exports) == PROGRAMS
    # The programs that were traced meanwhile are not used afterwards.
    same(first, searched())
    assert len(exports) == 2 * len(PROGRAMS)


# Searches traced with another function are in the default tests.
@pytest.mark.slow
def test_a_validation_traced_with_another_function_is_not_taken(folder, exports, monkeypatch):
    learner = Learner(tiny_config())
    weights, (mesh, pool) = nnx.state(learner.networks()[0]), spread_of(learner.config)

    def entropy():
        clear()
        return validate_module.validate(learner, mesh, weights, [pool], jax.random.key(0)).entropy

    first = entropy()
    assert first > 0
    with monkeypatch.context() as patch:
        patch.setattr(validate_module, "entropy", lambda logits, mask: jnp.zeros(len(mask)))
        assert entropy() == 0
    assert entropy() == first
    made = len(exports)
    assert entropy() == first
    assert len(exports) == made


@pytest.mark.parametrize(
    ("holder", "name", "value"),
    [
        ("regal_jax.search.loop", "improve", lambda *a: None),
        ("regal_jax.search.loop", "HISTORY", 7),
        ("regal_jax.search.brkga:BrkgaSearcher", "step", lambda *a: None),
        ("regal_jax.simulate.simulate", "IMPLEMENTATIONS", {}),
        ("regal_jax.search.run", "start", loop_module.improve),
    ],
)
def test_the_word_of_a_module_tells_what_was_replaced(holder, name, value, monkeypatch):
    module, _, kind = holder.partition(":")
    held = importlib.import_module(module)
    before = module_word(module)
    assert before == module_word(module)
    monkeypatch.setattr(getattr(held, kind) if kind else held, name, value)
    assert module_word(module) != before


def test_a_room_is_not_one_whose_name_begins_like_it():
    import regal_jax.solvers  # noqa: F401

    names = module_words()
    assert {"regal_jax.solve", "regal_jax.solve.solve", "regal_jax.simulate"} <= names.keys()
    assert not [name for name in names if name.startswith("regal_jax.solvers")]


def test_words():
    assert word((1, "a", None, 2.5)) == word((1, "a", None, 2.5))
    apart = [1, 1.0, True, "1", (1,), [1], None, {1: 1}, frozenset((1,)), b"1", int, jnp.float32, simulate]
    apart += [
        BrkgaConfig(),
        BrkgaConfig(population=70),
        PlanMoves(),
        functools.partial(simulate, memory=True),
    ]
    apart += [functools.partial(simulate, memory=False), Bucket(1, 2, 3, 4), Bucket(2, 1, 3, 4)]
    apart += [jax.tree.structure(tree) for tree in (1, (1,), [1], {"a": 1}, {"b": 1}, None, Limits(1, 2))]
    apart += [UniformProposal.of(jax.ShapeDtypeStruct((n,), np.uint16)) for n in (1, 2)]
    assert len({word(each) for each in apart}) == len(apart)
    assert tree_word(jax.tree.structure((1, Limits(1, 2)))) != tree_word(
        jax.tree.structure((Limits(1, 2), 1))
    )


def mine(problem, genes):
    return genes.astype(jnp.float32).sum(-1) - problem.sum(-1)


@pytest.mark.parametrize(
    "value",
    [
        lambda x: x,
        mine,
        functools.partial(mine, problem=1),
        object(),
        np.ones(2),
        (1, [mine]),
        pathlib.Path(),
    ],
)
def test_what_is_the_callers_own_has_no_word(value):
    with pytest.raises(UnnamedError):
        word(value)


def test_a_search_of_the_callers_own_function_leaves_no_file(folder):
    sample = UniformProposal.of(jax.ShapeDtypeStruct((4,), jnp.uint16))
    keys = jax.random.split(jax.random.key(0), 1)
    result = brkga(mine, jnp.ones((1, 1, 4)), keys, Stopping(300), sample_fn=sample)
    assert np.isfinite(result.fitness).all()
    assert not list(folder.iterdir())


def test_arguments_spread_over_devices_are_traced_for_them(folder, exports):
    """A program on the disk is for one device."""
    graphs = [generate("layered", 10, i) for i in range(4)]
    expected = np.asarray(jax.random.key_data(graph_keys(jax.random.key(0), graphs)))
    assert exports == ["keys_of"]
    mesh = jax.make_mesh((4,), ("graphs",), axis_types=(jax.sharding.AxisType.Auto,))
    key = jax.device_put(jax.random.key(0), NamedSharding(mesh, PartitionSpec()))
    found = graph_keys(key, graphs)
    np.testing.assert_array_equal(jax.random.key_data(found), expected)
    assert exports == ["keys_of"]


def test_a_folder_that_cannot_be_written_to_harms_nothing(kept, folder, exports):
    first, _ = kept
    shutil.rmtree(folder)
    same(first, searched())
    assert sorted(exports) == PROGRAMS


@pytest.fixture
def chosen():
    """Clears the choice of the folder."""
    stored.trace_folder.cache_clear()
    yield
    stored.trace_folder.cache_clear()


def test_no_folder_where_caches_are_off(chosen, monkeypatch):
    assert stored.trace_folder() is not None
    monkeypatch.setenv("REGAL_JAX_CACHE", "off")
    stored.trace_folder.cache_clear()
    assert stored.trace_folder() is None


def test_no_folder_where_the_cache_of_jax_is_off(chosen):
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert stored.trace_folder() is None
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.slow
def test_what_is_donated_is_used_up(folder, exports):
    """Donated arguments are used up, also by a program from the disk."""
    problem = make_problem([GRAPH], [TWO])
    searcher = BrkgaSearcher(
        _fitness(Objective.MAKESPAN, None), CHROMOSOME.sampler(problem, None), BrkgaConfig(population=50)
    )
    inputs = Inputs(problem, None, graph_keys(jax.random.key(0), [GRAPH]))
    for _ in range(2):
        clear()
        state = _start(searcher, inputs, Limits.none(1), None, None)
        _run_chunk(searcher, inputs, Limits.none(1), state, np.int32(1), None)
        assert state.fitness.is_deleted()
        assert not inputs.keys.is_deleted()
    assert exports == ["keys_of", "_start", "_run_chunk"]
