"""The loop of every training run: steps, validations, records and checkpoints of a `Course`."""

import abc
import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

import jax
import safetensors
from jax.sharding import Mesh

from regal_jax.checks import shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.mesh import everywhere
from regal_jax.learning.processes import (
    any_process,
    exchanged,
    is_first,
    naming_lost_processes,
    together,
    told,
    told_tree,
)
from regal_jax.learning.record import Record
from regal_jax.learning.share import Entry
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import first_interrupt_waits
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json
from regal_jax.storage.locks import locked
from regal_jax.storage.reading import read_limited
from regal_jax.storage.stamps import file_stamp

__all__ = [
    "COMPILING",
    "WEIGHTS",
    "Cadence",
    "Course",
    "Ending",
    "begin_run",
    "folder_of_run",
    "progress_bar",
    "run_course",
    "run_identity",
]

COMPILING: Final = "compiling"
"""Shown for a step whose program is not compiled yet."""
WEIGHTS: Final = "policy.safetensors"
"""Name of the file of weights in the folder of a run."""
_SETS: Final = ("train", "validation")
_MOST_NAMED: Final = 3
"""Most settings that the message for the folder of another run names."""
_CHECKPOINTS: Final = "checkpoints"
_OF_A_RUN: Final = (_CHECKPOINTS, "metrics.jsonl", WEIGHTS, "policy.toml", "moves-*.npy")
"""Files that come after ``config.json``. Not references, which may be copied from another run."""


class HasStep(Protocol):
    """A pytree that knows how many steps have been made."""

    @property
    def step(self) -> Any: ...


State = TypeVar("State", bound=HasStep)


@dataclasses.dataclass(frozen=True)
class Cadence:
    """The number of steps, and the intervals of records, validations and checkpoints.

    Attributes:
      steps: Updates of the weights.
      log_every: Steps between two records of metrics.
      validate_every: Steps between two validations.
      checkpoint_every: Steps between two checkpoints.
    """

    steps: int
    log_every: int
    validate_every: int
    checkpoint_every: int


class Course(abc.ABC, Generic[State]):
    """The system that a run trains. All random numbers are functions of the step and the seed.

    Args:
      config: The settings.
      learner: Makes the first state and updates its weights.
      mesh: The devices of the state.
    """

    def __init__(self, config: Any, learner: Any, mesh: Mesh) -> None:
        self._config, self._learner, self._mesh = config, learner, mesh

    @property
    def cadence(self) -> Cadence:
        """Intervals of the run."""
        o = self._config.optimizer
        return Cadence(o.steps, o.log_every, o.validate_every, o.checkpoint_every)

    def init(self) -> State:
        """The state before the first step, a pytree whose ``step`` is an int32 scalar."""
        return self._learner.init()

    def place(self, state: State) -> State:
        """The state on the devices where `step` returns it, or its program would be compiled twice."""
        return everywhere(state, self._mesh)

    @abc.abstractmethod
    def step(self, state: State, step: int) -> tuple[State, Any]:
        """Step ``step``, from 0: the next state, and a named tuple with ``improvement`` and ``gradient``."""

    @abc.abstractmethod
    def validate(self, state: State) -> tuple[State, Mapping[str, float]]:
        """Metrics on held-out graphs; the run keeps the weights of the largest ``improvement``."""

    @abc.abstractmethod
    def save(self, path: pathlib.Path, state: State, metadata: Mapping[str, str]) -> None:
        """Writes the weights that users load."""

    @abc.abstractmethod
    def load(self, path: pathlib.Path) -> Any:
        """The network of a file that `save` wrote.

        Raises:
          FormatError: The file is damaged.
        """

    def document(self) -> Mapping[str, Any]:
        """The settings, as plain values."""
        return _located_by_name(self._config.as_document())

    def program(self, step: int) -> int:
        """Number of the compiled program that the step runs; the first step of each program takes longer."""
        del step
        return 0


@dataclasses.dataclass(frozen=True)
class Ending(Generic[State]):
    """How a run ended.

    Attributes:
      state: State after the last step.
      best: Metrics of the best validation.
      best_step: Step of the best validation.
    """

    state: State
    best: Mapping[str, float]
    best_step: int


def run_course(
    course: Course[State], out: pathlib.Path, *, progress: bool = True, tensorboard: bool = False
) -> Ending[State]:
    """Runs all remaining steps.

    The folder gets ``metrics.jsonl``, ``checkpoints/`` and ``policy.safetensors``. Ctrl-C saves a checkpoint
    after the running step, or after the validation before the first one, and ends the run.

    On several processes, the first one alone reads and writes the folder. All end after the same step,
    whichever of them Ctrl-C reaches.

    Args:
      course: What to train.
      out: The folder of the run, which nothing else writes to.
      progress: Show a progress bar.
      tensorboard: Also write event files.

    Raises:
      ConfigError: A metric is not finite.
      FormatError: A checkpoint or a record cannot be read, or the best weights so far are missing, damaged or
        of another run.
      MissingExtraError: tensorboardX is not installed.
    """
    checkpoints = Checkpoints(out / _CHECKPOINTS)
    first = course.init()
    found = together(lambda: checkpoints.restore(first) if is_first() else None)
    state, notes = found or (first, {})
    together(lambda: _check_weights(course, out / WEIGHTS, notes))
    notes = told(notes)
    state = course.place(told_tree(state) if notes else state)
    begun = int(state.step)
    # Without a checkpoint the validation before the first step is made again, too.
    last = begun if notes else -1
    bar = progress_bar(progress and is_first(), "train", course.cadence.steps, begun)
    record = together(lambda: Record(out, last, tensorboard=tensorboard) if is_first() else None)
    with record or contextlib.nullcontext(), bar:
        state, notes = _Loop(course, out, record, bar).all(state, notes, checkpoints)
    return Ending(state, notes["best"], notes["best_step"])


