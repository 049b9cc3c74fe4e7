"""Disjoint sets as trees of parents."""

from typing import Any, TypeVar

__all__ = ["root_of"]

_Item = TypeVar("_Item")


def root_of(parent: Any, item: _Item) -> _Item:
    """The item that stands for its set: the root of its tree. Later calls take shorter paths.

    Args:
      parent: List or dictionary with the parent of every item; a root is its own.
      item: An item.
    """
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item
