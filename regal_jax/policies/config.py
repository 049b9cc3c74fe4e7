"""`PolicyConfig` and `FeatureConfig`: what a policy is, checked when it is written down."""

import dataclasses
import enum
import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from regal_jax.errors import ConfigError
from regal_jax.graph.cluster import MAX_DEVICES
from regal_jax.policies.choices import (
    Balance,
    Cut,
    FeatureSet,
    Network,
    Order,
    Parametrisation,
    Transfers,
)
from regal_jax.policies.spectral import COORDINATES

__all__ = ["FeatureConfig", "PolicyConfig"]

MAX_ACTIONS: Final = 256
"""Most pairs of choices a key: an action is stored in a byte."""


_BINS: Final = {
    Parametrisation.MEAN_VARIANCE: ((0.2, 0.4, 0.6, 0.8), (1 / 12, 1 / 40, 1 / 160, 1 / 1000)),
    Parametrisation.ALPHA_BETA: ((1.0, 2.0, 5.0, 20.0), (1.0, 2.0, 5.0, 20.0)),
}
"""The papers print no bins. The means are spread evenly; the variances fall from that of the uniform
distribution to what moves a key by a thirtieth."""

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """Which features `make_features` computes.

    Attributes:
      num_devices: ``D``.
      features: A `FeatureSet` or its name.
      balance: A `Balance` or its name: the amount that shares are of.
      cuts: `Cut` or their names: what else is told of cuts, beyond ``along`` and ``across``, which are among
        all structural features.

    Raises:
      ConfigError: A value that cannot be.
    """

    num_devices: int = 2
    features: FeatureSet = FeatureSet.STRUCTURAL
    balance: Balance = Balance.WORK
    cuts: tuple[Cut, ...] = ()

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "num_devices", _whole("features", "num_devices", self.num_devices, 1, MAX_DEVICES))
        set_(self, "features", _one_of("features", "features", self.features, FeatureSet))
        set_(self, "balance", _one_of("features", "balance", self.balance, Balance))
        cuts = _cuts("features", self.cuts)
        _check_cuts("features", cuts, self.features)
        # As all structural features have them, in one order: what tells the same is equal.
        set_(self, "cuts", tuple(cut for cut in Cut if cut in cuts and cut not in (Cut.ALONG, Cut.ACROSS)))

    @property
    def ways(self) -> tuple[Cut, ...]:
        """The cuts that features tell of."""
        if not self.features.structural:
            return ()
        return tuple(cut for cut in Cut if cut in (Cut.ALONG, Cut.ACROSS, *self.cuts))

    @functools.cached_property
    def node_names(self) -> tuple[str, ...]:
        """Names of the ``F`` features of an op, in their order."""
        devices = range(self.num_devices)
        names = [f"{form} {what}" for form in ("log", "standard") for what in self.amounts]
        names += ["outputs", "keep", "pinned", "colocated", "graph size"]
        names += [f"{what} {k}" for what in ("relative runtime", "allowed", "pressure") for k in devices]
        if self.features is not FeatureSet.OWN:
            names += ["inputs", "readers", "control inputs", "control outputs", "edges per op"]
        if self.features.structural:
            names += ["top level", "bottom level", "slack", "depth", "height"]
            names += ["top rank", "bottom rank", "top share", "bottom share", "parallelism"]
        for way in self.ways:
            if way.spectral:
                for c in range(COORDINATES):
                    names += [f"{way} {c}", f"{way} {c} rank", f"{way} {c} share"]
        if self.features is FeatureSet.ORDERED:
            names.append("memory order")
        if self.features is FeatureSet.SCHEDULED:
            names += ["schedule order", *[f"schedule sent {k}" for k in devices]]
        names += [way.place for way in self.ways if not way.spectral]
        return tuple(names)

    @functools.cached_property
    def edge_names(self) -> tuple[str, ...]:
        """Names of the ``G`` features of an edge, in their order."""
        names = ("log bytes", "standard bytes", "readers", "keep", "control", "transfer")
        return (*names, "slack") if self.features.structural else names

    @property
    def amounts(self) -> tuple[str, ...]:
        """The quantities of an op that are told in two forms each."""
        own = ("runtime", "temp bytes", "output bytes")
        return own if self.features is FeatureSet.OWN else (*own, "input bytes")


