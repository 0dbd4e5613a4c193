"""Batches of records as the metrics read them: rows of numbers, images, and the range their values are stated in."""

from __future__ import annotations

from torch import Tensor

from reconrisk.core.validation import (
    check_all_finite,
    check_all_within,
    check_finite,
    check_not_empty,
    check_positive,
    refuse,
)


def check_records(name: str, records: Tensor) -> Tensor:
    """A batch of real records, first dimension the record, each with at least one value."""
    if not isinstance(records, Tensor):
        raise refuse(name, type(records).__name__, "to be a torch.Tensor", "Convert with torch.as_tensor.")
    if records.ndim == 0:
        raise refuse(f"{name}.shape", (), "to have records first", f"For one record pass {name}[None].")
    if records.is_complex():
        raise refuse(f"{name}.dtype", records.dtype, "to be real")
    check_not_empty(name, records)
    if records.numel() == 0:
        raise refuse(f"{name}.shape", tuple(records.shape), "to have at least one value per record")
    return records


def check_finite_records(name: str, records: Tensor) -> Tensor:
    """A batch of records without NaN and infinities."""
    check_all_finite(name, check_records(name, records), "Remove such records before the audit.")
    return records


def check_same_records(name: str, records: Tensor, other_name: str, other: Tensor) -> None:
    """Two batches, of any length, whose records have one shape."""
    if records.shape[1:] != other.shape[1:]:
        raise refuse(
            f"{name}.shape",
            tuple(records.shape),
            f"to have records of shape {tuple(other.shape[1:])}, as in {other_name}",
        )


def rows(records: Tensor) -> Tensor:
    """One row of float64 for each record.

    In float64 the differences of uint8 do not wrap around and the squares of float32 cannot overflow.
    """
    return check_records("records", records).double().reshape(len(records), -1)


def finite_rows(records: Tensor) -> Tensor:
    """Which records hold neither NaN nor infinities."""
    return records.isfinite().reshape(len(records), -1).all(1)


def images(records: Tensor, metric: str) -> Tensor:
    """Records as (records, channels, height, width); (records, height, width) is taken as grey."""
    if records.ndim not in (3, 4):
        raise refuse(
            "targets.shape",
            tuple(records.shape),
            "to be (records, channels, height, width)",
            f"{metric} compares images; for other records use mse() or ncc().",
        )
    return records if records.ndim == 4 else records[:, None]


def check_data_range(data_range: float | tuple[float, float]) -> tuple[float, float]:
    """The ends of the scale that values are stated in, as (low, high); a single number is the high end above 0."""
    remedy = "Pass (low, high), such as (0, 1) or (0, 255)."
    if isinstance(data_range, (int, float)):
        return 0.0, check_positive("data_range", data_range, remedy)
    if not isinstance(data_range, (tuple, list)) or len(data_range) != 2:
        raise refuse("data_range", data_range, "to be (low, high)", remedy)
    low, high = (check_finite("data_range", end, remedy) for end in data_range)
    if not low < high:
        raise refuse("data_range", data_range, "to be (low, high) with low < high", remedy)
    return low, high


def check_within(targets: Tensor, data_range: tuple[float, float]) -> None:
    """Targets inside the stated range, up to a thousandth of it for rounding: a wrong range shifts every score."""
    low, high = data_range
    slack = 1e-3 * (high - low)
    remedy = "Pass the range that the values are stated in."
    check_all_within("targets", check_records("targets", targets).detach(), data_range, remedy, slack=slack)
