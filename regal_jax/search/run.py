"""The host side of a search: chunks, progress, time limit, Ctrl-C and results."""

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regal_jax.checks import check_setting
from regal_jax.errors import ConfigError
from regal_jax.programs import on_mesh, program, put_spread
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, first_interrupt_waits, interruptible
from regal_jax.search.loop import (
    HISTORY,
    Incumbent,
    Inputs,
    Searcher,
    WarmStart,
    run_chunk,
    start,
)
from regal_jax.search.stopping import Limits, Status, Stopping

__all__ = ["Progress", "SearchResult", "run"]

_CHUNK_SECONDS: Final = 0.3
"""Target time of a chunk: short enough for a progress bar, long enough to make host overhead negligible."""


@dataclasses.dataclass(frozen=True, eq=False)
class Progress:
    """Argument of a callback, after the first population and after every chunk.

    Attributes:
      generation: Generations done.
      generations: Generations within the budget.
      fitness: ``[B]`` float32, fitness of the incumbents.
      evaluations: ``[B]`` int32, evaluations so far.
      status: ``[B]`` int32, a `Status`.
      seconds: Seconds since the call.
      genes: ``[B, ...]`` genes of the incumbents, on the host.
    """

    generation: int
    generations: int
    fitness: np.ndarray
    evaluations: np.ndarray
    status: np.ndarray
    seconds: float
    genes: Any = None


@dataclasses.dataclass(frozen=True, eq=False)
class SearchResult:
    """The outcome for ``B`` instances, on the host.

    Attributes:
      genes: ``[B, ...]`` uint16 pytree, the best individual of each instance.
      fitness: ``[B]`` float32; ``+inf`` if no individual had a finite fitness (then `genes` are those of
        the first one).
      evaluations: ``[B]`` int32, fitness calls.
      status: ``[B]``, reason why each search ended.
      history_fitness: ``[G + 1, B]`` float32, fitness of the incumbent after the first population and after
        each of the ``G`` generations; constant once an instance has finished.
      history_evaluations: ``[G + 1, B]`` int32, evaluations at the same times.
      seconds: Wall-clock time, compilation included.
    """

    genes: Any
    fitness: np.ndarray
    evaluations: np.ndarray
    status: tuple[Status, ...]
    history_fitness: np.ndarray
    history_evaluations: np.ndarray
    seconds: float


@program(static=(0, 4))
def _start(
    searcher: Searcher[Any], inputs: Inputs, limits: Limits, warm: WarmStart | None, mesh: Mesh | None
) -> Any:
    if mesh is None:
        return start(searcher, inputs, limits, warm)
    shared = PartitionSpec(mesh.axis_names)
    return on_mesh(functools.partial(start, searcher), mesh, shared, shared)(inputs, limits, warm)


@program(static=(0, 5), donate=(3,))
def _run_chunk(
    searcher: Searcher[Any],
    inputs: Inputs,
    limits: Limits,
    state: Any,
    generations: jax.Array,
    mesh: Mesh | None,
) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
    """`run_chunk` on all devices; ``done`` is an array with one number per device.

    Every device runs the loop for its own instances and stops when they have finished. There are no
    collectives, so no values need to be equal on all devices.
    """

    def chunk(
        inputs: Inputs, limits: Limits, state: Any, generations: jax.Array
    ) -> tuple[Any, jax.Array, jax.Array, jax.Array]:
        state, fitness, evaluations, done = run_chunk(searcher, inputs, limits, state, generations)
        return state, fitness, evaluations, done[None]

    if mesh is None:
        return chunk(inputs, limits, state, generations)
    shared, rows = PartitionSpec(mesh.axis_names), PartitionSpec(None, mesh.axis_names)
    split = on_mesh(chunk, mesh, (shared, shared, shared, PartitionSpec()), (shared, rows, rows, shared))
    return split(inputs, limits, state, generations)


def _begin(
    searcher: Searcher[Any],
    inputs: Inputs,
    limits: Limits,
    warm: WarmStart | None,
    mesh: Mesh | None,
    generations: int,
) -> Any:
    """Runs `_start`. If that compiles, another thread compiles `_run_chunk` at the same time."""
    shapes = _start.shapes(searcher, inputs, limits, warm, mesh) if generations else None
    if shapes is None or mesh is not None:
        return _start(searcher, inputs, limits, warm, mesh)

    def compile_chunk() -> None:
        # This call only compiles. Its errors are raised again by the next call.
        with contextlib.suppress(Exception):
            zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)
            state = jax.device_put(zeros, inputs.keys.sharding)
            _run_chunk(searcher, inputs, limits, state, np.int32(0), None)

    thread = threading.Thread(target=compile_chunk, name="regal_jax compiles")
    thread.start()
    try:
        return _start(searcher, inputs, limits, warm, mesh)
    finally:
        thread.join()


