"""Progress bars for long loops, and tokens that cancel them."""

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

SHOW_AFTER_SECONDS = 2.0  # a bar for a shorter loop would only flicker


class Cancelled(KeyboardInterrupt):
    """Raised by :func:`check_cancelled` in a task that was cancelled or has used up its time budget.

    It is a KeyboardInterrupt because the same code handles both: attacks return their best estimate so far.
    """


@dataclass(eq=False)
class CancelToken:
    """A request to stop, set by :meth:`cancel` or by the end of a time budget.

    Attributes:
        seconds: Time budget in seconds from the construction; None for no limit.
        begun: Time of the construction, by the monotonic clock.

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
    def seconds_left(self) -> float:
        """Remaining seconds of the budget; infinite without a limit."""
        return float("inf") if self.seconds is None else self.begun + self.seconds - time.monotonic()

    @property
    def is_cancelled(self) -> bool:
        """True after :meth:`cancel`, or when the budget is used up."""
        return self._event.is_set() or self.seconds_left <= 0

    def cancel(self) -> None:
        """Request every task under this token to stop."""
        self._event.set()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make :func:`check_cancelled` obey this token in the body of the ``with`` statement.

        Tokens that are already active stay active.
        """
        before = _ACTIVE.get()
        if any(watch.token is self for watch in before):  # entered twice; the outer block resets it
            yield
            return
        marker = _ACTIVE.set((*before, _Watch(self)))
        try:
            yield
        finally:
            _ACTIVE.reset(marker)


@dataclass(eq=False)
class _Watch:
    """An active token. It interrupts a task only once, so that the task can return its intermediate result."""

    token: CancelToken
    has_raised: bool = False


_ACTIVE: ContextVar[tuple[_Watch, ...]] = ContextVar("reconrisk_cancel_tokens", default=())


def check_cancelled() -> None:
    """Raise :class:`Cancelled` if an active token is cancelled. Call it in long loops.

    Raises:
        Cancelled: Once per active token, so that the task can still return its intermediate result.

    >>> token = CancelToken()
    >>> with token.active():
    ...     check_cancelled()
    ...     token.cancel()
    ...     try:
    ...         check_cancelled()
    ...     except Cancelled:
    ...         check_cancelled()
    ...         print("returns its intermediate result")
    returns its intermediate result
    """
    cancelled = [watch for watch in _ACTIVE.get() if not watch.has_raised and watch.token.is_cancelled]
    for watch in cancelled:
        watch.has_raised = True
    if cancelled:
        raise Cancelled


class ProgressBar:
    """A progress bar for loops that cannot use :func:`track`.

    Call :meth:`advance` after each iteration, and :meth:`close` if the loop may end before ``total``. The bar appears
    after two seconds if standard error is a terminal, and is cleared at the end. Of nested bars only the outermost is
    shown.

    Args:
        label: Text in front of the bar.
        total: Number of iterations; None if it is not known.
        at_once: True to show the bar without waiting two seconds.

    >>> bar = ProgressBar("steps", total=2)
    >>> bar.advance()
    >>> bar.close()
    """

    # A weak reference, so that a bar that was never closed does not hide all later bars.
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
        """Count one iteration.

        Raises:
            Cancelled: If the task was cancelled.
        """
        check_cancelled()
        self._done += 1
        self.show()
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)
        if self._done == self._total:
            self.close()

    def show(self) -> None:
        """Draw the bar if it is due."""
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
        self._begun = float("inf")  # elapsed time is then negative, so show() never draws the bar again
        if not self._is_inner:
            ProgressBar._outermost = None


def track(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """Yield items and show a progress bar if the loop takes longer than two seconds.

    Args:
        items: Items to yield.
        label: Text in front of the bar.
        total: Number of items; if None, it is the length of ``items`` where that is known.

    Yields:
        The items, in their order.

    Raises:
        Cancelled: If the task was cancelled.

    Edge cases: no bar if standard error is not a terminal. The bar is cleared when the loop ends, breaks or raises.

    >>> list(track(range(3), "steps"))
    [0, 1, 2]
    """
    bar = ProgressBar(label, total=total if total is not None else len(items) if isinstance(items, Sized) else None)
    try:
        for item in items:
            check_cancelled()
            bar.show()
            yield item
            bar.advance()  # after the body of the loop, so that the bar counts finished items
    finally:
        bar.close()
