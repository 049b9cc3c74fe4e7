"""`Prior`: the preferences of an untrained policy, and its makers by name."""

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
"""Most moves that lower the peaks, from each start; see docs/ablations/proposals.md."""
_BLOCK_TRIES: Final = 48


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """An order, alternative placements and transfers that a policy prefers before any training.

    The arrays are for ``B`` graphs, padded with zeros like the features. Numbers are float32 from 0 to 1,
    without a unit. `make_inputs` leaves the arrays on the host, like those of the features.

    Attributes:
      order: ``[B, N]`` priority that keeps every op at its place in the order. The first of ``n`` ops has
        ``1 - 0.5 / n`` and the last ``0.5 / n``. ``None`` without an order prior.
      placements: ``[B, N, A]`` position of every op in each of ``A`` alternative placements; device ``k`` has
        the positions from ``k / D`` to ``(k + 1) / D``. ``None`` without placement priors.
      transfers: ``[B, N, D]`` priority, as in ``order``, of sending the outputs of an op to each device.
        ``None`` if transfers follow their ops.
    """

    order: jax.Array | None = None
    placements: jax.Array | None = None
    transfers: jax.Array | None = None


class Made(NamedTuple):
    """The result of a maker for one graph.

    Attributes:
      order: ``[N]`` as `Prior.order`.
      placements: Functions that make each of the maker's placements, ``[N]`` int devices.
      transfers: ``[N, D]`` as `Prior.transfers`.
    """

    order: np.ndarray | None = None
    placements: Mapping[Placement, Callable[[], np.ndarray]] = {}
    transfers: np.ndarray | None = None


@dataclasses.dataclass(frozen=True)
class Maker:
    """A way to make a `Prior`.

    Attributes:
      make: Function that maps a graph to its prior.
      placements: Default alternative placements of a policy.
      transfers: Default distributions of transfers.
      others: Further placements that a policy may name.
      has_order: Whether there is an order prior.
      has_transfers: Whether there is a prior of transfers.
      told: Whether the network reads the order, the transfers and the placements that give devices as inputs.
        Spectral cuts and levels are among its features in any case.
    """

    make: Callable[[Measured], Made]
    placements: tuple[Placement, ...] = ()
    transfers: Transfers = Transfers.READER
    others: tuple[Placement, ...] = ()
    has_order: bool = True
    has_transfers: bool = False
    told: bool = True

    def columns(self, num_devices: int, placements: tuple[Placement, ...]) -> tuple[str, ...]:
        """Names of the network's inputs from the prior, in order."""
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
    """Indices of the placements that give devices, which the network reads, in the order of `Placement`."""
    every = list(Placement)
    devices = [i for i, placement in enumerate(placements) if placement.cut is None]
    return tuple(sorted(devices, key=lambda i: every.index(placements[i])))


def _place(measured: Measured, made: Made, placement: Placement) -> np.ndarray:
    """``[N]`` positions from 0 to 1."""
    if placement.cut is not None:
        return measured.share(placement.cut)
    return _bands(made.placements[placement](), measured.cluster)


def _bands(placement: np.ndarray, cluster: Cluster) -> np.ndarray:
    """``[N]`` middle of the band of each op's device."""
    return (placement + 0.5) / cluster.num_devices


def _falling(order: np.ndarray) -> np.ndarray:
    """``[N]`` priorities that fall from 1 to 0 in the order of ops."""
    n = len(order)
    place = np.empty(n)
    place[order] = 1 - (np.arange(n) + 0.5) / n
    return place


def _nothing(_: Measured) -> Made:
    return Made()


def _levels(measured: Measured) -> Made:
    """Priorities that rise with the work below an op and fall with the work before it, with equal weights."""
    # By bottom levels alone, a critical path would be far ahead before other devices receive its tensors.
    top, bottom = measured.standing[1].astype(np.float32)
    return Made((bottom + (1 - top)) / 2)


def _schedule(measured: Measured) -> Made:
    """Order, devices and transfers of a list schedule."""
    graph, cluster = measured.graph, measured.cluster
    schedule = quick_schedule(graph, cluster, measured.numbers)
    place = _falling(schedule.order)
    n = graph.num_ops
    # The place of the first transfer of an op's outputs. Without a transfer: midway to the first reader, or
    # the op's own place if there is no reader.
    first = np.zeros(n)
    np.maximum.at(first, graph.edge_producer, place[graph.edge_op])
    midway = (place + np.where(first > 0, first, place)) / 2
    sent = np.full((n, schedule.sent.shape[1]), -1.0)
    np.maximum.at(sent, graph.tensor_op, np.where(schedule.sent < 0, -1, 1 - schedule.sent / n))
    sent = np.where(sent < 0, midway[:, None], sent)
    return Made(place, {Placement.SCHEDULE: lambda: schedule.placement}, sent)


def _memory(measured: Measured) -> Made:
    """The best of a few orders of little memory, and placements by peaks for that order."""
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
"""Name -> maker of each prior. ``"levels"``, the prior of older weights, needs neither a schedule nor sums of
peaks."""
