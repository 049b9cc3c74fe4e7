"""Proposal, objective and search joined in one compiled program: users and rewards take the same path."""

from regal_jax.solve.solve import num_traces, searcher, solve

__all__ = ["num_traces", "searcher", "solve"]
