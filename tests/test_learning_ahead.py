"""Batches that are made ahead of their steps."""

import os

import jax
import numpy as np
import pytest

from regal_jax.learning.ahead import Ahead, spare_workers


def tenfold(step):
    if step == 4:
        raise ValueError("no batch")
    return np.array([10 * step, os.getpid()])


def backend(step):
    return jax.default_backend()


def ended(step):
    os._exit(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_step_gets_its_batch(workers):
    ahead = Ahead(tenfold, 6, workers)
    try:
        found = [ahead.get(step) for step in range(4)]
        assert [int(value) for value, _ in found] == [0, 10, 20, 30]
        assert (os.getpid() in {int(process) for _, process in found}) is (workers == 0)
        with pytest.raises(ValueError, match="no batch"):
            ahead.get(4)
        # After a restart from a checkpoint.
        assert [int(ahead.get(step)[0]) for step in (2, 3)] == [20, 30]
        assert int(ahead.get(5)[0]) == 50
    finally:
        ahead.close()


def test_worker_processes_leave_the_accelerator_alone():
    before = dict(os.environ)
    ahead = Ahead(backend, 2, 1)
    try:
        assert ahead.get(0) == "cpu"
        assert dict(os.environ) == before
    finally:
        ahead.close()


def test_a_killed_worker_is_an_error_of_one_line():
    ahead = Ahead(ended, 2, 1)
    try:
        with pytest.raises(OSError, match=r"a process that makes batches was killed"):
            ahead.get(0)
    finally:
        ahead.close()


def test_only_accelerators_leave_cores_to_workers(monkeypatch):
    assert spare_workers() == 0
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr("regal_jax.learning.ahead.available_cores", lambda: 8)
    assert spare_workers() == 7
    monkeypatch.setattr("regal_jax.learning.ahead.available_cores", lambda: 1)
    assert spare_workers() == 1
