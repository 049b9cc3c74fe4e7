"""The checks of numbers, and uniqueness of helpers: each has a single definition."""

import ast
import enum
import functools
import inspect
import math
import operator
import pathlib
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import regal_jax
from regal_jax import BrkgaConfig, Cluster, Gflownet, optimize, optimize_many
from regal_jax.checks import check_number, check_whole, is_number, real, shown, whole
from regal_jax.datasets import generate
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.experiments import EvaluationConfig, method_names
from regal_jax.heuristics import ListSearchConfig, OrderSearchConfig
from regal_jax.problem import Bucket
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.registry import own_entries

HUGE = 10**5000
KINDS = (int, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.array, jnp.int32)


class Three(enum.IntEnum):
    THREE = 3


NO_NUMBERS = st.one_of(
    st.text(max_size=5),
    st.none(),
    st.booleans(),
    st.booleans().map(np.bool_),
    st.booleans().map(np.array),
    st.complex_numbers(),
    st.lists(st.integers(), max_size=2),
    st.lists(st.integers(-9, 9), max_size=2).map(np.array),
    st.binary(max_size=3),
)
LIMITS = st.none() | st.integers(-130, 130)


@given(
    st.tuples(st.integers(0, 100), st.sampled_from(KINDS)) | st.tuples(st.integers(), st.just(int)),
    LIMITS,
    LIMITS,
)
def test_whole_numbers_of_every_kind_are_found(pair, least, most):
    value, kind = pair
    found = whole(kind(value), least, most)
    inside = (least is None or value >= least) and (most is None or value <= most)
    assert found == (value if inside else None)
    assert found is None or type(found) is int


@given(NO_NUMBERS | st.floats() | st.floats().map(np.float64), LIMITS)
def test_what_is_no_whole_number_is_none(value, least):
    assert whole(value, least) is None
    with pytest.raises(ConfigError, match=r"^it: must be a whole number of at least 0, got "):
        check_whole("it", value, 0)


@given(
    st.integers() | st.floats() | st.floats(width=32).map(np.float32) | st.fractions(),
    st.none() | st.floats(-10, 10),
    st.none() | st.floats(-10, 10),
    st.booleans(),
    st.booleans(),
)
def test_numbers_are_found_in_their_range(value, low, high, open_ends, infinite):
    if open_ends:
        found = real(value, above=low, below=high, infinite=infinite)
    else:
        found = real(value, low, high, infinite=infinite)
    less = operator.lt if open_ends else operator.le
    inside = (low is None or less(low, float(value))) and (high is None or less(float(value), high))
    allowed = not math.isnan(value) and (infinite or not math.isinf(value))
    assert found == (float(value) if inside and allowed else None)
    assert found is None or type(found) is float


@given(NO_NUMBERS)
def test_what_is_no_number_is_none(value):
    assert real(value) is None
    assert not is_number(value)
    with pytest.raises(ConfigError, match=r"^it: must be a number from 0 to 1, got "):
        check_number("it", value, 0, 1)


def test_numbers_at_the_edges():
    assert whole(Three.THREE) == 3
    assert whole(HUGE) == HUGE
    assert whole(HUGE, most=9) is None
    assert is_number(HUGE)
    assert is_number(math.nan)
    # No float is as large.
    assert real(HUGE) is None
    assert real(-HUGE, infinite=True) is None
    assert real(math.inf, 0, math.inf) is None
    assert real(math.inf, 0, math.inf, infinite=True) == math.inf
    assert real(math.nan, infinite=True) is None
    assert real(Fraction(1, 2), 0, 1) == 0.5
    assert check_number("it", np.float32(0.5), 0, 1) == 0.5
    assert check_whole("it", np.uint8(7), 7, 7) == 7


def test_a_message_says_which_limit_is_broken_and_shows_every_value():
    with pytest.raises(ConfigError, match=r"^it: must be a whole number of at least 2, got 1$"):
        check_whole("it", 1, 2, 5)
    with pytest.raises(ConfigError, match=r"^it: must be a whole number of at most 5, got 6$"):
        check_whole("it", 6, 2, 5)
    assert shown("a") == "'a'"
    # Python writes no whole number of more than 4300 digits.
    assert shown(HUGE) == "a whole number of 16610 bits"
    assert shown([HUGE]) == "a list of numbers too long to write"


