"""The forms of a Keras model, traced on the JAX backend without any weights."""

import os
from collections.abc import Callable
from typing import Any

# Keras reads the backend when it is first imported. This process does nothing but trace.
os.environ["KERAS_BACKEND"] = "jax"

import jax
import jax.numpy as jnp
import keras
import optax

from regal_jax.graph import ComputationGraph
from regal_jax.importers.jax_program import from_jax

__all__ = ["abstract_inputs", "trace_model"]


def trace_model(
    build: Callable[[], Any], inputs: Callable[[Any], Any], form: str, *, profile: str, name: str
) -> ComputationGraph:
    """The graph of one form of a model.

    The mean square of all outputs stands for the loss, since a loss adds only a few ops.

    Args:
      build: Makes the model.
      inputs: The model's inputs, as `jax.ShapeDtypeStruct`.
      form: One of `regal_jax.datasets.FORMS`.
      profile: Device that runtimes are estimated for.
      name: Name of the graph.
    """
    with keras.StatelessScope(initialize_variables=False):
        model = build()
    # A call would otherwise initialise the variables, and keep traced arrays in them.
    keras.utils.clear_session(free_memory=False)
    trainable, other = _shapes(model.trainable_variables), _shapes(model.non_trainable_variables)
    batch = inputs(model)

    def forward(params: Any, state: Any, batch: Any) -> Any:
        return model.stateless_call(params, state, batch, training=False)[0]

    def loss(params: Any, state: Any, batch: Any) -> Any:
        outputs, new_state = model.stateless_call(params, state, batch, training=True)
        return _mean_square(outputs), new_state

    def gradient(params: Any, state: Any, batch: Any) -> Any:
        return jax.value_and_grad(loss, has_aux=True)(params, state, batch)

    def train_step(params: Any, state: Any, opt_state: Any, batch: Any) -> Any:
        (value, new_state), gradients = gradient(params, state, batch)
        updates, opt_state = optimiser.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), new_state, opt_state, value

    if form != "training-step":
        fn = forward if form == "forward" else gradient
        return from_jax(fn, trainable, other, batch, resident_argnums=(0, 1), profile=profile, name=name)
    optimiser = optax.adam(1e-3)
    state = jax.eval_shape(optimiser.init, trainable)
    resident = (0, 1, 2)
    return from_jax(
        train_step, trainable, other, state, batch,
        resident_argnums=resident, donate_argnums=resident, profile=profile, name=name,
    )  # fmt: skip


def abstract_inputs(model: Any, *, batch_size: int, length: int, image_size: int) -> Any:
    """The inputs that a functional model declares, with a size for every open axis."""

    def shape(tensor: Any) -> jax.ShapeDtypeStruct:
        axes = list(tensor.shape)
        filler = image_size if len(axes) >= 4 else length
        axes = [batch_size if axis is None and i == 0 else axis or filler for i, axis in enumerate(axes)]
        return jax.ShapeDtypeStruct(tuple(axes), keras.backend.standardize_dtype(tensor.dtype))

    return keras.tree.map_structure(shape, model.input)


def _shapes(variables: Any) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]


def _mean_square(outputs: Any) -> Any:
    leaves = [x for x in jax.tree.leaves(outputs) if jnp.issubdtype(x.dtype, jnp.floating)]
    return sum((jnp.mean(jnp.square(x)) for x in leaves), start=jnp.zeros((), jnp.float32))
