"""Running independent tasks: the seam between studies and the engines that run their trials.

A study hands tasks and a :class:`~reconrisk.core.progress.CancelToken` to an :class:`Executor`.
:class:`InProcessExecutor` runs them one after another here; engines for several processes or machines implement the
same method. A task that should stop finds out by :func:`~reconrisk.core.progress.check_cancelled`, which forward maps,
training loops and progress bars call: no signal is sent to any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reconrisk.core.progress import CancelToken

Task = TypeVar("Task")
Outcome = TypeVar("Outcome")


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
