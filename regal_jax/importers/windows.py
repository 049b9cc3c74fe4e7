"""The part of a sliding window that covers data instead of padding. This module does not import JAX."""

import functools
from typing import Final

import numpy as np

__all__ = ["taps"]

_MOST_PAIRS: Final = 2**22


@functools.lru_cache(maxsize=4096)
def taps(size: int, kernel: int, out: int, stride: int, pad: int, lhs_dilation: int, dilation: int) -> int:
    """Counts, in one dimension, the pairs of output and kernel positions that read an element of the input.

    Exact up to 4 million pairs; beyond that, the padding is counted as if it were data.

    Args:
      size: Size of the input.
      kernel: Size of the kernel.
      out: Size of the output.
      stride: Stride of the window.
      pad: Padding before the first element.
      lhs_dilation: Dilation of the input.
      dilation: Dilation of the kernel.
    """
    if out * kernel == 0 or out * kernel > _MOST_PAIRS:
        return out * kernel // lhs_dilation
    at = np.arange(out)[:, None] * stride + np.arange(kernel)[None, :] * dilation - pad
    return int(((at >= 0) & (at <= (size - 1) * lhs_dilation) & (at % lhs_dilation == 0)).sum())
