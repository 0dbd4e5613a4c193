"""How much less a Poisson-subsampled Gaussian step tells about a record: factors on its Fisher information."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit

from reconrisk.core.validation import check_positive, check_probability, invalid_input

Floats = NDArray[np.float64]

_REACH = 12.0  # beyond it the integrands hold less than 1e-27
_TRUNCATED = 1e-27
_ANGLE = 0.75 * math.pi
_LARGEST_SHIFT = 60.0
_CERTAIN = 40.0  # log odds at which the last bit of a probability is certain
_EXPONENT = 40.0
_CHUNK = 1 << 20
_EPS = float(np.finfo(float).eps)
_SMOOTH_CLIPPING = 1.115


class SubsampledInformation(NamedTuple):
    """Factors on the information of an included record: across its gradient's direction, and along it."""

    across: Floats
    along: Floats


def subsampled_information(shift: ArrayLike, sampling_probability: float) -> SubsampledInformation:
    r"""Upper ends of the factors by which not knowing who was sampled lowers the information of a Gaussian step.

    .. math:: I = \frac q{s^2}\bigl[h_\perp J^TJ + (h_\parallel - h_\perp) J^Tuu^TJ\bigr], \qquad
              h_\perp = E\,w(z),\; h_\parallel = E\,z^2w(z),\; w(z) = \frac q{q + (1-q)e^{-cz-c^2/2}},\; z\sim N(0,1)

    The release is g + noise of standard deviation s with probability q and the noise alone otherwise: its score is
    w J^T(y-g)/s^2 with w the posterior probability that the record took part, and the density times w is q N(g, s^2).

    Assumes: Poisson sampling; the rest of the batch is known. Not knowing it lowers the information further.
    Notation: ``shift`` is ``c = |g|/s`` for the clipped gradient g, ``u = g/|g|``; ``across`` is h_perp and ``along``
    h_par.
    Guarantee: not below the exact factors and above them by a relative 1e-12 at most for rates above 1e-15: the
    trapezoidal rule for functions analytic in a strip, with its error, the cut tails and the rounding of every term
    added. At most 1; q at shift 0, tending to 1 for large shifts. ``across`` never falls as the shift grows, up to
    those margins, by data processing. ``along`` does fall at first where q > 2/3, since it begins as
    q + q(1-q)(2-3q)c^2: the largest shift is not always the worst case, and each record needs its own.
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
        raise invalid_input("shift", float(shifts[~(shifts >= 0)][0]), ">= 0", "Pass norms over noise_std.")
    flat = shifts.ravel()
    across, along = np.full(flat.shape, rate), np.full(flat.shape, rate)
    if 0 < rate < 1:
        bounded = np.minimum(flat, 1e3)
        certain = bounded * (bounded / 2 - 9) + math.log(rate) - math.log1p(-rate) > _CERTAIN
        across[certain] = along[certain] = 1.0
        lower = 0.0
        for upper in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, _LARGEST_SHIFT):
            band = np.flatnonzero((flat > lower) & (flat <= upper) & ~certain)
            _integrate(flat, rate, band, upper, across, along)
            lower = upper
    return SubsampledInformation(across.reshape(shifts.shape), along.reshape(shifts.shape))


def guo2022_factor(*, noise_multiplier: float, sampling_probability: float, delta: float) -> float:
    r"""The factor that guo2022 prints for subsampling: **not a bound**, kept for comparison with the paper.

    .. math:: \kappa = \frac q{q + (1-q)e^{-\epsilon}}, \qquad
              \epsilon = 1.115 \cdot \frac{2\sqrt{2\log(1.25/\delta)}}\sigma

    Its proof needs a pure epsilon, which the Gaussian mechanism does not have: on an event of probability delta the
    likelihood ratio is larger, and that event still contributes to the information. It falls below the exact factor
    for large delta and little noise, and is close to 1, saying nothing, in the paper's own settings.

    Notation: ``noise_multiplier`` is sigma, ``sampling_probability`` q; 1.115 is the paper's overhead of smooth
    clipping.
    Reference: Theorem 4 and Algorithm 1, line 4, guo2022. Use :func:`subsampled_information` instead.

    >>> round(guo2022_factor(noise_multiplier=1.0, sampling_probability=0.1, delta=1e-5), 4)
    0.9998
    """
    check_positive("noise_multiplier", noise_multiplier, "Without noise there is no guarantee to compute.")
    rate = check_probability("sampling_probability", sampling_probability)
    if not 0 < check_probability("delta", delta) < 1:
        raise invalid_input("delta", delta, "in (0, 1)", "guo2022 takes 1/(steps * records).")
    epsilon = _SMOOTH_CLIPPING * 2 * math.sqrt(2 * math.log(1.25 / delta)) / noise_multiplier
    return 0.0 if rate == 0 else rate / (rate + (1 - rate) * math.exp(-epsilon))


def _integrate(
    shifts: Floats, rate: float, band: NDArray[np.intp], largest: float, across: Floats, along: Floats
) -> None:
    """Fill both factors for the shifts in ``band``, none above ``largest``, at most a chunk of nodes at a time."""
    # Half-width of the strip in which the integrand is analytic and tame, and the spacing that makes use of it: the
    # poles of w lie at imaginary part pi/c; up to 3/4 of that, |1 + t e^(i angle)| >= sin(angle) max(1, t) holds.
    width = min(_ANGLE / largest, math.sqrt(2 * _EXPONENT))
    spacing = 2 * math.pi * width / (_EXPONENT + width * width / 2)
    count = math.ceil(_REACH / spacing)
    nodes = spacing * np.arange(-count, count + 1)
    weights = spacing / math.sqrt(2 * math.pi) * np.exp(-(nodes**2) / 2)
    moments = np.stack([weights, nodes**2 * weights], axis=1)
    logit = math.log(rate) - math.log1p(-rate)
    size = max(1, _CHUNK // len(nodes))
    for start in range(0, len(band), size):
        part = band[start : start + size]
        c = shifts[part]
        sums = expit(c[:, None] * nodes + (c * c / 2 + logit)[:, None]) @ moments
        upper = _raised(sums, c, rate, width, spacing)
        across[part], along[part] = upper[:, 0], upper[:, 1]


def _raised(sums: Floats, c: Floats, rate: float, width: float, spacing: float) -> Floats:
    """The sums with everything added that they may lack, and never above 1.

    |w| <= sqrt(2) min(1, e^(cx+c^2/2) q/(1-q)) in the strip, and the Gaussian grows by e^(width^2/2) at most.
    """
    growth = math.sqrt(2) * math.exp(width * width / 2) * 2 / math.expm1(2 * math.pi * width / spacing)
    tilted = rate / (1 - rate) * np.exp(np.minimum(c * c, 700.0))
    size = np.stack([np.minimum(1.0, tilted), np.minimum(1 + width**2, tilted * (1 + c * c + width**2))], axis=1)
    rounding = (2 * _REACH / spacing + 64 + 4 * (c * _REACH + c * c / 2 - math.log(rate))) * _EPS
    return np.minimum(sums * (1 + rounding)[:, None] + growth * size + _TRUNCATED, 1.0)