@dataclasses.dataclass(frozen=True)
class PolicyConfig:
    """What a policy is, apart from its weights. Hashable: static under jit.

    Attributes:
      num_devices: ``D``, at least 1.
      network: A `Network` or its name.
      parametrisation: A `Parametrisation` or its name.
      first: ``[K1]`` bins of the first choice: means in (0, 1), or alphas. Empty for the default four.
      second: ``[K2]`` bins of the second choice: variances, of which 0 is the mean itself, or betas. Empty
        for the default four.
      rounds: Rounds of messages; 0 uses no edge. Only the `Network.GNN` has rounds.
      width: ``W``, of every embedding and hidden layer.
      features: A `FeatureSet` or its name.
      balance: A `Balance` or its name: what ranks and cuts share out evenly, ``"bytes"`` for peak memory.
      uniform: Of means and variances only: the largest variance stands for beta(1, 1) whatever the mean,
        so that a policy can leave a key exactly as plain BRKGA draws it. Our addition; without it every
        pair is what the ICLR text says.
      guided_share: Of the individuals that a search draws, the share that is drawn from the policy's
        distributions, in (0, 1]; the others are uniform. Our addition, 1 is the paper's: with less, a policy
        that is wrong about a graph costs little, since selection prefers whoever is fit.
      share_rounds: Do all rounds use the same weights?
      initial_bias: Logit by which an untrained policy prefers the widest distributions (the largest
        variance; alpha and beta nearest to 1) for priorities. A narrow distribution around an arbitrary mean
        is worse than the uniform one, so training would begin with unlearning.
      initial_affinity_bias: The same for affinities, below zero: equal devices can be exchanged, so that at
        first no affinity is better than another, and placements matter little if every action leaves them to
        chance. (A search with an arbitrary placement in its proposal is hardly worse than the uniform one.)
      cuts: `Cut` or their names, each once: as many alternative placements, of which every guided individual
        takes one. Our addition: a placement that keeps together what belongs together and gives every device
        the same work breaks the tie between devices at once, while from nothing it takes training hundreds
        of steps or for ever; and which cut serves a graph best, a search finds out by itself. Needs
        structural features and more than one device; with none of them there is one placement, of which an
        untrained policy knows nothing.
      cut_gain: How strongly an untrained policy spreads the ops over the devices by a cut, in nats; 0 does
        without cuts. The gain is a weight like any other.
      order: An `Order` or its name, for ``order_gain``.
      order_gain: How strongly an untrained policy gives every op the priority of its place in ``order``, in
        nats for a distance of one bin of means: many bins, 16 say, tell more of an order. Needs means and
        variances, and features that tell of the order. Our addition; 0 leaves it out.
      reach: If not 0, every op has its own place in ``order``, however many there are, and the distribution
        of its priority says how it moves from there: a mean of 0.5 not at all, 0 and 1 by ``reach`` places
        back and forward, a variance accordingly. What an action does is then the same in graphs of all sizes,
        while means and variances of keys move an op past more others the more there are. Needs
        ``order_gain``, which then prefers to stay. Our addition.
      transfers: A `Transfers` or its name: what the priorities of transfers are drawn from.

    Raises:
      ConfigError: A value that cannot be.
    """

    num_devices: int = 2
    network: Network = Network.GNN
    parametrisation: Parametrisation = Parametrisation.MEAN_VARIANCE
    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()
    rounds: int = 4
    width: int = 32
    features: FeatureSet = FeatureSet.STRUCTURAL
    balance: Balance = Balance.WORK
    uniform: bool = True
    guided_share: float = 0.5
    share_rounds: bool = False
    initial_bias: float = 1.0
    initial_affinity_bias: float = -1.0
    cuts: tuple[Cut, ...] = (Cut.ACROSS,)
    cut_gain: float = 3.0
    order: Order = Order.LEVELS
    order_gain: float = 0.0
    reach: int = 0
    transfers: Transfers = Transfers.READER

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for field, low, high in (
            ("num_devices", 1, MAX_DEVICES),
            ("rounds", 0, 1000),
            ("width", 1, 4096),
            ("reach", 0, 2**15),
        ):
            set_(self, field, _whole("policy", field, getattr(self, field), low, high))
        for field, kind in (
            ("network", Network), ("parametrisation", Parametrisation), ("features", FeatureSet),
            ("balance", Balance), ("order", Order), ("transfers", Transfers),
        ):  # fmt: skip
            set_(self, field, _one_of("policy", field, getattr(self, field), kind))
        for field in ("uniform", "share_rounds"):
            _check_flag("policy", field, getattr(self, field))
        set_(self, "cuts", _cuts("policy", self.cuts))
        for field in ("initial_bias", "initial_affinity_bias", "cut_gain", "order_gain"):
            (bias,) = _numbers(field, [getattr(self, field)])
            set_(self, field, bias)
        (share,) = _numbers("guided_share", [self.guided_share])
        if not 1 / 65536 <= share <= 1:
            raise ConfigError(f"policy: guided_share is {share!r}; give a number from 2**-16 to 1")
        set_(self, "guided_share", share)
        for i, field in enumerate(("first", "second")):
            given = _numbers(field, getattr(self, field))
            set_(self, field, given or _BINS[self.parametrisation][i])
        self._check_bins()
        if self.spreads:
            _check_cuts("policy", self.cuts, self.features)
        means = self.parametrisation is Parametrisation.MEAN_VARIANCE
        if self.order_gain and not (self.features.tells(self.order.needs) and means):
            raise ConfigError(
                f"policy: order_gain is {self.order_gain!r}, which needs features '{self.order.needs}' and "
                f"means and variances for the order '{self.order}'; set those, or 0"
            )
        if self.reach and not self.order_gain:
            raise ConfigError(f"policy: reach is {self.reach}, which needs an order; set order_gain above 0")
        if self.transfers is Transfers.MIDWAY and not means:
            raise ConfigError("policy: transfers is 'midway', which needs means and variances; use 'reader'")
        if self.transfers is Transfers.SCHEDULE and not (self.order is Order.SCHEDULE and self.reach):
            raise ConfigError(
                "policy: transfers is 'schedule', which needs the order 'schedule' and a reach; set those, "
                "or use 'midway'"
            )

    def _check_bins(self) -> None:
        means = self.parametrisation is Parametrisation.MEAN_VARIANCE
        for field in ("first", "second"):
            bins = getattr(self, field)
            if min(bins) < 0 or (min(bins) == 0 and not (means and field == "second")):
                raise ConfigError(f"policy: {field} has a bin {min(bins)!r}; give positive numbers")
            if len(set(bins)) < len(bins):
                raise ConfigError(f"policy: {field} has a bin twice in {bins}; give each once")
        if means and max(self.first) >= 1:
            raise ConfigError(f"policy: first has a mean {max(self.first)!r}; give means between 0 and 1")
        if len(self.first) * len(self.second) > MAX_ACTIONS:
            raise ConfigError(
                f"policy: {len(self.first)} x {len(self.second)} bins are more than {MAX_ACTIONS} actions; "
                "give fewer"
            )

    @property
    def num_actions(self) -> int:
        """``K = K1 * K2``."""
        return len(self.first) * len(self.second)

    @property
    def spreads(self) -> bool:
        """Does the policy know cuts as placements?"""
        return bool(self.features.structural and self.num_devices > 1 and self.cuts and self.cut_gain)

    @property
    def placements(self) -> int:
        """``A``, alternative placements."""
        return len(self.cuts) if self.spreads else 1

    @property
    def num_keys(self) -> int:
        """``A D + 1`` keys of an op that an action chooses distributions for."""
        return self.placements * self.num_devices + 1

    @functools.cached_property
    def feature_config(self) -> FeatureConfig:
        """What `make_features` must compute for this policy."""
        return FeatureConfig(self.num_devices, self.features, self.balance, self.cuts if self.spreads else ())


