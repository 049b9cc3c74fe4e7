"""The policy of REGAL: a graph to the distributions that a search draws its genes from."""

from typing import TYPE_CHECKING

from regal_jax.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.policies.actions import (
        Action,
        entropy,
        log_prob,
        most_likely,
        placement_entropy,
        sample_action,
        to_proposal,
    )
    from regal_jax.policies.choices import (
        Balance,
        Cut,
        FeatureSet,
        Network,
        Order,
        Parametrisation,
        Transfers,
    )
    from regal_jax.policies.config import FeatureConfig, PolicyConfig
    from regal_jax.policies.distributions import action_parameters, action_table
    from regal_jax.policies.features import GraphFeatures, make_features
    from regal_jax.policies.networks import Logits, OwnPlaces, Policy, Value, own_places
    from regal_jax.policies.shipped import default_policy, is_shipped
    from regal_jax.policies.weights import load_policy, read_metadata, save_policy

__all__ = [
    "Action",
    "Balance",
    "Cut",
    "FeatureConfig",
    "FeatureSet",
    "GraphFeatures",
    "Logits",
    "Network",
    "Order",
    "OwnPlaces",
    "Parametrisation",
    "Policy",
    "PolicyConfig",
    "Transfers",
    "Value",
    "action_parameters",
    "action_table",
    "default_policy",
    "entropy",
    "is_shipped",
    "load_policy",
    "log_prob",
    "make_features",
    "most_likely",
    "own_places",
    "placement_entropy",
    "read_metadata",
    "sample_action",
    "save_policy",
    "to_proposal",
]

# Most of them need Flax, which takes as long to load as JAX; who asks `is_shipped` need not wait for it.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "actions": (
            "Action",
            "entropy",
            "log_prob",
            "most_likely",
            "placement_entropy",
            "sample_action",
            "to_proposal",
        ),
        "choices": (
            "Balance",
            "Cut",
            "FeatureSet",
            "Network",
            "Order",
            "Parametrisation",
            "Transfers",
        ),
        "config": ("FeatureConfig", "PolicyConfig"),
        "distributions": ("action_parameters", "action_table"),
        "features": ("GraphFeatures", "make_features"),
        "networks": ("Logits", "OwnPlaces", "Policy", "Value", "own_places"),
        "shipped": ("default_policy", "is_shipped"),
        "weights": ("load_policy", "read_metadata", "save_policy"),
    },
)
