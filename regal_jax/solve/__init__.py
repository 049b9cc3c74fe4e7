"""Proposal, objective and search joined in one compiled program: users and rewards take the same path.

`regal_jax.solve.propose`, which loads Flax, is imported by those who need it.
"""

from regal_jax.solve.encodings import CHROMOSOME, ENCODINGS, Encoding, encoding_of, timeline_of
from regal_jax.solve.fitness import fitness
from regal_jax.solve.keys import graph_identities, graph_keys, keys_of
from regal_jax.solve.parts import Part, solve_in_parts
from regal_jax.solve.solve import best_individuals, final_population, solve, solve_traced

__all__ = [
    "CHROMOSOME",
    "ENCODINGS",
    "Encoding",
    "Part",
    "best_individuals",
    "encoding_of",
    "final_population",
    "fitness",
    "graph_identities",
    "graph_keys",
    "keys_of",
    "solve",
    "solve_in_parts",
    "solve_traced",
    "timeline_of",
]
