"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.keys import graph_identities, graph_keys, keys_of
from regal_jax.solve.parts import Part, joined_parts, solve_in_parts
from regal_jax.solve.propose import action_entropy, propose
from regal_jax.solve.solve import sampler, solve, solve_traced

__all__ = [
    "Part",
    "action_entropy",
    "graph_identities",
    "graph_keys",
    "joined_parts",
    "keys_of",
    "propose",
    "sampler",
    "solve",
    "solve_in_parts",
    "solve_traced",
]
