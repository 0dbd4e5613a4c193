"""A bar with the time left, on standard error, for loops that people wait for."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")

SHOW_AFTER_SECONDS = 2.0


def track(items: Iterable[T], label: str, *, total: int | None = None) -> Iterator[T]:
    """``items`` one by one, with a bar once the loop has lasted two seconds and somebody is at the terminal.

    Edge cases: silent where standard error is not a terminal; the bar is cleared when the loop ends, is left or raises.

    >>> list(track(range(3), "steps"))
    [0, 1, 2]
    """
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console  # slow import, needed only at a terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    count = total if total is not None else len(items) if isinstance(items, Sized) else None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
    task = bar.add_task(label, total=count)
    begun, shown = time.monotonic(), False
    try:
        for item in items:
            if not shown and time.monotonic() - begun > SHOW_AFTER_SECONDS:
                bar.start()
                shown = True
            yield item
            bar.advance(task)
    finally:
        if shown:
            bar.stop()
