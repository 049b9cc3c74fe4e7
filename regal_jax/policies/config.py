"""`PolicyConfig` and the quantities derived from it, checked at construction."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

from regal_jax.checks import check_setting, flag
from regal_jax.errors import ConfigError
from regal_jax.graph.cluster import MAX_DEVICES
from regal_jax.plan import Objective
from regal_jax.policies.ablation import Ablation
from regal_jax.policies.checks import names_of, numbers, one_of
from regal_jax.policies.choices import Balance, Cut, FeatureSet, Network, Placement, Transfers
from regal_jax.policies.priors import MAKERS, Maker
from regal_jax.policies.spectral import COORDINATES

__all__ = ["FeatureConfig", "PolicyConfig"]

MAX_ACTIONS: Final = 256
"""Most pairs of choices per key, since an action is stored in a byte."""

_MEANS: Final = tuple(round(0.02 + 0.03 * step, 2) for step in range(33))
"""Means from 0.02 to 0.98; for a reach of 4, steps of a quarter of a place."""
_VARIANCES: Final = (0.0125, 0.0005)
"""Variances for affinities, and for priorities; with a reach of 4 the second gives 0.2 places."""
_REACH: Final = 4
_PRIORS: Final = {Objective.MAKESPAN: "schedule", Objective.PEAK_MEMORY: "memory"}
_ALWAYS: Final = (Cut.ALONG, Cut.ACROSS)


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """The features that `make_features` computes.

    Attributes:
      num_devices: Number of devices ``D``.
      features: A `FeatureSet` or its name.
      balance: A `Balance` or its name: the amount of which shares are computed.
      cuts: `Cut` members or their names: spectral coordinates in addition to ``along`` and ``across``, which
        are part of all structural features.
      controls: Whether control edges are edges of the multigraph, too.

    Raises:
      ConfigError: A value is invalid.
    """

    num_devices: int = 2
    features: FeatureSet = FeatureSet.STRUCTURAL
    balance: Balance = Balance.WORK
    cuts: tuple[Cut, ...] = ()
    controls: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        flag("features", "controls", self.controls)
        set_(self, "num_devices", check_setting("features", "num_devices", self.num_devices, 1, MAX_DEVICES))
        set_(self, "features", one_of("features", "features", self.features, FeatureSet))
        set_(self, "balance", one_of("features", "balance", self.balance, Balance))
        cuts = names_of("features", "cuts", self.cuts, Cut)
        # Put cuts into one order without those that are always present, so that equal configs compare equal.
        set_(self, "cuts", tuple(cut for cut in Cut if cut in cuts and cut not in _ALWAYS))

    @property
    def ways(self) -> tuple[Cut, ...]:
        """The cuts among the features."""
        return (*_ALWAYS, *self.cuts) if self.features is FeatureSet.STRUCTURAL else ()

    @functools.cached_property
    def node_names(self) -> tuple[str, ...]:
        """Names of the ``F`` features of an op, in their order."""
        devices = range(self.num_devices)
        if self.features is FeatureSet.RAW:
            return tuple(f"log {what}" for what in self.amounts)
        names = [f"{form} {what}" for form in ("log", "standard") for what in self.amounts]
        names += ["outputs", "keep", "pinned", "colocated", "graph size"]
        names += [f"{what} {k}" for what in ("relative runtime", "allowed", "pressure") for k in devices]
        if self.features is not FeatureSet.OWN:
            names += ["inputs", "readers", "control inputs", "control outputs", "edges per op"]
        if self.features is FeatureSet.STRUCTURAL:
            names += ["top level", "bottom level", "slack", "depth", "height"]
            names += ["top rank", "bottom rank", "top share", "bottom share", "parallelism"]
        for way in self.ways:
            for c in range(COORDINATES):
                names += [f"{way} {c}", f"{way} {c} rank", f"{way} {c} share"]
        return tuple(names)

    @functools.cached_property
    def edge_names(self) -> tuple[str, ...]:
        """Names of the ``G`` features of an edge, in their order."""
        if self.features is FeatureSet.RAW:
            return ("log bytes", "control") if self.controls else ("log bytes",)
        names = ("log bytes", "standard bytes", "readers", "keep", "control", "transfer")
        return (*names, "slack") if self.features is FeatureSet.STRUCTURAL else names

    @property
    def amounts(self) -> tuple[str, ...]:
        """The quantities of an op, which have one feature each in `FeatureSet.RAW` and two elsewhere."""
        own = ("runtime", "temp bytes", "output bytes")
        return own if self.features in (FeatureSet.RAW, FeatureSet.OWN) else (*own, "input bytes")


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """Everything about a policy except its weights. Hashable, so that it can be static under jit.

    The defaults are those of the policy in the package for the objective.

    Attributes:
      num_devices: Number of devices ``D``, at least 1.
      objective: An `Objective` or its name. It decides the amount that ranks and cuts divide evenly: work for
        the makespan, bytes for peak memory.
      prior: Name of a maker (`regal_jax.policies.priors.MAKERS`): ``"none"``, ``"levels"``, ``"schedule"`` or
        ``"memory"``. ``None`` for ``"schedule"``, and ``"memory"`` for peak memory. Every guided individual
        uses one of the alternative placements of the prior.
      network: A `Network` or its name.
      means: ``[K1]`` bins of the first choice, in (0, 1).
      variances: ``[K2]`` bins of the second choice, of which 0 is the mean itself.
      rounds: Rounds of messages; 0 uses no edge. Only the `Network.GNN` has rounds.
      width: Width ``W`` of every embedding and hidden layer.
      guided_share: Share of individuals that a search draws from the policy's distributions, in (0, 1]; the
        others are uniform. The paper uses 1. With a smaller share (our addition), a policy that is wrong
        about a graph costs little, since selection prefers fit individuals.
      reach: If not 0, every op has its own place in the order prior, and the distribution of its priority
        moves it from there: a mean of 0.5 by nothing, means of 0 and 1 by ``reach`` places back and forward,
        and a variance accordingly. The effect of an action is then the same in graphs of all sizes, whereas
        means and variances of keys move an op past more ops in a larger graph. Needs an order prior. ``None``
        stands for 4 with an order prior and 0 without one. Our addition.
      ablation: Settings that only experiments change.

    Raises:
      ConfigError: A value is invalid.
    """

    num_devices: int = 2
    objective: Objective = Objective.MAKESPAN
    prior: str | None = None
    network: Network = Network.GNN
    means: tuple[float, ...] = _MEANS
    variances: tuple[float, ...] = _VARIANCES
    rounds: int = 2
    width: int = 32
    guided_share: float = 0.5
    reach: int | None = None
    ablation: Ablation = dataclasses.field(default_factory=Ablation)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for field, low, high in (("num_devices", 1, MAX_DEVICES), ("rounds", 0, 1000), ("width", 1, 4096)):
            set_(self, field, check_setting("policy", field, getattr(self, field), low, high))
        set_(self, "objective", one_of("policy", "objective", self.objective, Objective))
        set_(self, "network", one_of("policy", "network", self.network, Network))
        if self.prior is None:
            set_(self, "prior", _PRIORS[self.objective])
        if not isinstance(self.prior, str) or self.prior not in MAKERS:
            raise ConfigError(f"policy: prior is {self.prior!r}; use one of {', '.join(MAKERS)}")
        if not isinstance(self.ablation, Ablation):
            raise ConfigError(f"policy: ablation is {self.ablation!r}; give an Ablation")
        (share,) = numbers("policy", "guided_share", [self.guided_share])
        if not 1 / 65536 <= share <= 1:
            raise ConfigError(f"policy: guided_share is {share!r}; give a number from 2**-16 to 1")
        set_(self, "guided_share", share)
        for field in ("means", "variances"):
            set_(self, field, numbers("policy", field, getattr(self, field)))
        self._check_bins()
        ordered = self.maker.has_order and bool(self.ablation.order_scale)
        reach = (_REACH if ordered else 0) if self.reach is None else self.reach
        set_(self, "reach", check_setting("policy", "reach", reach, 0, 2**15))
        self._check_prior()

    def _check_bins(self) -> None:
        a = self.ablation
        if bool(a.alphas) != bool(a.betas):
            raise ConfigError("ablation: give both alphas and betas, or neither")
        fields = ("alphas", "betas") if a.alphas else ("means", "variances")
        for field, bins in zip(fields, self.bins, strict=True):
            owner = "ablation" if a.alphas else "policy"
            if not bins:
                raise ConfigError(f"{owner}: {field} has no bin; give at least one")
            if min(bins) < 0 or (min(bins) == 0 and field != "variances"):
                raise ConfigError(f"{owner}: {field} has a bin {min(bins)!r}; give positive numbers")
            if len(set(bins)) < len(bins):
                raise ConfigError(f"{owner}: {field} has a bin twice in {bins}; give each once")
        if not a.alphas and max(self.means) >= 1:
            raise ConfigError(f"policy: means has a bin {max(self.means)!r}; give numbers between 0 and 1")
        if self.num_actions > MAX_ACTIONS:
            first, second = self.bins
            raise ConfigError(
                f"policy: {len(first)} x {len(second)} bins are more than {MAX_ACTIONS} actions; give fewer"
            )

    def _check_prior(self) -> None:
        maker, a = self.maker, self.ablation
        can = (*maker.placements, *maker.others)
        for placement in self.placements:
            if placement not in can:
                raise ConfigError(
                    f"ablation: placements names '{placement}', which the prior '{self.prior}' does not "
                    f"make; it makes {', '.join(can) or 'none'}"
                )
        if self.orders and a.alphas:
            raise ConfigError(
                f"policy: the order of the prior '{self.prior}' needs means and variances; set "
                "ablation.order_scale to 0, or give no alphas and betas"
            )
        if self.reach and not self.orders:
            raise ConfigError(
                f"policy: reach is {self.reach}, which needs an order; take a prior with one and a logit "
                "scale other than 0, or set reach to 0"
            )
        if self.transfers is Transfers.MIDWAY and a.alphas:
            raise ConfigError(
                "ablation: transfers is 'midway', which needs means and variances; use 'reader'"
            )
        if a.transfers is Transfers.SCHEDULE and not (maker.has_transfers and self.reach):
            raise ConfigError(
                "ablation: transfers is 'schedule', which needs the prior 'schedule' and a reach; set those, "
                "or use 'midway'"
            )

    @property
    def maker(self) -> Maker:
        """The maker of the prior."""
        return MAKERS[str(self.prior)]

    @property
    def bins(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Bins of the first and of the second choice: means and variances, or alphas and betas."""
        a = self.ablation
        return (a.alphas, a.betas) if a.alphas else (self.means, self.variances)

    @property
    def num_actions(self) -> int:
        """Number of actions, ``K = K1 * K2``."""
        first, second = self.bins
        return len(first) * len(second)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """The placement priors; none for a single device."""
        if self.num_devices == 1 or not self.ablation.placement_scale:
            return ()
        given = self.ablation.placements
        return self.maker.placements if given is None else given

    @property
    def num_placements(self) -> int:
        """Number of alternative placements ``A``; 1 without placement priors."""
        return max(len(self.placements), 1)

    @property
    def orders(self) -> bool:
        """Whether there is an order prior."""
        return self.maker.has_order and bool(self.ablation.order_scale)

    @property
    def transfers(self) -> Transfers:
        """Distributions from which transfers are drawn."""
        if self.ablation.transfers is not None:
            return self.ablation.transfers
        if self.maker.transfers is Transfers.SCHEDULE and not self.reach:
            return Transfers.MIDWAY
        return self.maker.transfers

    @property
    def num_keys(self) -> int:
        """Number of keys of an op for which an action chooses distributions, ``A D + 1``."""
        return self.num_placements * self.num_devices + 1

    @functools.cached_property
    def feature_config(self) -> FeatureConfig:
        """The features that this policy needs."""
        balance = Balance.BYTES if self.objective is Objective.PEAK_MEMORY else Balance.WORK
        a = self.ablation
        return FeatureConfig(
            self.num_devices, a.features, balance, cuts_of(self.placements), a.control_messages
        )

    @property
    def prior_shapes(self) -> dict[str, tuple[int, ...]]:
        """Fields of the `Prior` that are not ``None``, with their shapes after ``[B, N]``."""
        shapes: dict[str, tuple[int, ...]] = {}
        if self.maker.has_order:
            shapes["order"] = ()
        if self.placements:
            shapes["placements"] = (len(self.placements),)
        if self.maker.has_transfers:
            shapes["transfers"] = (self.num_devices,)
        return shapes

    @functools.cached_property
    def input_names(self) -> tuple[str, ...]:
        """Names of the network's inputs for an op: its features, then its prior."""
        told = self.maker.columns(self.num_devices, self.placements)
        return (*self.feature_config.node_names, *told)


def cuts_of(placements: Sequence[Placement]) -> tuple[Cut, ...]:
    """The coordinates along which placements cut."""
    return tuple(placement.cut for placement in placements if placement.cut is not None)
