"""Count the source files in which functions run: for one trial of an audit, and for a whole audit of a linear model.

Run it as ``python tools/trace_files.py``; ``--list`` names the files. A file counts if a function, method, property,
lambda or comprehension of it is called. Module and class bodies do not count, and every call is made once before it is
traced, so that imports count nothing.

The trial is the first one of inverting_gradients on a small picture under clip_and_noise: the update is made, defended,
observed, attacked and scored. The audit is ``rr.audit`` of a linear layer by the same attack, four updates without a
defense.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import nn

import reconrisk as rr

ROOT = Path(rr.__file__).parent
EXPERIMENT = "reconrisk.studies.common.experiment"
ATTACK = "inverting_gradients(steps=5)"  # more steps run through no other files


def trace_files(call: Callable[[], object]) -> frozenset[str]:
    """Files of the package in which functions run while ``call`` does, as paths relative to the package.

    Args:
        call: A function without arguments. Only the thread of the caller is traced.

    Returns:
        Paths with forward slashes, without those in which only a module or class body ran.
    """
    found: set[str] = set()
    beginning = f"{ROOT}/"

    def profile(frame: FrameType, event: str, argument: object) -> None:
        del argument
        code = frame.f_code
        is_function = bool(code.co_flags & inspect.CO_NEWLOCALS)  # module and class bodies have no locals of their own
        if event == "call" and is_function and code.co_filename.startswith(beginning):
            found.add(code.co_filename.removeprefix(beginning))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(before)
    return frozenset(found)


def trace_audit() -> frozenset[str]:
    """Trace ``rr.audit`` of a linear layer by one attack, without a defense."""

    def audit() -> None:
        rr.audit(nn.Linear(4, 2), _records(4), attacks=[ATTACK], trials=4)

    audit()
    return trace_files(audit)


def trace_trial(experiment: str = EXPERIMENT) -> frozenset[str]:
    """Trace the first trial of an attack on a picture under clip_and_noise.

    Args:
        experiment: The module of the class ``Experiment``, whose method ``trial`` is traced.
    """
    kind = importlib.import_module(experiment).Experiment
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 36, 2))
    noise = rr.defenses.clip_and_noise(noise_multiplier=1.0, clip_norm=1.0)
    found: list[frozenset[str]] = []
    run = kind.trial

    def traced(self: Any, key: Any) -> Any:
        made: list[Any] = []
        files = trace_files(lambda: made.append(run(self, key)))
        if key.attack == ATTACK:
            found.append(files)
        return made[0]

    for _ in range(2):
        found.clear()
        with mock.patch.object(kind, "trial", traced):
            rr.audit(model, _records(1, 8, 8), attacks=[ATTACK], defenses=[noise], trials=1)
    return found[0]


def _records(*shape: int) -> rr.data.Dataset:
    inputs = torch.rand(20, *shape, generator=torch.Generator().manual_seed(0))
    return rr.data.Dataset("toy", inputs, torch.arange(20) % 2)


def main() -> None:
    """Print both counts, with ``--list`` also the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="name the files")
    parser.add_argument("--experiment", default=EXPERIMENT, help="module of Experiment, for other versions")
    options = parser.parse_args()
    for what, files in (("one trial", trace_trial(options.experiment)), ("rr.audit, linear model", trace_audit())):
        print(f"{len(files)} files: {what}")  # noqa: T201 the result of a script
        for file in sorted(files) if options.list else ():
            print(f"  {file}")  # noqa: T201


if __name__ == "__main__":
    main()
