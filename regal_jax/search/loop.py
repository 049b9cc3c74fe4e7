"""The one loop that every searcher runs in: incumbents, stopping, chunks of generations.

A searcher is a hashable object (a frozen dataclass of functions and settings) that turns a state into the
next one. The loop owns the rest: who has finished, what the history was, and that an instance which has
finished stays as it is, so that the company an instance keeps cannot change its result.
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
"""Most generations in one compiled chunk: the length of its history buffer."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Inputs:
    """What a search reads and never changes. ``B`` instances are searched side by side.

    Attributes:
      problem: Pytree, handed to the fitness function as it is.
      params: Pytree with leading axis ``B``, or ``None``: parameters of the proposal.
      keys: ``[B]`` typed keys, one an instance.
    """

    problem: Any
    params: Any
    keys: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WarmStart:
    """Individuals to begin with.

    Attributes:
      genes: ``[B, W, ...]`` uint16, the best first.
      count: ``[B]`` int32, how many of the ``W`` are real.
    """

    genes: Any
    count: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Incumbent:
    """The best individual so far.

    Attributes:
      genes: ``[B, ...]`` uint16.
      fitness: ``[B]`` float32; ``+inf`` while no individual had a number for its fitness.
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
    """State of a searcher: a dataclass, registered as a pytree, with at least this."""

    @property
    def incumbent(self) -> Incumbent: ...


S = TypeVar("S", bound=State)


class Searcher(Protocol[S]):
    """What a search algorithm is. Hashable; equal searchers share their compiled programs."""

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
    """Offer newly evaluated individuals to the incumbent (``None``: there is none yet).

    Args:
      incumbent: Replaced only by a strictly better individual; the first of several equals wins.
      genes: ``[B, Q, ...]``.
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
    """Row by row (``where`` is ``[B]``) one of two pytrees with leading axis ``B``."""
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
    """The state after the first population, to be traced by the caller."""
    state = searcher.init(inputs, warm)
    return _with_incumbent(state, _judge(state.incumbent, limits))


def _with_incumbent(state: S, incumbent: Incumbent) -> S:
    return dataclasses.replace(state, incumbent=incumbent)  # pyright: ignore[reportArgumentType, reportReturnType, reportCallIssue]


def _advance(searcher: Searcher[S], inputs: Inputs, limits: Limits, state: S) -> S:
    """One generation, of which an instance that had finished shows nothing.

    Only its incumbent is frozen: its population evolves on, unseen, which costs nothing that lockstep does
    not cost anyway and saves a pass over all genes.
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
    """At most ``generations`` generations in one loop, fewer when all instances have finished.

    How a run is cut into chunks changes no bit of its result.

    Args:
      searcher: Static under jit.
      inputs: See `Inputs`.
      limits: See `Limits`.
      state: From `start` or from here; may be donated.
      generations: int32 scalar, a value at run time: one trace serves every budget.
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
    # Devices that share the instances stop on their own: the rows of the last must make sense for all.
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
    """A whole search as part of a larger traced program (a training step), without host or history."""
    limits = Limits.none(inputs.keys.shape[0]) if limits is None else limits
    state = start(searcher, inputs, limits, warm)
    return run_chunk(searcher, inputs, limits, state, jnp.asarray(generations, jnp.int32), history=0)[0]
