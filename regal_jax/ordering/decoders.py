"""One interface to both decoders: greedy orders, samples, their probabilities, beams.

A decoder reads priorities ``[B, N]``; the autoregressive one reads embeddings ``[B, N, W]``.
"""

import jax
import jax.numpy as jnp

from regal_jax.ordering.beam import Found, beam_search
from regal_jax.ordering.decode import greedy, log_prob, sample_orders
from regal_jax.ordering.inputs import OrderInputs
from regal_jax.ordering.networks import Topoformer, standardised
from regal_jax.problem import Problem

__all__ = ["beam_order", "encoded", "greedy_orders", "order_log_prob", "read", "sampled_orders"]


def encoded(model: Topoformer, inputs: OrderInputs) -> jax.Array:
    """The encoder's outputs, independent of the decoder: ``[B, N]`` logits, or ``[B, N, W]`` embeddings."""
    return model.logits(inputs) if model.decoder is None else model.embed(inputs)


def read(model: Topoformer, outputs: jax.Array, mask: jax.Array) -> jax.Array:
    """The input of the decoder, from the outputs of `encoded`: priorities, or the same embeddings."""
    if model.decoder is not None:
        return outputs
    return standardised(outputs, jnp.asarray(mask), model.config.alpha)


def greedy_orders(model: Topoformer, problem: Problem, guide: jax.Array) -> jax.Array:
    """``[B, N]`` int32: takes the likeliest ready op.

    Args:
      model: The network whose decoder is used.
      problem: ``B`` graphs on one device.
      guide: From `read`.
    """
    decoder = model.decoder
    return greedy(problem, guide) if decoder is None else decoder.greedy(problem, guide)


def sampled_orders(
    model: Topoformer, problem: Problem, guide: jax.Array, keys: jax.Array, samples: int, first: int = 0
) -> jax.Array:
    """``[B, S, N]`` int32 draws, each a function of its graph, its key and its number.

    Args:
      model: The network whose decoder is used.
      problem: ``B`` graphs on one device.
      guide: From `read`.
      keys: ``[B]`` typed keys, consumed.
      samples: ``S``, at least 1.
      first: Number of the first sample.
    """
    if model.decoder is None:
        return sample_orders(problem, guide, keys, samples, first=first)
    return model.decoder.sample_orders(problem, guide, keys, samples, first=first)


def order_log_prob(model: Topoformer, problem: Problem, guide: jax.Array, orders: jax.Array) -> jax.Array:
    """``[B, S]`` float32, differentiable by ``guide`` and by the weights of the decoder.

    Args:
      model: The network whose decoder is used.
      problem: ``B`` graphs on one device.
      guide: From `read`.
      orders: ``[B, S, N]`` int32.
    """
    if model.decoder is None:
        return log_prob(problem, guide, orders)
    return model.decoder.log_prob(problem, guide, orders)


def beam_order(model: Topoformer, problem: Problem, guide: jax.Array, width: int) -> Found:
    """The best order of a beam of the likeliest partial orders; must not be traced.

    Args:
      model: The network whose decoder is used.
      problem: ``B`` graphs on one device.
      guide: From `read`.
      width: Number of partial orders to keep, at least 1.
    """
    if model.decoder is None:
        return beam_search(problem, guide, width)
    return model.decoder.beam_search(problem, guide, width)
