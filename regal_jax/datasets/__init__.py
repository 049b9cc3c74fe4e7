"""Synthetic graphs, reproducible from a seed."""

from regal_jax.datasets.synthetic import FAMILIES, generate

__all__ = ["FAMILIES", "generate"]
