"""`TopoformerConfig`, and the encoders of the paper's tables by name."""

import dataclasses
import enum
from types import MappingProxyType
from typing import Any, Final

from regal_jax.checks import check_number, shown
from regal_jax.errors import ConfigError
from regal_jax.ordering.relations import Relation
from regal_jax.policies.checks import one_of, whole

__all__ = ["ENCODERS", "Decoder", "Encoder", "TopoformerConfig", "named_encoder"]

_HEADS: Final = 10
"""Of a relation, in the paper."""
_NUM: Final = len(Relation) - 1
_MOST_HEADS: Final = 256


class Encoder(enum.StrEnum):
    """What turns features into embeddings of ops."""

    TOPOFORMER = "topoformer"
    """A head attends within one relation."""
    MLP = "mlp"
    """No op sees another one."""
    TRANSFORMER = "transformer"
    """A head attends to the op itself and to all that have one of the relations that are switched on."""
    GAT = "gat"
    """The same, with the additive attention of Veličković et al. 2018, section 2.1."""


class Decoder(enum.StrEnum):
    """What turns embeddings into orders."""

    PRIORITIES = "priorities"
    """Priorities of all ops at once."""
    AUTOREGRESSIVE = "autoregressive"
    """New priorities before each step."""


@dataclasses.dataclass(frozen=True)
class TopoformerConfig:
    """What a network that orders ops is, apart from its weights. Hashable: static under jit.

    The defaults are the paper's. All encoders have the same layers: attention, then an MLP, each with a
    residual sum and of a LayerNorm. They differ in who attends to whom, and a GAT also in how attention is
    weighed.

    Attributes:
      encoder: An `Encoder` or its name.
      decoder: A `Decoder` or its name.
      layers: Each with attention, unless there are no heads, and an MLP.
      width: ``W``, of embeddings and hidden layers.
      head_width: Of the queries, keys and values of a head. The heads of the autoregressive decoder, which
        share ``width`` among them, have the greatest common divisor of both.
      heads: Seven numbers, of the heads for each `Relation` from 1 to 7; 0 switches it off. Encoders other
        than Topoformer join those that are on to one graph, and all its heads see all of it: the numbers that
        are not 0 must be equal, and are how many heads there are in all. An MLP has none, whatever is given.
      eigenvectors: ``K``, of the Laplacian, behind the eight features of an op.
      alpha: Standard deviation of the priorities of a graph (equation 17).

    Raises:
      ConfigError: A value that cannot be.

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
            set_(self, field, whole("topoformer", field, getattr(self, field), low, high))
        set_(self, "alpha", check_number("topoformer: alpha", self.alpha, 1e-6, 1e6))
        set_(self, "heads", self._checked_heads())

    def _checked_heads(self) -> tuple[int, ...]:
        given = self.heads
        if not isinstance(given, (tuple, list)) or len(given) != _NUM:
            raise ConfigError(
                f"topoformer: heads is {shown(given)}; give {_NUM} whole numbers, one a relation"
            )
        heads = tuple(whole("topoformer", "heads", number, 0, _MOST_HEADS) for number in given)
        if self.encoder is Encoder.MLP:
            return (0,) * _NUM  # What means the same is equal.
        if self.encoder is not Encoder.TOPOFORMER and len(set(heads) - {0}) > 1:
            raise ConfigError(
                f"topoformer: heads is {heads}, but all heads of the encoder '{self.encoder}' see the same "
                "graph; give one number, and 0 for relations that are switched off"
            )
        return heads

    @property
    def groups(self) -> tuple[tuple[tuple[int, ...], int], ...]:
        """``((codes, heads), ...)``: so many heads attend to the ops that have one of these relations."""
        on = {code: number for code, number in enumerate(self.heads, 1) if number}
        if self.encoder is Encoder.TOPOFORMER or not on:
            return tuple(((code,), number) for code, number in on.items())
        return ((tuple(on), max(on.values())),)

    @property
    def attends_to_itself(self) -> bool:
        """Does an op attend to itself, too?"""
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
"""Name -> config, of the encoders of Table 3 and of the "GNN encoder" of Table 4.

The paper says the heads of the full Topoformer only: 10 a relation. The others have 10 a relation, or 10 in
all where there is one graph. ``gat-forward`` reads predecessors, ``gat`` and ``gnn`` predecessors and
successors as one graph, ``gnn`` with the attention of transformers. ``topoformer-edges`` is
"forward+backward": edges of the reduction and other ones, each both ways, without ancestors, descendants and
incomparable ops."""


def named_encoder(name: str, **settings: Any) -> TopoformerConfig:
    """One of `ENCODERS`, with other settings.

    Args:
      name: Of the encoder.
      **settings: Fields of `TopoformerConfig`.

    Raises:
      ConfigError: No such encoder; a value that cannot be.

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
