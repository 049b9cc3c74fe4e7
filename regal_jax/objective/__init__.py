"""Genes to fitness: one number, smaller is better."""

from regal_jax.objective.fitness import fitness

__all__ = ["fitness"]
