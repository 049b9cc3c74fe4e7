"""Every notebook runs from top to bottom, and is committed with the outputs of such a run.

By default, budgets of searches and of training are reduced; the slow tests run the notebooks as written.
"""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((pathlib.Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
LESS = {
    "01_quickstart": {
        "evaluations=2000": "evaluations=200",
        "evaluations=1000, seed=0)": "evaluations=200, seed=0)",
        '"erdos-renyi", 60': '"erdos-renyi", 40',  # One shape to compile for.
        "evaluations=1000, seed=0, progress": "evaluations=200, seed=0, progress",
    },
    "02_throughput": {
        "(50, 100, 200), (1, 2, 8), 1000": "(20, 50), (1, 2), 200",
        "Options(repeats=3)": "Options(repeats=1)",
        # Cases of one size share programs.
        "GraphCase(graphs=b,": "GraphCase(ops=20, graphs=b,",
        "GraphCase()": "GraphCase(ops=20)",
        "solver(GraphCase(ops=50))": "solver(GraphCase(ops=20))",
    },
    "04_train_regal": {
        "steps=300": "steps=20",
        "validate_every=25": "validate_every=10",
        "(100, 500, 2000)": "(100, 200)",
        "40 + i % 21": "40 + i % 5",  # Fewer shapes to compile for.
    },
    "05_ordering": {"steps=200": "steps=20", "1000, 10_000)": "1000)"},
}
"""What is written in a notebook, and what is run instead; every cell stays."""

LONG = ("02_throughput", "03_graphs", "04_train_regal", "05_ordering", "06_run_plans", "07_robust")
"""Notebooks that take 6 to 30 s even with less to do, with functions that other tests call."""

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# It comes from the Jupyter machinery.
quiet = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_there_are_notebooks():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@every_notebook
def test_notebook_is_committed_as_it_ran(path):
    assert faults(nbformat.read(path, as_version=4)) == []


def test_faults_are_found():
    ran = {"source": "print(1)", "execution_count": 1}
    said = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    warned = nbformat.v4.new_output("stream", name="stderr", text="careful\n")
    failed = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    for cells, expected in (
        ([{**ran, "outputs": [said]}], []),
        ([ran], ["no outputs"]),
        ([{"source": "print(1)", "outputs": [said]}], ["cells ran as [None]"]),
        ([{**ran, "execution_count": 2, "outputs": [said]}], ["cells ran as [2]"]),
        ([{**ran, "outputs": [said, warned]}], ["cell 1: stderr"]),
        ([{**ran, "outputs": [failed]}], ["cell 1: error"]),
    ):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(**cell) for cell in cells])
        assert faults(notebook) == expected


@quiet
@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=pytest.mark.slow if p.stem in LONG else ()) for p in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    for written, less in LESS.get(path.stem, {}).items():
        (cell,) = (cell for cell in code(notebook) if written in cell.source)
        cell.source = cell.source.replace(written, less)
    run(notebook, tmp_path)


@quiet
@pytest.mark.slow
@pytest.mark.parametrize(
    "path", [path for path in NOTEBOOKS if path.stem in LESS], ids=lambda path: path.stem
)
def test_notebook_runs_in_full(path, tmp_path):
    run(nbformat.read(path, as_version=4), tmp_path)


def run(notebook, folder):
    """Run `notebook` in `folder`: no fault, outputs of the committed kinds, no file left there."""
    committed = [kinds(cell) for cell in code(notebook)]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    assert faults(notebook) == []
    assert [kinds(cell) for cell in code(notebook)] == committed
    assert list(folder.iterdir()) == []


def faults(notebook) -> list[str]:
    """What tells `notebook` from one that ran from top to bottom, with outputs and without errors."""
    cells = code(notebook)
    found = []
    counts = [cell.execution_count for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        found.append(f"cells ran as {counts}")
    if not any(cell.outputs for cell in cells):
        found.append("no outputs")
    for number, cell in enumerate(cells, 1):
        kind = {output.get("name", output.output_type) for output in cell.outputs}
        found += [f"cell {number}: {bad}" for bad in ("error", "stderr") if bad in kind]
    return found


def code(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kinds(cell) -> set[tuple[str, ...]]:
    return {(output.output_type, *sorted(output.get("data", {}))) for output in cell.outputs}
