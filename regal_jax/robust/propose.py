"""`propose`: many good and different plans of one graph."""

import dataclasses
import os
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

import jax
import numpy as np

from regal_jax.checks import check_whole, shown
from regal_jax.errors import ConfigError, InfeasiblePlanWarning, MissingExtraError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.html import html_rows
from regal_jax.graph.units import format_time
from regal_jax.plan import Plan
from regal_jax.plan.summary import shortage
from regal_jax.robust.candidates import Candidates
from regal_jax.robust.choice import cover
from regal_jax.robust.diversity import Diversity
from regal_jax.robust.scenarios import Scenarios
from regal_jax.robust.sources import Proposer, automatic_source, make_source
from regal_jax.robust.targets import speedup
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.runtime.stack import outer_level
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solvers.loop.settings import as_key, check_pairs
from regal_jax.storage.atomic import writing
from regal_jax.storage.paths import folder_path

if TYPE_CHECKING:
    import pandas

    from regal_jax.gflownet import SchedulePolicy

__all__ = ["Proposals", "propose"]

_MOST: Final = 1_000_000
_CHOICES: Final = ("scenarios", "proxy")


@dataclasses.dataclass(frozen=True, eq=False)
class Proposals:
    """Plans of one graph, from which a target chooses.

    Attributes:
      plans: ``[K]`` in the order of the choice, the best by the proxy first; each has been replayed exactly.
      candidates: The same schedules as arrays.
      proposed: Number of schedules that the source has proposed.
      distinct: Number of different schedules among them; see `Candidates.distinct`.
    """

    plans: tuple[Plan, ...]
    candidates: Candidates
    proposed: int
    distinct: int

    def __len__(self) -> int:
        return len(self.plans)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.plans)

    def __getitem__(self, index: int) -> Plan:
        return self.plans[index]

    @property
    def graph(self) -> ComputationGraph:
        """The graph."""
        return self.candidates.graph

    @property
    def source(self) -> str:
        """Name of the source."""
        return self.candidates.source

    @property
    def makespans(self) -> np.ndarray:
        """``[K]`` float64 makespans by the proxy, in the graph's time unit."""
        return self.candidates.makespan

    @property
    def speedups(self) -> np.ndarray:
        """``[K]`` float64: the sum of all runtimes over the makespan."""
        return speedup(self.graph, self.makespans)

    @property
    def diversity(self) -> Diversity:
        """The diversity of the plans."""
        return self.candidates.diversity

    def save(self, folder: str | os.PathLike[str]) -> list[str]:
        """Writes ``plan-000.json`` and so on, in the order of `plans`, and returns the names of the files.

        Raises:
          FormatError: A file cannot be written, or the folder cannot be made.
        """
        with writing(folder):
            path = folder_path(folder)
            path.mkdir(parents=True, exist_ok=True)
        names = [f"plan-{i:03d}.json" for i in range(len(self.plans))]
        for name, plan in zip(names, self.plans, strict=True):
            check_interrupt()
            plan.save(path / name)
        return names

    def to_dataframe(self) -> "pandas.DataFrame":
        """One row per plan, best first (extra ``interop``).

        Columns: ``makespan`` in the graph's time unit, ``speedup``, ``transfers``, ``transfer_bytes``, and
        ``largest_peak`` in bytes.

        Raises:
          MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "interop") from None
        return pandas.DataFrame(
            {
                "makespan": self.makespans,
                "speedup": self.speedups,
                "transfers": [plan.num_transfers for plan in self.plans],
                "transfer_bytes": [plan.transfer_bytes for plan in self.plans],
                "largest_peak": [int(plan.peak_memory.max()) for plan in self.plans],
            }
        )

    def _figures(self) -> list[tuple[str, str]]:
        unit, apart = self.graph.time_unit, self.diversity
        return [
            ("proposed", f"{self.proposed:,} schedules, {self.distinct:,} different ones"),
            ("kept", f"{len(self):,}"),
            ("makespan", f"{format_time(float(self.makespans.min()), unit)} to "
                         f"{format_time(float(self.makespans.max()), unit)}"),
            ("speed-up", f"best {self.speedups.max():.3f}, mean {self.speedups.mean():.3f}"),
            ("graph-edit distance", f"{apart.ged:.1f} %"),
            ("d_inv, d_sen", f"{apart.d_inv:.3g}, {apart.d_sen:.3g}"),
        ]  # fmt: skip

    @property
    def _title(self) -> str:
        return f"plans of {self.graph.name!r} by {self.source}"

    def __str__(self) -> str:
        rows = self._figures()
        width = max(len(name) for name, _ in rows)
        return "\n".join([self._title, *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def __repr__(self) -> str:
        return (
            f"<{len(self)} {self._title}: speed-up {self.speedups.max():.3f}, graph-edit distance "
            f"{self.diversity.ged:.1f} %>"
        )

    def _repr_html_(self) -> str:
        return html_rows(self._title, self._figures())


def propose(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    count: int = 1000,
    keep: int = 100,
    source: str | Proposer = "auto",
    weights: "str | os.PathLike[str] | Proposer | SchedulePolicy | None" = None,
    temperature: float | None = None,
    evaluations: int | None = None,
    choose: Literal["scenarios", "proxy"] | Scenarios = "scenarios",
    seed: int | jax.Array = 0,
) -> Proposals:
    """Proposes many plans of ``graph`` that are good on ``cluster`` and differ from each other.

    The cost of a plan on real devices differs from that of a cost model. `regal_jax.select` therefore tries
    the best of these plans on the target. The cluster is the proxy; the paper uses four devices with
    ``transfer="free"``.

    Args:
      graph: The graph.
      cluster: The cluster. A blocking transfer stands directly before its first reader.
      count: Number of schedules requested from the source. ``"brkga"`` proposes whole populations, at
        least so many.
      keep: Largest number of plans returned, all of different schedules. With memory capacities, plans that
        fit go before those that do not.
      source: ``"brkga"``: final populations of independent runs; ``"brkga-runs"``: the best schedule of each
        of many independent runs; ``"scenario-runs"``: the same, each run with other costs around the proxy
        (`regal_jax.robust.ScenarioRuns`); ``"list-scheduling"``: the critical-path list schedule and variants
        of it; ``"random"``; ``"gflownet"`` and ``"ppo"``, which need weights; or an object with a
        method ``propose(graph, cluster, count, key)``, see `regal_jax.robust.Proposer`.
        ``"auto"``: the kind of the weights if there are any (`regal_jax.robust.automatic_source`), else
        ``"scenario-runs"``.
      weights: Weights of ``"gflownet"`` or ``"ppo"``: a `regal_jax.gflownet.SchedulePolicy`, a file,
        ``"default"`` for the weights of ``"gflownet"`` that ship, or an object with such a method.
      temperature: Temperature of ``"gflownet"``, by default 0.005. Lower values give better and less diverse
        plans. ``"ppo"`` uses that of its training: of a file by its metadata, else 0.25. Other sources have
        none.
      evaluations: Budget of each run of ``"brkga"``, ``"brkga-runs"`` and ``"scenario-runs"``; by default
        their own. Other sources have no budget.
      choose: Which plans are kept, and in which order. ``"scenarios"``: those that together do best where
        costs differ from the proxy (`regal_jax.robust.cover`), so that the first few are worth trying;
        ``"proxy"``: those of the smallest makespans, as in the paper; or `regal_jax.robust.Scenarios` with
        settings of your own.
      seed: A number or a typed `jax.random.key`. With the same versions, the same seed proposes the same
        plans.

    Returns:
      The plans, at least one.

    Warns:
      InfeasiblePlanWarning: No plan fits the memory.

    Raises:
      ConfigError: An argument is not allowed, or the source has no budget or temperature.
      ClusterError: The cluster cannot run the graph.
      PlanError: A source proposed an invalid schedule.

    Examples:
      >>> from regal_jax import Cluster, propose
      >>> from regal_jax.datasets import generate
      >>> graph = generate("gflownet-layered", 20, seed=0)
      >>> cluster = Cluster.uniform(4, transfer="free")
      >>> found = propose(graph, cluster, count=50, keep=10, source="list-scheduling")
      >>> len(found), found[0].makespan == min(plan.makespan for plan in found)
      (10, True)

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, sections 2.3 and 5.
    """
    check_pairs([graph], [cluster])
    check_whole("count", count, 1, _MOST)
    check_whole("keep", keep, 1, _MOST)
    if evaluations is not None:
        check_whole("evaluations", evaluations, 1, MAX_EVALUATIONS)
    if not isinstance(choose, Scenarios) and not (isinstance(choose, str) and choose in _CHOICES):
        names = " or ".join(map(repr, _CHOICES))
        raise ConfigError(f"choose: unknown {shown(choose)}; use {names}, or Scenarios")
    file = os.fspath(weights) if isinstance(weights, os.PathLike) else weights
    source = source.lower() if isinstance(source, str) else source
    if source == "auto":
        source = automatic_source(file)
    name, proposer = make_source(source, weights=file, temperature=temperature, evaluations=evaluations)
    with interruptible():
        key, chooses = jax.random.split(as_key(seed))
        sequence, devices = _pair(proposer.propose(graph, cluster, count, key), name)
        found = Candidates.of(graph, cluster, sequence, devices, name)
        if not len(found):
            raise ConfigError(f"source: {name} proposed no schedule for {graph.name!r}")
        return _kept(found, keep, choose, chooses)


def _pair(proposed: Any, name: str) -> Sequence[Any]:
    """What a source returned, if these are two values."""
    many = isinstance(proposed, (tuple, list, np.ndarray, jax.Array)) and getattr(proposed, "ndim", 1)
    if not many or len(proposed) != 2:
        given = f"{len(proposed)} values" if isinstance(proposed, (tuple, list)) else type(proposed).__name__
        raise ConfigError(f"source: {name} returned {given}; return two arrays [C, N], (sequence, devices)")
    return list(proposed)


def _kept(found: Candidates, keep: int, choose: str | Scenarios, key: jax.Array) -> Proposals:
    different = found.best(len(found))
    fits = len(different)
    if not np.isinf(found.cluster.memory).all():
        every = [different.plan(i) for i in range(len(different))]
        order = sorted(range(len(every)), key=lambda i: every[i].sort_key)
        different, fits = different.take(order), sum(plan.feasible for plan in every)
    kept = different.take(np.arange(min(keep, len(different))))
    if choose != "proxy" and fits:
        scenarios = choose if isinstance(choose, Scenarios) else Scenarios()
        fitting = cover(different.take(np.arange(fits)), keep, scenarios, key)
        kept = fitting.joined(kept.take(np.arange(len(fitting), len(kept))))
    plans = [kept.plan(i) for i in range(len(kept))]
    if not plans[0].feasible:
        warnings.warn(shortage(plans[0], starts=False), InfeasiblePlanWarning, stacklevel=outer_level())
    return Proposals(tuple(plans), kept, len(found), len(different))
