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
from regal_jax.policies.spectral import COORDINATES

__all__ = [
    "Balance",
    "Cut",
    "FeatureConfig",
    "FeatureSet",
    "Network",
    "Order",
    "Parametrisation",
    "PolicyConfig",
    "Transfers",
]

MAX_ACTIONS: Final = 256
"""Most pairs of choices a key: an action is stored in a byte."""


class FeatureSet(enum.StrEnum):
    """How much of a graph the features tell, each set more than the one before."""

    OWN = "own"
    """What an op says of itself. With no rounds of messages a policy then sees no edge at all: the
    structure-blind ablation."""
    PLAIN = "plain"
    """Also its degrees, the bytes that it reads, and how many edges the graph has for each op."""
    STRUCTURAL = "structural"
    """Also where it stands: levels, depths, ranks by level, spectral coordinates, and how parallel the graph
    is."""
    ORDERED = "ordered"
    """Also its place in an order of little memory (`regal_jax.heuristics.peaks.least_peak_balance`). Numbers
    decide between ops that are alike in depth, levels, runtime and sizes, and in nothing else."""

    @property
    def structural(self) -> bool:
        """Is it `STRUCTURAL` or more?"""
        return self in (FeatureSet.STRUCTURAL, FeatureSet.ORDERED)


class Balance(enum.StrEnum):
    """What a cut through a graph leaves every device the same amount of."""

    WORK = "work"
    """Runtime: for the makespan."""
    BYTES = "bytes"
    """What ops put out, and their scratch memory: for peak memory."""


class Cut(enum.StrEnum):
    """Ways to cut a graph into as many parts as there are devices."""

    ALONG = "along"
    """Parts come one after the other and few edges lead from one to the next: for peak memory."""
    ACROSS = "across"
    """Every part has the same share at all times, in up to 32 slices of time: parts run side by side."""
    FINE = "fine"
    """The same in up to 128 slices: better for large graphs of many equal steps, worse for others."""
    PEAKS_ORDER = "peaks-order"
    """Parts come one after the other in the order of little memory, each with as high a peak as the others;
    then single ops move while that makes the peaks lower: `regal_jax.heuristics.peaks`."""
    PEAKS_ALONG = "peaks-along"
    """The same, begun with a cut of the first coordinate of `ALONG` instead of the order."""
    PEAKS_ONE = "peaks-one"
    """The same, begun with everything on a single device."""

    @property
    def spectral(self) -> bool:
        """Is it of a spectral coordinate? The others are placements that need `FeatureSet.ORDERED`."""
        return self in (Cut.ALONG, Cut.ACROSS, Cut.FINE)

    @property
    def place(self) -> str:
        """The feature that says where from 0 to 1 an op is; device ``k`` is around ``(k + 0.5) / D``."""
        return f"{self} 0 share" if self.spectral else f"{self} place"


class Order(enum.StrEnum):
    """An order that priorities may begin in."""

    LEVELS = "levels"
    """First whoever has much work below it by bottom levels, and little before it by top levels, both alike:
    for the makespan. By bottom levels alone a critical path would be far ahead before anything that reads its
    tensors on another device is sent one."""
    MEMORY = "memory"
    """As in the order of little memory; needs `FeatureSet.ORDERED`."""


class Transfers(enum.StrEnum):
    """What the priorities of transfers are drawn from."""

    UNIFORM = "uniform"
    """Of the papers."""
    READER = "reader"
    """As urgent as the most urgent op that reads the tensor, by the means: ours. A transfer of random
    priority comes long before or long after the ops that an order is about, and devices wait for each other,
    or hold what nobody needs yet. Where priorities are uniform, so are transfers."""
    READER_THERE = "reader-there"
    """As urgent as the most urgent op that reads the tensor where it is sent, by where affinities have ops
    most likely. For memory: a copy that is there before its first reader takes room for nothing, which
    happens with a tensor that is read at home first. A little worse for the makespan."""


class Network(enum.StrEnum):
    """What turns features into embeddings of ops."""

    GNN = "gnn"
    """Messages along edges, both ways: REGAL."""
    SEQUENCE = "sequence"
    """A recurrent network over a topological order: graph as sequence, GAS."""


class Parametrisation(enum.StrEnum):
    """What the two choices for a key are."""

    MEAN_VARIANCE = "mean-variance"
    """Of the ICLR text."""
    ALPHA_BETA = "alpha-beta"
    """Of the workshop text."""


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
      second: ``[K2]`` bins of the second choice: variances, or betas. Empty for the default four.
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
        nats for a distance of one bin of means: many bins, 16 say, tell more of an order. Needs structural
        features, means and variances. Our addition; 0 leaves it out.
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
    transfers: Transfers = Transfers.READER

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        for field, low, high in (("num_devices", 1, MAX_DEVICES), ("rounds", 0, 1000), ("width", 1, 4096)):
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
        need = FeatureSet.ORDERED if self.order is Order.MEMORY else FeatureSet.STRUCTURAL
        if self.order_gain and (
            self.features not in (need, FeatureSet.ORDERED)
            or self.parametrisation is not Parametrisation.MEAN_VARIANCE
        ):
            raise ConfigError(
                f"policy: order_gain is {self.order_gain!r}, which needs features '{need}' and means and "
                f"variances for the order '{self.order}'; set those, or 0"
            )

    def _check_bins(self) -> None:
        means = self.parametrisation is Parametrisation.MEAN_VARIANCE
        for field in ("first", "second"):
            bins = getattr(self, field)
            if min(bins) <= 0:
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
        """``P``, alternative placements."""
        return len(self.cuts) if self.spreads else 1

    @property
    def num_keys(self) -> int:
        """``P D + 1`` keys of an op that an action chooses distributions for."""
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
    placed = [cut for cut in cuts if not cut.spectral]
    if placed and features is not FeatureSet.ORDERED:
        raise ConfigError(
            f"{owner}: cuts names '{placed[0]}', which needs features '{FeatureSet.ORDERED}'; they are "
            f"'{features}'"
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
    except (TypeError, ValueError):
        raise ConfigError(f"policy: {field} is {values!r}; give numbers") from None
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"policy: {field} is {values!r}; give finite numbers")
    return numbers
