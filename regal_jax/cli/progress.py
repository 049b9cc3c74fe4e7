"""Progress bars of commands, on stderr if that is a terminal."""

import functools
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["progress_bars"]


def progress_bars(*, quiet: bool = False) -> Callable[..., Any] | None:
    """Makes progress bars, with the arguments of `tqdm.tqdm`; ``None`` if nobody would see them."""
    if quiet or not sys.stderr.isatty():
        return None
    from tqdm import tqdm

    return functools.partial(tqdm, dynamic_ncols=True)
