"""`Plan`: a placement, an order of events, and everything that follows from them."""

import dataclasses
import difflib
import enum
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError, MissingExtraError, PlanError
from regal_jax.graph import Cluster, ComputationGraph, once_a_pair, runtime_matrix
from regal_jax.graph.html import html_rows
from regal_jax.plan.bounds import Objective, lower_bound
from regal_jax.plan.comparison import PlanComparison, compare_plans
from regal_jax.plan.files import plan_fields, plan_text
from regal_jax.plan.limits import meets_bound, why_impossible
from regal_jax.plan.replay import Timeline, as_ids, replay
from regal_jax.plan.schedule import needed_transfers
from regal_jax.plan.summary import figures, headline, summary, title
from regal_jax.plan.trace import chrome_trace
from regal_jax.plan.verify import verify
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.atomic import write_atomically, writing
from regal_jax.storage.compression import packed, unpacked
from regal_jax.storage.paths import path_text
from regal_jax.storage.reading import read_limited

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

__all__ = ["Plan", "PlanStatus", "json_values", "proof_of", "proven_status", "without_proof"]

_MAX_BYTES: Final = 2**31
"""Largest file that `Plan.load` reads. The plan of a graph of a million ops takes less."""
_PROOF: Final = ("status", "bound", "resolution")
"""Entries of a provenance that say what a solver has proven."""


