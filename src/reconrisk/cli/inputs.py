"""What several commands are given alike: a network by name, a folder to write to, a seed, a list of records."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from reconrisk.core.validation import check_whole, invalid_input

if TYPE_CHECKING:
    from torch import nn

INTERRUPTED = 130
"""The exit code after Ctrl-C."""

_SEEDS = 2**63


def network(name: str, *, shape: Sequence[int], classes: int | None) -> nn.Module:
    """The model, with the current folder searched first, as ``python -m`` does."""
    from reconrisk.models.registry import model_by_name  # loads torch, which takes seconds

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return model_by_name(name, shape=shape, classes=classes)


def check_folder(out: Path) -> None:
    """Refuse before the work what would fail after it."""
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file, a folder is needed.", param_hint="--out")
    nearest = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"{out} cannot be written.", param_hint="--out")


def check_seed(seed: int) -> int:
    """A seed that torch takes."""
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise invalid_input("seed", seed, "< 2^63")
    return seed


def stated_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were stated: those with a value, and lists with an element."""
    return {key: value for key, value in given.items() if value is not None and value != []}


def whole_numbers(name: str, text: str) -> list[int]:
    """Whole numbers separated by commas, with a-b for all from a to b."""
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise invalid_input(name, text, "to be whole numbers such as 0,3,8-15")
        numbers += range(int(first), int(last or first) + 1)
    if not numbers:
        raise invalid_input(name, text, "to be whole numbers such as 0,3,8-15, the smaller first")
    return numbers


def range_of(data_range: str | None) -> tuple[float, float] | None:
    """The stated ends of the range, if any."""
    if data_range is None:
        return None
    try:
        low, high = (float(end) for end in data_range.split(","))
    except ValueError as error:
        raise invalid_input("data_range", data_range, "to be two numbers such as -1,1") from error
    return low, high
