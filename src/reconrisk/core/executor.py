"""Running independent tasks: the seam between studies and the engines that run their trials.

A study hands tasks and a :class:`CancelToken` to an :class:`Executor`. :class:`InProcessExecutor` runs them one after
another here; engines for several processes or machines implement the same method. A task that should stop finds out by
:func:`check_cancelled`, which forward maps, training loops and progress bars call: no signal is sent to any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


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


class Executor(Protocol):
    """Runs independent tasks and hands back each with its outcome."""

    def run(
        self, function: Callable[[Task], Outcome], tasks: Iterable[Task], *, token: CancelToken
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with ``function(task)``, in any order.

        Args:
            function: Computes one task. It depends on nothing but the task.
            tasks: Read lazily: a task may be asked for when another one has ended.
            token: Makes running tasks stop. Tasks that have not begun are not begun.

        An exception of a task is raised here. Whoever stops iterating stops the rest.
        """
        ...


@dataclass(frozen=True)
class InProcessExecutor:
    """Runs tasks one after another in the calling thread."""

    def run(
        self, function: Callable[[Task], Outcome], tasks: Iterable[Task], *, token: CancelToken
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome, in the order of the tasks.

        >>> list(InProcessExecutor().run(abs, [-1, 2], token=CancelToken()))
        [(-1, 1), (2, 2)]
        """
        for task in tasks:
            if token.is_cancelled:
                return
            with token.active():
                outcome = function(task)
            yield task, outcome


IN_PROCESS = InProcessExecutor()
"""The default engine of every study."""
