"""The workers of a `RayEngine` on the machines of a cluster: started, watched, and started again."""

import contextlib
import logging
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from regal_jax.engines.address import check_address, named_address
from regal_jax.engines.protocol import Message
from regal_jax.engines.ray_worker import Worker, versions
from regal_jax.errors import ConfigError, ResourceError
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline

__all__ = ["Crew", "Member"]

_LOOK: Final = 1.0
"""Seconds between two looks at the machines of the cluster."""
_PATIENCE: Final = 300.0
"""Seconds without any worker after which a run fails."""
_STARTS: Final = 6
"""Failed starts of a worker after which it is given up, with pauses of 1, 2, 4, 8 and 16 seconds between
them. In this time Ray notices that a machine has died."""


class Member:
    """A worker, as the calling process sees it.

    Attributes:
      node: Id of its machine.
      kinds: Kinds of items that it has had; after a restart, none.
      parcel: Indices of the items that it has, in their order.
      open: Those of them without a last answer.
    """

    def __init__(self, node: str, cores: int, gpus: int) -> None:
        self.node = node
        self.kinds: set[str] = set()
        self.parcel: list[int] = []
        self.open: set[int] = set()
        self.gone = self.ready = False
        self._answers: Any = None
        self._starting: Any = None
        self._failures = 0
        self._pause = Deadline(0.0)
        # An actor that could move would wait for a place on another machine, with its items.
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        # Ray restarts the process. It repeats no calls: that would repeat items that are done, and give up
        # all items of a call for one of them.
        options: dict[str, Any] = {"concurrency_groups": {"control": 1}, "max_restarts": -1}
        remote: Any = ray.remote(**options, max_task_retries=0)(Worker)
        self.actor = remote.options(num_cpus=cores, num_gpus=gpus, scheduling_strategy=place).remote(cores)

    @property
    def busy(self) -> bool:
        """Whether it has items."""
        return self._answers is not None

    @property
    def waitable(self) -> Any:
        """What Ray can wait for; ``None`` if nothing is under way."""
        return self._answers if self.busy else self._starting

    def start(self, work: str) -> None:
        """Makes it import ``work``."""
        if not self.gone and not self.busy and self._pause.over:
            self._starting, self.ready = self.actor.ready.remote(work), False

    def started(self) -> dict[str, Any] | None:
        """Its description, once it has started; ``None`` if the start failed."""
        reference, self._starting = self._starting, None
        try:
            found: Any = ray.get(reference)
        except exceptions.ActorUnavailableError:
            self._failures += 1
            self._pause = Deadline(2.0**self._failures / 2)
            if self._failures >= _STARTS:
                self.end()
            return None
        except exceptions.RayTaskError as error:
            raise ConfigError(
                f"engine: a worker does not start: {_one_line(str(error.cause))}; install the same packages "
                "on every machine of the cluster"
            ) from None
        except exceptions.RayError:
            self.end()
            return None
        self.ready, self._failures = True, 0
        return found

    @property
    def starting(self) -> bool:
        """Whether its start is under way."""
        return self._starting is not None

    def hand(
        self,
        token: str,
        work: str,
        common: Any,
        limits: Mapping[str, Any],
        parcel: list[int],
        messages: Sequence[Message],
    ) -> None:
        """Gives it items."""
        self.parcel, self.open = parcel, set(parcel)
        parts = [(dict(message.head), list(message.blobs)) for message in messages]
        self._answers = self.actor.run.remote(token, work, common, dict(limits), parts)

    def next_answers(self) -> Any:
        """The next answers of `Worker.run`, none at the end; or a line that says why it ended early."""
        try:
            return ray.get(next(self._answers))
        except StopIteration:
            self._answers = None
            return "its worker ended without an answer" if self.open else []
        except exceptions.RayError as error:
            self._answers, self.ready = None, False
            self.kinds.clear()
            return f"its worker died ({type(error).__name__})"

    def abandon(self) -> None:
        """Kills a busy process; Ray starts another one."""
        if self.busy:
            self._answers, self.ready = None, False
            self.kinds.clear()
            self.open.clear()
            ray.kill(self.actor, no_restart=False)

    def end(self) -> None:
        """Ends the worker."""
        self.gone, self.ready = True, False
        self._answers = self._starting = None
        with contextlib.suppress(exceptions.RayError):
            ray.kill(self.actor)


