"""`Prior`: what a policy begins with, and the makers of it by name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import jax
import numpy as np

from regal_jax.graph import Cluster
from regal_jax.heuristics.list_scheduling import quick_schedule
from regal_jax.heuristics.peaks import least_peak_balance
from regal_jax.heuristics.placements import single_device_placement
from regal_jax.policies.choices import Cut, Placement, Transfers
from regal_jax.policies.measured import Measured

__all__ = ["MAKERS", "Made", "Maker", "Prior"]

_TRIES: Final = 80
"""Moves that lower the peaks, from each start; see docs/ablations.md."""
_BLOCK_TRIES: Final = 48


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """An order, alternative placements and transfers that a policy prefers before any training.

    Of ``B`` graphs, padded like their features; padding is zeros. Numbers are float32 from 0 to 1, without
    a unit. `make_inputs` leaves the arrays on the host, as those of the features.

    Attributes:
      order: ``[B, N]`` the priority that keeps every op at its place in the order: of ``n`` ops in a row, the
        first has ``1 - 0.5 / n`` and the last ``0.5 / n``. ``None`` without an order prior.
      placements: ``[B, N, A]`` where every op is in each of ``A`` alternative placements: device ``k`` has
        what is from ``k / D`` to ``(k + 1) / D``. ``None`` without placement priors.
      transfers: ``[B, N, D]`` the priority, as in ``order``, of sending what an op makes to each device.
        ``None`` where transfers go by their ops.
    """

    order: jax.Array | None = None
    placements: jax.Array | None = None
    transfers: jax.Array | None = None


class Made(NamedTuple):
    """What a maker makes of one graph.

    Attributes:
      order: ``[N]`` as `Prior.order`.
      placements: What makes each of the maker's placements, ``[N]`` int devices.
      transfers: ``[N, D]`` as `Prior.transfers`.
    """

    order: np.ndarray | None = None
    placements: Mapping[Placement, Callable[[], np.ndarray]] = {}
    transfers: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Maker:
    """A way to make a `Prior`.

    Attributes:
      make: From a graph to its prior.
      placements: The alternatives that a policy gets, unless it is told others.
      transfers: What transfers are drawn from, likewise.
      others: Further placements that a policy may ask for.
      has_order: Is there an order prior?
      has_transfers: Does it say when transfers are made?
      told: Does the network read order, transfers, and the placements that say a device, as inputs? Spectral
        cuts and levels are among its features anyway.
    """

    make: Callable[[Measured], Made]
    placements: tuple[Placement, ...] = ()
    transfers: Transfers = Transfers.READER
    others: tuple[Placement, ...] = ()
    has_order: bool = True
    has_transfers: bool = False
    told: bool = True

    def columns(self, num_devices: int, placements: tuple[Placement, ...]) -> tuple[str, ...]:
        """Names of what the network reads of the prior, in their order."""
        if not self.told:
            return ()
        sent = [f"prior transfers {k}" for k in range(num_devices)] if self.has_transfers else []
        at = [f"prior placement {placements[i]}" for i in told_placements(placements)]
        return ("prior order", *sent, *at)

    def arrays(self, measured: Measured, placements: tuple[Placement, ...]) -> dict[str, np.ndarray]:
        """The fields of `Prior` for one graph, without padding."""
        made = self.make(measured)
        arrays = {"order": made.order, "transfers": made.transfers}
        if placements:
            each = [_place(measured, made, placement) for placement in placements]
            arrays["placements"] = np.stack(each, axis=1)
        return {name: array for name, array in arrays.items() if array is not None}


def told_placements(placements: tuple[Placement, ...]) -> tuple[int, ...]:
    """Numbers of those that the network reads: those that say a device, in the order of `Placement`."""
    every = list(Placement)
    devices = [i for i, placement in enumerate(placements) if placement.cut is None]
    return tuple(sorted(devices, key=lambda i: every.index(placements[i])))


def _place(measured: Measured, made: Made, placement: Placement) -> np.ndarray:
    """``[N]`` from 0 to 1."""
    if placement.cut is not None:
        return measured.share(placement.cut)
    return _bands(made.placements[placement](), measured.cluster)


def _bands(placement: np.ndarray, cluster: Cluster) -> np.ndarray:
    """``[N]`` the middle of the band of every op's device."""
    return (placement + 0.5) / cluster.num_devices


def _falling(order: np.ndarray) -> np.ndarray:
    """``[N]`` from 1 to 0 in the order of ops."""
    n = len(order)
    place = np.empty(n)
    place[order] = 1 - (np.arange(n) + 0.5) / n
    return place


def _nothing(_: Measured) -> Made:
    return Made()


def _levels(measured: Measured) -> Made:
    """First whoever has much work below it, and little before it, both alike."""
    # By bottom levels alone a critical path would be far ahead before anything that reads its tensors on
    # another device is sent one.
    top, bottom = measured.standing[1].astype(np.float32)
    return Made((bottom + (1 - top)) / 2)


def _schedule(measured: Measured) -> Made:
    """Order, devices and transfers of a list schedule."""
    graph, cluster = measured.graph, measured.cluster
    schedule = quick_schedule(graph, cluster, measured.numbers)
    place = _falling(schedule.order)
    n = graph.num_ops
    # Where it first sends what an op makes; where it sends nothing, midway to the first op that reads it, and
    # the op's own place if nobody does.
    first = np.zeros(n)
    np.maximum.at(first, graph.edge_producer, place[graph.edge_op])
    midway = (place + np.where(first > 0, first, place)) / 2
    sent = np.full((n, schedule.sent.shape[1]), -1.0)
    np.maximum.at(sent, graph.tensor_op, np.where(schedule.sent < 0, -1, 1 - schedule.sent / n))
    sent = np.where(sent < 0, midway[:, None], sent)
    return Made(place, {Placement.SCHEDULE: lambda: schedule.placement}, sent)


def _memory(measured: Measured) -> Made:
    """The best of a few orders of little memory, and placements by peaks for it."""
    graph, cluster = measured.graph, measured.cluster
    balance, placement = least_peak_balance(graph, cluster, measured.numbers, _TRIES)
    placements = {
        Placement.PEAKS_ORDER: lambda: placement,
        Placement.PEAKS_ALONG: lambda: balance.refine(balance.cut(measured.share(Cut.ALONG)), _TRIES),
        Placement.PEAKS_ONE: lambda: balance.refine(single_device_placement(graph, cluster), _TRIES),
        Placement.PEAKS_BLOCKS: lambda: balance.blocks(_BLOCK_TRIES),
    }
    return Made(_falling(balance.order), placements)


_CUTS: Final = (Placement.ALONG, Placement.ACROSS, Placement.FINE)

MAKERS: Final[Mapping[str, Maker]] = {
    "none": Maker(_nothing, has_order=False, told=False),
    "levels": Maker(
        _levels, (Placement.ACROSS, Placement.FINE), Transfers.MIDWAY, (Placement.ALONG,), told=False
    ),
    "schedule": Maker(
        _schedule,
        (Placement.ACROSS, Placement.FINE, Placement.SCHEDULE),
        Transfers.SCHEDULE,
        (Placement.ALONG,),
        has_transfers=True,
    ),
    "memory": Maker(
        _memory,
        (Placement.PEAKS_ORDER, Placement.PEAKS_ALONG, Placement.PEAKS_BLOCKS),
        Transfers.READER_THERE,
        (*_CUTS, Placement.PEAKS_ONE),
    ),
}
"""All priors by name: who adds one adds a line here. ``"levels"`` is what policies of earlier releases began
with: it needs neither a schedule nor sums of peaks."""
