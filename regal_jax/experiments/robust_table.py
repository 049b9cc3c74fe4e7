"""The tables of the suite of robust scheduling: every source on every set of graphs, beside the paper's."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.experiments.records import Records
from regal_jax.experiments.robust_paper import PAPER_SETS, PAPER_TABLES, Reported

__all__ = ["COLUMNS", "robust_fields", "robust_markdown", "robust_points"]

COLUMNS: Final = (
    "proposed", "proxy", "proxy_mean", "noisy", "bandwidth", "latency", "ged", "d_inv", "d_sen",
    "d_inv_squared", "d_sen_squared", "distinct", "seconds",
)  # fmt: skip
"""Fields of a result that tables show."""
_TITLES: Final = {
    "proposed": "schedules",
    "proxy": "proxy, best",
    "proxy_mean": "proxy, mean",
    "noisy": "noisy runtimes",
    "bandwidth": "bandwidth limited",
    "latency": "latency limited",
    "ged": "GED",
    "d_inv": "d_inv",
    "d_sen": "d_sen",
    "d_inv_squared": "d_inv²",
    "d_sen_squared": "d_sen²",
    "distinct": "different",
    "seconds": "s a graph",
}
_LISTED: Final = 6
"""Largest number of graphs of a set that are listed by name."""
_SETS: Final = {"one": "One real graph", "synthetic": "Synthetic graphs", "real": "Real graphs"}
_DIGITS: Final = {"proposed": 0, "ged": 1, "distinct": 1, "d_inv_squared": 1, "d_sen_squared": 1}
_PAPER_COLUMNS: Final = {"d_inv": "d_inv_squared", "d_sen": "d_sen_squared"}
"""Number of ops of the graphs of the paper's figures; see docs/design.md."""


def robust_fields(document: Mapping[str, Any], records: Records) -> list[dict[str, Any]]:
    """One row per set and source: means over graphs, then over seeds, with standard deviations over seeds.

    ``NAME`` is a mean, ``NAME_std`` the sample standard deviation over seeds (``None`` for fewer than two);
    ``paper_NAME`` and ``paper_NAME_std`` are the paper's figures.

    Args:
      document: Content of ``evaluation.json``.
      records: Records of ``results.jsonl``.
    """
    lines = []
    for set_ in _SETS:
        graphs = [graph["hash"] for graph in document["graphs"] if graph["set"] == set_]
        for jobs in _sources(document["jobs"]):
            columns = {name: _over_seeds(jobs, records, graphs, name) for name in COLUMNS}
            count = max(int((~np.isnan(records.column(job["key"], graphs, "value"))).sum()) for job in jobs)
            if not count:
                continue
            line: dict[str, Any] = {
                "set": set_,
                "name": jobs[0]["name"],
                "method": jobs[0]["title"],
                "graphs": count,
                "seeds": len(jobs),
                "count": jobs[0]["count"],
                "evaluations": jobs[0]["evaluations"],
            }
            for name, (mean, spread) in columns.items():
                line |= {name: mean, f"{name}_std": spread}
            reported = _paper(set_, jobs[0]["name"])
            for name in COLUMNS:
                mean, spread = reported.get(name, (None, None))
                line |= {f"paper_{name}": mean, f"paper_{name}_std": spread}
            lines.append(line)
    return lines


def _sources(jobs: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The jobs of each source, one per seed."""
    for name in dict.fromkeys(job["name"] for job in jobs):
        yield [job for job in jobs if job["name"] == name]


def _over_seeds(
    jobs: Sequence[Mapping[str, Any]], records: Records, graphs: Sequence[str], name: str
) -> tuple[float | None, float | None]:
    columns = [records.column(job["key"], graphs, name) for job in jobs]
    # In an unfinished run, compare seeds only on the graphs that all of them have.
    there = ~np.isnan(np.array(columns)).any(axis=0)
    means = np.array([column[there].mean() for column in columns if there.any()])
    if not means.size:
        return None, None
    return float(means.mean()), float(means.std(ddof=1)) if means.size > 1 else None


def _paper(set_: str, name: str) -> dict[str, Reported]:
    found = PAPER_TABLES[set_].get(name, {})
    return {_PAPER_COLUMNS.get(column, column): figure for column, figure in found.items()}


def robust_markdown(
    document: Mapping[str, Any], lines: Sequence[Mapping[str, Any]], figures: Sequence[str]
) -> str:
    """The tables as Markdown.

    Args:
      document: Content of ``evaluation.json``.
      lines: Result of `robust_fields`.
      figures: Files of pictures to show below the tables.
    """
    settings = document["config"]
    parts = [
        f"Four devices, free transfers; the best {settings['keep']} schedules by the proxy, equal ones too. "
        "Speed-up: all runtimes one after the other, over the makespan; best and mean of those schedules by "
        f"the proxy, best of them on each target (noisy runtimes: mean of {settings['draws']} draws). GED, "
        "d_inv, d_sen: mean distances of all pairs; GED in percent. Means over graphs, then over seeds, ± "
        "standard deviation over seeds. Rows of the paper are of other graphs; its d_inv and d_sen stand "
        "under the squared ones (docs/design.md).",
    ]
    for set_, title in _SETS.items():
        rows = [line for line in lines if line["set"] == set_]
        if rows:
            parts.append(
                f"## {title} (Table {PAPER_SETS[set_]})\n\n{_graphs(document, set_)}\n\n{_table(rows)}"
            )
    if document["left_out"]:
        parts.append("Left out:\n\n" + "\n".join(f"- {n}: {why}" for n, why in document["left_out"].items()))
    parts += [f"![{name}]({name})" for name in figures]
    return "\n\n".join(parts) + "\n"


def _graphs(document: Mapping[str, Any], set_: str) -> str:
    found = [graph for graph in document["graphs"] if graph["set"] == set_]
    ops = [graph["ops"] for graph in found]
    if len(found) > _LISTED:
        sizes = f"{min(ops)}" if min(ops) == max(ops) else f"{min(ops)} to {max(ops)}"
        return f"{len(found)} graphs of {sizes} ops."
    return ", ".join(f"`{graph['name']}` ({graph['ops']} ops)" for graph in found) + "."


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["source", *(_TITLES[name] for name in COLUMNS)]
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for row in rows:
        lines.append([row["method"], *(_shown(row, name, "") for name in COLUMNS)])
        paper = [_shown(row, name, "paper_") for name in COLUMNS]
        if any(paper):
            lines.append([f"*{row['method']}, paper*", *paper])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _shown(row: Mapping[str, Any], name: str, prefix: str) -> str:
    mean, spread = row.get(f"{prefix}{name}"), row.get(f"{prefix}{name}_std")
    if mean is None or math.isnan(mean):
        return ""
    digits = _DIGITS.get(name, 2)
    return f"{mean:.{digits}f}" + ("" if spread is None or not digits else f" ± {spread:.{digits}f}")


def robust_points(document: Mapping[str, Any], records: Records) -> dict[str, dict[str, np.ndarray]]:
    """Title of a source -> proxy and targets -> ``[K]`` speed-ups on the one real graph, first seed."""
    graphs = [graph["hash"] for graph in document["graphs"] if graph["set"] == "one"]
    points = {}
    for jobs in _sources(document["jobs"]):
        for graph in graphs:
            record = records.get(jobs[0]["key"], graph)
            if record is not None and "points" in record:
                points[jobs[0]["title"]] = {
                    name: np.array(values, np.float64) for name, values in record["points"].items()
                }
    return points
