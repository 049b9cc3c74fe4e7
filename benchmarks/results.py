"""Results as they are kept: JSON with a version, read back with every mistake named."""

import dataclasses
import json
import os
import pathlib
import statistics
from typing import Any, Final, NoReturn

from benchmarks.timing import Series
from regal_jax.errors import ConfigError, FormatError

__all__ = ["VERSION", "Record", "Results", "load", "save", "speed_ratio"]

_SCHEMA: Final = "regal_jax.benchmarks"
VERSION: Final = 1


@dataclasses.dataclass(frozen=True)
class Record:
    """What one benchmark found.

    Attributes:
      name: Of the `benchmarks.cases.Benchmark`.
      parameters: By label of the variant, the fields of its `benchmarks.cases.GraphCase`.
      series: By label of what was measured.
      derived: Numbers that follow from the series.
      skipped: By label, why something was not measured.
    """

    name: str
    parameters: dict[str, dict[str, Any]]
    series: dict[str, Series]
    derived: dict[str, float] = dataclasses.field(default_factory=dict)
    skipped: dict[str, str] = dataclasses.field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """With the rates of every series, for readers that do not compute."""
        series = {label: dataclasses.asdict(s) | {"rates": s.rates()} for label, s in self.series.items()}
        return dataclasses.asdict(self) | {"series": series}


@dataclasses.dataclass(frozen=True)
class Results:
    """A run of the command.

    Attributes:
      environment: See `benchmarks.environment.environment`.
      settings: Of the command.
      records: In the order of the run.
    """

    environment: dict[str, Any]
    settings: dict[str, Any]
    records: list[Record]


def speed_ratio(series: Series, other: Series) -> float:
    """Evaluations per second, as a multiple of those of ``other`` in the same rounds (the median of them)."""
    work, its = series.evaluations or 0, other.evaluations or 1
    pairs = zip(series.values, other.values, strict=True)
    return statistics.median((work / a) / (its / b) for a, b in pairs)


def save(results: Results, path: str | os.PathLike[str]) -> None:
    """Writes JSON; the file is whole at any moment.

    Raises:
      ConfigError: It cannot be written.
    """
    document = {"schema": _SCHEMA, "version": VERSION, **results.environment, "settings": results.settings}
    document["records"] = [record.as_json() for record in results.records]
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
      FormatError: Not a file of results, or one of another version.
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
