"""``keras_hub`` backbones of published sizes, which are listed here because presets would be downloaded.

Width does not change the topology, so the tables have depths with plausible widths.
"""

import functools
import importlib
from typing import Any, Final

# This import comes before keras_hub, which imports Keras, because it chooses the backend.
from regal_jax.corpus.sources.keras_forms import abstract_inputs, trace_model  # isort: skip


from regal_jax.corpus.families import family_of
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.corpus_files import FORMS
from regal_jax.graph import ComputationGraph

__all__ = ["specs", "trace"]

_BATCH, _LENGTH, _IMAGE = 4, 128, 224

# Imported by name, so that a type checker does not need the package.
keras_hub: Any = importlib.import_module("keras_hub")

_PLAIN: Final = {"num_heads": 8, "hidden_dim": 512, "intermediate_dim": 2048, "vocabulary_size": 32000}
_GROUPED: Final = {
    "num_query_heads": 8, "num_key_value_heads": 4, "hidden_dim": 512, "intermediate_dim": 2048,
    "vocabulary_size": 32000,
}  # fmt: skip
_HEADED: Final = {**_GROUPED, "head_dim": 64}
_MIXTURE: Final = {"num_experts": 8}

_TEXT: Final[dict[str, tuple[tuple[int, ...], dict[str, Any]]]] = {
    # Class name without "Backbone": depths, other arguments.
    "Albert": ((12, 24), {**_PLAIN, "embedding_dim": 128}),
    "Bart": ((6, 12), _PLAIN),
    "Bert": ((2, 4, 8, 12, 24), _PLAIN),
    "Bloom": ((24, 30), _PLAIN),
    "DebertaV3": ((6, 12, 24), _PLAIN),
    "DistilBert": ((6,), _PLAIN),
    "Electra": ((12, 24), {**_PLAIN, "vocab_size": 32000, "embedding_dim": 128, "vocabulary_size": None}),
    "ESM2": ((6, 12, 30), _PLAIN),
    "FNet": ((12, 24), {**_PLAIN, "num_heads": None}),
    "Falcon": ((24, 32), {**_PLAIN, "num_heads": None, "num_attention_heads": 8}),
    "GPT2": ((12, 24, 36, 48), _PLAIN),
    "GPTNeoX": ((6, 16, 24, 32), _PLAIN),
    "Gemma": ((18, 26, 28, 42), _HEADED),
    "Gemma3": ((18, 26, 34, 48), {**_HEADED, "image_size": 224, "vision_encoder": None}),
    "GptOss": ((24, 36), {**_GROUPED, **_MIXTURE}),
    "Llama": ((22, 32, 40), _GROUPED),
    "Llama3": ((16, 28), _GROUPED),
    "Mistral": ((24, 32), _GROUPED),
    "Mixtral": ((16, 32), {**_GROUPED, **_MIXTURE}),
    "OPT": ((12, 24, 32), _PLAIN),
    "Phi3": ((24, 32), _GROUPED),
    "Qwen": ((24, 28, 36), _GROUPED),
    "Qwen3": ((28, 36), _HEADED),
    "Qwen3Moe": ((24, 48), {**_HEADED, **_MIXTURE, "moe_intermediate_dim": 768}),
    "QwenMoe": (
        (24,),
        {**_GROUPED, **_MIXTURE, "moe_intermediate_dim": 768, "shared_expert_intermediate_dim": 1024},
    ),
    "RWKV7": (
        (12, 24),
        {"hidden_size": 512, "head_size": 64, "vocabulary_size": 32000, "intermediate_dim": 2048},
    ),
    "Roberta": ((12, 24), _PLAIN),
    "RoformerV2": ((3, 6, 12, 24), {**_PLAIN, "head_size": 64}),
    "SmolLM3": (
        (36,),
        {
            "vocabulary_size": 32000, "hidden_dim": 512, "intermediate_dim": 2048, "num_attention_heads": 8,
            "num_key_value_heads": 4, "attention_bias": False, "attention_dropout": 0.0,
            "rope_layer_enabled_list": [i % 4 != 3 for i in range(36)],
            "layer_types": ["full_attention"] * 36, "mlp_bias": False, "layer_norm_epsilon": 1e-6,
            "max_position_embeddings": 2048, "rope_theta": 5e6, "partial_rotary_factor": 1.0,
        },
    ),
    "T5": ((6, 12, 24), _PLAIN),
    "Whisper": ((4, 6, 12, 24), _PLAIN),
    "XLMRoberta": ((12, 24), _PLAIN),
    "XLNet": ((12, 24), _PLAIN),
}  # fmt: skip

