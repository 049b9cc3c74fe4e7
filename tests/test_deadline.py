"""A limit of wall-clock time."""

import pytest

from regal_jax.runtime import deadline
from regal_jax.runtime.deadline import Deadline


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])
    return now


def test_a_limit_begins_when_it_is_made(clock):
    limit = Deadline(10)
    assert (limit.spent, limit.left, limit.over) == (0, 10, False)
    clock[0] += 9
    assert (limit.spent, limit.left, limit.over) == (9, 1, False)
    clock[0] += 1
    assert limit.over
    clock[0] += 5
    # What is left can be the limit of a part, which must be above zero.
    assert limit.over
    assert 0 < limit.left < 1e-6
    assert limit.spent == 15


def test_without_a_limit_it_is_a_clock(clock):
    limit = Deadline()
    clock[0] += 1e9
    assert (limit.spent, limit.left, limit.over) == (1e9, None, False)
    assert limit.part(0.5).left is None


def test_a_part_began_when_the_whole_did(clock):
    limit = Deadline(10)
    clock[0] += 2
    part = limit.part(0.3)
    assert (part.spent, part.left) == (2, 1)
    clock[0] += 1
    assert part.over
    assert not limit.over
