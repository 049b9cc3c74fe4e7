"""Which graphs of a corpus are distinct, and which split each belongs to."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

__all__ = ["SHARES", "SPLITS", "partition", "representatives"]

SHARES: Final[Mapping[str, float]] = {"train": 0.6, "validation": 0.2, "test": 0.2}
"""Part of the distinct graphs that each split should have."""

SPLITS: Final = tuple(SHARES)


def representatives(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """For every graph, by path, the path of the graph that stands for its topology: the first by path."""
    first: dict[str, str] = {}
    for record in sorted(records, key=lambda r: r["path"]):
        first.setdefault(record["topology_hash"], record["path"])
    return {record["path"]: first[record["topology_hash"]] for record in records}


def partition(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A split for every family, so that no family and no topology is in two splits.

    Families that share a topology go together. Groups are taken from the one with most distinct graphs
    down, equals by the hash of their first name, and each goes to the split that lacks most graphs. No split
    is then further above its share than one group is large.

    Args:
      records: Of the index: ``path``, ``family``, ``topology_hash``.

    Returns:
      Family -> split; the order of ``records`` changes nothing.
    """
    group = _groups(records)
    sizes: Counter[str] = Counter(dict.fromkeys(group.values(), 0))
    for record in {r["topology_hash"]: r for r in records}.values():
        sizes[group[record["family"]]] += 1
    total = sum(sizes.values())
    lacks = {split: share * total for split, share in SHARES.items()}
    split_of: dict[str, str] = {}
    for name in sorted(sizes, key=lambda g: (-sizes[g], hashlib.sha256(g.encode()).hexdigest())):
        split_of[name] = max(SPLITS, key=lambda split: (round(lacks[split], 6), -SPLITS.index(split)))
        lacks[split_of[name]] -= sizes[name]
    return {family: split_of[group[family]] for family in sorted(group)}


def _groups(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """For each family the first, in the alphabet, of those that it shares topologies with, at any remove."""
    parent = {record["family"]: record["family"] for record in records}

    def root(family: str) -> str:
        while parent[family] != family:
            parent[family] = parent[parent[family]]
            family = parent[family]
        return family

    owner: dict[str, str] = {}
    for record in records:
        a, b = root(record["family"]), root(owner.setdefault(record["topology_hash"], record["family"]))
        parent[max(a, b)] = min(a, b)
    return {family: root(family) for family in parent}
