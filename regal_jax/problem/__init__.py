"""Padded pytrees of graphs on the device, and their buckets."""

from regal_jax.problem.bucket import Bucket, rung
from regal_jax.problem.decisions import Decisions, Preferences
from regal_jax.problem.problem import Problem, make_problem, memory_unit

__all__ = ["Bucket", "Decisions", "Preferences", "Problem", "make_problem", "memory_unit", "rung"]
