"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.parts import Part, joined_parts, solve_in_parts
from regal_jax.solve.solve import sampler, solve

__all__ = ["Part", "joined_parts", "sampler", "solve", "solve_in_parts"]
