"""The suite of orders on one device: the tables of Gagrani et al. 2022, "Neural Topological Ordering".

- Layered graphs (appendix A) of some sizes, 300 of each in the paper. Their seeds are ``[0, 2, ops, i]``;
  those of training have 0 or 1 in the second place.
- Real graphs of 200 to 1000 ops in the three classes of Table 2: the forward graphs of a corpus or of the
  sample, of one split.

The reference is approximate dynamic programming. Searches have a tenth of the seconds that it took for the
same graph; of its processor's seconds on a machine without an accelerator, where it runs on one core. Every
method is also compared with approximate dynamic programming that takes no more seconds than the method.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np

from regal_jax.datasets import load_corpus, load_graphs, load_sample
from regal_jax.datasets.corpus_files import INDEX
from regal_jax.datasets.layered import layered_graph
from regal_jax.datasets.load import sample_folder
from regal_jax.graph import ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers import ApproximateDp
from regal_jax.solvers.protocol import Constructive, Instance

__all__ = [
    "CLASSES",
    "EVALUATIONS",
    "GRAPHS",
    "SETTINGS",
    "SHARE",
    "TITLES",
    "ApproximateDpWithin",
    "layered_cases",
    "real_cases",
]

GRAPHS: Final = 300
"""Number of layered graphs of each size (section 5.1)."""
CLASSES: Final = ((200, 500), (500, 700), (700, 1000))
"""Ranges of ops of real graphs (Table 2). A border belongs to the upper class; the last is closed."""
SHARE: Final = 0.1
"""Share of the reference's seconds that searches have."""
EVALUATIONS: Final = 1_000_000
"""Budget of searches, large enough that the time limit ends them first."""
SETTINGS: Final = {"approximate-dp": {"width": 100_000}, "depth-first-dp": {"time_limit": 3600.0}}
"""Settings of the paper (section 5, Table 1)."""
TITLES: Final = {"partition-dfs": "Depth first", "bfs": "Breadth first"}
"""Titles of methods that have another title for several devices."""
_SEEDS: Final = (0, 2)
_FORM: Final = "forward"


def layered_cases(sizes: Sequence[int], count: int, first: int = 0) -> Iterator[tuple[str, ComputationGraph]]:
    """Layered graphs, each with the name of its set in tables.

    Args:
      sizes: Numbers of ops.
      count: Number of graphs of each size.
      first: Number of the first graph of each size.
    """
    for ops in sizes:
        for i in range(first, first + count):
            check_interrupt()
            rng = np.random.default_rng([*_SEEDS, ops, i])
            yield f"layered {ops}", layered_graph(rng, ops, name=f"layered-{ops}-{i}")


def real_cases(path: str, split: str, limit: int) -> Iterator[tuple[str, ComputationGraph]]:
    """Real graphs in one of `CLASSES`, each with the name of its set in tables.

    Args:
      path: Path as in `regal_jax.datasets.load_graphs`. From a corpus and from the sample, only forward
        graphs are used; from a set of graphs, which has no forms, all.
      split: Split as in `regal_jax.datasets.load_graphs`.
      limit: Number of graphs, taken from the front; 0 for all.

    Raises:
      ConfigError: There is no such split.
      FormatError: No file can be read.
    """
    found = 0
    for graph in _read(path, split, CLASSES[-1][1]):
        name = _class_of(graph.num_ops)
        if name is not None and (not limit or found < limit):
            found += 1
            yield name, graph


def _read(path: str, split: str, most: int) -> Iterator[ComputationGraph]:
    sample = sample_folder(path)
    if sample is not None:
        records = load_sample(split, folder=sample)
        yield from (graph for record, graph in records if record["form"] == _FORM)
    elif (pathlib.Path(path) / INDEX).exists():
        yield from (graph for _, graph in load_corpus(path, split, form=_FORM, max_ops=most))
    else:
        yield from load_graphs(path, split, max_ops=most)


def _class_of(ops: int) -> str | None:
    for low, high in CLASSES:
        if low <= ops < high or ops == high == CLASSES[-1][1]:
            return f"real {low}-{high}"
    return None


@dataclasses.dataclass(frozen=True)
class ApproximateDpWithin(Constructive):
    """The best plan of approximate dynamic programming within a time limit.

    The width is doubled until one exceeds the limit twice. The last width is the largest that is expected to
    fit, given the times of the others. The limit applies to each width by itself, as if the right width had
    been known in advance. The first width counts even if it exceeds the limit.

    Attributes:
      seconds: Time limit of each width.
    """

    name: ClassVar[str] = "approximate-dp"
    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    most_devices: ClassVar[int | None] = 1
    seconds: float = 1.0

    def construct(self, instance: Instance) -> Plan:
        """The plan with the lowest peak; its provenance has ``width`` and ``width_seconds``."""
        best, took = self._twice(instance, 1)
        width, fits, plan = 1, 0.0, best
        # If no state was dropped, a larger width gives the same plan.
        while took <= self.seconds and plan.provenance["status"] not in ("optimal", "impossible"):
            width, fits = 2 * width, took
            plan, took = self._twice(instance, width)
            best = min(best, plan, key=self._value) if took <= self.seconds else best
        between = int(width / 2 * self.seconds / fits) if took > self.seconds and fits else 0
        if width // 2 < between < width:
            plan, took = self._timed(instance, between)
            best = min(best, plan, key=self._value) if took <= self.seconds else best
        return best

    def _twice(self, instance: Instance, width: int) -> tuple[Plan, float]:
        """One width, run again if it exceeds the limit, since the machine may be busy for a moment."""
        plan, took = self._timed(instance, width)
        if took <= self.seconds:
            return plan, took
        return min((plan, took), self._timed(instance, width), key=lambda pair: pair[1])

    @staticmethod
    def _value(plan: Plan) -> float:
        return plan.objective_value

    @staticmethod
    def _timed(instance: Instance, width: int) -> tuple[Plan, float]:
        check_interrupt()
        clock = Deadline()
        plan = ApproximateDp(width, implementation="host").construct(instance)
        took = clock.spent
        said = {"width": width, "width_seconds": round(took, 6)}
        return dataclasses.replace(plan, provenance={**plan.provenance, **said}), took