_SQUARE: Final = {"image_shape": (224, 224, 3)}
_VIT: Final = {"num_heads": 8, "hidden_dim": 512, "patch_size": 16}
_RESNET: Final = {
    "input_conv_filters": [64], "input_conv_kernel_sizes": [7],
    "stackwise_num_filters": [64, 128, 256, 512], "stackwise_num_strides": [1, 2, 2, 2], **_SQUARE,
}  # fmt: skip
_RESNET_D: Final = {**_RESNET, "input_conv_filters": [32, 32, 64], "input_conv_kernel_sizes": [3, 3, 3]}
_MIT: Final = {
    "num_layers": 4, "layerwise_num_heads": [1, 2, 5, 8], "layerwise_sr_ratios": [8, 4, 2, 1],
    "max_drop_path_rate": 0.1, "layerwise_patch_sizes": [7, 3, 3, 3], "layerwise_strides": [4, 2, 2, 2],
    "hidden_dims": [64, 128, 320, 512], **_SQUARE,
}  # fmt: skip
_CSP: Final = {
    "stem_kernel_size": 3, "stem_strides": 1, "stackwise_strides": 2, "stage_type": "csp",
    # Stages are split in two halves, each as wide as a block needs.
    "expand_ratio": 2.0,
    "stackwise_num_filters": [128, 256, 512, 1024], "image_shape": (224, 224, 3),
}  # fmt: skip
_SWIN: Final = {"embed_dim": 96, "num_heads": [3, 6, 12, 24], "window_size": 7, **_SQUARE}

