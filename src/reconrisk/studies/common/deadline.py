"""A time at which whatever is running is interrupted as by Ctrl-C, which every attack answers with its best so far."""

from __future__ import annotations

import _thread
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from reconrisk.core.validation import check_positive, refuse

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def seconds_from_budget(budget: float | str | None) -> float | None:
    """The seconds that a budget stands for; None for no limit.

    >>> seconds_from_budget("2min"), seconds_from_budget(30), seconds_from_budget("1.5 h")
    (120.0, 30.0, 5400.0)
    """
    if budget is None or budget == "none":
        return None
    if not isinstance(budget, str):
        return check_positive("budget", budget)
    found = re.fullmatch(r"\s*([0-9.]+)\s*([a-z]*)\s*", budget.lower())
    try:
        return check_positive("budget", float(found[1]) * _UNITS[found[2] or "s"]) if found else _refused(budget)
    except (KeyError, ValueError) as error:
        raise refuse("budget", budget, "to be a time such as '2min', '90s' or '1h'") from error


def _refused(budget: str) -> float:
    raise refuse("budget", budget, "to be a time such as '2min', '90s' or '1h'")


@dataclass(eq=False)
class Deadline:
    """How much time is left, and whether it has run out."""

    seconds: float | None
    begun: float = field(default_factory=time.monotonic)
    has_struck: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _is_watching: bool = False

    @property
    def left(self) -> float:
        """Seconds left; infinite without a limit."""
        return float("inf") if self.seconds is None else self.begun + self.seconds - time.monotonic()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Interrupt the main thread at the deadline; elsewhere nothing can, and only new trials are held back.

        Guarantee: no interrupt comes after the watch has ended. It comes too where the process ignores Ctrl-C, as those
        that a shell runs in the background do.
        """
        if self.seconds is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        timer = threading.Timer(max(self.left, 0.0), self._strike)
        timer.daemon = True
        before = signal.getsignal(signal.SIGINT)
        if not callable(before):
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._is_watching = True
        timer.start()
        try:
            yield
        finally:
            with self._lock:
                self._is_watching = False
            timer.cancel()
            if not callable(before):
                signal.signal(signal.SIGINT, before)

    def _strike(self) -> None:
        with self._lock:
            if self._is_watching:
                self.has_struck = True
                _thread.interrupt_main()
