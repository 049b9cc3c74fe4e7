"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.solve import sampler, solve

__all__ = ["sampler", "solve"]
