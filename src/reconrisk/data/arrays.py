"""From arrays as files hold them to inputs and labels: images scaled, tables described, labels typed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from reconrisk.core.errors import InvalidFile
from reconrisk.core.validation import check_finite, invalid_input
from reconrisk.data.columns import Column, encode, numeric_columns

Array = npt.NDArray[Any]

_CHANNELS = (1, 3, 4)


@dataclass(frozen=True, eq=False)
class Inputs:
    """Records as a tensor, with the range they lie in and, for tables, what the coordinates mean."""

    values: Tensor
    data_range: tuple[float, float]
    columns: tuple[Column, ...] | None = None


def inputs_from_array(array: Array, path: Path, place: str, data_range: tuple[float, float] | None = None) -> Inputs:
    """Inputs from an array with records first.

    Two axes are a table, whose columns are scaled to [0, 1] by the range they have. Three axes are grey images. Four
    are images whose last axis is the channel if it has length 1, 3 or 4, else the second. Bytes become [0, 1]; images
    of other types keep their values, and ``data_range`` must say between which ends they lie.
    """
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise InvalidFile(
            path,
            place,
            f"Expected records x columns, or images as N x H x W or N x H x W x C, found shape {array.shape}.",
            "Reshape the array before saving it.",
        )
    if array.dtype.kind not in "buif":
        raise InvalidFile(path, place, f"Expected numbers, found {array.dtype}.", "Save it as bytes or floats.")
    if array.ndim == 2:
        if data_range is not None:
            raise invalid_input(
                "data_range", data_range, "to be None for a table", "Its columns are scaled by the range they have."
            )
        values = _as_floats(array, np.float64)
        _check_within(values, path, place, -math.inf, math.inf)
        columns = numeric_columns([f"column {i}" for i in range(array.shape[1])], values)
        return Inputs(torch.from_numpy(encode(columns, list(values.T))), (0.0, 1.0), columns)
    if array.ndim == 3:
        array = array.reshape(len(array), 1, *array.shape[1:])  # not array[:, None]: numpy converts that much slower
    elif array.shape[-1] in _CHANNELS:
        array = np.moveaxis(array, -1, 1)
    return _image_inputs(array, path, place, data_range)


def _image_inputs(array: Array, path: Path, place: str, data_range: tuple[float, float] | None) -> Inputs:
    values = _as_floats(array, np.float32)
    if array.dtype in (np.uint8, np.bool_):
        if data_range is not None:
            raise invalid_input(
                "data_range",
                data_range,
                f"to be None for {array.dtype} images",
                "Their type tells it; they become [0, 1].",
            )
        scale = 255 if array.dtype == np.uint8 else 1
        return Inputs(torch.from_numpy(values).div_(scale), (0.0, 1.0))
    if data_range is None:
        _check_within(values, path, place, -math.inf, math.inf)
        raise InvalidFile(
            path,
            place,
            f"Expected bytes or a stated range, found {array.dtype} from {array.min():g} to {array.max():g}.",
            "Pass data_range=(low, high), the ends of its scale: --data-range low,high where a command has it.",
        )
    low, high = (check_finite("data_range", end) for end in data_range)
    if not low < high:
        raise invalid_input("data_range", data_range, "to be (low, high) with low < high")
    _check_within(values, path, place, low, high)
    return Inputs(torch.from_numpy(values), (low, high))


def _as_floats(array: Array, dtype: type[np.floating[Any]]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # what overflows becomes infinite, and is refused as such
        return np.ascontiguousarray(array).astype(dtype)


def _check_within(values: Array, path: Path, place: str, low: float, high: float) -> None:
    bad = ~(np.isfinite(values) & (values >= low) & (values <= high))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        within, stated = (
            (f" in [{low:g}, {high:g}]", ", or state the right data_range") if low > -math.inf else ("", "")
        )
        raise InvalidFile(
            path,
            f"{place}, index {first}",
            f"Expected a finite number{within}, found {values[first]:g}.",
            f"Correct or remove the record{stated}.",
        )


def labels_from_array(array: Array, records: int, path: Path, place: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Labels and, if the array holds text, the names of the classes.

    Whole numbers become int64 class indices, floats float32 for regression, text indices into the sorted names. One
    column counts as a row of labels; several stay a matrix.
    """
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or len(array) != records:
        raise InvalidFile(
            path,
            place,
            f"Expected one label for each of {records} records, found shape {array.shape}.",
            "Use the labels that belong to these records.",
        )
    if array.dtype.kind == "U" and array.ndim == 1:
        names, indices = np.unique(array, return_inverse=True)
        return torch.from_numpy(indices.astype(np.int64)), tuple(str(name) for name in names)
    if array.dtype.kind == "f":
        values = _as_floats(array, np.float32)
        _check_within(values, path, place, -math.inf, math.inf)
        return torch.from_numpy(values), None
    if array.dtype.kind not in "bui":
        raise InvalidFile(path, place, f"Expected numbers or text, found {array.dtype}.", "Save labels as integers.")
    if not 0 <= int(array.min()) <= int(array.max()) <= np.iinfo(np.int64).max:
        raise InvalidFile(
            path,
            place,
            f"Expected class indices from 0 on, found {array.min()} to {array.max()}.",
            "Number the classes from 0, or save floats for regression.",
        )
    return torch.from_numpy(array.astype(np.int64)), None
