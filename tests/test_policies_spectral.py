"""Spectral coordinates against exact eigenvectors, and invariances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regal_jax.policies.spectral import COORDINATES, Start, _lanczos, _lanczos_loops, spectral_coordinates
from regal_jax.runtime.compiling import compiled

seeds = st.integers(0, 2**32 - 1)
NONE = np.zeros(0, int)


def coordinates(sender, receiver, weight, *start):
    """Coordinates of one start; other starts must not change them."""
    alone = spectral_coordinates(sender, receiver, weight, [Start(*start)])
    other = Start(np.arange(len(start[0])) ** 2.0)
    both = spectral_coordinates(sender, receiver, weight, [other, Start(*start)])
    np.testing.assert_array_equal(both[1:], alone)
    return alone[0]


def exact(sender, receiver, weight, n):
    """All eigenvalues of the normalised Laplacian, ascending, and its eigenvectors over the root degree."""
    matrix = np.zeros((n, n))
    np.add.at(matrix, (sender, receiver), weight)
    matrix += matrix.T
    root = np.sqrt(matrix.sum(axis=1))
    values, vectors = np.linalg.eigh(np.eye(n) - matrix / np.outer(root, root))
    return values, (vectors / root[:, None]).T


def connected(seed, n):
    """A random tree with some more edges, and random weights."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(o)), o) for o in range(1, n)}
    pairs |= {tuple(sorted(rng.choice(n, 2, replace=False).tolist())) for _ in range(n // 2)}
    sender, receiver = np.array(sorted(pairs)).reshape(-1, 2).T
    return sender, receiver, rng.uniform(0.5, 1.5, len(sender)), rng.normal(size=n)


def cliques(size):
    """Two of them, and the edges of each."""
    pairs = [(i + k, j + k) for k in (0, size) for i in range(size) for j in range(i + 1, size)]
    return np.array(pairs).T


@given(seeds, st.integers(3, 16))
def test_lanczos_is_exact_for_few_ops(seed, n):
    sender, receiver, weight, start = connected(seed, n)
    values, vectors = exact(sender, receiver, weight, n)
    found = coordinates(sender, receiver, weight, start)
    for c in range(min(COORDINATES, n - 1)):
        if np.abs(np.delete(values, c + 1) - values[c + 1]).min() < 1e-3:
            return  # Of a multiple eigenvalue any vector will do.
        wanted = vectors[c + 1] / np.sqrt((vectors[c + 1] ** 2).mean())
        wanted *= np.sign((wanted * found[c]).sum())
        np.testing.assert_allclose(found[c], wanted, atol=1e-4)
        assert (found[c] * start).sum() >= -1e-9


@given(seeds, st.integers(2, 60))
def test_each_has_mean_square_one_and_none_is_constant(seed, n):
    sender, receiver, weight, start = connected(seed, n)
    found = coordinates(sender, receiver, weight, start)
    assert found.shape == (COORDINATES, n)
    size = (found**2).mean(axis=1)
    np.testing.assert_allclose(size[: min(COORDINATES, n - 1)], 1)
    assert not size[n - 1 :].any()
    degree = np.bincount(sender, weight, n) + np.bincount(receiver, weight, n)
    np.testing.assert_allclose(found @ degree / degree.sum(), 0, atol=1e-6)


@given(seeds, st.integers(3, 16), st.integers(1, 4))
def test_in_every_slice_the_masses_balance(seed, n, count):
    """Compared with the eigenvectors of the matrix between two projections."""
    sender, receiver, weight, start = connected(seed, n)
    rng = np.random.default_rng(seed)
    mass, slices = rng.uniform(0.1, 1, n), rng.integers(count, size=n)
    found = coordinates(sender, receiver, weight, start, mass, slices)
    for k in range(count):
        np.testing.assert_allclose((mass * found)[:, slices == k].sum(axis=1), 0, atol=1e-6)
    matrix = np.zeros((n, n))
    np.add.at(matrix, (sender, receiver), weight)
    matrix += matrix.T
    root = np.sqrt(matrix.sum(axis=1))
    sums = np.stack([np.where(slices == k, mass / root, 0) for k in np.unique(slices)], axis=1)
    free = np.linalg.svd(sums)[0][:, sums.shape[1] :]  # A basis of the vectors whose sum is 0 in every slice.
    if not free.shape[1]:
        assert not found.any()
        return
    values, vectors = np.linalg.eigh(free.T @ (matrix / np.outer(root, root)) @ free)
    if free.shape[1] > 1 and values[-1] - values[-2] < 1e-3:
        return  # Of a multiple eigenvalue any vector will do.
    wanted = free @ vectors[:, -1] / root
    wanted /= np.sqrt((wanted**2).mean())
    np.testing.assert_allclose(np.abs(found[0] @ wanted) / n, 1, atol=1e-4)


def test_two_cliques_with_an_edge_between_them_are_told_apart():
    sender, receiver = np.concatenate([cliques(10), [[0], [10]]], axis=1)
    start = np.random.default_rng(1).normal(size=20)
    signs = np.sign(coordinates(sender, receiver, np.ones(len(sender)), start)[0])
    assert len(set(signs[:10])) == len(set(signs[10:])) == 1
    assert signs[0] == -signs[10]


def test_parts_that_no_edge_joins_are_told_apart():
    sender, receiver = cliques(6)
    start = np.random.default_rng(2).normal(size=12)
    found = coordinates(sender, receiver, np.ones(len(sender)), start)
    np.testing.assert_allclose(np.abs(found[0]), 1, atol=1e-6)
    assert np.sign(found[0, 0]) == -np.sign(found[0, 6])
    assert np.isfinite(found).all()


@given(seeds, st.integers(3, 40))
def test_numbers_and_units_do_not_matter(seed, n):
    sender, receiver, weight, start = connected(seed, n)
    found = coordinates(sender, receiver, weight, start)
    place = np.random.default_rng(seed).permutation(n)
    moved = np.empty(n)
    moved[place] = start
    other = coordinates(place[receiver], place[sender], 7 * weight, 3 * moved)[:, place]
    # Coordinates with nearly equal eigenvalues may mix; on small graphs the smoothest one is exact.
    values = exact(sender, receiver, weight, n)[0]
    if n <= 16 and values[2] - values[1] > 1e-2:
        np.testing.assert_allclose(other[0], found[0], atol=1e-5)
    np.testing.assert_allclose((other**2).mean(axis=1), (found**2).mean(axis=1), atol=1e-6)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_no_edges_and_few_ops(n):
    found = coordinates(NONE, NONE, np.zeros(0), np.arange(n) - (n - 1) / 2)
    assert found.shape == (COORDINATES, n)
    assert np.isfinite(found).all()
    # If ops differ, at least one coordinate is known, the start vector of the iteration.
    assert found.any() == (n > 1)


def test_one_edge_and_ops_that_do_not_differ():
    one = np.array([0]), np.array([1]), np.ones(1)
    found = coordinates(*one, np.array([0.5, -0.5]))
    np.testing.assert_allclose(found, [[1, -1], [0, 0]], atol=1e-12)
    assert not coordinates(*one, np.zeros(2)).any()


@given(seeds, st.integers(1, 40), st.integers(1, 5))
def test_compiled_loops_find_what_numpy_finds(seed, n, count):
    pytest.importorskip("numba")
    rng = np.random.default_rng(seed)
    edges = int(rng.integers(0, 2 * n))
    sender, receiver = rng.integers(n, size=(2, edges))
    arguments = (rng.random(edges), rng.random(n) * (rng.random(n) < 0.9), rng.integers(count, size=n))
    start = rng.normal(size=n)
    plain = _lanczos(sender, receiver, *arguments, start.copy())
    loops = compiled(_lanczos_loops)(sender, receiver, *arguments, start.copy())
    # Once the space is exhausted, further vectors consist of rounding errors.
    steps = next((j for j, length in enumerate(plain[2], 1) if length < 1e-6), len(plain[1]))
    for one, same in zip(plain, loops, strict=True):
        np.testing.assert_allclose(same[: steps - 1], one[: steps - 1], atol=1e-6)
