"""Error law of analytic gradient inversion under Gaussian noise (riess2025): one attack, not a bound on others.

:func:`analytic_inversion_law` and :func:`training_run_law` give the distribution of the squared error.
:func:`analytic_inversion_ncc` gives the normalised cross-correlation: a population value and the spread of single
draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import digamma, logsumexp, ndtr

from reconrisk.bounds.numerics.chi_square import log_gamma_density, log_gammainc, log_gammainc_inverse
from reconrisk.bounds.numerics.cone import log_cone_probability
from reconrisk.bounds.numerics.hits import Hits, argmax_of_concave, level_set_of_concave, one_phase
from reconrisk.core.guarantee import Estimate, Law, mse_threshold, psnr_from_mse
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import (
    check_finite,
    check_positive,
    check_probability,
    check_real,
    check_whole,
    invalid_input,
)

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
    r"""Normalised cross-correlation between the record and its reconstruction by riess2025's attack.

    .. math:: \mathrm{NCC} = \sqrt{\frac1{1 + v/\mathrm{Var}\,x}} \le \sqrt{\frac1{1 + \sigma^2 d}}, \quad
              v = \sigma^2 \|x\|^2 / k

    Here x is the record, Var x the variance of its entries, and v the variance of the error in each value.

    Args:
        mechanism: Mechanism with one phase, described by its noise (:math:`\sigma`).
        dimension: Number of values in a record (d), at least 2.
        norm: Euclidean norm of the record.
        variance: Variance of the entries of the record. The default is the largest that the norm allows,
            :math:`|x|^2/d`.
        observations: Number of matched releases that the attack averages (k).
        confidence: Probability with which the interval contains the NCC of a single draw.

    Returns:
        The population value, with the interval of single draws.

    Raises:
        InvalidInput: If ``confidence`` is not in (0, 1), if ``variance`` exceeds what the norm allows, or if another
            argument is out of range.

    Assumes: as :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`.
    Guarantee: none for other attacks. The interval contains the NCC of a single draw with probability exactly
    ``confidence``. Single draws often exceed the population value, see :func:`ncc_exceedance`.
    Edge cases: in two dimensions every single correlation is 1 or -1.
    Reference: Proposition A.2 and equation 23, riess2025.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> ncc = analytic_inversion_ncc(Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0)
    >>> round(ncc.value, 4), ncc.low < 0.3, ncc.high > 0.99
    (0.7071, True, True)
    """
    level = check_real("confidence", confidence)
    if not 0 < level < 1:
        raise invalid_input("confidence", level, "in (0, 1)", "Pass 0.95, for example.")
    signal = _signal_to_noise(mechanism, dimension, norm, variance, observations)
    value = signal / math.hypot(signal, math.sqrt(dimension))  # 1 / sqrt(1 + d / signal^2) without overflow
    # The interval holds level of the mass, with equal tails on both sides.
    low, high = (_ncc_quantile(1 - tail, signal, dimension) for tail in ((1 - level) / 2, (1 + level) / 2))
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
    """Exact probability that the correlation of a single draw of riess2025's attack reaches ``level``.

    After centring, record and noise live in d - 1 dimensions, and the correlation is the cosine of an angle.

    Args:
        level: Correlation to reach, in [-1, 1].
        mechanism: Mechanism with one phase, described by its noise.
        dimension: Number of values in a record, at least 2.
        norm: Euclidean norm of the record.
        variance: Variance of the entries of the record; by default the largest that the norm allows.
        observations: Number of matched releases that the attack averages.

    Returns:
        The probability.

    Raises:
        InvalidInput: If ``level`` is not in [-1, 1], or as :func:`analytic_inversion_ncc`.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> round(ncc_exceedance(0.5**0.5, Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0), 2)
    0.74
    """
    if not -1 <= check_real("level", level) <= 1:
        raise invalid_input("level", level, "in [-1, 1]")
    return _ncc_exceedance(level, _signal_to_noise(mechanism, dimension, norm, variance, observations), dimension)


def _signal_to_noise(
    mechanism: Mechanism, dimension: int, norm: float, variance: float | None, observations: int
) -> float:
    """Norm of the record minus its mean, divided by the standard deviation of the noise of the estimate."""
    noise_multiplier, _ = one_phase(mechanism)
    size = check_whole("dimension", dimension, minimum=2, remedy="One entry has no correlation.")
    check_positive("norm", norm)
    largest = check_positive("norm^2 / dimension", norm * norm / size)
    spread = largest if variance is None else check_positive("variance", variance)
    if spread > largest * (1 + 1e-9):  # tolerance for a variance that was computed from the same record
        raise invalid_input(
            "variance", spread, f"<= {largest:.6g}, which is norm^2 / dimension", "Pass the variance of the entries."
        )
    signal = math.sqrt(check_whole("observations", observations)) * (math.sqrt(spread) / norm) / noise_multiplier
    return math.sqrt(size) * signal


def _ncc_exceedance(level: float, signal: float, dimension: int) -> float:
    """Probability that the correlation reaches ``level``, given the signal-to-noise ratio."""
    if level < 0:  # reflect, because the cone probability needs an angle below 90 degrees
        return 1 - _ncc_exceedance(-level, -signal, dimension)
    if level == 0:
        return float(ndtr(signal))
    tangent = math.sqrt((1 - level) * (1 + level)) / level
    return math.exp(float(log_cone_probability(tangent, dimension=dimension - 1, signals=[signal])[0]))


def _ncc_quantile(exceedance: float, signal: float, dimension: int) -> float:
    """Correlation that a single draw reaches with probability ``exceedance``."""
    if dimension == 2:  # two centred values are opposite, so their correlation is 1 or -1
        return 1.0 if _ncc_exceedance(0.0, signal, dimension) >= exceedance else -1.0
    edge = 1 - 1e-12  # the tangent of the angle vanishes at 1
    if _ncc_exceedance(edge, signal, dimension) >= exceedance:
        return 1.0
    return float(brentq(lambda level: _ncc_exceedance(level, signal, dimension) - exceedance, -edge, edge, xtol=1e-9))


Floats = NDArray[np.float64]

ATTACK = "riess2025's optimal analytic gradient inversion"
_LARGEST = float(np.finfo(float).max)
_NEGLIGIBLE = 45.0  # exp(-45) is about 3e-20, below the rounding of a float
_NORM_REMEDY = "Pass the norm of the record, or the smallest nonzero norm in the data."


@serializable("chi-square-law")
@dataclass(frozen=True, repr=False)
class ChiSquareLaw(Law):
    """Error law of an unbiased estimate with independent Gaussian errors of equal variance in each coordinate.

    The mean squared error is ``variance / dimension`` times a chi-square variable with ``dimension`` degrees of
    freedom.

    Attributes:
        attack: Name of the attack.
        reference: Statement that derives the law.
        dimension: Number of values in a record.
        variance: Variance of the error in each coordinate.
    """

    attack: str
    reference: Reference
    dimension: int
    variance: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", check_whole("dimension", self.dimension))
        check_positive("variance", self.variance)

    @property
    def _shape(self) -> float:
        return self.dimension / 2

    def _gamma_argument(self, errors: Floats) -> Floats:
        """Argument of the incomplete gamma function: half the chi-square variable at each error."""
        with np.errstate(over="ignore"):  # inf is right: such an error is never exceeded
            return np.asarray(self._shape * (errors / self.variance))

    def log_cdf(self, mse: ArrayLike) -> Floats:
        """Return the log probability that the error is at most ``mse``."""
        return log_gammainc(self._shape, self._gamma_argument(_check_errors(mse)))

    def log_pdf(self, mse: ArrayLike) -> Floats:
        """Return the log density of the error at ``mse``."""
        errors = _check_errors(mse)
        scaled = self._gamma_argument(errors)
        # log_gamma_density is the density in log x; the change of variables to the error adds -log(error).
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = math.log(self._shape) + log_gamma_density(self._shape, scaled) - np.log(errors)
        # At 0 a chi-square density is infinite in one dimension, finite in two, and zero in more.
        at_zero = {1: math.inf, 2: -math.log(self.variance)}.get(self.dimension, -math.inf)
        return np.asarray(np.where(errors == 0, at_zero, np.where(np.isinf(scaled), -math.inf, inside)))

    def pdf(self, mse: ArrayLike) -> Floats:
        """Return the density of the error at ``mse``."""
        return np.asarray(np.exp(self.log_pdf(mse)))

    def quantile_from_log(self, log_probability: float) -> float:
        """Return the error that is not exceeded with probability ``exp(log_probability)``; 0 if it underflows."""
        _check_log_probability(log_probability)
        return self.variance / self._shape * log_gammainc_inverse(self._shape, log_probability)

    @property
    def expected_mse(self) -> float:
        """Mean of the error, which is the variance of one coordinate."""
        return self.variance

    def expected_psnr(self, *, data_range: float = 1.0) -> float:
        r"""Return the mean peak signal-to-noise ratio in dB.

        .. math:: 10 \log_{10}(R^2 d / v) - \tfrac{10}{\ln 10} (\psi(d/2) + \ln 2)

        It exceeds the ratio at the mean error, because the negative logarithm is convex.
        """
        at_mean = psnr_from_mse(self.variance, data_range=data_range)
        return at_mean + 10 / math.log(10) * (math.log(self._shape) - float(digamma(self._shape)))


@serializable("run-law")
@dataclass(frozen=True, repr=False)
class RunLaw(Law):
    """Error law of the average over all releases of a training run that contain the record.

    A release that contains the record is called a hit. A run without a hit is a failure. The average over k hits has
    the variance ``variance / k``.

    Attributes:
        attack: Name of the attack.
        reference: Statement that derives the law.
        dimension: Number of values in a record.
        variance: Variance of one observation in each coordinate.
        hits: Distribution of the number of releases that contain the record.
    """

    attack: str
    reference: Reference
    dimension: int
    variance: float
    hits: Hits

    def __post_init__(self) -> None:
        object.__setattr__(self, "dimension", check_whole("dimension", self.dimension))
        check_positive("variance", self.variance)

    def log_cdf(self, mse: ArrayLike) -> Floats:
        """Return the log probability that the record is hit and the error is at most ``mse``."""
        errors = _check_errors(mse)
        return np.asarray([self._log_mixture(float(error), pdf=False) for error in errors.ravel()]).reshape(
            errors.shape
        )

    def pdf(self, mse: ArrayLike) -> Floats:
        """Return the density of the error at ``mse``; it integrates to the probability of at least one hit."""
        errors = _check_errors(mse)
        logs = [self._log_mixture(float(error), pdf=True) for error in errors.ravel()]
        return np.asarray(np.exp(logs)).reshape(errors.shape)

    def quantile_from_log(self, log_probability: float) -> float:
        """Return the error that is not exceeded with this probability; inf if a hit is less likely than that."""
        _check_log_probability(log_probability)
        if log_probability == -math.inf:
            return 0.0
        if log_probability >= float(self.hits.log_at_least(1)):
            return math.inf
        # If every attempt were a hit the error would be smallest, which brackets the quantile from below.
        low, high = self._law_after(self.hits.attempts).quantile_from_log(log_probability), self.variance
        while float(self.log_cdf(high)) < log_probability:
            high *= 2
        while low > 0 and high - low > 1e-14 * high:
            # Bisect in logarithms while the bracket spans orders of magnitude, then linearly.
            middle = math.sqrt(low * high) if high > 2 * low else (low + high) / 2
            if not low < middle < high:  # neighbouring floats
                break
            low, high = (middle, high) if float(self.log_cdf(middle)) < log_probability else (low, middle)
        return high

    @property
    def expected_mse(self) -> float:
        """Mean of the error; infinite if a run may miss the record."""
        # A run without a hit has no estimate, so its error counts as infinite.
        return self.variance / self.hits.attempts if self.hits.probability == 1 else math.inf

    def _law_after(self, hits: int) -> ChiSquareLaw:
        """Law of the average over exactly this number of hits."""
        return ChiSquareLaw(self.attack, self.reference, self.dimension, self.variance / hits)

    def _log_mixture(self, error: float, *, pdf: bool) -> float:
        """Sum over the relevant numbers of hits, in log space; zero hits contribute nothing.

        The log of the binomial weight and the log of the law given the hits are concave in the count. The terms
        therefore fall on both sides of the largest one, and the omitted terms are below exp(-45) of it.
        """
        one = self._law_after(1)

        def log_terms(counts: NDArray[np.int64]) -> Floats:
            # The error after k hits is distributed as that of one observation divided by k; capped against overflow.
            scaled = np.minimum(counts * min(error, _LARGEST / counts[-1]), _LARGEST)
            log_law = one.log_pdf(scaled) + np.log(counts) if pdf else one.log_cdf(scaled)
            return self.hits.log_pmf(counts) + log_law

        attempts = self.hits.attempts
        peak = argmax_of_concave(log_terms, 1, attempts)
        largest = float(log_terms(np.array([peak]))[0])
        if not math.isfinite(largest):
            return largest
        level = largest - _NEGLIGIBLE - math.log(attempts)  # all omitted terms together stay below exp(-45)
        low, high = level_set_of_concave(log_terms, 1, peak, attempts, level)
        return float(logsumexp(log_terms(np.arange(low, high + 1))))


def analytic_inversion_law(mechanism: Mechanism, *, dimension: int, norm: float, observations: int = 1) -> ChiSquareLaw:
    r"""Error law of the optimal analytic gradient inversion of riess2025, averaged over matched observations.

    .. math:: P(\mathrm{MSE} \le \eta) = P\bigl(\tfrac d2, \tfrac{k d \eta}{2 \sigma^2 \|x\|^2}\bigr)

    Here P is the regularised lower incomplete gamma function. The attack reads :math:`y = x/\|x\| + N(0, \sigma^2 I)`
    and returns :math:`\|x\| y`. The clip norm cancels.

    Args:
        mechanism: Mechanism with one phase, described by its noise (:math:`\sigma`).
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record, or the smallest nonzero norm in the data.
        observations: Number of matched releases that the attack averages (k).

    Returns:
        The distribution of the mean squared error.

    Raises:
        InvalidInput: If an argument is not positive, if ``observations`` exceeds the steps of the mechanism, or if the
            mechanism has several phases.

    Assumes: the gradient of every record is clipped (see :func:`neurons_needed`), the training loss has slope 1 in
    every neuron, no bias gradient is released, the attacker knows the norm, and the attacker recognises the
    ``observations`` releases that contain the record.
    Guarantee: none. It is the law of one attack. riess2025 calls it a bound on any reconstruction, but it bounds only
    translation-equivariant attacks. A constant guess or shrinkage can succeed far more often;
    :func:`reconrisk.bounds.known_norm.from_scratch_success` is the guarantee, and it can be far larger.
    Edge cases: for a mechanism with sampling or repetition it is the law after ``observations`` hits;
    :func:`training_run_law` averages over the number of hits.
    Reference: Theorem IV.5 and Proposition IV.10, riess2025.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> law = analytic_inversion_law(Gaussian(noise_multiplier=0.1), dimension=4, norm=2.0)
    >>> round(law.success(mse=0.3 * law.expected_mse), 3)
    0.122
    >>> "not a bound on other attacks" in str(law)
    True
    """
    noise_multiplier, hits = one_phase(mechanism)
    count = check_whole("observations", observations)
    if hits.attempts > 1 and count > hits.attempts:
        raise invalid_input(
            "observations",
            count,
            f"<= {hits.attempts}, the steps of the mechanism",
            "Pass fewer observations or a mechanism with more steps.",
        )
    check_positive("norm", norm, _NORM_REMEDY)
    variance = (noise_multiplier * norm) * (noise_multiplier * norm) / count  # ** would raise on overflow
    statement = "Theorem IV.5" if count == 1 else "Theorem IV.5 and Proposition IV.10"
    attack = ATTACK if count == 1 else f"{ATTACK}, averaged over {count} matched observations"
    return ChiSquareLaw(attack, Reference(statement, "riess2025"), dimension, variance)


def training_run_law(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    attempts: int | None = None,
    hit_probability: float | None = None,
) -> RunLaw:
    r"""Error law of the same attack over a training run that releases the record a random number of times.

    .. math:: P(\mathrm{MSE} \le \eta) = \sum_{k \ge 1} \binom Kk p^k (1-p)^{K-k}
              P\bigl(\tfrac d2, \tfrac{k d \eta}{2 \sigma^2 \|x\|^2}\bigr)

    Args:
        mechanism: Mechanism with one phase, described by its noise (:math:`\sigma`).
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record, or the smallest nonzero norm in the data.
        attempts: Number of releases (K); by default the steps of the mechanism.
        hit_probability: Probability that a release contains the record (p); by default the sampling probability of the
            mechanism. For riess2025's batches of one record out of n pass ``1/n``.

    Returns:
        The distribution of the mean squared error; a run without a hit is a failure.

    Raises:
        InvalidInput: If an argument is out of range, if the hit probability is 0, or if the mechanism has several
            phases.

    Assumes: as :func:`analytic_inversion_law`; the attacker recognises every release of the record.
    Guarantee: none; see :func:`analytic_inversion_law`. The weights as printed in riess2025 are C(K,k)/n^K, which sum
    to (2/n)^K instead of 1.
    Edge cases: certain hits give the law of K observations.
    Reference: Section IV-C, riess2025, corrected.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=100)
    >>> round(training_run_law(run, dimension=16, norm=1.0).success(mse=0.5), 4)
    0.1938
    """
    noise_multiplier, hits = one_phase(mechanism)
    hits = Hits(
        attempts=hits.attempts if attempts is None else attempts,
        probability=hits.probability if hit_probability is None else hit_probability,
    )
    if hits.probability == 0:
        raise invalid_input("hit_probability", 0.0, "> 0", "Pass the probability that a release contains the record.")
    check_positive("norm", norm, _NORM_REMEDY)
    variance = (noise_multiplier * norm) * (noise_multiplier * norm)
    attack = f"{ATTACK}, averaged over the hits in {hits.attempts} attempts"
    return RunLaw(attack, Reference("Section IV-C, corrected", "riess2025"), dimension, variance, hits)


def noise_multiplier_from_success(
    success_probability: float,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    observations: int = 1,
) -> float:
    r"""Noise multiplier at which riess2025's attack reaches a threshold with a stated probability.

    .. math:: \sigma^2 = \frac{k d \eta}{2 \|x\|^2 \, P^{-1}(d/2, \gamma)}

    Args:
        success_probability: Probability that the attack reaches the threshold (:math:`\gamma`), in (0, 1).
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record, or the smallest nonzero norm in the data.
        mse: Largest mean squared error that counts as success (:math:`\eta`). Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used to convert ``psnr``.
        observations: Number of matched releases that the attack averages (k).

    Returns:
        The noise multiplier (:math:`\sigma`).

    Raises:
        InvalidInput: If ``success_probability`` is 0 (needs infinite noise) or 1 (needs none), if not exactly one
            threshold is given, or if another argument is not positive.

    Assumes: as :func:`analytic_inversion_law`.
    Guarantee: none against other attacks; the noise is calibrated to riess2025's attack only.
    Reference: Corollary IV.11 solved for the noise, riess2025.

    >>> round(noise_multiplier_from_success(0.122, dimension=4, norm=2.0, mse=0.012), 3)
    0.1
    """
    check_probability("success_probability", success_probability)
    if not 0 < success_probability < 1:
        raise invalid_input(
            "success_probability", success_probability, "in (0, 1)", "Pass a number above 0 and below 1."
        )
    # An error of exactly zero has probability zero at every noise level, so no noise multiplier would solve it.
    threshold = check_positive("mse", mse_threshold(mse=mse, psnr=psnr, data_range=data_range))
    check_positive("norm", norm, _NORM_REMEDY)
    shape = check_whole("dimension", dimension) / 2
    count = check_whole("observations", observations)
    return math.sqrt(count * shape * threshold / log_gammainc_inverse(shape, math.log(success_probability))) / norm


def neurons_needed(clip_norm: float, *, norm: float) -> int:
    r"""Smallest number of neurons of riess2025's linear layer at which the gradient of every record is clipped.

    .. math:: M = \max\bigl(1, \lceil (C/\|x\|_{\min})^2 \rceil\bigr)

    The gradient of M neurons with unit weights has norm :math:`\sqrt M \|x\|`. In equation 16 as printed in riess2025
    the ratio is not squared.

    Args:
        clip_norm: Clip norm used in training (C).
        norm: Smallest Euclidean norm of any record.

    Returns:
        The number of neurons, at least 1.

    Raises:
        InvalidInput: If ``clip_norm`` or ``norm`` is not positive, or if the square of their ratio overflows.

    Reference: Theorem IV.1, riess2025, corrected.

    >>> neurons_needed(5.0, norm=1.0)
    25
    """
    check_positive("clip_norm", clip_norm, "Pass the norm used in training.")
    check_positive("norm", norm, _NORM_REMEDY)
    ratio = clip_norm / norm
    return max(1, math.ceil(check_finite("(clip_norm / norm)^2", ratio * ratio)))


def _check_errors(mse: ArrayLike) -> Floats:
    errors = np.asarray(mse, dtype=float)
    if not (np.isfinite(errors).all() and (errors >= 0).all()):
        raise invalid_input("mse", mse, "to be finite and >= 0")
    return errors


def _check_log_probability(value: float) -> None:
    if check_real("log_probability", value) > 0:
        raise invalid_input("log_probability", value, "<= 0", "Pass the natural logarithm of a probability.")
