"""`RayEngine`: the items of a batch on the machines of a Ray cluster."""

import collections
import importlib.util
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from regal_jax import errors
from regal_jax.checks import check_kind, check_whole
from regal_jax.engines.protocol import NO_LIMITS, Item, Message
from regal_jax.engines.queue import Waiting
from regal_jax.errors import ConfigError, MissingExtraError
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt

if TYPE_CHECKING:
    from regal_jax.engines.ray_crew import Crew, Member

__all__ = ["RayEngine"]

_BLINK: Final = 0.1
"""Longest wait for an answer, in seconds."""
_TURN: Final = 0.02
"""Seconds for which answers are passed on between two looks at the workers, of which one may be idle."""
_PARCEL: Final = 16
"""Items for each core in a parcel. What a worker has not answered is lost if it dies."""
_PARCEL_OF_GPU: Final = 256


class RayEngine:
    """Workers on Ray: one process for each GPU of the cluster, or for each group of cores if it has no GPU.

    Workers start at the first run, and stay until `close`, so that they keep what they have compiled. Each is
    bound to its machine. A worker that dies is started again on its machine; the items that it has not
    answered are tried again, one at a time, on any machine. An item whose workers die `tries` times is
    given up. The items of a machine that dies go to others; machines that join get workers.

    Args:
      address: Address of the cluster, ``HOST:PORT`` or ``auto``. Without it, the cluster is the one that
        this process is connected to, the one that ``RAY_ADDRESS`` names, or a new one on this machine.
      cores: Cores of a worker; where there are GPUs, each worker has its share of the cores.
      tries: Number of tries of an item whose worker dies.

    Raises:
      ConfigError: A number is impossible, or the address is no text.

    Examples:
      >>> from regal_jax.engines import RayEngine
      >>> engine = RayEngine("10.0.0.1:6379", cores=2)
      >>> engine.tries
      3
    """

    def __init__(self, address: str | None = None, *, cores: int = 1, tries: int = 3) -> None:
        if address is not None:
            check_kind("address", address, str)
        self.address = address
        self.cores = check_whole("cores", cores, 1)
        self.tries = check_whole("tries", tries, 1)
        self._crew: Crew | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> "Crew":
        """Connects to the cluster, unless that is done.

        Raises:
          ConfigError: The cluster cannot be reached.
          MissingExtraError: Ray is not installed.
        """
        if self._crew is None:
            if importlib.util.find_spec("ray") is None:
                raise MissingExtraError("ray", "ray")
            from regal_jax.engines.ray_crew import Crew

            self._crew = Crew(self.address, self.cores)
        return self._crew

    def close(self) -> None:
        """Ends the workers, and a cluster that was started for them."""
        crew, self._crew = self._crew, None
        if crew is not None:
            crew.close()

    def run(
        self,
        work: str,
        common: Message,
        items: Sequence[Item],
        answer: Callable[[int, Message, bool], None],
        *,
        most: int | None = None,
        limits: Callable[[int, int, int], Mapping[str, Any]] = lambda *_: NO_LIMITS,
        interrupted: Callable[[], bool] = lambda: False,
        waiting: Callable[[str], None] = lambda _: None,
    ) -> Mapping[int, str]:
        """As `Engine.run`."""
        if not items:
            return {}
        crew = self.open()
        run = _Run(self, crew, work, items, answer, most, limits)
        crew.begin(work)
        try:
            run.all(crew.share(common), interrupted, waiting)
        finally:
            crew.abandon()
        return run.given_up


class _Run:
    """The state of a run."""

    def __init__(
        self,
        engine: RayEngine,
        crew: "Crew",
        work: str,
        items: Sequence[Item],
        answer: Callable[[int, Message, bool], None],
        most: int | None,
        limits: Callable[[int, int, int], Mapping[str, Any]],
    ) -> None:
        self._crew, self._work, self._items, self._answer, self._limits = crew, work, items, answer, limits
        parcel = _PARCEL_OF_GPU if crew.on_gpus else _PARCEL * engine.cores
        self._waiting = Waiting([item.kind for item in items], most or parcel)
        self._tries = engine.tries
        self._tried = [0] * len(items)
        self._token = uuid.uuid4().hex
        self._unread: collections.deque[tuple[int, Message, bool]] = collections.deque()
        self.given_up: dict[int, str] = {}

    def all(self, common: Any, interrupted: Callable[[], bool], waiting: Callable[[str], None]) -> None:
        """Runs until every item is answered or given up, or until an interruption has ended all workers."""
        stopping, said = False, ""
        while True:
            try:
                check_interrupt()
            except KeyboardInterrupt:
                self._pass_on(None)  # What has come is not lost.
                raise
            if interrupted() and not stopping:
                stopping = True
                self._crew.stop(self._token)
            busy = self._crew.busy
            if not (busy or self._unread) and (stopping or not self._waiting):
                return
            if not stopping:
                self._crew.hire()
                self._hand_out(common)
                if self._crew.state != said:
                    said = self._crew.state
                    waiting(said)
            for member in self._crew.events(0.0 if self._unread else _BLINK):
                self._listen(member)
            if stopping or not (self._crew.idle and self._waiting):
                self._pass_on()

    def _pass_on(self, seconds: float | None = _TURN) -> None:
        """Passes answers on for a short time, since reading a plan takes longer than handing out a parcel."""
        turn = Deadline(seconds)
        while self._unread and not turn.over:
            self._answer(*self._unread.popleft())

    def _hand_out(self, common: Any) -> None:
        for member in self._crew.idle:
            others = {kind for one in self._crew.members if one is not member for kind in one.kinds}
            parcel = self._waiting.take(member.kinds, others, len(self._crew.present))
            if not parcel:
                return
            limits = self._limits(len(parcel), self._waiting.fresh + len(parcel), len(self._crew.present))
            member.kinds.update(self._items[i].kind for i in parcel)
            messages = [self._items[i].message() for i in parcel]
            member.hand(self._token, self._work, common, limits, parcel, messages)

    def _listen(self, member: "Member") -> None:
        """Takes answers of a busy worker, or notes its end."""
        found = member.next_answers()
        if isinstance(found, str):
            self._lost(member, found)
            return
        for position, head, blobs, last in found:
            if position < 0:
                self._raised(member, head)
                return
            index = member.parcel[position]
            if last:
                member.open.discard(index)
            self._unread.append((index, Message(head, blobs), last))

    def _raised(self, member: "Member", head: Mapping[str, Any]) -> None:
        """The work raised an error: ours, or that a package is missing, ends the run; others cost a try.

        So do those of a solver from outside of the package.
        """
        name, text = head["error"], head["text"]
        self._pass_on(None)
        if name in ("ImportError", "ModuleNotFoundError", "MissingExtraError"):
            raise ConfigError(f"engine: a worker lacks a package: {text}; install it on every machine")
        if name in errors.__all__ and name != "SolverError":
            raise getattr(errors, name)(text)
        self._lost(member, " ".join(f"{head['error']}: {head['text']}".split()))

    def _lost(self, member: "Member", why: str) -> None:
        for index in sorted(member.open):
            self._tried[index] += 1
            if self._tried[index] < self._tries:
                self._waiting.again(index)
            else:
                self.given_up[index] = why
        member.open.clear()
