"""The tables of the suite of robust scheduling: every source on every set of graphs, beside the paper's."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.experiments.records import Records
from regal_jax.experiments.robust_paper import PAPER_SETS, PAPER_TABLES, Reported
from regal_jax.experiments.statistics import Interval, bootstrap
from regal_jax.experiments.tables import left_out_paragraphs, markdown_table

__all__ = [
    "COLUMNS",
    "COMPARED",
    "TITLES",
    "difference",
    "robust_contrasts",
    "robust_differences_markdown",
    "robust_fields",
    "robust_markdown",
    "robust_points",
    "robust_temperatures",
]

COLUMNS: Final = (
    "proposed", "proxy", "proxy_mean", "noisy", "bandwidth", "latency", "ged", "d_inv", "d_sen",
    "d_inv_squared", "d_sen_squared", "distinct", "seconds",
)  # fmt: skip
"""Fields of a result that tables show."""
TITLES: Final = {
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
"""Field of a result -> its title in tables."""
COMPARED: Final = ("proxy", "proxy_mean", "noisy", "bandwidth", "latency", "ged")
"""Columns with differences."""
_LISTED: Final = 6
"""Largest number of graphs of a set that are listed by name."""
_SETS: Final = {"one": "One real graph", "synthetic": "Synthetic graphs", "real": "Real graphs"}
_DIGITS: Final = {"proposed": 0, "ged": 1, "distinct": 1, "d_inv_squared": 1, "d_sen_squared": 1}
_PAPER_COLUMNS: Final = {"d_inv": "d_inv_squared", "d_sen": "d_sen_squared"}
"""The paper's name of a field -> its name here."""


def robust_fields(document: Mapping[str, Any], records: Records) -> list[dict[str, Any]]:
    """One row per set and source: means over graphs, then over seeds, then over trainings.

    ``NAME`` is a mean, ``NAME_std`` the sample standard deviation over trainings, or over seeds if there is
    one training (``None`` for fewer than two); ``paper_NAME`` and ``paper_NAME_std`` are the paper's figures.

    Args:
      document: Content of ``evaluation.json``.
      records: Records of ``results.jsonl``.
    """
    lines = []
    for set_ in _SETS:
        graphs = [graph["hash"] for graph in document["graphs"] if graph["set"] == set_]
        for every in _sources(document["jobs"]):
            counts = [int((~np.isnan(records.column(job["key"], graphs, "value"))).sum()) for job in every]
            jobs = [job for job, count in zip(every, counts, strict=True) if count]
            if not jobs:
                continue
            columns = {name: _over_jobs(jobs, records, graphs, name) for name in COLUMNS}
            line: dict[str, Any] = {
                "set": set_,
                "name": jobs[0]["name"],
                "method": jobs[0]["title"],
                "graphs": max(counts),
                "seeds": len({job["seed"] for job in jobs}),
                "trainings": len({_training(job) for job in jobs}),
                "count": jobs[0]["count"],
                "evaluations": jobs[0]["evaluations"],
            }
            for name, (mean, spread) in columns.items():
                line |= {name: mean, f"{name}_std": spread}
            reported = _paper(set_, jobs[0]["name"]) if jobs[0].get("paper", True) else {}
            for name in COLUMNS:
                mean, spread = reported.get(name, (None, None))
                line |= {f"paper_{name}": mean, f"paper_{name}_std": spread}
            lines.append(line)
    return lines


