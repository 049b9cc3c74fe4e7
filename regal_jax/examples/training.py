"""The training step of all examples."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from regal_jax.examples.registry import TrainingStep

__all__ = ["training_step"]


@contextlib.contextmanager
def _default_promotion() -> Iterator[None]:
    """Optax relies on JAX's default promotion rules; the user may have chosen strict ones."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@_default_promotion()
def training_step(
    model: nn.Module, inputs: jax.ShapeDtypeStruct, labels: jax.ShapeDtypeStruct
) -> TrainingStep:
    """A step with cross entropy, its gradient and an Adam update; parameters are shapes only.

    Args:
      model: A model that returns logits ``[*labels.shape, classes]``.
      inputs: Shape and type of the inputs, ``[batch, ...]``.
      labels: Shape and type of the labels, int32, one per prediction.
    """
    optimiser = optax.adam(1e-3)
    key = jax.eval_shape(lambda: jax.random.key(0))
    variables = dict(jax.eval_shape(model.init, key, inputs))
    params = variables.pop("params")

    @_default_promotion()
    def train_step(params: Any, model_state: Any, opt_state: Any, inputs: Any, labels: Any) -> Any:
        def loss_fn(params: Any) -> Any:
            logits, new_state = model.apply(
                {"params": params, **model_state}, inputs, mutable=list(model_state)
            )
            with jax.named_scope("loss"):
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
                return jnp.mean(losses), new_state

        (loss, new_state), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        with jax.named_scope("adam"):
            updates, opt_state = optimiser.update(gradients, opt_state, params)
            params = optax.apply_updates(params, updates)
        return params, new_state, opt_state, loss

    return TrainingStep(
        train_step, (params, variables, jax.eval_shape(optimiser.init, params), inputs, labels)
    )
