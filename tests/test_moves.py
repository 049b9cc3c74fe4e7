"""Neighbours of a plan: exactly one decision changes."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances, random_graph, random_keys

from regal_jax import encoding
from regal_jax.encoding import PlanMoves, gene_shapes
from regal_jax.graph import Cluster, GraphBuilder, TransferModel
from regal_jax.problem import Bucket, make_problem

BUCKET = Bucket(12, 36, 80, 66)
LARGER = Bucket(16, 48, 128, 96)
COUNT = 64
move = jax.jit(PlanMoves().__call__)
decode = jax.jit(encoding.decode)
seeds = st.integers(0, 2**32 - 1)


def padded(graph, cluster, bucket):
    """One shape, and hence one compilation, for every number of devices."""
    return dataclasses.replace(make_problem([graph], cluster, bucket, 4), unlimited=False)


def draw(problem, seed, coarse=False):
    rng = np.random.default_rng(seed)
    shapes = gene_shapes(problem)
    genes = {k: random_keys(rng, (1, COUNT, *s.shape), coarse) for k, s in shapes.items()}
    return genes, rng.integers(0, 2**32, (1, COUNT, PlanMoves().words), dtype=np.uint32)


def changed(before, after):
    return {k: np.argwhere((np.asarray(before[k]) != np.asarray(after[k]))[0]) for k in before}


@given(instances(), seeds, st.booleans())
def test_a_neighbour_differs_in_one_decision_that_is_allowed(instance, seed, coarse):
    graph, cluster = instance
    problem = padded(graph, cluster, BUCKET)
    genes, bits = draw(problem, seed, coarse)
    new = move(problem, genes, bits)
    old_place, place = (np.asarray(decode(problem, g).placement)[0, :, : graph.num_ops] for g in (genes, new))
    allowed = np.asarray(problem.allowed)[0]
    leader = graph.colocation_leader
    where = changed(genes, new)
    for p in range(COUNT):
        ops = {int(o) for q, o, _ in where["affinity"] if q == p}
        priorities = {int(o) for q, o in where["priority"] if q == p}
        transfers = [(int(t), int(k)) for q, t, k in where["transfer_priority"] if q == p]
        assert len(ops) + len(priorities) + len(transfers) <= 1
        assert ops | priorities <= set(range(graph.num_ops))
        assert allowed[np.arange(graph.num_ops), place[p]].all()
        moved = np.flatnonzero(place[p] != old_place[p])
        if ops:
            # The whole group and no other op moves to one other device.
            np.testing.assert_array_equal(moved, np.flatnonzero(leader == ops.pop()))
            assert len(set(place[p][moved])) == 1
        else:
            assert not len(moved)
        for t, k in transfers:
            assert place[p][graph.tensor_op[t]] != k
            assert k in place[p][graph.edge_op[graph.edge_tensor == t]]


@given(instances(), seeds)
def test_padding_changes_nothing(instance, seed):
    graph, cluster = instance
    small, large = (padded(graph, cluster, bucket) for bucket in (BUCKET, LARGER))
    genes, bits = draw(large, seed)
    cut = {k: leaf[:, :, : gene_shapes(small)[k].shape[0]] for k, leaf in genes.items()}
    new, new_cut = (
        jax.tree.map(np.asarray, move(*case)) for case in ((large, genes, bits), (small, cut, bits))
    )
    for k, leaf in new_cut.items():
        np.testing.assert_array_equal(leaf, new[k][:, :, : leaf.shape[2]])
        np.testing.assert_array_equal(genes[k][:, :, leaf.shape[2] :], new[k][:, :, leaf.shape[2] :])


def neighbours(cluster, count=4096, seed=0):
    problem = make_problem([random_graph(np.random.default_rng(3), 12, cluster.num_devices)], cluster, BUCKET)
    rng = np.random.default_rng(seed)
    one = {k: random_keys(rng, (1, 1, *s.shape)) for k, s in gene_shapes(problem).items()}
    genes = {k: np.broadcast_to(g, (1, count, *g.shape[2:])) for k, g in one.items()}
    bits = rng.integers(0, 2**32, (1, count, 4), dtype=np.uint32)
    return problem, genes, move(problem, genes, bits)


@pytest.mark.parametrize("transfer", list(TransferModel))
def test_every_decision_can_change(transfer):
    problem, genes, new = neighbours(Cluster.uniform(3, transfer=transfer))
    where = changed(genes, new)
    choices = np.asarray(problem.allowed)[0, :12].sum(1)
    leaders = {o for o in range(12) if int(problem.leader[0, o]) == o}
    assert {int(o) for _, o, _ in where["affinity"]} == {o for o in leaders if choices[o] > 1}
    assert {int(o) for _, o in where["priority"]} == set(range(12))
    place = np.asarray(decode(problem, genes).placement)[0, 0]
    sent = set()
    for o in range(12):
        first, last = np.asarray(problem.op_row)[0, o]
        for e in range(first, last):
            t, k = int(problem.via[0, e]), int(place[problem.successor[0, e]])
            if t < BUCKET.tensors and k != place[o]:
                sent.add((t, k))
    blocking = transfer is TransferModel.BLOCKING
    assert {(int(t), int(k)) for _, t, k in where["transfer_priority"]} == (sent if blocking else set())
    assert sent


def test_a_device_is_drawn_evenly():
    problem, genes, new = neighbours(Cluster.uniform(4, transfer="blocking"), count=40_000)
    before, after = (np.asarray(decode(problem, g).placement)[0] for g in (genes, new))
    op = int(np.argmax(np.asarray(problem.allowed)[0, :12].sum(1)))
    to = after[:, op][after[:, op] != before[:, op]]
    counts = np.bincount(to, minlength=4)
    counts = counts[np.arange(4) != before[0, op]]
    assert len(to) > 300
    assert (np.abs(counts - len(to) / 3) < 5 * np.sqrt(len(to) / 3)).all()


def test_one_op_on_one_device():
    builder = GraphBuilder("one")
    builder.add_op("only", runtime=1.0)
    problem = make_problem([builder.build()], Cluster.uniform(1))
    genes, bits = draw(problem, 0)
    where = changed(genes, move(problem, genes, bits))
    assert not len(where["affinity"])
    assert not len(where["transfer_priority"])
    assert len(where["priority"])
