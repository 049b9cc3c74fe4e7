"""A process that traces the models of one source: ``python -m regal_jax.corpus.worker MODULE``.

Requests and answers are lines of JSON. Models may hang, exhaust memory or abort the interpreter, so they run
in a process that the reader of the answers can replace.
"""

import gc
import importlib
import json
import os
import pathlib
import sys
import threading
import warnings
from typing import Any, TextIO

from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.statistics import graph_record
from regal_jax.importers.native import format_native

__all__ = ["answer", "main"]


def main() -> None:
    """Serves requests from standard input until it ends."""
    requests, answers = _private_streams()
    try:
        module = importlib.import_module(sys.argv[1])
    except BaseException as error:  # The import of a library may even call sys.exit.
        _say(answers, {"unavailable": reason(error)})
        return
    _say(answers, {"ready": True})
    for line in _lines_or_death(requests):
        _say(answers, answer(module, json.loads(line)))
        _forget()


def answer(module: Any, request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request: specs, a record, a failure, or an error that ends the build (a full disk)."""
    try:
        if request.get("list"):
            return {"specs": [spec.to_json() for spec in module.specs()]}
        spec = TraceSpec.from_json(request["spec"])
        graph = module.trace(spec, request["profile"])
    except MemoryError:
        return {"failure": "memory", "reason": "ran out of memory"}
    except BaseException as error:  # Third-party models may raise anything.
        return {"failure": "error", "reason": reason(error)}
    low, high = request["min_ops"], request["max_ops"]
    if not low <= graph.num_ops <= high:
        return {"failure": "size", "reason": f"{graph.num_ops} ops; the corpus keeps {low} to {high}"}
    record = graph_record(graph)
    try:
        _write(pathlib.Path(request["file"]), format_native(graph))
    except OSError as error:
        return {"fatal": f"cannot write {request['file']!r}: {error.strerror}"}
    return {"record": record}


def reason(error: BaseException) -> str:
    """An exception in one line of bounded length."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__


def _write(path: pathlib.Path, text: str) -> None:
    from regal_jax.storage.atomic import write_atomically
    from regal_jax.storage.compression import packed

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, packed(path, text.encode()))


def _private_streams() -> tuple[TextIO, TextIO]:
    """The pipes, protected from libraries that print, read or pass handles to child processes."""
    requests = os.fdopen(os.dup(0), "r", encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    warnings.simplefilter("ignore")
    return requests, answers


def _lines_or_death(requests: TextIO) -> Any:
    """The requests. When they end, the process ends, even while it traces a model.

    A worker must not outlive a killed build, because the next build starts its own workers.
    """
    import queue

    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in requests:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def _say(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def _forget() -> None:
    """Clears what JAX and Keras keep of every model."""
    if "keras" in sys.modules:
        sys.modules["keras"].utils.clear_session(free_memory=False)
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()
    gc.collect()


if __name__ == "__main__":
    main()
