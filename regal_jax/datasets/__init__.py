"""Sets of graphs: synthetic ones, reproducible from a seed, and a sample of real ones."""

from regal_jax.datasets.build import SIZES, build_set
from regal_jax.datasets.candidates import SPLITS, Recipe, draw_candidate
from regal_jax.datasets.choices import choose
from regal_jax.datasets.corpus.statistics import graph_record
from regal_jax.datasets.noise import with_noise
from regal_jax.datasets.shipped import SAMPLE, load_sample, sample_records
from regal_jax.datasets.store import GraphSet, iterate_set, read_set
from regal_jax.datasets.synthetic import FAMILIES, Family, generate

__all__ = [
    "FAMILIES",
    "SAMPLE",
    "SIZES",
    "SPLITS",
    "Family",
    "GraphSet",
    "Recipe",
    "build_set",
    "choose",
    "draw_candidate",
    "generate",
    "graph_record",
    "iterate_set",
    "load_sample",
    "read_set",
    "sample_records",
    "with_noise",
]
