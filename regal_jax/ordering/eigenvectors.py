"""Laplacian eigenvectors of graphs: coordinates of ops that Topoformer reads as features."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from regal_jax.graph.topology import rows
from regal_jax.ordering.relations import Links
from regal_jax.runtime.compiling import compiled, usable
from regal_jax.runtime.interrupts import check_interrupt, uninterrupted

__all__ = ["laplacian_eigenvectors"]

_DENSE: Final = 100
"""Number of ops up to which a full decomposition of the dense matrix is as fast."""
_MORE: Final = 12
"""Vectors iterated beyond those wanted: the more there are, the fewer steps are needed."""
_DEGREE: Final = 24
"""Degree of the filter: products with the matrix between two orthogonalisations."""
_ROUNDS: Final = 40
_PRODUCT: Final = np.array([[1.0, 0.0, 0.0]])
"""Factors of the filter that is a product with the matrix."""
_SWEEPS: Final = 30
"""Most sweeps of Jacobi rotations; about eight are needed."""
_RESIDUAL: Final = 1e-6
"""Residual that is small enough, since features are float32."""


def laplacian_eigenvectors(links: Links, count: int) -> np.ndarray:
    """Eigenvectors of the smallest eigenvalues of the normalised Laplacian, without the first.

    The graph is taken as undirected and unweighted: ``L = I - D^-1/2 A D^-1/2``. An op without edges has
    zeros in its row and column. The first eigenvector, which is left out, is the root of the degrees. In a
    graph of several components the next eigenvectors, whose eigenvalue is also 0, distinguish them. The basis
    of a multiple eigenvalue is not unique: it depends on the numbering of the ops.

    Large graphs use subspace iteration with a Chebyshev filter and the Rayleigh-Ritz method.

    Args:
      links: Edges of the graph.
      count: ``K``, the number of eigenvectors.

    Returns:
      ``[N, K]`` float64 orthonormal columns, the entry of largest magnitude positive, on ties the first;
      columns of zeros where there are no more eigenvectors.

    References:
      Dwivedi and Bresson 2021, "A generalization of transformer networks to graphs", section 2. The method:
      Zhou, Saad, Tiago and Chelikowsky 2006, "Self-consistent-field calculations using Chebyshev-filtered
      subspace iteration", section 3.
    """
    n = len(links.offset) - 1
    found = np.zeros((n, count))
    known = min(count, n - 1)
    if not known:
        return found
    matrix = _Adjacency(links)
    vectors = matrix.dense(known) if n <= max(_DENSE, 2 * (count + _MORE)) else matrix.filtered(known)
    largest = np.abs(vectors)
    # Entries that differ only by rounding count as equal in magnitude.
    place = np.argmax(largest >= largest.max(axis=0) * (1 - 1e-5), axis=0)
    found[:, :known] = vectors * np.where(np.take_along_axis(vectors, place[None], axis=0) < 0, -1, 1)
    return found


class _Adjacency:
    """The normalised adjacency, restricted to the complement of its first eigenvector.

    Its eigenvalues are 1 minus those of the Laplacian, and at least ``-1``.
    """

    def __init__(self, links: Links) -> None:
        self._n = n = len(links.offset) - 1
        here = np.concatenate([links.source, links.target])
        there = np.concatenate([links.target, links.source])
        degree = np.bincount(here, minlength=n).astype(float)
        # An op without edges is an eigenvector of eigenvalue 1. Every row has its diagonal, so none is empty.
        root = np.sqrt(np.maximum(degree, 1))
        diagonal = np.arange(n)
        weight = np.concatenate([1 / (root[here] * root[there]), np.where(degree > 0, 0.0, 1.0)])
        here, there = np.concatenate([here, diagonal]), np.concatenate([there, diagonal])
        self._offset, order = rows(here, np.arange(len(here)), n)
        self._column, self._weight = there[order], weight[order]
        first = np.sqrt(degree) if degree.any() else np.ones(n)
        self._first = first / np.linalg.norm(first)

    def dense(self, count: int) -> np.ndarray:
        """``[N, count]``, from the whole matrix."""
        matrix = np.zeros((self._n, self._n))
        row = np.repeat(np.arange(self._n), np.diff(self._offset))
        matrix[row, self._column] = self._weight
        # Eigenvalues are from -1 to 1: the first vector gets the lowest of all.
        matrix -= 3 * np.outer(self._first, self._first)
        return np.linalg.eigh(matrix)[1][:, ::-1][:, :count]

    def filtered(self, count: int) -> np.ndarray:
        """``[N, count]``, by subspace iteration."""
        width = count + _MORE
        block = self._orthonormal(np.random.default_rng(0).normal(size=(self._n, width)))
        values, block = self._ritz(block)
        for _ in range(_ROUNDS):
            check_interrupt()
            # The filter damps the eigenvalues below the last value relative to those above it.
            low = float(np.clip(values[-1], -0.5, 1 - 1e-9))
            block = self._orthonormal(self._filter(block, low, float(values[0])))
            values, block = self._ritz(block)
            wanted = block[:, :count]
            residual = self._product(wanted) - wanted * values[:count]
            if np.sqrt((residual**2).sum(axis=0)).max() < _RESIDUAL:
                break
        return block[:, :count]

    def _orthonormal(self, block: np.ndarray) -> np.ndarray:
        block = block - self._first[:, None] * (self._first @ block)
        return _run(_orthonormal_loops, block) if usable() else np.linalg.qr(block)[0]

    def _ritz(self, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Approximate eigenvalues, descending, and their vectors."""
        image = self._product(block)
        small = _run(_gram_loops, block, image) if usable() else block.T @ image
        small = (small + small.T) / 2
        values, vectors = _run(_eigen_loops, small) if usable() else np.linalg.eigh(small)
        falling = np.argsort(-values, kind="stable")
        turn = np.ascontiguousarray(vectors[:, falling])
        return values[falling], _run(_mixed_loops, block, turn) if usable() else block @ turn

    def _filter(self, block: np.ndarray, low: float, high: float) -> np.ndarray:
        """A Chebyshev polynomial of the matrix, bounded by 1 from -1 to ``low``, times ``block``.

        It is scaled to be about 1 at ``high``, which prevents overflow.
        """
        half, centre = (low + 1) / 2, (low - 1) / 2
        sigma = first = half / max(high - centre, half)
        factors = [(sigma / half, 0.0)]
        for _ in range(_DEGREE - 1):
            after = 1 / (2 / first - sigma)
            factors.append((2 * after / half, sigma * after))
            sigma = after
        table = np.array([(scale, scale * centre, old) for scale, old in factors])
        if usable():
            return _run(_filter_loops, self._offset, self._column, self._weight, block, table)
        before = np.zeros_like(block)
        for scale, shift, old in table:
            before, block = block, scale * self._product(block) - shift * block - old * before
        return block

    def _product(self, block: np.ndarray) -> np.ndarray:
        if usable():
            return _run(_filter_loops, self._offset, self._column, self._weight, block, _PRODUCT)
        parts = self._weight[:, None] * block[self._column]
        return np.add.reduceat(parts, self._offset[:-1], axis=0)


