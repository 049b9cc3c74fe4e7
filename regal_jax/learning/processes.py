"""Processes of a run over several hosts, which `jax.distributed` connects.

All processes make the same steps. Only the first one reads and writes the folder of the run, and tells the
others what it has read. With a single process, nothing here communicates.
"""

import contextlib
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from regal_jax.checks import is_number, shown, whole
from regal_jax.engines.address import host_and_port
from regal_jax.errors import ConfigError, ProcessLostError

__all__ = [
    "any_process",
    "exchanged",
    "fetched",
    "in_turns",
    "is_first",
    "join_processes",
    "naming_lost_processes",
    "together",
    "told",
    "told_tree",
]

_T = TypeVar("_T")

_COORDINATOR: Final = "JAX_COORDINATOR_ADDRESS"
"""Environment variable with the address, which JAX reads."""
_HEARTBEAT: Final = 30.0
"""Seconds without a sign of life after which a process counts as lost; JAX's own default is 100."""
_INTERRUPTED: Final = "KeyboardInterrupt"
"""What a process tells the others in place of a message when it was interrupted."""
_VARIABLES: Final = {"count": "JAX_NUM_PROCESSES", "index": "JAX_PROCESS_ID"}


def join_processes(
    coordinator: str | None = None,
    count: int | None = None,
    index: int | None = None,
    *,
    heartbeat: float = _HEARTBEAT,
) -> None:
    """Connects this process with the others of a run, by `jax.distributed.initialize`.

    Call it once, before anything else uses JAX. What is not given is taken from the environment variables
    ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``, and otherwise from Slurm,
    Kubernetes, Open MPI or the TPU pod, as JAX finds them. SIGTERM is left to Python's handlers.

    Args:
      coordinator: ``HOST:PORT`` of process 0, a free port there.
      count: Number of processes.
      index: Number of this process, from 0.
      heartbeat: Seconds without a sign of life after which a process counts as lost, at least 1. All
        others then end.

    Raises:
      ConfigError: An argument is invalid, nothing says what the processes are, or JAX is already in use.
      ProcessLostError: The others did not come within five minutes. JAX 0.10 ends the process instead, with
        exit code 134.

    Examples:
      In the first of two processes::

        join_processes("node0:29500", 2, 0)
        train(config, *training_shares(config), "run")

    References:
      JAX, "Introduction to multi-controller JAX".
    """
    count = _whole("processes", count, "count", 1)
    index = _whole("process", index, "index", 0)
    if count is not None and index is not None and index >= count:
        raise ConfigError(f"process: is {index} of {count}; number the processes from 0 to {count - 1}")
    what, address = "coordinator", coordinator
    if address is None:
        what, address = _COORDINATOR, os.environ.get(_COORDINATOR) or None
    if address is not None and not (isinstance(address, str) and host_and_port(address)):
        raise ConfigError(f"{what}: is {shown(address)}; give HOST:PORT, such as node0:29500")
    if not is_number(heartbeat) or not 1 <= heartbeat < 1e6:
        raise ConfigError(f"heartbeat: is {shown(heartbeat)}; give a number of seconds from 1")
    # JAX's service replaces Python's handler of SIGTERM, which saves a checkpoint.
    jax.config.update("jax_enable_preemption_service", False)
    seconds = round(heartbeat)
    complete = None not in (address, count, index)
    try:
        jax.distributed.initialize(
            coordinator,
            count,
            index,
            # Otherwise JAX would ask Kubernetes, which needs its client, and give each task of Slurm one GPU.
            cluster_detection_method="deactivate" if complete else None,
            heartbeat_timeout_seconds=seconds,
            shutdown_timeout_seconds=seconds,
        )
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"distributed: {_line(error)} Run under Slurm, Kubernetes or a TPU pod, or give --coordinator, "
            "--processes and --process"
        ) from None
    except RuntimeError as error:
        if "before any JAX" in str(error) or "only be called once" in str(error):
            raise ConfigError("distributed: JAX is in use already; join the processes first") from None
        raise ProcessLostError(f"distributed: the other processes did not answer ({_line(error)})") from None


def _whole(name: str, value: int | None, field: str, least: int) -> int | None:
    """The argument, or the number in its environment variable."""
    given: Any = value
    variable = _VARIABLES[field]
    if given is None and variable in os.environ:
        name, text = variable, os.environ[variable]
        given = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
    if given is None:
        return None
    number = whole(given, least)
    if number is None:
        raise ConfigError(f"{name}: is {shown(given)}; give a whole number from {least}")
    return number


