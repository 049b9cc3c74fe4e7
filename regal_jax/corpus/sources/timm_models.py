"""``timm``: every image model that it lists, at the size of its default configuration."""

import importlib
from typing import Any, Final

# This import comes before timm, which imports torchvision.
from regal_jax.corpus.sources.torch_forms import (  # isort: skip
    FORMS, meta_tensor, quiet, stub_broken_torchvision, trace_module, torch,
)  # fmt: skip

with quiet():
    stub_broken_torchvision()
    # Imported by name, so that a type checker does not need the package.
    timm: Any = importlib.import_module("timm")
    _registry: Any = importlib.import_module("timm.models._registry")

from regal_jax.corpus.families import family_of
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.graph import ComputationGraph

__all__ = ["specs", "trace"]

_BATCH: Final = 8
_MIXED: Final = ("byobnet", "byoanet", "efficientnet")
"""Modules with architectures of several families, which the models' names distinguish."""


def specs() -> list[TraceSpec]:
    """Every model of ``timm.list_models()`` in the forms of PyTorch models."""
    return [
        TraceSpec("timm", name, _family(name), form, f"timm.create_model({name!r})")
        for name in timm.list_models()
        for form in FORMS
    ]


def _family(name: str) -> str:
    module = _registry._model_to_module[name]
    return family_of(name if module in _MIXED else module)


def trace(spec: TraceSpec, profile: str) -> ComputationGraph:
    """The graph of a spec."""
    with quiet(), torch.device("meta"):
        model: Any = timm.create_model(spec.model)
    channels, height, width = model.pretrained_cfg.get("input_size") or (3, 224, 224)
    images = meta_tensor(_BATCH, channels, height, width)
    name = f"{spec.model}.{spec.form}"
    return trace_module(model, (images,), spec.form, profile=profile, name=name)
