"""What an engine is: workers that answer messages of bytes and plain values."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

__all__ = ["Engine", "Item", "Message", "Work"]


@dataclasses.dataclass(frozen=True, eq=False)
class Message:
    """What travels between two processes.

    Attributes:
      head: Values that JSON can hold.
      blobs: Documents in the formats of the library: graphs, plans, weights.
    """

    head: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    blobs: Sequence[bytes] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Item:
    """One piece of work.

    Attributes:
      kind: Items of one kind share compiled programs. A worker continues with the kinds that it has had.
      message: Makes the input, when a worker gets the item.
    """

    kind: str
    message: Callable[[], Message]


Work = Callable[[Message, Sequence[Message], Callable[[int, Message, bool], None]], None]
"""A function that a worker runs: it takes the message that is common to all items and the messages of some
items, and calls its third argument with the position of an item, an answer, and whether that is the last one.
"""

NO_LIMITS: Final[Mapping[str, Any]] = {}


@runtime_checkable
class Engine(Protocol):
    """Workers elsewhere. Where the work is done in this process, there is no engine (``None``)."""

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
        """Has every item worked on, each once; an item whose worker dies is tried again.

        Args:
          work: ``module:function`` of a `Work`, which the workers import.
          common: Message for all items.
          items: The items.
          answer: Called in this thread with the index of an item, an answer, and whether it is the last one.
          most: Largest number of items in a call of ``work``; chosen by the engine if not given.
          limits: Called when a worker gets some items, with their number, the number of all items that no
            worker has had, and the number of workers. Its values join the head of the common message.
          interrupted: Tells whether to stop. Then no further items are begun, and the workers end early what
            they have begun.
          waiting: Called with a line about the state, for a progress bar.

        Returns:
          Index -> why the item was given up.

        Raises:
          ConfigError: There is no cluster, or its workers do not suit this process; or ``work`` raised it.
          MissingExtraError: The engine needs a package that is not installed.
          ResourceError: No worker is left.
        """
        ...

    def close(self) -> None:
        """Ends the workers."""
        ...
