"""The units in which a prior sees records, and whether it was made for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from reconrisk.core.validation import check_finite, refuse

SYMMETRIC = (-1.0, 1.0)
"""What the ends of the data range are to most networks."""


def moved(values: Tensor, one: tuple[float, float], other: tuple[float, float]) -> Tensor:
    """Values of the range ``one`` in that of ``other``."""
    scale = (other[1] - other[0]) / (one[1] - one[0])
    return other[0] + scale * (values - one[0])


def as_tensor(name: str, value: object) -> Tensor:
    """A tensor as it is, or an array of NumPy as one.

    >>> as_tensor("mean", np.zeros(2))
    tensor([0., 0.], dtype=torch.float64)
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        return torch.from_numpy(np.ascontiguousarray(value))
    remedy = "Pass its .inputs." if isinstance(getattr(value, "inputs", None), Tensor) else "Pass torch.as_tensor(...)."
    raise refuse(name, type(value).__name__, "to be a tensor or a numerical array", remedy)


def check_range(name: str, ends: tuple[float, float]) -> None:
    """Refuse what is no range."""
    if not isinstance(ends, Sequence) or len(ends) != 2:
        raise refuse(name, ends, "to be (low, high)")
    low, high = (check_finite(name, end) for end in ends)
    if not low < high:
        raise refuse(name, ends, "to be (low, high) with low < high")


def check_fits(
    own_shape: tuple[int, ...], own_range: tuple[float, float], shape: Sequence[int], data_range: tuple[float, float]
) -> None:
    """Refuse records of another shape or range than a prior was made for."""
    if tuple(shape) != own_shape:
        remedy = "Train one with reconrisk train-prior, or resize the records."
        raise refuse("prior.shape", own_shape, f"to be that of the records, {tuple(shape)}", remedy)
    if tuple(map(float, data_range)) != tuple(map(float, own_range)):
        remedy = f"If they are the same pictures in other units, pass prior.scaled_to({tuple(data_range)})."
        raise refuse("prior.data_range", own_range, f"to be that of the records, {data_range}", remedy)
