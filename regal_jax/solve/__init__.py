"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.solve import solve

__all__ = ["solve"]
