"""``transformers``: the base model of every configuration class, at its default sizes."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any, Final

# This import comes before transformers, which looks for torchvision.
from regal_jax.corpus.sources.torch_forms import (  # isort: skip
    FORMS, hide_broken_torchvision, meta_tensor, quiet, trace_module, torch,
)  # fmt: skip

with quiet():
    hide_broken_torchvision()
    # Imported by name, so that a type checker does not need the package.
    transformers: Any = importlib.import_module("transformers")
    _auto = "transformers.models.auto"
    CONFIG_MAPPING: Any = importlib.import_module(f"{_auto}.configuration_auto").CONFIG_MAPPING
    MODEL_MAPPING_NAMES: Any = importlib.import_module(f"{_auto}.modeling_auto").MODEL_MAPPING_NAMES

from regal_jax.corpus.families import family_of
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph

__all__ = ["specs", "trace"]

_BATCH, _LENGTH, _FRAMES = 2, 64, 400


def specs() -> list[TraceSpec]:
    """The base model of every model type in the forms of PyTorch models."""
    return [
        TraceSpec(
            "transformers", kind, family_of(kind), form, f"transformers.{_class(kind)}({kind!r} config)"
        )
        for kind in sorted(MODEL_MAPPING_NAMES)
        for form in FORMS
    ]


def _class(kind: str) -> str:
    names = MODEL_MAPPING_NAMES[kind]
    return names if isinstance(names, str) else names[0]


def trace(spec: TraceSpec, profile: str) -> ComputationGraph:
    """The graph of a spec."""
    with quiet():
        config = CONFIG_MAPPING[spec.model]()
        # Attention is written out in ops. Experts are batched, since a loop over those in use depends on
        # data.
        config._attn_implementation = "eager"
        config._experts_implementation = "batched_mm"
        with torch.device("meta"):
            model = getattr(transformers, _class(spec.model))(config)
    first: FormatError | None = None
    for inputs in _candidates(model, config):
        try:
            return trace_module(model, inputs, spec.form, profile=profile, name=f"{spec.model}.{spec.form}")
        except FormatError as error:
            first = first or error
    raise first or ConfigError(f"no input of {type(model).__name__} is known")


def _candidates(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """The inputs to try, the most likely first: signatures do not say what shape an input has."""
    usual = _inputs(model, config)
    yield usual
    if "input_values" in usual:  # Codecs have a dimension of channels.
        yield {**usual, "input_values": usual["input_values"][:, None]}
    if "input_features" in usual:
        for width in _feature_widths(config):
            for shape in ((_BATCH, _FRAMES, width), (_BATCH, width, _FRAMES)):
                if shape != tuple(usual["input_features"].shape):
                    yield {**usual, "input_features": meta_tensor(*shape)}
    if "attention_mask" in usual and len(usual) > 2:
        # With several inputs, it may have another length than that of the text.
        yield {name: value for name, value in usual.items() if name != "attention_mask"}


def _feature_widths(config: Any) -> list[int]:
    """Sizes that a frame of audio may have."""
    parts = [config, *(getattr(config, name, None) for name in ("audio_config", "encoder_config"))]
    names = ("num_mel_bins", "feature_projection_input_dim", "feature_size", "input_size", "n_mels")
    found = [getattr(part, name, None) for part in parts if part is not None for name in names]
    return list(dict.fromkeys(width for width in found if isinstance(width, int) and width > 0))


def _inputs(model: Any, config: Any) -> dict[str, Any]:
    """The inputs in the model's signature, by their usual names."""
    parameters = inspect.signature(model.forward).parameters
    inputs: dict[str, Any] = {}
    for name in _TEXT_INPUTS:
        if name in parameters:
            inputs[name] = meta_tensor(_BATCH, _LENGTH, dtype=torch.long)
    if "pixel_values" in parameters:
        inputs["pixel_values"] = _images(config)
    if not inputs and "input_values" in parameters:
        inputs["input_values"] = meta_tensor(_BATCH, 16000)
    if "input_features" in parameters:
        inputs["input_features"] = _features(config)
    if not inputs and "past_values" in parameters and hasattr(config, "num_input_channels"):
        inputs["past_values"] = meta_tensor(_BATCH, config.context_length, config.num_input_channels)
    if not inputs and "inputs" in parameters and hasattr(config, "d_model"):
        inputs["inputs"] = meta_tensor(_BATCH, _LENGTH, config.d_model)
    if not inputs:
        raise ConfigError(f"no input of {type(model).__name__} is known: {', '.join(parameters)}")
    if "attention_mask" in parameters and "input_ids" in inputs:
        inputs["attention_mask"] = meta_tensor(_BATCH, _LENGTH, dtype=torch.long)
    if "use_cache" in parameters:
        inputs["use_cache"] = False
    return inputs


_TEXT_INPUTS: Final = ("input_ids", "decoder_input_ids")


def _images(config: Any) -> torch.Tensor:
    config = getattr(config, "vision_config", None) or config
    size = getattr(config, "image_size", None) or 224
    height, width = size if isinstance(size, (tuple, list)) else (size, size)
    channels = getattr(config, "num_channels", None) or getattr(config, "in_channels", None) or 3
    return meta_tensor(_BATCH, channels, height, width)


def _features(config: Any) -> torch.Tensor:
    config = getattr(config, "audio_config", None) or config
    bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 80
    frames = 2 * getattr(config, "max_source_positions", 0)
    # Whisper and similar models take mel bins before frames and require a fixed length.
    return meta_tensor(_BATCH, bins, frames) if frames else meta_tensor(_BATCH, _FRAMES, bins)
