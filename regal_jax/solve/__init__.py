"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.keys import graph_identities, graph_keys, keys_of
from regal_jax.solve.propose import action_entropy, propose
from regal_jax.solve.solve import sampler, solve, solve_traced

__all__ = [
    "action_entropy",
    "graph_identities",
    "graph_keys",
    "keys_of",
    "propose",
    "sampler",
    "solve",
    "solve_traced",
]
