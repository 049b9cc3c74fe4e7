"""Every notebook runs from top to bottom: by default with less to search and to train, in full when slow."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LESS = {
    "02_throughput": {
        "(50, 100, 200), (1, 2, 8), 1000": "(20, 50), (1, 2), 200",
        "Options(repeats=3)": "Options(repeats=1)",
    },
    "04_train_regal": {
        "steps=300": "steps=20",
        "validate_every=25": "validate_every=10",
        "(100, 500, 2000)": "(100, 200)",
        "40 + i % 21": "40 + i % 5",  # Fewer shapes to compile for.
    },
}
"""What is written in a notebook, and what is run instead; every cell stays."""


def test_there_are_notebooks():
    assert NOTEBOOKS


# It comes from the Jupyter machinery.
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@quiet
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for written, less in LESS.get(path.stem, {}).items():
        (cell,) = (cell for cell in notebook.cells if cell.cell_type == "code" and written in cell.source)
        cell.source = cell.source.replace(written, less)
    run(notebook, tmp_path)


@quiet
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem in LESS], ids=lambda path: path.stem
)
def test_notebook_runs_in_full(path, tmp_path):
    run(nbformat.read(path, as_version=4), tmp_path)


def run(notebook, tmp_path):
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")
