"""The benchmark of `regal_jax.compile` runs and reports the figures of XLA."""

import json

import pytest

from benchmarks.__main__ import main
from benchmarks.compile_programs import PROGRAMS, read_settings
from regal_jax.errors import ConfigError

TINY = """
evaluations = 50
candidates = 1
rounds = 1

[models.mlp]
model = "vision:MLP"
settings = { widths = [8, 4] }
inputs = [4, 8]
labels = [4]
"""


def test_a_tiny_model(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out.json"
    assert main(["compile", "--programs", str(tmp_path / "tiny.toml"), "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert [row["program"] for row in document["rows"]] == ["mlp step", "mlp gradient"]
    for row in document["rows"]:
        assert row["equal"]
        total = {
            k: row[k]["argument"] + row[k]["output"] - row[k]["alias"] + row[k]["temp"]
            for k in ("default", "other", "ours")
        }
        assert total["ours"] <= min(total["default"], total["other"])
        assert row["ours"]["alias"] == row["default"]["alias"]
    assert document["summary"]["largest"] <= 1
    assert "total, better of two" in capsys.readouterr().out


def test_settings(tmp_path, capsys):
    settings = read_settings(PROGRAMS)
    assert len(settings.programs) >= 17
    program = settings.programs["mlp step"]()
    assert program.donate == (0, 1, 2)
    (tmp_path / "bad.toml").write_text("[examples.none]\n")
    with pytest.raises(ConfigError, match="none"):
        read_settings(tmp_path / "bad.toml")
    assert main(["compile", "nothing-*"]) == 2
    assert "no program matches" in capsys.readouterr().err
