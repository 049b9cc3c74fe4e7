"""`Ablation`: settings of a policy that only experiments change."""

import dataclasses

from regal_jax.checks import flag
from regal_jax.policies.checks import names_of, numbers, one_of
from regal_jax.policies.choices import FeatureSet, Placement, Transfers

__all__ = ["Ablation"]


@dataclasses.dataclass(frozen=True)
class Ablation:
    """Settings that experiments compare; the defaults are those of the package. See docs/ablations.md.

    Attributes:
      features: A `FeatureSet` or its name.
      placements: `Placement` or their names, each once, instead of those of the prior; ``()`` for none.
      transfers: A `Transfers` or its name, instead of that of the prior.
      placement_scale: Logit scale of the placement priors before training, in nats; 0 leaves them out.
      order_scale: Logit scale of the order prior before training, in nats for a distance of one bin of means;
        0 leaves it out. It needs means and variances.
      priority_bias: Logit by which an untrained policy prefers the widest distributions (the largest
        variance; alpha and beta nearest to 1) for priorities. Without an order prior, a narrow distribution
        around an arbitrary mean is worse than the uniform one, so training would begin with unlearning.
      affinity_bias: The corresponding logit for affinities.
      uniform: For means and variances only: the largest variance stands for beta(1, 1) whatever the mean, so
        that a policy can draw a key exactly as plain BRKGA does.
      share_rounds: Whether all rounds of messages use the same weights, as in the paper.
      residual: Whether a round adds its update to the embedding; our addition.
      norm: Whether a round ends with a LayerNorm; our addition.
      control_messages: Whether control edges carry messages, too. In the paper, an edge is a tensor and its
        consumer; the others are our addition.
      alphas: Bins of the first choice, instead of means: the parametrisation of the workshop text.
      betas: Bins of the second choice, instead of variances. Give both `alphas` and `betas`, or neither.

    Raises:
      ConfigError: A value is invalid.
    """

    features: FeatureSet = FeatureSet.STRUCTURAL
    placements: tuple[Placement, ...] | None = None
    transfers: Transfers | None = None
    placement_scale: float = 0.5
    order_scale: float = 0.05
    priority_bias: float = 0.0
    affinity_bias: float = 0.0
    uniform: bool = False
    share_rounds: bool = False
    residual: bool = True
    norm: bool = True
    control_messages: bool = True
    alphas: tuple[float, ...] = ()
    betas: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "features", one_of("ablation", "features", self.features, FeatureSet))
        if self.placements is not None:
            set_(self, "placements", names_of("ablation", "placements", self.placements, Placement))
        if self.transfers is not None:
            set_(self, "transfers", one_of("ablation", "transfers", self.transfers, Transfers))
        for field in ("placement_scale", "order_scale", "priority_bias", "affinity_bias"):
            (value,) = numbers("ablation", field, [getattr(self, field)])
            set_(self, field, value)
        for field in ("uniform", "share_rounds", "residual", "norm", "control_messages"):
            flag("ablation", field, getattr(self, field))
        for field in ("alphas", "betas"):
            set_(self, field, numbers("ablation", field, getattr(self, field)))
