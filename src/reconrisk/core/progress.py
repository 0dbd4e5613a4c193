"""Loops that people wait for: a bar with the time left, and a token that makes them stop."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

SHOW_AFTER_SECONDS = 2.0


class Cancelled(KeyboardInterrupt):
    """Raised by :func:`check_cancelled` in a task whose time is over or that was cancelled.

    It is a KeyboardInterrupt because the same code answers both: attacks return their best estimate so far.
    """


@dataclass(eq=False)
class CancelToken:
    """A request to stop, made by :meth:`cancel` or by the end of a time budget.

    Args:
        seconds: Time budget, counted from the construction; None for no limit.

    >>> token = CancelToken(60.0)
    >>> token.is_cancelled
    False
    >>> token.cancel()
    >>> token.is_cancelled
    True
    """

    seconds: float | None = None
    begun: float = field(default_factory=time.monotonic)
    _event: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def left(self) -> float:
        """Seconds left of the budget; infinite without a limit."""
        return float("inf") if self.seconds is None else self.begun + self.seconds - time.monotonic()

    @property
    def is_cancelled(self) -> bool:
        """True once somebody cancelled, or the budget is spent."""
        return self._event.is_set() or self.left <= 0

    def cancel(self) -> None:
        """Ask every task that runs under this token to stop."""
        self._event.set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make :func:`check_cancelled` read this token inside; tokens that are active around it count as well."""
        before = _ACTIVE.get()
        if any(watch.token is self for watch in before):
            yield
            return
        marker = _ACTIVE.set((*before, _Watch(self)))
        try:
            yield
        finally:
            _ACTIVE.reset(marker)


@dataclass(eq=False)
class _Watch:
    """A token that is active; it interrupts once, so that the task can conclude with what it has."""

    token: CancelToken
    has_raised: bool = False


_ACTIVE: ContextVar[tuple[_Watch, ...]] = ContextVar("reconrisk_cancel_tokens", default=())


def check_cancelled() -> None:
    """Raise :class:`Cancelled` once if an active token is cancelled; call it in long loops.

    >>> token = CancelToken()
    >>> with token.active():
    ...     check_cancelled()
    ...     token.cancel()
    ...     try:
    ...         check_cancelled()
    ...     except Cancelled:
    ...         check_cancelled()
    ...         print("concludes with what it has")
    concludes with what it has
    """
    cancelled = [watch for watch in _ACTIVE.get() if not watch.has_raised and watch.token.is_cancelled]
    for watch in cancelled:
        watch.has_raised = True
    if cancelled:
        raise Cancelled


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
