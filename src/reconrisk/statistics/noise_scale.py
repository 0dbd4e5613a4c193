r"""Evidence that a release has less noise than it claims, or that it uses noise twice.

A release is :math:`y = g + s Z` with standard normal Z. The claim is :math:`s \ge \sigma`. For a known value g, let S
be the sum of :math:`|y - g|^2 / \sigma^2` over releases and N the number of their coordinates. The likelihood ratio of
the scale :math:`\rho\sigma` against :math:`\sigma` depends on S and N alone, and a mixture over ratios is an e-process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reconrisk.core.validation import check_nonnegative, check_not_empty, check_positive, check_whole, invalid_input
from reconrisk.statistics.search import check_level, shrink_bracket

Array = NDArray[np.float64]

_MISSING_NOISE = np.exp(np.linspace(math.log(0.001), math.log(0.9), 40))
_RATIOS = 1 - _MISSING_NOISE
_BOTH_RATIOS = np.concatenate([_RATIOS, 1 / _RATIOS])
_CORRELATIONS = np.exp(np.linspace(math.log(0.02), 0.0, 12))
_BOTH_CORRELATIONS = np.concatenate([_CORRELATIONS, -_CORRELATIONS])


def log_evidence_of_less_noise(square_sum: float, count: int, *, two_sided: bool = False) -> float:
    r"""Logarithm of the evidence against the claimed noise.

    .. math:: \ln E = \ln \sum_j w_j \exp\big(-N \ln \rho_j - (\rho_j^{-2} - 1)\, S / 2\big)

    Args:
        square_sum: Sum S of squared residuals over the claimed variance, of all releases so far.
        count: Number N of coordinates in the sum.
        two_sided: Also bet on more noise than claimed; then the claim is that the noise has exactly this scale.

    Returns:
        The natural logarithm of the e-process.

    Raises:
        InvalidInput: If ``square_sum`` is negative or not finite, or ``count`` is not a whole number.

    Assumes: the value g without noise is chosen before the noise of its release is drawn. It may use earlier releases,
    but never the release itself. Directions of g that are unknown are projected out; ``count`` counts the rest.
    Guarantee: if the noise has the claimed scale, the mean of E is at most one at any stopping time. One-sided, this
    holds for any larger scale and for any wrong g, which can only hide missing noise. Two-sided, g must be exact.
    Edge cases: no coordinate gives 0.

    >>> round(log_evidence_of_less_noise(600.0, 738), 4)
    5.0278
    """
    total = check_nonnegative("square_sum", square_sum)
    return _log_evidence(total, check_whole("count", count, minimum=0), _BOTH_RATIOS if two_sided else _RATIOS)


def scale_limits(square_sum: float, count: int, *, alpha: float = 0.05) -> tuple[float, float]:
    """Anytime-valid interval of the scale of noise, as a multiple of the claimed scale.

    Args:
        square_sum: Sum of squared residuals over the claimed variance, of all releases so far.
        count: Number of coordinates in the sum.
        alpha: Probability with which the interval ever misses the scale.

    Returns:
        The ends of the interval: all scales that the two-sided evidence does not reject.

    Raises:
        InvalidInput: If ``square_sum`` is negative or not finite, ``count`` is not a whole number, or ``alpha`` is not
            in (0, 1).

    Assumes: the value without noise is exact. If it is not, the upper end still holds.
    Guarantee: contains the root mean square of the residuals.
    Edge cases: no coordinate gives (0, inf); residuals of zero give (0, 0) if there are enough of them.

    >>> tuple(round(limit, 3) for limit in scale_limits(738.0, 738))
    (0.917, 1.096)
    """
    total = check_nonnegative("square_sum", square_sum)
    size = check_whole("count", count, minimum=0)
    # Each logarithm is at most about |S| + |N| in size and accurate to a few units in the last place.
    needed = -math.log(check_level(alpha))

    def rejects(squares: float) -> bool:
        round_off = 16 * 2.0**-52 * (1 + size * math.log(10) + 50 * squares)
        return _log_evidence(squares, size, _BOTH_RATIOS) >= needed + round_off

    if size == 0:
        return 0.0, math.inf
    # The evidence is a convex function of the sum of squares and at most one where that sum equals the count.
    most = 2.0 * size
    while not rejects(most):
        most *= 2
    most = shrink_bracket(rejects, kept=float(size), excluded=most)[1]
    low = math.sqrt(total / most) * (1 - 1e-15)
    if not rejects(0.0):
        return low, math.inf
    least = shrink_bracket(rejects, kept=float(size), excluded=0.0)[1]
    return low, math.sqrt(total / least) * (1 + 1e-15) if least > 0 else math.inf


def log_evidence_of_reused_noise(cosines: Sequence[float] | Array, size: int) -> float:
    r"""Logarithm of the evidence that the noise of a release depends on the noise of the one before.

    .. math:: \ln E = \ln\, \mathrm{mean}_a \exp\Big(p \sum_t (a \cos_t - a^2/2)\Big)

    Args:
        cosines: Cosine of the angle between residuals of consecutive releases, in order.
        size: Number of coordinates p of a release.

    Returns:
        The natural logarithm of the e-process.

    Raises:
        InvalidInput: If a cosine is not in [-1, 1], or ``size`` is not a positive whole number.

    Assumes: the value without noise is exact. The scale of the noise need not be known.
    Guarantee: for independent isotropic noise the mean of E is at most one at any stopping time, because the cosine
    with a uniform direction is sub-Gaussian with variance 1/p.
    Edge cases: no pair gives 0.

    >>> round(log_evidence_of_reused_noise([1.0], 738), 1)
    365.8
    """
    values = np.asarray(cosines, dtype=np.float64)
    size = check_whole("size", size)
    if values.ndim != 1 or not (np.abs(values) <= 1 + 1e-9).all():  # a quotient of sums may round to above one
        raise invalid_input("cosines", cosines, "to be a sequence of numbers in [-1, 1]")
    if len(values) == 0:
        return 0.0
    total = np.clip(values, -1, 1).sum()
    exponents = size * (_BOTH_CORRELATIONS * total - len(values) * _BOTH_CORRELATIONS**2 / 2)
    return mean_log_evidence(exponents)


def mean_log_evidence(logs: Sequence[float] | Array, weights: Sequence[float] | None = None) -> float:
    """Logarithm of the mean of e-values, such as one for each block of parameters.

    Args:
        logs: Natural logarithms of the e-values.
        weights: Weight of each, chosen before the data are seen; None for equal weights. They are divided by their sum.

    Returns:
        The natural logarithm of the mean.

    Raises:
        InvalidInput: If there is no e-value, one is NaN, or the weights are not one positive number for each.

    Guarantee: the mean of e-values of one claim is an e-value of it, for any dependence.

    >>> round(mean_log_evidence([math.log(3.0), math.log(1.0)]), 4) == round(math.log(2.0), 4)
    True
    """
    values = np.asarray(logs, dtype=np.float64)
    check_not_empty("logs", values.tolist(), "Pass the logarithm of at least one e-value.")
    shares = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=np.float64)
    if np.isnan(values).any():
        raise invalid_input("logs", logs, "to be numbers, not NaN")
    if shares.shape != values.shape or not ((shares > 0) & np.isfinite(shares)).all():
        raise invalid_input("weights", weights, f"to be {len(values)} positive numbers, one for each e-value")
    return float(np.logaddexp.reduce(values + np.log(shares / shares.sum())))


def releases_needed(scale_ratio: float, size: int, *, alpha: float = 1e-3) -> float:
    r"""Estimate the mean number of releases until missing noise is detected.

    The growth of the evidence for each coordinate is the divergence :math:`-\ln \rho - (1 - \rho^2) / 2`. The number is
    the one at which the evidence of a sum of squares equal to its mean reaches :math:`1/\alpha`.

    Args:
        scale_ratio: True scale over the claimed scale, :math:`\rho`.
        size: Number of coordinates of a release.
        alpha: Error probability of the test.

    Returns:
        The number, at least 1; inf if the noise has at least the claimed scale, or lacks less than about 0.05 % of it.

    Raises:
        InvalidInput: If ``scale_ratio`` is not positive, ``size`` not a positive whole number, or ``alpha`` not in
            (0, 1).

    >>> round(releases_needed(0.95, 738, alpha=1e-3), 1), releases_needed(1.0, 738)
    (5.0, inf)
    """
    ratio, size = check_positive("scale_ratio", scale_ratio), check_whole("size", size)
    needed = -math.log(check_level(alpha))
    # The test bets on at least 0.1 % of missing noise. If less than about half of that is missing, all bets lose.
    if ratio >= 1 or (np.log(_RATIOS) + (_RATIOS**-2 - 1) * ratio**2 / 2).min() >= 0:
        return math.inf

    def detects(releases: float) -> bool:
        return _log_evidence(releases * size * ratio**2, releases * size, _RATIOS) >= needed

    many = 1.0
    while not detects(many):
        many *= 2
    return max(1.0, shrink_bracket(detects, kept=0.0, excluded=many)[1])


def _log_evidence(square_sum: float, count: float, ratios: Array) -> float:
    """Return the log of the mean likelihood ratio of each scale in ``ratios`` against one."""
    if count == 0:
        return 0.0
    return float(np.logaddexp.reduce(-count * np.log(ratios) - (ratios**-2 - 1) * square_sum / 2)) - math.log(
        len(ratios)
    )
