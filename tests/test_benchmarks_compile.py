"""The benchmark of `regal_jax.compile` runs and reports the figures of XLA."""

import json

import pytest

from benchmarks import compiled
from benchmarks.__main__ import main
from benchmarks.compile_programs import PROGRAMS, read_settings
from regal_jax.errors import ConfigError
from regal_jax.execution import MemoryUse

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


# By default, test_execution_compile.py has the orders.
@pytest.mark.slow
def test_a_tiny_model(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out.json"
    assert main(["compile", "--programs", str(tmp_path / "tiny.toml"), "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert list(document["rows"]) == ["mlp step", "mlp gradient"]
    for (row,) in document["rows"].values():
        assert row["equal"]
        total = {
            k: row[k]["argument"] + row[k]["output"] - row[k]["alias"] + row[k]["temp"]
            for k in ("default", "other", "ours")
        }
        assert total["ours"] <= min(total["default"], total["other"])
        assert row["ours"]["alias"] == row["default"]["alias"]
    assert document["summary"]["largest"] <= 1
    assert "total, better of two" in capsys.readouterr().out


def row_of(program, ours=1):
    """A row as `benchmarks.compiled.measure` makes it, without a measurement."""
    uses = [MemoryUse(argument=size, output=0, alias=0, temp=0) for size in (4, 4, ours)]
    return compiled.Row(program.name, 1, *uses, 1, 1, 1, "ours", None, None, None)


def test_an_interrupted_measurement_continues(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out.json"
    arguments = ["compile", "--memory", "--programs", str(tmp_path / "tiny.toml"), "--out", str(out)]
    calls = []

    def fail(program, *rest):
        calls.append(program.name)
        if len(calls) == 2:
            raise ZeroDivisionError("no\nluck")
        return row_of(program)

    monkeypatch.setattr(compiled, "measure", fail)
    assert main(arguments) == 1
    assert "mlp gradient: failed: ZeroDivisionError: no luck" in capsys.readouterr().err
    assert main(arguments) == 0
    assert calls == ["mlp step", "mlp gradient", "mlp gradient"]
    assert list(json.loads(out.read_text())["rows"]) == ["mlp step", "mlp gradient"]
    assert main([*arguments, "--method", "given"]) == 0  # With other settings, no earlier row is used.
    assert len(calls) == 5
    out.write_text("{")
    assert main(arguments) == 0
    assert len(calls) == 7


def test_other_patterns_keep_earlier_rows(tmp_path, monkeypatch, capsys):
    (tmp_path / "tiny.toml").write_text(TINY)
    out = tmp_path / "out.json"

    monkeypatch.setattr(
        compiled, "measure", lambda program, *rest: row_of(program, 1 if program.name == "mlp step" else 3)
    )
    # Without seconds, some figures of the summary are not numbers.
    arguments = ["compile", "--memory", "--programs", str(tmp_path / "tiny.toml"), "--out", str(out)]
    assert main([*arguments, "mlp step"]) == 0
    alone = json.loads(out.read_text())
    assert main([*arguments, "mlp gradient"]) == 0
    document = json.loads(out.read_text())
    assert document["rows"] == alone["rows"] | {"mlp gradient": document["rows"]["mlp gradient"]}
    assert (alone["summary"]["largest"], document["summary"]["largest"]) == (0.25, 0.75)
    assert document["summary"]["run"] is None


# By default, test_hlo_temp.py has the predictions.
@pytest.mark.slow
def test_predictions(tmp_path, capsys):
    (tmp_path / "tiny.toml").write_text(TINY + '[corpus.graphnetwork_3]\nforms = ["forward"]\n')
    out = tmp_path / "out.json"
    assert main(["prediction", "--programs", str(tmp_path / "tiny.toml"), "--out", str(out)]) == 0
    document = json.loads(out.read_text())
    assert list(document["rows"]) == ["mlp step", "mlp gradient", "graphnetwork_3 forward"]
    for rows in document["rows"].values():
        assert [row["order"] for row in rows] == ["default", "other", "searched"]
        assert all(row["predicted"] == row["temp"] for row in rows)
        assert rows[2]["peak"] > 0
    assert document["summary"]["all orders, exact"] == 9
    assert "all orders, largest %: 0" in capsys.readouterr().out
    assert len(read_settings(PROGRAMS.with_name("prediction_programs.toml")).programs) >= 40


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
