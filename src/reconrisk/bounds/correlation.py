"""Normalised cross-correlation of analytic inversion: a population value with the spread of single draws."""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import ndtr

from reconrisk.bounds.cone import log_cone_probability
from reconrisk.bounds.hits import one_phase
from reconrisk.core.guarantee import Estimate
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.validation import check_positive, check_real, check_whole, refuse

_METHOD = "population correlation of riess2025's attack; interval of single draws, not a bound"


def analytic_inversion_ncc(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    variance: float | None = None,
    observations: int = 1,
    confidence: float = 0.95,
) -> Estimate:
    r"""Normalised cross-correlation between record and reconstruction by riess2025's attack: where draws concentrate.

    .. math:: \mathrm{NCC} = \sqrt{\frac1{1 + v/\mathrm{Var}\,x}} \le \sqrt{\frac1{1 + \sigma^2 d}}, \quad
              v = \sigma^2 \|x\|^2 / k

    Assumes: as :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`. ``variance`` is that of the entries
    of the record; by default the largest that its norm allows, |x|^2/d.
    Guarantee: none. The interval holds the NCC of a single draw with probability ``confidence``, exactly; draws exceed
    the population value often, see :func:`ncc_exceedance`.
    Edge cases: in two dimensions every single correlation is 1 or -1.
    Reference: Proposition A.2 and equation 23, riess2025.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> ncc = analytic_inversion_ncc(Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0)
    >>> round(ncc.value, 4), ncc.low < 0.3, ncc.high > 0.99
    (0.7071, True, True)
    """
    level = check_real("confidence", confidence)
    if not 0 < level < 1:
        raise refuse("confidence", level, "in (0, 1)")
    signal = _signal(mechanism, dimension, norm, variance, observations)
    value = signal / math.hypot(signal, math.sqrt(dimension))
    low, high = (_quantile(1 - tail, signal, dimension) for tail in ((1 - level) / 2, (1 + level) / 2))
    return Estimate(min(value, 1.0), min(low, value), max(high, value), level, 0, _METHOD)


def ncc_exceedance(
    level: float,
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    variance: float | None = None,
    observations: int = 1,
) -> float:
    """Probability that the correlation of a single draw of riess2025's attack reaches ``level``: exact.

    After centring, record and noise live in d - 1 dimensions, and the correlation is the cosine of an angle.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> round(ncc_exceedance(0.5**0.5, Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0), 2)
    0.74
    """
    if not -1 <= check_real("level", level) <= 1:
        raise refuse("level", level, "in [-1, 1]")
    return _exceedance(level, _signal(mechanism, dimension, norm, variance, observations), dimension)


def _signal(mechanism: Mechanism, dimension: int, norm: float, variance: float | None, observations: int) -> float:
    """Length of the centred record in units of the noise of the estimate."""
    noise_multiplier, _ = one_phase(mechanism)
    size = check_whole("dimension", dimension, minimum=2, remedy="One entry has no correlation.")
    check_positive("norm", norm)
    largest = check_positive("norm^2 / dimension", norm * norm / size)
    spread = largest if variance is None else check_positive("variance", variance)
    if spread > largest * (1 + 1e-9):
        raise refuse("variance", spread, f"<= {largest:.6g} = norm^2 / dimension", "Pass the variance of the entries.")
    signal = math.sqrt(check_whole("observations", observations)) * (math.sqrt(spread) / norm) / noise_multiplier
    return math.sqrt(size) * signal


def _exceedance(level: float, signal: float, dimension: int) -> float:
    if level < 0:
        return 1 - _exceedance(-level, -signal, dimension)
    if level == 0:
        return float(ndtr(signal))
    tangent = math.sqrt((1 - level) * (1 + level)) / level
    return math.exp(float(log_cone_probability(tangent, dimension=dimension - 1, signals=[signal])[0]))


def _quantile(exceedance: float, signal: float, dimension: int) -> float:
    """The level that a draw reaches with this probability."""
    if dimension == 2:  # the correlation of two points is its sign
        return 1.0 if _exceedance(0.0, signal, dimension) >= exceedance else -1.0
    edge = 1 - 1e-12
    if _exceedance(edge, signal, dimension) >= exceedance:
        return 1.0
    return float(brentq(lambda level: _exceedance(level, signal, dimension) - exceedance, -edge, edge, xtol=1e-9))