def _check_weights(course: Course[Any], path: pathlib.Path, notes: Mapping[str, Any]) -> None:
    """Refuses to resume without the best weights of this run, which are in no checkpoint."""
    if not notes or not is_first():
        return
    fault = "" if path.is_file() else f"{path}: is missing"
    if not fault:
        try:
            course.load(path)
            with safetensors.safe_open(path, framework="numpy") as file:
                trained = parse_json((file.metadata() or {}).get("training", "null"))
            if trained != course.document():
                fault = f"{path}: holds weights of another run"
        except ValueError as error:
            fault = str(error)
    if fault:
        raise FormatError(
            f"{fault}; it had the weights of step {notes['best_step']}, the best so far; put it back, remove "
            f"{path.parent / _CHECKPOINTS} to start again, or take another --out folder"
        )


class _Loop(Generic[State]):
    def __init__(self, course: Course[State], out: pathlib.Path, record: Record | None, bar: Any) -> None:
        self._course, self._out, self._record, self._bar = course, out, record, bar
        self._begun: set[int] = set()
        self._note = ""

    def all(
        self, state: State, notes: dict[str, Any], checkpoints: Checkpoints
    ) -> tuple[State, dict[str, Any]]:
        """Steps, validations and checkpoints; the best validation is in the notes."""
        c = self._course.cadence
        with first_interrupt_waits() as stop:
            if not notes:
                state, notes = self._validate(state, {})
                if any_process(stop()):  # The first step may have to be compiled, which takes long.
                    together(functools.partial(self._save, checkpoints, state, notes))
                    return state, notes
            for step in range(int(state.step), c.steps):
                state = self._step(state, step)
                if (step + 1) % c.validate_every == 0 or step + 1 == c.steps:
                    state, notes = self._validate(state, notes)
                ending = any_process(stop())
                if (step + 1) % c.checkpoint_every == 0 or step + 1 == c.steps or ending:
                    # The others wait: what they tell of this step is on disk.
                    together(functools.partial(self._save, checkpoints, state, notes))
                if ending:
                    break
        return state, notes

    def _save(self, checkpoints: Checkpoints, state: State, notes: dict[str, Any]) -> None:
        if self._record is not None:
            checkpoints.save(state, notes)

    def _step(self, state: State, step: int) -> State:
        number = self._course.program(step)
        self._say("train", number)
        clock = Deadline()
        state, made = self._course.step(state, step)
        metrics = {name: float(value) for name, value in made._asdict().items()}
        seconds = clock.spent
        _check_finite(step + 1, {"gradient": metrics["gradient"], **metrics})
        if self._record is not None and (step + 1) % self._course.cadence.log_every == 0:
            self._record.add("train", step + 1, {**metrics, "pool": number, "seconds": seconds})
        self._say("train", number)
        self._bar.set_postfix(better=f"{100 * metrics['improvement']:.1f}%", refresh=False)
        self._bar.update(1)
        return state

    def _validate(self, state: State, notes: dict[str, Any]) -> tuple[State, dict[str, Any]]:
        """Notes with the best validation so far; the best weights are on disk when this returns."""
        step = int(state.step)
        self._say("validation", -1)
        state, found = self._course.validate(state)
        _check_finite(step, found)
        if self._record is not None:
            self._record.add("validation", step, dict(found))
        self._note = f"validation {100 * found['improvement']:+.1f}%"
        self._say("train", -1)
        if notes and found["improvement"] <= notes["best"]["improvement"]:
            return state, notes
        metadata = {"step": str(step), "training": json.dumps(self._course.document())}
        metadata |= {f"validation_{name}": repr(value) for name, value in found.items()}
        if self._record is not None:
            self._course.save(self._out / WEIGHTS, state, metadata)
        return state, {"best": dict(found), "best_step": step}

    def _say(self, what: str, program: int) -> None:
        """Shows the current activity ``what``, and for its first step that its program is compiled."""
        first = program not in self._begun
        self._begun.add(program)
        note = COMPILING if first else self._note
        self._bar.set_description(f"{what} ({note})" if note else what, refresh=first)


