"""Batches that are made ahead of their steps."""

import threading

import pytest

from regal_jax.learning.ahead import Ahead


@pytest.mark.parametrize("depth", [None, 1, 3])
def test_every_step_gets_its_batch_once_in_any_order(depth):
    made, lock = [], threading.Lock()

    def make(step):
        with lock:
            made.append(step)
        return 10 * step

    ahead = Ahead(make, 6, depth)
    try:
        assert [ahead.get(step) for step in range(6)] == [0, 10, 20, 30, 40, 50]
        assert sorted(made) == [0, 1, 2, 3, 4, 5]
        # After a restart from a checkpoint.
        assert [ahead.get(step) for step in (2, 3)] == [20, 30]
        assert max(made) < 6
    finally:
        ahead.close()


def test_batches_are_made_at_the_same_time():
    together = threading.Barrier(3, timeout=60)

    def make(step):
        if step:
            together.wait()
        return step

    ahead = Ahead(make, 4, 3)
    try:
        assert [ahead.get(step) for step in range(4)] == [0, 1, 2, 3]
    finally:
        ahead.close()


def test_an_error_is_raised_by_the_step_whose_batch_it_is():
    def make(step):
        if step == 2:
            raise ValueError("no batch")
        return step

    ahead = Ahead(make, 4, 2)
    try:
        assert ahead.get(0) == 0
        assert ahead.get(1) == 1
        with pytest.raises(ValueError, match="no batch"):
            ahead.get(2)
        assert ahead.get(3) == 3
    finally:
        ahead.close()
