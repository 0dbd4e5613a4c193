"""Scores from differences of values: mean squared error, PSNR, normalised cross-correlation, relative leakage."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from reconrisk.core.metric import Metric
from reconrisk.core.validation import invalid_input
from reconrisk.metrics.records import check_data_range, check_finite_records, check_records, check_within, rows


def relative_leakage(metric: Metric, estimates: Tensor, targets: Tensor, prior_guess: Tensor) -> Tensor:
    r"""Share of the gap between a prior-only guess and a perfect score that the attack closed.

    .. math:: \frac{s - s_0}{s^* - s_0}

    Here :math:`s` is the score of the estimate, :math:`s_0` of the prior guess, and :math:`s^*` is ``metric.best``.

    Args:
        metric: Metric with a finite best score.
        estimates: Reconstructed records, in the order of the targets (see :func:`match_records`).
        targets: True records.
        prior_guess: Guess made without the release: one record for all targets, or one for each.

    Returns:
        One share for each record.

    Raises:
        InvalidInput: If the best score of the metric is infinite, because no share of an infinite gap is defined, or if
            shapes differ.

    Assumes: ``prior_guess`` is made without the release.
    Guarantee: at most 1; 1 for an exact estimate, 0 if no better than the guess, below 0 if worse.
    Edge cases: a perfect guess leaves nothing to leak: 0. An estimate with NaN gets minus infinity if the worst score
    is infinite. A guess with an infinitely bad score gives 1 to every estimate with a finite score.

    >>> import torch
    >>> from reconrisk.metrics import mse
    >>> relative_leakage(mse(), torch.tensor([[0.5], [3.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([1.0]))
    tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    if not math.isfinite(metric.best):
        raise invalid_input(
            f"{metric.name}.best", metric.best, "to be finite", "Use a metric with a finite best score, such as mse()."
        )
    check_records("targets", targets)
    scores = metric(estimates, targets)
    if prior_guess.shape == targets.shape[1:]:
        prior_guess = prior_guess.expand(targets.shape)
    if prior_guess.shape != targets.shape:
        raise invalid_input(
            "prior_guess.shape",
            tuple(prior_guess.shape),
            f"to be {tuple(targets.shape[1:])}, one record, or {tuple(targets.shape)}, one for each target",
        )
    prior = metric(check_finite_records("prior_guess", prior_guess), targets)
    closed = (scores - prior) / (metric.best - prior)
    # An infinitely bad guess makes the ratio inf / inf; every estimate with another score closed the whole gap.
    closed = torch.where(prior.isinf(), (scores != prior).double(), closed)
    return torch.where(prior == metric.best, 0.0, closed)


def mse() -> Metric:
    r"""Mean squared error of each record.

    .. math:: \frac{1}{d} \sum_{i=1}^d (\hat{x}_i - x_i)^2

    Here :math:`x` is the target, :math:`\hat{x}` the estimate, and :math:`d` the number of values in a record.

    Returns:
        The metric; 0 is best, infinity worst.

    Guarantee: exactly zero for an exact estimate, symmetric, computed in float64 for every input type.
    Edge cases: differences above 1e154 overflow to infinity, the worst score.
    Reference: Section V-B a), balle2022.

    >>> import torch
    >>> mse()(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    tensor([0., 2.], dtype=torch.float64)
    """
    return Metric("mse", squared_error, best=0.0, worst=math.inf)


def psnr(*, data_range: float | tuple[float, float]) -> Metric:
    r"""Peak signal-to-noise ratio of each record in decibel.

    .. math:: 10 \log_{10} \frac{(b - a)^2}{\mathrm{MSE}(\hat{x}, x)}

    Args:
        data_range: Smallest and largest value of the data, :math:`(a, b)`; one number b means (0, b). It is never
            guessed.

    Returns:
        The metric; infinity is best, minus infinity worst.

    Raises:
        InvalidInput: If the range is empty or not finite; when called, if a target lies outside of it.

    Assumes: targets lie in ``data_range``. Estimates are not clipped: clip them first if the adversary would.
    Guarantee: decreasing in the mean squared error; unchanged if values and range are scaled or shifted together.
    Edge cases: an exact estimate gives infinity, an estimate with NaN gives minus infinity.

    >>> import torch
    >>> psnr(data_range=(0, 1))(torch.tensor([[0.0, 0.1], [0.5, 0.5]]), torch.tensor([[0.0, 0.0], [0.5, 0.5]]))
    tensor([23.0103,     inf], dtype=torch.float64)
    """
    data_range = check_data_range(data_range)
    function = partial(_peak_ratio, data_range=data_range)
    return Metric("psnr", function, best=math.inf, worst=-math.inf, settings=(("data_range", data_range),))


def ncc() -> Metric:
    r"""Normalised cross-correlation of each record, after removal of its mean.

    .. math:: \frac{\langle \hat{x} - \bar{\hat{x}},\, x - \bar{x} \rangle}
              {\lVert \hat{x} - \bar{\hat{x}} \rVert \, \lVert x - \bar{x} \rVert}

    Returns:
        The metric; 1 is best, -1 worst.

    Guarantee: in [-1, 1]; symmetric; unchanged if either side is shifted or scaled by a positive factor.
    Edge cases: if all values of a record are equal the fraction is 0/0. It counts as 1 if the estimate equals the
    target exactly, and as 0, no correlation, otherwise. Records with a single value are of this kind.

    >>> import torch
    >>> ncc()(torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.5, 0.5, 0.5]]), torch.tensor([[10.0, 20.0, 30.0]] * 3))
    tensor([ 1., -1.,  0.], dtype=torch.float64)
    """
    return Metric("ncc", _cross_correlation, best=1.0, worst=-1.0)


def squared_error(estimates: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of each row.

    Args:
        estimates: Reconstructed records, records first.
        targets: True records of the same shape.

    Returns:
        One error for each record, in float64.
    """
    return (rows(estimates) - rows(targets)).square().mean(1)


def _peak_ratio(estimates: Tensor, targets: Tensor, *, data_range: tuple[float, float]) -> Tensor:
    check_within(targets, data_range)
    return 20 * math.log10(data_range[1] - data_range[0]) - 10 * squared_error(estimates, targets).log10()


def _cross_correlation(estimates: Tensor, targets: Tensor) -> Tensor:
    one, other = rows(estimates), rows(targets)
    correlation = (_standardise(one) * _standardise(other)).sum(1).clamp(-1, 1)
    # An exact estimate scores exactly 1: rounding would leave it below, and constant records at 0.
    return torch.where((one == other).all(1), 1.0, correlation)


def _standardise(values: Tensor) -> Tensor:
    """Scale rows to mean zero and norm one, or to zero if all their values are equal.

    Division by the largest magnitude keeps squares from overflowing. It also makes equal values exactly one, so
    their mean is exact. The mean of 25 values of 0.1, for example, has a rounding error that would look like structure.
    """
    largest = values.abs().amax(1, keepdim=True)
    scaled = values / largest.masked_fill(largest == 0, 1.0)
    centred = scaled - scaled.mean(1, keepdim=True)
    # The default eps of normalize, 1e-12, would shrink nearly constant rows; tiny only avoids 0 / 0.
    return functional.normalize(centred, dim=1, eps=torch.finfo(values.dtype).tiny)