class _Record:
    """Snapshots on the host, appended atomically so that an interrupt finds a complete one."""

    def __init__(self, limit: float | None) -> None:
        self._parts: list[tuple[np.ndarray, np.ndarray, Incumbent]] = []
        self.deadline = Deadline(limit)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def begin(self, incumbent: Incumbent) -> None:
        """Adds the first population."""
        best = jax.device_get(incumbent)
        self._parts.append((best.fitness[None], best.evaluations[None], best))

    def add(self, fitness: jax.Array, evaluations: jax.Array, incumbent: Incumbent, done: jax.Array) -> int:
        """Adds the results of `_run_chunk` in one transfer; returns the number of generations."""
        fitness_, evaluations_, best, each = jax.device_get((fitness, evaluations, incumbent, done))
        rows = int(each.max())
        self._parts.append((fitness_[:rows], evaluations_[:rows], best))
        return rows

    @property
    def running(self) -> bool:
        return bool((self._parts[-1][2].status == Status.RUNNING).any())

    def progress(self, generations: int) -> Progress:
        best = self._parts[-1][2]
        done = sum(len(fitness) for fitness, _, _ in self._parts) - 1
        fitness, evaluations, status = (np.asarray(x) for x in (best.fitness, best.evaluations, best.status))
        return Progress(done, generations, fitness, evaluations, status, self.deadline.spent, best.genes)

    def result(self, ending: Status) -> SearchResult:
        best = self._parts[-1][2]
        return SearchResult(
            genes=best.genes,
            fitness=np.asarray(best.fitness),
            evaluations=np.asarray(best.evaluations),
            status=tuple(Status(int(s)) or ending for s in np.asarray(best.status)),
            history_fitness=np.concatenate([fitness for fitness, _, _ in self._parts]),
            history_evaluations=np.concatenate([evaluations for _, evaluations, _ in self._parts]),
            seconds=self.deadline.spent,
        )


@interruptible()
def run(
    searcher: Searcher[Any],
    inputs: Inputs,
    stopping: Stopping,
    *,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], object] | None = None,
    chunk: int | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Run a searcher to its end, in compiled chunks.

    Ctrl-C ends the search after the current chunk, with the incumbent so far. A second Ctrl-C (see
    `regal_jax.runtime.interrupts`) and a `KeyboardInterrupt` raised by the callback do the same. Before the
    first population is evaluated there is no incumbent, and these two propagate.

    Args:
      searcher: The search algorithm.
      inputs: See `Inputs`.
      stopping: When to stop.
      warm: Individuals in the first population.
      callback: Called after the first population and after every chunk.
      chunk: Generations per chunk, at most 256; ``None`` adapts it to take about 0.3 s. It changes only how
        often the host checks.
      mesh: Devices over which the instances are spread; their number must divide that of the instances.
        Arrays of `inputs`, warm starts and states must have the axis of instances first. Results do not
        depend on it.

    Raises:
      ConfigError: The budget is too small for the first population, the chunk or mesh is invalid, or targets
        do not match the instances.
    """
    record = _Record(stopping.seconds)
    spare = stopping.evaluations - searcher.first_evaluations
    if spare < 0:
        raise ConfigError(
            f"evaluations: {stopping.evaluations} do not pay for a first population of "
            f"{searcher.first_evaluations}; raise evaluations or shrink the population (BrkgaConfig.fit does)"
        )
    generations = spare // searcher.step_evaluations
    length = 1 if chunk is None else check_setting("run", "chunk", chunk, 1, HISTORY)
    limits = stopping.limits(inputs.keys.shape[0])
    if mesh is not None and inputs.keys.shape[0] % mesh.size:
        raise ConfigError(
            f"mesh: {inputs.keys.shape[0]} instances do not divide among {mesh.size} devices; add copies"
        )
    place = None if mesh is None else NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    inputs, ending = _on_device(inputs, place), Status.BUDGET
    if place is not None:
        limits, warm = put_spread((limits, warm), place)
    try:
        with first_interrupt_waits() as interrupted:
            state = _begin(searcher, inputs, limits, warm, mesh, generations)
            check_interrupt()
            record.begin(state.incumbent)
            if chunk is None:
                # Assume the speed of the first population, including its compilation.
                done = searcher.first_evaluations / searcher.step_evaluations
                length = _next_length(done, record.deadline.spent, record.deadline)
            while True:
                progress = record.progress(generations)
                if callback is not None:
                    callback(progress)
                check_interrupt()
                left = generations - progress.generation
                if not left or not record.running:
                    break
                if interrupted():
                    raise KeyboardInterrupt
                if record.deadline.over:
                    ending = Status.TIME
                    break
                began = record.deadline.spent
                state, fitness, evaluations, done = _run_chunk(
                    searcher, inputs, limits, state, np.int32(min(length, left)), mesh
                )
                done = record.add(fitness, evaluations, state.incumbent, done)
                if chunk is None:
                    length = _next_length(done, record.deadline.spent - began, record.deadline)
            # After the last chunk this stops nothing here, but the caller may have more to do.
            ending = Status.INTERRUPTED if interrupted() else ending
    except KeyboardInterrupt:
        if not record:
            raise
        ending = Status.INTERRUPTED
    return record.result(ending)


def _on_device(inputs: Inputs, place: NamedSharding | None) -> Inputs:
    """Moves inputs to the device unless they are there, since a move takes as long as a small search."""
    if place is None and all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(inputs)):
        return inputs
    return jax.device_put(inputs) if place is None else put_spread(inputs, place)


def _next_length(done: float, took: float, deadline: Deadline) -> int:
    """Number of generations in the next chunk, at the speed of the last one."""
    left = deadline.left
    room = _CHUNK_SECONDS if left is None else min(_CHUNK_SECONDS, left)
    return max(1, min(HISTORY, int(room * done / max(took, 1e-9))))
