"""Chi-square distribution in log space: probabilities down to exp(-1e5) at any dimension, and their inverse.

:func:`log_weighted_chi_square` extends it to weighted sums, that is, to quadratic forms in Gaussian variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.optimize import brentq

from reconrisk.bounds.numerics.matrices import nonnegative_array
from reconrisk.core.validation import check_nonnegative

Floats = NDArray[np.float64]

_TOLERANCE = 1e-11  # relative change at which the trapezoidal rule has converged
_HALVINGS = 12  # of its step: at most 32 * 2^12 panels
_BLOCK = 1 << 20  # complex numbers held at once, 16 MB
_DROP = 45.0  # exp(-45) is about 3e-20, below the rounding of the integral
_EPSILON = float(np.finfo(float).eps)
_BENDS = 16  # bends of the path to try, each half of the one before
_DOUBLINGS = 20  # of the length on which the integrand must fall
_LARGEST_RATIO = 1e290  # products of ratio and point stay below the largest float


def log_weighted_chi_square(threshold: float, *, weights: ArrayLike) -> float:
    r"""Upper bound on the log probability that :math:`Q = \sum_i w_i z_i^2`, z standard normal, is at most a threshold.

    .. math:: P(Q \le q) = \frac1{2\pi i} \int e^{sq} \prod_i (1 + 2 w_i s)^{-1/2} \, \frac{ds}s

    The integral runs along a parabola through the saddle point on the positive axis, by the trapezoidal rule. It is
    accurate in relative terms for tiny probabilities too. If the rule does not converge, the result is Chernoff's
    bound, :math:`\min_s e^{sq} \prod_i (1 + 2 w_i s)^{-1/2}`.

    Args:
        threshold: Threshold q, at least 0.
        weights: Weights w, at least 0.

    Returns:
        The log probability, rounded up.

    Raises:
        InvalidInput: If the threshold or a weight is negative or not finite.

    Guarantee: the result is the last refinement of the rule plus its distance from the refinement before. That distance
    is far above the error of the last refinement, so the result is an upper bound. It exceeds the probability by a
    relative 1e-10 or so, and never exceeds Chernoff's bound.
    Edge cases: no positive weight gives 0 (certainty); otherwise a threshold of 0 gives -inf.
    Reference: the inversion formula of `Imhof (1961) <https://doi.org/10.1093/biomet/48.3-4.419>`_ on a bent contour.

    >>> round(math.exp(log_weighted_chi_square(2.0, weights=[1.0, 1.0])), 9) == round(1 - math.exp(-1), 9)
    True
    """
    check_nonnegative("threshold", threshold)
    given = nonnegative_array("weights", weights, dimensions=(1,))
    distinct, multiplicity = np.unique(given[given > 0], return_counts=True)
    counts = multiplicity.astype(float)
    if not len(distinct):
        return 0.0
    if threshold == 0:
        return -math.inf
    with np.errstate(over="ignore"):
        # Dividing by the threshold moves it to 1. A smaller weight makes a small sum more likely, which is safe.
        ratios = np.minimum(distinct / threshold, _LARGEST_RATIO)
    value = min(_log_chernoff(ratios, counts), _log_contour(ratios, counts))
    return min(0.0, value + 16 * _EPSILON * (abs(value) + float(counts.sum())))


def _log_chernoff(ratios: Floats, counts: Floats) -> float:
    """Logarithm of the smallest ``E exp(s (1 - Q))`` over s >= 0."""
    if float(counts @ ratios) <= 1:  # the mean is below the threshold, so s = 0 is optimal
        return 0.0
    point = float(brentq(lambda s: 1 - counts @ (ratios / (1 + 2 * ratios * s)), 0.0, counts.sum(), maxiter=1000))
    return point - 0.5 * float(counts @ np.log1p(2 * ratios * point))


def _log_contour(ratios: Floats, counts: Floats) -> float:
    """Evaluate the inversion integral at threshold 1, plus its last change; inf without convergence."""
    # The derivative of the exponent is negative at 1/2 and positive at 2 + d, as each term of the sum is below 1/(2 s).
    largest = 2 + counts.sum()
    saddle = float(brentq(lambda s: 1 - 1 / s - counts @ (ratios / (1 + 2 * ratios * s)), 0.5, largest, maxiter=1000))
    slopes = ratios / (1 + 2 * ratios * saddle)
    second = saddle**-2 + 2 * float(counts @ slopes**2)
    third = 2 * saddle**-3 + 8 * float(counts @ slopes**3)
    # This bend keeps the phase stationary to third order. Where the path would rise again, halve it repeatedly.
    for halvings in range(_BENDS):
        path = _Path(saddle, third / (6 * second) * 0.5**halvings, ratios, counts)
        end = path.find_end(1 / math.sqrt(second))  # the width of the Gaussian approximation at the saddle
        if end is not None:
            return path.height + _log_trapezoid(path.integrand, end)
    return math.inf


@dataclass(frozen=True)
class _Path:
    """Parabola ``s(y) = saddle + i y - bend y^2`` and the integrand on it, relative to its height at the saddle."""

    saddle: float
    bend: float
    ratios: Floats
    counts: Floats

    @property
    def height(self) -> float:
        """Real part of the exponent at the saddle point."""
        return float(self._exponents(np.zeros(1))[0].real)

    def integrand(self, y: Floats) -> Floats:
        """Return the integrand relative to its height at the saddle: even in y, 1 at y = 0."""
        return np.asarray((np.exp(self._exponents(y) - self.height) * (1 + 2j * self.bend * y)).real)

    def find_end(self, width: float) -> float | None:
        """Return the point at which the integrand has fallen below rounding; None if it rises on the way."""
        for end in width * 8 * 2.0 ** np.arange(_DOUBLINGS):
            heights = self._exponents(end * np.arange(65) / 64).real
            if (np.diff(heights) > 0).any():
                return None
            fallen = np.flatnonzero(heights < heights[0] - _DROP)
            if len(fallen):
                return float(end * fallen[0] / 64)
        return None

    def _exponents(self, y: Floats) -> NDArray[np.complex128]:
        """Compute ``s - log s - sum of log(1 + 2 w s) / 2`` on the path, in blocks of bounded size."""
        points = self.saddle + 1j * y - self.bend * y * y
        block = max(1, _BLOCK // len(self.ratios))
        parts = np.split(points, range(block, len(points), block))
        sums = np.concatenate([np.log1p(2 * part[:, None] * self.ratios) @ self.counts for part in parts])
        return np.asarray(points - np.log(points) - 0.5 * sums)


def _log_trapezoid(integrand: Callable[[Floats], Floats], end: float) -> float:
    """Log of ``1/pi`` times the integral from 0 to ``end``, plus the change at the last halving of the step."""
    panels = 32  # the rule converges exponentially, so few refinements follow
    step = end / panels
    total = step * (float(integrand(np.arange(1.0, panels + 1.0) * step).sum()) + 0.5)  # the integrand is 1 at 0
    for _ in range(_HALVINGS):
        refined = total / 2 + step / 2 * float(integrand(np.arange(0.5, panels) * step).sum())
        change, total = abs(refined - total), refined
        if total > 0 and change <= _TOLERANCE * total:
            return math.log((total + change) * (1 + _TOLERANCE) / math.pi)
        step, panels = step / 2, 2 * panels
    return math.inf


_PART = 2048  # points per block of the series, at most 8 MB with 512 terms each
_NEWTON_ROUNDS = 60  # quadratic convergence needs far fewer; a guard against an endless loop


def log_gammainc(shape: float, x: ArrayLike) -> Floats:
    r"""Logarithm of the regularised lower incomplete gamma function, without underflow.

    .. math:: \log P(a, x), \quad P(a, x) = \frac{x^a e^{-x}}{\Gamma(a+1)} \sum_{n \ge 0} \frac{x^n}{(a+1)\cdots(a+n)}

    ``P(d/2, q/2)`` is the probability that a chi-square variable with ``d`` degrees of freedom is at most ``q``.

    Args:
        shape: Shape a, finite and at least 0.
        x: Points, finite and at least 0.

    Returns:
        The log probability at each point.

    Guarantee: at most 0; nondecreasing in ``x`` up to rounding; relative error of the value below 1e-10 for ``shape``
    up to 1e6.
    Edge cases: ``x = 0`` gives -inf; ``shape = 0`` is the point mass at zero and gives 0 for every ``x``.
    Reference: 8.11.4, `DLMF <https://dlmf.nist.gov/8.11>`_.

    >>> float(log_gammainc(0.5, 0.5)) == math.log(special.gammainc(0.5, 0.5))
    True
    >>> round(float(log_gammainc(75264.0, 30000.0)), 6)
    -23970.194583
    """
    points = np.asarray(x, dtype=float)
    if shape == 0:
        return np.zeros_like(points)
    # scipy is accurate near the mean. In the lower tail, where it loses digits and underflows, the series takes over.
    lower = points < shape * (1 - 4.5 / math.sqrt(max(shape, 1.0))) if shape > 20 else points < 0.5 * shape
    lower &= points > 0
    with np.errstate(divide="ignore"):
        logs = np.where(
            points > shape,
            np.log1p(-special.gammaincc(shape, points)),
            np.log(special.gammainc(shape, np.minimum(points, shape))),
        )
    if lower.any():
        small = points[lower]
        parts = np.split(small, range(_PART, len(small), _PART))  # bounds the memory of a block of terms
        sums = np.concatenate([_series(shape, part) for part in parts])
        logs[lower] = log_gamma_density(shape, small) + np.log(sums)
    return np.asarray(logs)


def log_gamma_density(shape: float, x: ArrayLike) -> Floats:
    """Logarithm of ``x^a e^-x / Gamma(a+1)``: the density at ``log x`` of a gamma variable, divided by its shape.

    The formula is expanded around the mode, because the three terms cancel to one part in 1e10 at the dimension of an
    image.

    Args:
        shape: Shape a, above 0.
        x: Points, at least 0.

    Returns:
        The log density at each point.

    >>> round(float(log_gamma_density(2.0, 1.0)), 12) == round(-1 - math.log(2), 12)
    True
    """
    points = np.asarray(x, dtype=float)
    with np.errstate(divide="ignore"):
        ratio = points / shape
        main = shape * (np.log(ratio) - (ratio - 1))
    return np.asarray(main - 0.5 * math.log(2 * math.pi * shape) - stirling_remainder(shape))


def stirling_remainder(shape: float) -> float:
    """Remainder of Stirling's formula, ``log Gamma(a+1) - a log a + a - log(2 pi a)/2``.

    Args:
        shape: Argument a, above 0.

    Returns:
        The remainder.

    >>> round(stirling_remainder(1.0), 12) == round(1 - 0.5 * math.log(2 * math.pi), 12)
    True
    """
    if shape < 20:  # the asymptotic series below errs by less than 1e-14 from here on
        return math.lgamma(shape + 1) - shape * math.log(shape) + shape - 0.5 * math.log(2 * math.pi * shape)
    inverse = 1 / shape
    square = inverse * inverse
    return inverse * (1 / 12 - square * (1 / 360 - square * (1 / 1260 - square / 1680)))


def log_gammainc_inverse(shape: float, log_probability: float) -> float:
    """Return the ``x`` with ``log P(a, x) = log_probability``, even if the probability underflows.

    Newton's method in ``log x``, in which ``log P`` is concave and increasing: from a start on the left it never
    overshoots.

    Args:
        shape: Shape a, above 0.
        log_probability: Natural logarithm of the probability, at most 0.

    Returns:
        The point x.

    Guarantee: relative error of ``x`` below 1e-12 times the conditioning of the inverse.
    Edge cases: ``log_probability = 0`` gives inf; ``-inf`` gives 0, and so does an ``x`` below the smallest float.

    >>> round(log_gammainc_inverse(1.0, math.log(0.5)), 12) == round(math.log(2), 12)
    True
    """
    if log_probability == 0:
        return math.inf
    if log_probability == -math.inf:
        return 0.0
    if log_probability > -0.1:  # log P is flat there: scipy works with the complement
        return float(special.gammaincinv(shape, math.exp(log_probability)))
    # P(a, x) <= x^a / Gamma(a+1), so this start lies on the left of the root, and is exact as x tends to 0.
    log_x = (log_probability + math.lgamma(shape + 1)) / shape
    if log_x < math.log(np.finfo(float).tiny):
        return math.exp(log_x)
    for _ in range(_NEWTON_ROUNDS):
        value = float(log_gammainc(shape, math.exp(log_x)))
        slope = shape * math.exp(float(log_gamma_density(shape, math.exp(log_x))) - value)
        step = (log_probability - value) / slope
        log_x += step
        if abs(step) <= 4 * _EPSILON * max(1.0, abs(log_x)):
            break
    return math.exp(log_x)


def _series(shape: float, x: Floats) -> Floats:
    """Sum the power series in growing blocks, until the geometric bound on the rest is below rounding."""
    total, term = np.ones_like(x), np.ones_like(x)
    first, block = 1, 16
    active = np.arange(len(x))
    while len(active):
        factors = x[active, None] / (shape + np.arange(first, first + block))
        products = term[active, None] * np.cumprod(factors, axis=1)
        total[active] += products.sum(axis=1)
        term[active] = products[:, -1]
        rest = products[:, -1] / (1 - factors[:, -1])  # later factors are smaller: at most a geometric series
        active = active[rest > 0.1 * _EPSILON * total[active]]
        first, block = first + block, min(2 * block, 512)
    return total
