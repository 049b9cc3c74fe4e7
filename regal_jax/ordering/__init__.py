"""Orders of ops on one device, for the least peak memory (Gagrani et al., NeurIPS 2022)."""

from typing import TYPE_CHECKING

from regal_jax.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.ordering.autoregressive import AutoregressiveDecoder
    from regal_jax.ordering.beam import Found, approximate_dp, beam_search
    from regal_jax.ordering.decode import greedy, log_prob, peaks, sample

__all__ = [
    "AutoregressiveDecoder",
    "Found",
    "approximate_dp",
    "beam_search",
    "greedy",
    "log_prob",
    "peaks",
    "sample",
]

# The networks need Flax, which takes as long to load as JAX.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "autoregressive": ("AutoregressiveDecoder",),
        "beam": (
            "Found",
            "approximate_dp",
            "beam_search",
        ),
        "decode": (
            "greedy",
            "log_prob",
            "peaks",
            "sample",
        ),
    },
)
