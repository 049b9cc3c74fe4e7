"""A long search finds what exhaustive search and CP-SAT prove to be the best."""

import pytest

from regal_jax import Cluster, optimize
from regal_jax.datasets import generate

# Filled in when the exact solvers land.
