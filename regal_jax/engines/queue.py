"""The items of a run that wait for a worker."""

import collections
from collections.abc import Collection, Sequence

__all__ = ["Waiting"]


class Waiting:
    """Items by kind, handed out in parcels of one kind.

    Args:
      kinds: Kind of each item.
      most: Largest parcel.
    """

    def __init__(self, kinds: Sequence[str], most: int) -> None:
        self._most = most
        self._fresh: dict[str, collections.deque[int]] = {}
        for index, kind in enumerate(kinds):
            self._fresh.setdefault(kind, collections.deque()).append(index)
        self._again: collections.deque[int] = collections.deque()

    @property
    def fresh(self) -> int:
        """Number of items that no worker has had."""
        return sum(map(len, self._fresh.values()))

    def __len__(self) -> int:
        return self.fresh + len(self._again)

    def again(self, index: int) -> None:
        """An item that a worker has had before; it will be alone in its parcel."""
        self._again.append(index)

    def take(self, had: Collection[str], others: Collection[str], workers: int) -> list[int]:
        """The next parcel for a worker.

        A worker gets a kind that it has had, for which its programs are compiled; if there is none, one that
        no other worker has had; then any, the largest first. Parcels shrink towards the end, so that all
        workers end at about the same time.

        Args:
          had: Kinds that this worker has had.
          others: Kinds that other workers have had.
          workers: Number of workers.
        """
        if not self._fresh:
            return [self._again.popleft()] if self._again else []
        kind = max(self._fresh, key=lambda kind: (kind in had, kind not in others, len(self._fresh[kind])))
        items = self._fresh[kind]
        count = min(self._most, len(items), -(-self.fresh // (3 * max(workers, 1))))
        parcel = [items.popleft() for _ in range(count)]
        if not items:
            del self._fresh[kind]
        return parcel
