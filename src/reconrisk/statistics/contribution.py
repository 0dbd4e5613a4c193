r"""Evidence that a record contributes more than claimed, in units of the noise that is really there.

A difference of two releases is :math:`d = s(\delta u + z)` with standard normal z in p dimensions, an unknown scale s,
and a contribution :math:`s\delta u`. The cosine a of d with a fixed direction does not depend on s. For :math:`u` along
that direction its density is proportional to

.. math:: e^{-\delta^2/2} \int_0^\infty w^{p-1} e^{-w^2/2 + \delta a w}\,dw

in :math:`\delta`. Likelihood ratios increase with a, so each test of :math:`\delta = \delta_0` also holds for smaller
:math:`\delta`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.statistics.noise_scale import mean_log_evidence
from reconrisk.statistics.search import check_level

Array = NDArray[np.float64]

SMALLEST_SIZE = 8
"""Smallest number of values for which the integral is computed exactly."""

_WIDTHS = 9.5  # standard deviations on either side of the mode; beyond, the log-concave integrand is below e^-45
_NODES = 77  # four per standard deviation: trapezoids of a smooth bell are then exact in double precision
_SHIFTS = np.geomspace(0.01, 1e4, 100)  # on which the evidence bets; limits outside are reported as 0 and inf
_BISECTIONS = 17  # the logarithm of the range, 14, is divided by 2^17: four digits


def _log_integral(slopes: Array, size: int) -> Array:
    r"""Return the logarithm of the integral of :math:`w^{p-1} e^{-w^2/2 + bw}` for every slope b."""
    power = size - 1
    # the mode in a form without cancellation for negative slopes
    root = np.sqrt(slopes**2 + 4 * power)
    mode = np.where(slopes >= 0, (slopes + root) / 2, 2 * power / (root - slopes))
    width = 1 / np.sqrt(1 + power / mode**2)  # from the curvature at the mode
    low, high = np.maximum(mode - _WIDTHS * width, 0.0), mode + _WIDTHS * width
    steps = (high - low) / (_NODES - 1)
    places = low[..., None] + steps[..., None] * np.arange(_NODES)
    with np.errstate(divide="ignore"):
        logs = power * np.log(places) - places**2 / 2 + slopes[..., None] * places
    ends = np.zeros(_NODES)
    ends[[0, -1]] = -math.log(2)  # trapezoids
    return np.asarray(logsumexp(logs + ends, axis=-1) + np.log(steps))


class ShiftLikelihood:
    r"""Likelihood of the shift :math:`\delta`, from the cosines of differences.

    Args:
        size: Number of values of a difference (p), at least 8.

    Raises:
        InvalidInput: If ``size`` is smaller.

    Assumes: Gaussian noise of equal, possibly unknown, scale on all values.

    >>> found = ShiftLikelihood(100)
    >>> for cosine in (0.5, 0.6, 0.4):
    ...     found.add(cosine)
    >>> found.evidence_above(1.0) > 10 > 0 > found.evidence_above(8.0)
    True
    """

    def __init__(self, size: int) -> None:
        self.size = check_whole("size", size, minimum=SMALLEST_SIZE)
        self.cosines: list[float] = []
        self._logs = np.zeros(len(_SHIFTS))

    def add(self, cosine: float) -> None:
        """Add a difference.

        Args:
            cosine: Its cosine with a direction that was fixed before the difference was drawn.

        Raises:
            InvalidInput: If it is outside [-1, 1].
        """
        if not abs(cosine) <= 1:  # also refuses NaN
            raise invalid_input("cosine", cosine, "in [-1, 1]", "Divide the product by both norms.")
        self.cosines.append(float(cosine))
        self._logs = self._logs + self._log_likelihood(_SHIFTS, np.array([cosine]))

    def evidence_above(self, shift: float) -> float:
        """Logarithm of the evidence against "the shift is at most this many standard deviations of the noise".

        Args:
            shift: The claimed limit of the shift.

        Returns:
            The logarithm of an e-process for every smaller shift and every scale of the noise; 0 without differences.

        Raises:
            InvalidInput: If ``shift`` is not positive.
        """
        base = check_positive("shift", shift)
        larger = self._logs[base < _SHIFTS]
        return mean_log_evidence(larger - self._log_at(base)) if len(larger) else 0.0

    def excludes(self, shift: float, *, alpha: float) -> bool:
        """Return True if the shift is below a number.

        Args:
            shift: The number.
            alpha: Probability that the answer is wrong, at any stopping time.

        Returns:
            True if ``shift`` is above the upper limit.
        """
        return self._evidence(check_positive("shift", shift), sign=-1) >= -math.log(check_level(alpha))

    def limits(self, *, alpha: float = 0.025) -> tuple[float, float]:
        """Return anytime-valid limits of the shift, each one-sided at level ``alpha``.

        Args:
            alpha: Probability that one end is wrong, at any stopping time.

        Returns:
            Lower limit (at least 0) and upper limit of the shift along the direction; 0 and inf without differences.

        Raises:
            InvalidInput: If ``alpha`` is not in (0, 1).
        """
        bar = -math.log(check_level(alpha))
        # The log likelihood is concave in the shift. Below its mode the evidence falls, above it rises.
        mode = float(_SHIFTS[self._logs.argmax()])
        ends = []
        for sign, outer, unbounded in ((1, _SHIFTS[0], 0.0), (-1, _SHIFTS[-1], math.inf)):
            excluded, kept = math.log(outer), math.log(mode)
            if self._evidence(float(outer), sign=sign) < bar:
                ends.append(unbounded)
                continue
            for _ in range(_BISECTIONS):
                middle = (excluded + kept) / 2
                inside = self._evidence(math.exp(middle), sign=sign) < bar
                excluded, kept = (excluded, middle) if inside else (middle, kept)
            ends.append(math.exp(excluded))
        return ends[0], ends[1]

    def _evidence(self, shift: float, *, sign: int) -> float:
        """Evidence for a shift above (sign 1) or below (sign -1) a number, monotone in it as long as it is positive."""
        gains = np.where(sign * (_SHIFTS - shift) > 0, self._logs - self._log_at(shift), 0.0)
        return mean_log_evidence(gains)

    def _log_at(self, shift: float) -> float:
        return float(self._log_likelihood(np.array([shift]), np.array(self.cosines)).sum())

    def _log_likelihood(self, shifts: Array, cosines: Array) -> Array:
        logs = _log_integral(shifts[:, None] * cosines, self.size) - shifts[:, None] ** 2 / 2
        return np.asarray(logs.sum(1))
