"""The encodings: what genes mean, by name (docs/design.md, part 2)."""

import abc
import dataclasses
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import jax
import numpy as np
from jax.core import Tracer

from regal_jax.encoding import (
    Genes,
    PlanMoves,
    Proposal,
    ScheduleMoves,
    SchedulePrior,
    decode,
    draw_schedule,
    encode,
    encode_schedule,
    gene_shapes,
    preferences,
    quantiles,
    schedule_prior,
    schedule_shapes,
)
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective
from regal_jax.problem import Bucket, Problem
from regal_jax.programs import program
from regal_jax.search import MoveFn, SampleFn, TransformedProposal, UniformProposal
from regal_jax.simulate import SimulationResult, generate_schedules, simulate

__all__ = ["CHROMOSOME", "ENCODINGS", "Encoding", "encoding_of", "timeline_of"]


class Encoding(abc.ABC):
    """What the genes of a search mean. Hashable; each name has one object.

    Attributes:
      name: Its key in `ENCODINGS`.
      moves: The neighbours of local search.
    """

    name: ClassVar[str]
    moves: MoveFn

    @abc.abstractmethod
    def sampler(self, problem: Problem, proposal: Any) -> SampleFn:
        """The function that draws one individual from ``proposal``; ``None`` is the uniform one."""

    @abc.abstractmethod
    def proposal(self, problem: Problem, guide: Proposal | None = None) -> Any:
        """The proposal of a search, from that of a policy if there is one; also under jit."""

    @abc.abstractmethod
    def timelines(
        self,
        problem: Problem,
        genes: Genes,
        *,
        objective: Objective,
        implementation: str | None,
        memory: bool,
        positions: bool,
    ) -> tuple[jax.Array, SimulationResult]:
        """``[B, P, N]`` device of each op, and the timelines."""

    @abc.abstractmethod
    def encode(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        placement: np.ndarray,
        events: np.ndarray,
        bucket: Bucket | None = None,
        devices: int | None = None,
        objective: Objective = Objective.MAKESPAN,
    ) -> list[dict[str, np.ndarray]]:
        """Individuals made from one plan, as `regal_jax.encoding.encode` makes one."""


@dataclasses.dataclass(frozen=True)
class _Chromosome(Encoding):
    """REGAL's encoding: affinities and priorities."""

    name: ClassVar[str] = "chromosome"
    moves: MoveFn = dataclasses.field(default_factory=PlanMoves)

    def sampler(self, problem: Problem, proposal: Proposal | None) -> SampleFn:
        if proposal is None:
            # Uniform draws are beta(1, 1) already, so no table is needed.
            return UniformProposal.of(gene_shapes(problem))
        shapes = proposal.shapes
        # Without an index, transfer priorities stay uniform.
        late = () if proposal.transfer_index is not None else (sorted(shapes).index("transfer_priority"),)
        return TransformedProposal(UniformProposal.of(shapes), quantiles, late)

    def proposal(self, problem: Problem, guide: Proposal | None = None) -> Proposal | None:
        del problem
        return guide

    def timelines(
        self, problem: Problem, genes: Genes, *, objective: Objective, **options: Any
    ) -> tuple[jax.Array, SimulationResult]:
        del objective
        decisions = decode(problem, genes)
        result = simulate(problem, decisions, **options)
        return decisions.placement, result

    def encode(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        placement: np.ndarray,
        events: np.ndarray,
        bucket: Bucket | None = None,
        devices: int | None = None,
        objective: Objective = Objective.MAKESPAN,
    ) -> list[dict[str, np.ndarray]]:
        del objective
        return [encode(graph, cluster, placement, events, bucket, devices)]


@dataclasses.dataclass(frozen=True)
class _Schedule(Encoding):
    """Schedule generation: ranks, prices and a rule."""

    name: ClassVar[str] = "schedule"
    moves: MoveFn = dataclasses.field(default_factory=ScheduleMoves)

    def sampler(self, problem: Problem, proposal: SchedulePrior | None) -> SampleFn:
        if proposal is None:
            return UniformProposal.of(schedule_shapes(problem))
        return TransformedProposal(UniformProposal.of(proposal.shapes), draw_schedule)

    def proposal(self, problem: Problem, guide: Proposal | None = None) -> SchedulePrior:
        # Under jit it is a part of the caller's program.
        traced = any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((problem, guide)))
        return (schedule_prior if traced else _prior)(problem, guide)

    def timelines(
        self, problem: Problem, genes: Genes, *, objective: Objective, **options: Any
    ) -> tuple[jax.Array, SimulationResult]:
        given = preferences(problem, genes, objective)
        return generate_schedules(problem, given, objective=objective, **options)

    def encode(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        placement: np.ndarray,
        events: np.ndarray,
        bucket: Bucket | None = None,
        devices: int | None = None,
        objective: Objective = Objective.MAKESPAN,
    ) -> list[dict[str, np.ndarray]]:
        plan = graph, cluster, placement, events, bucket, devices
        return [encode_schedule(*plan, in_order=in_order, objective=objective) for in_order in (True, False)]


_prior = program()(schedule_prior)
CHROMOSOME: Final = _Chromosome()
ENCODINGS: Final[Mapping[str, Encoding]] = types.MappingProxyType(
    {encoding.name: encoding for encoding in (CHROMOSOME, _Schedule())}
)
"""Every encoding by name."""


def encoding_of(name: str) -> Encoding:
    """The encoding of this name.

    Raises:
      ConfigError: There is none.
    """
    if not isinstance(name, str) or name not in ENCODINGS:
        raise ConfigError(f"encoding: unknown {name!r}; use one of {', '.join(ENCODINGS)}")
    return ENCODINGS[name]


def timeline_of(
    encoding: Encoding, problem: Problem, row: int, genes: Any, objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Placement and events of one individual per graph, for one graph of a batch.

    Args:
      encoding: The encoding of the genes.
      problem: ``B`` graphs.
      row: The graph.
      genes: Leaves with leading ``B``.
      objective: What they were found for.

    Returns:
      ``[N]`` device of each op and ``[M]`` event ids in order, with the padded numbers of ops and devices.
    """
    one = jax.tree.map(lambda leaf: np.asarray(leaf)[row : row + 1], problem)
    mine = {name: np.asarray(leaf)[row : row + 1, None] for name, leaf in genes.items()}
    placement, op, transfer = jax.device_get(_timeline(encoding, objective, one, mine))
    position = np.concatenate([op[0, 0], transfer[0, 0].reshape(-1)])
    events = np.flatnonzero(position >= 0)
    return placement[0, 0], events[np.argsort(position[events])]


@program(static=(0, 1))
def _timeline(encoding: Encoding, objective: Objective, problem: Problem, genes: Genes) -> tuple[Any, ...]:
    placement, result = encoding.timelines(
        problem, genes, objective=objective, implementation=None, memory=False, positions=True
    )
    return placement, result.op_position, result.transfer_position
