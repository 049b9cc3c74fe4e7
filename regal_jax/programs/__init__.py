"""Compiled programs: how many are kept in memory, what is kept on disk, and how they are compiled."""

from regal_jax.programs.kept import Program, clear, count, given_up, options, program
from regal_jax.programs.regions import mapped_regions, region_limit
from regal_jax.programs.stored import use_cache
from regal_jax.programs.traced import call_needs, custom_call

__all__ = [
    "Program",
    "call_needs",
    "clear",
    "count",
    "custom_call",
    "given_up",
    "mapped_regions",
    "options",
    "program",
    "region_limit",
    "use_cache",
]
