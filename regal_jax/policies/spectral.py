"""Spectral coordinates: ops that share many edges have similar coordinates."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.runtime.compiling import loops, usable

__all__ = ["COORDINATES", "Start", "spectral_coordinates"]

COORDINATES: Final = 2
_STEPS: Final = 16
"""Steps of Lanczos's method. For a search on random graphs of 50 to 200 ops, halves by the first coordinate
are nearly as good after 8 steps as those by the exact eigenvector."""
_NOTHING: Final = 1e-9
_NO_STEP: Final = -4.0
"""Diagonal entry where no step was made, below all eigenvalues, which are from -1 to 1."""


class Start(NamedTuple):
    """Start vector of coordinates, and the constraint on their sums.

    Attributes:
      values: ``[N]`` values that distinguish ops: their levels.
      mass: ``[N]`` non-negative masses; ``None`` for the degrees.
      slices: ``[N]`` int, slice of each op, from 0; ``None`` for a single slice.
    """

    values: np.ndarray
    mass: np.ndarray | None = None
    slices: np.ndarray | None = None


def spectral_coordinates(
    sender: np.ndarray, receiver: np.ndarray, weight: np.ndarray, starts: Sequence[Start]
) -> np.ndarray:
    """Approximate eigenvectors of the smallest eigenvalues but one of the normalised Laplacian.

    Ops that share many edges have similar coordinates, so that a cut in the middle of a coordinate cuts few
    edges (spectral partitioning). Messages along edges would need many rounds to compute such a cut. The
    coordinates are Ritz vectors of Lanczos's method with full orthogonalisation. The start vector also fixes
    their signs, so they do not depend on the numbering of ops.

    In every slice, the sum of the coordinates weighted by the mass is 0. With one slice and the degrees as
    masses, this only excludes the constant vector. With slices of time and work as the mass, each side of a
    cut has half of the work at all times, so the graph is cut along its length.

    Args:
      sender: ``[E]`` sending ops.
      receiver: ``[E]`` receiving ops.
      weight: ``[E]`` positive weights.
      starts: ``K`` start vectors, at least one; each gives its own coordinates.

    Returns:
      ``[K, COORDINATES, N]`` float64, the smoothest first, each with mean square 1 or all zeros.

    References:
      Fiedler 1975, "A property of eigenvectors of nonnegative symmetric matrices"; as features of graph
      networks: Dwivedi and Bresson 2021, "A generalization of transformer networks to graphs", section 2.
    """
    k, n = len(starts), len(starts[0].values)
    degree = np.bincount(sender, weight, n) + np.bincount(receiver, weight, n)
    root = np.sqrt(np.where(degree > 0, degree, 1))
    edges = sender.copy(), receiver.copy(), weight / (root[sender] * root[receiver])
    lanczos = loops(_lanczos_loops) if usable() else _lanczos
    basis, matrix = np.empty((k, _STEPS, n)), np.zeros((k, _STEPS, _STEPS))
    step = np.arange(_STEPS)
    for i, start in enumerate(starts):
        across = root.copy() if start.mass is None else start.mass / root
        slices = np.zeros(n, np.int64) if start.slices is None else start.slices
        basis[i], diagonal, beside = lanczos(*edges, across, slices, start.values * root)
        matrix[i, step, step] = diagonal
        matrix[i, step[1:], step[:-1]] = beside[:-1]  # `eigh` ignores entries above the diagonal.
    made = (matrix[:, step, step] > _NO_STEP).sum(axis=1)
    ritz = np.linalg.eigh(matrix)[1][:, :, ::-1][:, :, :COORDINATES]
    vectors = ritz.transpose(0, 2, 1) @ basis / root
    norm = np.sqrt((vectors * vectors).sum(axis=2) / n)
    along = (vectors * np.stack([start.values for start in starts])[:, None]).sum(axis=2)
    known = step[:COORDINATES] < made[:, None]
    return vectors * (np.where(along < 0, -1.0, 1.0) * known / np.where(known, norm, 1.0))[:, :, None]


class _Slices:
    """A projection that makes a vector orthogonal to another one in every slice."""

    def __init__(self, other: np.ndarray, slices: np.ndarray) -> None:
        self._other, self._slices, self._count = other, slices, int(slices.max(initial=0)) + 1
        square = np.bincount(slices, other**2, self._count)
        self._square = np.where(square > 0, square, 1)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        share = np.bincount(self._slices, self._other * vector, self._count) / self._square
        return vector - self._other * share[self._slices]


def _lanczos(
    sender: np.ndarray,
    receiver: np.ndarray,
    weight: np.ndarray,
    across: np.ndarray,
    slices: np.ndarray,
    vector: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Basis ``[M, N]`` of a Krylov space of the normalised adjacency between two projections.

    The projections make a vector orthogonal to ``across`` in each of the ``slices``.

    Returns:
      The basis, and the diagonal ``[M]`` and the subdiagonal ``[M]`` (last entry 0) of the matrix in that
      basis. If ``vector`` vanishes, the remaining rows are zeros and have `_NO_STEP` on the diagonal.
    """
    n, project = len(vector), _Slices(across, slices)
    basis = np.zeros((_STEPS, n))
    diagonal, beside = np.full(_STEPS, _NO_STEP), np.zeros(_STEPS)
    size = float(np.linalg.norm(vector))
    for j in range(_STEPS):
        known = basis[:j]
        for _ in range(2):  # Twice is enough (Kahan); once leaves rounding errors that grow.
            vector = project(vector)
            vector = vector - known.T @ (known @ vector)
        length = float(np.linalg.norm(vector))
        if length <= _NOTHING * size:
            break
        if j:
            beside[j - 1] = length
        basis[j] = vector / length
        vector = np.bincount(receiver, weight * basis[j][sender], n)
        vector += np.bincount(sender, weight * basis[j][receiver], n)
        size = 1.0
        diagonal[j] = float(basis[j] @ vector)
    return basis, diagonal, beside


