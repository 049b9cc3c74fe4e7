"""Orders of ops on one device, for the least peak memory (Gagrani et al., NeurIPS 2022)."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.ordering.config import ENCODERS, Decoder, Encoder, TopoformerConfig, named_encoder
    from regal_jax.ordering.inputs import FEATURES, OrderInputs, make_order_inputs
    from regal_jax.ordering.networks import Topoformer, standardised
    from regal_jax.ordering.relations import (
        Relation,
        relation_matrix,
        transitive_closure,
        transitive_reduction,
    )
    from regal_jax.ordering.weights import load_topoformer, read_topoformer_metadata, save_topoformer

__all__ = [
    "ENCODERS",
    "FEATURES",
    "Decoder",
    "Encoder",
    "OrderInputs",
    "Relation",
    "Topoformer",
    "TopoformerConfig",
    "load_topoformer",
    "make_order_inputs",
    "named_encoder",
    "read_topoformer_metadata",
    "relation_matrix",
    "save_topoformer",
    "standardised",
    "transitive_closure",
    "transitive_reduction",
]

# Networks need Flax, which takes as long to load as JAX; relations need neither.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "config": (
            "ENCODERS",
            "Decoder",
            "Encoder",
            "TopoformerConfig",
            "named_encoder",
        ),
        "inputs": (
            "FEATURES",
            "OrderInputs",
            "make_order_inputs",
        ),
        "networks": (
            "Topoformer",
            "standardised",
        ),
        "relations": (
            "Relation",
            "relation_matrix",
            "transitive_closure",
            "transitive_reduction",
        ),
        "weights": (
            "load_topoformer",
            "read_topoformer_metadata",
            "save_topoformer",
        ),
    },
)
