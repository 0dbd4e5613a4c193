"""Probability that a noisy direction lies within a given angle of the true one.

:func:`log_integral_upper_bound` integrates many log-concave functions at once, in log space, with an upper bound on the
error.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from reconrisk.bounds.numerics.chi_square import log_gammainc, stirling_remainder

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
LogIntegrand = Callable[[Floats, Integers], Floats]

_DROP = 45.0  # integrate until exp(-45), about 3e-20, of the peak
_PANELS = 4  # initial panels on each side of the mode
_PASSES = 60  # rounds of the outward search and of the bisection of panels; more cannot matter in floats
_TOLERANCE = 1e-13  # relative error of a panel at which it is accepted


def _lobatto(points: int) -> tuple[Floats, Floats]:
    """Nodes and weights of the Gauss-Lobatto rule: the ends of [-1, 1] and the extrema of a Legendre polynomial."""
    polynomial = np.polynomial.legendre.Legendre.basis(points - 1)
    nodes = np.concatenate([[-1.0], np.sort(polynomial.deriv().roots().real), [1.0]])
    return nodes, np.asarray(2 / (points * (points - 1) * polynomial(nodes) ** 2))


# The Lobatto rule evaluates the ends of a panel, the Gauss rule does not: a jump close to an end makes them differ.
_COARSE = np.polynomial.legendre.leggauss(10)
_FINE = _lobatto(16)


def log_integral_upper_bound(log_integrand: LogIntegrand, low: Floats, mode: Floats, high: Floats) -> Floats:
    """Upper bounds on the logarithms of integrals of log-concave functions over the real line.

    Args:
        log_integrand: Function ``(points, which)`` that evaluates members ``which`` of the family at ``points``, one
            point each.
        low: A point to the left of each mode.
        mode: Position of the maximum of each member.
        high: A point to the right of each mode.

    Returns:
        One log integral for each member.

    Assumes: each member is log-concave and tends to zero on both sides; ``low < mode < high``.
    Guarantee: the result is the sum of adaptive Gauss-Lobatto quadrature, its error estimates, and bounds on the tails
    that follow from log-concavity. An error estimate is the difference to a rule of lower order, which is far above the
    error of the higher order. The relative excess over the integral is below 1e-10.

    >>> flat = np.zeros(1)
    >>> normal = log_integral_upper_bound(lambda x, _: -x * x / 2, flat - 1, flat, flat + 1)
    >>> round(float(np.exp(2 * normal[0]) / (2 * np.pi)), 9)
    1.0
    """
    peak = log_integrand(mode, np.arange(len(mode)))
    left = _where_dropped(log_integrand, peak, mode, low)
    right = _where_dropped(log_integrand, peak, mode, high)
    # By concavity each side keeps falling beyond its end at least at its average rate, _DROP over its length. The tail
    # is therefore at most exp(-_DROP) * length / _DROP.
    tails = (right - left) * np.exp(-_DROP) / _DROP
    return np.asarray(peak + np.log(_integral(log_integrand, peak, left, mode, right) + tails))


def _where_dropped(log_integrand: LogIntegrand, peak: Floats, mode: Floats, side: Floats) -> Floats:
    """Find a point on the given side of the mode at which the function is at most exp(-45) of its peak."""
    which = np.arange(len(mode))
    near, far = np.zeros_like(mode), side - mode
    for _ in range(_PASSES):
        fallen = log_integrand(mode + far, which) <= peak - _DROP
        if fallen.all():
            break
        near, far = np.where(fallen, near, far), np.where(fallen, far, 4 * far)
    for _ in range(14):  # locates the end well enough to keep the panels efficient
        middle = (near + far) / 2
        fallen = log_integrand(mode + middle, which) <= peak - _DROP
        near, far = np.where(fallen, near, middle), np.where(fallen, middle, far)
    return np.asarray(mode + far)


def _integral(log_integrand: LogIntegrand, peak: Floats, left: Floats, mode: Floats, right: Floats) -> Floats:
    """Integrate ``exp(log_integrand - peak)`` by bisection of panels, with the error estimates added."""
    share = np.arange(_PANELS) / _PANELS
    lower, upper = left[:, None] + share * (mode - left)[:, None], mode[:, None] + share * (right - mode)[:, None]
    starts = np.concatenate([lower, upper], axis=1)
    ends = np.concatenate([starts[:, 1:], right[:, None]], axis=1).ravel()
    starts, which = starts.ravel(), np.repeat(np.arange(len(mode)), 2 * _PANELS)
    total = np.zeros(len(mode))
    tolerance = _TOLERANCE + 8 * np.finfo(float).eps * np.abs(peak)  # bisection cannot reduce rounding errors
    for remaining in reversed(range(_PASSES)):
        value, error = _panels(log_integrand, peak, starts, ends, which)
        estimate = total + np.bincount(which, value, len(mode))
        fine = (error <= (tolerance * estimate)[which]) | (remaining == 0)
        total += np.bincount(which[fine], (value + error)[fine], len(mode))
        if fine.all():
            break
        starts, ends, which = starts[~fine], ends[~fine], np.tile(which[~fine], 2)
        middle = (starts + ends) / 2
        starts, ends = np.concatenate([starts, middle]), np.concatenate([middle, ends])
    return total


def _panels(
    log_integrand: LogIntegrand, peak: Floats, starts: Floats, ends: Floats, which: Integers
) -> tuple[Floats, Floats]:
    """Return the value of the fine rule on each panel, and its distance from the coarse rule."""
    centre, half = (starts + ends)[:, None] / 2, (ends - starts)[:, None] / 2
    points = centre + half * np.concatenate([_COARSE[0], _FINE[0]])
    members = np.broadcast_to(which[:, None], points.shape)
    heights = np.exp(log_integrand(points.ravel(), members.ravel()).reshape(points.shape) - peak[which][:, None])
    coarse, fine = heights[:, :10] @ _COARSE[1] * half[:, 0], heights[:, 10:] @ _FINE[1] * half[:, 0]
    return fine, np.abs(fine - coarse)


_EPSILON = float(np.finfo(float).eps)
_FAR = 350.0  # exp(2 * 350) is still a float
_LARGEST_SIGNAL = 1e12  # above, noise along the direction is negligible
_SMALLEST_SIGNAL = -30.0  # below, the probability is less than Phi(-30), about 5e-198
_SMALLEST_TANGENT = 1e-290  # its reciprocal is still a float


def log_cone_probability(tangent: float, *, dimension: int, signals: ArrayLike) -> Floats:
    r"""Upper bound on the log probability that ``c u + N(0, I)`` lies within an angle below 90 degrees of ``u``.

    .. math:: P\bigl(z + c \ge \chi_{d-1} / t\bigr) = \int \Phi(c - \chi/t) \, p_{d-1}(\chi) \, d\chi

    Here t is the tangent of the angle, z the noise along u, and chi the length of the noise across. In log chi the
    integrand is log-concave, so the integral is safe and cheap in log space.

    Args:
        tangent: Tangent of the angle, at least 0.
        dimension: Dimension of the space, at least 1.
        signals: Values of c, the length of the mean in units of the noise. With c = 0 the result is the share of the
            sphere that a cap of this angle covers.

    Returns:
        One log probability for each signal.

    Guarantee: never below the exact value; above it by less than a relative 1e-9 for dimensions up to 1e6 and c from
    -30 to 1e12. Beyond that range it is a simple, looser bound.
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
    degrees, tangent = dimension - 1, max(tangent, _SMALLEST_TANGENT)
    if not (near := (means >= _SMALLEST_SIGNAL) & (means <= _LARGEST_SIGNAL)).all():
        logs = np.where(means < 0, special.log_ndtr(means), _log_without_noise_along(tangent, degrees, means))
        logs[near] = log_cone_probability(tangent, dimension=dimension, signals=means[near])
        return logs
    reach = math.sqrt(degrees) / tangent / (1 + 4 * _EPSILON)  # chi / t at the typical chi, rounded to the safe side
    mode = _modes(reach, degrees, tangent, means)
    constant = math.log(degrees) - 0.5 * math.log(math.pi * degrees) - stirling_remainder(degrees / 2)
    # All terms are relative to the mode, so that the large ones cancel once and not at every point.
    squeeze, slant, offset = 0.5 * np.exp(2 * mode), reach * np.exp(mode), means - reach * np.exp(mode)

    def log_integrand(points: Floats, which: NDArray[np.int64]) -> Floats:
        growth = np.minimum(points, _FAR)  # beyond, the integrand underflows to zero
        with np.errstate(over="ignore"):
            chi_density = degrees * (points - squeeze[which] * np.expm1(2 * growth))
            return np.asarray(chi_density + special.log_ndtr(offset[which] - slant[which] * np.expm1(growth)))

    width, origin = np.full_like(mode, 1 / math.sqrt(2 * degrees)), np.zeros_like(mode)
    logs = log_integral_upper_bound(log_integrand, -width, origin, width)
    logs = logs + constant + degrees * (mode - 0.5 * np.expm1(2 * mode))
    # The exponent is a sum of terms of these sizes; 16 covers their roundings.
    rounding = 16 * _EPSILON * (degrees * (1 + np.abs(mode)) + np.abs(logs) + 1)
    return np.asarray(np.minimum(logs + rounding, 0.0))


