"""WfCommons WfFormat JSON (https://github.com/wfcommons/WfFormat), schema versions 1.5 and 1.6."""

from typing import Any, Final

from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.strict_json import Field
from regal_jax.storage.documents import parse_json

__all__ = ["parse_wfformat", "workflow_from_document"]

_VERSIONS: Final = ("1.5", "1.6")  # 1.6 adds optional members to 1.5; none of them is read here.


def parse_wfformat(text: str, *, default_runtime: float | None = None) -> ComputationGraph:
    """The graph of a WfFormat workflow instance.

    - A task becomes an op named by its id; its `name` becomes the kind, its `runtimeInSeconds` the
      runtime.
    - A file that a task writes becomes an output tensor of `sizeInBytes`; tasks that list it as an
      input read it. A written file without readers is a result and kept.
    - A file that is read but written by no task is an input of the workflow: one op of kind ``input``
      and runtime 0, named ``file:ID``, which may stand on any device.
    - A parent or child with which a task shares no file becomes a control edge.
    - A task that lists a file both as input and as output updates it: it does not wait for itself.
    - `coreCount`, `memoryInBytes` and machines are not used.

    Args:
      text: JSON.
      default_runtime: Seconds of a task without a `runtimeInSeconds`; ``None`` refuses such a task.

    Raises:
      FormatError: The schema version is another one, or the document breaks the schema; names the place.
      GraphError: The graph breaks a rule, e.g. has a cycle.
    """
    return workflow_from_document(parse_json(text), default_runtime=default_runtime)


def workflow_from_document(document: Any, *, default_runtime: float | None = None) -> ComputationGraph:
    """`parse_wfformat` of JSON that is parsed already."""
    root = Field(document)
    version = root.get("schemaVersion").text()
    if version not in _VERSIONS:
        raise FormatError(
            f"schemaVersion: WfFormat {version!r} is not read, only {' and '.join(_VERSIONS)}; "
            "migrate the file with the WfCommons tools"
        )
    specification = root.get("workflow").get("specification")
    tasks = specification.get("tasks").items()
    if not tasks:
        raise FormatError("workflow.specification.tasks: empty; add at least one task")
    sizes: dict[str, int] = {}
    for file in specification.find("files", []).items():
        _record(sizes, file.get("id"), file.get("sizeInBytes").count())
    index = _index(tasks)
    producer = _producers(tasks, index, sizes)
    written: list[list[str]] = [[] for _ in tasks]
    for file, (o, _) in producer.items():
        written[o].append(file)
    read = [_read_files(task, sizes) for task in tasks]
    # A task that updates a file is no reader of what it writes.
    consumed = {f for o, files in enumerate(read) for f in files if f in producer and producer[f][0] != o}
    runtimes = _runtimes(root, index, default_runtime)
    parents = _parents(tasks, index)
    builder = GraphBuilder(root.get("name").text(), "s")
    outside = _add_inputs(builder, [f for files in read for f in files if f not in producer], sizes, index)
    for o, task in enumerate(tasks):
        inputs = [
            (producer[f][0] + len(outside), producer[f][1]) if f in producer else (outside[f], 0)
            for f in read[o]
            if f not in producer or producer[f][0] != o
        ]
        linked = {producer[f][0] for f in read[o] if f in producer}
        builder.add_op(
            task.get("id").text(),
            kind=task.get("name").text(),
            runtime=_runtime(task, runtimes, default_runtime),
            outputs=[sizes[f] for f in written[o]],
            keep=[port for port, f in enumerate(written[o]) if f not in consumed],
            inputs=inputs,
            control_inputs=[p + len(outside) for p in parents[o] - linked],
        )
    return builder.build()


def _index(tasks: list[Field]) -> dict[str, int]:
    index: dict[str, int] = {}
    for o, task in enumerate(tasks):
        name = task.get("id")
        if name.text() in index:
            raise name.error(f"{name.value!r} is the id of another task too; rename one of the two")
        index[name.text()] = o
    return index


def _file(item: Field, sizes: dict[str, int]) -> str:
    if item.text() not in sizes:
        raise item.error(f"file {item.value!r} is missing from workflow.specification.files; add it")
    return item.text()


def _read_files(task: Field, sizes: dict[str, int]) -> list[str]:
    return [_file(item, sizes) for item in task.find("inputFiles", []).items()]


def _producers(
    tasks: list[Field], index: dict[str, int], sizes: dict[str, int]
) -> dict[str, tuple[int, int]]:
    """File -> (task that writes it, port), in the order of tasks and ports."""
    producer: dict[str, tuple[int, int]] = {}
    names = list(index)
    for o, task in enumerate(tasks):
        port = 0
        for item in task.find("outputFiles", []).items():
            file = _file(item, sizes)
            if file in producer:
                if producer[file][0] == o:
                    continue
                raise item.error(
                    f"file {file!r} is written by task {names[producer[file][0]]!r} too; rename one of them"
                )
            producer[file] = (o, port)
            port += 1
    return producer


def _parents(tasks: list[Field], index: dict[str, int]) -> list[set[int]]:
    parents: list[set[int]] = [set() for _ in tasks]
    for o, task in enumerate(tasks):
        for key in ("parents", "children"):
            for item in task.get(key).items():
                if item.text() not in index:
                    raise item.error(f"no task has the id {item.value!r}; add it or drop the entry")
                other = index[item.text()]
                parents[o if key == "parents" else other].add(other if key == "parents" else o)
    return parents


def _runtimes(root: Field, index: dict[str, int], default: float | None) -> dict[str, float]:
    execution = root.get("workflow").find("execution", None)
    if execution.value is None:
        if default is None:
            raise FormatError("workflow.execution is missing, so no runtimes; add it or pass default_runtime")
        return {}
    runtimes: dict[str, float] = {}
    for task in execution.get("tasks").items():
        name = task.get("id").text()
        if name not in index:
            raise task.get("id").error(f"no task of the specification has the id {name!r}; add it or drop it")
        _record(runtimes, task.get("id"), task.get("runtimeInSeconds").number())
    return runtimes


def _record(known: dict[str, Any], name: Field, value: float) -> None:
    """Adds the value of ``name``, which may be repeated but not contradicted."""
    if known.setdefault(name.text(), value) != value:
        raise name.error(f"{name.value!r} is listed twice with other values; drop one of the two")


def _runtime(task: Field, runtimes: dict[str, float], default: float | None) -> float:
    runtime = runtimes.get(task.get("id").text(), default)
    if runtime is None:
        raise task.error("no runtimeInSeconds in workflow.execution.tasks; add it or pass default_runtime")
    return runtime


def _add_inputs(
    builder: GraphBuilder, files: list[str], sizes: dict[str, int], index: dict[str, int]
) -> dict[str, int]:
    """Adds one op for each file that no task writes; file -> op."""
    ops: dict[str, int] = {}
    taken = set(index)
    for file in dict.fromkeys(files):
        name = f"file:{file}"
        while name in taken:
            name += "_"
        taken.add(name)
        ops[file] = builder.add_op(name, kind="input", outputs=[sizes[file]])
    return ops
