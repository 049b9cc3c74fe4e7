"""`Measured`: a graph in its own units, from which features and priors are made."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import numpy as np

from regal_jax.errors import GraphError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, mean_transfer_times, runtime_matrix
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.levels import Levels, levels, quantised, standing
from regal_jax.policies.spectral import COORDINATES, Start, spectral_coordinates

__all__ = ["MOST", "Measured", "check_finite", "clipped", "measure"]

MOST: Final = 4.0
"""Standard scores and pressures beyond it say no more."""
_CONTROL_WEIGHT: Final = 0.1
_LEAST_MASS: Final = 1e-3
"""Of the mean mass: ops that have none are spread as well."""
_SLICES: Final = {Cut.ACROSS: 32, Cut.FINE: 128}
_OPS_IN_SLICE: Final = 4


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """A graph in its own units: times of the mean runtime, sizes of the mean tensor.

    Attributes:
      graph: The graph.
      cluster: What it runs on.
      balance: The amount that shares are of.
      cuts: Those that `coordinates` has, in the order of `Cut`.
      runtime: ``[N, D]``.
      allowed: ``[N, D]`` bool; ``None`` if every op may run everywhere.
      amounts: ``[4, N]``: mean runtime, temp, output and input bytes.
      size: ``[T]``.
      transfer: ``[T]``, the mean over all ordered pairs of devices.
      sender: ``[E + C]``, data edges first.
      receiver: ``[E + C]``.
      levels: Of the mean runtime.
      critical: The longest path; 1 if it has no length.
    """

    graph: ComputationGraph
    cluster: Cluster
    balance: Balance
    cuts: tuple[Cut, ...]
    runtime: np.ndarray
    allowed: np.ndarray | None
    amounts: np.ndarray
    size: np.ndarray
    transfer: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    levels: Levels
    critical: float

    @functools.cached_property
    def order(self) -> np.ndarray:
        """``[N]`` a topological order: every edge leads to a greater depth."""
        path = self.levels
        top, bottom = quantised(path.top / self.critical), quantised(path.bottom / self.critical)
        return np.lexsort((*quantised(self.amounts[[0, 1, 3, 2]]), -bottom, top, path.depth))

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """``[N]`` the place of every op in `order`: who goes before its equals."""
        return np.argsort(self.order)

    @functools.cached_property
    def mass(self) -> np.ndarray:
        """``[N]`` what shares are of."""
        runtime, temp, outputs, _ = self.amounts
        return runtime if self.balance is Balance.WORK else temp + outputs

    @functools.cached_property
    def standing(self) -> tuple[np.ndarray, np.ndarray]:
        """Ranks and shares ``[2, N]`` each, by top and by bottom level."""
        top, bottom = self.levels.top / self.critical, self.levels.bottom / self.critical
        return standing(quantised(np.stack([top, bottom])), self.mass)

    @functools.cached_property
    def coordinates(self) -> np.ndarray:
        """``[6 K, N]``: of each coordinate of the ``K`` cuts its value, its rank and its share."""
        graph, mass = self.graph, self.mass
        # A tensor moves once to a device, however many read it there; a control edge moves nothing.
        data = 1 / np.diff(graph.consumer_offset)[graph.edge_tensor]
        weight = np.concatenate([data, np.full(len(graph.control_source), _CONTROL_WEIGHT)])
        path = self.levels
        middle = (path.top + path.top + self.amounts[0]) / self.critical
        some = mass + _LEAST_MASS * (mass.mean() or 1.0)
        when = _share(middle / 2, some)
        starts: dict[int, Start] = {}
        picked: list[int] = []
        for cut in self.cuts:
            # Small graphs have no more slices for `Cut.FINE`, and need not be cut twice.
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
        # Where all are alike there is one level.
        level = quantised((value - least) / np.where(span > 0, span, 1))
        rows = np.stack([clipped(value), *standing(level, mass)], axis=1)
        return rows.reshape(len(starts), -1, n)[picked].reshape(-1, n)

    def rows(self, cut: Cut) -> np.ndarray:
        """``[6, N]``: the part of `coordinates` that is of one cut."""
        width = 3 * COORDINATES
        at = self.cuts.index(cut) * width
        return self.coordinates[at : at + width]

    def share(self, cut: Cut) -> np.ndarray:
        """``[N]`` where from 0 to 1 every op is along the first coordinate of a cut."""
        return self.rows(cut)[2]


def measure(graph: ComputationGraph, cluster: Cluster, balance: Balance, cuts: tuple[Cut, ...]) -> Measured:
    """Measures a graph.

    Raises:
      GraphError: A runtime that is not finite.
    """
    n = graph.num_ops
    runtime = runtime_matrix(graph, cluster)
    # Before means and scores carry what is wrong with one op to all others.
    check_finite(graph, "op", runtime, ("runtime",) * runtime.shape[1])
    transfer = mean_transfer_times(graph, cluster)
    time = _scale(runtime, transfer)
    byte = _scale(graph.tensor_bytes, graph.temp_bytes)
    runtime, transfer, size = runtime / time, transfer / time, graph.tensor_bytes / byte
    mean = runtime[:, 0] if graph.runtime.ndim == 1 else runtime.mean(axis=1)
    amounts = np.stack([
        mean,
        graph.temp_bytes / byte,
        np.bincount(graph.tensor_op, weights=size, minlength=n),
        np.bincount(graph.edge_op, weights=size[graph.edge_tensor], minlength=n),
    ])  # fmt: skip
    sender = np.concatenate([graph.edge_producer, graph.control_source])
    receiver = np.concatenate([graph.edge_op, graph.control_target])
    paths = levels(sender, receiver, graph.topological_order, mean)
    critical = float(paths.bottom.max()) or 1.0
    allowed = allowed_matrix(graph, cluster) if graph.allowed_devices.count(None) < n else None
    return Measured(
        graph, cluster, balance, cuts, runtime, allowed, amounts, size, transfer, sender, receiver, paths,
        critical,
    )  # fmt: skip


def check_finite(graph: ComputationGraph, what: str, rows: np.ndarray, names: Sequence[str]) -> None:
    """Refuses what is not finite, by the name of its op or the number of its edge.

    Raises:
      GraphError: Something is not.
    """
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        name = f"op {graph.op_names[row]!r}" if what == "op" else f"edge {row}"
        raise GraphError(
            f"graph {graph.name!r}: {name}: feature {names[column]!r} is not finite; "
            "check the runtimes and sizes of the graph and the transfers of the cluster"
        )


def clipped(score: np.ndarray) -> np.ndarray:
    """Scores within 4 of 0: what is beyond says no more."""
    return np.minimum(np.maximum(score, -MOST), MOST)  # Faster than `np.clip`.


def _scale(values: np.ndarray, otherwise: np.ndarray) -> float:
    """The mean of ``values``; of ``otherwise``, if that is 0; 1 if both are. Always positive."""
    for array in (values, otherwise):
        mean = float(array.mean()) if array.size else 0.0
        if mean > 0:
            return mean
    return 1.0


def _share(time: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """``[N]`` in steps of `quantised`: what share of the mass comes before the middle of every op."""
    return quantised(standing(quantised(time), mass)[1])


def _slices(share: np.ndarray, count: int) -> np.ndarray:
    """``[N]`` slices of equal mass, by `_share`."""
    return np.minimum(share * count // quantised(np.ones(())), count - 1).astype(np.int64)
