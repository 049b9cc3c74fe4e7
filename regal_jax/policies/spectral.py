"""Coordinates of ops that say which of them belong together."""

from typing import Any, Final

import numpy as np

from regal_jax.compiling import compiled, usable

__all__ = ["COORDINATES", "spectral_coordinates"]

COORDINATES: Final = 2
_STEPS: Final = 16
"""Of Lanczos's method. On random graphs of 50 to 200 ops, placing the halves of the first coordinate on two
devices serves a search nearly as well after 8 steps as with the eigenvector itself."""
_NOTHING: Final = 1e-9


def spectral_coordinates(
    sender: np.ndarray,
    receiver: np.ndarray,
    weight: np.ndarray,
    start: np.ndarray,
    mass: np.ndarray | None = None,
    slices: np.ndarray | None = None,
) -> np.ndarray:
    """Approximate eigenvectors of the smallest eigenvalues but one of the normalised Laplacian.

    Ops that share many edges have similar coordinates, so that cutting one in the middle cuts few edges
    (spectral partitioning): what messages along edges would need very many rounds to find out. They are Ritz
    vectors of Lanczos's method with full orthogonalisation, begun with ``start``, along which they also
    point: no op is told apart by its number.

    In every slice the coordinates, weighted by ``mass``, sum to nothing. With one slice and the degrees as
    masses, which is the default, that only excludes the constant vector. With slices of time and work as the
    mass, either side of a cut has half of the work at all times: the graph is cut along its length.

    Args:
      sender: ``[E]``.
      receiver: ``[E]``.
      weight: ``[E]`` positive.
      start: ``[N]``, by which the ops already differ: their levels.
      mass: ``[N]`` not negative.
      slices: ``[N]`` int from 0, the slice of each op.

    Returns:
      ``[COORDINATES, N]`` float64, the smoothest first, each of mean square 1 or all zeros.

    References:
      Fiedler 1975, "A property of eigenvectors of nonnegative symmetric matrices"; as features of graph
      networks: Dwivedi and Bresson 2021, "A generalization of transformer networks to graphs", section 2.
    """
    n = len(start)
    degree = np.bincount(sender, weight, n) + np.bincount(receiver, weight, n)
    root = np.sqrt(np.where(degree > 0, degree, 1))
    across = root if mass is None else mass / root
    found = np.zeros((COORDINATES, n))
    lanczos = compiled(_lanczos_loops) if usable() else _lanczos
    basis, diagonal, beside = lanczos(
        sender.copy(),
        receiver.copy(),
        weight / (root[sender] * root[receiver]),
        across.copy(),
        np.zeros(n, np.int64) if slices is None else slices,
        start * root,
    )
    if len(diagonal):
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        ritz = np.linalg.eigh(matrix)[1][:, ::-1][:, :COORDINATES]
        vectors = ritz.T @ basis / root
        norm = np.sqrt((vectors**2).mean(axis=1, keepdims=True))
        along = np.where((vectors * start).sum(axis=1, keepdims=True) < 0, -1, 1)
        found[: len(vectors)] = vectors / norm * along
    return found


class _Slices:
    """Takes from a vector, in every slice, what it has in common with another one."""

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

    The projections take what a vector has in common with ``across`` in each of the ``slices``.

    Returns:
      The basis, and the diagonal ``[M]`` and the one beside it ``[M - 1]`` of the matrix in that basis; ``M``
      is 0 if nothing is left of ``vector``.
    """
    n, project = len(vector), _Slices(across, slices)
    basis = np.zeros((_STEPS, n))
    size = float(np.linalg.norm(vector))
    diagonal, beside = [], []
    for j in range(_STEPS):
        known = basis[:j]
        for _ in range(2):  # Twice is enough (Kahan): once leaves rounding errors that grow.
            vector = project(vector)
            vector = vector - known.T @ (known @ vector)
        length = float(np.linalg.norm(vector))
        if length <= _NOTHING * size:
            break
        if j:
            beside.append(length)
        basis[j] = vector / length
        vector = np.bincount(receiver, weight * basis[j][sender], n)
        vector += np.bincount(sender, weight * basis[j][receiver], n)
        size = 1.0
        diagonal.append(float(basis[j] @ vector))
    return basis[: len(diagonal)], np.array(diagonal), np.array(beside)


def _lanczos_loops(
    sender: Any, receiver: Any, weight: Any, across: Any, slices: Any, vector: Any
) -> tuple[Any, Any, Any]:
    """`_lanczos` to be compiled: on graphs of 100 ops NumPy's calls take ten times as long as their work."""
    n = len(vector)
    basis = np.zeros((_STEPS, n))
    diagonal, beside = np.zeros(_STEPS), np.zeros(_STEPS)
    count = slices.max() + 1
    square, share, common = np.zeros(count), np.zeros(count), np.zeros(_STEPS)
    size = 0.0
    for i in range(n):
        square[slices[i]] += across[i] ** 2
        size += vector[i] ** 2
    size = np.sqrt(size)
    made = 0
    for j in range(_STEPS):
        for _ in range(2):
            share[:] = 0
            for i in range(n):
                share[slices[i]] += across[i] * vector[i]
            for i in range(n):
                if square[slices[i]] > 0:
                    vector[i] -= across[i] * (share[slices[i]] / square[slices[i]])
            # Four sums at once: a core adds as fast to each as to one.
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
            length += vector[i] ** 2
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
        for i in range(n):
            diagonal[j] += basis[j, i] * vector[i]
        made += 1
    return basis[:made], diagonal[:made], beside[: max(made - 1, 0)]
