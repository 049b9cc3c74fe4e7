"""`Measured`: a graph in its own units, from which features and priors are made."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from regal_jax.errors import GraphError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, runtime_matrix
from regal_jax.heuristics.levels import quantised, standing
from regal_jax.heuristics.numbering import Scaled, scaled
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.spectral import COORDINATES, Start, spectral_coordinates

__all__ = ["MOST", "Measured", "check_finite", "clipped", "measure"]

MOST: Final = 4.0
"""Largest magnitude of standard scores and pressures; larger values carry no information."""
_CONTROL_WEIGHT: Final = 0.1
_LEAST_MASS: Final = 1e-3
"""Smallest mass as a share of the mean mass, so that ops without mass are spread, too."""
_SLICES: Final = {Cut.ACROSS: 32, Cut.FINE: 128}
_OPS_IN_SLICE: Final = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Measured(Scaled):
    """A graph in its own units, with shares of an amount and coordinates.

    Attributes:
      balance: The amount of which shares are computed.
      cuts: Cuts in `coordinates`, in the order of `Cut`.
      allowed: ``[N, D]`` bool; ``None`` if every op may run everywhere.
    """

    balance: Balance
    cuts: tuple[Cut, ...]
    allowed: np.ndarray | None

    @functools.cached_property
    def mass(self) -> np.ndarray:
        """``[N]`` mass of every op, of which shares are computed."""
        runtime, temp, outputs, _ = self.amounts
        return runtime if self.balance is Balance.WORK else temp + outputs

    @functools.cached_property
    def standing(self) -> tuple[np.ndarray, np.ndarray]:
        """Ranks and shares ``[2, N]`` each, by top and by bottom level."""
        top, bottom = self.levels.top / self.critical, self.levels.bottom / self.critical
        return standing(quantised(np.stack([top, bottom])), self.mass)

    @functools.cached_property
    def coordinates(self) -> np.ndarray:
        """``[6 K, N]`` value, rank and share of each coordinate of the ``K`` cuts."""
        graph, mass = self.graph, self.mass
        # A tensor moves to a device once, for all its readers there; a control edge moves nothing.
        data = 1 / np.diff(graph.consumer_offset)[graph.edge_tensor]
        weight = np.concatenate([data, np.full(len(graph.control_source), _CONTROL_WEIGHT)])
        path = self.levels
        middle = (path.top + path.top + self.amounts[0]) / self.critical
        some = mass + _LEAST_MASS * (mass.mean() or 1.0)
        when = _share(middle / 2, some)
        starts: dict[int, Start] = {}
        picked: list[int] = []
        for cut in self.cuts:
            # For small graphs, `Cut.FINE` has the same slices, and the cut is not computed twice.
            count = min(_SLICES.get(cut, 0), max(graph.num_ops // _OPS_IN_SLICE, 1))
            if not count:
                starts[count] = Start(middle - middle.mean())
            elif count not in starts:
                starts[count] = Start(path.bottom / self.critical, some, _slices(when, count))
            picked.append(list(starts).index(count))
        n = graph.num_ops
        value = spectral_coordinates(self.sender, self.receiver, weight, list(starts.values()))
        value = value.reshape(-1, n)
        least = value.min(axis=1, keepdims=True)
        span = value.max(axis=1, keepdims=True) - least
        # If all values are equal there is one level.
        level = quantised((value - least) / np.where(span > 0, span, 1))
        rows = np.stack([clipped(value), *standing(level, mass)], axis=1)
        return rows.reshape(len(starts), -1, n)[picked].reshape(-1, n)

    def rows(self, cut: Cut) -> np.ndarray:
        """``[6, N]`` part of `coordinates` for one cut."""
        width = 3 * COORDINATES
        at = self.cuts.index(cut) * width
        return self.coordinates[at : at + width]

    def share(self, cut: Cut) -> np.ndarray:
        """``[N]`` position of every op along the first coordinate of a cut, from 0 to 1."""
        return self.rows(cut)[2]


def measure(graph: ComputationGraph, cluster: Cluster, balance: Balance, cuts: tuple[Cut, ...]) -> Measured:
    """Measures a graph.

    Raises:
      GraphError: A runtime is not finite.
    """
    runtime = runtime_matrix(graph, cluster)
    # Checked before means and scores spread the invalid value of one op to all others.
    check_finite(graph, "op", runtime, ("runtime",) * runtime.shape[1])
    allowed = allowed_matrix(graph, cluster) if graph.allowed_devices.count(None) < graph.num_ops else None
    return Measured(**vars(scaled(graph, cluster)), balance=balance, cuts=cuts, allowed=allowed)


def check_finite(graph: ComputationGraph, what: str, rows: np.ndarray, names: Sequence[str]) -> None:
    """Checks that features are finite.

    Raises:
      GraphError: A feature is not finite; the message names its op or the number of its edge.
    """
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        name = f"op {graph.op_names[row]!r}" if what == "op" else f"edge {row}"
        raise GraphError(
            f"graph {graph.name!r}: {name}: feature {names[column]!r} is not finite; "
            "check the runtimes and sizes of the graph and the transfers of the cluster"
        )


def clipped(score: np.ndarray) -> np.ndarray:
    """Scores clipped to magnitudes of at most `MOST`."""
    return np.minimum(np.maximum(score, -MOST), MOST)  # Faster than `np.clip`.


def _share(time: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """``[N]`` share of the mass before the middle of every op, in steps of `quantised`."""
    return quantised(standing(quantised(time), mass)[1])


def _slices(share: np.ndarray, count: int) -> np.ndarray:
    """``[N]`` slice of every op; slices have equal mass, by `_share`."""
    return np.minimum(share * count // quantised(np.ones(())), count - 1).astype(np.int64)
