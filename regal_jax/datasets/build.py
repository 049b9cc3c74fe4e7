"""REGAL's synthetic set on disk: built by several processes, resumable and reproducible.

A build has three stages. *Choosing*: candidates are chosen in blocks of members; the choices of a block,
which cost one search per candidate, are saved as ``.build/SPLIT-FIRST.json``. *Settling*: see
`regal_jax.datasets.choices.settle`. *Writing*: all chosen candidates are drawn again and written as
``SPLIT/graph_HASH.pbtxt``, unless that file is there with these bytes. An archive is packed from such files.
"""

import contextlib
import dataclasses
import os
import pathlib
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from regal_jax.checks import check_callback, check_kind, check_whole, plain_values, shown
from regal_jax.datasets.candidates import SPLITS, Recipe, draw_candidate
from regal_jax.datasets.choices import Choice, Keep, choose, settle
from regal_jax.datasets.manifest import (
    MANIFEST,
    choices_from_text,
    choices_to_text,
    finish_manifest,
    open_manifest,
)
from regal_jax.datasets.store import pack
from regal_jax.datasets.workers import run_tasks
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import topology_hash
from regal_jax.importers import format_cost_graph
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.locks import locked
from regal_jax.storage.paths import folder_path
from regal_jax.storage.reading import read_limited

__all__ = ["SIZES", "build_set"]

SIZES: Final[Mapping[str, int]] = {"train": 10_000, "validation": 1000, "test": 1000}
"""Number of graphs in each split of REGAL's release."""

_BLOCK: Final = 64
_WORK: Final = ".build"


@dataclasses.dataclass(frozen=True)
class _Task:
    """A block of members to choose (no `choices` yet) or to write."""

    folder: str
    split: str
    first: int
    stop: int
    recipe: Recipe
    seed: int
    keep: Keep | None = None
    batch: int = 64
    choices: tuple[Choice, ...] = ()