def _lanczos_loops(
    sender: Any, receiver: Any, weight: Any, across: Any, slices: Any, vector: Any
) -> tuple[Any, Any, Any]:
    """`_lanczos` as loops to compile, since on small graphs NumPy's call overhead dominates.

    It calls few of NumPy's functions, each of which Numba compiles first.
    """
    n = len(vector)
    basis = np.zeros((_STEPS, n))
    diagonal, beside = np.full(_STEPS, _NO_STEP), np.zeros(_STEPS)
    count = 0
    for i in range(n):
        count = max(count, slices[i] + 1)
    square, share, common = np.zeros(count), np.zeros(count), np.zeros(_STEPS)
    size = 0.0
    for i in range(n):
        square[slices[i]] += across[i] * across[i]
        size += vector[i] * vector[i]
    size = np.sqrt(size)
    for j in range(_STEPS):
        for _ in range(2):
            for k in range(count):
                share[k] = 0.0
            for i in range(n):
                share[slices[i]] += across[i] * vector[i]
            for i in range(n):
                if square[slices[i]] > 0:
                    vector[i] -= across[i] * (share[slices[i]] / square[slices[i]])
            # Four independent sums use the pipeline of a core.
            for k in range(0, j, 4):
                a, b, c, d = 0.0, 0.0, 0.0, 0.0
                for i in range(n):
                    a += basis[k, i] * vector[i]
                    b += basis[k + 1, i] * vector[i]
                    c += basis[k + 2, i] * vector[i]
                    d += basis[k + 3, i] * vector[i]
                common[k], common[k + 1], common[k + 2], common[k + 3] = a, b, c, d
            for k in range(j):
                for i in range(n):
                    vector[i] -= basis[k, i] * common[k]
        length = 0.0
        for i in range(n):
            length += vector[i] * vector[i]
        length = np.sqrt(length)
        if length <= _NOTHING * size:
            break
        if j:
            beside[j - 1] = length
        for i in range(n):
            basis[j, i] = vector[i] / length
            vector[i] = 0.0
        for e in range(len(sender)):
            vector[receiver[e]] += weight[e] * basis[j, sender[e]]
            vector[sender[e]] += weight[e] * basis[j, receiver[e]]
        size = 1.0
        diagonal[j] = 0.0
        for i in range(n):
            diagonal[j] += basis[j, i] * vector[i]
    return basis, diagonal, beside
