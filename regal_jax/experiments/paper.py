"""Results that the papers report, on graphs other than ours."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from regal_jax.plan import Objective

__all__ = ["DATASETS", "PAPER", "Reported", "reported"]


class Reported(NamedTuple):
    """A method on a dataset of the papers.

    Attributes:
      gap: Mean gap from the best known value, as a share (workshop text, Table 1).
      improvement: Mean improvement over BRKGA 5K, as a share: computed from the gaps as
        ``1 - (1 + gap) / (1 + gap of BRKGA 5K)``; the ICLR text's Table 1 prints it.
    """

    gap: float
    improvement: float


DATASETS: Final[Mapping[Objective, tuple[str, ...]]] = MappingProxyType(
    {
        Objective.MAKESPAN: ("synthetic runtime", "TF runtime"),
        Objective.PEAK_MEMORY: ("TF peak memory",),
    }
)

_GAPS: Final = {
    "cp-sat": (0.0, 0.0100, 0.0806),
    "gp-dfs": (0.9366, 0.6698, 0.1477),
    "local-search": (0.2460, 0.2263, 0.0724),
    "brkga": (0.2463, 0.2019, 0.0798),
    "tuned-brkga": (0.2076, 0.1640, 0.0711),
    "gas": (0.2348, 0.1524, 0.0767),
    "idrs": (0.3972, 0.2860, 0.1239),
    "regal": (0.1857, 0.1104, 0.0444),
}
_COLUMNS: Final = ("synthetic runtime", "TF runtime", "TF peak memory")

PAPER: Final[Mapping[str, Mapping[str, Reported]]] = MappingProxyType(
    {
        name: MappingProxyType(
            {
                column: Reported(gap, 1 - (1 + gap) / (1 + reference))
                for column, gap, reference in zip(_COLUMNS, gaps, _GAPS["brkga"], strict=True)
            }
        )
        for name, gaps in _GAPS.items()
    }
)
"""Method -> dataset -> reported result."""


_SAME: Final = {"regal-faithful": "regal", "regal-faithful-workshop": "regal"}
"""Methods of ours that the papers have under another name."""


def reported(method: str, dataset: str) -> Reported | None:
    """The papers' result for a method of ours on a dataset; ``None`` if there is none."""
    return PAPER.get(_SAME.get(method, method), {}).get(dataset)
