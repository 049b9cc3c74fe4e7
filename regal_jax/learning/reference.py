"""References: mean objectives of uniform searches, by which rewards are divided; computed once and stored."""

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from regal_jax.errors import FormatError
from regal_jax.importers.strict_json import Field
from regal_jax.learning.config import TrainConfig
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.pool import Pool, PoolShare, rows
from regal_jax.learning.processes import exchanged, is_first, together, told
from regal_jax.search import Status, Stopping
from regal_jax.solve import encoding_of, keys_of, solve
from regal_jax.storage.json_lines import JsonLines

__all__ = ["with_references"]

_CHUNK: Final = 64


def with_references(
    config: TrainConfig,
    share: PoolShare,
    path: pathlib.Path | None,
    devices: Sequence[Any],
    *,
    progress: Callable[[int], object] | None = None,
) -> PoolShare:
    """The pool with the mean fitness of `OptimizerConfig.reference_seeds` uniform searches of each graph.

    Each search has the budget and the settings of the searches in training. Every process searches its own
    graphs. The first process appends all results to the file at ``path``, chunk by chunk; they are not
    computed again.

    Args:
      config: Config of the run.
      share: The graphs of this process.
      path: JSON lines, one per graph; ``None`` stores nothing.
      devices: Devices of this process, over which its searches are spread.
      progress: Called with the number of graphs done.

    Raises:
      FormatError: The file at ``path`` is damaged.
      KeyboardInterrupt: Ctrl-C, in any process; the file keeps what was written.
    """
    settings = _settings(config)
    known = told(together(lambda: _read(path, settings) if is_first() else {}))
    names = [entry.name for entry in share.entries]
    missing = [[i for i in mine if names[i] not in known] for mine in map(share.held_by, _processes())]
    place = {i: row for row, i in enumerate(share.held_by(jax.process_index()))}
    mine = [place[i] for i in missing[jax.process_index()]]
    todo = [names[i] for i in missing[jax.process_index()]]
    for first in range(0, max(map(len, missing)), _CHUNK):
        found = _searched(config, share.pool, mine[first : first + _CHUNK], devices)
        results = _joined(todo[first : first + _CHUNK], found)
        known |= results
        if is_first():
            _append(path, settings, results)
        if progress is not None:
            progress(len(results))
    if progress is not None:
        progress(len(names) - sum(map(len, missing)))
    mean = np.ones(share.pool.size, np.float32)
    mean[: len(place)] = [np.mean(known[names[i]]) for i in place]
    return dataclasses.replace(share, pool=dataclasses.replace(share.pool, reference=jnp.asarray(mean)))


def _processes() -> range:
    return range(jax.process_count())


def _joined(names: list[str], fitness: np.ndarray | None) -> dict[str, list[float]]:
    """What all processes have found; raises if one of them was interrupted."""
    mine = None if fitness is None else dict(zip(names, fitness.tolist(), strict=True))
    found = exchanged(mine)
    if None in found:
        # The result of an unfinished search is not a valid reference.
        raise KeyboardInterrupt
    return {name: row for theirs in found for name, row in theirs.items()}


def _searched(
    config: TrainConfig, pool: Pool, members: list[int], devices: Sequence[Any]
) -> np.ndarray | None:
    """``[G, R]`` fitness of uniform searches; ``None`` if Ctrl-C ended them."""
    if not members:
        return np.zeros((0, config.optimizer.reference_seeds), np.float32)
    try:
        return _search(config, pool, members, devices)
    except KeyboardInterrupt:
        return None


def _search(config: TrainConfig, pool: Pool, members: list[int], devices: Sequence[Any]) -> np.ndarray:
    """``[G, R]`` fitness of uniform searches."""
    # Always the same number of rows, so that one compiled program serves all chunks.
    shards = min(len(devices), pool.size)
    padded = np.resize(members, -(-min(_CHUNK, pool.size) // shards) * shards)
    chosen = rows(pool, jnp.asarray(padded, dtype=jnp.int32))
    key = jax.random.fold_in(jax.random.key(config.seed), 2**31)
    encoding = encoding_of(config.task.encoding)
    fitness = []
    for r in range(config.optimizer.reference_seeds):
        found = solve(
            chosen.problem,
            keys_of(jax.random.fold_in(key, r), chosen.identity),
            Stopping(config.task.evaluations),
            objective=config.task.objective,
            proposal=encoding.proposal(chosen.problem),
            config=config.search,
            encoding=encoding,
            mesh=Mesh(np.array(devices[:shards]), (AXIS,)) if shards > 1 else None,
        )
        if Status.INTERRUPTED in found.status:
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
    if path is None:
        return known
    lines = _lines(path)
    lines.mend()  # Before the searches, since no result can be added to a file of another kind.
    for number, record in enumerate(lines.read(), 1):
        try:
            entry = Field(record)
            if entry.get("settings").value == settings:
                fitness = [item.number() for item in entry.get("fitness").items()]
                if len(fitness) != settings["seeds"]:
                    raise FormatError(f"has {len(fitness)} numbers for {settings['seeds']} searches")
                known[entry.get("graph").text()] = fitness
        except FormatError as error:
            raise FormatError(f"{path}: line {number}: {error}; delete the line") from None
    return known


def _lines(path: pathlib.Path) -> JsonLines:
    return JsonLines(path, "train on")


def _append(path: pathlib.Path | None, settings: dict[str, Any], found: dict[str, list[float]]) -> None:
    if path is None:
        return
    lines = _lines(path)
    for name, fitness in found.items():
        lines.append({"graph": name, "fitness": fitness, "settings": settings})
