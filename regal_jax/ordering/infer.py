"""Orders of graphs from a trained network: priorities of each graph, decoded in batches."""

import enum
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.ordering.beam import beam_search
from regal_jax.ordering.config import Decoder
from regal_jax.ordering.decode import greedy, peaks, sample
from regal_jax.ordering.inputs import OrderInputs, make_order_inputs
from regal_jax.ordering.networks import Topoformer
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.programs import program
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["Decoding", "decode_orders", "graph_priorities"]

_CLUSTER: Final = Cluster.uniform(1, transfer="free")


class Decoding(enum.StrEnum):
    """How orders are made from priorities (docs/design.md, part 2)."""

    GREEDY = "greedy"
    SAMPLE = "sample"
    BEAM = "beam"


@interruptible()
def graph_priorities(model: Topoformer, graph: ComputationGraph) -> np.ndarray:
    """The network's priorities of the ops of one graph.

    Args:
      model: A network that makes priorities.
      graph: Any graph.

    Returns:
      ``[N]`` float32, of mean 0 and standard deviation `TopoformerConfig.alpha`; all 0 where they are alike.

    Raises:
      ConfigError: A network with the autoregressive decoder, which makes none.
    """
    return np.asarray(_padded_priorities(model, graph, Bucket.of(graph).ops))[0, : graph.num_ops]


def _padded_priorities(model: Topoformer, graph: ComputationGraph, ops: int) -> jax.Array:
    """``[1, N]``. Graphs come one by one: what else is in a batch would change the last bits of sums."""
    if model.config.decoder is not Decoder.PRIORITIES:
        raise ConfigError("topoformer: a network with the autoregressive decoder makes no priorities")
    return _run(model, make_order_inputs([graph], model.config, ops))


# A module is a pytree, of which the program takes the weights.
@program()
def _run(model: Topoformer, inputs: OrderInputs) -> jax.Array:
    return model(inputs)


@interruptible()
def decode_orders(
    model: Topoformer,
    graphs: Sequence[ComputationGraph],
    keys: jax.Array,
    *,
    decoding: Decoding | str = Decoding.SAMPLE,
    candidates: int = 16,
) -> list[np.ndarray]:
    """An order of each graph, the one of the lowest peak among those that are decoded.

    Graphs of alike sizes are decoded together, wherever JAX runs. Which graphs there are besides changes no
    order.

    Args:
      model: A network that makes priorities.
      graphs: ``B`` graphs; none is allowed.
      keys: ``[B]`` typed keys, of the samples.
      decoding: A `Decoding` or its name.
      candidates: Samples, or width of the beam; without meaning for greedy orders.

    Returns:
      ``[N]`` ops of each graph.

    Raises:
      ConfigError: An unknown decoding, candidates out of range, or a network that makes no priorities.
    """
    if decoding not in Decoding.__members__.values():
        raise ConfigError(f"decoding: unknown {decoding!r}; use one of {', '.join(Decoding)}")
    check_whole("candidates", candidates, 1)
    groups: dict[Bucket, list[int]] = {}
    for i, graph in enumerate(graphs):
        groups.setdefault(Bucket.of(graph), []).append(i)
    found: list[np.ndarray] = [np.zeros(0, np.int64)] * len(graphs)
    for bucket, members in groups.items():
        check_interrupt()
        problem = make_problem([graphs[i] for i in members], _CLUSTER, bucket)
        each = [_padded_priorities(model, graphs[i], bucket.ops) for i in members]
        chosen = keys[np.array(members)]
        orders = _decoded(problem, jnp.concatenate(each), chosen, Decoding(decoding), candidates)
        for i, order in zip(members, orders, strict=True):
            found[i] = order[: graphs[i].num_ops].astype(np.int64)
    return found


def _decoded(
    problem: Problem, priorities: jax.Array, keys: jax.Array, decoding: Decoding, candidates: int
) -> np.ndarray:
    """``[B, N]`` int32."""
    if decoding is Decoding.BEAM:
        return beam_search(problem, priorities, candidates).orders
    if decoding is Decoding.GREEDY:
        return np.asarray(greedy(problem, priorities))
    orders, _ = sample(problem, priorities, keys, candidates)
    best = np.asarray(peaks(problem, orders)).argmin(axis=1)
    return np.asarray(orders)[np.arange(len(best)), best]
