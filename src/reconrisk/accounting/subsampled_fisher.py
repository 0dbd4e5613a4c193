"""Factors by which Poisson subsampling lowers the Fisher information of a Gaussian step about a record."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from reconrisk.core.validation import check_positive, check_probability, invalid_input

Floats = NDArray[np.float64]

_REACH = 12.0  # end of the integration interval in standard deviations
_TRUNCATED = 1e-27  # bound on the integrals beyond it
_ANGLE = 0.75 * math.pi  # half-width of the strip times the shift: 3/4 of the distance to the poles
_LARGEST_SHIFT = 60.0  # participation is certain beyond it, at every rate that a float can express
_CERTAIN = 40.0  # log odds from which on a probability rounds to 1
_EXPONENT = 40.0  # the error of the trapezoidal rule is about e^-40
_CHUNK = 1 << 20  # values evaluated at a time: 8 MB
_EPS = float(np.finfo(float).eps)
_SMOOTH_CLIPPING = 1.115  # overhead of smooth clipping in guo2022


class SubsampledInformation(NamedTuple):
    """Factors on the Fisher information of a record that is in the batch of a step; each lies in [0, 1].

    Attributes:
        across: Factor in the directions orthogonal to the gradient of the record.
        along: Factor in the direction of the gradient.
    """

    across: Floats
    along: Floats


def subsampled_information(shift: ArrayLike, sampling_probability: float) -> SubsampledInformation:
    r"""Upper bounds on the factors by which secret Poisson sampling lowers the information of a Gaussian step.

    .. math:: I = \frac q{s^2}\bigl[h_\perp J^TJ + (h_\parallel - h_\perp) J^Tuu^TJ\bigr], \qquad
              h_\perp = E\,w(z),\; h_\parallel = E\,z^2w(z),\; w(z) = \frac q{q + (1-q)e^{-cz-c^2/2}},\; z\sim N(0,1)

    Here g is the clipped gradient of the record, J the Jacobian of g by the record, and s the standard deviation of the
    noise. The release y is g plus noise with probability q, and noise alone otherwise. Its score is w J^T(y-g)/s^2,
    where w is the posterior probability that the batch contains the record. The density of y times w is q N(g, s^2).

    Args:
        shift: Norm of the clipped gradient divided by the standard deviation of the noise, ``c = |g|/s``; a number or
            an array.
        sampling_probability: Probability q with which a record enters a batch.

    Returns:
        The factors ``across`` (:math:`h_\perp`) and ``along`` (:math:`h_\parallel`, in the direction ``u = g/|g|``),
        each of the shape of ``shift``.

    Raises:
        InvalidInput: If a shift is negative or NaN, or the sampling probability is not in [0, 1].

    Assumes: Poisson sampling; the rest of the batch is known. Not knowing it lowers the information further.
    Guarantee: not below the exact factors, and above them by a relative 1e-12 at most for q above 1e-15. The
    factors are computed by the trapezoidal rule for functions that are analytic near the real axis; its error, the
    truncated tails and the rounding of every term are added. The factors are at most 1, equal to q at shift 0, and tend
    to 1 for large shifts. ``across`` never decreases as the shift grows, up to these margins, by data processing.
    ``along`` decreases at first for q > 2/3, because it is about q + q(1-q)(2-3q)c^2 for small c. The largest shift is
    therefore not always the worst case, and each record needs its own factor.
    Edge cases: q = 1 gives 1, q = 0 gives 0 (nothing is released), an infinite shift gives 1.
    Reference: replaces the factor of Theorem 4, guo2022. Error of the rule: Theorem 5.1,
    `Trefethen and Weideman (2014) <https://doi.org/10.1137/130932132>`_.

    >>> across, along = subsampled_information([0.0, 1.0], 0.1)
    >>> across.round(4), along.round(4)
    (array([0.1   , 0.1935]), array([0.1   , 0.2589]))
    """
    rate = check_probability("sampling_probability", sampling_probability)
    shifts = np.asarray(shift, dtype=float)
    if np.isnan(shifts).any() or (shifts < 0).any():
        raise invalid_input("shift", float(shifts[~(shifts >= 0)][0]), ">= 0", "Pass norms divided by noise_std.")
    flat = shifts.ravel()
    across, along = np.full(flat.shape, rate), np.full(flat.shape, rate)
    if 0 < rate < 1:
        bounded = np.minimum(flat, 1e3)
        # Log odds of participation at z = -9, beyond which the normal law holds 1e-19.
        certain = bounded * (bounded / 2 - 9) + math.log(rate) - math.log1p(-rate) > _CERTAIN
        across[certain] = along[certain] = 1.0
        lower = 0.0
        # One lattice for each band of shifts, because the spacing shrinks as the shift grows.
        for upper in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, _LARGEST_SHIFT):
            band = np.flatnonzero((flat > lower) & (flat <= upper) & ~certain)
            _integrate(flat, rate, band, upper, across, along)
            lower = upper
    return SubsampledInformation(across.reshape(shifts.shape), along.reshape(shifts.shape))


def guo2022_factor(*, noise_multiplier: float, sampling_probability: float, delta: float) -> float:
    r"""Return the subsampling factor of guo2022: **not a bound**, provided for comparison with the paper.

    .. math:: \kappa = \frac q{q + (1-q)e^{-\epsilon}}, \qquad
              \epsilon = 1.115 \cdot \frac{2\sqrt{2\log(1.25/\delta)}}\sigma

    Its proof needs a pure epsilon, which the Gaussian mechanism does not have: on an event of probability delta the
    likelihood ratio is larger, and that event still contributes to the information. The factor is below the exact one
    for large delta and little noise, and close to 1, hence vacuous, in the settings of the paper. Use
    :func:`subsampled_information` instead.

    Args:
        noise_multiplier: Standard deviation :math:`\sigma` of the noise in units of the clip norm.
        sampling_probability: Probability q with which a record enters a batch.
        delta: Probability :math:`\delta` in (0, 1); guo2022 takes 1/(steps * records).

    Returns:
        The factor :math:`\kappa`; 1.115 is the overhead of smooth clipping in the paper.

    Raises:
        InvalidInput: If an argument is outside its domain.

    Reference: Theorem 4 and Algorithm 1, line 4, guo2022.

    >>> round(guo2022_factor(noise_multiplier=1.0, sampling_probability=0.1, delta=1e-5), 4)
    0.9998
    """
    check_positive("noise_multiplier", noise_multiplier, "Without noise there is no guarantee to compute.")
    rate = check_probability("sampling_probability", sampling_probability)
    if not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)", "Pass 1/(steps * records), as guo2022 does.")
    epsilon = _SMOOTH_CLIPPING * 2 * math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier
    return 0.0 if rate == 0 else rate / (rate + (1 - rate) * math.exp(-epsilon))


def _integrate(
    shifts: Floats, rate: float, band: NDArray[np.intp], largest: float, across: Floats, along: Floats
) -> None:
    """Write the factors of the shifts ``shifts[band]`` into ``across`` and ``along``, in chunks of bounded memory.

    No shift in ``band`` is above ``largest``, which determines the spacing of the nodes.
    """
    # The integrand is analytic and bounded in the strip |Im z| <= width, which determines the spacing. The poles of w
    # have imaginary part pi/c. Up to 3/4 of that, |1 + t e^(i angle)| >= sin(angle) max(1, t) holds.
    width = min(_ANGLE / largest, math.sqrt(2 * _EXPONENT))
    spacing = 2 * math.pi * width / (_EXPONENT + width * width / 2)
    count = math.ceil(_REACH / spacing)
    nodes = spacing * np.arange(-count, count + 1)
    weights = spacing / math.sqrt(2 * math.pi) * np.exp(-(nodes**2) / 2)
    moments = np.stack([weights, nodes**2 * weights], axis=1)
    logit = math.log(rate) - math.log1p(-rate)  # w(z) = expit(c z + c^2/2 + logit q)
    size = max(1, _CHUNK // len(nodes))
    for start in range(0, len(band), size):
        part = band[start : start + size]
        c = shifts[part]
        sums = expit(c[:, None] * nodes + (c * c / 2 + logit)[:, None]) @ moments
        upper = _add_error_bounds(sums, c, rate, width, spacing)
        across[part], along[part] = upper[:, 0], upper[:, 1]


def _add_error_bounds(sums: Floats, c: Floats, rate: float, width: float, spacing: float) -> Floats:
    """Return upper bounds: the sums plus the errors of discretisation, truncation and rounding, at most 1.

    The error of the trapezoidal rule follows from the size of the integrand w(z) times the Gaussian density, for
    complex z = x + iy with |y| <= width. There |w| <= sqrt(2) min(1, e^(cx+c^2/2) q/(1-q)), where w is the function in
    :func:`subsampled_information`, c the shift and q = ``rate``. The density grows by a factor of e^(width^2/2) at
    most.
    """
    growth = math.sqrt(2) * math.exp(width * width / 2) * 2 / math.expm1(2 * math.pi * width / spacing)
    tilted = rate / (1 - rate) * np.exp(np.minimum(c * c, 700.0))  # exp overflows at 709; the minimum with 1 follows
    size = np.stack([np.minimum(1.0, tilted), np.minimum(1 + width**2, tilted * (1 + c * c + width**2))], axis=1)
    # One eps per term of the sum, 64 for weights and expit, and the error of the exponent, which grows with its size.
    rounding = (2 * _REACH / spacing + 64 + 4 * (c * _REACH + c * c / 2 - math.log(rate))) * _EPS
    return np.minimum(sums * (1 + rounding)[:, None] + growth * size + _TRUNCATED, 1.0)
