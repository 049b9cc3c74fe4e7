"""``keras.applications``: image classifiers, each at the size that it was published for."""

from typing import Final

from regal_jax.datasets.corpus.families import family_of
from regal_jax.datasets.corpus.recipe import FORMS, Recipe
from regal_jax.datasets.corpus.sources.keras_forms import abstract_inputs, keras, trace_model
from regal_jax.graph import ComputationGraph

__all__ = ["recipes", "trace"]

_BATCH: Final = 8


def recipes() -> list[Recipe]:
    """Every model of ``keras.applications`` in every form."""
    names = [name for name, value in vars(keras.applications).items() if callable(value)]
    return [
        Recipe("keras-applications", name, family_of(name), form, f"keras.applications.{name}(weights=None)")
        for name in sorted(names)
        for form in FORMS
    ]


def trace(recipe: Recipe, profile: str) -> ComputationGraph:
    """The graph of a recipe."""
    return trace_model(
        lambda: getattr(keras.applications, recipe.model)(weights=None),
        lambda model: abstract_inputs(model, batch_size=_BATCH, length=0, image_size=224),
        recipe.form,
        profile=profile,
        name=f"{recipe.model}.{recipe.form}",
    )
