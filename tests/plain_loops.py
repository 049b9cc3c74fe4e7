"""Arguments with which compiled loops run in Python as they do when compiled."""

from typing import Any

import numpy as np

__all__ = ["Items", "Watched", "as_items", "watched"]


class Items(list[Any]):
    """A list whose items are not counted from the end, as in compiled loops."""

    def __getitem__(self, i: Any) -> Any:
        assert isinstance(i, slice) or i >= 0
        return super().__getitem__(i)

    def __setitem__(self, i: Any, value: Any) -> None:
        assert isinstance(i, slice) or i >= 0
        super().__setitem__(i, value)


class Watched:
    """An array whose items are not counted from the end; what is written to it is written to the array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, i: int) -> Any:
        assert i >= 0
        return self.array[i]

    def __setitem__(self, i: int, value: Any) -> None:
        assert i >= 0
        self.array[i] = value


def as_items(argument: Any) -> Any:
    """An argument of loops, with lists in the place of arrays."""
    if isinstance(argument, tuple):
        return type(argument)(*map(as_items, argument))
    return Items(argument.tolist()) if isinstance(argument, np.ndarray) else argument


def watched(function: Any) -> Any:
    """``function`` in Python, with `Watched` arrays; arrays that it returns are the given ones again."""

    def inside(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return type(argument)(*map(inside, argument))
        return Watched(argument) if isinstance(argument, np.ndarray) else argument

    def outside(result: Any) -> Any:
        if isinstance(result, tuple):
            return tuple(map(outside, result))
        return result.array if isinstance(result, Watched) else result

    return lambda *arguments: outside(function(*map(inside, arguments)))
