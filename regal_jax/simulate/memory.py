"""Peak memory from the positions of events, without a sequential pass.

A tensor on a device is held from the event that allocates it to the event that frees it, so two lookups
and one cumulative sum over the events give the memory held at each. The sums are exact in int32.
"""

import jax
import jax.numpy as jnp

from regal_jax.problem import Problem

__all__ = ["peak_memory"]


@jax.named_scope("memory")
def peak_memory(
    problem: Problem, placement: jax.Array, op_position: jax.Array, transfer_position: jax.Array
) -> jax.Array:
    """Largest memory held on each device, of one candidate of one graph.

    Args:
      problem: One graph (no ``B``).
      placement: ``[N]`` int32.
      op_position: ``[N]`` int32 rank of each compute among the events, -1 for padding.
      transfer_position: ``[T, D]`` int32, -1 where there is no transfer; unused unless blocking.

    Returns:
      ``[D]`` int32, in units.
    """
    t, d = problem.size.shape[0], problem.num_devices
    n, edges = placement.shape[0], problem.via.shape[0]
    # Every transfer has a consumer of its own, and a tensor has at most D - 1 of them.
    events = n + (min(t * (d - 1), edges) if problem.blocking else 0)
    start, stop = _lifetimes(problem, placement, op_position, transfer_position, events)
    device = jnp.broadcast_to(jnp.arange(d, dtype=jnp.int32), (t, d))
    # held[p] is what is in memory at the peak of event p: an allocation counts from its event on, a
    # release from the event after.
    held = jnp.zeros((events + 1, d), jnp.int32)
    size = jnp.broadcast_to(problem.size[:, None], (t, d))
    at = jnp.where(op_position < 0, events + 1, op_position)
    held = held.at[start, device].add(size, mode="drop").at[stop + 1, device].add(-size, mode="drop")
    held = held.at[at, placement].add(problem.temp, mode="drop")
    held = held.at[at + 1, placement].add(-problem.temp, mode="drop")
    return jnp.maximum(jnp.cumsum(held, axis=0).max(axis=0), 0)


def _lifetimes(
    problem: Problem,
    placement: jax.Array,
    op_position: jax.Array,
    transfer_position: jax.Array,
    events: int,
) -> tuple[jax.Array, jax.Array]:
    """``[T, D]`` positions of the allocation and of the release of each tensor on each device.

    ``events + 1`` is out of range: never allocated, never freed. Residents are there at the first event.
    """
    t, d = problem.size.shape[0], problem.num_devices
    never = events + 1
    reader, tensor = problem.successor, problem.via
    on = placement.at[reader].get(mode="clip")
    position = op_position.at[reader].get(mode="fill", fill_value=-1)
    last = jnp.full((t, d), -1, jnp.int32).at[tensor, on].max(position, mode="drop")
    born = op_position[problem.tensor_op]
    home = placement[problem.tensor_op][:, None] == jnp.arange(d)[None]
    if problem.blocking:
        arrived = transfer_position
    else:
        # The copy is made when its first consumer there is taken.
        arrived = jnp.full((t, d), never, jnp.int32).at[tensor, on].min(position, mode="drop")
    copied = ~home & (last >= 0)
    # At home every copy counts as one reader, at the moment it is made; a tensor that nobody reads goes
    # when its producer is done.
    left = jnp.where(copied, arrived, -1).max(axis=1)
    last_home = jnp.maximum(jnp.maximum(last, left[:, None]), born[:, None])
    stop = jnp.where(home, jnp.where(problem.keep[:, None], never, last_home), last)
    made = jnp.where(problem.resident, 0, born)[:, None]
    start = jnp.where(home, made, jnp.where(copied, arrived, never))
    return start, jnp.where(home | copied, stop, never)
