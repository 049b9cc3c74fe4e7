"""``python -m benchmarks publish``: results in benchmarks/tables, and their tables in the documents.

A table of a document follows a comment that names its results::

    <!-- table: NAME [PART] -->           rows of the report of benchmarks/tables/NAME
    <!-- contrasts: NAME [NAME ...] -->   pairs of methods; with several names a column for each
    <!-- seconds: NAME [NAME ...] -->     processor seconds of the first method of a pair over the other's

Which columns and which pairs a document shows, and in which order, is said by the table that is there. What
the results do not know, such as a column of the paper's figures, stays as it is.
"""

import argparse
import functools
import itertools
import json
import pathlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from regal_jax.errors import ConfigError
from regal_jax.experiments.compare import Comparison, compare
from regal_jax.experiments.contrasts import contrasts
from regal_jax.experiments.ordering_table import ordering_fields
from regal_jax.experiments.realistic_table import groups_fields
from regal_jax.experiments.records import EVALUATION, RESULTS, Records, read_evaluation
from regal_jax.experiments.robust_table import (
    COMPARED,
    TITLES,
    difference,
    robust_contrasts,
    robust_differences_markdown,
    robust_fields,
    robust_markdown,
)
from regal_jax.experiments.rounds import validation_over_rounds
from regal_jax.experiments.tables import row_fields, table_markdown
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json

__all__ = ["DOCUMENTS", "TABLES", "add_arguments", "copy_results", "plain", "renewed", "run", "unfinished"]

