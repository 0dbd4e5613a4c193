"""What a guess that ignores the release reaches: the error beside which every other number must stand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from reconrisk.bounds.matrices import finite_array
from reconrisk.core.validation import refuse

Floats = NDArray[np.float64]

_LARGEST = 1e150  # the square of more is no float


def constant_guess_mse(*, low: ArrayLike, high: ArrayLike, record: ArrayLike | None = None) -> float:
    r"""Mean squared error of guessing the centre of the box, whatever was released.

    .. math:: \frac1{4d} \sum_i (h_i - l_i)^2 \quad\text{at most}, \qquad
              \frac1d \sum_i \bigl(x_i - \tfrac{l_i+h_i}2\bigr)^2 \quad\text{for one record}

    Assumes: the record lies in the box; numbers stand for equal limits in every coordinate.
    Guarantee: without ``record`` no constant guess has a smaller worst case over the box.

    >>> constant_guess_mse(low=0.0, high=1.0)
    0.25
    >>> constant_guess_mse(low=0.0, high=1.0, record=[0.5, 1.0])
    0.125
    """
    lower = finite_array("low", low, dimensions=(0, 1))
    upper = finite_array("high", high, dimensions=(0, 1))
    if lower.ndim and upper.ndim and lower.shape != upper.shape:
        raise refuse("high.shape", upper.shape, f"to equal low.shape={lower.shape}")
    if not ((upper > lower).all() and np.abs([lower.min(), upper.max()]).max() <= _LARGEST):
        raise refuse(
            "high", high, f"> low={low!r} in every coordinate, neither above 1e150", "Pass the range the data may take."
        )
    if record is None:
        return float(np.mean((upper - lower) ** 2)) / 4
    target = record_in_box(record, low=lower, high=upper)
    return float(np.mean((target - (lower + upper) / 2) ** 2))


def record_in_box(record: ArrayLike, *, low: ArrayLike, high: ArrayLike) -> Floats:
    """The record as a vector, if it lies in the box."""
    target = finite_array("record", record, dimensions=(1,))
    lower, upper = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    for name, limit in (("low", lower), ("high", upper)):
        if limit.ndim and limit.shape != target.shape:
            raise refuse(f"{name}.shape", limit.shape, f"to equal record.shape={target.shape}")
    outside = np.flatnonzero((target < lower) | (target > upper))
    if len(outside):
        first = int(outside[0])
        raise refuse(f"record[{first}]", float(target[first]), "inside [low, high]", "Widen the box or clip the data.")
    return target
