"""Conversion of stored arrays to inputs and labels: scales images, describes tables, types labels."""

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

_CHANNELS = (1, 3, 4)  # grey, colour, colour with transparency


@dataclass(frozen=True, eq=False)
class Inputs:
    """Records as a tensor.

    Attributes:
        values: Records first, float32.
        data_range: Range that contains every value.
        columns: Meaning of the coordinates of a table; None for images.
    """

    values: Tensor
    data_range: tuple[float, float]
    columns: tuple[Column, ...] | None = None


def inputs_from_array(array: Array, path: Path, place: str, data_range: tuple[float, float] | None = None) -> Inputs:
    """Convert an array with records first to inputs.

    Two axes are a table, whose columns are scaled to [0, 1] by their own ranges. Three axes are grey images. Four axes
    are images: the last one is the channel if it has length 1, 3 or 4, else the second. Bytes become [0, 1]; images of
    other types keep their values.

    Args:
        array: Two to four axes, records first.
        path: File of the array, for messages.
        place: Place in the file, for messages.
        data_range: Ends of the scale of images that are not bytes; None for bytes and tables.

    Returns:
        The inputs.

    Raises:
        InvalidInput: If ``data_range`` is given for bytes or a table, or is not an interval.
        InvalidFile: If the array has a wrong shape or type, values outside ``data_range``, or needs a ``data_range``.
    """
    if array.ndim not in (2, 3, 4) or array.size == 0:
        raise InvalidFile(
            path,
            place,
            f"Expected records x columns, or images as N x H x W or N x H x W x C, found shape {array.shape}.",
            "Reshape the array before saving it.",
        )
    if array.dtype.kind not in "buif":  # bool, unsigned, signed, float
        raise InvalidFile(path, place, f"Expected numbers, found {array.dtype}.", "Save it as bytes or floats.")
    if array.ndim == 2:
        if data_range is not None:
            raise invalid_input(
                "data_range", data_range, "to be None for a table", "Remove it: each column is scaled by its own range."
            )
        values = _as_floats(array, np.float64)  # scaled to [0, 1] before the rounding to float32
        _check_within(values, path, place, -math.inf, math.inf)
        columns = numeric_columns([f"column {i}" for i in range(array.shape[1])], values)
        return Inputs(torch.from_numpy(encode(columns, list(values.T))), (0.0, 1.0), columns)
    if array.ndim == 3:
        array = array.reshape(
            len(array), 1, *array.shape[1:]
        )  # not array[:, None], whose conversion to floats is much slower
    elif array.shape[-1] in _CHANNELS:
        array = np.moveaxis(array, -1, 1)
    return _image_inputs(array, path, place, data_range)


def _image_inputs(array: Array, path: Path, place: str, data_range: tuple[float, float] | None) -> Inputs:
    """Convert images of shape N x C x H x W."""
    values = _as_floats(array, np.float32)
    if array.dtype in (np.uint8, np.bool_):
        if data_range is not None:
            raise invalid_input(
                "data_range",
                data_range,
                f"to be None for {array.dtype} images",
                "Remove it: they are scaled from the range of their type to [0, 1].",
            )
        scale = 255 if array.dtype == np.uint8 else 1
        return Inputs(torch.from_numpy(values).div_(scale), (0.0, 1.0))
    if data_range is None:
        # checked first: the message below prints minimum and maximum, which NaN would hide
        _check_within(values, path, place, -math.inf, math.inf)
        raise InvalidFile(
            path,
            place,
            f"Expected bytes or a data_range, found {array.dtype} from {array.min():g} to {array.max():g}.",
            "Pass data_range=(low, high), the ends of the scale; on the command line --data-range low,high.",
        )
    low, high = (check_finite("data_range", end) for end in data_range)
    if not low < high:
        raise invalid_input(
            "data_range", data_range, "to be (low, high) with low < high", "Pass data_range=(0, 1), for instance."
        )
    _check_within(values, path, place, low, high)
    return Inputs(torch.from_numpy(values), (low, high))


def _as_floats(array: Array, dtype: type[np.floating[Any]]) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):  # overflow becomes infinity, which _check_within refuses
        return np.ascontiguousarray(array).astype(dtype)


def _check_within(values: Array, path: Path, place: str, low: float, high: float) -> None:
    """Raise InvalidFile at the first value that is not finite or outside [low, high]."""
    bad = ~(np.isfinite(values) & (values >= low) & (values <= high))
    if bad.any():
        first = tuple(int(i) for i in np.argwhere(bad)[0])
        within, or_range = (
            (f" in [{low:g}, {high:g}]", ", or pass the right data_range") if low > -math.inf else ("", "")
        )
        raise InvalidFile(
            path,
            f"{place}, index {first}",
            f"Expected a finite number{within}, found {values[first]:g}.",
            f"Correct or remove the record{or_range}.",
        )


def labels_from_array(array: Array, records: int, path: Path, place: str) -> tuple[Tensor, tuple[str, ...] | None]:
    """Convert an array to labels.

    Whole numbers become int64 class indices, floats become float32 for regression, text becomes indices of the sorted
    names. A matrix of one column counts as a vector; several columns stay a matrix.

    Args:
        array: One label per record.
        records: Number of records.
        path: File of the array, for messages.
        place: Place in the file, for messages.

    Returns:
        The labels, and the names of the classes if the array holds text, else None.

    Raises:
        InvalidFile: If the array has a wrong shape, type or values.
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
    # unsigned 64-bit labels can exceed int64
    if not 0 <= int(array.min()) <= int(array.max()) <= np.iinfo(np.int64).max:
        raise InvalidFile(
            path,
            place,
            f"Expected class indices from 0 on, found {array.min()} to {array.max()}.",
            "Number the classes from 0, or save floats for regression.",
        )
    return torch.from_numpy(array.astype(np.int64)), None
