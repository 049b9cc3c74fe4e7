"""Clusters, and errors for clusters that do not fit their graph."""

import copy
import dataclasses
import math

import numpy as np
import pytest

from regal_jax.errors import ClusterError
from regal_jax.graph import (
    Cluster,
    GraphBuilder,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)


def test_what_is_given_is_what_is_kept():
    cluster = Cluster(("16GiB", 5, math.inf), "delay", "5us", "50GB/s")
    assert cluster.memory == (16 * 2**30, 5.0, math.inf)
    assert (cluster.transfer, cluster.num_devices) == (TransferModel.DELAY, 3)
    assert cluster.transfer_time(50_000, "us") == pytest.approx(5 + 1)
    assert Cluster.uniform(2, transfer="blocking") == Cluster((math.inf, math.inf), "blocking", 0, math.inf)
    assert Cluster.uniform(2, "1KiB", "blocking:latency=5us,bandwidth=50GB/s").bandwidth == "50GB/s"
    assert Cluster(np.array([3, 4]), latency=np.float32(2)).latency == 2.0  # pyright: ignore
    assert type(Cluster((1, 1), latency=np.int64(2)).latency) is float  # pyright: ignore


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((),), "at least one"),
        ((5,), "one capacity a device"),
        (("16GiB",), "one capacity a device"),
        (((-1,),), r"memory\[0\]"),
        (((1, math.nan),), r"memory\[1\]"),
        (((1, "x"),), r"memory\[1\]"),
        (((1,), "teleport"), "blocking, delay, free"),
        (((1,), "delay", -1), "latency"),
        (((1,), "delay", math.inf), "latency"),
        (((1,), "delay", math.nan), "latency"),
        (((1,), "delay", [1, 2]), "latency"),
        (((1,), 5), "transfer"),
        (((1,), "delay", 0, 0), "bandwidth"),
        (((1,), "delay", 0, -3), "bandwidth"),
        (((1,), "delay", 0, "4" + "x"), "bandwidth"),
        (((1,), "free", 1), "use 'delay'"),
        (((1,), "free", 0, 10), "use 'delay'"),
    ],
)
def test_impossible_clusters(arguments, message):
    with pytest.raises(ClusterError, match=message) as caught:
        Cluster(*arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("devices", [0, -1, 1.5, "2", True, None])
def test_impossible_numbers_of_devices(devices):
    with pytest.raises(ClusterError, match="devices"):
        Cluster.uniform(devices)


@pytest.mark.parametrize(
    "text", ["blocking:latency", "blocking:speed=3", "x", "", "delay:latency=-1", "free:latency=1"]
)
def test_impossible_transfer_texts(text):
    with pytest.raises(ClusterError, match=r"^cluster: |^transfer"):
        Cluster.uniform(1, transfer=text)


def test_a_graph_that_the_cluster_cannot_run():
    b = GraphBuilder()
    b.add_op("a", runtime=[1, 2, 3])
    with pytest.raises(ClusterError, match="runtimes for 3 devices, the cluster has 2"):
        runtime_matrix(b.build(), Cluster.uniform(2))
    b = GraphBuilder()
    b.add_op("a")
    one = dataclasses.replace(b.build(), runtime=np.ones((1, 1)))
    with pytest.raises(ClusterError, match="runtimes for 1 device, the cluster has 2"):
        runtime_matrix(one, Cluster.uniform(2))
    b = GraphBuilder()
    b.add_op("a", allowed_devices=[2, 5])
    with pytest.raises(ClusterError, match=r"'a'.* none of the cluster's 2 devices"):
        allowed_matrix(b.build(), Cluster.uniform(2))
    assert allowed_matrix(b.build(), Cluster.uniform(4)).tolist() == [[False, False, True, False]]
    b.add_op("b", allowed_devices=[0, 1, 2], colocation_group="g")
    b.add_op("c", allowed_devices=[1, 2], colocation_group="g")
    b.add_op("d", colocation_group="g")
    assert allowed_matrix(b.build(), Cluster.uniform(3)).tolist() == [[False, False, True]] + 3 * [
        [False, True, True]
    ]


def test_transfer_times():
    b = GraphBuilder(time_unit="us")
    b.add_op("a", outputs=[0, 1000])
    graph = b.build()
    assert transfer_times(graph, Cluster((1, 1), "blocking")).tolist() == [[0], [0]]
    cluster = Cluster((1, 1), "delay", "2us", "1GB/s")
    assert transfer_times(graph, cluster).tolist() == [[2], [3]]
    assert transfer_times(graph, cluster).tolist() == [[cluster.transfer_time(b, "us")] for b in (0, 1000)]
    said = "the transfers of graph 'graph' over links of latency 0, bandwidth 1e-306 are endless; check"
    with pytest.raises(ClusterError, match=said):
        transfer_times(graph, Cluster((1, 1), "delay", 0, 1e-306))


def test_equal_clusters_have_equal_hashes_and_a_copy_computes_its_own():
    clusters = [Cluster.nodes(2, 2, within="nvlink4", between="ethernet-100g") for _ in range(2)]
    assert clusters[0] == clusters[1]
    assert hash(clusters[0]) == hash(clusters[1]) != hash(Cluster.uniform(4, transfer="nvlink4"))
    assert {clusters[0]: 1}[clusters[1]] == 1
    twin = copy.deepcopy(clusters[0])
    # The hash of a text differs between processes.
    assert set(vars(twin)) == {"memory", "transfer", "latency", "bandwidth"}
    assert twin == clusters[0]
    assert hash(twin) == hash(clusters[0])
    assert twin.links == clusters[0].links
