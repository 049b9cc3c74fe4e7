"""Garbage collection while the library works."""

import gc
import threading

import pytest

from regal_jax import Cluster, optimize
from regal_jax.datasets import generate
from regal_jax.runtime.collection import rare_collection


@pytest.fixture(autouse=True)
def as_before():
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_it_is_rarer_within_and_as_before_afterwards():
    @rare_collection()
    def work():
        with rare_collection():
            assert gc.get_threshold() == (50_000, 10, 10)
        assert gc.get_threshold() == (50_000, 10, 10)
        raise KeyError

    with pytest.raises(KeyError):
        work()
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("first", [0, 60_000])
def test_other_choices_stay(first):
    gc.set_threshold(first, 5, 5)
    with rare_collection():
        assert gc.get_threshold() == (first, 5, 5)
    assert gc.get_threshold() == (first, 5, 5)


def test_the_last_of_several_threads_ends_it():
    inside, leave = threading.Event(), threading.Event()

    def work():
        with rare_collection():
            inside.set()
            leave.wait(30)

    thread = threading.Thread(target=work)
    with rare_collection():
        thread.start()
        assert inside.wait(30)
    assert gc.get_threshold() == (50_000, 10, 10)
    leave.set()
    thread.join()
    assert gc.get_threshold() == (700, 10, 10)


def test_searches_are_within():
    seen = []
    optimize(
        generate("layered", 12, 0),
        Cluster.uniform(2),
        evaluations=50,
        progress=False,
        on_improvement=lambda _: seen.append(gc.get_threshold()[0]),
    )
    assert set(seen) == {50_000}
    assert gc.get_threshold() == (700, 10, 10)
