"""Runs the suite of robust scheduling: every source on every graph, resumable."""

import pathlib
from collections.abc import Callable
from typing import Any

from regal_jax.errors import ClusterError, ConfigError, GraphError, PlanError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.records import Outcome, Records, code_word, write_evaluation
from regal_jax.experiments.robust_jobs import proposing
from regal_jax.experiments.robust_scheduling import measure, robust_cases
from regal_jax.problem import Bucket
from regal_jax.runtime.interrupts import first_interrupt_waits
from regal_jax.storage.locks import locked

__all__ = ["run_robust"]


def run_robust(
    config: EvaluationConfig, folder: pathlib.Path, progress: Callable[..., Any] | None = None
) -> Outcome:
    """`regal_jax.experiments.run_evaluation` for the suite ``robust-scheduling``."""
    cases = robust_cases(config)
    jobs, left_out = proposing(config)
    with locked(folder):
        records = Records(folder)
        records.mend()
        document = {
            "config": config.as_document(),
            "code": code_word(),
            "graphs": [case.as_document(config.draws) for case in cases],
            "jobs": [job.as_document() for job in jobs],
            "left_out": left_out,
        }
        write_evaluation(folder, document)
        made = found = 0
        pairs = [(case, job) for case in cases for job in jobs if job.covers(case.set)]
        compiled: set[Any] = set()
        bar = None if progress is None else progress(total=len(pairs), unit="result")
        try:
            with first_interrupt_waits() as interrupted:
                for case, job in pairs:
                    if (job.key, case.key) in records:
                        found += 1
                    else:
                        program = job.name, job.training, case.set, Bucket.of(case.graph)
                        warm = config.warm_up and program not in compiled
                        compiled.add(program)
                        try:
                            fields = measure(job, case, config.keep, config.draws, warm=warm)
                        except (ConfigError, ClusterError, GraphError, PlanError) as error:
                            fields = {"error": " ".join(str(error).split())}
                        if interrupted():
                            return Outcome(made, found, left_out, False)
                        records.add(
                            {
                                "key": job.key, "graph": case.key, "name": case.graph.name,
                                "ops": case.graph.num_ops, "set": case.set, "method": job.name,
                                "seed": job.seed, "limit": job.evaluations, **fields,
                            }
                        )  # fmt: skip
                        made += 1
                    if bar is not None:
                        bar.set_description(job.title)
                        bar.update(1)
        except KeyboardInterrupt:
            return Outcome(made, found, left_out, False)
        finally:
            if bar is not None:
                bar.close()
    return Outcome(made, found, left_out, True)
