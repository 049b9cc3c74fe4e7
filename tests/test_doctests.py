"""The examples in the docstrings run, each by itself, and print the stated output."""

import ast
import doctest
import pathlib

import pytest

import regal_jax
import regal_jax.datasets
import regal_jax.experiments
import regal_jax.gflownet
import regal_jax.heuristics
import regal_jax.learning
import regal_jax.ordering
import regal_jax.policies

PACKAGE = pathlib.Path(regal_jax.__file__).parent
SLOW = {
    "experiments/run.py:run_evaluation",
    "learning/train.py:train",
    "learning/gflownet/train.py:train_gflownet",
    "learning/ordering/train.py:train_orders",
}
MET_FIRST = (
    regal_jax.apply_to_onnx,
    regal_jax.apply_to_torch,
    regal_jax.optimize,
    regal_jax.optimize_many,
    regal_jax.compare,
    regal_jax.contract,
    regal_jax.from_hlo,
    regal_jax.from_jax,
    regal_jax.from_onnx,
    regal_jax.from_torch,
    regal_jax.load_example,
    regal_jax.load_graph,
    regal_jax.order,
    regal_jax.propose,
    regal_jax.save_graph,
    regal_jax.select,
    regal_jax.Cluster.nodes,
    regal_jax.Cluster.uniform,
    regal_jax.ComputationGraph,
    regal_jax.GraphBuilder,
    regal_jax.Plan.load,
    regal_jax.Plan.save,
    regal_jax.Plan.verify,
    regal_jax.datasets.generate,
    regal_jax.datasets.load_sample,
    regal_jax.datasets.with_noise,
    regal_jax.experiments.run_evaluation,
    regal_jax.gflownet.sample_schedules,
    regal_jax.heuristics.run_heuristic,
    regal_jax.learning.train,
    regal_jax.ordering.default_topoformer,
    regal_jax.policies.default_policy,
    regal_jax.policies.load_policy,
)


def examples() -> list[doctest.DocTest]:
    """The examples of all docstrings in the files; doctest's own finder skips decorated functions."""
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if ">>>" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{path.relative_to(PACKAGE).as_posix()}:{getattr(node, 'name', 'module')}"
                docstring = ast.get_docstring(node) or ""
                line = node.body[0].lineno - 1 if docstring else None
                test = doctest.DocTestParser().get_doctest(docstring, {}, name, str(path), line)
                found += [test] if test.examples else []
    return found


def marked(test: doctest.DocTest):
    return pytest.param(test, id=test.name, marks=[pytest.mark.slow] if test.name in SLOW else [])


@pytest.mark.parametrize("test", [marked(test) for test in examples()])
def test_example_prints_what_it_says(test, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Some write files.
    said = []
    outcome = doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    assert outcome.attempted == len(test.examples)
    assert not outcome.failed, "".join(said)


def test_what_users_meet_first_has_examples():
    assert [what.__qualname__ for what in MET_FIRST if ">>>" not in (what.__doc__ or "")] == []