_VISION: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    # Name: class name without "Backbone", arguments.
    **{
        f"DeiT_{n}": ("DeiT", {**_VIT, **_SQUARE, "num_layers": n, "intermediate_dim": 2048})
        for n in (6, 12, 24)
    },
    **{
        f"ViT_{n}": ("ViT", {**_VIT, **_SQUARE, "patch_size": (16, 16), "num_layers": n, "mlp_dim": 2048})
        for n in (12, 24, 32)
    },
    **{
        f"DINOV2_{n}": (
            "DINOV2",
            {**_VIT, **_SQUARE, "patch_size": 14, "num_layers": n, "intermediate_dim": 2048},
        )
        for n in (12, 24, 40)
    },
    **{
        f"DINOV3_{n}": ("DINOV3", {**_VIT, **_SQUARE, "num_layers": n, "intermediate_dim": 2048})
        for n in (12, 24, 32)
    },
    **{
        f"DenseNet_{n}": ("DenseNet", {"stackwise_num_repeats": repeats, **_SQUARE})
        for n, repeats in {121: [6, 12, 24, 16], 169: [6, 12, 32, 32], 201: [6, 12, 48, 32]}.items()
    },
    **{
        f"ResNet_{n}_{version}": (
            "ResNet",
            {**base, "stackwise_num_blocks": blocks, "block_type": block, "use_pre_activation": before},
        )
        for n, (blocks, basic) in {
            18: ([2, 2, 2, 2], True), 34: ([3, 4, 6, 3], True), 50: ([3, 4, 6, 3], False),
            101: ([3, 4, 23, 3], False), 152: ([3, 8, 36, 3], False), 200: ([3, 12, 48, 3], False),
        }.items()
        for version, base, block, before in (
            ("v1", _RESNET, "basic_block" if basic else "bottleneck_block", False),
            ("v2", _RESNET, "basic_block" if basic else "bottleneck_block", True),
            ("vd", _RESNET_D, "basic_block_vd" if basic else "bottleneck_block_vd", False),
        )
    },
    **{
        f"VGG_{n}": (
            "VGG",
            {
                "stackwise_num_repeats": repeats, "stackwise_num_filters": [64, 128, 256, 512, 512],
                **_SQUARE,
            },
        )
        for n, repeats in {
            11: [1, 1, 2, 2, 2], 13: [2, 2, 2, 2, 2], 16: [2, 2, 3, 3, 3], 19: [2, 2, 4, 4, 4],
        }.items()
    },
    **{
        f"MiT_b{i}": ("MiT", {**_MIT, "layerwise_depths": depths})
        for i, depths in enumerate(
            ([2, 2, 2, 2], [2, 2, 2, 3], [3, 4, 6, 3], [3, 4, 18, 3], [3, 8, 27, 3], [3, 6, 40, 3])
        )
    },
    **{
        f"CSPNet_{block}_{n}": (
            "CSPNet",
            {**_CSP, "stem_filters": 32, "stackwise_depth": depths, "block_type": block},
        )
        for block in ("dark_block", "edge_block", "bottleneck_block")
        for n, depths in {14: [1, 2, 3, 2], 22: [3, 3, 5, 2], 53: [2, 8, 8, 4]}.items()
    },
    **{
        f"SwinTransformer_{name}": ("SwinTransformer", {**_SWIN, "depths": depths})
        for name, depths in {"tiny": [2, 2, 6, 2], "small": [2, 2, 18, 2]}.items()
    },
    "Xception_41": (
        "Xception",
        {
            "stackwise_conv_filters": [[32, 64], [64, 128, 128], [128, 256, 256], [256, 728, 728]]
            + [[728] * 3] * 8 + [[728, 1024, 1024], [1536, 1536, 2048]],
            "stackwise_pooling": [False, True, True, True, *[False] * 8, True, False], **_SQUARE,
        },
    ),
    **{
        f"VideoPrism_{n}": (
            "VideoPrism",
            {
                "num_frames": 8, "patch_size": 18, "num_heads": 8, "hidden_dim": 512,
                "intermediate_dim": 2048,
                "num_spatial_layers": n, "num_temporal_layers": 4, "num_auxiliary_layers": 0,
                "image_shape": (288, 288, 3),
            },
        )
        for n in (12, 24)
    },
}  # fmt: skip


@functools.cache
def _models() -> dict[str, tuple[str, dict[str, Any]]]:
    """Name of each model -> class and arguments."""
    models = {}
    for name, (depths, arguments) in _TEXT.items():
        for depth in depths:
            given = {key: value for key, value in arguments.items() if value is not None}
            models[f"{name}_{depth}"] = (name, {**given, "num_layers": depth})
    models.update(_VISION)
    return models


def specs() -> list[TraceSpec]:
    """Every model of the tables in every form."""
    return [
        TraceSpec("keras-hub", name, family_of(cls), form, _constructor(cls, arguments))
        for name, (cls, arguments) in sorted(_models().items())
        for form in FORMS
    ]


def _constructor(cls: str, arguments: dict[str, Any]) -> str:
    return f"keras_hub.models.{cls}Backbone({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"


def trace(spec: TraceSpec, profile: str) -> ComputationGraph:
    """The graph of a spec."""
    cls, arguments = _models()[spec.model]
    return trace_model(
        lambda: getattr(keras_hub.models, f"{cls}Backbone")(**arguments),
        lambda model: abstract_inputs(model, batch_size=_BATCH, length=_LENGTH, image_size=_IMAGE),
        spec.form,
        profile=profile,
        name=f"{spec.model}.{spec.form}",
    )