def _cuts(owner: str, cuts: Any) -> tuple[Cut, ...]:
    if not isinstance(cuts, (tuple, list)):
        raise ConfigError(f"{owner}: cuts is {cuts!r}; give a list that names each once")
    found = tuple(_one_of(owner, "cuts", cut, Cut) for cut in cuts)
    if len(set(found)) < len(found):
        raise ConfigError(f"{owner}: cuts is {cuts!r}; give a list that names each once")
    return found


def _check_cuts(owner: str, cuts: Sequence[Cut], features: FeatureSet) -> None:
    for cut in cuts:
        if not features.tells(cut.needs):
            raise ConfigError(
                f"{owner}: cuts names '{cut}', which needs features '{cut.needs}'; they are '{features}'"
            )


def _whole(owner: str, field: str, value: Any, low: int, high: int) -> int:
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ConfigError(f"{owner}: {field} is {value!r}; give a whole number from {low} to {high}")
    return number


def _check_flag(owner: str, field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{owner}: {field} is {value!r}; give true or false")


def _one_of(owner: str, field: str, value: Any, kind: type[_Choice]) -> _Choice:
    if value not in kind.__members__.values():
        raise ConfigError(f"{owner}: {field} is {value!r}; use one of {', '.join(kind)}")
    return kind(value)


def _numbers(field: str, values: Sequence[Any]) -> tuple[float, ...]:
    try:
        if isinstance(values, (str, bytes)) or any(isinstance(value, (bool, str)) for value in values):
            raise TypeError
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"policy: {field} is {values!r}; give numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"policy: {field} is {values!r}; give finite numbers")
    return numbers
