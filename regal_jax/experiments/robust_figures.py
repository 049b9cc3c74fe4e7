"""Figures 3 to 5 of the suite of robust scheduling: inference temperatures, losses, training temperatures."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from regal_jax.checks import real, whole
from regal_jax.errors import FormatError
from regal_jax.experiments.tables import as_csv, markdown_table
from regal_jax.storage.json_lines import JsonLines
from regal_jax.viz import plot_temperatures, plot_training

__all__ = ["Drawn", "draw_losses", "draw_regimes", "draw_temperatures", "temperatures_markdown"]

_WINDOWS: Final = 40
"""Most points of a curve of Figure 4, each the mean over equally many steps."""
Curve = tuple[np.ndarray, np.ndarray]
"""Steps, and the speed-up at each."""


@dataclasses.dataclass(frozen=True, eq=False)
class Drawn:
    """What there is of a figure.

    Attributes:
      figures: Names of pictures.
      texts: Name of a file -> its content.
      problems: One line for a figure that cannot be drawn.
    """

    figures: tuple[str, ...] = ()
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problems: tuple[str, ...] = ()


def draw_temperatures(folder: pathlib.Path, speedups: Mapping[str, Mapping[str, np.ndarray]]) -> Drawn:
    """Figure 3: how the speed-ups of sampled schedules are distributed at each temperature.

    Args:
      folder: Folder of the picture.
      speedups: Title of a network -> temperature -> ``[K]`` speed-ups.
    """
    if not speedups:
        return Drawn()
    plot_temperatures(speedups, folder / "temperatures.png")
    lines = [
        {
            "method": title,
            "temperature": temperature,
            "schedules": len(values),
            "mean": float(values.mean()),
            "std": float(values.std()),
            "least": float(values.min()),
            **{f"q{q}": float(np.percentile(values, q)) for q in (5, 25, 50, 75, 95)},
            "best": float(values.max()),
        }
        for title, at in speedups.items()
        for temperature, values in at.items()
    ]
    return Drawn(("temperatures.png",), {"temperatures.csv": as_csv(lines)})


def temperatures_markdown(speedups: Mapping[str, Mapping[str, np.ndarray]]) -> str:
    """The mean speed-up of each network at each temperature as a table; empty if there is none."""
    if not speedups:
        return ""
    temperatures = list(next(iter(speedups.values())))
    head = ["mean speed-up at temperature", *temperatures]
    rows = [[title, *(f"{at[t].mean():.3f}" for t in temperatures)] for title, at in speedups.items()]
    table = markdown_table(head, rows)
    return f"## Temperatures (Figure 3)\n\nOne random graph of Erdős and Rényi, 25 ops.\n\n{table}"


def draw_losses(folder: pathlib.Path, trainings: Mapping[str, Sequence[str]]) -> Drawn:
    """Figure 4: the mean speed-up of the schedules that are sampled during training.

    Args:
      folder: Folder of the picture.
      trainings: `EvaluationConfig.losses`.
    """
    return _drawn(folder, trainings, "losses", "train", "mean speed-up of sampled schedules")


def draw_regimes(folder: pathlib.Path, trainings: Mapping[str, Sequence[str]]) -> Drawn:
    """Figure 5: the best of the schedules of each validation graph, at every validation.

    Args:
      folder: Folder of the picture.
      trainings: `EvaluationConfig.regimes`.
    """
    return _drawn(folder, trainings, "regimes", "validation", "best speed-up on validation graphs")


def _drawn(
    folder: pathlib.Path, trainings: Mapping[str, Sequence[str]], name: str, kind: str, label: str
) -> Drawn:
    if not trainings:
        return Drawn()
    try:
        curves = {title: [_curve(path, kind) for path in paths] for title, paths in trainings.items()}
    except FormatError as error:
        return Drawn(problems=(f"{name}.png is not drawn: {error}",))
    plot_training(curves, label, folder / f"{name}.png")
    lines = [
        {"name": title, "training": number, "step": int(step), "speedup": float(value)}
        for title, runs in curves.items()
        for number, (steps, values) in enumerate(runs)
        for step, value in zip(steps, values, strict=True)
    ]
    return Drawn((f"{name}.png",), {f"{name}.csv": as_csv(lines)})


def _curve(path: str, kind: str) -> Curve:
    """The speed-ups in the records of one kind; those of training as means over windows of steps."""
    records = JsonLines(pathlib.Path(path) / "metrics.jsonl", "train on").read()
    pairs = [(whole(r.get("step")), real(r.get("speedup"))) for r in records if r.get("kind") == kind]
    # A run that went on from a checkpoint has some steps twice; the later record counts.
    known = {step: speedup for step, speedup in pairs if step is not None and speedup is not None}
    if not known:
        raise FormatError(
            f"{path}: holds no {kind} of schedules; give a folder in which 'regal-jax train' trained a "
            "schedule policy"
        )
    steps, values = np.array(sorted(known)), np.array([known[step] for step in sorted(known)])
    if kind == "train":
        parts = np.array_split(np.arange(len(steps)), min(_WINDOWS, len(steps)))
        steps = np.array([steps[part[-1]] for part in parts])
        values = np.array([values[part].mean() for part in parts])
    return steps, values
