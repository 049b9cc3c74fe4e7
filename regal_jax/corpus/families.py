"""Names of architecture families that mean the same in every source of a corpus.

Splits follow families, so one architecture must not have two names: Keras' ``ResNet50V2``, timm's module
``resnetv2`` and transformers' ``resnet`` are all ``resnet``. A name is reduced by an explicit table of
prefixes (`_ALIASES`, longest first). If no prefix matches, the family is the text before the first digit or
separator, without the ``v`` of a version. A family that is too coarse costs only balance, whereas one that is
too fine leaks test graphs into training. So names are merged when in doubt. In addition, equal topologies
join families when the corpus is split.
"""

import re
from collections.abc import Mapping
from typing import Final

__all__ = ["family_of"]

_MAKERS: Final = ("tf_", "gluon_", "legacy_", "timm_", "test_", "keras_", "fb_", "xlm_", "mm_")
"""Prefixes that name who ported a model, not its architecture."""

_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    "bert": (
        "albert", "bert", "camembert", "data2vec_text", "deberta", "distil_bert", "distilbert", "electra",
        "ernie", "esm", "eurobert", "flaubert", "ibert", "layoutlm", "megatron_bert", "mobilebert",
        "modernbert", "mpnet", "nomic_bert", "roberta", "roformer", "xlm", "xmod", "squeezebert", "convbert",
        "herbert", "bros", "lilt", "markuplm", "nezha", "qdqbert", "retribert", "splinter", "nystromformer",
        "big_bird", "bigbird", "longformer", "luke", "mra", "rembert", "tapas", "visual_bert", "yoso",
    ),
    "bart": ("bart", "mbart", "blenderbot", "led", "m2m", "marian", "pegasus", "plbart", "nllb", "fsmt"),
    "clip": (
        "altclip", "chinese_clip", "clip", "metaclip", "siglip", "aimv", "align", "groupvit", "owl",
        "xclip", "x_clip", "mlcd", "mobileclip",
    ),
    "convnext": ("convnext", "dinov3_convnext", "metaformer_conv"),
    "detr": (
        "conditional_detr", "dab_detr", "deformable_detr", "detr", "d_fine", "deimv", "grounding", "lw_detr",
        "omdet", "rt_detr", "table_transformer", "yolos", "pp_doclayout", "deta", "rfdetr", "rf_detr",
    ),
    "efficientnet": ("efficientnet", "mnasnet", "semnasnet", "mobilenet", "mixnet", "fbnet", "spnasnet",
                     "tinynet", "hardcorenas", "lcnet", "ghostnet", "repghost", "mobilevit", "mobilenetv",
                     "cspnext", "rexnet", "single_path", "mobileone", "mobilenet_edgetpu"),
    "gemma": ("gemma", "paligemma", "pali_gemma", "recurrent_gemma", "shieldgemma", "t5gemma", "vaultgemma",
              "embedding_gemma", "diffusion_gemma", "embeddinggemma"),
    "gpt": ("codegen", "ctrl", "gpt", "imagegpt", "openai", "opt", "biogpt", "bloom", "falcon", "xglm"),
    "inception": ("inception",),
    "llama": (
        "llama", "mistral", "ministral", "mixtral", "phi", "smollm", "qwen", "olmo", "cohere", "granite",
        "glm", "arcee", "internlm", "exaone", "nemotron", "stablelm", "starcoder", "persimmon", "seed_oss",
        "helium", "hunyuan", "deepseek", "gpt_oss", "ernie4", "apertus", "yi", "youtu", "jais", "solar",
        "minicpm", "minimax", "diffllama", "bitnet", "hyperclovax", "iquestcoder", "cwm", "flex_olmo",
    ),
    "mask2former": ("mask2former", "maskformer", "oneformer", "eomt"),
    "mixer": ("mlp_mixer", "mixer", "gmlp", "gmixer", "resmlp"),
    "nasnet": ("nasnet", "pnasnet"),
    "resnet": (
        "bit", "ecaresnet", "resnet", "resnext", "seresnet", "senet", "seresnext", "sknet", "skresnet",
        "res2net", "resnest", "rt_detr_resnet", "tresnet", "wide_resnet", "resnetv", "resnetrs", "retinanet",
        "retina_net", "deeplab", "byoanet", "cspnet", "cspresnet", "cspdarknet", "darknet", "gernet", "dpn",
        "selecsls", "regnet", "ecaresnext", "skresnext", "haloregnetz", "seresnetaa", "res2next",
    ),
    "sam": ("sam", "edgetam", "hieradet", "vision_transformer_sam"),
    "segformer": ("mit", "segformer", "glpn", "pvt"),
    "swin": ("donut_swin", "maskformer_swin", "swin"),
    "t5": ("longt5", "mt5", "pop2piano", "switch_transformers", "t5", "udop", "umt5"),
    "vit": (
        "beit", "cait", "data2vec_vision", "deit", "depth_anything", "dinov", "dpt", "eva", "ijepa",
        "naflexvit", "vision_transformer", "vit_", "vitdet", "vitpose", "videomae", "vivit", "vjepa",
        "zoedepth", "timesformer", "xcit", "ijepa", "flexivit", "deepseek_vit", "hf_vit",
    ),
    "wav2vec": (
        "data2vec_audio", "hubert", "sew", "unispeech", "wav2vec", "wavlm", "mctct", "seamless", "speech",
    ),
    "whisper": ("whisper", "moonshine"),
    "mamba": ("mamba", "falcon_mamba"),
    "rwkv": ("rwkv",),
    "xception": ("xception",),
}  # fmt: skip
_ALIASES: Final[Mapping[str, str]] = {
    prefix: family for family, prefixes in _MEMBERS.items() for prefix in prefixes
}
_LONGEST_FIRST: Final = sorted(_ALIASES, key=lambda prefix: (-len(prefix), prefix))


def family_of(name: str) -> str:
    """The architecture family of a model, module or model type.

    Args:
      name: Name that the library uses.

    Returns:
      A short lower-case name; never empty.

    Examples:
      >>> from regal_jax.corpus.families import family_of
      >>> [family_of(name) for name in ("ResNet50V2", "tf_efficientnet_b0", "xlm-roberta", "volo_d1_224")]
      ['resnet', 'efficientnet', 'bert', 'volo']
    """
    text = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
    for maker in _MAKERS:
        text = text.removeprefix(maker) or text
    for prefix in _LONGEST_FIRST:
        if text.startswith(prefix):
            return _ALIASES[prefix]
    stem = re.split(r"[0-9_]", text, maxsplit=1)[0]
    if text != stem and len(stem) > 2 and stem.endswith("v") and text[len(stem)].isdigit():
        stem = stem[:-1]
    return stem or text or "other"
