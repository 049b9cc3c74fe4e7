"""Files of results: JSON with a version, parsed strictly."""

import dataclasses
import json
import os
import pathlib
import statistics
from typing import Any, Final, NoReturn

from benchmarks.timing import Series
from regal_jax.errors import ConfigError, FormatError

__all__ = ["OF_BANDWIDTH", "VERSION", "Record", "Results", "as_document", "load", "save", "speed_ratio"]

_SCHEMA: Final = "regal_jax.benchmarks"
VERSION: Final = 1

OF_BANDWIDTH: Final = " share of bandwidth"
"""End of the names of shares: the time to copy what a part reads and writes, over its time."""


@dataclasses.dataclass(frozen=True)
class Record:
    """Results of one benchmark.

    Attributes:
      name: Name of the `benchmarks.cases.Benchmark`.
      parameters: Label of a variant -> fields of its `benchmarks.cases.GraphCase`.
      series: Label of a measurement -> series.
      derived: Numbers derived from the series.
      skipped: Label -> reason why it was not measured.
    """

    name: str
    parameters: dict[str, dict[str, Any]]
    series: dict[str, Series]
    derived: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The record as JSON values, with the rates of every series."""
        series = {label: dataclasses.asdict(s) | {"rates": s.rates()} for label, s in self.series.items()}
        return dataclasses.asdict(self) | {"series": series}


@dataclasses.dataclass(frozen=True)
class Results:
    """A run of the command.

    Attributes:
      environment: See `benchmarks.environment.environment`.
      settings: Settings of the command.
      records: Records in the order of the run.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    records: list[Record]


def speed_ratio(series: Series, other: Series) -> float:
    """Evaluations per second relative to those of ``other`` in the same round, as the median over rounds.

    Raises:
      ValueError: One of the two counts no evaluations.
    """
    if not (series.evaluations and other.evaluations):
        raise ValueError("speed_ratio: a series without evaluations; compare seconds instead")
    work = series.evaluations / other.evaluations
    return statistics.median(work * b / a for a, b in zip(series.values, other.values, strict=True))


def as_document(results: Results, schema: str, version: int) -> dict[str, Any]:
    """The results as JSON values."""
    document = {"schema": schema, "version": version, **results.environment, "settings": results.settings}
    return document | {"records": [record.as_json() for record in results.records]}


def save(results: Results, path: str | os.PathLike[str]) -> None:
    """Writes JSON atomically.

    Raises:
      ConfigError: The file cannot be written.
    """
    document = as_document(results, _SCHEMA, VERSION)
    target = pathlib.Path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise ConfigError(f"cannot write {str(path)!r}: {error.strerror}") from None


def load(path: str | os.PathLike[str]) -> Results:
    """Reads what `save` wrote.

    Raises:
      FormatError: The file is not one of results, or is of another version.
    """
    name = str(path)

    def refuse(why: str) -> NoReturn:
        raise FormatError(f"{name}: {why}")

    try:
        document = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        refuse(f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError) as error:
        refuse(f"not JSON: {error}")
    if not isinstance(document, dict) or document.get("schema") != _SCHEMA:
        refuse("no results of 'python -m benchmarks run'")
    if document.get("version") != VERSION:
        refuse(f"results of version {document.get('version')!r}, this is {VERSION}; run the benchmarks again")
    try:
        records = [_record(each) for each in document.pop("records")]
        settings = dict(document.pop("settings"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        refuse(f"damaged: {type(error).__name__}: {error}")
    environment = {key: value for key, value in document.items() if key not in ("schema", "version")}
    return Results(environment, settings, records)


def _record(document: dict[str, Any]) -> Record:
    series = {}
    for label, each in document["series"].items():
        fields: dict[str, Any] = {field.name: each[field.name] for field in dataclasses.fields(Series)}
        fields["values"] = tuple(float(v) for v in fields["values"])
        series[label] = Series(**fields)
    return Record(
        name=str(document["name"]),
        parameters=dict(document["parameters"]),
        series=series,
        derived=dict(document["derived"]),
        skipped=dict(document["skipped"]),
    )
