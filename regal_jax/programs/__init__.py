"""Compiled programs: limits in memory, caches on disk, options of compilation, several devices."""

from regal_jax.programs.devices import on_mesh, put_spread
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
    "on_mesh",
    "options",
    "program",
    "put_spread",
    "region_limit",
    "use_cache",
]
