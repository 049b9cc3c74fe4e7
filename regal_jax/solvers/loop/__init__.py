"""The loop that runs all solvers: warm starts, turns, batches, stopping and results."""

from regal_jax.solvers.loop.call import Call
from regal_jax.solvers.loop.earlier import Earlier, WarmStarts, share_earlier
from regal_jax.solvers.loop.members import Members
from regal_jax.solvers.loop.settings import Settings, check_pairs, each, one_seed
from regal_jax.solvers.loop.watch import Improvement, Watch

__all__ = [
    "Call",
    "Earlier",
    "Improvement",
    "Members",
    "Settings",
    "WarmStarts",
    "Watch",
    "check_pairs",
    "each",
    "one_seed",
    "share_earlier",
]
