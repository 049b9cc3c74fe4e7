"""The checks of numbers, and that what has one home has no second one."""

import enum
import math
import operator
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regal_jax import BrkgaConfig, Cluster
from regal_jax.checks import check_number, check_whole, is_number, real, shown, whole
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.evaluation import EvaluationConfig
from regal_jax.heuristics import ListSearchConfig
from regal_jax.problem import Bucket

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
    # No float is as large, whatever its limit is.
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


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda n: BrkgaConfig(population=n), ConfigError, "population is {}; choose a number"),
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
    assert Cluster.uniform(np.int64(3)) == Cluster.uniform(3)
    assert {type(n) for n in vars(Bucket(*map(np.int64, (4, 3, 2, 1)))).values()} == {int}
