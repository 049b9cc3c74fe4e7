"""Beams of partial orders: beam search by probability, and approximate dynamic programming.

All partial orders in a beam have the same length. A step extends each of them by each of its ready ops. Of
the candidates that have run the same set of ops it keeps one, and of the sets it keeps the best ``width``.
One engine serves both searches; a `Rule` defines which candidate is best. A step sorts its candidates twice:
by set, which makes equal sets adjacent, and by cost.

In dynamic programming the cost of a set is that of its best candidate, so only the best candidates need to
be compared by set: as many as fill the beam. This number is known only afterwards; if too few were compared,
the same steps are repeated with more. In beam search by probability a set is represented by its candidate of
the lowest peak, whatever its probability, so all candidates are compared.

The loop over steps runs on the host, several steps per compiled program; these functions must not be traced.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_whole, counted
from regal_jax.ordering.beam_rules import NONE, Rule, choose
from regal_jax.ordering.frontier import Flow, States, advance, chunks, empty, make_flow, spread
from regal_jax.ordering.precedence import check_priorities, one_device
from regal_jax.problem import Problem
from regal_jax.programs import program
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.runtime.memory import check_memory, machine_memory

__all__ = ["Found", "Rule", "Scorer", "approximate_dp", "beam", "beam_search", "log_shares"]

Scorer = Callable[[Any, Any, jax.Array, jax.Array], jax.Array]
"""``(context, shared, last, ready) -> [W, R]`` log-probabilities of the ready ops of one graph's states.

