"""WfCommons workflows."""

import json

import pytest
from importer_cases import WORKFLOW, controls, reads

from regal_jax.errors import FormatError, GraphError
from regal_jax.importers import parse_wfformat


def _changed(change):
    document = json.loads(WORKFLOW)
    change(document)
    return json.dumps(document)


def _tasks(document):
    return document["workflow"]["specification"]["tasks"]


def test_reads_tasks_files_and_parents():
    graph = parse_wfformat(WORKFLOW)
    assert graph.name == "tiny"
    assert graph.time_unit == "s"
    assert graph.op_names == ("file:in.txt", "T1", "T2", "T3")
    assert graph.op_kinds == ("input", "split", "work", "end")
    assert graph.runtime.tolist() == [0, 4.25, 10, 0]
    assert graph.temp_bytes.tolist() == [0] * 4
    assert graph.tensor_bytes.tolist() == [1024, 512, 3, 128]
    # Nobody reads the log nor part.out: they are results.
    assert graph.tensor_keep.tolist() == [False, False, True, True]
    assert reads(graph) == [(0, 1), (1, 2)]
    # T1 -> T2 share a file, T2 -> T3 do not.
    assert controls(graph) == [(2, 3)]


def test_version_1_6_reads_the_same():
    newer = _changed(lambda d: d.update(schemaVersion="1.6", extra={"metrics": 1}))
    assert parse_wfformat(newer).content_hash == parse_wfformat(WORKFLOW).content_hash


def test_children_alone_make_an_edge():
    graph = parse_wfformat(_changed(lambda d: _tasks(d)[2].update(parents=[])))
    assert graph.content_hash == parse_wfformat(WORKFLOW).content_hash


def test_a_task_may_update_a_file():
    graph = parse_wfformat(_changed(lambda d: _tasks(d)[1].update(inputFiles=["part.txt", "part.out"])))
    assert reads(graph) == [(0, 1), (1, 2)]
    # No other task reads part.out: it is a result.
    assert graph.tensor_keep.tolist() == [False, False, True, True]


def test_runtimes_may_have_a_default():
    def drop(document):
        del document["workflow"]["execution"]

    with pytest.raises(FormatError, match=r"workflow\.execution is missing.*default_runtime"):
        parse_wfformat(_changed(drop))
    assert parse_wfformat(_changed(drop), default_runtime=2).runtime.tolist() == [0, 2, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(schemaVersion="1.4"), "WfFormat '1.4' is not read, only 1.5 and 1.6"),
        (lambda d: d.pop("workflow"), "'workflow' is missing"),
        (lambda d: _tasks(d).clear(), "specification.tasks: empty"),
        (lambda d: _tasks(d)[0].pop("parents"), r"tasks\[0\]: 'parents' is missing"),
        (lambda d: _tasks(d)[1].update(id="T1"), r"tasks\[1\]\.id: 'T1' is the id of another task"),
        (lambda d: _tasks(d)[1].update(parents=["T9"]), r"tasks\[1\]\.parents\[0\]: no task has the id 'T9'"),
        (
            lambda d: _tasks(d)[1].update(inputFiles=["no"]),
            r"tasks\[1\]\.inputFiles\[0\]: file 'no' is missing",
        ),
        (
            lambda d: _tasks(d)[1].update(outputFiles=["log.txt"]),
            "file 'log.txt' is written by task 'T1' too",
        ),
        (lambda d: _tasks(d)[0].update(parents=["T3"]), "cycle"),
        (lambda d: d["workflow"]["execution"]["tasks"].pop(), r"tasks\[2\]: no runtimeInSeconds"),
        (
            lambda d: d["workflow"]["execution"]["tasks"][0].update(runtimeInSeconds=-1),
            r"execution\.tasks\[0\]\.runtimeInSeconds: -1 must be",
        ),
        (lambda d: d["workflow"]["execution"]["tasks"][0].update(id="T9"), "no task of the specification"),
        (
            lambda d: d["workflow"]["specification"]["files"][0].update(sizeInBytes=-4),
            r"files\[0\]\.sizeInBytes: -4 must be",
        ),
        (
            lambda d: d["workflow"]["specification"]["files"].append({"id": "log.txt", "sizeInBytes": 999}),
            r"files\[\d\]\.id: 'log\.txt' is listed twice with other values",
        ),
        (
            lambda d: d["workflow"]["execution"]["tasks"].append({"id": "T1", "runtimeInSeconds": 999}),
            r"execution\.tasks\[3\]\.id: 'T1' is listed twice with other values",
        ),
    ],
)
def test_bad_workflow_is_refused(change, message):
    with pytest.raises((FormatError, GraphError), match=message) as error:
        parse_wfformat(_changed(change))
    assert "\n" not in str(error.value)
