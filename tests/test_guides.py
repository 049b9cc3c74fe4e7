"""The Python examples of the guides run as they stand, in a process without the settings of the tests."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
QUICK = ("links",)
SLOW = ("apply_torch", "compile", "execute", "gflownet", "many_machines", "ordering", "robust")


def code_of(guide):
    """All Python blocks of a guide in order, as one program."""
    text = (ROOT / "docs" / f"{guide}.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("guide", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_guide_runs(guide, tmp_path):
    blocks = code_of(guide)
    assert blocks
    if guide == "apply_torch":
        pytest.importorskip("torch")
    if guide == "many_machines":
        pytest.importorskip("ray")
    path = tmp_path / "guide.py"
    path.write_text("\n\n".join(blocks), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ""}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