def _check_finite(step: int, metrics: Mapping[str, float]) -> None:
    """Refuses metrics that JSON cannot hold, so that a run that was killed can read its records again."""
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise ConfigError(
                f"train: the {name} of step {step} is {value}; start again in another folder, with a lower "
                "optimizer.learning_rate"
            )


@contextlib.contextmanager
def folder_of_run(out: pathlib.Path, identity: Mapping[str, Any]) -> Iterator[None]:
    """Locks the folder of a run and records its settings, in the first process.

    Args:
      out: A new folder, or that of a run.
      identity: As `run_identity` makes it; runs are the same if these are equal.

    Raises:
      ConfigError: The folder is that of another run, another process writes there, or the processes of this
        run differ in their settings or graphs.
      FormatError: Its ``config.json`` is damaged.
      ProcessLostError: Another process has ended.
    """
    with contextlib.ExitStack() as stack, naming_lost_processes():

        def claim() -> None:
            if is_first():
                stack.enter_context(locked(out))
                begin_run(out, identity)
                _remove_leftovers(out)

        if exchanged(identity) != [told(identity)] * jax.process_count():
            raise ConfigError("distributed: the processes have other settings or graphs; give all the same")
        together(claim)
        yield


def _remove_leftovers(out: pathlib.Path) -> None:
    """Removes what a process that was killed while it wrote a file has left; checkpoints may be large."""
    for pattern in (".*.tmp", "checkpoints/.*.tmp"):
        for leftover in out.glob(pattern):
            if leftover.is_file():
                leftover.unlink(missing_ok=True)


def begin_run(out: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Records the settings of this run; raises an error for the folder of another run.

    Args:
      out: A new folder, or that of a run.
      document: Plain values; runs are the same if these are equal.

    Raises:
      ConfigError: The folder is that of another run, or has files of a run but no ``config.json``.
      FormatError: Its ``config.json`` is damaged or cannot be read.
    """
    path = out / "config.json"
    if not path.exists():
        foreign = [file.name for pattern in _OF_A_RUN for file in sorted(out.glob(pattern))]
        if foreign:
            raise ConfigError(
                f"{out}: has {' and '.join(foreign)} of another run, but no config.json; take another "
                "folder, or remove them"
            )
        # The first file of a run: one that is killed right after it resumes.
        write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())
        return
    try:
        old = parse_json(read_limited(path))
    except FormatError:
        old = None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}; check the path") from None
    if not isinstance(old, dict):
        raise FormatError(f"{path}: damaged; take another folder, or remove this one")
    if old != document:
        names = sorted(document.keys() | old.keys())
        changed = [name for name in names if old.get(name) != document.get(name)]
        found = list(_differences(document.get("config"), old.get("config")))
        more = [f"{len(found) - _MOST_NAMED} more"] if len(found) > _MOST_NAMED else []
        settings = f" ({', '.join(found[:_MOST_NAMED] + more)})" if found else ""
        raise ConfigError(
            f"{out}: holds a run with other {' and '.join(changed)}{settings}; take another folder, or give "
            "the same ones"
        )


def _differences(here: Any, there: Any, name: str = "") -> Iterator[str]:
    """Each setting that differs, with both values."""
    tables = [table for table in (here, there) if isinstance(table, dict)]
    if tables:
        for key in sorted(set().union(*tables)):
            one, other = (table.get(key) if isinstance(table, dict) else None for table in (here, there))
            yield from _differences(one, other, f"{name}.{key}" if name else key)
    elif here != there:
        values = ("unset" if value is None else shown(value) for value in (here, there))
        yield f"{name or 'config'} is {' here and '.join(values)} there"


def _located_by_name(document: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run with paths reduced to names: the content of a set is hashed, its location is not."""
    data = {name: [pathlib.PurePath(path).name for path in document["data"][name]] for name in _SETS}
    start = pathlib.PurePath(document["start"]).name
    return {**document, "data": {**document["data"], **data}, "start": start}


def run_identity(
    document: Mapping[str, Any],
    graphs: Sequence[ComputationGraph | Entry],
    validation: Sequence[ComputationGraph | Entry],
) -> dict[str, Any]:
    """The identity of a run, for `begin_run`.

    Args:
      document: Settings of the run, with the paths ``data.train``, ``data.validation`` and ``start``.
      graphs: Graphs of sets that it trains on.
      validation: Graphs of sets that it validates on.

    Raises:
      ConfigError: There is no file ``start``.
    """
    digests = [
        hashlib.sha256("".join(g.content_hash for g in chosen).encode()).hexdigest()[:16]
        for chosen in (graphs, validation)
    ]
    identity = {"config": _located_by_name(document), "graphs": digests[0], "validation": digests[1]}
    if document["start"]:
        file_stamp(document["start"], "start", "give a file of weights")
        identity["start"] = hashlib.sha256(pathlib.Path(document["start"]).read_bytes()).hexdigest()[:16]
    return identity


def progress_bar(enabled: bool, what: str, total: int, done: int) -> Any:
    """A progress bar of tqdm."""
    from tqdm import tqdm

    return tqdm(total=total, initial=done, desc=what, dynamic_ncols=True, disable=not enabled)