ROOT: Final = pathlib.Path(__file__).parents[1]
TABLES: Final = ROOT / "benchmarks" / "tables"
DOCUMENTS: Final = tuple(
    sorted(path for room in ("results", "ablations") for path in (ROOT / "docs" / room).glob("*.md"))
)
_MARK: Final = re.compile(r"<!-- (table|contrasts|seconds): ([^>]*?) -->\n+((?:\|.*\n?)+)")
_INTERVAL: Final = re.compile(r" ?\[[^]]*\]")
_SECTION: Final = re.compile(r"^## ([^(:]*)([(:]).*?\n\n(\|.*?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
SUMMARY: Final = "summary.json"
_LEFT_OUT: Final = ("points", "temperatures", "plans", "spent")
"""Fields of results that no table needs."""

Table = dict[str, dict[str, str]]
"""Title of a row -> title of a column -> cell."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders",
        nargs="*",
        type=pathlib.Path,
        metavar="FOLDER",
        help="results of `regal-jax evaluate`, copied to benchmarks/tables under the folder's name",
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a table is old")


def run(args: argparse.Namespace) -> int:
    if args.check and args.folders:
        raise ConfigError("--check reads benchmarks/tables: leave out the folders")
    for folder in args.folders:
        copy_results(folder, TABLES / folder.resolve().name)
    old, named = 0, set[str]()
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        named.update(name for match in _MARK.finditer(text) for name in match[2].split())
        new = renewed(text, TABLES)
        if new != text:
            old += 1
            print(f"{path.relative_to(ROOT)}: {'old' if args.check else 'renewed'}")
            if not args.check:
                write_atomically(path, new.encode())
    for name in (folder.resolve().name for folder in args.folders):
        if name not in named:
            print(f"{name}: no document has its table; put one behind a line <!-- table: {name} -->")
    return 1 if args.check and old else 0


def copy_results(source: pathlib.Path, target: pathlib.Path) -> None:
    """Copies an evaluation without what its tables do not need.

    These are results of jobs that are not of the last run, schedules of single graphs, and of histories all
    but the best values at the budgets of the curves.

    Raises:
      ConfigError: The evaluation has not ended.
      FormatError: There is no evaluation.
    """
    document = read_evaluation(source)
    if missing := unfinished(document, Records(source)):
        raise ConfigError(
            f"{source}: results of {missing[0]} are missing; run the command of the evaluation again"
        )
    keys, limits = {job["key"] for job in document["jobs"]}, document["config"].get("limits", ())
    kept = []
    for line in (source / RESULTS).read_text(encoding="utf-8").splitlines():
        record = {name: value for name, value in json.loads(line).items() if name not in _LEFT_OUT}
        if "history" in record:
            record["history"] = _at_limits(record["history"], limits)
        if record["key"] in keys:
            kept.append(json.dumps(record, separators=(",", ":")))
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / EVALUATION, (source / EVALUATION).read_bytes())
    write_atomically(target / RESULTS, "".join(f"{line}\n" for line in kept).encode())
    if document["config"].get("rounds"):
        rounds = validation_over_rounds(document["config"]["rounds"])
        text = json.dumps({"validation_over_rounds": rounds}, indent=1)
        write_atomically(target / SUMMARY, f"{text}\n".encode())


def unfinished(document: Mapping[str, Any], records: Records) -> list[str]:
    """Titles of jobs of an evaluation that have no result, and refuse to make one, for some graph."""
    graphs = [graph["hash"] for graph in document["graphs"] if graph.get("set") != "temperature"]
    titles = []
    for job in document["jobs"]:
        refused = records.refusals(job["key"], graphs)
        if not all(records.get(job["key"], graph) or graph in refused for graph in graphs):
            titles.append(job["title"])
    return titles


def _at_limits(history: Mapping[str, list[Any]], limits: Sequence[int]) -> dict[str, list[Any]]:
    spent = history["evaluations"]
    last = [sum(each <= limit for each in spent) - 1 for limit in limits]
    places = sorted({place for place in last if place >= 0})
    return {name: [history[name][place] for place in places] for name in ("evaluations", "best")}


def renewed(text: str, tables: pathlib.Path) -> str:
    """A document with its tables as the results have them.

    Args:
      text: The document.
      tables: Folder with a folder of results for each name.

    Raises:
      ConfigError: A table names results, a part, a row or a pair that does not exist.
    """
    found = functools.cache(lambda name: _tables(tables / name))
    pairs = functools.cache(lambda name: _pairs(tables / name))

    def table(match: re.Match[str]) -> str:
        kind, names, lines = match[1], match[2].split(), match[3].splitlines()
        mark = match[0][: match[0].index("|")]
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
        renew = _rows(names, rows, found) if kind == "table" else _contrasts(kind, names, rows, pairs)
        rule = ["---", *["---:"] * (len(rows[0]) - 1)]
        if kind != "table":
            rule[1] = "---"
        return mark + "".join("| " + " | ".join(cells) + " |\n" for cells in (rows[0], rule, *renew))

    return _MARK.sub(table, text)


def plain(text: str) -> str:
    """A document whose tables have neither intervals nor emphasis."""
    return _MARK.sub(lambda match: _INTERVAL.sub("", match[0].replace("**", "")), text)


def _rows(
    names: Sequence[str], rows: Sequence[Sequence[str]], found: Callable[[str], Mapping[str, Table]]
) -> list[list[str]]:
    """The rows of a table. A part shows those that are there, a whole report all of them."""
    name, part = names[0], " ".join(names[1:])
    if part not in found(name):
        raise ConfigError(f"the results of {name} have no table '{part}'")
    table, head = found(name)[part], rows[0]
    for row in rows[2:]:
        if len(row) != len(head):
            raise ConfigError(
                f"the table '{' '.join(names)}': the row of '{row[0]}' has {len(row)} cells; give {len(head)}"
            )
    old = {row[0]: dict(zip(head, row, strict=True)) for row in rows[2:]}
    for title in old:
        if title not in table:
            raise ConfigError(f"the table '{' '.join(names)}' has no '{title}' in its results")
    new = []
    for title in old if part else table:
        cells = {**old.get(title, {}), head[0]: title, **table[title]}
        new.append([cells.get(column, "") for column in head])
    return new


def _contrasts(
    kind: str,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    pairs: Callable[[str], Mapping[tuple[str, str], Mapping[str, str]]],
) -> list[list[str]]:
    new = []
    for method, against, *_ in rows[2:]:
        try:
            found = [pairs(name)[method, against] for name in names]
        except KeyError:
            raise ConfigError(
                f"the results of {' '.join(names)} have no '{method}' against '{against}'"
            ) from None
        if kind == "seconds" or len(names) > 1:
            shown = "seconds" if kind == "seconds" else "change"
            new.append([method, against, *(each[shown] for each in found)])
            continue
        columns = rows[0][2:]
        unknown = [column for column in columns if column not in found[0]]
        if unknown:
            raise ConfigError(
                f"contrasts of {names[0]}: there is no column '{unknown[0]}'; use {', '.join(found[0])}"
            )
        new.append([method, against, *(found[0][column] for column in columns)])
    return new


def _tables(folder: pathlib.Path) -> dict[str, Table]:
    """Part -> the table of a report; the part of a report with one table is empty."""
    document, records = read_evaluation(folder), Records(folder)
    suite = document["config"].get("suite")
    if suite == "robust-scheduling":
        return _robust(document, records)
    if document["config"]["rounds"]:
        return {"": _rounds(parse_json((folder / SUMMARY).read_bytes()))}
    comparison = compare(document, records)
    if suite == "realistic":
        return {"": _realistic(comparison)}
    if suite == "topological-order":
        return {"": _orders(comparison)}
    if comparison.curves:
        return {"": {title: _points(curve) for title, curve in comparison.curves.items()}}
    table = _parsed(table_markdown(comparison, document["config"]))
    for row in comparison.rows:
        fields = row_fields(comparison, row)
        if fields["overhead"] is not None:
            table[row.title]["overhead"] = _percent(fields, "overhead")
    times = {
        title: {
            f"{budget:,} evaluations": f"{100 * gap.mean:.2f} %, {1000 * seconds:.0f} ms"
            for budget, (seconds, gap) in points.items()
        }
        for title, points in comparison.times.items()
    }
    return {"": table, "times": times}


def _parsed(text: str) -> Table:
    """The first table of a text."""
    from_table = itertools.dropwhile(lambda line: not line.startswith("|"), text.splitlines())
    lines = itertools.takewhile(lambda line: line.startswith("|"), from_table)
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


def _robust(document: Mapping[str, Any], records: Records) -> dict[str, Table]:
    """One table for each set of graphs, then the differences from the first source."""
    text = robust_markdown(document, robust_fields(document, records), ())
    text += "\n" + robust_differences_markdown(robust_contrasts(document, records))
    tables = {}
    for title, kind, table in _SECTION.findall(text):
        part = title.split()[0].lower()
        tables[f"{part} differences" if kind == ":" else part] = _parsed(table)
    return tables


def _realistic(comparison: Comparison) -> Table:
    reference, other = comparison.rows[0].title, comparison.rows[-1].title
    lines: dict[str, dict[str, Mapping[str, Any]]] = {}
    for line in groups_fields(comparison):
        lines.setdefault(line["group"], {})[line["method"]] = line

    def ratio(line: Mapping[str, Any], name: str) -> str:
        return f"{line[name]:.3f} [{line[f'{name}_low']:.3f}, {line[f'{name}_high']:.3f}]"

    return {
        group: {
            "number": str(row["Auto"]["cases"]),
            "`auto` over BRKGA": ratio(row["Auto"], "ratio"),
            "BRKGA, other seed": ratio(row[other], "ratio"),
            "`auto` over one device": ratio(row["Auto"], "over_one_device"),
            "plans that fit: `auto`, BRKGA": f"{row['Auto']['fit']}, {row[reference]['fit']}",
        }
        for group, row in lines.items()
    }


def _orders(comparison: Comparison) -> Table:
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for line in ordering_fields(comparison):
        lines.setdefault(line["method"], []).append(line)
    lines.pop("Lower bound", None)
    table = {}
    for method, every in lines.items():
        above = [line["above_xla"] for line in every]
        table[method] = {
            **{f"{line['set'].split()[-1]} ops": _percent(line, "gap", "+z.2f") for line in every},
            "processor s per graph": " / ".join(f"{line['processor_seconds']:.3g}" for line in every),
            "times faster": " / ".join(f"{1 / line['of_processor']:.0f}" for line in every),
            "above XLA": "" if None in above else str(sum(above)),
        }
    return table


def _points(curve: Mapping[int, Any]) -> dict[str, str]:
    return {f"{limit:,}": _percent(_named("gain", gain), "gain") for limit, gain in curve.items()}


def _rounds(summary: Mapping[str, Any]) -> Table:
    return {
        rounds: {
            "mean": f"{100 * sum(runs) / len(runs):.1f} %",
            "least": f"{100 * min(runs):.1f} %",
            "largest": f"{100 * max(runs):.1f} %",
        }
        for rounds, runs in summary["validation_over_rounds"].items()
    }


def _pairs(folder: pathlib.Path) -> dict[tuple[str, str], dict[str, str]]:
    """Two methods -> cells of their contrast, in bold type where the interval does not contain 0."""
    document, records = read_evaluation(folder), Records(folder)
    if document["config"].get("suite") == "robust-scheduling":
        lines = robust_contrasts(document, records)
        return {
            (line["method"], line["against"]): {TITLES[name]: difference(line, name) for name in COMPARED}
            for line in lines
        }
    pairs = {}
    for line in contrasts(compare(document, records)):
        change = _percent(line, "change", "+z.2f")
        if line["change_low"] > 0 or line["change_high"] < 0:
            change = f"**{change}**"
        graphs = f"{line['lower']}, {line['higher']}"
        seconds = "" if line["seconds"] is None else f"{line['seconds']:.2f}"
        cells = {"change": change, "lower, higher": graphs, "seconds": seconds}
        pairs[line["method"], line["against"]] = cells
    return pairs


def _named(name: str, interval: Any) -> dict[str, float]:
    return {name: interval.mean, f"{name}_low": interval.low, f"{name}_high": interval.high}


def _percent(fields: Mapping[str, Any], name: str, form: str = "+z.1f") -> str:
    mean, low, high = (100 * fields[f"{name}{end}"] for end in ("", "_low", "_high"))
    return f"{mean:{form}} % [{low:{form}}, {high:{form}}]"
