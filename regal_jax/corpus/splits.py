"""Which graphs of a corpus are distinct, and which split each belongs to."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from regal_jax.datasets.candidates import SPLITS

__all__ = ["SHARES", "Partition", "partition", "representatives", "roles"]

SHARES: Final[Mapping[str, float]] = dict(zip(SPLITS, (0.6, 0.2, 0.2), strict=True))
"""Part of the distinct graphs that each split should have."""


class Partition(NamedTuple):
    """What `partition` gives.

    Attributes:
      families: Family -> split.
      topologies: ``topology_hash`` -> split, which is that of all graphs with this topology.
    """

    families: dict[str, str]
    topologies: dict[str, str]


def representatives(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """For every graph, by path, the path of the graph that stands for its topology: the first by path."""
    first: dict[str, str] = {}
    for record in sorted(records, key=lambda r: r["path"]):
        first.setdefault(record["topology_hash"], record["path"])
    return {record["path"]: first[record["topology_hash"]] for record in records}


def partition(records: Sequence[Mapping[str, Any]], table: Mapping[str, str]) -> Partition:
    """A split for every family and for every topology, so that no topology is in two splits.

    1. A family of ``table`` has the split that stands there.
    2. Other families that share a topology form a group, at any remove. A group that shares topologies with
       families of ``table`` has the split of one of them: if they differ, the one furthest from training.
    3. The other groups are taken from the one with most distinct graphs down, equals by the hash of their
       first name, and each goes to the split that lacks most graphs. No split is then further above its share
       than one group is large, but for what 1 and 2 have given it.
    4. A topology has the split of its families. If those of ``table`` among them have several splits, it is
       the one furthest from training; families that are not in ``table`` then have no say.

    So families and graphs that the table does not know change nothing for those that it does, and a topology
    that is in the test split of some build, by a family of the table, is in no train split of a larger one.

    Args:
      records: Of the index: ``path``, ``family``, ``topology_hash``.
      table: Family -> split; families that ``records`` lack do not matter.

    Returns:
      The splits; the order of ``records`` changes nothing.
    """
    families_of: dict[str, set[str]] = {}
    for record in records:
        families_of.setdefault(record["topology_hash"], set()).add(record["family"])
    listed = {record["family"]: table[record["family"]] for record in records if record["family"] in table}
    group = _groups([found - listed.keys() for found in families_of.values()])
    split_of: dict[str, str] = {}  # Of groups.
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
    """What every graph is for, by path.

    Args:
      records: Of the index: ``path``, ``topology_hash``.
      topologies: Of `partition`.

    Returns:
      Path -> ``split``, ``distinct`` and, if another graph stands for the topology, ``represented_by``.
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
    """The split that is the furthest from training."""
    return max(splits, key=SPLITS.index)


def _balanced(sizes: Mapping[str, int], given: Mapping[str, int]) -> dict[str, str]:
    """A split for every group, by its size, where the splits have ``given`` already."""
    total = sum(sizes.values()) + sum(given.values())
    lacks = {split: share * total - given.get(split, 0) for split, share in SHARES.items()}
    split_of: dict[str, str] = {}
    for name in sorted(sizes, key=lambda g: (-sizes[g], hashlib.sha256(g.encode()).hexdigest())):
        split_of[name] = max(SPLITS, key=lambda split: (round(lacks[split], 6), -SPLITS.index(split)))
        lacks[split_of[name]] -= sizes[name]
    return split_of


def _groups(together: Sequence[set[str]]) -> dict[str, str]:
    """For each family the first, in the alphabet, of those that it is together with, at any remove."""
    parent = {family: family for families in together for family in families}

    def root(family: str) -> str:
        while parent[family] != family:
            parent[family] = parent[parent[family]]
            family = parent[family]
        return family

    for families in together:
        roots = {root(family) for family in families}
        for other in roots:
            parent[other] = min(roots)
    return {family: root(family) for family in parent}