``context`` belongs to the graph, ``shared`` to all graphs; ``last`` and ``ready`` are as in `States`.
"""

_WORK: Final = 2**21
"""Approximate number of candidates between two checks for Ctrl-C; a step may have more."""
_STEPS: Final = 64
_BYTES: Final = 12
"""Measured on a CPU: bytes of a partial order for each of its ops, counted twice, tensors and ready ops,
counted four times."""
_MEETING: Final = 4
"""Candidates compared by set for each place of the beam, at first."""


class _Seen(NamedTuple):
    """What some steps of `beam` have seen.

    Attributes:
      most: The largest number of ready ops in a state.
      short: Whether too few candidates were compared.
      bound: ``[B]`` int32, no partial order that was dropped has a lower peak.
      extended: Number of states that were extended.
    """

    most: jax.Array
    short: jax.Array
    bound: jax.Array
    extended: jax.Array


class Found(NamedTuple):
    """The best order that a beam ends with, for each of ``B`` graphs.

    Attributes:
      orders: ``[B, N]`` int32; padding stands last.
      peak: ``[B]`` int32, in units of `regal_jax.problem.memory_unit`.
      log_prob: ``[B]`` float32, in nats; ``None`` where there are no probabilities.
      optimal: ``[B]`` bool, whether it is proven that no order has a lower peak, in units.
      states: Number of sets of ops that were extended, of all graphs.
    """

    orders: np.ndarray
    peak: np.ndarray
    log_prob: np.ndarray | None
    optimal: np.ndarray
    states: int


@interruptible()
def beam_search(problem: Problem, priorities: jax.Array, width: int) -> Found:
    """Keeps the likeliest partial orders of each length.

    Of those that have run the same set of ops it keeps the one of the lowest peak, on ties the likelier one.
    A width of 1 is `greedy`; with a width that no step exceeds, the peak is optimal.

    Args:
      problem: ``B`` graphs on one device.
      priorities: ``[B, N]`` float32, finite; those of padding mean nothing.
      width: Number of partial orders to keep, at least 1.

    Raises:
      ConfigError: Several devices, priorities of another shape or type, or a width out of range.

    References:
      Gagrani et al. 2022, section 4.2, beam search with state-collapsing.
    """
    check_priorities(problem, priorities)
    return beam(problem, width, Rule.PROBABILITY, _by_priority, priorities, ())


@interruptible()
def approximate_dp(problem: Problem, width: int, held: bool = False, seconds: float | None = None) -> Found:
    """Keeps the partial orders of the lowest peaks of each length, one for each set of ops.

    Residents, whose place in the order costs nothing, go first. Where a unit of memory is a byte, the peak is
    that of `regal_jax.heuristics.approximate_dp`.

    Args:
      problem: ``B`` graphs on one device.
      width: Number of sets to keep, at least 1; 100 000 in the paper. The result is optimal if no step
        exceeds it.
      held: Keep those that hold the least memory instead; on ties those of the lowest peaks.
      seconds: Time limit, after which the rest of the order is found with width 1; ``None`` for none.

    Raises:
      ConfigError: Several devices, or a width out of range.

    References:
      Gagrani et al. 2022, appendix C.3.
    """
    return beam(problem, width, Rule.HELD if held else Rule.PEAK, None, (), (), seconds)


def beam(
    problem: Problem,
    width: int,
    rule: Rule,
    scorer: Scorer | None,
    context: Any,
    shared: Any,
    seconds: float | None = None,
) -> Found:
    """Extends partial orders until they are complete.

    Args:
      problem: ``B`` graphs on one device.
      width: Number of partial orders to keep.
      rule: Which of them to keep.
      scorer: Computes probabilities; a module-level function. ``None`` if the rule needs none.
      context: First argument of the scorer; arrays ``[B, ...]``.
      shared: Second argument of the scorer; arrays.
      seconds: Time limit, after which only the best partial order is extended; ``None`` for none.

    Raises:
      ConfigError: Several devices, or a width that is out of range or does not fit into the memory.
    """
    deadline = Deadline(seconds)
    n = one_device(problem).bucket.ops
    width = check_whole("width", width, 1, (int(NONE) - 1) // n)
    flow, count = _begin(problem)
    ready, meeting = _power(max(8, int(count))), _MEETING * width
    _check_memory(problem, width, ready)
    states = _empty(flow, width, ready)
    parents, ops, first, extended = [], [], 0, 0
    bound = np.full(problem.num_graphs, NONE)
    length = int(np.asarray(problem.num_ops).max())
    while first < length:
        check_interrupt()
        if width > 1 and deadline.over:
            bound = np.minimum(bound, np.asarray(states.peak[:, 0]) if rule is Rule.PEAK else 0)
            states, width = jax.tree.map(lambda x: x[:, :1], states), 1
        steps = _power(max(1, min(_STEPS, _WORK // (problem.num_graphs * width * ready)) // 2 + 1))
        begin = states._replace(ready=_widened(states.ready, ready, n))
        sizes = steps, min(meeting, width * ready)
        done, seen, parent, op = _extend(rule, scorer, sizes, flow, begin, context, shared, np.int32(first))
        most, short = int(seen.most), bool(seen.short)
        # More ops were ready than fit, or too few candidates were compared: repeat the steps with more room.
        if most > ready or short:
            ready = _power(max(ready, most))
            _check_memory(problem, width, ready)
            meeting = meeting * 2 if short else meeting
            continue
        states, first = done, first + steps
        bound, extended = np.minimum(bound, np.asarray(seen.bound)), extended + int(seen.extended)
        parents.extend(np.asarray(parent))
        ops.extend(np.asarray(op))
    orders = _traced(parents, ops, n)
    peak, scores = np.asarray(states.peak[:, 0]), np.asarray(states.score[:, 0]) if scorer else None
    return Found(orders, peak, scores, peak <= bound, extended)


def _check_memory(problem: Problem, width: int, ready: int) -> None:
    """Refuses a beam whose states do not fit into the memory of the host, where they are there."""
    n, graphs = problem.bucket.ops, problem.num_graphs
    each = _BYTES * (2 * n + problem.bucket.tensors + 4 * ready)
    limit = machine_memory() if jax.default_backend() == "cpu" else None
    what = f"width: {width:,} partial orders of {n} ops of {counted(graphs, 'graph')}"
    check_memory(what, graphs * width * each, limit, "give a smaller one")


def _power(size: int) -> int:
    """The smallest power of two that is not less than ``size``, which is at least 1."""
    return 1 << (size - 1).bit_length()


def _widened(ready: jax.Array, size: int, fill: int) -> jax.Array:
    more = size - ready.shape[-1]
    return jnp.pad(ready, ((0, 0), (0, 0), (0, more)), constant_values=fill) if more else ready


def _traced(parents: Sequence[np.ndarray], ops: Sequence[np.ndarray], n: int) -> np.ndarray:
    """``[B, N]`` int32 orders that end in the first states, from parents and ops ``[B, W]`` of each step."""
    b = len(parents[0])
    graph, state = np.arange(b), np.zeros(b, np.int32)
    orders = np.tile(np.arange(n, dtype=np.int32), (b, 1))
    for step in range(min(len(ops), n) - 1, -1, -1):
        orders[:, step] = ops[step][graph, state]
        state = parents[step][graph, state]
    return orders


@program()
def _begin(problem: Problem) -> tuple[Flow, jax.Array]:
    """``[B]`` flows, and the largest number of ops that are ready at first."""
    flow = jax.vmap(make_flow)(problem)
    return flow, (flow.waiting == 0).sum(axis=1).max()


@program(static=(1, 2))
def _empty(flow: Flow, width: int, ready: int) -> States:
    return jax.vmap(empty, (0, None, None))(flow, width, ready)


@program(static=(0, 1, 2))
def _extend(
    rule: Rule,
    scorer: Scorer | None,
    sizes: tuple[int, int],
    flow: Flow,
    states: States,
    context: Any,
    shared: Any,
    first: jax.Array,
) -> tuple[States, _Seen, jax.Array, jax.Array]:
    """Steps ``first``, ``first + 1``, ... of all graphs; those beyond a graph's end change nothing.

    Args:
      rule: Which candidate is best.
      scorer: Computes probabilities, or ``None``.
      sizes: Number of steps, and of candidates that are compared by set.
      flow: ``[B, ...]``.
      states: ``[B, W, ...]``.
      context, shared: Arguments of the scorer.
      first: Number of the first step.

    Returns:
      States ``[B, W, ...]``; what was seen; ``[steps, B, W]`` int32 parents and ops.
    """
    steps, meeting = sizes

    def extend(carry: tuple[States, _Seen], step: jax.Array) -> tuple[Any, Any]:
        states, seen = carry
        extended = (states.valid & (step < flow.num_ops)[:, None]).sum(dtype=jnp.int32)
        gain = jnp.zeros(states.ready.shape, jnp.float32)
        if scorer is not None:
            gain = jax.vmap(scorer, (0, None, 0, 0))(context, shared, states.last, states.ready)
        states, parent, op, missing, bound = _step(rule, meeting, flow, states, gain, step)
        most = jnp.where(states.valid, states.listed, 0).max()
        seen = _Seen(
            jnp.maximum(seen.most, most),
            seen.short | missing,
            jnp.minimum(seen.bound, bound),
            seen.extended + extended,
        )
        return (states, seen), (parent, op)

    number = first + jnp.arange(steps, dtype=jnp.int32)
    none = jnp.full(flow.num_ops.shape, NONE)
    carry = (states, _Seen(jnp.int32(0), jnp.bool_(False), none, jnp.int32(0)))
    (states, seen), (parents, ops) = jax.lax.scan(extend, carry, number)
    return states, seen, parents, ops


def _step(
    rule: Rule, meeting: int, flow: Flow, states: States, gain: jax.Array, step: jax.Array
) -> tuple[States, jax.Array, jax.Array, jax.Array, jax.Array]:
    """One step of all graphs.

    Returns:
      States; ``[B, W]`` parents and ops; whether too few were compared; ``[B]`` a bound on what was dropped.
    """
    chosen = functools.partial(choose, rule, meeting)
    states, parent, op, missing, dropped = jax.vmap(chosen, (0, 0, 0, None))(flow, states, gain, step)
    states = jax.vmap(advance)(flow, states, op)
    # Only under `Rule.PEAK` do the kept candidates bound the peaks of those that were dropped.
    worst = jnp.where(states.valid, states.peak, 0).max(axis=1) if rule is Rule.PEAK else jnp.int32(0)
    bound = jnp.where(dropped, worst, NONE)
    # The loop is outside the map, because a loop inside it would copy all states in every iteration.
    states = jax.lax.fori_loop(
        0,
        jax.vmap(chunks)(flow, op).max(),
        lambda i, states: jax.vmap(spread, (0, 0, 0, None))(flow, states, op, i),
        states,
    )
    # Beyond a graph's end comes padding, each op at the step of its own number.
    return states, parent, jnp.where(op < states.waiting.shape[-1], op, step), missing.any(), bound


def log_shares(scores: jax.Array) -> jax.Array:
    """Log-softmax over the last axis, whose size is a power of two; -inf marks what is no candidate.

    The sum is a binary tree over adjacent pairs, so that padding to another size does not change a bit.
    """
    most = scores.max(axis=-1, keepdims=True)
    most = jnp.where(most > -jnp.inf, most, 0.0)
    total = jnp.exp(scores - most)
    while total.shape[-1] > 1:
        total = total[..., ::2] + total[..., 1::2]
    return scores - most - jnp.log(jnp.where(total > 0, total, 1.0))


def _by_priority(context: jax.Array, shared: Any, last: jax.Array, ready: jax.Array) -> jax.Array:  # noqa: ARG001
    """Equation 8, from priorities ``[N]``."""
    return log_shares(context.at[ready].get(mode="fill", fill_value=-jnp.inf))
