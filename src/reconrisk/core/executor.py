"""Executors: the interface between studies and the engines that run their trials.

A study passes tasks and a :class:`~reconrisk.core.progress.CancelToken` to an :class:`Executor`.
:class:`InProcessExecutor` runs them one after another in the calling thread; engines for several processes or machines
implement the same method. Forward maps, training loops and progress bars call
:func:`~reconrisk.core.progress.check_cancelled`, which stops a cancelled task. Code that never calls it, such as a
third-party attack, is interrupted one second later by the same exception. No signal is sent.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reconrisk.core.progress import Cancelled, CancelToken
from reconrisk.core.validation import invalid_input

_POLL_SECONDS = 0.1  # short against the grace period, long enough to cost nothing
_GRACE_SECONDS = 1.0  # time for a cancelled task to stop at its next check_cancelled()
_METHOD = "to be an object with the method run(function, tasks, *, token)"

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class Executor(Protocol):
    """Protocol of an engine that runs independent tasks."""

    def run(
        self, function: Callable[[Task], Outcome], tasks: Iterable[Task], *, token: CancelToken
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with ``function(task)``, each once and in any order.

        An exception that a task raises is raised here. If the caller stops iterating, the remaining tasks are not run.
        Tasks share one model, whose weights and hooks change while they run. Parallel engines therefore use processes,
        never threads. Since ``function`` may not be picklable, they fork.

        Args:
            function: Computes the outcome of one task; it depends on the task alone. It can be pickled if model,
                defenses and attacks can.
            tasks: Tasks to run. They are read lazily: the next task may be requested when another one has ended.
            token: Stops running tasks when it is cancelled. Tasks that have not started are then not started.

        Returns:
            Iterator over pairs of a task and its outcome.
        """
        ...


@dataclass(frozen=True)
class InProcessExecutor:
    """Executor that runs tasks one after another in the calling thread."""

    def run(
        self, function: Callable[[Task], Outcome], tasks: Iterable[Task], *, token: CancelToken
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with its outcome, in the order of the tasks.

        Args:
            function: Computes the outcome of one task.
            tasks: Tasks to run.
            token: Stops the running task and skips the remaining ones when it is cancelled.

        >>> list(InProcessExecutor().run(abs, [-1, 2], token=CancelToken()))
        [(-1, 1), (2, 2)]
        """
        with _Watchdog(token) as watchdog:
            for task in tasks:
                if token.is_cancelled:
                    return
                with token.active(), watchdog.watch_task():
                    outcome = function(task)
                yield task, outcome


def check_executor(executor: Executor) -> Executor:
    """Check that an object has the interface of an :class:`Executor`.

    Args:
        executor: The object.

    Returns:
        The same object.

    Raises:
        InvalidInput: If it is a class, or has no method ``run``.

    >>> check_executor(InProcessExecutor)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected executor='InProcessExecutor' to be an object with the method \
run(function, tasks, *, token). Pass InProcessExecutor().
    """
    if isinstance(executor, type):
        raise invalid_input("executor", executor.__name__, _METHOD, f"Pass {executor.__name__}().")
    if not callable(getattr(executor, "run", None)):
        raise invalid_input("executor", executor, _METHOD, "Pass reconrisk.core.executor.InProcessExecutor().")
    return executor


class _Watchdog:
    """Thread that raises Cancelled in a task that ignores its cancelled token."""

    def __init__(self, token: CancelToken) -> None:
        self._token, self._thread_id = token, threading.get_ident()
        self._lock, self._over = threading.Lock(), threading.Event()
        self._is_watching = self._has_raised = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    @contextmanager
    def watch_task(self) -> Iterator[None]:
        """Watch the task in the body of the ``with`` statement; nothing is raised after its end."""
        self._is_watching, self._has_raised = True, False
        try:
            yield
        finally:
            with self._lock:
                self._is_watching = False
                if self._has_raised:
                    _raise_in_thread(self._thread_id, None)  # revoke an exception that has not been delivered yet

    def _watch(self) -> None:
        late = 0.0
        while not self._over.wait(_POLL_SECONDS):
            late = late + _POLL_SECONDS if self._token.is_cancelled else 0.0
            with self._lock:
                if late > _GRACE_SECONDS and self._is_watching and not self._has_raised:
                    self._has_raised = True
                    _raise_in_thread(self._thread_id, Cancelled)


def _raise_in_thread(thread_id: int, error: type[BaseException] | None) -> None:
    """Let CPython raise an exception in a thread at its next bytecode; None revokes a pending one."""
    # Only this call can interrupt a thread that never checks its token. It needs no signal handler, so it also works
    # outside the main thread.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error) if error else None)


IN_PROCESS = InProcessExecutor()
"""Default executor of every study."""
