"""Orders of graphs from a trained network with either decoder."""

import enum
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_kind, check_whole, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.ordering.config import Decoder
from regal_jax.ordering.decode import peaks
from regal_jax.ordering.decoders import beam_order, encoded, greedy_orders, read, sampled_orders
from regal_jax.ordering.inputs import OrderInputs, make_order_inputs
from regal_jax.ordering.networks import Topoformer
from regal_jax.ordering.precedence import check_keys, check_seconds
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.programs import program
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["Decoding", "decode_orders", "graph_priorities"]

_FEW: Final = 16
"""So many samples are drawn in one part, whatever the size of the graphs."""
_VALUES: Final = 2**22
"""Approximate number of ops in the orders of one part."""
_MOST: Final = 2**31 - 1
_CLUSTER: Final = Cluster.uniform(1, transfer="free")


class Decoding(enum.StrEnum):
    """How orders are made (docs/design.md, part 2)."""

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
      ``[N]`` float32, of mean 0 and standard deviation `TopoformerConfig.alpha`; all 0 where they are equal.

    Raises:
      ConfigError: A network with the autoregressive decoder, which makes no priorities, or an argument of
        another kind.
    """
    check_kind("model", model, Topoformer)
    check_kind("graph", graph, ComputationGraph)
    if model.config.decoder is not Decoder.PRIORITIES:
        raise ConfigError("topoformer: a network with the autoregressive decoder makes no priorities")
    return np.asarray(_guide(model, graph, Bucket.of(graph).ops))[0, : graph.num_ops]


def _guide(model: Topoformer, graph: ComputationGraph, ops: int) -> jax.Array:
    """``[1, N]`` priorities or ``[1, N, W]`` embeddings.

    Graphs are encoded one by one, because other graphs in a batch would change the last bits of sums.
    """
    on_cpu = jax.default_backend() == "cpu"
    return _run(model, make_order_inputs([graph], model.config, ops, edges=on_cpu))


# A module is a pytree: the program takes its weights as arguments.
@program()
def _run(model: Topoformer, inputs: OrderInputs) -> jax.Array:
    return read(model, encoded(model, inputs), inputs.mask)


@interruptible()
def decode_orders(
    model: Topoformer,
    graphs: Sequence[ComputationGraph],
    keys: jax.Array,
    *,
    decoding: Decoding | str = Decoding.SAMPLE,
    candidates: int = 16,
    seconds: float | None = None,
) -> list[np.ndarray]:
    """An order of each graph, the one of the lowest peak among those that are decoded.

    Graphs of similar sizes are decoded together from their priorities, on JAX's default device; the
    autoregressive decoder, itself a network, decodes them one by one. The order of a graph does not depend on
    the other graphs.

    Args:
      model: A network with either decoder.
      graphs: ``B`` graphs; may be empty.
      keys: ``[B]`` typed keys for the samples.
      decoding: A `Decoding` or its name.
      candidates: Number of samples, or width of the beam; ignored for greedy orders.
      seconds: Time limit, after which no more samples are drawn; some are drawn of each graph in any case.
        ``None`` for no limit.

    Returns:
      ``[N]`` ops of each graph.

    Raises:
      ConfigError: An unknown decoding, a number out of range, keys of another number, or an argument of
        another kind.
    """
    if not isinstance(decoding, str) or decoding not in Decoding.__members__.values():
        raise ConfigError(f"decoding: unknown {shown(decoding)}; use one of {', '.join(Decoding)}")
    check_whole("candidates", candidates, 1, _MOST)
    check_seconds(seconds)
    check_kind("model", model, Topoformer)
    deadline = Deadline(seconds)
    check_kind("graphs", graphs, Sequence)
    for graph in graphs:
        check_kind("graphs", graph, ComputationGraph)
    check_keys(len(graphs), keys)
    alone = model.config.decoder is Decoder.AUTOREGRESSIVE
    groups: dict[tuple[Bucket, int], list[int]] = {}
    for i, graph in enumerate(graphs):
        groups.setdefault((Bucket.of(graph), i * alone), []).append(i)
    found: list[np.ndarray] = [np.zeros(0, np.int64)] * len(graphs)
    for (bucket, _), members in groups.items():
        check_interrupt()
        problem = make_problem([graphs[i] for i in members], _CLUSTER, bucket)
        guide = jnp.concatenate([_guide(model, graphs[i], bucket.ops) for i in members])
        chosen = keys[np.array(members)]
        orders = _decoded(model, problem, guide, chosen, Decoding(decoding), candidates, deadline)
        for i, order in zip(members, orders, strict=True):
            found[i] = order[: graphs[i].num_ops].astype(np.int64)
    return found


def _decoded(
    model: Topoformer,
    problem: Problem,
    guide: jax.Array,
    keys: jax.Array,
    decoding: Decoding,
    candidates: int,
    deadline: Deadline,
) -> np.ndarray:
    """``[B, N]`` int32."""
    if decoding is Decoding.BEAM:
        return beam_order(model, problem, guide, candidates).orders
    if decoding is Decoding.GREEDY:
        return np.asarray(greedy_orders(model, problem, guide))
    rows, ops = np.arange(problem.num_graphs), problem.bucket.ops
    together = min(candidates, max(_FEW, _VALUES // (len(rows) * ops)))
    best, least = np.zeros((len(rows), ops), np.int32), np.full(len(rows), np.iinfo(np.int32).max)
    for first in range(0, candidates, together):
        check_interrupt()
        if first and deadline.over:
            break
        # The last part has as many as the others, or it would be compiled itself.
        orders = sampled_orders(model, problem, guide, keys, together, first)
        found = np.asarray(peaks(problem, orders))[:, : candidates - first]
        chosen, peak = np.asarray(orders)[rows, found.argmin(axis=1)], found.min(axis=1)
        # On ties the first sample stays.
        best = np.where(((peak < least) | (first == 0))[:, None], chosen, best)
        least = np.minimum(peak, least)
    return best
