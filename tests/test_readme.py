"""README's example runs and prints the stated output."""

import contextlib
import io
import pathlib
import re

import pytest

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_example_prints_what_is_printed_below_it():
    code, said = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL).groups()
    assert len(code.splitlines()) <= 15
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "README.md", "exec"), {})
    # Versions of JAX trace a few ops more or less; what a person reads it for must hold on all.
    labels = [line.split("  ")[1] for line in said.splitlines()[1:]]
    assert [line.split("  ")[1] for line in out.getvalue().splitlines()[1:]] == labels
    speed_up = [
        float(re.search(r"([\d.]+) x the speed of one device", text)[1]) for text in (said, out.getvalue())
    ]
    assert speed_up[1] == pytest.approx(speed_up[0], rel=0.05)
