"""Batches of records for metrics: validation, pairwise distances, and matching of estimates to targets."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from reconrisk.core.validation import (
    check_all_finite,
    check_all_within,
    check_finite,
    check_not_empty,
    check_positive,
    invalid_input,
)


def check_records(name: str, records: Tensor) -> Tensor:
    """Check that a batch holds real records, records first, each with at least one value.

    Args:
        name: Name of the argument, for the error message.
        records: Batch to check.

    Returns:
        The batch.

    Raises:
        InvalidInput: If it is not a tensor, is empty or complex, or has no record axis.
    """
    if not isinstance(records, Tensor):
        raise invalid_input(
            f"type({name})", type(records).__name__, "to be torch.Tensor", "Convert it with torch.as_tensor."
        )
    if records.ndim == 0:
        raise invalid_input(
            f"{name}.shape", (), "to have a first axis of records", f"Pass {name}[None] for one record."
        )
    if records.is_complex():
        raise invalid_input(
            f"{name}.dtype", records.dtype, "to be real", f"Pass {name}.real, or real and imaginary part."
        )
    check_not_empty(name, records)
    if records.numel() == 0:
        raise invalid_input(f"{name}.shape", tuple(records.shape), "to have at least one value per record")
    return records


def check_finite_records(name: str, records: Tensor) -> Tensor:
    """Check that a batch holds records without NaN and infinities.

    Args:
        name: Name of the argument, for the error message.
        records: Batch to check.

    Returns:
        The batch.

    Raises:
        InvalidInput: As :func:`check_records`, or if a value is not finite.
    """
    check_all_finite(name, check_records(name, records), "Remove such records before the audit.")
    return records


def check_same_records(name: str, records: Tensor, other_name: str, other: Tensor) -> None:
    """Check that the records of two batches, of any length, have the same shape.

    Args:
        name: Name of the first argument, for the error message.
        records: First batch.
        other_name: Name of the second argument, for the error message.
        other: Second batch.

    Raises:
        InvalidInput: If the shapes of the records differ.
    """
    if records.shape[1:] != other.shape[1:]:
        raise invalid_input(
            f"{name}.shape",
            tuple(records.shape),
            f"to have records of shape {tuple(other.shape[1:])}, as in {other_name}",
        )


def rows(records: Tensor) -> Tensor:
    """Flatten each record to one row of float64.

    In float64 the differences of uint8 do not wrap around and the squares of float32 cannot overflow.

    Args:
        records: Batch, records first.

    Returns:
        Matrix of shape (records, values).

    Raises:
        InvalidInput: As :func:`check_records`.
    """
    return check_records("records", records).double().reshape(len(records), -1)


def finite_rows(records: Tensor) -> Tensor:
    """Return a mask that is True for each record without NaN and infinities.

    Args:
        records: Batch, records first.

    Returns:
        One boolean for each record.
    """
    return records.isfinite().reshape(len(records), -1).all(1)


def as_images(records: Tensor, metric: str) -> Tensor:
    """Return records as (records, channels, height, width); (records, height, width) is read as grey.

    Args:
        records: Batch of images.
        metric: Name of the metric, for the error message.

    Returns:
        The batch with four axes.

    Raises:
        InvalidInput: If the batch has neither three nor four axes.
    """
    if records.ndim not in (3, 4):
        raise invalid_input(
            "targets.shape",
            tuple(records.shape),
            "to be (records, channels, height, width)",
            f"Use mse() or ncc() for records that are not images, which {metric} needs.",
        )
    return records if records.ndim == 4 else records[:, None]


def check_data_range(data_range: float | tuple[float, float]) -> tuple[float, float]:
    """Return the range of the data as (low, high); a single number is the high end above 0.

    Args:
        data_range: Pair of numbers, or one positive number.

    Returns:
        Smallest and largest value.

    Raises:
        InvalidInput: If the range is empty, not finite, or no pair.
    """
    remedy = "Pass (low, high), such as (0, 1) or (0, 255)."
    if isinstance(data_range, (int, float)):
        return 0.0, check_positive("data_range", data_range, remedy)
    if not isinstance(data_range, (tuple, list)) or len(data_range) != 2:
        raise invalid_input("data_range", data_range, "to be (low, high)", remedy)
    low, high = (check_finite("data_range", end, remedy) for end in data_range)
    if not low < high:
        raise invalid_input("data_range", data_range, "to be (low, high) with low < high", remedy)
    return low, high


def check_within(targets: Tensor, data_range: tuple[float, float]) -> None:
    """Check that targets lie inside the stated range, up to a thousandth of it for rounding.

    A wrong range would shift every score.

    Args:
        targets: True records.
        data_range: Smallest and largest value.

    Raises:
        InvalidInput: If a value lies outside the range.
    """
    low, high = data_range
    slack = 1e-3 * (high - low)
    remedy = "Pass the smallest and largest value that the data can take."
    check_all_within("targets", check_records("targets", targets).detach(), data_range, remedy, slack=slack)


def pairwise_mse(left: Tensor, right: Tensor) -> Tensor:
    r"""Mean squared error of every record of ``left`` against every record of ``right``.

    .. math:: \frac{1}{d} (\lVert a \rVert^2 + \lVert b \rVert^2 - 2 \langle a, b \rangle)

    Here a and b are records of ``left`` and ``right`` with d values, both minus the mean of ``right``, in float64.

    Args:
        left: Batch of records.
        right: Batch of records of the same shape.

    Returns:
        Matrix of shape (left, right).

    Guarantee: within :func:`rounding_error` of the error computed by differences; never below zero.
    Edge cases: pairs whose squares overflow are infinitely far apart.

    >>> import torch
    >>> pairwise_mse(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    tensor([[0., 2.]], dtype=torch.float64)
    """
    # Shifting by the mean keeps norms, and with them the cancellation below, as small as possible.
    centre = rows(right).mean(0)
    one, other = rows(left) - centre, rows(right) - centre
    norms = one.square().sum(1, keepdim=True) + other.square().sum(1)
    squares = norms.addmm_(one, other.T, alpha=-2)
    # Cancellation may leave small negative numbers; inf - inf of overflowed squares is NaN.
    return (squares / one.shape[1]).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)


def rounding_error(left: Tensor, right: Tensor) -> Tensor:
    """Upper bound on the error of an entry of :func:`pairwise_mse`, one for each record of ``left``.

    A sum of d products, in any order, has an error of at most d/2 machine epsilons of the sum of their magnitudes. The
    three sums have magnitudes of at most twice the two squared norms, and the mean divides by d. That makes one machine
    epsilon of the squared norms; eight cover the shift as well.

    Args:
        left: Batch of records.
        right: Batch of records of the same shape.

    Returns:
        One bound for each record of ``left``.
    """
    centre = rows(right).mean(0)
    one, other = (rows(each) - centre for each in (left, right))
    largest = one.square().sum(1) + other.square().sum(1).max()
    return 8 * 2.0**-52 * largest  # 2^-52 is the machine epsilon of float64


def match_indices(estimates: Tensor, targets: Tensor) -> Tensor:
    r"""Match estimates to targets one to one, and return the index of the estimate of each target.

    .. math:: \min_\pi \sum_i \frac{d_{\pi(i) i}}{d_{\pi(i) i} + s}, \quad
              d_{ji} = \sqrt{\mathrm{MSE}(\hat{x}_j, x_i)}

    The sum runs over one-to-one assignments, found by the Hungarian method. :math:`s` is the root mean square distance
    of the targets from their mean (1 if they are all equal). The plain sum of errors would let a distant estimate take
    the target of an exact one whenever that shortens its own long distance, and an audit would miss the leak.

    Args:
        estimates: Reconstructed records, in any order.
        targets: True records.

    Returns:
        Index of the estimate of each target, -1 for none.

    Raises:
        InvalidInput: If targets are empty or not finite, or if the shapes of records differ.

    Guarantee: an exact estimate of a target is matched to it, or to a copy of it, for any other estimates. No other
    assignment of as many estimates has a smaller sum. Up to equal records, the result does not change if either side is
    permuted.
    Edge cases: an estimate with NaN or infinities is never assigned, even if a target stays without one. With fewer
    estimates than targets the remaining targets get -1; with more, the worst fitting estimates are left over.

    >>> import torch
    >>> match_indices(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [5.0], [8.0]]))
    tensor([ 1, -1,  0])
    """
    check_finite_records("targets", targets)
    if isinstance(estimates, Tensor) and estimates.ndim > 0 and len(estimates) == 0:
        return torch.full((len(targets),), -1)
    check_same_records("estimates", check_records("estimates", estimates), "targets", targets)
    usable = finite_rows(estimates).nonzero().squeeze(1)
    matched = torch.full((len(targets),), -1, device=usable.device)
    if len(usable):
        # A bounded, strictly concave function of the distance: the triangle inequality then holds strictly, so an exact
        # pair is never broken up to shorten another.
        values = rows(targets)
        spread = float((values - values.mean(0)).square().mean().sqrt()) or 1.0
        distances = pairwise_mse(estimates[usable].detach(), targets).sqrt()
        costs = (1 - spread / (distances + spread)).cpu().numpy()  # d / (d + s); 1 for d = inf
        chosen, of_target = (torch.from_numpy(side).to(usable.device) for side in linear_sum_assignment(costs))
        matched[of_target] = usable[chosen]
    return matched


def match_records(estimates: Tensor, targets: Tensor) -> Tensor:
    """Reorder the estimates to the order of the targets, by :func:`match_indices`.

    A target without an estimate gets a row of NaN. Metrics give such a row the worst score, so a record without a
    reconstruction is not left out.

    Args:
        estimates: Reconstructed records, in any order.
        targets: True records.

    Returns:
        One estimate for each target.

    Raises:
        InvalidInput: As :func:`match_indices`.

    Edge cases: integers become float64, which can hold the NaN.

    >>> import torch
    >>> match_records(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [5.0], [8.0]])).squeeze(1)
    tensor([1., nan, 9.])
    """
    return reorder_estimates(estimates, match_indices(estimates, targets), targets)


def reorder_estimates(estimates: Tensor, indices: Tensor, targets: Tensor) -> Tensor:
    """Select the estimates at ``indices``, with NaN where the index is -1.

    Args:
        estimates: Reconstructed records.
        indices: Index of the estimate of each target, -1 for none.
        targets: True records, which give the shape.

    Returns:
        One estimate for each index; integers become float64.
    """
    values = estimates if estimates.is_floating_point() else estimates.double()
    result = values.new_full((len(indices), *targets.shape[1:]), math.nan)
    found = indices >= 0
    result[found] = values[indices[found]]
    return result