def test_long_values_and_messages_lose_their_middle():
    long = shown("a" * 500 + "b" * 500)
    assert long == f"'{99 * 'a'} ... {99 * 'b'}'"
    with pytest.raises(ConfigError) as raised:
        optimize(generate("chain", 3, 0), Cluster.uniform(2), method="x" * 20_000)
    assert len(str(raised.value)) == 2005
    assert str(raised.value).startswith("method: unknown 'xxx")
    with pytest.raises(ConfigError) as raised:
        optimize(generate("chain", 3, 0), Cluster.uniform(2), evaluations=[0] * 5000)
    message = str(raised.value)
    assert message.startswith("evaluations: must be a whole number")
    assert len(message) < 300


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda n: BrkgaConfig(population=n), ConfigError, "population is {}; give a whole number"),
        (lambda n: Cluster.uniform(n), ClusterError, "cluster: {} devices; at most"),
        (lambda n: Bucket(1, 1, 1, -n), ConfigError, "bucket: controls must be .*, got {}"),
        (lambda n: ListSearchConfig(rank_noise=n), ConfigError, "rank_noise is {}; give a number"),
        (
            lambda n: EvaluationConfig("sample", chunk=n),
            ConfigError,
            "chunk: .* at most 2147483647, got {}",
        ),
    ],
)
def test_numbers_of_thousands_of_digits_are_refused_in_words(make, error, message):
    with pytest.raises(error, match=message.format("a whole number of 16610 bits")):
        make(HUGE)


def test_what_a_setting_holds_is_a_plain_number():
    config = ListSearchConfig(ranks=np.int32(4), rank_noise=np.float32(0.5))
    assert (type(config.ranks), type(config.rank_noise)) == (int, float)
    config = OrderSearchConfig(steps=[np.float32(0.5), 1], noise=np.float32(0.5), guide=np.float32(0.25))
    assert (config.steps, config.noise, config.guide) == ((0.5, 1.0), 0.5, 0.25)
    assert {*map(type, (*config.steps, config.noise, config.guide))} == {float}
    assert type(Gflownet(temperature=np.float32(0.5)).temperature) is float
    assert Cluster.uniform(np.int64(3)) == Cluster.uniform(3)
    assert {type(n) for n in vars(Bucket(*map(np.int64, (4, 3, 2, 1)))).values()} == {int}


PACKAGE = pathlib.Path(regal_jax.__file__).parent


@functools.cache
def nodes():
    """All nodes of each module of the package."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    return {name: [*ast.walk(ast.parse(text))] for name, text in texts.items()}


def modules_where(found):
    """The modules of the package that have a node of which ``found`` is true."""
    return {name for name, each in nodes().items() if any(map(found, each))}


def asks_for_a_bool(node):
    """Whether this is ``isinstance(_, bool)``, alone or as one of several types."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and any(
            (isinstance(part, ast.Name) and part.id == "bool")
            or (isinstance(part, ast.Attribute) and part.attr in ("bool", "bool_"))
            for part in ast.walk(node.args[1])
        )
    )


def asks_for_a_whole_number(node):
    """Whether this is ``operator.index`` or one of the types of all whole numbers."""
    return (
        isinstance(node, ast.Attribute)
        and (getattr(node.value, "id", ""), node.attr)
        in {("operator", "index"), ("numbers", "Integral"), ("numbers", "Real"), ("np", "integer")}
    ) or (isinstance(node, ast.ImportFrom) and node.module == "numbers")


FLAGS = {
    "solvers/loop/earlier.py": "warm_start is true or false, or plans",
    "solvers/loop/settings.py": "contract is true, false or None",
    "experiments/config.py": "contract and warm_up are true or false",
    "policies/checks.py": "settings that are true or false, and lists of numbers",
    "solvers/orders.py": "held is true or false",
    "graph/builder.py": "resident is true or false",
    "graph/units.py": "a quantity is whatever float() reads, texts among them, and may be infinite",
    "plan/plan.py": "values of JSON, of which true and false are some",
    "solvers/wire.py": "settings of solvers as values of JSON",
    "programs/words.py": "constants of programs, of all kinds",
}
"""Modules that test for booleans, with the reason why this is not a check of a number."""


