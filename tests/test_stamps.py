"""Tests of `file_stamp`, and that every setting which names a file of weights uses it."""

import os

import pytest

from regal_jax.errors import ConfigError
from regal_jax.learning.config import TrainConfig
from regal_jax.learning.ordering.config import OrderTrainConfig
from regal_jax.learning.ordering.step import OrderLearner
from regal_jax.learning.step import Learner
from regal_jax.solvers.guide import Guide
from regal_jax.solvers.topoformer import topoformer_of
from regal_jax.storage.stamps import file_stamp


def test_a_stamp_changes_with_the_file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 2))
    assert file_stamp(path, "policy", "give another") == (2, 3)
    path.write_bytes(b"three")
    assert file_stamp(path, "policy", "give another")[1] == 5


@pytest.mark.parametrize("name", ["absent", ".", "nul\0l", "absent/within"])
@pytest.mark.parametrize(
    ("argument", "read"),
    [
        ("policy", lambda path: Guide.of(path, optional=False)),
        ("weights", topoformer_of),
        ("start", lambda path: Learner(TrainConfig(start=path)).init()),
        ("start", lambda path: OrderLearner(OrderTrainConfig(start=path)).init()),
    ],
    ids=["policy", "topoformer", "training", "training of orders"],
)
def test_no_such_file_is_one_line(argument, read, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as error:
        read(name)
    assert str(error.value).startswith(f"{argument}: no file {name!r}; give ")
    assert "\n" not in str(error.value)
