"""Arguments with which compiled loops run in Python as they do when compiled."""

from typing import Any

import numpy as np

__all__ = ["Items", "as_items"]


class Items(list[Any]):
    """A list whose items are not counted from the end, as in compiled loops."""

    def __getitem__(self, i: Any) -> Any:
        assert isinstance(i, slice) or i >= 0
        return super().__getitem__(i)

    def __setitem__(self, i: Any, value: Any) -> None:
        assert isinstance(i, slice) or i >= 0
        super().__setitem__(i, value)


def as_items(argument: Any) -> Any:
    """An argument of loops, with lists in the place of arrays."""
    if isinstance(argument, tuple):
        return type(argument)(*map(as_items, argument))
    return Items(argument.tolist()) if isinstance(argument, np.ndarray) else argument
