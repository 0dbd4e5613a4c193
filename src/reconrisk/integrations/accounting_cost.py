"""What an account will cost, measured on one of its steps before training starts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AccountingCost:
    """Time and memory of an account on this machine.

    ``memory_bytes`` is by how much the largest memory use so far grew while a step was measured: on a graphics card
    that of tensors, else that of the process, where 0 means that no more was needed than had been used before; None
    where the system does not tell. Later cycles of an account with ``relative_error`` use fewer probes, so that
    ``seconds`` is from above.
    """

    seconds_per_step: float
    seconds: float
    steps: int
    records_per_step: int
    cycle_steps: int
    probes: int
    fewer_later: bool
    memory_bytes: int | None

    def __str__(self) -> str:
        """The cost in a sentence."""
        memory = "unknown" if self.memory_bytes is None else f"{self.memory_bytes / 1e6:.0f} MB"
        most = "at most " if self.fewer_later else ""
        block = f"{self.records_per_step} records, {most}{self.probes} probes; every record once in"
        return (
            f"{self.seconds_per_step:.3g} s per step ({block} {self.cycle_steps} steps), "
            f"{most}{self.seconds:.3g} s for {self.steps} steps, "
            f"memory {memory}"
        )


def measure(
    evaluate: Callable[[], object],
    *,
    steps: int,
    records_per_step: int,
    cycle_steps: int,
    probes: int,
    fewer_later: bool,
) -> AccountingCost:
    """Run ``evaluate`` and scale its time up; the first call also warms up and is not timed where it is short."""
    before = _largest_memory()
    seconds = _timed(evaluate)
    if seconds < 1:
        seconds = min(_timed(evaluate), seconds)
    after = _largest_memory()
    memory = None if before is None or after is None else max(0, after - before)
    return AccountingCost(seconds, seconds * steps, steps, records_per_step, cycle_steps, probes, fewer_later, memory)


def _timed(evaluate: Callable[[], object]) -> float:
    begun = time.perf_counter()
    evaluate()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def _largest_memory() -> int | None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return int(torch.cuda.max_memory_allocated())
    try:
        import resource  # only on Unix
    except ImportError:
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
