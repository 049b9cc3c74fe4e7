"""The policy of REGAL: maps a graph to the distributions from which a search draws its genes."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.policies.ablation import Ablation
    from regal_jax.policies.actions import (
        Action,
        entropy,
        log_prob,
        most_likely,
        placement_entropy,
        sample_action,
        to_proposal,
    )
    from regal_jax.policies.choices import Balance, Cut, FeatureSet, Network, Placement, Transfers
    from regal_jax.policies.config import FeatureConfig, PolicyConfig
    from regal_jax.policies.distributions import action_parameters, action_table
    from regal_jax.policies.features import GraphFeatures
    from regal_jax.policies.inputs import make_features, make_inputs, make_prior
    from regal_jax.policies.networks import Logits, Policy, Value
    from regal_jax.policies.priors import MAKERS, Prior
    from regal_jax.policies.shipped import DEFAULT, SHIPPED, default_policy, is_shipped, shipped_policy
    from regal_jax.policies.weights import load_policy, read_metadata, save_policy

__all__ = [
    "DEFAULT",
    "MAKERS",
    "SHIPPED",
    "Ablation",
    "Action",
    "Balance",
    "Cut",
    "FeatureConfig",
    "FeatureSet",
    "GraphFeatures",
    "Logits",
    "Network",
    "Placement",
    "Policy",
    "PolicyConfig",
    "Prior",
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
    "make_inputs",
    "make_prior",
    "most_likely",
    "placement_entropy",
    "read_metadata",
    "sample_action",
    "save_policy",
    "shipped_policy",
    "to_proposal",
]

# Imported lazily: most need Flax, which takes as long to load as JAX, and `is_shipped` does not.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "ablation": ("Ablation",),
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
            "Placement",
            "Transfers",
        ),
        "config": (
            "FeatureConfig",
            "PolicyConfig",
        ),
        "distributions": (
            "action_parameters",
            "action_table",
        ),
        "features": ("GraphFeatures",),
        "inputs": (
            "make_features",
            "make_inputs",
            "make_prior",
        ),
        "networks": (
            "Logits",
            "Policy",
            "Value",
        ),
        "priors": (
            "MAKERS",
            "Prior",
        ),
        "shipped": (
            "DEFAULT",
            "SHIPPED",
            "default_policy",
            "is_shipped",
            "shipped_policy",
        ),
        "weights": (
            "load_policy",
            "read_metadata",
            "save_policy",
        ),
    },
)
