"""`python -m benchmarks torch`: its rows and its table, on a small module."""

import json

import pytest
import torch
from torch import nn

from benchmarks import torch_memory, torch_networks
from benchmarks.__main__ import main


# By default, test_execution_torch.py measures the memory.
@pytest.mark.slow
def test_rows_and_means(tmp_path, monkeypatch, capfd):
    small = {"small": (lambda: nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)), (2, 64))}
    monkeypatch.setattr(torch_networks, "MODULES", small)
    monkeypatch.setattr(torch_memory, "MODULES", small)
    threads = torch.get_num_threads()
    try:
        assert main(["torch", "--runs", "1", "--out", str(tmp_path / "rows.json")]) == 0
    finally:
        torch.set_num_threads(threads)
    gradient, step = json.loads((tmp_path / "rows.json").read_text())
    assert (gradient["form"], step["form"]) == ("gradient", "training-step")
    for row in (gradient, step):
        assert row["equal"] is True
        assert row["plan_bytes"] == row["plan_predicted"]
        assert row["program_bytes"] == row["program_predicted"]
    # Each parameter is updated, and its gradient freed, before the next gradient is computed.
    assert step["plan_bytes"] < 0.7 * step["program_bytes"]
    shown = capfd.readouterr().out
    assert "mean" in shown
    saved = 1 - step["plan_bytes"] / step["program_bytes"]
    assert f"{saved:.1%}" in shown.splitlines()[-1]


def test_an_unknown_module_is_refused(capfd):
    assert main(["torch", "nothing"]) == 2
    assert "no module is called 'nothing'" in capfd.readouterr().err


# By default without data, which finds sizes that do not fit as well.
@pytest.mark.parametrize("device", ["meta", pytest.param("cpu", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if i % 2 else ())
        for i, name in enumerate(torch_networks.MODULES)
    ],
)
def test_every_module_can_be_called(name, device):
    with torch.device(device), torch.no_grad():
        module, x = torch_networks.build(name)
        module(x)
