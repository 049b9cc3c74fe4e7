"""Coordinates of ops that say which of them belong together."""

from typing import Final

import numpy as np

__all__ = ["COORDINATES", "spectral_coordinates"]

COORDINATES: Final = 2
_STEPS: Final = 16
"""Of Lanczos's method. On random graphs of 50 to 200 ops, placing the halves of the first coordinate on two
devices serves a search nearly as well after 8 steps as with the eigenvector itself."""
_NOTHING: Final = 1e-9


def spectral_coordinates(
    sender: np.ndarray, receiver: np.ndarray, weight: np.ndarray, start: np.ndarray
) -> np.ndarray:
    """Approximate eigenvectors of the smallest eigenvalues but one of the normalised Laplacian.

    Ops that share many edges have similar coordinates, so that cutting one in the middle cuts few edges
    (spectral partitioning): what messages along edges would need very many rounds to find out. They are Ritz
    vectors of Lanczos's method with full orthogonalisation, begun with ``start``, along which they also
    point: no op is told apart by its number.

    Args:
      sender: ``[E]``.
      receiver: ``[E]``.
      weight: ``[E]`` positive.
      start: ``[N]``, by which the ops already differ: their levels.

    Returns:
      ``[COORDINATES, N]`` float64, the smoothest first, each of mean square 1 or all zeros.

    References:
      Fiedler 1975, "A property of eigenvectors of nonnegative symmetric matrices"; as features of graph
      networks: Dwivedi and Bresson 2021, "A generalization of transformer networks to graphs", section 2.
    """
    n = len(start)
    degree = np.bincount(sender, weight, n) + np.bincount(receiver, weight, n)
    root = np.sqrt(np.where(degree > 0, degree, 1))
    found = np.zeros((COORDINATES, n))
    basis, diagonal, beside = _lanczos(
        sender, receiver, weight / (root[sender] * root[receiver]), root, start
    )
    if len(diagonal):
        matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
        ritz = np.linalg.eigh(matrix)[1][:, ::-1][:, :COORDINATES]
        vectors = ritz.T @ basis / root
        norm = np.sqrt((vectors**2).mean(axis=1, keepdims=True))
        along = np.where((vectors * start).sum(axis=1, keepdims=True) < 0, -1, 1)
        found[: len(vectors)] = vectors / norm * along
    return found


def _lanczos(
    sender: np.ndarray, receiver: np.ndarray, weight: np.ndarray, root: np.ndarray, start: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Basis ``[M, N]`` of a Krylov space of the normalised adjacency, orthogonal to its first eigenvector.

    Returns:
      The basis, and the diagonal ``[M]`` and the one beside it ``[M - 1]`` of the matrix in that basis; ``M``
      is 0 if ``start`` is nothing but the first eigenvector.
    """
    n = len(start)
    basis = np.zeros((_STEPS + 2, n))
    basis[0] = root / np.linalg.norm(root)
    vector = start * root
    size = np.linalg.norm(vector)
    diagonal, beside = [], []
    for j in range(_STEPS + 1):
        known = basis[: j + 1]
        for _ in range(2):  # Twice is enough (Kahan): once leaves rounding errors that grow.
            vector = vector - known.T @ (known @ vector)
        length = float(np.linalg.norm(vector))
        if length <= _NOTHING * size or j == _STEPS:
            break
        if j:
            beside.append(length)
        basis[j + 1] = vector / length
        vector = np.bincount(receiver, weight * basis[j + 1][sender], n)
        vector += np.bincount(sender, weight * basis[j + 1][receiver], n)
        size = 1.0
        diagonal.append(float(basis[j + 1] @ vector))
    return basis[1 : len(diagonal) + 1], np.array(diagonal), np.array(beside)
