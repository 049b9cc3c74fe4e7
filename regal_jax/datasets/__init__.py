"""Sets of graphs: synthetic graphs reproducible from a seed, a corpus, and a sample of real graphs."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.datasets.build import SIZES, build_set
    from regal_jax.datasets.candidates import SPLITS, Recipe, draw_candidate
    from regal_jax.datasets.choices import choose
    from regal_jax.datasets.corpus_files import FORMS
    from regal_jax.datasets.corpus_reader import corpus_records, load_corpus
    from regal_jax.datasets.improvement import RoomForImprovement
    from regal_jax.datasets.load import SAMPLE_PATH, load_graphs
    from regal_jax.datasets.noise import with_noise
    from regal_jax.datasets.shipped import SAMPLE, load_sample, sample_records
    from regal_jax.datasets.statistics import graph_record
    from regal_jax.datasets.store import GraphSet, iterate_set, read_set
    from regal_jax.datasets.synthetic import FAMILIES, Family, generate

__all__ = [
    "FAMILIES",
    "FORMS",
    "SAMPLE",
    "SAMPLE_PATH",
    "SIZES",
    "SPLITS",
    "Family",
    "GraphSet",
    "Recipe",
    "RoomForImprovement",
    "build_set",
    "choose",
    "corpus_records",
    "draw_candidate",
    "generate",
    "graph_record",
    "iterate_set",
    "load_corpus",
    "load_graphs",
    "load_sample",
    "read_set",
    "sample_records",
    "with_noise",
]

# Imported lazily: drawing and reading graphs do not need the search of a filter.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "build": ("SIZES", "build_set"),
        "candidates": ("SPLITS", "Recipe", "draw_candidate"),
        "choices": ("choose",),
        "corpus_files": ("FORMS",),
        "corpus_reader": ("corpus_records", "load_corpus"),
        "improvement": ("RoomForImprovement",),
        "load": ("SAMPLE_PATH", "load_graphs"),
        "noise": ("with_noise",),
        "shipped": ("SAMPLE", "load_sample", "sample_records"),
        "statistics": ("graph_record",),
        "store": ("GraphSet", "iterate_set", "read_set"),
        "synthetic": ("FAMILIES", "Family", "generate"),
    },
)
