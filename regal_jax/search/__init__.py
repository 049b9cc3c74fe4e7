"""Search with random keys, independent of graphs, for batches of instances in one compiled program."""

from regal_jax.search.brkga import BrkgaSearcher, brkga
from regal_jax.search.config import BiasFunction, BrkgaConfig
from regal_jax.search.draws import TransformedProposal, UniformProposal, expand, random_keys
from regal_jax.search.functions import FitnessFn, MoveFn, SampleFn
from regal_jax.search.local import AnnealingConfig, AnnealingParams, AnnealingSearcher, anneal
from regal_jax.search.loop import (
    Incumbent,
    Inputs,
    Searcher,
    WarmStart,
    improve,
    run_chunk,
    run_traced,
    start,
)
from regal_jax.search.run import Progress, SearchResult, run
from regal_jax.search.stopping import Limits, Status, Stopping, status_of

__all__ = [
    "AnnealingConfig",
    "AnnealingParams",
    "AnnealingSearcher",
    "BiasFunction",
    "BrkgaConfig",
    "BrkgaSearcher",
    "FitnessFn",
    "Incumbent",
    "Inputs",
    "Limits",
    "MoveFn",
    "Progress",
    "SampleFn",
    "SearchResult",
    "Searcher",
    "Status",
    "Stopping",
    "TransformedProposal",
    "UniformProposal",
    "WarmStart",
    "anneal",
    "brkga",
    "expand",
    "improve",
    "random_keys",
    "run",
    "run_chunk",
    "run_traced",
    "start",
    "status_of",
]
