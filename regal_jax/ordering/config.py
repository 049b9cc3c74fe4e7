"""`TopoformerConfig`, and the encoders of the paper's tables by name."""

import dataclasses
import enum
from types import MappingProxyType
from typing import Any, Final

from regal_jax.checks import check_number, check_setting, shown
from regal_jax.errors import ConfigError
from regal_jax.ordering.relations import Relation
from regal_jax.policies.checks import one_of

__all__ = ["ENCODERS", "Decoder", "Encoder", "TopoformerConfig", "checked_heads", "named_encoder"]

_HEADS: Final = 10
"""Heads of each relation in the paper."""
_NUM: Final = len(Relation) - 1
_MOST_HEADS: Final = 256


class Encoder(enum.StrEnum):
    """The network that turns features into embeddings of ops."""

    TOPOFORMER = "topoformer"
    """Each head attends to the ops of one relation."""
    MLP = "mlp"
    """No attention: each op is embedded on its own."""
    TRANSFORMER = "transformer"
    """Each head attends to the op itself and to all ops that have one of the enabled relations."""
    GAT = "gat"
    """Heads as in a transformer, with the additive attention of Veličković et al. 2018, section 2.1."""


class Decoder(enum.StrEnum):
    """The network that turns embeddings into orders."""

    PRIORITIES = "priorities"
    """Priorities of all ops at once."""
    AUTOREGRESSIVE = "autoregressive"
    """New priorities before each step."""


def checked_heads(owner: str, given: Any) -> tuple[int, ...]:
    """The heads for each relation.

    Args:
      owner: Name of the settings in the error message.
      given: The value to check, of any type.

    Raises:
      ConfigError: These are no seven whole numbers, or one is out of range.
    """
    if not isinstance(given, (tuple, list)) or len(given) != _NUM:
        raise ConfigError(f"{owner}: heads is {shown(given)}; give {_NUM} whole numbers, one per relation")
    return tuple(check_setting(owner, "heads", number, 0, _MOST_HEADS) for number in given)


@dataclasses.dataclass(frozen=True)
class TopoformerConfig:
    """Architecture of a network that orders ops. Hashable: static under jit.

    The defaults are the paper's. All encoders have the same layers: attention, then an MLP, each applied to a
    LayerNorm and added to its input. They differ in which ops attend to which; a GAT also differs in how it
    computes the attention weights.

    Attributes:
      encoder: An `Encoder` or its name.
      decoder: A `Decoder` or its name.
      layers: Number of layers. Each has attention, unless there are no heads, and an MLP.
      width: ``W``, the width of embeddings and hidden layers.
      head_width: Width of the queries, keys and values of a head. The heads of the autoregressive decoder,
        which divide ``width`` among them, have the greatest common divisor of both.
      heads: Seven numbers: the heads for each `Relation` from 1 to 7; 0 disables it. Encoders other than
        Topoformer merge the enabled relations into one graph, and every head attends to all of it: the
        nonzero numbers must be equal, and are the total number of heads. An MLP ignores them and has none.
      eigenvectors: ``K``, the number of Laplacian eigenvectors that follow the eight features of an op.
      alpha: Standard deviation of the priorities of a graph (equation 17).

    Raises:
      ConfigError: A value is not allowed.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.
    """

    encoder: Encoder = Encoder.TOPOFORMER
    decoder: Decoder = Decoder.PRIORITIES
    layers: int = 4
    width: int = 256
    head_width: int = 64
    heads: tuple[int, ...] = (_HEADS,) * _NUM
    eigenvectors: int = 20
    alpha: float = 5.0

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "encoder", one_of("topoformer", "encoder", self.encoder, Encoder))
        set_(self, "decoder", one_of("topoformer", "decoder", self.decoder, Decoder))
        ranges = (("layers", 0, 100), ("width", 1, 4096), ("head_width", 1, 4096), ("eigenvectors", 0, 1000))
        for field, low, high in ranges:
            set_(self, field, check_setting("topoformer", field, getattr(self, field), low, high))
        set_(self, "alpha", check_number("topoformer: alpha", self.alpha, 1e-6, 1e6))
        set_(self, "heads", self._checked_heads())

    def _checked_heads(self) -> tuple[int, ...]:
        heads = checked_heads("topoformer", self.heads)
        if self.encoder is Encoder.MLP:
            return (0,) * _NUM  # Configs that mean the same are equal.
        if self.encoder is not Encoder.TOPOFORMER and len(set(heads) - {0}) > 1:
            raise ConfigError(
                f"topoformer: heads is {heads}, but all heads of the encoder '{self.encoder}' see the same "
                "graph; give one number, and 0 for relations that are switched off"
            )
        return heads

    @property
    def groups(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """``((codes, heads), ...)``: relations, and the number of heads that attend to ops in any of them."""
        on = {code: number for code, number in enumerate(self.heads, 1) if number}
        if self.encoder is Encoder.TOPOFORMER or not on:
            return tuple(((code,), number) for code, number in on.items())
        return ((tuple(on), max(on.values())),)

    @property
    def attends_to_itself(self) -> bool:
        """Whether an op also attends to itself."""
        return self.encoder in (Encoder.TRANSFORMER, Encoder.GAT)


_EDGES: Final = (_HEADS, _HEADS, 0, _HEADS, _HEADS, 0, 0)
_FORWARD: Final = (_HEADS, _HEADS, 0, 0, 0, 0, 0)

ENCODERS: Final = MappingProxyType({
    "mlp": TopoformerConfig(Encoder.MLP),
    "transformer": TopoformerConfig(Encoder.TRANSFORMER),
    "gat-forward": TopoformerConfig(Encoder.GAT, heads=_FORWARD),
    "gat": TopoformerConfig(Encoder.GAT, heads=_EDGES),
    "gnn": TopoformerConfig(Encoder.TRANSFORMER, heads=_EDGES),
    "topoformer-edges": TopoformerConfig(heads=_EDGES),
    "topoformer": TopoformerConfig(),
})  # fmt: skip
"""Name -> config, for the encoders of Table 3 and the "GNN encoder" of Table 4.

The paper gives the heads only for the full Topoformer: 10 per relation. The others have 10 per relation, or
10 in total where there is one graph. ``gat-forward`` reads predecessors; ``gat`` and ``gnn`` read
predecessors and successors as one graph, ``gnn`` with the attention of transformers. ``topoformer-edges`` is
"forward+backward": edges of the reduction and other edges, each in both directions, without ancestors,
descendants and incomparable ops."""


def named_encoder(name: str, **settings: Any) -> TopoformerConfig:
    """One of `ENCODERS`, with some settings replaced.

    Args:
      name: Name of the encoder.
      **settings: Fields of `TopoformerConfig` to replace.

    Raises:
      ConfigError: There is no such encoder, or a value is not allowed.

    Examples:
      >>> from regal_jax.ordering import named_encoder
      >>> named_encoder("topoformer-edges", layers=2).heads
      (10, 10, 0, 10, 10, 0, 0)
    """
    if not isinstance(name, str) or name not in ENCODERS:
        raise ConfigError(f"topoformer: encoder {shown(name)}; use one of {', '.join(ENCODERS)}")
    unknown = settings.keys() - {field.name for field in dataclasses.fields(TopoformerConfig)}
    if unknown:
        raise ConfigError(f"topoformer: setting {min(unknown)!r}; use those of TopoformerConfig")
    return dataclasses.replace(ENCODERS[name], **settings)