class Crew:
    """The workers of an engine.

    Args:
      address: As `RayEngine` takes it.
      cores: Cores of a worker on a machine without GPUs.

    Raises:
      ConfigError: The cluster cannot be reached.
    """

    def __init__(self, address: str | None, cores: int) -> None:
        self._cores = cores
        self._connected = _connect(address)
        self.on_gpus = any(node["Resources"].get("GPU", 0) >= 1 for node in _nodes())
        self.members: list[Member] = []
        self._staffed: set[str] = set()
        self._look = Deadline(0.0)
        self._without = Deadline(_PATIENCE)
        self._work = ""

    @property
    def present(self) -> list[Member]:
        """Workers that have started."""
        return [member for member in self.members if member.ready]

    @property
    def idle(self) -> list[Member]:
        """Workers that can be given items."""
        return [member for member in self.members if member.ready and not member.busy]

    @property
    def busy(self) -> list[Member]:
        """Workers with items."""
        return [member for member in self.members if member.busy]

    @property
    def state(self) -> str:
        """A line for a progress bar."""
        count = len(self.present)
        return f"{count} worker{'' if count == 1 else 's'}" if count else "starting workers"

    def share(self, message: Message) -> Any:
        """A message that workers share, put into Ray's object store."""
        return ray.put((dict(message.head), list(message.blobs)))

    def begin(self, work: str) -> None:
        """Prepares a run of ``work``."""
        if work != self._work:
            self._work = work
            for member in self.members:
                member.ready = False
        self._without = Deadline(_PATIENCE)

    def hire(self) -> None:
        """Starts workers on machines that have none, and those again that died.

        Raises:
          ConfigError: No machine has the cores for a worker.
          ResourceError: There has been no worker for minutes.
        """
        if self._look.over:
            self._look = Deadline(_LOOK)
            self._staff(_nodes())
        self.members = [member for member in self.members if not member.gone]
        for member in self.members:
            if not member.ready and not member.starting:
                member.start(self._work)
        if self.present or self.busy:
            self._without = Deadline(_PATIENCE)
        elif self._without.over:
            raise ResourceError(
                "engine: no worker has started for five minutes; see 'ray status' for the free cores"
            )

    def _staff(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        places = {node["NodeID"]: self._places(node["Resources"]) for node in nodes}
        if not any(count for count, _, _ in places.values()) and not self.members:
            raise ConfigError(
                f"engine: no machine of the Ray cluster has {self._cores} cores for a worker; use fewer cores"
            )
        for node, (count, cores, gpus) in places.items():
            if node not in self._staffed:
                self._staffed.add(node)
                self.members += [Member(node, cores, gpus) for _ in range(count)]

    def _places(self, resources: Mapping[str, float]) -> tuple[int, int, int]:
        """Number of workers on a machine, and the cores and GPUs of each."""
        cores = int(resources.get("CPU", 0))
        if self.on_gpus:
            gpus = int(resources.get("GPU", 0))
            return (gpus, max(1, cores // gpus), 1) if gpus and cores >= gpus else (0, 0, 0)
        return cores // self._cores, self._cores, 0

    def events(self, seconds: float) -> Iterator[Member]:
        """Busy workers with an answer, or that died; waits for ``seconds`` at most."""
        waitables = {id(one.waitable): one for one in self.members if one.waitable is not None}
        if not waitables:
            time.sleep(seconds)
            return
        done, _ = ray.wait([one.waitable for one in waitables.values()], timeout=seconds)
        for waitable in done:
            member = waitables[id(waitable)]
            if member.busy:
                yield member
            elif (found := member.started()) is not None:
                self._check(found)

    def _check(self, found: Mapping[str, Any]) -> None:
        here = versions()
        for name, version in found["versions"].items():
            if version != here[name]:
                raise ConfigError(
                    f"engine: a worker has {name} {version}, and this process has {here[name]}; install the "
                    "same on all machines, since plans depend on it"
                )

    def stop(self, token: str) -> None:
        """Asks the busy workers to end a run early."""
        for member in self.busy:
            member.actor.stop.remote(token)

    def abandon(self) -> None:
        """Ends what is left of a run."""
        for member in self.members:
            member.abandon()

    def close(self) -> None:
        """Ends the workers, and the connection if it was made here."""
        for member in self.members:
            member.end()
        if self._connected:
            ray.shutdown()


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _connect(address: str | None) -> bool:
    """Connects to a cluster, or starts one; returns whether a connection was made."""
    wanted = named_address(address)
    if ray.is_initialized():
        there = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", there):
            raise ConfigError(
                f"engine: this process is connected to the Ray cluster at {there!r}, not to {address!r}; "
                "call ray.shutdown() first, or leave the address out"
            )
        return False
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    # Otherwise Ray replaces `print` in the whole process.
    os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
    if wanted is None:
        # By default, Ray sends usage statistics to its developers and runs workers at the lowest priority.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_worker_niceness", "0")
        options |= {"num_cpus": available_cores(), "include_dashboard": False}
    else:
        check_address(wanted)
    try:
        with _own_handlers(), warnings.catch_warnings():
            # JAX warns of a fork, but the processes that Ray starts are new ones.
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
            # Without an address, Ray would look for a cluster of others on this machine.
            ray.init(wanted or "local", **options)
    except (RuntimeError, ValueError, OSError) as error:
        raise ConfigError(
            f"engine: no Ray cluster at {wanted or 'this machine'!r}: {_one_line(str(error))}"
        ) from None
    return True


@contextlib.contextmanager
def _own_handlers() -> Iterator[None]:
    """Keeps the process's handlers of signals, in whose place Ray puts its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]
