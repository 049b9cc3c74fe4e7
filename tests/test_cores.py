"""The number of cores: the affinity of the process, and the quota of its container."""

import os
import pathlib

import pytest

from regal_jax.runtime import cores


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("max 100000", None),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("150000 100000", 2),
        ("99900000 100000", None),
        ("0 0", None),
        ("", None),
        ("nonsense", None),
        (None, None),
    ],
)
def test_a_quota_counts_when_it_is_below_the_affinity(
    text: str | None, most: int | None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = tmp_path / "cpu.max"
    if text is not None:
        quota.write_text(text)
    monkeypatch.delenv(cores.CORES, raising=False)
    monkeypatch.setattr(cores, "_QUOTA", quota)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 7, raising=False)
    assert cores.available_cores() == (7 if most is None else most)


@pytest.mark.parametrize(
    ("text", "most"), [("3", 3), ("9", 7), ("0", 7), ("", 7), ("-1", 7), ("two", 7), ("9" * 5000, 7)]
)
def test_a_variable_limits_the_cores(text: str, most: int, tmp_path: pathlib.Path, monkeypatch) -> None:
    monkeypatch.setattr(cores, "_QUOTA", tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)), raising=False)
    monkeypatch.setattr(os, "process_cpu_count", lambda: 7, raising=False)
    monkeypatch.setenv(cores.CORES, text)
    assert cores.available_cores() == most
