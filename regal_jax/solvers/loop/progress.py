"""A progress bar over evaluations, on stderr."""

from collections.abc import Callable
from typing import Any, Self

from regal_jax.search import Progress

__all__ = ["Bar"]


class Bar:
    """Counts evaluations of all graphs, with a text about the current state."""

    def __init__(self, total: int, *, enabled: bool) -> None:
        self._bar: Any = None
        if enabled:
            from tqdm import tqdm

            self._bar = tqdm(total=total, unit="eval", dynamic_ncols=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, text: str) -> None:
        """Shows ``text`` before the bar."""
        if self._bar is not None:
            self._bar.set_description(text, refresh=not self._bar.desc.startswith(text))

    def advance(self, evaluations: int) -> None:
        """Adds evaluations."""
        if self._bar is not None:
            self._bar.update(evaluations)

    def follow(self, graphs: int, evaluations: int) -> Callable[[Progress], None]:
        """A callback for the search of the first ``graphs`` rows of a batch."""
        self.say("compiling")
        done = 0

        def callback(progress: Progress) -> None:
            nonlocal done
            now = int(progress.evaluations[:graphs].sum())
            if progress.generation == progress.generations:
                # The rest of the budget is less than a generation.
                now = graphs * evaluations
            self.say("searching")
            if self._bar is not None:
                self._bar.update(now - done)
            done = now

        return callback
