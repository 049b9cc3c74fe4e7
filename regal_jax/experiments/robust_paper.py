"""Results that Zhang et al. 2023 (Robust Scheduling with GFlowNets) report, on graphs other than ours."""

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["PAPER_SETS", "PAPER_TABLES", "Reported"]


class Reported(NamedTuple):
    """A figure of the paper.

    Attributes:
      mean: Over seeds.
      spread: Standard deviation; ``None`` if the paper has none.
    """

    mean: float
    spread: float | None = None


PAPER_SETS: Final[Mapping[str, int]] = {"one": 1, "synthetic": 2, "real": 3}
"""Set of graphs -> number of its table."""

_TABLE_1_COLUMNS: Final = ("proxy", "noisy", "bandwidth", "latency", "ged", "d_inv", "d_sen")
_TABLE_2_COLUMNS: Final = ("proxy", "proxy_mean", "ged", "d_inv", "d_sen")
_TABLE_3_COLUMNS: Final = ("proxy", "proxy_mean", *_TABLE_1_COLUMNS[1:])
# For each column, the mean and the spread.
_TABLE_1: Final = {
    "list-scheduling": (3.23, 0, 2.75, 0, 1.02, 0, 1.74, 0, 0, 0, 0, 0, 0, 0),
    "brkga": (3.22, 0, 2.86, 0.15, 1.29, 0.45, 1.80, 0.34, 55.92, 2.56, 22.83, 2.39, 56.21, 1.50),
    "ppo": (3.28, 0.07, 3.07, 0.09, 1.38, 0.49, 1.87, 0.38, 85.08, 3.54, 31.71, 0.05, 105.64, 0.08),
    "gflownet": (3.21, 0.02, 3.05, 0.04, 1.78, 0.03, 2.11, 0.03, 94.79, 0.15, 42.08, 0.33, 115.98, 0.09),
}
_TABLE_2: Final = {
    "list-scheduling": (3.44, 3.44, 0, 0, 0),
    "brkga": (3.46, 3.45, 46.59, 12.75, 40.11),
    "ppo": (3.48, 3.46, 69.54, 13.45, 80.84),
    "gflownet": (3.46, 3.41, 92.02, 24.27, 90.17),
}
_TABLE_3: Final = {
    "list-scheduling": (2.74, 0, 2.74, 0, 2.51, 0, 0.89, 0, 1.43, 0, 0, 0, 0, 0, 0, 0),
    "brkga": (
        *(2.59, 0.18, 2.58, 0.18, 2.46, 0.16, 1.55, 0.17, 1.80, 0.18),
        *(52.32, 21.59, 17.14, 8.17, 42.64, 12.23),
    ),
    "ppo": (
        *(2.41, 0.20, 2.23, 0.27, 2.28, 0.26, 0.91, 0.20, 1.43, 0.10),
        *(53.05, 7.27, 42.70, 3.44, 64.92, 4.08),
    ),
    "gflownet": (
        *(2.71, 0.03, 2.66, 0.01, 2.71, 0.01, 1.73, 0.01, 1.95, 0.03),
        *(87.95, 0.13, 26.56, 0.56, 91.33, 0.15),
    ),
}


def _paired(columns: tuple[str, ...], row: tuple[float, ...]) -> dict[str, Reported]:
    pairs = zip(row[::2], row[1::2], strict=True)
    return {name: Reported(*pair) for name, pair in zip(columns, pairs, strict=True)}


PAPER_TABLES: Final[Mapping[str, Mapping[str, Mapping[str, Reported]]]] = {
    "one": {method: _paired(_TABLE_1_COLUMNS, row) for method, row in _TABLE_1.items()},
    "synthetic": {
        method: {name: Reported(value) for name, value in zip(_TABLE_2_COLUMNS, row, strict=True)}
        for method, row in _TABLE_2.items()
    },
    "real": {method: _paired(_TABLE_3_COLUMNS, row) for method, row in _TABLE_3.items()},
}
"""Set -> method -> column -> figure. Its ``d_inv`` and ``d_sen`` are comparable to our squared ones."""
