"""Gaussian vectors and cones: how likely a noisy direction lies within a given angle of the true one."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from reconrisk.bounds.chi_square import stirling_remainder
from reconrisk.bounds.log_concave import log_integral_upper_bound

Floats = NDArray[np.float64]

_EPSILON = float(np.finfo(float).eps)
_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)


def log_cone_probability(tangent: float, *, dimension: int, signals: ArrayLike) -> Floats:
    r"""Upper bound on the log-probability that ``c u + N(0, I)`` lies within an angle below 90 degrees of ``u``.

    .. math:: P\bigl(z + c \ge \chi_{d-1} / t\bigr) = \int \Phi(c - \chi/t) \, p_{d-1}(\chi) \, d\chi

    with t the tangent of the angle: z is the noise along u, chi the length of the noise across. In log chi the
    integrand is log-concave, so the integral is safe and cheap in log space.

    Assumes: ``tangent >= 0``, ``dimension >= 1``.
    Notation: ``signals`` holds values of c, the length of the mean in units of the noise; c = 0 gives the share of the
    sphere that a cap of this angle covers.
    Guarantee: never below the truth; above it by less than 1e-9 of the probability for dimensions up to 1e6.
    Edge cases: ``tangent = 0`` gives -inf; in one dimension the angle does not matter and the value is Phi(c).

    >>> cap = float(np.exp(log_cone_probability(0.5, dimension=4, signals=[0.0])[0]))
    >>> bool(abs(cap - 0.5 * special.betainc(1.5, 0.5, 0.2)) < 1e-10)
    True
    """
    means = np.asarray(signals, dtype=float)
    if dimension == 1:
        return np.asarray(np.minimum(special.log_ndtr(means) * (1 - 4 * _EPSILON) + 4 * _EPSILON, 0.0))
    if tangent == 0:
        return np.full_like(means, -math.inf)
    degrees = dimension - 1
    reach = math.sqrt(degrees) / tangent / (1 + 4 * _EPSILON)  # chi / t at the typical chi, rounded to the safe side
    mode = _modes(reach, degrees, tangent, means)
    constant = math.log(degrees) - 0.5 * math.log(math.pi * degrees) - stirling_remainder(degrees / 2)

    def log_integrand(points: Floats, which: NDArray[np.int64]) -> Floats:
        with np.errstate(over="ignore"):  # far right the density is exp(-inf), as it should be
            chi_density = constant + degrees * (points - 0.5 * np.expm1(2 * points))
            return np.asarray(chi_density + special.log_ndtr(means[which] - reach * np.exp(points)))

    width = 1 / math.sqrt(2 * degrees)
    logs = log_integral_upper_bound(log_integrand, mode - width, mode, mode + width)
    rounding = 16 * _EPSILON * (degrees * (1 + np.abs(mode)) + np.abs(logs) + 1)
    return np.asarray(np.minimum(logs + rounding, 0.0))


def _modes(reach: float, degrees: int, tangent: float, means: Floats) -> Floats:
    """Where the integrand is largest, by bisection of its decreasing slope in ``log(chi / sqrt(degrees))``."""
    # At this left end the slope is positive: the inverse Mills ratio at x is below |x| + 1.
    low = np.log(0.25 * min(1.0, 1 / tangent) / (1 + np.abs(means)) / reach)
    high = np.maximum(low + 1, np.zeros_like(low))
    for _ in range(60):
        middle = (low + high) / 2
        x = means - reach * np.exp(middle)
        mills = np.exp(-0.5 * x * x - _HALF_LOG_TAU - special.log_ndtr(x))
        rising = -degrees * np.expm1(2 * middle) > reach * np.exp(middle) * mills
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return np.asarray((low + high) / 2)
