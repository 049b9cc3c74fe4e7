"""Networks that order ops, as rows of a table: trained or untrained, with three ways of decoding."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from regal_jax.errors import ConfigError
from regal_jax.solvers import Solver, TopoformerBeam, TopoformerSamples
from regal_jax.solvers.topoformer import topoformer_of

if TYPE_CHECKING:
    from regal_jax.ordering import Topoformer, TopoformerConfig

__all__ = ["CANDIDATES", "DECODINGS", "NetworkRow", "network_rows"]

CANDIDATES: Final = 16
"""Number of samples, and width of the beam (Gagrani et al. 2022, section 5)."""
DECODINGS: Final = {"greedy": "greedy", "sample": f"best of {CANDIDATES}", "beam": f"beam of {CANDIDATES}"}
"""The paper's ways of decoding and their names in tables."""


@dataclasses.dataclass(frozen=True)
class NetworkRow:
    """A network and the way its orders are decoded.

    Attributes:
      path: Path of a weights file, or ``"default"`` for the weights of the package.
      title: Name in tables.
      decoding: A key of `DECODINGS`.
      trained: Whether to use the weights of the file; otherwise a network of the same config has random ones.
    """

    path: str
    title: str
    decoding: str
    trained: bool

    def network(self) -> "Topoformer":
        """The network.

        Raises:
          ConfigError: There is no such file.
          FormatError: The file is damaged.
        """
        network = topoformer_of(self.path)
        return network if self.trained else _untrained(network.config)

    def solver(self, network: "Topoformer") -> Solver:
        """The solver that makes the plans of this row."""
        if self.decoding == "beam":
            return TopoformerBeam(CANDIDATES, network)
        return TopoformerSamples(CANDIDATES if self.decoding == "sample" else 0, network)


def network_rows(weights: Mapping[str, Any], *, untrained: bool = True) -> dict[str, NetworkRow]:
    """The rows of networks by name, such as ``NAME-greedy`` and ``NAME-untrained-greedy``.

    Args:
      weights: Name -> weights file, or ``"default"``.
      untrained: Add networks of the same shape with random weights.

    Raises:
      ConfigError: Two rows have one name, a name has no letters, or a path is not a string.
    """
    rows: dict[str, NetworkRow] = {}
    for name, path in weights.items():
        if not isinstance(path, str) or not path or not name:
            raise ConfigError(f"weights.{name}: give a file of weights or 'default', got {path!r}")
        for suffix in ("", "-untrained") if untrained else ("",):
            for decoding, how in DECODINGS.items():
                row = f"{name}{suffix}-{decoding}"
                if row in rows:
                    raise ConfigError(f"weights.{name}: there is a row {row!r} already; choose another name")
                title = f"{name}{suffix.replace('-', ', ')}: {how}"
                rows[row] = NetworkRow(path, title, decoding, not suffix)
    return rows


@functools.lru_cache(maxsize=16)
def _untrained(config: "TopoformerConfig") -> "Topoformer":
    from flax import nnx

    from regal_jax.ordering import Topoformer

    return Topoformer(config, rngs=nnx.Rngs(0))