# Compiled loops also replace BLAS: its threads wait for each other, which is a hundred times slower while
# other work, such as a training step, uses the cores.


def _run(function: Callable[..., Any], *arrays: np.ndarray) -> np.ndarray:
    return uninterrupted(compiled(function))(*map(np.ascontiguousarray, arrays))


def _filter_loops(offset: Any, column: Any, weight: Any, block: Any, table: Any) -> Any:
    """The recurrence of the filter; ``table`` has the factors of product, block and the block before."""
    before, block = np.zeros(block.shape), block.copy()
    total = np.zeros(block.shape[1])  # A row of its own gets vector instructions.
    for step in range(len(table)):
        scale, shift, old = table[step, 0], table[step, 1], table[step, 2]
        for i in range(len(offset) - 1):
            total[:] = 0
            for e in range(offset[i], offset[i + 1]):
                row = block[column[e]]
                for c in range(len(total)):
                    total[c] += weight[e] * row[c]
            for c in range(len(total)):
                before[i, c] = scale * total[c] - shift * block[i, c] - old * before[i, c]
        before, block = block, before
    return block


def _eigen_loops(matrix: Any) -> Any:
    """Eigenvalues and eigenvectors of a symmetric matrix by cyclic Jacobi rotations, in no order."""
    n, vectors = len(matrix), np.eye(len(matrix))
    for _ in range(_SWEEPS):
        rest = 0.0
        for p in range(n - 1):
            for q in range(p + 1, n):
                rest += matrix[p, q] ** 2
                if matrix[p, q] == 0:
                    continue
                ratio = (matrix[q, q] - matrix[p, p]) / (2 * matrix[p, q])
                tangent = (1 if ratio >= 0 else -1) / (abs(ratio) + np.sqrt(ratio * ratio + 1))
                cosine = 1 / np.sqrt(tangent * tangent + 1)
                sine = tangent * cosine
                for k in range(n):
                    one, other = matrix[k, p], matrix[k, q]
                    matrix[k, p], matrix[k, q] = cosine * one - sine * other, sine * one + cosine * other
                for k in range(n):
                    one, other = matrix[p, k], matrix[q, k]
                    matrix[p, k], matrix[q, k] = cosine * one - sine * other, sine * one + cosine * other
                    one, other = vectors[p, k], vectors[q, k]
                    vectors[p, k], vectors[q, k] = cosine * one - sine * other, sine * one + cosine * other
        if rest < 1e-30:
            break
    return np.diag(matrix), vectors.T


def _gram_loops(block: Any, other: Any) -> Any:
    """``block.T @ other``."""
    found = np.zeros((block.shape[1], other.shape[1]))
    for i in range(len(block)):
        for c in range(block.shape[1]):
            for d in range(other.shape[1]):
                found[c, d] += block[i, c] * other[i, d]
    return found


def _mixed_loops(block: Any, turn: Any) -> Any:
    """``block @ turn``."""
    found = np.zeros((len(block), turn.shape[1]))
    for i in range(len(block)):
        for c in range(turn.shape[0]):
            for d in range(turn.shape[1]):
                found[i, d] += block[i, c] * turn[c, d]
    return found


def _orthonormal_loops(block: Any) -> Any:
    """Gram-Schmidt orthonormalisation, every column twice, because once leaves rounding errors that grow."""
    common = np.zeros(block.shape[1])
    for c in range(block.shape[1]):
        for _ in range(2):
            common[:] = 0
            for i in range(len(block)):
                for d in range(c):
                    common[d] += block[i, d] * block[i, c]
            for i in range(len(block)):
                for d in range(c):
                    block[i, c] -= common[d] * block[i, d]
        size = 0.0
        for i in range(len(block)):
            size += block[i, c] ** 2
        scale = 1 / np.sqrt(size) if size > 0 else 0.0
        for i in range(len(block)):
            block[i, c] *= scale
    return block
