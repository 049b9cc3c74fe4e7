"""Distinct graphs of a corpus, and the split of each graph."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from regal_jax.datasets.candidates import SPLITS
from regal_jax.graph.roots import root_of

__all__ = ["SHARES", "Partition", "partition", "representatives", "roles"]

SHARES: Final[Mapping[str, float]] = dict(zip(SPLITS, (0.6, 0.2, 0.2), strict=True))
"""Target share of the distinct graphs in each split."""


class Partition(NamedTuple):
    """Result of `partition`.

    Attributes:
      families: Family -> split.
      topologies: ``topology_hash`` -> split of all graphs with this topology.
    """

    families: dict[str, str]
    topologies: dict[str, str]


def representatives(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Path of each graph -> path of the graph that represents its topology, the first by path."""
    first: dict[str, str] = {}
    for record in sorted(records, key=lambda r: r["path"]):
        first.setdefault(record["topology_hash"], record["path"])
    return {record["path"]: first[record["topology_hash"]] for record in records}


def partition(records: Sequence[Mapping[str, Any]], table: Mapping[str, str]) -> Partition:
    """A split for every family and for every topology, so that no topology is in two splits.

    1. A family of ``table`` has its split there.
    2. Other families that share a topology, directly or through other families, form a group. A group that
       shares topologies with families of ``table`` has their split; if they differ, the one furthest from
       training.
    3. The other groups are taken in descending order of distinct graphs, ties by the hash of their first
       name. Each goes to the split that lacks most graphs. So no split exceeds its share by more than the
       size of one group, apart from the graphs that rules 1 and 2 assign to it.
    4. A topology has the split of its families. If families of ``table`` among them have several splits, it
       has the one furthest from training; families that are not in ``table`` then do not count.

    So families and graphs outside the table do not affect those in it. If a family of the table puts a
    topology into the test split of some build, the topology is in no train split of a larger build.

    Args:
      records: Records of the index with ``path``, ``family`` and ``topology_hash``.
      table: Family -> split; families that ``records`` lack are ignored.

    Returns:
      The splits; the order of ``records`` does not matter.
    """
    families_of: dict[str, set[str]] = {}
    for record in records:
        families_of.setdefault(record["topology_hash"], set()).add(record["family"])
    listed = {record["family"]: table[record["family"]] for record in records if record["family"] in table}
    group = _groups([found - listed.keys() for found in families_of.values()])
    split_of: dict[str, str] = {}  # Split of each group.
    topologies: dict[str, str] = {}
    for topology, found in families_of.items():
        if found & listed.keys():
            split = topologies[topology] = _furthest(listed[family] for family in found & listed.keys())
            for name in {group[family] for family in found - listed.keys()}:
                split_of[name] = _furthest([split, split_of.get(name, split)])
    group_of = {t: group[min(found)] for t, found in families_of.items() if t not in topologies}
    topologies |= {t: split_of[name] for t, name in group_of.items() if name in split_of}
    sizes = Counter(name for name in group_of.values() if name not in split_of)
    split_of |= _balanced(sizes, Counter(topologies.values()))
    topologies |= {t: split_of[name] for t, name in group_of.items()}
    families = listed | {family: split_of[name] for family, name in group.items()}
    return Partition(dict(sorted(families.items())), dict(sorted(topologies.items())))


def roles(records: Sequence[Mapping[str, Any]], topologies: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The role of every graph, by path.

    Args:
      records: Records of the index with ``path`` and ``topology_hash``.
      topologies: Field of the result of `partition`.

    Returns:
      Path -> ``split``, ``distinct`` and, if another graph represents the topology, ``represented_by``.
    """
    stands_for = representatives(records)
    found: dict[str, dict[str, Any]] = {}
    for record in sorted(records, key=lambda r: r["path"]):
        path, first = record["path"], stands_for[record["path"]]
        found[path] = {"split": topologies[record["topology_hash"]], "distinct": first == path}
        if first != path:
            found[path]["represented_by"] = first
    return found


def _furthest(splits: Iterable[str]) -> str:
    """The split that is furthest from training."""
    return max(splits, key=SPLITS.index)


def _balanced(sizes: Mapping[str, int], given: Mapping[str, int]) -> dict[str, str]:
    """A split for every group, given the groups' ``sizes`` and the graphs ``given`` to the splits before."""
    total = sum(sizes.values()) + sum(given.values())
    lacks = {split: share * total - given.get(split, 0) for split, share in SHARES.items()}
    split_of: dict[str, str] = {}
    for name in sorted(sizes, key=lambda g: (-sizes[g], hashlib.sha256(g.encode()).hexdigest())):
        split_of[name] = max(SPLITS, key=lambda split: (round(lacks[split], 6), -SPLITS.index(split)))
        lacks[split_of[name]] -= sizes[name]
    return split_of


def _groups(together: Sequence[set[str]]) -> dict[str, str]:
    """Family -> alphabetically first family of its connected group."""
    parent = {family: family for families in together for family in families}
    for families in together:
        roots = {root_of(parent, family) for family in families}
        for other in roots:
            parent[other] = min(roots)
    return {family: root_of(parent, family) for family in parent}
