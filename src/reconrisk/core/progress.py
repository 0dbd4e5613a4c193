"""A bar with the time left, on standard error, for loops that people wait for."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Iterable, Iterator, Sized
from typing import Any, ClassVar, TypeVar

from reconrisk.core.executor import check_cancelled

T = TypeVar("T")

SHOW_AFTER_SECONDS = 2.0


class ProgressBar:
    """A bar for loops that somebody else runs: ``advance`` after each turn, ``close`` where they end before ``total``.

    It appears once two seconds have passed, or ``at_once``, if somebody is at the terminal, and is cleared at the end.
    Of bars inside each other the outermost is shown.

    >>> bar = ProgressBar("steps", total=2)
    >>> bar.advance()
    >>> bar.close()
    """

    _outermost: ClassVar[weakref.ref[ProgressBar] | None] = None

    def __init__(self, label: str, *, total: int | None = None, at_once: bool = False) -> None:
        self._label, self._total = label, total
        self._after = 0.0 if at_once else SHOW_AFTER_SECONDS
        self._is_inner = ProgressBar._outermost is not None and ProgressBar._outermost() is not None
        if not self._is_inner:
            ProgressBar._outermost = weakref.ref(self)
        self._begun, self._done = time.monotonic(), 0
        self._bar: Any = None
        self._task: Any = None

    def advance(self) -> None:
        """One turn is done; raises Cancelled if the task should stop."""
        check_cancelled()
        self._done += 1
        self.show()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        if self._done == self._total:
            self.close()

    def show(self) -> None:
        """Draw the bar if it is time to."""
        if self._bar is not None or self._is_inner or not sys.stderr.isatty():
            return
        if time.monotonic() - self._begun < self._after:
            return
        from rich.console import Console  # slow import, needed only at a terminal
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task(self._label, total=self._total, completed=self._done)
        self._bar.start()

    def close(self) -> None:
        """Clear the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._begun = float("inf")  # closed bars stay closed
        if not self._is_inner:
            ProgressBar._outermost = None


def track(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """``items`` one by one, with a bar once the loop has lasted two seconds and somebody is at the terminal.

    Edge cases: silent where standard error is not a terminal; the bar is cleared when the loop ends, is left or raises.

    >>> list(track(range(3), "steps"))
    [0, 1, 2]
    """
    bar = ProgressBar(label, total=total if total is not None else len(items) if isinstance(items, Sized) else None)
    try:
        for item in items:
            check_cancelled()
            bar.show()
            yield item
            bar.advance()
    finally:
        bar.close()
