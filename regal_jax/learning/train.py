"""`train`: the loop around the compiled step."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import pathlib
import time
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.learning.checkpoint import Checkpoints
from regal_jax.learning.config import DataConfig, TrainConfig
from regal_jax.learning.pool import Pool, make_pools
from regal_jax.learning.record import Record, event_writer
from regal_jax.learning.reference import with_references
from regal_jax.learning.step import AXIS, Learner, TrainState, train_step
from regal_jax.learning.validate import Validation, validate
from regal_jax.policies import Policy, load_policy, save_policy
from regal_jax.runtime.interrupts import first_interrupt_waits, interruptible
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import parse_json
from regal_jax.storage.locks import locked

__all__ = ["TrainResult", "train"]

_COMPILING: Final = "compiling"


@dataclasses.dataclass(frozen=True, eq=False)
class TrainResult:
    """The outcome of a run, or of as much of it as was not interrupted.

    Attributes:
      policy: With the weights that did best on the validation graphs.
      best: What they did there.
      best_step: When they were reached.
      steps: Updates made.
      finished: Were all steps made?
    """

    policy: Policy
    best: Validation
    best_step: int
    steps: int
    finished: bool


@interruptible()
def train(
    config: TrainConfig,
    graphs: Sequence[ComputationGraph],
    validation: Sequence[ComputationGraph],
    out: str | os.PathLike[str],
    *,
    progress: bool = True,
    tensorboard: bool = False,
    devices: Sequence[Any] | None = None,
    implementation: str | None = None,
) -> TrainResult:
    """Trains a policy.

    The folder ``out`` gets ``config.json``, ``references.jsonl``, ``metrics.jsonl``, ``checkpoints/`` and
    ``policy.safetensors`` (the weights that did best on the validation graphs). A run that was killed goes on
    from its last checkpoint when it is called again, and ends with the same weights and metrics, bit for
    bit, as one that was not, on as many devices. Ctrl-C saves a checkpoint and returns.

    Args:
      config: The run's settings.
      graphs: To train on, at least one.
      validation: To choose the best weights by, at least one.
      out: A new folder, or that of the run to go on with.
      progress: Show a progress bar.
      tensorboard: Write event files, too (extra ``train``).
      devices: JAX devices to spread batches over; as many of the default ones as divide the batch.
      implementation: Of the simulator, as in `regal_jax.simulate.simulate`.

    Raises:
      ConfigError: Settings that cannot be, a folder of a run with other settings or graphs, or a gradient
        that is not finite.
      FormatError: A checkpoint that cannot be read.
      MissingExtraError: No tensorboardX.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.learning import OptimizerConfig, TaskConfig, TrainConfig, train
      >>> from regal_jax.policies import PolicyConfig
      >>> graphs = [generate("layered", 6, seed=seed) for seed in range(2)]
      >>> config = TrainConfig(
      ...     task=TaskConfig(evaluations=10),
      ...     policy=PolicyConfig(rounds=1, width=4),
      ...     optimizer=OptimizerConfig(steps=1, batch=1, samples=2),
      ... )
      >>> result = train(config, graphs[:1], graphs[1:], "run", progress=False)
      >>> result.steps, result.finished
      (1, True)

    References:
      REGAL, ICLR 2020, section 4; workshop text, section 2.3.
    """
    if tensorboard:
        event_writer()  # Is it there? References take hours, and would come first.
    folder = pathlib.Path(out)
    with contextlib.ExitStack() as lock:
        run = _Run(config, graphs, validation, folder, lock, progress, devices, implementation)
        return run.all(tensorboard)


class _Run:
    """What a run has at hand; made anew after every restart."""

    def __init__(
        self,
        config: TrainConfig,
        graphs: Sequence[ComputationGraph],
        validation: Sequence[ComputationGraph],
        out: pathlib.Path,
        lock: contextlib.ExitStack,
        progress: bool,
        devices: Sequence[Any] | None,
        implementation: str | None,
    ) -> None:
        self._config, self._out, self._progress = config, out, progress
        self._begun: set[int] = set()
        self._note = ""
        self._mesh = _mesh(config.optimizer.batch, devices)
        # Where graphs lie is no part of a program: runs that differ in that alone share theirs.
        self._learner = Learner(dataclasses.replace(config, data=DataConfig()), implementation)
        cluster = config.task.cluster(config.policy.num_devices)
        most = config.optimizer.pools
        pools, held_out = (
            [pool for _, pool in make_pools(chosen, cluster, config.policy, most)]
            for chosen in (graphs, validation)
        )
        # Not before all is known to be well: the folder then belongs to this run.
        lock.enter_context(locked(out))
        _claim(out, config, graphs, validation)
        self._pools = self._ready(pools, "references")
        self._validation = self._ready(held_out, "validation references")
        self._key, self._validation_key = self._put(jax.random.split(jax.random.key(config.seed)))

    def _ready(self, pools: list[Pool], what: str) -> list[Pool]:
        path = self._out / "references.jsonl"
        with _bar(self._progress, what, sum(p.size for p in pools), 0) as bar:
            ready = []
            for pool in pools:
                # The first chunk of a pool has its program compiled.
                bar.set_description(f"{what} ({_COMPILING})")

                def advance(graphs: int) -> None:
                    bar.set_description(what, refresh=False)
                    bar.update(graphs)

                ready.append(with_references(self._config, pool, path, progress=advance))
        return [self._put(pool) for pool in ready]

    def _put(self, tree: Any) -> Any:
        """On every device of the mesh, as the step returns its state: or it would be compiled twice."""
        return jax.device_put(tree, NamedSharding(self._mesh, PartitionSpec()))

    def all(self, tensorboard: bool) -> TrainResult:
        """Every step that is left."""
        checkpoints = Checkpoints(self._out / "checkpoints")
        state, notes = checkpoints.restore(self._learner.init()) or (self._learner.init(), {})
        state = self._put(state)
        begun = int(state.step)
        # Without a checkpoint the validation before the first step is made again, too.
        last = begun if notes else -1
        bar = _bar(self._progress, "train", self._config.optimizer.steps, begun)
        with Record(self._out, last, tensorboard=tensorboard) as record, bar:
            state, notes = self._loop(state, notes, checkpoints, record, bar)
        steps = int(state.step)
        policy = load_policy(self._out / "policy.safetensors")
        best = Validation(**notes["best"])
        return TrainResult(policy, best, notes["best_step"], steps, steps == self._config.optimizer.steps)

    def _loop(
        self, state: TrainState, notes: dict[str, Any], checkpoints: Checkpoints, record: Record, bar: Any
    ) -> tuple[TrainState, dict[str, Any]]:
        o = self._config.optimizer
        with first_interrupt_waits() as stop:
            if not notes:
                notes = self._validate(state, {}, record, bar)
            for step in range(int(state.step), o.steps):
                state = self._step(state, step, record, bar)
                if (step + 1) % o.validate_every == 0 or step + 1 == o.steps:
                    notes = self._validate(state, notes, record, bar)
                if (step + 1) % o.checkpoint_every == 0 or step + 1 == o.steps or stop():
                    checkpoints.save(state, notes)
                if stop():
                    break
        return state, notes

    def _step(self, state: TrainState, step: int, record: Record, bar: Any) -> TrainState:
        number = self._choose(step)
        self._say(bar, "train", number)
        began = time.perf_counter()
        state, metrics = train_step(self._learner, self._mesh, state, self._pools[number], self._key)
        values = {name: float(value) for name, value in metrics._asdict().items()}
        seconds = time.perf_counter() - began
        if not math.isfinite(values["gradient"]):
            raise ConfigError(
                f"train: the gradient of step {step + 1} is {values['gradient']}; begin anew in another "
                "folder, with a lower optimizer.learning_rate"
            )
        if (step + 1) % self._config.optimizer.log_every == 0:
            record.add("train", step + 1, {**values, "pool": number, "seconds": seconds})
        self._say(bar, "train", number)
        bar.set_postfix(better=f"{100 * values['improvement']:.1f}%", refresh=False)
        bar.update(1)
        return state

    def _say(self, bar: Any, what: str, program: int) -> None:
        """Shows that ``what`` is going on, and the first time that its program is compiled for it."""
        first = program not in self._begun
        self._begun.add(program)
        note = _COMPILING if first else self._note
        bar.set_description(f"{what} ({note})" if note else what, refresh=first)

    def _choose(self, step: int) -> int:
        """Which pool a step takes its batch from: each as often as it has graphs."""
        sizes = np.array([pool.size for pool in self._pools], np.float64)
        rng = np.random.default_rng([self._config.seed, step])
        return int(rng.choice(len(sizes), p=sizes / sizes.sum()))

    def _validate(self, state: TrainState, notes: dict[str, Any], record: Record, bar: Any) -> dict[str, Any]:
        """Notes with the best validation so far; the best weights are on disk when this returns."""
        step = int(state.step)
        self._say(bar, "validation", -1)
        found = validate(self._learner, state.policy, self._validation, self._validation_key)
        record.add("validation", step, found._asdict())
        self._note = f"validation {100 * found.improvement:+.1f}%"
        self._say(bar, "train", -1)
        if notes and found.improvement <= notes["best"]["improvement"]:
            return notes
        metadata = {"step": str(step), "training": json.dumps(_document(self._config))}
        metadata |= {f"validation_{name}": repr(value) for name, value in found._asdict().items()}
        save_policy(self._out / "policy.safetensors", self._learner.policy(state), metadata)
        return {"best": found._asdict(), "best_step": step}


def _mesh(batch: int, devices: Sequence[Any] | None) -> Mesh:
    if devices is not None:
        if not len(devices) or batch % len(devices):
            raise ConfigError(
                f"devices: a batch of {batch} graphs does not divide among {len(devices)}; "
                "change optimizer.batch"
            )
        return Mesh(np.array(devices), (AXIS,))
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if batch % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def _document(config: TrainConfig) -> dict[str, Any]:
    """The settings, of paths only the names: where a set lies changes nothing, what is in it is hashed."""
    document = config.as_document()
    for name in ("train", "validation"):
        document["data"][name] = [pathlib.PurePath(given).name for given in document["data"][name]]
    document["start"] = pathlib.PurePath(document["start"]).name
    return document


def _claim(
    out: pathlib.Path,
    config: TrainConfig,
    graphs: Sequence[ComputationGraph],
    validation: Sequence[ComputationGraph],
) -> None:
    """Writes down what this run is, or refuses a folder of another one."""
    digests = [
        hashlib.sha256("".join(g.content_hash for g in chosen).encode()).hexdigest()[:16]
        for chosen in (graphs, validation)
    ]
    document = {"config": _document(config), "graphs": digests[0], "validation": digests[1]}
    if config.start:
        document["start"] = hashlib.sha256(pathlib.Path(config.start).read_bytes()).hexdigest()[:16]
    path = out / "config.json"
    if path.exists():
        try:
            old = parse_json(path.read_bytes())
        except FormatError:
            old = None
        if not isinstance(old, dict):
            raise FormatError(f"{path}: damaged; take another folder, or remove this one")
        if old != document:
            names = sorted(document.keys() | old.keys())
            changed = [name for name in names if old.get(name) != document.get(name)]
            raise ConfigError(
                f"{out}: holds a run with other {' and '.join(changed)}; take another folder, or give the "
                "same ones"
            )
        return
    write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())


def _bar(enabled: bool, what: str, total: int, done: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=done, desc=what, dynamic_ncols=True, disable=not enabled)
