"""Orders of ops on one device, for the least peak memory (Gagrani et al., NeurIPS 2022)."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.ordering.autoregressive import AutoregressiveDecoder
    from regal_jax.ordering.beam import Found, approximate_dp, beam_search
    from regal_jax.ordering.config import ENCODERS, Decoder, Encoder, TopoformerConfig, named_encoder
    from regal_jax.ordering.decode import greedy, log_prob, peaks, sample
    from regal_jax.ordering.infer import Decoding, decode_orders, graph_priorities
    from regal_jax.ordering.inputs import FEATURES, OrderInputs, make_order_inputs
    from regal_jax.ordering.networks import Topoformer, standardised
    from regal_jax.ordering.relations import (
        Relation,
        relation_matrix,
        transitive_closure,
        transitive_reduction,
    )
    from regal_jax.ordering.shipped import default_topoformer, shipped_topoformer
    from regal_jax.ordering.weights import load_topoformer, read_topoformer_metadata, save_topoformer

__all__ = [
    "ENCODERS",
    "FEATURES",
    "AutoregressiveDecoder",
    "Decoder",
    "Decoding",
    "Encoder",
    "Found",
    "OrderInputs",
    "Relation",
    "Topoformer",
    "TopoformerConfig",
    "approximate_dp",
    "beam_search",
    "decode_orders",
    "default_topoformer",
    "graph_priorities",
    "greedy",
    "load_topoformer",
    "log_prob",
    "make_order_inputs",
    "named_encoder",
    "peaks",
    "read_topoformer_metadata",
    "relation_matrix",
    "sample",
    "save_topoformer",
    "shipped_topoformer",
    "standardised",
    "transitive_closure",
    "transitive_reduction",
]

# Networks need Flax, which takes as long to load as JAX; relations need neither.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "autoregressive": ("AutoregressiveDecoder",),
        "beam": ("Found", "approximate_dp", "beam_search"),
        "config": ("ENCODERS", "Decoder", "Encoder", "TopoformerConfig", "named_encoder"),
        "decode": ("greedy", "log_prob", "peaks", "sample"),
        "infer": ("Decoding", "decode_orders", "graph_priorities"),
        "inputs": ("FEATURES", "OrderInputs", "make_order_inputs"),
        "networks": ("Topoformer", "standardised"),
        "relations": ("Relation", "relation_matrix", "transitive_closure", "transitive_reduction"),
        "shipped": ("default_topoformer", "shipped_topoformer"),
        "weights": ("load_topoformer", "read_topoformer_metadata", "save_topoformer"),
    },
)
