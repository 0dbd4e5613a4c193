"""Checks and conversions of command line values that several commands share."""

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

_SEEDS = 2**63  # torch.Generator takes seeds below this


def network(name: str, *, shape: Sequence[int], classes: int | None) -> nn.Module:
    """Build a model from its name or import path.

    The current folder is searched first, as ``python -m`` does.

    Args:
        name: Name of a model in the package, or ``package.module:function``.
        shape: Shape of one record.
        classes: Number of classes; None for a model that does not classify.

    Returns:
        The model with random weights.
    """
    from reconrisk.models.registry import model_by_name  # loads torch, which takes seconds

    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return model_by_name(name, shape=shape, classes=classes)


def check_folder(out: Path) -> None:
    """Raise ``typer.BadParameter`` before the work starts if the output folder cannot be written.

    Args:
        out: Folder that the command writes to; it need not exist yet.
    """
    if out.exists() and not out.is_dir():
        raise typer.BadParameter(f"{out} is a file, a folder is needed.", param_hint="--out")
    nearest = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"{out} cannot be written.", param_hint="--out")


def check_seed(seed: int) -> int:
    """Return the seed if ``torch.Generator`` accepts it.

    Args:
        seed: Seed from the command line.

    Returns:
        The same seed.

    Raises:
        InvalidInput: If it is negative or not below 2^63.
    """
    if check_whole("seed", seed, minimum=0) >= _SEEDS:
        raise invalid_input("seed", seed, "< 2^63")
    return seed


def stated_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the user set.

    Args:
        given: All options by name; None and empty lists mean "not set".

    Returns:
        The options with a value.
    """
    return {key: value for key, value in given.items() if value is not None and value != []}


def whole_numbers(name: str, text: str) -> list[int]:
    """Parse whole numbers separated by commas; ``a-b`` means all numbers from a to b.

    Args:
        name: Option name for error messages.
        text: Text such as ``0,3,8-15``.

    Returns:
        The numbers in the order of the text.

    Raises:
        InvalidInput: If the text has another form.

    >>> whole_numbers("records", "0,3,8-10")
    [0, 3, 8, 9, 10]
    """
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
    """Parse a data range.

    Args:
        data_range: Two numbers separated by a comma, such as ``-1,1``, or None.

    Returns:
        Smallest and largest value, or None.

    Raises:
        InvalidInput: If the text is not two numbers.
    """
    if data_range is None:
        return None
    try:
        low, high = (float(end) for end in data_range.split(","))
    except ValueError as error:
        raise invalid_input("data_range", data_range, "to be two numbers such as -1,1") from error
    return low, high