class PlanStatus(enum.StrEnum):
    """Whether a plan fits the memory, and whether it is optimal."""

    OPTIMAL = "optimal"
    """It fits the memory and meets its lower bound."""
    FEASIBLE = "feasible"
    """It fits the memory; a better one may exist."""
    INFEASIBLE = "infeasible"
    """It does not fit the memory; another one may."""
    IMPOSSIBLE = "impossible"
    """No plan fits the memory, see `Plan.impossible`."""


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Placement, event times and memory of an execution; always the result of an exact replay.

    Attributes:
      graph_name: Name of the graph.
      graph_hash: Its `ComputationGraph.content_hash`.
      time_unit: Unit of every time in the plan.
      op_names: ``[N]``.
      op_kinds: ``[N]``; empty where the graph has no kind.
      cluster: The cluster.
      objective: The objective for which it was made.
      placement: ``[N]`` int64 device of each op.
      timeline: Events with times, makespan, peaks and memory profile.
      num_transfers: Number of copies of tensors that the placement needs, in every transfer model.
      transfer_bytes: Total size of these copies.
      one_device_makespan: Makespan of all ops on the fastest single device, in `time_unit`, whether or not
        every op may run there.
      lower_bound: No plan on this cluster has a smaller value of `objective`.
      provenance: How it was made: ``method``, ``evaluations``, ``seed``, ``versions``, ``history``, ...;
        JSON values only.
      impossible: Why no plan of the graph can fit the memory of `cluster`; empty if this plan fits or if no
        such proof is known.
      pin: Pattern over op names -> devices, the pins that the call added to those of the graph: see
        `regal_jax.graph.constrain`. `lower_bound` and `impossible` hold for plans that obey them.
      colocate: Patterns whose ops share a device, added likewise.
    """

    graph_name: str
    graph_hash: str
    time_unit: str
    op_names: tuple[str, ...]
    op_kinds: tuple[str, ...]
    cluster: Cluster
    objective: Objective
    placement: np.ndarray
    timeline: Timeline
    num_transfers: int
    transfer_bytes: int
    one_device_makespan: float
    lower_bound: float
    provenance: Mapping[str, Any]
    impossible: str = ""
    pin: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    colocate: tuple[str, ...] = ()

    @classmethod
    @interruptible()
    def from_events(
        cls,
        graph: ComputationGraph,
        cluster: Cluster,
        placement: np.ndarray,
        events: Sequence[int] | np.ndarray,
        *,
        objective: Objective | str = Objective.MAKESPAN,
        provenance: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replays ``events`` (ids as in `replay`) exactly and keeps the result.

        In ``provenance`` tuples and arrays become lists, and numbers that are not finite become ``None``, as
        if it had been read from a file.

        Raises:
          PlanError: ``placement`` or ``events`` are not a valid execution, or a value in ``provenance``
            has no place in JSON.
          ClusterError: The cluster does not fit the graph.
          ConfigError: An argument is of another kind, or there is no such objective.
        """
        objective = Objective(objective)
        check_kind("provenance", {} if provenance is None else provenance, Mapping)
        placement = as_ids("placement", placement).copy()
        timeline = replay(graph, cluster, placement, events)
        moved, _ = needed_transfers(graph, placement)
        overflows = bool((timeline.peak_memory > np.array(cluster.memory)).any())
        return cls(
            graph_name=graph.name,
            graph_hash=graph.content_hash,
            time_unit=graph.time_unit,
            op_names=graph.op_names,
            op_kinds=graph.op_kinds,
            cluster=cluster,
            objective=objective,
            placement=placement,
            timeline=timeline,
            num_transfers=len(moved),
            # Together they may be more than int64 holds.
            transfer_bytes=sum(graph.tensor_bytes[moved].tolist()),
            one_device_makespan=_one_device_makespan(graph, cluster),
            lower_bound=lower_bound(graph, cluster, objective),
            provenance=json_values(dict(provenance or {}), "provenance"),
            impossible=why_impossible(graph, cluster) if overflows else "",
        )

    @property
    def makespan(self) -> float:
        """The largest finish, in `time_unit`."""
        return self.timeline.makespan

    @property
    def peak_memory(self) -> np.ndarray:
        """``[D]`` int64 bytes."""
        return self.timeline.peak_memory

    @property
    def overflow(self) -> np.ndarray:
        """``[D]`` float64 bytes by which each peak exceeds its device's capacity."""
        return np.maximum(self.peak_memory - np.array(self.cluster.memory), 0.0)

    @property
    def feasible(self) -> bool:
        """Whether every peak is within the capacity of its device."""
        return not self.overflow.any()

    @property
    def objective_value(self) -> float:
        """Makespan, or the largest peak, as `objective` says."""
        return self.makespan if self.objective is Objective.MAKESPAN else float(self.peak_memory.max())

    @property
    def optimal(self) -> bool:
        """Whether it fits the memory and meets `lower_bound`, a makespan up to 2**-20 (float32 sums)."""
        return self.feasible and meets_bound(self.objective_value, self.lower_bound, self.objective)

    @property
    def status(self) -> PlanStatus:
        """`optimal`, or else feasible, infeasible or impossible; ``provenance["status"]`` has proofs."""
        if self.feasible:
            return PlanStatus.OPTIMAL if self.optimal else PlanStatus.FEASIBLE
        return PlanStatus.IMPOSSIBLE if self.impossible else PlanStatus.INFEASIBLE

    @property
    def gap(self) -> float | None:
        """``objective_value / lower_bound - 1``, at least 0; ``None`` if the bound is 0."""
        # Both are sums, which may be rounded differently.
        return max(self.objective_value / self.lower_bound - 1, 0.0) if self.lower_bound else None

    @property
    def sort_key(self) -> tuple[float, float]:
        """Total overflow, then the objective; smaller is better."""
        return float(self.overflow.sum()), self.objective_value

    def event_ids(self, graph: ComputationGraph) -> np.ndarray:
        """``[M]`` int64: the events in schedule order as ids, as `replay` takes them.

        Args:
          graph: The graph that the plan was made for, its ops in the plan's order.

        Raises:
          ConfigError: ``graph`` is no graph.
        """
        check_kind("graph", graph, ComputationGraph)
        line = self.timeline
        moved = graph.num_ops + (graph.output_offset[line.op] + line.port) * self.cluster.num_devices
        return np.where(line.port < 0, line.op, moved + line.device)

    @interruptible()
    def verify(self, graph: ComputationGraph) -> None:
        """Checks that this is a valid execution of ``graph`` and that every number in it is right.

        It does not check that the plan fits the memory: see `overflow`.

        Raises:
          ConfigError: ``graph`` is no graph.
          PlanError: The first violation.

        Examples:
          >>> from regal_jax import Cluster, optimize
          >>> from regal_jax.datasets import generate
          >>> graph = generate("chain", 3, seed=0)
          >>> plan = optimize(graph, Cluster.uniform(2), method="bfs")
          >>> plan.verify(graph)
        """
        verify(self, graph)

    def to_json(self) -> str:
        """The plan as JSON text; `regal_jax.plan.files` documents the format."""
        return plan_text(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` wrote, bit for bit; `verify` checks that it is right.

        Raises:
          FormatError: ``text`` is not such a document.
        """
        return cls(**plan_fields(text))

    @interruptible()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json` to ``path`` atomically, gzipped if its name ends in ``.gz``.

        Raises:
          FormatError: It cannot be written.

        Examples:
          >>> from regal_jax import Cluster, optimize
          >>> from regal_jax.datasets import generate
          >>> plan = optimize(generate("chain", 3, seed=0), Cluster.uniform(2), method="bfs")
          >>> plan.save("plan.json")
        """
        with writing(path):
            write_atomically(path, packed(path, self.to_json().encode()))

    @classmethod
    @interruptible()
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The plan in the file ``path``, which may be gzipped; see `from_json`.

        Raises:
          FormatError: The file cannot be read, or is not a plan, is larger than 2 GiB or no regular file, or
            ``path`` is no path.

        Examples:
          >>> from regal_jax import Cluster, Plan, optimize
          >>> from regal_jax.datasets import generate
          >>> plan = optimize(generate("chain", 3, seed=0), Cluster.uniform(2), method="bfs")
          >>> plan.save("plan.json")
          >>> Plan.load("plan.json").makespan == plan.makespan
          True
        """
        if not isinstance(path, (str, os.PathLike)):
            raise FormatError(f"plan: give a Plan or the path of its file, got {type(path).__name__}")
        name = path_text(path)
        try:
            data = unpacked(read_limited(name, _MAX_BYTES), _MAX_BYTES)
            return cls.from_json(data.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise FormatError(f"{name}: plan: not UTF-8 text, so no JSON") from None
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from None
        except OSError as error:
            reason = error.strerror or error
            raise FormatError(f"{name}: cannot be read: {reason}; check the path") from None

    def to_chrome_trace(self) -> dict[str, Any]:
        """The plan for chrome://tracing and ui.perfetto.dev, ready for ``json.dumps``."""
        return chrome_trace(self)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_chrome_trace` to ``path`` atomically, gzipped if its name ends in ``.gz``.

        Raises:
          FormatError: It cannot be written.
        """
        with writing(path):
            text = json.dumps(self.to_chrome_trace(), allow_nan=False)
            write_atomically(path, packed(path, text.encode()))

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draws the plan, and saves it if there is a ``path``; see `regal_jax.viz.plot_plan`."""
        # An exception to the import contract: viz lies above plan, and this method only delegates to it.
        from regal_jax.viz import plot_plan

        return plot_plan(self, path)

    @functools.cached_property
    def _device_of(self) -> dict[str, int]:
        return dict(zip(self.op_names, self.placement.tolist(), strict=True))

    def placement_of(self, op: str) -> int:
        """The device that ``op`` (a name) runs on.

        Raises:
          ConfigError: ``op`` is no text.
          PlanError: There is no such op.
        """
        check_kind("op", op, str)
        if op not in self._device_of:
            near = difflib.get_close_matches(op, self.op_names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise PlanError(f"the plan for {self.graph_name!r} has no op {op!r}{hint}")
        return self._device_of[op]

    def to_dataframe(self) -> "pandas.DataFrame":
        """One row per event, in schedule order (extra ``interop``).

        Columns: ``event`` (``compute`` or ``transfer``), ``op`` (which runs, or makes the tensor), its
        ``kind``, ``tensor`` (``OP:PORT``) and ``source`` of a transfer, ``device``, and in `time_unit`
        ``start`` and ``finish``.

        Raises:
          MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "interop") from None
        line = self.timeline
        moves = (line.port >= 0).tolist()
        names = [self.op_names[o] for o in line.op.tolist()]
        tensor = [f"{n}:{p}" if m else None for n, p, m in zip(names, line.port.tolist(), moves, strict=True)]
        columns = {
            "event": ["transfer" if m else "compute" for m in moves],
            "op": names,
            "kind": [self.op_kinds[o] for o in line.op.tolist()],
            "tensor": tensor,
            "source": pandas.array(
                [k if m else None for k, m in zip(line.source.tolist(), moves, strict=True)], "Int64"
            ),
            "device": line.device,
            "start": line.start,
            "finish": line.finish,
        }
        return pandas.DataFrame(columns)

    def compare(self, other: "Plan") -> PlanComparison:
        """The differences of ``other`` from this plan: makespan, peaks, transfers, placement.

        Raises:
          ConfigError: ``other`` is no plan.
          PlanError: They place different ops.
        """
        check_kind("other", other, Plan)
        return compare_plans(self, other)

    def __repr__(self) -> str:
        return f"<{title(self)[0].upper()}{title(self)[1:]}; {headline(self)}>"

    def _repr_html_(self) -> str:
        return html_rows(title(self), figures(self))

    def __str__(self) -> str:
        return summary(self)


@once_a_pair
def _one_device_makespan(graph: ComputationGraph, cluster: Cluster) -> float:
    return min(math.fsum(runtime) for runtime in runtime_matrix(graph, cluster).T)


def without_proof(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """A provenance without the result of a solver that proves optima, for a plan of another problem."""
    return {name: value for name, value in provenance.items() if name not in _PROOF}


def proof_of(plan: Plan) -> dict[str, Any]:
    """The entries of a provenance by which a solver has proven that no plan is better; none if none has."""
    said = plan.provenance
    status = said.get("status")
    # Where no plan fits, another one may exceed the memory by less, unless the objective is its bound.
    least = status == PlanStatus.IMPOSSIBLE and said.get("bound") == plan.objective_value
    proven = status == PlanStatus.OPTIMAL or least
    return {name: said[name] for name in _PROOF if name in said and proven}


def proven_status(*, feasible: bool, proven: bool) -> str:
    """The ``status`` of a provenance.

    Args:
      feasible: Whether the plan fits the memory.
      proven: Whether a solver has proven that no plan is better.
    """
    if feasible:
        return str(PlanStatus.OPTIMAL if proven else PlanStatus.FEASIBLE)
    return str(PlanStatus.IMPOSSIBLE if proven else PlanStatus.INFEASIBLE)


def json_values(value: Any, where: str) -> Any:
    """``value`` as it is when it has been read from a file: of lists, numbers, texts and ``None`` alone.

    Args:
      value: The value; numbers that are not finite become ``None``.
      where: What it is called in messages.

    Raises:
      PlanError: It has no place in JSON.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [json_values(v, f"{where}[{i}]") for i, v in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): json_values(v, f"{where}.{key}") for key, v in value.items()}
    raise PlanError(f"{where} is of type {type(value).__name__}; use texts, numbers, lists and dicts of them")
