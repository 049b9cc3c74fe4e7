"""`run_evaluation`: every method on every graph, chunk by chunk, resumable."""

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.checks import check_kind
from regal_jax.engines import Engine, opened
from regal_jax.errors import (
    ClusterError,
    ConfigError,
    GraphError,
    MissingExtraError,
    PlanError,
    SolverError,
    WorkerError,
)
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.graphs import Task, evaluation_tasks
from regal_jax.experiments.jobs import Job, make_jobs
from regal_jax.experiments.method import Results
from regal_jax.experiments.records import Outcome, Records, code_word, write_evaluation
from regal_jax.experiments.robust_run import run_robust
from regal_jax.experiments.topological_order import ApproximateDpWithin, layered_cases
from regal_jax.problem import Bucket
from regal_jax.programs import given_up
from regal_jax.runtime.interrupts import first_interrupt_waits, interruptible
from regal_jax.solvers.sources import is_of_package
from regal_jax.storage.locks import locked
from regal_jax.storage.paths import folder_path

__all__ = ["Outcome", "run_evaluation"]

_ON_ENGINES: Final = ("regal", "realistic")
"""Suites of which an engine can plan several graphs at once."""
_POPULATION: Final = 1000
"""A budget of so many evaluations is larger than most populations."""
_SMALL: Final = 40
"""Ops of the small graph with which loops are compiled."""
_SECONDS: Final = 1.0
"""Time limit of that compilation run, in seconds."""


@interruptible()
def run_evaluation(
    config: EvaluationConfig,
    out: str | os.PathLike[str],
    *,
    progress: Callable[..., Any] | None = None,
    engine: "str | Engine" = "local",
) -> Outcome:
    """Runs every method of ``config`` on its graphs and keeps the results in a folder.

    Every method runs a chunk of graphs before any method runs the next chunk, so that all run under the same
    load of the machine. Results are appended chunk by chunk. A killed run resumes when it is called again and
    repeats only the chunk in which it ended; with other settings it adds the missing results. A method that
    cannot run is left out, with the reason. Ctrl-C abandons the current chunk and returns.

    Args:
      config: Settings of the evaluation.
      out: Folder of the results; created if missing. `report` makes tables and pictures from it.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.
      engine: Where graphs are planned, as in `regal_jax.optimize_many`, for the suites ``regal`` and
        ``realistic``. The workers share each chunk, so it should have many graphs for each of them. Seconds
        are measured where a graph is planned, so all machines should be alike.

    Raises:
      ConfigError: A setting is invalid, there is no graph, or another run uses the same folder.
      FormatError: Graphs or results cannot be read.
      ClusterError: The settings make no valid cluster.

    Examples:
      >>> from regal_jax.experiments import EvaluationConfig, run_evaluation
      >>> config = EvaluationConfig("sample", limit=2, methods=("critical-path",), other_seed=-1, limits=())
      >>> run_evaluation(config, "results").finished
      True
    """
    check_kind("config", config, EvaluationConfig)
    folder = folder_path(out)
    if engine != "local" and config.suite not in _ON_ENGINES:
        raise ConfigError(f"engine: the suite {config.suite!r} runs in this process; leave the engine out")
    if config.suite == "robust-scheduling":
        return run_robust(config, folder, progress)
    tasks = evaluation_tasks(config)
    jobs = make_jobs(config)
    with locked(folder), opened(engine) as workers:
        records = Records(folder)
        records.mend()
        document = {
            "config": config.as_document(),
            "code": code_word(),
            "graphs": [task.as_document() for task in tasks],
            "jobs": [job.as_document() for job in jobs.jobs],
        }
        write_evaluation(folder, {**document, "left_out": jobs.left_out})
        run = _Run(config, tasks, records, dict(jobs.left_out), workers)
        finished = run.all(jobs.jobs, progress)
        write_evaluation(folder, {**document, "left_out": run.left_out})
    return Outcome(run.made, run.found, run.left_out, finished)