def _log_without_noise_along(tangent: float, degrees: int, means: Floats) -> Floats:
    """Upper bound for long signals: at most 40 standard deviations of noise along them, and exp(-800) for the rest."""
    with np.errstate(over="ignore"):
        reached = np.minimum(0.5 * (tangent * (means + 40.0)) ** 2, 1e300)
    return np.asarray(np.minimum(np.logaddexp(log_gammainc(degrees / 2, reached), -800.0), 0.0))


def _modes(reach: float, degrees: int, tangent: float, means: Floats) -> Floats:
    """Locate the maximum of the integrand by bisection of its decreasing slope in ``log(chi / sqrt(degrees))``."""
    # At this left end the slope is positive: the inverse Mills ratio at x is below |x| + 1.
    low = math.log(0.25) - max(0.0, math.log(tangent)) - np.log1p(np.abs(means)) - math.log(reach)
    high = np.maximum(low + 1, np.zeros_like(low))
    for _ in range(60):  # halves the bracket to below rounding
        middle = (low + high) / 2
        x = means - reach * np.exp(middle)
        with np.errstate(over="ignore"):
            # phi(x) / Phi(x) by the scaled complementary error function, which does not underflow
            mills = math.sqrt(2 / math.pi) / special.erfcx(-x / math.sqrt(2))
        rising = -degrees * np.expm1(2 * middle) > reach * np.exp(middle) * mills
        low, high = np.where(rising, middle, low), np.where(rising, high, middle)
    return np.asarray((low + high) / 2)
