"""Running independent tasks: the seam between studies and the engines that run their trials.

A study hands tasks and a :class:`~reconrisk.core.progress.CancelToken` to an :class:`Executor`.
:class:`InProcessExecutor` runs them one after another here; engines for several processes or machines implement the
same method. A task that should stop finds out by :func:`~reconrisk.core.progress.check_cancelled`, which forward maps,
training loops and progress bars call. Code that never calls it, such as an attack of somebody else, is interrupted a
second later by the same exception; no signal is sent.
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

_LOOK_SECONDS = 0.1
_GRACE_SECONDS = 1.0  # in which a task may notice by itself
_METHOD = "to be an object with the method run(function, tasks, *, token)"

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


class Executor(Protocol):
    """Runs independent tasks and hands back each with its outcome."""

    def run(
        self, function: Callable[[Task], Outcome], tasks: Iterable[Task], *, token: CancelToken
    ) -> Iterator[tuple[Task, Outcome]]:
        """Yield every task with ``function(task)``, in any order, each once.

        Args:
            function: Computes one task. It depends on nothing but the task. It can be pickled if model, defenses and
                attacks can. Calls share one model, so two of them may run at a time in processes, never in threads.
            tasks: Read lazily: a task may be asked for when another one has ended.
            token: Makes running tasks stop. Tasks that have not begun are not begun.

        An exception of a task is raised here. Whoever stops iterating stops the rest. Tasks share the model, whose
        weights and hooks change while they run: run several at once in processes, not in threads. ``function`` need
        not be picklable, so processes are forked.
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
        with _Watchdog(token) as watchdog:
            for task in tasks:
                if token.is_cancelled:
                    return
                with token.active(), watchdog.watching():
                    outcome = function(task)
                yield task, outcome


def check_executor(executor: Executor) -> Executor:
    """Return an executor, or refuse what is none.

    >>> check_executor(InProcessExecutor)
    Traceback (most recent call last):
    reconrisk.core.errors.InvalidInput: Expected executor='InProcessExecutor' to be an object with the method \
run(function, tasks, *, token). Pass InProcessExecutor().
    """
    if isinstance(executor, type):
        raise invalid_input("executor", executor.__name__, _METHOD, f"Pass {executor.__name__}().")
    if not callable(getattr(executor, "run", None)):
        raise invalid_input("executor", executor, _METHOD, "InProcessExecutor of reconrisk.core.executor is one.")
    return executor


class _Watchdog:
    """Raises Cancelled in a task that has not noticed the end of its token: code that never asks for it."""

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
    def watching(self) -> Iterator[None]:
        """Watch the task inside; nothing is raised once it has ended."""
        self._is_watching, self._has_raised = True, False
        try:
            yield
        finally:
            with self._lock:
                self._is_watching = False
                if self._has_raised:
                    _raise_in_thread(self._thread_id, None)  # takes it back if it has not arrived yet

    def _watch(self) -> None:
        late = 0.0
        while not self._over.wait(_LOOK_SECONDS):
            late = late + _LOOK_SECONDS if self._token.is_cancelled else 0.0
            with self._lock:
                if late > _GRACE_SECONDS and self._is_watching and not self._has_raised:
                    self._has_raised = True
                    _raise_in_thread(self._thread_id, Cancelled)


def _raise_in_thread(thread_id: int, error: type[BaseException] | None) -> None:
    """Let CPython raise an exception in a thread at its next bytecode; None takes a pending one back."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), ctypes.py_object(error) if error else None)


IN_PROCESS = InProcessExecutor()
"""The default engine of every study."""
