"""Builds a corpus: real computation graphs, traced from the models of public libraries.

`regal_jax.datasets.load_corpus` reads what `build_corpus` makes. See docs/datasets.md.
"""

from regal_jax.corpus.build import build_corpus
from regal_jax.corpus.card import card_facts, format_card, write_card
from regal_jax.corpus.check import check_corpus
from regal_jax.corpus.family_splits import FAMILY_SPLITS, read_family_splits, write_family_splits
from regal_jax.corpus.finish import describe, finish
from regal_jax.corpus.sample import write_sample
from regal_jax.corpus.sources import SOURCES, Source
from regal_jax.corpus.trace_spec import TraceSpec

__all__ = [
    "FAMILY_SPLITS",
    "SOURCES",
    "Source",
    "TraceSpec",
    "build_corpus",
    "card_facts",
    "check_corpus",
    "describe",
    "finish",
    "format_card",
    "read_family_splits",
    "write_card",
    "write_family_splits",
    "write_sample",
]
