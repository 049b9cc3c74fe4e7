"""``keras.applications``: image classifiers, each at its published input size."""

from typing import Final

from regal_jax.corpus.families import family_of
from regal_jax.corpus.sources.keras_forms import abstract_inputs, keras, trace_model
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.corpus_files import FORMS
from regal_jax.graph import ComputationGraph

__all__ = ["specs", "trace"]

_BATCH: Final = 8


def specs() -> list[TraceSpec]:
    """Every model of ``keras.applications`` in every form."""
    names = [name for name, value in vars(keras.applications).items() if callable(value)]
    return [
        TraceSpec(
            "keras-applications", name, family_of(name), form, f"keras.applications.{name}(weights=None)"
        )
        for name in sorted(names)
        for form in FORMS
    ]


def trace(spec: TraceSpec, profile: str) -> ComputationGraph:
    """The graph of a spec."""
    return trace_model(
        lambda: getattr(keras.applications, spec.model)(weights=None),
        lambda model: abstract_inputs(model, batch_size=_BATCH, length=0, image_size=224),
        spec.form,
        profile=profile,
        name=f"{spec.model}.{spec.form}",
    )
