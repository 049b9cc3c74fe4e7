"""References: mean objectives of uniform searches, by which rewards are divided; computed once and stored."""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.errors import FormatError
from regal_jax.importers.strict_json import Field
from regal_jax.learning.config import TrainConfig
from regal_jax.learning.pool import Pool, rows
from regal_jax.search import Status, Stopping
from regal_jax.solve import keys_of, solve
from regal_jax.storage.json_lines import JsonLines

__all__ = ["with_references"]

_CHUNK: Final = 64


def with_references(
    config: TrainConfig,
    pool: Pool,
    path: pathlib.Path | None,
    *,
    progress: Callable[[int], object] | None = None,
) -> Pool:
    """The pool with the mean fitness of `OptimizerConfig.reference_seeds` uniform searches of each graph.

    Each search has the budget and the settings of the searches in training. Results are appended to the file
    at ``path``, chunk by chunk, and are not computed again.

    Args:
      config: Config of the run.
      pool: ``G`` graphs.
      path: JSON lines, one per graph; ``None`` stores nothing.
      progress: Called with the number of graphs done.

    Raises:
      KeyboardInterrupt: Ctrl-C; the file keeps what was written.
    """
    known = _read(path, _settings(config))
    names = [f"{a:08x}{b:08x}" for a, b in np.asarray(pool.identity).tolist()]
    missing = [i for i, name in enumerate(names) if name not in known]
    for first in range(0, len(missing), _CHUNK):
        chosen = missing[first : first + _CHUNK]
        fitness = _search(config, pool, chosen)
        found = {names[i]: row for i, row in zip(chosen, fitness.tolist(), strict=True)}
        known |= found
        _append(path, _settings(config), found)
        if progress is not None:
            progress(len(chosen))
    if progress is not None:
        progress(len(names) - len(missing))
    mean = np.array([np.mean(known[name]) for name in names], np.float32)
    return dataclasses.replace(pool, reference=jnp.asarray(mean))


def _search(config: TrainConfig, pool: Pool, members: list[int]) -> np.ndarray:
    """``[G, R]`` fitness of uniform searches."""
    # Always the same number of rows, so that one compiled program serves all chunks.
    padded = np.resize(members, min(_CHUNK, pool.size))
    chosen = rows(pool, jnp.asarray(padded, dtype=jnp.int32))
    key = jax.random.fold_in(jax.random.key(config.seed), 2**31)
    fitness = []
    for r in range(config.optimizer.reference_seeds):
        found = solve(
            chosen.problem,
            keys_of(jax.random.fold_in(key, r), chosen.identity),
            Stopping(config.task.evaluations),
            objective=config.task.objective,
            config=config.search,
        )
        if Status.INTERRUPTED in found.status:
            # The result of an unfinished search is not a valid reference.
            raise KeyboardInterrupt
        fitness.append(found.fitness)
    return np.stack(fitness, axis=1)[: len(members)]


def _settings(config: TrainConfig) -> dict[str, Any]:
    """The settings that references depend on."""
    document = config.as_document()
    return {
        "seed": config.seed,
        "seeds": config.optimizer.reference_seeds,
        "devices": config.policy.num_devices,
        "task": document["task"],
        "search": document["search"],
    }


def _read(path: pathlib.Path | None, settings: dict[str, Any]) -> dict[str, list[float]]:
    known: dict[str, list[float]] = {}
    if path is None or not path.exists():
        return known
    for number, record in enumerate(JsonLines(path).read(), 1):
        try:
            entry = Field(record)
            if entry.get("settings").value == settings:
                known[entry.get("graph").text()] = [item.number() for item in entry.get("fitness").items()]
        except FormatError as error:
            raise FormatError(f"{path}: line {number}: {error}; delete the line") from None
    return known


def _append(path: pathlib.Path | None, settings: dict[str, Any], found: dict[str, list[float]]) -> None:
    if path is None:
        return
    lines = JsonLines(path)
    lines.mend()
    for name, fitness in found.items():
        lines.append({"graph": name, "fitness": fitness, "settings": settings})
