"""Batches of records as metrics read them: checks, distances between pairs, and which estimate is of which target."""

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
    """A batch of real records, first dimension the record, each with at least one value."""
    if not isinstance(records, Tensor):
        raise invalid_input(name, type(records).__name__, "to be a torch.Tensor", "Convert with torch.as_tensor.")
    if records.ndim == 0:
        raise invalid_input(f"{name}.shape", (), "to have records first", f"For one record pass {name}[None].")
    if records.is_complex():
        raise invalid_input(f"{name}.dtype", records.dtype, "to be real")
    check_not_empty(name, records)
    if records.numel() == 0:
        raise invalid_input(f"{name}.shape", tuple(records.shape), "to have at least one value per record")
    return records


def check_finite_records(name: str, records: Tensor) -> Tensor:
    """A batch of records without NaN and infinities."""
    check_all_finite(name, check_records(name, records), "Remove such records before the audit.")
    return records


def check_same_records(name: str, records: Tensor, other_name: str, other: Tensor) -> None:
    """Two batches, of any length, whose records have one shape."""
    if records.shape[1:] != other.shape[1:]:
        raise invalid_input(
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
        raise invalid_input(
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
        raise invalid_input("data_range", data_range, "to be (low, high)", remedy)
    low, high = (check_finite("data_range", end, remedy) for end in data_range)
    if not low < high:
        raise invalid_input("data_range", data_range, "to be (low, high) with low < high", remedy)
    return low, high


def check_within(targets: Tensor, data_range: tuple[float, float]) -> None:
    """Targets inside the stated range, up to a thousandth of it for rounding: a wrong range shifts every score."""
    low, high = data_range
    slack = 1e-3 * (high - low)
    remedy = "Pass the range that the values are stated in."
    check_all_within("targets", check_records("targets", targets).detach(), data_range, remedy, slack=slack)


def pairwise_mse(left: Tensor, right: Tensor) -> Tensor:
    r"""Mean squared error of every record of ``left`` against every record of ``right``, shape (left, right).

    .. math:: \frac{1}{d} (\lVert a \rVert^2 + \lVert b \rVert^2 - 2 \langle a, b \rangle)

    after both sides are shifted by the mean of ``right``, in float64.

    Guarantee: within :func:`rounding_error` of the error computed by differences; never below zero.
    Edge cases: pairs whose squares overflow are infinitely far apart.

    >>> import torch
    >>> pairwise_mse(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    tensor([[0., 2.]], dtype=torch.float64)
    """
    centre = rows(right).mean(0)
    one, other = rows(left) - centre, rows(right) - centre
    norms = one.square().sum(1, keepdim=True) + other.square().sum(1)
    squares = norms.addmm_(one, other.T, alpha=-2)
    return (squares / one.shape[1]).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)


def rounding_error(left: Tensor, right: Tensor) -> Tensor:
    """How far an entry of :func:`pairwise_mse` can be off, one bound for each record of ``left``.

    A sum of d products, in any order, is off by at most d/2 machine epsilons of the sum of their magnitudes. The three
    sums have magnitudes of at most twice the two squared norms, and the mean divides by d: one machine epsilon of the
    squared norms. Eight cover the shift as well.
    """
    centre = rows(right).mean(0)
    one, other = (rows(each) - centre for each in (left, right))
    largest = one.square().sum(1) + other.square().sum(1).max()
    return 8 * 2.0**-52 * largest


def match_indices(estimates: Tensor, targets: Tensor) -> Tensor:
    r"""For each target the index of its estimate, -1 where none is left.

    .. math:: \min_\pi \sum_i \frac{d_{\pi(i) i}}{d_{\pi(i) i} + s}, \quad
              d_{ji} = \sqrt{\mathrm{MSE}(\hat{x}_j, x_i)}

    over one-to-one assignments, by the Hungarian method, with :math:`s` the root mean square distance of the targets
    from their mean (1 if they are all equal). The sum of the errors themselves would let one stray estimate take the
    target of an exact one, whenever that shortens its own long way: an audit would miss the leak.

    Guarantee: an exact estimate of a target is matched to it, or to a copy of it, whatever the others are; no other
    assignment of as many estimates has a smaller sum; unchanged, up to equals, if either side is permuted.
    Edge cases: an estimate with NaN or infinities is never assigned, even if a target stays without one. With fewer
    estimates than targets the rest get -1; with more, the worst fitting are left over.

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
        # a bounded, strictly concave function of the distance, so that the triangle inequality holds strictly
        values = rows(targets)
        spread = float((values - values.mean(0)).square().mean().sqrt()) or 1.0
        distances = pairwise_mse(estimates[usable].detach(), targets).sqrt()
        costs = (1 - spread / (distances + spread)).cpu().numpy()
        chosen, of_target = (torch.from_numpy(side).to(usable.device) for side in linear_sum_assignment(costs))
        matched[of_target] = usable[chosen]
    return matched


def match_records(estimates: Tensor, targets: Tensor) -> Tensor:
    """The estimates in the order of the targets, by :func:`match_indices`; a target without one gets a row of NaN.

    A metric scores such a row as worst, so that a record nobody rebuilt does not drop out.

    Edge cases: integers become float64, which can hold the NaN.

    >>> import torch
    >>> match_records(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [5.0], [8.0]])).squeeze(1)
    tensor([1., nan, 9.])
    """
    return reordered(estimates, match_indices(estimates, targets), targets)


def reordered(estimates: Tensor, indices: Tensor, targets: Tensor) -> Tensor:
    """The estimates at ``indices``, with NaN where the index is -1."""
    values = estimates if estimates.is_floating_point() else estimates.double()
    result = values.new_full((len(indices), *targets.shape[1:]), math.nan)
    found = indices >= 0
    result[found] = values[indices[found]]
    return result