def test_numbers_are_checked_in_one_room():
    assert modules_where(asks_for_a_bool) == {"checks.py", *FLAGS}
    assert modules_where(asks_for_a_whole_number) == {"checks.py"}


def moves_a_file(node):
    """Whether this is a call of ``os.replace``, ``Path.replace`` or similar, but not ``str.replace``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return False
    owner, name = getattr(node.func.value, "id", ""), node.func.attr
    if owner in ("os", "shutil"):
        return name in ("replace", "rename", "renames", "move")
    return name in ("replace", "rename") and len(node.args) == 1 and not node.keywords


LISTS = {"corpus/build.py", "importers/measured.py", "learning/record.py"}
"""Modules that call `JsonLines.replace`, which does not replace a file."""


def test_files_are_put_in_place_by_one_module():
    assert modules_where(moves_a_file) == {"storage/atomic.py", *LISTS}
    for name in LISTS:
        assert "os.replace" not in (PACKAGE / name).read_text(encoding="utf-8")


def reads_a_clock(node):
    return isinstance(node, ast.Attribute) and node.attr in ("monotonic", "perf_counter", "monotonic_ns")


CLOCKS = {
    "importers/measured.py": "the clock that measures ops",
    "execution/devices/links.py": "the clock that measures links",
    "execution/devices/run.py": "the times of a run, by one clock in all threads",
    "execution/torch/measure.py": "measures runs",
    "execution/xla/compiled.py": "measures runs",
}
"""Modules that read a clock, with the reason why this is not a limit of time."""


def test_limits_of_time_are_in_one_room():
    assert modules_where(reads_a_clock) == {"runtime/deadline.py", *CLOCKS}


def judges_a_stall(node):
    """Whether this compares a number with the evaluations without improvement after which a search ends."""
    return isinstance(node, ast.Compare) and any(
        "stall" in (getattr(part, "id", ""), getattr(part, "attr", ""))
        for part in (node.left, *node.comparators)
        if not isinstance(node.ops[0], (ast.Is, ast.IsNot))
    )


def test_one_stopping_rule():
    assert modules_where(judges_a_stall) == {"search/stopping.py"}
    users = {
        name
        for name, tree in nodes().items()
        if "status_of" in (PACKAGE / name).read_text("utf-8") and "status_of(" in ast.unparse(tree[0])
    }
    assert users == {"search/stopping.py", "search/loop.py", "solvers/loop/host_turns.py"}


SEARCHES = {"brkga", "annealing", "local-search", "list-search", "peak-search"}
NAMING = {
    "solvers/registry.py": "the table",
    "solvers/searches.py": "each solver says its own name, which a test holds against the table",
    "api/names.py": "types of names, which a test holds against the table",
    "experiments/config.py": "the default selection of methods, in the order of the report's columns",
}
"""Modules that contain names of several searches, with the reasons."""


def test_one_table_has_the_names_of_the_solvers():
    holding = {
        name
        for name, each in nodes().items()
        if len(SEARCHES & {n.value for n in each if isinstance(n, ast.Constant)}) >= 3
    }
    assert holding == set(NAMING)
    assert {entry.name for entry in own_entries()} >= SEARCHES
    assert set(method_names()) >= set(EvaluationConfig("sample").methods)


OWN = {
    optimize: {"graph", "cluster", "on_improvement"},
    optimize_many: {
        "graphs",
        "clusters",
        "on_improvement",
        "batch_size",
        "devices",
        "engine",
        "store",
        "on_plan",
    },
}
"""Parameters that only one of the two functions has, or whose types differ."""


def test_optimize_and_optimize_many_take_the_same_arguments():
    shared = []
    for function, own in OWN.items():
        parameters = dict(inspect.signature(function).parameters)
        assert own <= set(parameters)
        # Only the default of the progress bar differs, since one graph takes less time than many.
        progress = parameters.pop("progress")
        assert progress.default is (function is optimize_many)
        shared.append({name: p for name, p in parameters.items() if name not in own})
    assert shared[0] == shared[1]
    checked = set(inspect.signature(Settings.checked).parameters) - {"progress"}
    assert set(shared[0]) - checked == {"pin", "colocate", "key"}
    assert checked <= set(shared[0])
