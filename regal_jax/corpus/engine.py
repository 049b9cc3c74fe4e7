"""Hands specs to worker processes and records each result."""

import collections
import contextlib
import pathlib
import queue
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from regal_jax.corpus.pool import Event, Worker, available_memory
from regal_jax.corpus.sources import Source
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.corpus_files import FAILURES, GRAPHS, INDEX
from regal_jax.errors import ConfigError
from regal_jax.runtime.deadline import Deadline
from regal_jax.storage.json_lines import JsonLines

if TYPE_CHECKING:
    from regal_jax.engines import Engine as Remote

__all__ = ["Engine", "Tally"]

_TICK: Final = 0.25
_TASKS_A_WORKER: Final = 150
"""Tasks after which a worker is replaced, since libraries keep some memory of every model."""
_STARTS: Final = 3
"""Failed starts in a row after which a source is given up."""


class Engine:
    """Runs the specs of a build.

    Args:
      root: Folder of the corpus.
      settings: Settings that determine graphs: ``profile``, ``min_ops``, ``max_ops``.
      jobs: Number of worker processes.
      timeout: Time limit per graph, in seconds.
      interrupted: Tells whether to stop.
      progress: Makes a progress bar, or ``None``.
      remote: Engine whose workers trace; ``None`` for processes of this machine.

    Attributes:
      skipped: Names of the sources whose workers did not start, so that graphs of theirs are missing.
    """

    def __init__(
        self,
        root: pathlib.Path,
        settings: Mapping[str, Any],
        jobs: int,
        timeout: float,
        interrupted: Callable[[], bool],
        progress: Callable[..., Any] | None,
        remote: "Remote | None" = None,
    ) -> None:
        self.root, self.settings, self.jobs, self.timeout = root, settings, jobs, timeout
        self.remote = remote
        self.skipped: set[str] = set()
        self.interrupted, self.progress = interrupted, progress
        self.index, self.failures = JsonLines(root / INDEX), JsonLines(root / FAILURES)
        # Memory that each worker may use; some is left for the build and the rest of the system.
        self.memory = 0.8 * available_memory() / jobs

    def specs(self, source: Source) -> list[TraceSpec] | None:
        """The specs of ``source``; ``None``, with a warning, if its library does not start."""
        waiting: collections.deque[dict[str, Any]] = collections.deque([{"list": True}])
        with _Workers(self, source) as workers:
            while not self.interrupted():
                event = workers.next_event(waiting)
                if event is None:
                    continue
                message = event.message or {}
                if "specs" in message:
                    found = [TraceSpec.from_json(spec) for spec in message["specs"]]
                    return _without_repeats(source, found)
                if event.message is None or "failure" in message:
                    why = message.get("reason") or event.worker.last_words()[1]
                elif "unavailable" in message:
                    why = message["unavailable"]
                else:
                    continue
                self.skipped.add(source.name)
                warnings.warn(f"source {source.name!r} is skipped: {why}", stacklevel=2)
                return None
        return []

    def run(
        self, tasks: Sequence[tuple[Source, Sequence[TraceSpec]]], packages: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Traces all specs, one entry of ``tasks`` after another; a source may have several.

        Raises:
          ConfigError: The disk is full.
          OSError: A list cannot be written, for example on a full disk.
        """
        total = sum(len(specs) for _, specs in tasks)
        bar = self.progress(total=total, unit="graph") if self.progress else None
        tally = Tally(bar, {record["topology_hash"] for record in self.index.read()})
        with contextlib.closing(bar) if bar is not None else contextlib.nullcontext():
            if self.remote is not None:
                from regal_jax.corpus.remote import trace_remotely

                trace_remotely(self.remote, self, tasks, packages, tally)
                return
            for source, specs in tasks:
                if (
                    specs
                    and source.name not in self.skipped
                    and not self.interrupted()
                    and not self._run_source(source, specs, packages.get(source.name, {}), tally)
                ):
                    self.skipped.add(source.name)

    def _run_source(
        self, source: Source, specs: Sequence[TraceSpec], packages: Mapping[str, Any], tally: "Tally"
    ) -> bool:
        """Whether the source's workers start at all."""
        waiting: collections.deque[dict[str, Any]] = collections.deque({"spec": spec} for spec in specs)
        left = len(specs)
        with _Workers(self, source) as workers:
            while left and not self.interrupted():
                event = workers.next_event(waiting)
                if event is None or "ready" in (event.message or {}):
                    continue
                worker, message = event.worker, event.message or {}
                if "fatal" in message:
                    raise ConfigError(f"{message['fatal']}; make room, then run the same command again")
                if "unavailable" in message:
                    warnings.warn(
                        f"source {source.name!r} is given up: {message['unavailable']}", stacklevel=3
                    )
                    return False
                task = worker.answered()
                if task is None:  # The worker died after its last answer.
                    continue
                if not message:
                    failure, reason = worker.last_words()
                    message = {"failure": failure, "reason": reason}
                left -= 1
                self.write_down(task["spec"], source, packages, message, tally)
        return True

    def write_down(
        self,
        spec: TraceSpec,
        source: Source,
        packages: Mapping[str, Any],
        message: Mapping[str, Any],
        tally: "Tally",
    ) -> None:
        """Adds a result to the lists of the corpus.

        Args:
          spec: What was traced.
          source: Its source.
          packages: Versions of the source's packages.
          message: The record of the graph, or the failure.
          tally: Counts the results.
        """
        if "record" not in message:
            self.failures.append({**spec.to_json(), **message})
            tally.failure()
            return
        package = source.packages[0]
        provenance = {"package": package, "version": packages.get(package)}
        record = {"path": f"{GRAPHS}/{spec.key}.json.gz", **spec.to_json(), **provenance}
        self.index.append({**record, **message["record"]})
        tally.success(message["record"]["topology_hash"])

    def request(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The request to a worker for ``task``."""
        if "spec" not in task:
            return dict(task)
        spec: TraceSpec = task["spec"]
        file = self.root / GRAPHS / f"{spec.key}.json.gz"
        return {"spec": spec.to_json(), "file": str(file), **self.settings}


class _Workers:
    """The workers of one source, at most one per task; all end with the context."""

    def __init__(self, engine: Engine, source: Source) -> None:
        self.engine, self.source = engine, source
        self.events: queue.Queue[Event] = queue.Queue()
        self.workers: list[Worker] = []
        self.failed_starts = 0
        self.tick = Deadline(_TICK)

    def __enter__(self) -> Self:
        self.log = tempfile.TemporaryFile()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.end()
        self.log.close()

    def next_event(self, waiting: "collections.deque[dict[str, Any]]") -> Event | None:
        """Keeps the workers busy with ``waiting`` and returns the next event, if one comes soon."""
        free = sum(worker.task is None for worker in self.workers)
        for _ in range(min(len(waiting) - free, self.engine.jobs - len(self.workers))):
            self.workers.append(Worker(self.source.module, self.events, self.log))
        for worker in self.workers:
            if worker.ready and worker.task is None and worker.verdict is None and waiting:
                task = waiting.popleft()
                # If the worker has died meanwhile, its last event says so.
                with contextlib.suppress(OSError):
                    worker.ask(task, self.engine.request(task), self.engine.timeout)
        return self._wait()

    def _wait(self) -> Event | None:
        try:
            event = self.events.get(timeout=_TICK)
        except queue.Empty:
            event = None
        if self.tick.over:
            self.tick = Deadline(_TICK)
            for worker in self.workers:
                worker.watch(self.engine.timeout, self.engine.memory)
        if event is None or event.worker not in self.workers:
            return None
        worker = event.worker
        if event.message is None:
            self.workers.remove(worker)
            worker.end()
            return self._after_death(event)
        if "ready" in event.message:
            worker.ready, worker.deadline, self.failed_starts = True, Deadline(), 0
        elif worker.tasks_done >= _TASKS_A_WORKER:
            self.workers.remove(worker)
            worker.end()
        return event

    def _after_death(self, event: Event) -> Event | None:
        if event.worker.ready:
            return event
        self.failed_starts += 1
        if self.failed_starts < _STARTS:
            return None
        return Event(
            event.worker, {"unavailable": f"its worker does not start: {event.worker.last_words()[1]}"}
        )


def _without_repeats(source: Source, specs: Sequence[TraceSpec]) -> list[TraceSpec]:
    twice = [key for key, n in collections.Counter(spec.key for spec in specs).items() if n > 1]
    if twice:
        raise ConfigError(f"source {source.name!r}: lists {twice[0]!r} twice; give each spec a name")
    return list(specs)


class Tally:
    """Counts shown beside the progress bar."""

    def __init__(self, bar: Any, hashes: set[str]) -> None:
        self.bar, self.hashes, self.failures = bar, hashes, 0

    def success(self, topology: str) -> None:
        self.hashes.add(topology)
        self._show()

    def failure(self) -> None:
        self.failures += 1
        self._show()

    def _show(self) -> None:
        if self.bar is not None:
            self.bar.set_postfix(distinct=len(self.hashes), failed=self.failures, refresh=False)
            self.bar.update()
