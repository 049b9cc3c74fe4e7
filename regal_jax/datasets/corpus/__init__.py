"""A corpus of real computation graphs, traced from the models of public libraries.

`build_corpus` makes one, `load_corpus` reads it. See docs/datasets.md.
"""

from regal_jax.datasets.corpus.build import build_corpus
from regal_jax.datasets.corpus.card import card_facts, format_card, write_card
from regal_jax.datasets.corpus.family_splits import FAMILY_SPLITS, read_family_splits, write_family_splits
from regal_jax.datasets.corpus.finish import describe, finish
from regal_jax.datasets.corpus.reader import corpus_records, load_corpus
from regal_jax.datasets.corpus.sample import write_sample
from regal_jax.datasets.corpus.sources import SOURCES, Source
from regal_jax.datasets.corpus.trace_spec import FORMS, TraceSpec

__all__ = [
    "FAMILY_SPLITS",
    "FORMS",
    "SOURCES",
    "Source",
    "TraceSpec",
    "build_corpus",
    "card_facts",
    "corpus_records",
    "describe",
    "finish",
    "format_card",
    "load_corpus",
    "read_family_splits",
    "write_card",
    "write_family_splits",
    "write_sample",
]
