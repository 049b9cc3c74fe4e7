"""The loop that runs every searcher: incumbents, stopping, and chunks of generations.

A searcher is a hashable object (a frozen dataclass of functions and settings) that maps a state to the next
one. The loop handles the rest: stopping and history. It also freezes finished instances, so that the result
of an instance does not depend on the other instances.
"""

import dataclasses
from typing import Any, Final, Protocol, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from regal_jax.search.stopping import Limits, Status, status_of

__all__ = [
    "HISTORY",
    "Incumbent",
    "Inputs",
    "Searcher",
    "State",
    "WarmStart",
    "improve",
    "run_chunk",
    "run_traced",
    "start",
]

HISTORY: Final = 256
"""Most generations in one compiled chunk, which is the length of its history buffer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """Constant inputs of a search for ``B`` instances.

    Attributes:
      problem: Pytree, passed unchanged to the fitness function.
      params: Pytree with leading axis ``B``, or ``None``: parameters of the proposal.
      keys: ``[B]`` typed keys, one per instance.
    """

    problem: Any
    params: Any
    keys: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Individuals in the first population.

    Attributes:
      genes: ``[B, W, ...]`` uint16, best first.
      count: ``[B]`` int32, number of real individuals among the ``W``.
    """

    genes: Any
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Incumbent:
    """The best individual so far.

    Attributes:
      genes: ``[B, ...]`` uint16.
      fitness: ``[B]`` float32; ``+inf`` until an individual has a finite fitness.
      evaluations: ``[B]`` int32, fitness calls so far.
      improved_at: ``[B]`` int32, `evaluations` when `fitness` last got better.
      status: ``[B]`` int32, a `Status`.
    """

    genes: Any
    fitness: jax.Array
    evaluations: jax.Array
    improved_at: jax.Array
    status: jax.Array


class State(Protocol):
    """State of a searcher: a dataclass registered as a pytree with at least this field."""

    @property
    def incumbent(self) -> Incumbent: ...


S = TypeVar("S", bound=State)


class Searcher(Protocol[S]):
    """A search algorithm. Hashable; equal searchers share their compiled programs."""

    @property
    def first_evaluations(self) -> int:
        """Evaluations that `init` makes."""
        ...

    @property
    def step_evaluations(self) -> int:
        """Evaluations that `step` makes."""
        ...

    def init(self, inputs: Inputs, warm: WarmStart | None) -> S:
        """The first population, evaluated."""
        ...

    def step(self, inputs: Inputs, state: S) -> S:
        """One generation; every evaluated individual is offered to the incumbent by `improve`."""
        ...


@jax.named_scope("incumbent")
def improve(incumbent: Incumbent | None, genes: Any, fitness: jax.Array) -> Incumbent:
    """Update the incumbent (``None`` if there is none yet) with newly evaluated individuals.

    Args:
      incumbent: Replaced only by a strictly better individual; of equal ones, the first wins.
      genes: ``[B, Q, ...]`` genes.
      fitness: ``[B, Q]`` float32 without NaN.
    """
    batch, offered = fitness.shape
    best = jnp.argmin(fitness, axis=1)
    value = jnp.min(fitness, axis=1)
    genes = jax.tree.map(lambda x: jax.vmap(lambda rows, i: rows[i])(x, best), genes)
    if incumbent is None:
        zeros = jnp.zeros(batch, jnp.int32)
        return Incumbent(genes, value, zeros + offered, zeros + offered, zeros + Status.RUNNING)
    better = value < incumbent.fitness
    evaluations = incumbent.evaluations + offered
    return Incumbent(
        genes=_choose(better, genes, incumbent.genes),
        fitness=jnp.where(better, value, incumbent.fitness),
        evaluations=evaluations,
        improved_at=jnp.where(better, evaluations, incumbent.improved_at),
        status=incumbent.status,
    )


def _choose(where: jax.Array, yes: Any, no: Any) -> Any:
    """Selects rows from two pytrees with leading axis ``B`` by ``where [B]``."""
    return jax.tree.map(lambda a, b: jnp.where(where.reshape(-1, *[1] * (a.ndim - 1)), a, b), yes, no)


