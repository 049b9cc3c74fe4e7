"""The functions that a search calls."""

from collections.abc import Callable
from typing import Any, Protocol

import jax

__all__ = ["FitnessFn", "MoveFn", "SampleFn"]

FitnessFn = Callable[[Any, Any], jax.Array]
"""``(problem, genes [B, Q, ...]) -> [B, Q]`` float32; smaller is better, NaN and ``+inf`` never win."""
SampleFn = Callable[[Any, jax.Array], Any]
"""``(params of one instance, key) -> genes of one individual``."""


class MoveFn(Protocol):
    """A function that makes neighbours. Hashable; equal functions share compiled programs."""

    @property
    def words(self) -> int:
        """Number of random words per neighbour."""
        ...

    def __call__(self, problem: Any, genes: Any, bits: jax.Array) -> Any:
        """One neighbour of each of ``genes [B, C, ...]``, from uniform uint32 ``bits [B, C, words]``."""
        ...