def is_first() -> bool:
    """Whether this is process 0, which alone writes files."""
    return jax.process_index() == 0


def exchanged(value: Any) -> list[Any]:
    """The values of all processes, in their order; each gives a JSON value."""
    if jax.process_count() == 1:
        return [value]
    data = json.dumps(value).encode()
    sizes = multihost_utils.process_allgather(np.int32(len(data)))
    rows = multihost_utils.process_allgather(_padded(data, int(sizes.max())))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def in_turns(lists: Sequence[Sequence[_T]]) -> list[_T]:
    """The items of all processes, when item ``i`` is with process ``i`` modulo their number."""
    longest = max(map(len, lists))
    return [each[i] for i in range(longest) for each in lists if i < len(each)]


def any_process(flag: bool) -> bool:
    """Whether ``flag`` holds in any process."""
    if jax.process_count() == 1:
        return flag
    return bool(multihost_utils.process_allgather(np.bool_(flag)).any())


def told(value: _T) -> _T:
    """The JSON value of the first process, in all processes."""
    return value if jax.process_count() == 1 else json.loads(_told(json.dumps(value).encode()))


def told_tree(tree: Any) -> Any:
    """The arrays of the first process, in all processes, bit for bit.

    Args:
      tree: Arrays of the same shapes and dtypes in all processes.
    """
    if jax.process_count() == 1:
        return tree
    leaves, structure = jax.tree.flatten(tree)
    arrays = [np.asarray(leaf) for leaf in leaves]
    data, ends = _told(b"".join(a.tobytes() for a in arrays)), np.cumsum([a.nbytes for a in arrays])
    parts = (data[end - a.nbytes : end] for a, end in zip(arrays, ends.tolist(), strict=True))
    found = [np.frombuffer(p, a.dtype).reshape(a.shape) for p, a in zip(parts, arrays, strict=True)]
    return jax.tree.unflatten(structure, found)


def _told(data: bytes) -> bytes:
    """The bytes of the first process."""
    size = int(multihost_utils.broadcast_one_to_all(np.int32(len(data))))
    return multihost_utils.broadcast_one_to_all(_padded(data[:size], size))[:size].tobytes()


def _padded(data: bytes, size: int) -> np.ndarray:
    """``data`` in an array of one of few sizes, since each is compiled; ``size`` is at least its length."""
    row = np.zeros(1 << max(10, (size - 1).bit_length()), np.uint8)
    row[: len(data)] = np.frombuffer(data, np.uint8)
    return row


def together(work: Callable[[], _T]) -> _T:
    """The result of ``work`` in this process, after all processes have done theirs.

    Raises:
      ConfigError: It failed in another process, with the message of that process.
      Exception: What ``work`` raised in this process.
      KeyboardInterrupt: Ctrl-C, in any process.
    """
    if jax.process_count() == 1:
        return work()
    result, failure = None, None
    try:
        result = work()
    except (ValueError, OSError, ImportError, KeyboardInterrupt) as error:
        failure = error
    messages = exchanged(None if failure is None else _line(failure))
    if failure is not None:
        raise failure
    if _INTERRUPTED in messages:
        raise KeyboardInterrupt
    failed = [(process, message) for process, message in enumerate(messages) if message is not None]
    if failed:
        raise ConfigError(f"process {failed[0][0]}: {failed[0][1]}")
    return result  # pyright: ignore[reportReturnType]


def fetched(path: pathlib.Path, load: Callable[[pathlib.Path], _T]) -> _T:
    """``load(path)`` of a file that the first process has, in all processes."""
    if jax.process_count() == 1:
        return load(path)
    data = _told(path.read_bytes() if is_first() else b"")
    if is_first():
        return load(path)
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder) / path.name
        copy.write_bytes(data)
        return load(copy)


@contextlib.contextmanager
def naming_lost_processes() -> Iterator[None]:
    """A context in which a failed exchange of data raises `ProcessLostError`.

    Raises:
      ProcessLostError: Another process has ended, or cannot be reached.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        # Gloo, which connects CPUs, fails with a plain `ValueError`.
        failed = isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error)
        if jax.process_count() == 1 or not failed:
            raise
        raise ProcessLostError(
            f"another process has ended or cannot be reached ({_line(error)}); see its own messages, and "
            "start all processes again with the same command: the run goes on from its last checkpoint"
        ) from error


def _line(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    return " ".join(str(error).split())[:300] or type(error).__name__