@interruptible()
def build_set(
    root: str | os.PathLike[str],
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    recipe: Recipe | None = None,
    keep: Keep | None = None,
    filter_settings: Mapping[str, Any] | None = None,
    batch: int | None = None,
    jobs: int = 1,
    archive: bool = False,
    progress: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Builds the set in ``root``, or resumes one that was begun there with the same settings.

    Files that are damaged or missing are written again.

    The files depend on the settings alone: not on ``jobs``, nor on how often the build was killed. A member
    is a function of the seed, its split and its index (and, if an earlier member has the same topology, of
    the earlier members). So a smaller train split holds the first members of a larger one.

    Args:
      root: A new or empty folder, or one where this set was begun.
      sizes: Number of members of each split; `SIZES` by default.
      seed: Non-negative seed.
      recipe: Distribution of candidates.
      keep: The filter, e.g. `RoomForImprovement`; with several jobs it is sent to the worker processes.
        ``None`` keeps all.
      filter_settings: Plain values that identify the filter in the manifest.
      batch: Number of candidates that ``keep`` receives at once; 64, or fewer for a small set, by default.
      jobs: Number of processes.
      archive: Whether to write ``SPLIT.tar.gz`` instead of a folder of files.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`, for each of two stages; none by
        default.

    Returns:
      The manifest: settings, numbers of candidates drawn and kept by kind, and the members.

    Raises:
      ConfigError: A setting is invalid or differs from those of the build, ``keep`` cannot be sent to other
        processes, or the folder has other files.
      FormatError: A file cannot be written, for example on a full disk. A new call resumes the build.
    """
    root, recipe = folder_path(root), Recipe() if recipe is None else recipe
    check_kind("recipe", recipe, Recipe)
    check_kind("sizes", {} if sizes is None else sizes, Mapping)
    check_kind("filter_settings", {} if filter_settings is None else filter_settings, Mapping)
    check_callback("keep", keep)
    check_callback("progress", progress)
    check_kind("archive", archive, bool)
    sizes = dict.fromkeys(SPLITS, 0) | dict(SIZES if sizes is None else sizes)
    sizes = _checked(sizes)
    seed, jobs = check_whole("seed", seed, 0), check_whole("jobs", jobs, 1)
    _check_sent(keep, jobs)
    batch = min(_BLOCK, 2 * max(sizes.values())) if batch is None else check_whole("batch", batch, 1)
    settings = {
        "sizes": sizes,
        "seed": seed,
        "recipe": recipe.as_document(),
        "filter": None if keep is None else plain_values("filter_settings", filter_settings or {}),
        "archive": archive,
    }
    with _one_line_errors(root), locked(root):
        found = open_manifest(root, settings)
        choices = (
            found
            if found is not None
            else _choose_all(root, sizes, seed, recipe, keep, batch, jobs, progress)
        )
        _write_all(root, choices, seed, recipe, jobs, archive, progress)
        document = finish_manifest(root, settings, choices)
        _clean(root)
    return document


def _checked(sizes: Mapping[str, Any]) -> dict[str, int]:
    for split in sizes:
        if split not in SPLITS:
            raise ConfigError(f"sizes: unknown split {split!r}; use {', '.join(SPLITS)}")
    checked = {split: check_whole(split, size, 0) for split, size in sizes.items()}
    if not any(checked.values()):
        raise ConfigError("sizes: no graph in any split; ask for at least one")
    return checked


def _check_sent(keep: Keep | None, jobs: int) -> None:
    """Refuses a filter that cannot be sent to several processes."""
    if keep is None or jobs == 1:
        return
    try:
        ForkingPickler.dumps(keep)
    except Exception:  # Of any type: objects choose how they are sent.
        raise ConfigError(
            f"keep: {shown(keep)} cannot be sent to other processes; "
            "give a function that a module defines, or leave jobs at 1"
        ) from None


@contextlib.contextmanager
def _one_line_errors(root: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename or root
        raise FormatError(
            f"{where}: {error.strerror or error}; mend that and run the same command again, which resumes "
            "where this one stopped"
        ) from None


def _choose_all(
    root: pathlib.Path,
    sizes: Mapping[str, int],
    seed: int,
    recipe: Recipe,
    keep: Keep | None,
    batch: int,
    jobs: int,
    progress: Callable[..., Any] | None,
) -> list[Choice]:
    folder = root / _WORK
    folder.mkdir(exist_ok=True)
    choices: list[Choice] = []
    tasks = []
    for split in SPLITS:
        for first in range(0, sizes[split], _BLOCK):
            task = _Task(
                str(folder), split, first, min(first + _BLOCK, sizes[split]), recipe, seed, keep, batch
            )
            done = choices_from_text(_part(task))
            if done is None or [c.index for c in done] != list(range(first, task.stop)):
                tasks.append(task)
            else:
                choices += done
    with _bar(progress, "choosing", sum(sizes.values()), len(choices)) as advance:
        for _, chosen in run_tasks(_choose_block, tasks, jobs):
            choices += chosen
            advance(len(chosen))

    def again(choice: Choice, taken: Collection[str]) -> Choice:
        settings = {"keep": keep, "batch": batch, "taken": taken, "first": choice}
        return choose(recipe, seed, choice.split, [choice.index], **settings)[0]

    return settle(choices, again)


def _part(task: _Task) -> pathlib.Path:
    return pathlib.Path(task.folder) / f"{task.split}-{task.first:06}.json"


def _choose_block(task: _Task) -> list[Choice]:
    members = range(task.first, task.stop)
    chosen = choose(task.recipe, task.seed, task.split, members, keep=task.keep, batch=task.batch)
    write_atomically(_part(task), choices_to_text(chosen).encode())
    return chosen


def _write_all(
    root: pathlib.Path,
    choices: Sequence[Choice],
    seed: int,
    recipe: Recipe,
    jobs: int,
    archive: bool,
    progress: Callable[..., Any] | None,
) -> None:
    with _bar(progress, "writing", len(choices), 0) as advance:
        for split in SPLITS:
            members = [c for c in choices if c.split == split]
            if not members:
                continue
            folder = root / _WORK / split if archive else root / split
            folder.mkdir(parents=True, exist_ok=True)
            tasks = [
                _Task(str(folder), split, i, i + _BLOCK, recipe, seed, choices=tuple(members[i : i + _BLOCK]))
                for i in range(0, len(members), _BLOCK)
            ]
            for task, _ in run_tasks(_write_block, tasks, jobs):
                advance(len(task.choices))
            if archive:
                names = sorted(_file_name(c) for c in members)
                pack(folder, names, root / f"{split}.tar.gz", prefix=split)


@contextlib.contextmanager
def _bar(
    progress: Callable[..., Any] | None, stage: str, total: int, done: int
) -> Iterator[Callable[[int], object]]:
    """A function to call with the number of newly finished graphs."""
    if progress is None:
        yield lambda _: None
        return
    with contextlib.closing(progress(total=total, initial=done, unit="graph", desc=stage)) as bar:
        yield bar.update


def _file_name(choice: Choice) -> str:
    return f"graph_{choice.hash}.pbtxt"


def _write_block(task: _Task) -> None:
    for choice in task.choices:
        check_interrupt()
        candidate = draw_candidate(task.recipe, task.seed, task.split, choice.index, choice.attempt)
        path = pathlib.Path(task.folder) / _file_name(choice)
        data = format_cost_graph(candidate.graph).encode()
        if _has(path, data):
            continue
        if topology_hash(candidate.graph) != choice.hash:
            raise ConfigError(
                f"{path}: the graph drawn for it has another topology; build with the version of NumPy that "
                "the set was begun with, or name a new folder"
            )
        write_atomically(path, data)


def _has(path: pathlib.Path, data: bytes) -> bool:
    """Whether the file is there and whole."""
    try:
        return read_limited(path) == data
    except (OSError, FormatError):
        return False


def _clean(root: pathlib.Path) -> None:
    """Removes temporary files of the build and of killed writers."""
    shutil.rmtree(root / _WORK, ignore_errors=True)
    for folder in (root, *(root / split for split in SPLITS)):
        for pattern in ("graph_*", "*.tar.gz", MANIFEST):
            for path in folder.glob(f".{pattern}.*.tmp"):
                path.unlink(missing_ok=True)
