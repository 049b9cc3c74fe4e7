"""A script that traces keras.applications on the JAX backend and writes the results as JSON.

It is a separate process, so that Keras and its backend are not imported into the other tests.
"""

import json
import os
import sys

os.environ["KERAS_BACKEND"] = "jax"

import jax
import keras
import numpy as np
import optax

from regal_jax.corpus.sources.keras_forms import abstract_inputs, trace_model
from regal_jax.datasets import FORMS
from regal_jax.errors import FormatError
from regal_jax.importers.jax_program import from_jax


def small(size: int) -> keras.Model:
    """The layers of MobileNet, few of them."""
    layers = keras.layers
    x = images = keras.Input((size, size, 3))
    x = layers.ReLU(6)(layers.BatchNormalization()(layers.Conv2D(8, 3, strides=2, name="first")(x)))
    x = layers.ReLU(6)(layers.BatchNormalization()(layers.DepthwiseConv2D(3, name="each")(x)))
    x = layers.ReLU(6)(layers.BatchNormalization()(layers.Conv2D(16, 1, name="point")(x)))
    x = layers.Dropout(0.1)(layers.GlobalAveragePooling2D()(x))
    return keras.Model(images, layers.Dense(1000, activation="softmax")(x))


def trace(name: str, size: int) -> dict[str, object]:
    """The graph of a training step of ``keras.applications.<name>`` or `small`, weights never made."""
    with keras.StatelessScope(initialize_variables=False):
        model = (
            small(size)
            if name == "small"
            else getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3))
        )
    # A call would otherwise initialise the variables, and keep traced arrays in them.
    keras.utils.clear_session(free_memory=False)

    def shapes(variables):
        return [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables]

    trainable, other = shapes(model.trainable_variables), shapes(model.non_trainable_variables)
    optimiser = optax.adam(1e-3)

    def train_step(params, state, opt_state, images, labels):
        def loss_fn(params):
            probabilities, new_state = model.stateless_call(params, state, images, training=True)
            return keras.ops.mean(keras.losses.categorical_crossentropy(labels, probabilities)), new_state

        (loss, new_state), gradients = jax.value_and_grad(loss_fn, has_aux=True)(params)
        updates, opt_state = optimiser.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), new_state, opt_state, loss

    state = jax.eval_shape(optimiser.init, trainable)
    batch = jax.ShapeDtypeStruct((2, size, size, 3), "float32"), jax.ShapeDtypeStruct((2, 1000), "float32")
    graph = from_jax(
        train_step, trainable, other, state, *batch, resident_argnums=(0, 1, 2), donate_argnums=(0, 1, 2)
    )
    kinds = list(graph.op_kinds)
    own = [kind == "parameter" and "constant" not in n for n, kind in zip(graph.op_names, kinds, strict=True)]
    layers = [x.name for x in model.layers if x.__class__.__name__ in ("Conv2D", "DepthwiseConv2D")]
    return {
        "ops": graph.num_ops,
        "convolutions": kinds.count("conv_general_dilated"),
        "resident_bytes": int(graph.tensor_bytes[np.array(own)[graph.tensor_op]].sum()),
        "expected_bytes": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves((trainable, other, state))),
        "layers": len(layers),
        "named_after_layers": sum(f"{layer}/conv_general_dilated" in graph.op_index for layer in layers),
    }


class Backbone(keras.Model):
    """A model with a layer as an attribute, as those of keras-hub."""

    def __init__(self):
        table = keras.layers.Embedding(10, 4)
        token = keras.Input((None,), dtype="int32")
        super().__init__(token, keras.layers.Dense(3)(table(token)))
        self.table = table


def forms() -> dict[str, list[str]]:
    """The kinds of ops of each form that the corpus makes of a `Backbone`."""

    def inputs(model):
        return abstract_inputs(model, batch_size=2, length=5, image_size=0)

    return {
        form: list(trace_model(Backbone, inputs, form, profile="h200", name=form).op_kinds) for form in FORMS
    }


def refusal() -> str:
    """What is said of a model whose variables would get their first values in the traced call."""
    with keras.StatelessScope(initialize_variables=False):
        model = Backbone()
    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.trainable_variables]
    tokens = jax.ShapeDtypeStruct((2, 5), "int32")
    try:
        from_jax(lambda p, x: model.stateless_call(p, [], x)[0], shapes, tokens)
    except FormatError as error:
        return str(error)
    return "nothing"


if __name__ == "__main__":
    traced = {name: trace(name, 64) for name in sys.argv[1:]}
    json.dump({**traced, "forms": forms(), "refusal": refusal()}, sys.stdout)