def _judge(incumbent: Incumbent, limits: Limits) -> Incumbent:
    status = status_of(
        incumbent.fitness,
        incumbent.evaluations,
        incumbent.improved_at,
        limits.target,
        limits.stall,
        xp=jnp,
    )
    running = incumbent.status == Status.RUNNING
    return dataclasses.replace(incumbent, status=jnp.where(running, status, incumbent.status))


def start(searcher: Searcher[S], inputs: Inputs, limits: Limits, warm: WarmStart | None = None) -> S:
    """The state after the first population; the caller traces this function."""
    state = searcher.init(inputs, warm)
    return _with_incumbent(state, _judge(state.incumbent, limits))


def _with_incumbent(state: S, incumbent: Incumbent) -> S:
    return dataclasses.replace(state, incumbent=incumbent)  # pyright: ignore[reportArgumentType, reportReturnType, reportCallIssue]


def _advance(searcher: Searcher[S], inputs: Inputs, limits: Limits, state: S) -> S:
    """One generation, without a change of incumbents of finished instances.

    Only their incumbents are frozen. Their populations still evolve, which costs nothing extra in lockstep
    and saves a pass over all genes.
    """
    old = state.incumbent
    state = searcher.step(inputs, state)
    new = _judge(state.incumbent, limits)
    return _with_incumbent(state, _choose(old.status == Status.RUNNING, new, old))


def run_chunk(
    searcher: Searcher[S],
    inputs: Inputs,
    limits: Limits,
    state: S,
    generations: jax.Array,
    history: int = HISTORY,
) -> tuple[S, jax.Array, jax.Array, jax.Array]:
    """At most ``generations`` generations in one loop, fewer if all instances finish.

    The division of a run into chunks does not change its result.

    Args:
      searcher: The search algorithm; static under jit.
      inputs: See `Inputs`.
      limits: See `Limits`.
      state: From `start` or from this function; may be donated.
      generations: int32 scalar, a run-time value, so that one trace serves every budget.
      history: Static length ``H`` of the buffers below. No more generations than this are run, but with
        0 nothing is recorded and any number is run.

    Returns:
      The state, the incumbents' fitness ``[H, B]`` float32 and evaluations ``[H, B]`` int32 after each
      generation (rows past the last one repeat it), and the number of generations done (int32 scalar).
    """
    batch = inputs.keys.shape[0]
    fitness = jnp.full((history, batch), jnp.inf, jnp.float32)
    evaluations = jnp.zeros((history, batch), jnp.int32)
    limit = jnp.minimum(generations, history) if history else generations

    def unfinished(carry: tuple[S, jax.Array, jax.Array, jax.Array]) -> jax.Array:
        state, _, _, done = carry
        return (done < limit) & jnp.any(state.incumbent.status == Status.RUNNING)

    def body(
        carry: tuple[S, jax.Array, jax.Array, jax.Array],
    ) -> tuple[S, jax.Array, jax.Array, jax.Array]:
        state, fitness, evaluations, done = carry
        state = _advance(searcher, inputs, limits, state)
        if history:
            fitness = fitness.at[done].set(state.incumbent.fitness)
            evaluations = evaluations.at[done].set(state.incumbent.evaluations)
        return state, fitness, evaluations, done + 1

    state, fitness, evaluations, done = lax.while_loop(
        unfinished, body, (state, fitness, evaluations, jnp.int32(0))
    )
    # Devices that share the instances stop independently, so rows up to the last stop must be valid for all.
    ran = lax.broadcasted_iota(jnp.int32, fitness.shape, 0) < done
    fitness = jnp.where(ran, fitness, state.incumbent.fitness[None])
    return state, fitness, jnp.where(ran, evaluations, state.incumbent.evaluations[None]), done


def run_traced(
    searcher: Searcher[S],
    inputs: Inputs,
    generations: int | jax.Array,
    limits: Limits | None = None,
    warm: WarmStart | None = None,
) -> S:
    """A whole search within a larger traced program (a training step), without history."""
    limits = Limits.none(inputs.keys.shape[0]) if limits is None else limits
    state = start(searcher, inputs, limits, warm)
    return run_chunk(searcher, inputs, limits, state, jnp.asarray(generations, jnp.int32), history=0)[0]