def _sources(jobs: Sequence[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """The jobs of each source, one per training and seed."""
    for name in dict.fromkeys(job["name"] for job in jobs):
        yield [job for job in jobs if job["name"] == name]


def _training(job: Mapping[str, Any]) -> int:
    return job.get("training", 0)


def _over_jobs(
    jobs: Sequence[Mapping[str, Any]], records: Records, graphs: Sequence[str], name: str
) -> tuple[float | None, float | None]:
    columns = np.array([records.column(job["key"], graphs, name) for job in jobs])
    # In an unfinished run, compare jobs only on the graphs that all of them have.
    there = ~np.isnan(columns).any(axis=0)
    if not there.any():
        return None, None
    means = columns[:, there].mean(axis=1)
    trainings = np.array([_training(job) for job in jobs])
    if trainings.any():
        means = np.array([means[trainings == k].mean() for k in np.unique(trainings)])
    return float(means.mean()), float(means.std(ddof=1)) if means.size > 1 else None


def _paper(set_: str, name: str) -> dict[str, Reported]:
    found = PAPER_TABLES[set_].get(name, {})
    return {_PAPER_COLUMNS.get(column, column): figure for column, figure in found.items()}


def robust_contrasts(document: Mapping[str, Any], records: Records) -> list[dict[str, Any]]:
    """One row per set of several graphs and ordered pair of sources: ``method`` less ``against``.

    ``NAME`` is the mean over graphs of the difference of means over seeds, ``NAME_low`` and ``NAME_high``
    its 95 % interval (`bootstrap`, over graphs). The pairs with the first source of a set come first.

    Args:
      document: Content of ``evaluation.json``.
      records: Records of ``results.jsonl``.
    """
    lines = []
    for set_ in _SETS:
        graphs = [graph["hash"] for graph in document["graphs"] if graph["set"] == set_]
        if len(graphs) < 2:
            continue
        rows = [(jobs, _by_graph(jobs, records, graphs)) for jobs in _sources(document["jobs"])]
        rows = [(jobs[0]["title"], values) for jobs, values in rows if not np.isnan(values["proxy"]).all()]
        found = {
            (i, j): {name: bootstrap(rows[i][1][name] - rows[j][1][name]) for name in COMPARED}
            for j, i in itertools.combinations(range(len(rows)), 2)
        }
        # BCa intervals of negated values are the negated ones.
        found |= {
            (j, i): {name: Interval(0 - mean, 0 - high, 0 - low) for name, (mean, low, high) in each.items()}
            for (i, j), each in found.items()
        }
        for j, i in itertools.permutations(range(len(rows)), 2):
            line: dict[str, Any] = {"set": set_, "method": rows[i][0], "against": rows[j][0]}
            for name, (mean, low, high) in found[i, j].items():
                line |= {name: mean, f"{name}_low": low, f"{name}_high": high}
            lines.append(line)
    return lines


def _by_graph(
    jobs: Sequence[Mapping[str, Any]], records: Records, graphs: Sequence[str]
) -> dict[str, np.ndarray]:
    """Column -> ``[B]`` means over the jobs of a source; NaN where one of them has no result."""
    return {
        name: np.mean([records.column(job["key"], graphs, name) for job in jobs], axis=0) for name in COMPARED
    }


def robust_differences_markdown(lines: Sequence[Mapping[str, Any]]) -> str:
    """The rows of `robust_contrasts` against the first source of each set as tables; empty without rows."""
    parts = []
    for set_, title in _SETS.items():
        every = [line for line in lines if line["set"] == set_]
        if every:
            rows = [line for line in every if line["against"] == every[0]["against"]]
            head = [f"source, less {rows[0]['against']}", *(TITLES[name] for name in COMPARED)]
            text = markdown_table(
                head, [[row["method"], *(difference(row, name) for name in COMPARED)] for row in rows]
            )
            parts.append(f"## {title}: differences\n\n95 % bootstrap intervals over graphs.\n\n{text}")
    return "\n\n".join(parts)


def difference(row: Mapping[str, Any], name: str) -> str:
    """A difference of a row of `robust_contrasts` with its interval; empty if it is unknown."""
    if math.isnan(row[name]):
        return ""
    digits = _DIGITS.get(name, 2)
    return "{:+z.{n}f} [{:z.{n}f}, {:z.{n}f}]".format(
        row[name], row[f"{name}_low"], row[f"{name}_high"], n=digits
    )


def robust_markdown(
    document: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    figures: Sequence[str],
    sections: Sequence[str] = (),
) -> str:
    """The tables as Markdown.

    Args:
      document: Content of ``evaluation.json``.
      lines: Result of `robust_fields`.
      figures: Files of pictures to show below the tables.
      sections: Further text above the pictures.
    """
    settings = document["config"]
    parts = [
        f"Four devices, free transfers; the best {settings['keep']} schedules by the proxy, equal ones too, "
        "or as many different ones where a source has another choice. "
        "Speed-up: all runtimes one after the other, over the makespan; best and mean of those schedules by "
        f"the proxy, best of them on each target (noisy runtimes: mean of {settings['draws']} draws). No "
        "schedule exceeds the upper bounds, which follow from the longest path and the devices. GED, "
        "d_inv, d_sen: mean distances of all pairs; GED in percent. Means over graphs, then over seeds, ± "
        "standard deviation over seeds; over trainings where a row has several. Rows of the paper are of "
        "other graphs; its d_inv and d_sen stand under the squared ones (docs/design.md).",
    ]
    for set_, title in _SETS.items():
        rows = [line for line in lines if line["set"] == set_]
        if rows:
            table = _table(rows, _bounds(document, set_))
            parts.append(f"## {title} (Table {PAPER_SETS[set_]})\n\n{_graphs(document, set_)}\n\n{table}")
    parts += left_out_paragraphs(document["left_out"])
    parts += [part for part in sections if part]
    parts += [f"![{name}]({name})" for name in figures]
    return "\n\n".join(parts) + "\n"


def _graphs(document: Mapping[str, Any], set_: str) -> str:
    found = [graph for graph in document["graphs"] if graph["set"] == set_]
    ops = [graph["ops"] for graph in found]
    if len(found) > _LISTED:
        sizes = f"{min(ops)}" if min(ops) == max(ops) else f"{min(ops)} to {max(ops)}"
        return f"{len(found)} graphs of {sizes} ops."
    return ", ".join(f"`{graph['name']}` ({graph['ops']} ops)" for graph in found) + "."


def _bounds(document: Mapping[str, Any], set_: str) -> dict[str, float]:
    """Column -> mean over graphs of the largest speed-up that a schedule may have, where it was computed."""
    found = [graph.get("bounds", {}) for graph in document["graphs"] if graph["set"] == set_]
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}


def _table(rows: Sequence[Mapping[str, Any]], bounds: Mapping[str, float]) -> str:
    head = ["source", "evaluations", *(TITLES[name] for name in COLUMNS)]
    lines = []
    for row in rows:
        made = f"{row['evaluations']:,}" if row["evaluations"] else ""
        lines.append([_title(row), made, *(_shown(row, name, "") for name in COLUMNS)])
        paper = [_shown(row, name, "paper_") for name in COLUMNS]
        if any(paper):
            lines.append([f"*{row['method']}, paper*", "", *paper])
    if bounds:
        lines.append(["Upper bound", "", *(_shown(bounds, name, "") for name in COLUMNS)])
    return markdown_table(head, lines)


def _title(row: Mapping[str, Any]) -> str:
    several = row.get("trainings", 1)
    return row["method"] + (f" ({several} trainings)" if several > 1 else "")


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


def robust_temperatures(document: Mapping[str, Any], records: Records) -> dict[str, dict[str, np.ndarray]]:
    """Title of a GFlowNet -> temperature -> ``[K]`` speed-ups on the graph of Figure 3."""
    graphs = [graph["hash"] for graph in document["graphs"] if graph["set"] == "temperature"]
    found = {}
    for job in document["jobs"]:
        for graph in graphs:
            record = records.get(job["key"], graph)
            if record is not None and "temperatures" in record:
                found.setdefault(
                    job["title"],
                    {t: np.array(values, np.float64) for t, values in record["temperatures"].items()},
                )
    return found
