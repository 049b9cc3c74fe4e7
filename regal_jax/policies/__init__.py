"""The policy of REGAL: a graph to the distributions that a search draws its genes from."""

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
