"""The frame of every benchmark: each contender runs in a process of its own, and ratios are printed.

A benchmark is a module with ``CONTENDERS``: a mapping from names to functions that prepare and return the work to time.
The first is ours; the others are what it is compared with. ``python -m benchmarks`` runs all, with names only those.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

import benchmarks

Contender = Callable[[], Callable[[], object]]

REPEATS = 5
LONGEST = 20.0
"""Seconds after which a contender is not repeated."""


@dataclass(frozen=True)
class Measurement:
    """Median seconds of a call, peak of memory beyond what preparing took, and the number or words that came out."""

    seconds: float
    megabytes: float
    result: float | str | None = None


def measure(contender: Contender) -> Measurement:
    """Prepare, warm up once, then time; memory is that of the whole process, temporaries of libraries included."""
    work = contender()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: list[float] = []
    while len(seconds) <= REPEATS and sum(seconds) < LONGEST:
        begun = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begun)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shown = result if isinstance(result, str) else float(result) if isinstance(result, (int, float)) else None
    return Measurement(statistics.median(seconds[1:] or seconds), (after - before) / 1024, shown)


def compare(name: str) -> Table:
    """A table of every contender of benchmark ``name`` against the first."""
    module = importlib.import_module(f"benchmarks.{name}")
    contenders: Mapping[str, Contender] = module.CONTENDERS
    table = Table("contender", "seconds", "times ours", "peak MB", "result", title=title(name))
    ours: Measurement | None = None
    for contender in contenders:
        print(f"{name}: {contender} ...", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", name, contender], capture_output=True, text=True, check=True
        )
        measured = Measurement(**json.loads(done.stdout))
        ours = ours or measured
        ratio = measured.seconds / ours.seconds
        shown = f"{measured.result:.7g}" if isinstance(measured.result, float) else measured.result or ""
        table.add_row(contender, f"{measured.seconds:.4g}", f"{ratio:.2f}", f"{measured.megabytes:.0f}", shown)
    return table


def title(name: str) -> str:
    """What a benchmark compares: the first line of its module."""
    return (importlib.import_module(f"benchmarks.{name}").__doc__ or name).strip().splitlines()[0]


def names() -> list[str]:
    """Every benchmark there is: all modules but this one and the peers, which benchmarks share."""
    found = [item.name for item in pkgutil.iter_modules(benchmarks.__path__)]
    return [name for name in found if name not in ("frame", "__main__") and not name.endswith("_peer")]


def main(words: Sequence[str]) -> int:
    """Run all benchmarks, the named ones, or one contender of one (as the subprocess does)."""
    if len(words) == 2 and words[0] in names() and words[1] not in names():
        contenders = importlib.import_module(f"benchmarks.{words[0]}").CONTENDERS
        print(json.dumps(measure(contenders[words[1]]).__dict__))
        return 0
    unknown = [word for word in words if word not in names()]
    if unknown:
        print(f"Expected benchmark={unknown[0]!r} to be one of {', '.join(names())}.", file=sys.stderr)
        return 2
    console = Console()
    for name in words or names():
        console.print(compare(name))
        for remark in (importlib.import_module(f"benchmarks.{name}").__doc__ or "").strip().splitlines()[2:]:
            console.print(remark)
    return 0
