"""Encoding of table cells as coordinates of a record, and decoding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from reconrisk.core.columns import CategoricalColumn, Column, NumericColumn, total_width
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "CategoricalColumn",
    "Column",
    "NumericColumn",
    "decode",
    "encode",
    "merge_columns",
    "numeric_columns",
    "total_width",
]


def numeric_columns(names: Sequence[str], values: npt.NDArray[Any]) -> tuple[NumericColumn, ...]:
    """Describe the columns of a table of numbers, each with its own range.

    Args:
        names: Names of the columns.
        values: Finite numbers, records x columns.

    Returns:
        One column description for each name.
    """
    low, high = values.min(axis=0), values.max(axis=0)  # one coordinate per numeric column, so start = i
    return tuple(NumericColumn(name, float(low[i]), float(high[i]), i) for i, name in enumerate(names))


def merge_columns(columns: Sequence[Column], others: Sequence[Column]) -> tuple[Column, ...]:
    """Merge two descriptions of the same table: the wider ranges, the categories of both.

    Args:
        columns: Columns of one part of the table.
        others: Columns of the other part, in the same order.

    Returns:
        Columns that contain the values of both.

    Raises:
        InvalidInput: If two columns at the same position differ in name or kind.

    >>> merge_columns([NumericColumn("age", 17, 90, 0)], [NumericColumn("age", 16, 80, 0)])
    (NumericColumn(name='age', low=16, high=90, start=0),)
    """
    merged: list[Column] = []
    for one, other in zip(columns, others, strict=True):
        start = merged[-1].coordinates.stop if merged else 0
        if isinstance(one, NumericColumn) and isinstance(other, NumericColumn) and one.name == other.name:
            merged.append(NumericColumn(one.name, min(one.low, other.low), max(one.high, other.high), start))
        elif isinstance(one, CategoricalColumn) and isinstance(other, CategoricalColumn) and one.name == other.name:
            merged.append(CategoricalColumn(one.name, tuple(sorted({*one.categories, *other.categories})), start))
        else:
            raise invalid_input(
                f"column {one.name!r} of the second table",
                other,
                f"to be of the same kind as in the first table, {one!r}",
                "Pass tables with the same columns.",
            )
    return tuple(merged)


def encode(columns: Sequence[Column], values: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    r"""Encode the values of columns as records in [0, 1]: numbers scaled by range, categories one-hot.

    .. math:: x = (v - \mathrm{low}) / (\mathrm{high} - \mathrm{low})

    Here v is a number of the table and x its coordinate.

    Args:
        columns: Description of the columns.
        values: One array per column with one entry per record: numbers within the range, or indices of categories.

    Returns:
        Records x coordinates.

    Edge cases: ``low = high`` gives 0.

    >>> encode([NumericColumn("age", 20, 40, 0), CategoricalColumn("sex", ("F", "M"), 1)],
    ...        [np.array([25.0, 40.0]), np.array([1, 0])])
    array([[0.25, 0.  , 1.  ],
           [1.  , 1.  , 0.  ]], dtype=float32)
    """
    records = np.zeros((len(values[0]), total_width(columns)), dtype=np.float32)
    for column, entries in zip(columns, values, strict=True):
        if isinstance(column, CategoricalColumn):
            records[np.arange(len(entries)), column.start + entries] = 1
        elif column.high > column.low:
            numbers, low, high = entries.astype(np.float64), column.low, column.high
            if math.isinf(high - low):  # the width overflows; half of it does not
                numbers, low, high = numbers / 2, low / 2, high / 2
            records[:, column.start] = (numbers - low) / (high - low)
    return records


def decode(columns: Sequence[Column], inputs: Tensor) -> dict[str, npt.NDArray[Any]]:
    """Decode records to the units of the file: numbers unscaled, the most likely category.

    Works on estimates as well: a coordinate outside [0, 1] gives a number outside the range of the column. If the
    coordinates of a category are not one-hot, the largest coordinate decides.

    Args:
        columns: Description of the columns, as in ``Dataset.columns``.
        inputs: Encoded records or estimates, records x coordinates.

    Returns:
        One array per column name, with one entry per record.

    Raises:
        InvalidInput: If ``inputs`` does not have the coordinates of the columns.

    Guarantee: the inverse of :func:`encode` up to float32 rounding of the scaled number.
    Edge cases: a constant column gives its constant.

    >>> import torch
    >>> decode([NumericColumn("age", 20, 40, 0), CategoricalColumn("sex", ("F", "M"), 1)],
    ...        torch.tensor([[0.25, 0.1, 0.7]]))
    {'age': array([25.]), 'sex': array(['M'], dtype='<U1')}
    """
    if inputs.ndim != 2 or inputs.shape[1] != total_width(columns):
        raise invalid_input("inputs.shape", tuple(inputs.shape), f"to be (records, {total_width(columns)})")
    records = inputs.detach().cpu().numpy().astype(np.float64)
    values: dict[str, npt.NDArray[Any]] = {}
    for column in columns:
        block = records[:, column.coordinates]
        if isinstance(column, CategoricalColumn):
            values[column.name] = np.array(column.categories)[block.argmax(axis=1)]
        else:
            # not low + x (high - low), whose width can overflow
            values[column.name] = column.low * (1 - block[:, 0]) + column.high * block[:, 0]
    return values