class _Run:
    """State of a run."""

    def __init__(
        self,
        config: EvaluationConfig,
        tasks: Sequence[Task],
        records: Records,
        left_out: dict[str, str],
        engine: Engine | None,
    ) -> None:
        self._engine = engine
        self._config, self._tasks, self._records = config, tasks, records
        # One graph at a time, as in the paper. Time limits also apply to single graphs.
        self._alone = config.suite == "topological-order"
        self._chunks = _chunks(tasks, 1 if self._alone else config.chunk)
        self._warm: set[tuple[object, ...]] = set()
        self._given_up = given_up()
        self.left_out = left_out
        self.made = self.found = 0

    def all(self, jobs: Sequence[Job], progress: Callable[..., Any] | None) -> bool:
        """Runs every job; ``False`` if interrupted."""
        bar = None if progress is None else progress(total=len(jobs) * len(self._tasks), unit="result")
        try:
            with first_interrupt_waits() as interrupted:
                for job, chunk in self._in_turns(jobs):
                    if bar is not None:
                        bar.set_description(job.title)
                    if not self._part(job, chunk, interrupted):
                        return False
                    if bar is not None:
                        bar.update(len(chunk))
        except KeyboardInterrupt:
            # The search had no result yet, or this is a second Ctrl-C. All finished results are on disk.
            return False
        finally:
            if bar is not None:
                bar.close()
        return True

    def _in_turns(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Sequence[Task]]]:
        """Every job for each chunk, starting with a different job each time, since a machine's speed drifts.

        The curves take long and their times are not compared, so they come last.
        """
        for some in ([j for j in jobs if j.role != "curve"], [j for j in jobs if j.role == "curve"]):
            free, bound = [j for j in some if not j.after], [j for j in some if j.after]
            for number, chunk in enumerate(self._chunks if some else ()):
                first = number % len(free)
                # A job whose time limit depends on another job follows it.
                for job in (*free[first:], *free[:first], *bound):
                    alone = job.hosted and self._engine is None
                    for part in [[task] for task in chunk] if alone else [chunk]:
                        yield job, part

    def _part(self, job: Job, tasks: Sequence[Task], interrupted: Callable[[], bool]) -> bool:
        """Runs a job on those of these tasks that lack a result; ``False`` if interrupted."""
        missing = [task for task in tasks if (job.key, task.key) not in self._records]
        self.found += len(tasks) - len(missing)
        if not missing or job.name in self.left_out:
            return True
        try:
            made = self._chunk(job, missing)
        except (MissingExtraError, OSError) as error:
            # This is not stored with the results: the reason may not hold the next time.
            self.left_out[job.name] = _one_line(error)
            made = []
        # Searches in the chunk in which Ctrl-C came ended early.
        if interrupted():
            return False
        for task, fields in zip(missing, made, strict=False):
            self._keep(job, task, fields)
        return True

    def _chunk(self, job: Job, tasks: Sequence[Task]) -> list[dict[str, Any]]:
        """The fields of one record per task."""
        try:
            return _fields(job, self._timed(job, tasks))
        except (ConfigError, ClusterError, GraphError, PlanError, SolverError, WorkerError) as error:
            # A plan of ours that is not valid is no property of the graph.
            if isinstance(error, PlanError) and is_of_package(job.method.solver):
                raise
            if len(tasks) == 1:
                return [{"error": _one_line(error)}]
        # The method may fail to cover only one graph of the chunk.
        return [self._chunk(job, [task])[0] for task in tasks]

    def _timed(self, job: Job, tasks: Sequence[Task]) -> Results:
        budget = job.evaluations or self._config.evaluations
        graphs, clusters = [task.graph for task in tasks], [task.cluster for task in tasks]
        options: dict[str, Any] = {"objective": tasks[0].objective, "seed": job.seed}
        if self._alone:
            return self._ordered(job, tasks[0])
        if self._engine is not None:
            options |= {"engine": self._engine, "warm_up": self._config.warm_up and not job.hosted}
            return job.method(graphs, clusters, evaluations=budget, **options)
        # Programs do not depend on the budget, unless it is smaller than a population.
        first = min(budget, self._config.evaluations)
        size = (job.name, *_program(tasks[0]), len(tasks), min(first, _POPULATION))
        if self._given_up != given_up():
            self._warm.clear()  # The programs given up may be among these.
        if self._config.warm_up and not job.hosted and size not in self._warm:
            job.method(graphs, clusters, evaluations=first, **options)
            self._given_up = given_up()
            self._warm.add(size)
        return job.method(graphs, clusters, evaluations=budget, **options)

    def _ordered(self, job: Job, task: Task) -> Results:
        """Timed results of a job of the suite of orders for one task."""
        options: dict[str, Any] = {"objective": task.objective, "seed": job.seed}
        seconds, method = self._seconds(job, task), job.method
        if self._config.warm_up:
            self._warm_up(job, task, options)
        if job.role != "same-time":
            budget = job.evaluations or self._config.evaluations
            return method([task.graph], task.cluster, evaluations=budget, time_limit=seconds, **options)
        method = dataclasses.replace(method, solver=ApproximateDpWithin(seconds or 0.0))
        results = method([task.graph], task.cluster, **options)
        took = [plan.provenance["width_seconds"] for plan in results.plans]
        # Processor seconds would be those of all widths.
        return dataclasses.replace(results, seconds=np.array(took), processor=None)

    def _seconds(self, job: Job, task: Task) -> float | None:
        """Time limit of the job for a task, in seconds; ``None`` for no limit."""
        if not job.after:
            return None
        other = self._records.get(job.after, task.key)
        if other is None:
            raise ConfigError(
                f"{job.title}: the time limit is a share of the time of {job.after!r}, which has no result"
            )
        # Other work of the machine shortens no limit and lengthens none. Engines tell no processor seconds.
        name = "processor_seconds"
        alone = jax.default_backend() == "cpu" and job.role != "same-time" and name in other
        return job.share * other[name if alone else "seconds"]

    def _warm_up(self, job: Job, task: Task, options: Mapping[str, Any]) -> None:
        """Compiles the programs of a size with its first graph, and loops with a small graph."""
        if self._given_up != given_up():
            self._warm.clear()
        # Loops depend on the solver but not on its settings.
        what = (job.name, *_program(task)) if job.compiles else (job.method.solver.name,)
        if what in self._warm:
            return
        if job.compiles:
            graph, limit = task.graph, None
        else:
            graph, limit = next(layered_cases([_SMALL], 1))[1], _SECONDS
        budget = min(job.evaluations, self._config.evaluations) or self._config.evaluations
        job.method([graph], task.cluster, evaluations=budget, time_limit=limit, **options)
        self._given_up = given_up()
        self._warm.add(what)

    def _keep(self, job: Job, task: Task, fields: dict[str, Any]) -> None:
        graph = task.graph
        record = {"key": job.key, "graph": task.key, "name": graph.name, "ops": graph.num_ops}
        record |= {"method": job.name, "seed": job.seed, "limit": job.evaluations, **fields}
        self._records.add(record)
        self.made += 1


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _program(task: Task) -> tuple[Bucket, int, bool, str]:
    """Key shared by the tasks that one compiled program can search."""
    cluster = task.cluster
    return (
        Bucket.of(task.graph),
        cluster.num_devices,
        bool(np.isinf(cluster.memory).all()),
        str(task.objective),
    )


def _chunks(tasks: Sequence[Task], size: int) -> list[list[Task]]:
    """Chunks of tasks, each searched by one compiled program."""
    groups: dict[tuple[Bucket, int, bool, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault(_program(task), []).append(task)
    return [group[i : i + size] for group in groups.values() for i in range(0, len(group), size)]


def _fields(job: Job, results: Results) -> list[dict[str, Any]]:
    made = []
    for row, plan in enumerate(results.plans):
        fields: dict[str, Any] = {
            "value": float(results.value[row]),
            "overflow": float(results.overflow[row]),
            "evaluations": int(results.evaluations[row]),
            **plan.provenance.get("work", {}),
            "seconds": float(np.round(results.seconds[row], 6)),
        }
        if results.processor is not None:
            fields["processor_seconds"] = float(np.round(results.processor[row], 6))
        for name, wanted in (("action_entropy", job.guided), ("history", job.role == "curve")):
            # The plan of an interrupted search may have neither and is not stored.
            if wanted and name in plan.provenance:
                fields[name] = plan.provenance[name]
        if job.role == "same-time":
            fields["width"] = plan.provenance["width"]
        made.append(fields)
    return made
