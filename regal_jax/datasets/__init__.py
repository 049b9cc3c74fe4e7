"""Synthetic graphs and sets of them, reproducible from a seed."""

from regal_jax.datasets.build import SIZES, build_set
from regal_jax.datasets.candidates import SPLITS, Recipe, draw_candidate
from regal_jax.datasets.choices import choose
from regal_jax.datasets.noise import with_noise
from regal_jax.datasets.store import GraphSet, iterate_set, read_set
from regal_jax.datasets.synthetic import FAMILIES, Family, generate

__all__ = [
    "FAMILIES",
    "SIZES",
    "SPLITS",
    "Family",
    "GraphSet",
    "Recipe",
    "build_set",
    "choose",
    "draw_candidate",
    "generate",
    "iterate_set",
    "read_set",
    "with_noise",
]
