"""Sums of weighted chi-square variables: the probability that a quadratic form in Gaussians is small."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from reconrisk.bounds.matrices import nonnegative_array
from reconrisk.core.validation import check_nonnegative

Floats = NDArray[np.float64]

_TOLERANCE = 1e-11
_ROUNDS = 12
_BLOCK = 1 << 20
_DROP = 45.0
_EPSILON = float(np.finfo(float).eps)
_BENDS = 16
_DOUBLINGS = 20
_LARGEST_RATIO = 1e290


def log_weighted_chi_square(threshold: float, *, weights: ArrayLike) -> float:
    r"""Upper bound on the log-probability that :math:`Q = \sum_i w_i z_i^2`, z standard normal, is at most a threshold.

    .. math:: P(Q \le q) = \frac1{2\pi i} \int e^{sq} \prod_i (1 + 2 w_i s)^{-1/2} \, \frac{ds}s

    along a parabola through the saddle point on the positive axis, by the trapezoidal rule: relative accuracy for tiny
    probabilities too. The bound of Chernoff, :math:`\min_s e^{sq} \prod_i (1 + 2 w_i s)^{-1/2}`, is the limit where
    the rule does not settle.

    Assumes: weights at or above 0.
    Guarantee: the last refinement of the rule plus its distance from the one before, which is far above its own error,
    and never above Chernoff's bound; the excess is about 1e-10 of the probability.
    Edge cases: no positive weight gives 0 (certainty); a threshold of 0 gives -inf otherwise.
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
        ratios = np.minimum(distinct / threshold, _LARGEST_RATIO)  # less weight only makes the sum smaller
    value = min(_log_chernoff(ratios, counts), _log_contour(ratios, counts))
    return min(0.0, value + 16 * _EPSILON * (abs(value) + float(counts.sum())))


def _log_chernoff(ratios: Floats, counts: Floats) -> float:
    """Logarithm of the smallest ``E exp(s (1 - Q))`` over s >= 0."""
    if float(counts @ ratios) <= 1:
        return 0.0
    point = float(brentq(lambda s: 1 - counts @ (ratios / (1 + 2 * ratios * s)), 0.0, counts.sum(), maxiter=1000))
    return point - 0.5 * float(counts @ np.log1p(2 * ratios * point))


def _log_contour(ratios: Floats, counts: Floats) -> float:
    """The inversion integral at threshold 1, plus the change at its last refinement; inf where it does not settle."""
    largest = 2 + counts.sum()
    saddle = float(brentq(lambda s: 1 - 1 / s - counts @ (ratios / (1 + 2 * ratios * s)), 0.5, largest, maxiter=1000))
    slopes = ratios / (1 + 2 * ratios * saddle)
    second = saddle**-2 + 2 * float(counts @ slopes**2)
    third = 2 * saddle**-3 + 8 * float(counts @ slopes**3)
    # This bend keeps the phase stationary to third order; half of it, and so on, where the path would climb again.
    for halvings in range(_BENDS):
        path = _Path(saddle, third / (6 * second) * 0.5**halvings, ratios, counts)
        end = path.descent(1 / math.sqrt(second))
        if end is not None:
            return path.height + _log_trapezoid(path.integrand, end)
    return math.inf


@dataclass(frozen=True)
class _Path:
    """The parabola ``s(y) = saddle + i y - bend y^2`` and the integrand on it, relative to its height at the saddle."""

    saddle: float
    bend: float
    ratios: Floats
    counts: Floats

    @property
    def height(self) -> float:
        """Real part of the exponent at the saddle point."""
        return float(self._exponent(np.zeros(1))[0].real)

    def integrand(self, y: Floats) -> Floats:
        """What is summed, relative to the height at the saddle: even in y, 1 at y = 0."""
        return np.asarray((np.exp(self._exponent(y) - self.height) * (1 + 2j * self.bend * y)).real)

    def descent(self, width: float) -> float | None:
        """Where the integrand has fallen below rounding; None if it climbs on the way."""
        for end in width * 8 * 2.0 ** np.arange(_DOUBLINGS):
            heights = self._exponent(end * np.arange(65) / 64).real
            if (np.diff(heights) > 0).any():
                return None
            fallen = np.flatnonzero(heights < heights[0] - _DROP)
            if len(fallen):
                return float(end * fallen[0] / 64)
        return None

    def _exponent(self, y: Floats) -> NDArray[np.complex128]:
        """``s - log s - sum of log(1 + 2 w s) / 2`` on the path, in blocks of bounded size."""
        points = self.saddle + 1j * y - self.bend * y * y
        block = max(1, _BLOCK // len(self.ratios))
        parts = np.split(points, range(block, len(points), block))
        sums = np.concatenate([np.log1p(2 * part[:, None] * self.ratios) @ self.counts for part in parts])
        return np.asarray(points - np.log(points) - 0.5 * sums)


def _log_trapezoid(integrand: Callable[[Floats], Floats], end: float) -> float:
    """Logarithm of ``1/pi`` times the integral from 0 to ``end``, plus the change at the last halving of the step."""
    panels = 32
    step = end / panels
    total = step * (float(integrand(np.arange(1.0, panels + 1.0) * step).sum()) + 0.5)
    for _ in range(_ROUNDS):
        refined = total / 2 + step / 2 * float(integrand(np.arange(0.5, panels) * step).sum())
        change, total = abs(refined - total), refined
        if total > 0 and change <= _TOLERANCE * total:
            return math.log((total + change) * (1 + _TOLERANCE) / math.pi)
        step, panels = step / 2, 2 * panels
    return math.inf
