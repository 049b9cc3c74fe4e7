"""Arithmetic of an Einstein sum. This module imports neither JAX nor PyTorch."""

import math
from collections.abc import Sequence

__all__ = ["einsum_flops"]


def einsum_flops(equation: str, shapes: Sequence[Sequence[int]]) -> float:
    """One multiply-add for each combination of indices: exact for two operands, an upper bound for more.

    Args:
      equation: As of `numpy.einsum`, e.g. ``"...ij,jk->...ik"``.
      shapes: Shape of each operand. Axes of size 1 are broadcast; missing ones count as 1.
    """
    sizes: dict[str | int, int] = {}
    for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=False):
        before, dots, after = term.partition("...")
        end = len(shape) - len(after)
        # Broadcast axes are numbered from the last one.
        middle = enumerate(reversed(shape[len(before) : end] if dots else ()))
        axes = *zip(before, shape, strict=False), *zip(after, shape[end:], strict=False), *middle
        for index, size in axes:
            sizes[index] = size if sizes.get(index, 1) == 1 else sizes[index]
    return 2.0 * math.prod(sizes.values())
