"""Results that Gagrani et al. 2022 (Neural Topological Ordering) report, on graphs other than ours."""

from collections.abc import Iterator
from typing import Final, NamedTuple

__all__ = ["REPORTED", "ReportedOrder", "reported_orders"]


class ReportedOrder(NamedTuple):
    """A method on a set of graphs of the paper.

    Attributes:
      table: Number of the table.
      set: Name of the set of graphs in our tables.
      method: Name of the row in `regal_jax.experiments.EvaluationConfig`.
      gap: Mean gap from approximate dynamic programming, as a share.
      half_width: Half the width of its 95 % interval, as a share; ``None`` if the paper has none.
      seconds: Mean run time per graph. Networks and approximate DP ran on a V100, depth-first DP on a CPU.
    """

    table: int
    set: str
    method: str
    gap: float
    half_width: float | None
    seconds: float


# For each set in turn: gap in percent and seconds; in tables 3 and 4 gap, half width and seconds.
_LAYERED: Final = ("layered 500", "layered 1000", "layered 2000")
_REAL: Final = ("real 200-500", "real 500-700", "real 700-1000")
_TABLE_1: Final = {
    "approximate-dp": (0, 264.88, 0, 1561.17, 0, 8828.86),
    "depth-first-dp": (5.76, 3600, 3.84, 3600, 2.40, 3600),
    "random-orders": (6.86, 1.38, 2.62, 7.13, 0.31, 36.87),
    "partition-dfs": (12.9, 2.45, 7.1, 10.91, 3.57, 51.32),
    "bfs": (20.94, 2.43, 11.31, 10.87, 6.42, 51.52),
    "topoformer-greedy": (4.32, 0.6, 0.48, 1.19, -1.47, 2.44),
    "topoformer-sample": (3.49, 0.72, 0.03, 1.41, -1.68, 2.87),
    "topoformer-beam": (3.21, 2.68, 0.08, 5.92, -1.66, 14.74),
}
_TABLE_2: Final = {
    "approximate-dp": (0, 113.54, 0, 517.60, 0, 1131.61),
    "depth-first-dp": (62.18, 3600, 102.76, 3600, 50.57, 3600),
    "random-orders": (469.34, 0.25, 376.16, 1.24, 116.24, 2.40),
    "partition-dfs": (506.21, 0.70, 394.93, 2.26, 123.21, 4.49),
    "bfs": (348.77, 0.75, 149.81, 2.31, -35.55, 4.86),
    "topoformer-greedy": (-17.57, 0.42, -51.23, 0.6, -68.97, 0.83),
    "topoformer-sample": (-21.53, 0.44, -40.51, 0.68, -61.46, 0.97),
    "topoformer-beam": (-19.5, 1.22, -57.34, 2.58, -73.45, 3.86),
}
_TABLE_3: Final = {
    "mlp-greedy": (8.31, 0.76, 0.58, 2.95, 0.48, 1.52),
    "mlp-sample": (4.41, 0.50, 0.67, 0.68, 0.35, 1.84),
    "mlp-beam": (6.5, 0.69, 2.47, 2.43, 0.49, 7.62),
    "transformer-greedy": (8.46, 0.72, 0.69, 3.09, 0.46, 1.3),
    "transformer-sample": (4.72, 0.52, 0.8, 0.85, 0.37, 1.55),
    "transformer-beam": (6.52, 0.72, 2.98, 2.09, 0.47, 6.49),
    "gat-forward-greedy": (5.94, 0.61, 0.49, 1.33, 0.38, 1.24),
    "gat-forward-sample": (4.19, 0.56, 0.64, 0.48, 0.36, 1.54),
    "gat-forward-beam": (4.22, 0.60, 2.22, 0.60, 0.38, 5.94),
    "gat-greedy": (4.84, 0.55, 0.63, 0.90, 0.37, 1.37),
    "gat-sample": (3.55, 0.53, 0.80, 0.23, 0.36, 1.67),
    "gat-beam": (3.55, 0.54, 2.89, 0.39, 0.36, 6.50),
    "topoformer-edges-greedy": (4.82, 0.55, 0.73, 0.76, 0.36, 1.62),
    "topoformer-edges-sample": (3.67, 0.52, 0.85, 0.21, 0.36, 1.99),
    "topoformer-edges-beam": (3.68, 0.57, 3.03, 0.35, 0.37, 8.1),
    "topoformer-greedy": (4.31, 0.56, 1.04, 0.47, 0.36, 1.51),
    "topoformer-sample": (3.35, 0.52, 1.21, -0.01, 0.35, 1.8),
    "topoformer-beam": (3.08, 0.51, 4.15, 0.05, 0.36, 7.4),
}
_TABLE_4: Final = {
    "gnn-ar-greedy": (6.13, 0.58, 1.66, 1.84, 0.39, 3.34),
    "gnn-ar-sample": (4.71, 0.56, 1.76, 1.38, 0.37, 3.59),
    "gnn-ar-beam": (4.87, 0.61, 4.01, 2.09, 0.41, 7.90),
    "topoformer-ar-greedy": (4.43, 0.55, 1.53, 0.53, 0.35, 3.05),
    "topoformer-ar-sample": (3.33, 0.51, 1.7, 0.05, 0.35, 3.38),
    "topoformer-ar-beam": (3.14, 0.52, 4.27, 0.13, 0.36, 7.90),
    "topoformer-greedy": (4.31, 0.56, 1.04, 0.47, 0.36, 1.53),
    "topoformer-sample": (3.35, 0.52, 1.21, 0.09, 0.35, 1.78),
    "topoformer-beam": (3.08, 0.51, 4.15, 0.2, 0.36, 5.57),
}


def _all() -> Iterator[ReportedOrder]:
    for number, sets, table in ((1, _LAYERED, _TABLE_1), (2, _REAL, _TABLE_2)):
        for method, row in table.items():
            for name, gap, seconds in zip(sets, row[::2], row[1::2], strict=True):
                yield ReportedOrder(number, name, method, gap / 100, None, seconds)
    for number, table in ((3, _TABLE_3), (4, _TABLE_4)):
        for method, row in table.items():
            for name, gap, half, seconds in zip(_LAYERED[:2], row[::3], row[1::3], row[2::3], strict=True):
                yield ReportedOrder(number, name, method, gap / 100, half / 100, seconds)


REPORTED: Final = tuple(_all())
"""Tables 1 to 4. Figures of Table 4 for 1000 ops use 8 samples and a beam of 8; all others use 16."""


def reported_orders(method: str, set_: str) -> list[ReportedOrder]:
    """The paper's results for a method on a set, in the order of its tables; empty for most."""
    return [each for each in REPORTED if each.method == method and each.set == set_]
