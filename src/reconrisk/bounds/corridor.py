"""Risk corridor of riess2025, between an adversary with a prior and one who knows only the norm.

:func:`compare_simple_guesses` shows why the law of one attack is not a bound: a constant guess or shrinkage of the
observation can do better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.special import ndtri

from reconrisk.accounting.subsampled import epsilon_of_training
from reconrisk.bounds.analytic_inversion import analytic_inversion_law, training_run_law
from reconrisk.bounds.known_norm import from_scratch_success, known_norm_success, log_from_scratch_success
from reconrisk.bounds.numerics.chi_square import log_gammainc, log_gammainc_inverse
from reconrisk.bounds.numerics.hits import dominating_phase, log_average_upper_bound, phases
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import (
    Guarantee,
    Law,
    format_rounded_up,
    mse_threshold,
    probability_from_log,
    psnr_from_mse,
)
from reconrisk.core.mechanism import Gaussian, Mechanism, NoiseMechanism
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input

_GRID = 400  # quantiles in each direction: 160,000 points give about three digits
_LARGEST_NOISE = 1e100  # in units of the norm; its square is still a float
_LARGEST_SUM = 1e8  # Poisson mean up to which the series is summed, about 24 sqrt(mean) terms


@serializable("simple-guesses")
@dataclass(frozen=True)
class SimpleGuesses(Result):
    """Errors and success of a zero guess, a mid-range guess, shrinkage, and riess2025's attack at one threshold.

    Attributes:
        mse: Largest mean squared error that counts as success.
        zero_guess_mse: Error of guessing zero; exact for the norm.
        centre_guess_mse: Largest error of guessing the middle of the data range for every value.
        attack_mse: Expected error of riess2025's attack.
        attack_success: Success probability of riess2025's attack.
        shrinkage_mse: Expected error of James-Stein shrinkage.
        shrinkage_success: Success probability of shrinkage, a numerical value to about three digits.
        observations: Number of releases of the record that shrinkage and the attack average.
    """

    mse: float
    zero_guess_mse: float
    centre_guess_mse: float
    attack_mse: float
    attack_success: float
    shrinkage_mse: float
    shrinkage_success: float
    observations: int = 1

    @property
    def constant_guess_succeeds(self) -> bool:
        """True if a guess that ignores the release is always within the threshold."""
        return self.mse >= min(self.zero_guess_mse, self.centre_guess_mse)

    @property
    def sentence(self) -> str:
        """The numbers in two sentences."""
        verdict = "always succeeds" if self.constant_guess_succeeds else "is not certain to succeed"
        return (
            f"At mean squared error {self.mse:.4g} a constant guess {verdict}: "
            f"zero has error {self.zero_guess_mse:.4g}, "
            f"the middle of the data range at most {self.centre_guess_mse:.4g}. "
            f"Given {self.observations} release(s) of the record, James-Stein shrinkage has expected error "
            f"{self.shrinkage_mse:.4g} and succeeds with probability "
            f"{self.shrinkage_success:.2g}, riess2025's attack {self.attack_mse:.4g} and {self.attack_success:.2g}."
        )

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each attacker; the success of a constant guess is 1, or None if it is not certain."""
        zero, centre = (1.0 if self.mse >= error else None for error in (self.zero_guess_mse, self.centre_guess_mse))
        return (
            {"attacker": "guesses zero", "mse": self.zero_guess_mse, "success": zero},
            {"attacker": "guesses the middle of the range", "mse": self.centre_guess_mse, "success": centre},
            {"attacker": "James-Stein shrinkage", "mse": self.shrinkage_mse, "success": self.shrinkage_success},
            {"attacker": "riess2025's attack", "mse": self.attack_mse, "success": self.attack_success},
        )

    @property
    def is_private(self) -> bool:
        """False: it follows from stated settings."""
        return False


def compare_simple_guesses(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    observations: int = 1,
) -> SimpleGuesses:
    r"""Compare a constant guess and James-Stein shrinkage with riess2025's attack at a threshold.

    .. math:: E\,\mathrm{MSE}_{JS} = v \Bigl(1 - \frac{(d-2)^2}d E \frac1{d-2+2J}\Bigr), \quad
              J \sim \mathrm{Poisson}\bigl(\|x\|^2/(2v)\bigr)

    for the shrunk estimate :math:`(1 - (d-2) v/|y|^2) y` of :math:`y \sim N(x, vI)`, :math:`v = \sigma^2\|x\|^2/k`.

    Args:
        mechanism: Mechanism with one phase, described by its noise (:math:`\sigma`).
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record.
        mse: Largest mean squared error that counts as success. Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values, used for ``psnr`` and for the mid-range guess.
        observations: Number of matched releases that are averaged (k).

    Returns:
        Errors and success probabilities of the four attackers.

    Raises:
        InvalidInput: If not exactly one threshold is given, or if another argument is out of range.

    Assumes: as :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`; for the mid-range guess, all values
    lie in a known range of width ``data_range``.
    Guarantee: none; these are attackers, and others may beat the best of them.
    Edge cases: below three dimensions shrinkage does not help and equals the attack.
    Reference: `James and Stein (1961) <https://projecteuclid.org/euclid.bsmsp/1200512173>`_.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> reach = compare_simple_guesses(Gaussian(noise_multiplier=0.2), dimension=64, norm=4.6, mse=0.26)
    >>> round(reach.attack_mse, 2), round(reach.shrinkage_mse, 2), reach.attack_success < 1e-6
    (0.85, 0.26, True)
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    law = analytic_inversion_law(mechanism, dimension=dimension, norm=norm, observations=observations)
    shrunk = law.dimension > 2  # Stein's paradox needs three dimensions
    return SimpleGuesses(
        mse=threshold,
        zero_guess_mse=norm * norm / law.dimension,
        centre_guess_mse=data_range * data_range / 4,  # a record in a corner of the box
        attack_mse=law.expected_mse,
        attack_success=law.success(mse=threshold),
        shrinkage_mse=_james_stein_mse(law.dimension, norm, law.variance) if shrunk else law.expected_mse,
        shrinkage_success=_james_stein_success(law.dimension, norm, law.variance, threshold)
        if shrunk
        else law.success(mse=threshold),
        observations=observations,
    )


def _james_stein_mse(dimension: int, norm: float, variance: float) -> float:
    """Expected error of the shrunk estimate, by its series over a Poisson variable."""
    mean = norm * norm / (2 * variance)
    if mean > _LARGEST_SUM:  # the standard deviation is at most 1e-4 of the mean, so the mean replaces J
        expectation = 1 / (dimension - 2 + 2 * mean)
    else:
        spread = 12 * math.sqrt(mean) + 40  # 12 standard deviations, and 40 more terms for small means
        counts = np.arange(max(0, math.floor(mean - spread)), math.ceil(mean + spread))
        logs = special.xlogy(counts, mean) - mean - special.gammaln(counts + 1)
        expectation = float((np.exp(logs) / (dimension - 2 + 2 * counts)).sum())
    return variance * (1 - (dimension - 2) ** 2 / dimension * expectation)


def _james_stein_success(dimension: int, norm: float, variance: float, threshold: float) -> float:
    """Success probability of the shrunk estimate, as a share of an even grid of noise quantiles.

    The grid is the product of the noise along the record and the squared length of the noise across it.
    """
    levels = (np.arange(_GRID) + 0.5) / _GRID
    noise = min(math.sqrt(variance) / norm, _LARGEST_NOISE)  # more noise changes nothing
    # In units of the norm: y has length "along" in the direction of x, and squared length "across" at right angles.
    along = 1 + noise * special.ndtri(levels)[:, None]
    across = 2 * special.gammaincinv((dimension - 1) / 2, levels) * noise * noise
    shrink = 1 - (dimension - 2) * noise * noise / (along**2 + across)
    errors = ((shrink * along - 1) ** 2 + shrink**2 * across) / dimension
    return float(np.mean(np.sqrt(errors) <= math.sqrt(threshold) / norm))


_PRIOR_WIDTHS = (0.03, 0.1, 0.3, 1.0)  # default prior standard deviations, as shares of the data range


@serializable("interior-point")
@dataclass(frozen=True)
class InteriorPoint:
    """Success of the best adversary with a Gaussian prior, at the threshold of the corridor.

    Exact for the record plus Gaussian noise. For the normalised release of riess2025 it is indicative and not a
    guarantee, because there the noise scales with the unknown norm.

    Attributes:
        prior_std: Standard deviation of the prior in each coordinate.
        log_prior_success: Log success probability without the release.
        log_success: Log success probability with the release.
    """

    prior_std: float
    log_prior_success: float
    log_success: float

    @property
    def success(self) -> float:
        """Success probability with the release."""
        return probability_from_log(self.log_success)


@serializable("corridor-curve", version=2)
@dataclass(frozen=True)
class CorridorCurve:
    """Success probabilities over a range of thresholds, for the figure.

    Attributes:
        mse: Thresholds on the mean squared error.
        attack: Success of riess2025's attack at each threshold.
        known_norm: Guarantee for an adversary who knows only the norm, for any release.
        from_scratch: Guarantee for an adversary who knows only the norm and sees x/|x| plus noise.
        interior: One curve for each Gaussian prior of the corridor.
    """

    mse: tuple[float, ...]
    attack: tuple[float, ...]
    known_norm: tuple[float, ...]
    from_scratch: tuple[float, ...]
    interior: tuple[tuple[float, ...], ...]


@serializable("risk-corridor", version=2)
@dataclass(frozen=True)
class RiskCorridor(Result):
    """Both ends of the risk corridor at one threshold, its interior, and their comparison.

    Attributes:
        mechanism: Mechanism that produced the release.
        dimension: Number of values in a record.
        norm: Euclidean norm of the record.
        data_range: Width of the range of values.
        mse: Largest mean squared error that counts as success.
        prior_success: Best success probability without the release, for the identification end.
        identification: Bound on any adversary with that prior.
        known_norm: Bound on any adversary who knows only the norm, for any release of the mechanism.
        from_scratch: Bound on the same adversary for the release x/|x| plus noise; it covers no other release.
        attack: Name of the attack whose law is compared.
        attack_log_success: Log success probability of riess2025's attack over the training.
        error_discount: Error that this attack must tolerate to succeed as often as identification may (riess2025,
            IV-D). The two curves cross there.
        interior: Success of adversaries with Gaussian priors.
        simple_guesses: Comparison with attackers that ignore or shrink the observation.
        epsilon: Differential privacy of the mechanism at ``delta``.
        delta: Probability at which ``epsilon`` is reported.
    """

    mechanism: NoiseMechanism
    dimension: int
    norm: float
    data_range: float
    mse: float
    prior_success: float
    identification: Guarantee
    known_norm: Guarantee
    from_scratch: Guarantee
    attack: str
    attack_log_success: float
    error_discount: float
    interior: tuple[InteriorPoint, ...]
    simple_guesses: SimpleGuesses
    epsilon: float
    delta: float

    @property
    def is_one_phase(self) -> bool:
        """True if noise and sampling probability are the same in every step."""
        return len(phases(self.mechanism)) == 1

    @property
    def crossover_mse(self) -> float:
        """Error at which the success of the attack equals the bound on identification: the error discount."""
        return self.error_discount

    @property
    def attack_success(self) -> float:
        """Success probability of riess2025's attack: the law of one attack, not a bound."""
        return math.exp(self.attack_log_success)

    @property
    def psnr(self) -> float:
        """Threshold as a peak signal-to-noise ratio in dB."""
        return psnr_from_mse(self.mse, data_range=self.data_range)

    def adversaries(self) -> tuple[tuple[str, str, str], ...]:
        """Return adversary, formatted success probability and kind of evidence, one triple for each adversary."""
        return tuple((who, format_probability(success), kind) for who, success, kind in self._adversary_rows())

    def _adversary_rows(self) -> tuple[tuple[str, float, str], ...]:
        """Adversary, log success probability and kind of evidence, one triple for each adversary."""
        inside = tuple(
            (
                f"has a Gaussian prior of standard deviation {point.prior_std:.3g}",
                point.log_success,
                "best adversary, additive noise",
            )
            for point in self.interior
        )
        who = "knows the norm, with every direction equally likely, and uses any attack"
        from_scratch: tuple[tuple[str, float, str], ...] = (
            (who, _log_value(self.from_scratch), "guarantee for the release x/|x| plus noise only"),
            (who, _log_value(self.known_norm), "guarantee for any release"),
        )
        if self.simple_guesses.constant_guess_succeeds:  # a small bound for uniform directions would mislead here
            from_scratch = (("guesses a constant", 0.0, "certain"),)
        return (
            (
                "knows nothing and uses riess2025's attack",
                self.attack_log_success,
                "law of one attack, no bound"
                if self.is_one_phase
                else "as if all phases had the least noise, no bound",
            ),
            *from_scratch,
            *inside,
            (
                f"has a prior that succeeds with probability {self.prior_success:.3g}, and uses any attack",
                _log_value(self.identification),
                "guarantee",
            ),
        )

    @property
    def sentence(self) -> str:
        """The corridor in plain words, without epsilon."""
        quality = f"to {self.psnr:.3g} dB (mean squared error {self.mse:.3g})"
        if self.simple_guesses.constant_guess_succeeds:
            first = f"Anyone reconstructs a record {quality} without the release: a constant guess is that close."
        else:
            first = (
                "An adversary who knows only the norm of a record, with every direction equally likely, reconstructs "
                f"it {quality} with probability at most {format_probability(_log_value(self.known_norm))}."
            )
        return (
            f"{first} An adversary who succeeds with probability {self.prior_success:.3g} by guessing succeeds with "
            f"probability at most {format_probability(_log_value(self.identification))} after the release."
        )

    def table(self) -> str:
        """Return the success of each adversary, followed by the comparison with simple guesses."""
        rows = [f"  {value:<12} {who} ({kind})" for who, value, kind in self.adversaries()]
        return "\n".join(["success      adversary", *rows, self.comparison()])

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each adversary."""
        return tuple(
            {"adversary": who, "success": probability_from_log(log), "log_success": log, "evidence": kind}
            for who, log, kind in self._adversary_rows()
        )

    def comparison(self) -> str:
        """Return the success of simple guesses and the error discount as sentences."""
        return (
            f"{self.simple_guesses.sentence} To succeed as often as the last adversary can at most, riess2025's attack "
            f"must tolerate a mean squared error of {self.error_discount:.4g}."
        )

    @property
    def is_private(self) -> bool:
        """False: it follows from stated settings."""
        return False


def risk(
    mechanism: NoiseMechanism,
    *,
    dimension: int,
    norm: float,
    prior_success: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    prior_stds: tuple[float, ...] | None = None,
    delta: float = 1e-5,
) -> RiskCorridor:
    """Compute both ends of the risk corridor of a mechanism, its interior, and their comparison.

    Args:
        mechanism: Mechanism described by its noise.
        dimension: Number of values in a record.
        norm: Euclidean norm of the record, or the smallest norm in the data.
        prior_success: Best success probability without any release, for the identification end.
        mse: Largest mean squared error that counts as success. Pass ``mse`` or ``psnr``.
        psnr: Smallest peak signal-to-noise ratio in dB that counts as success.
        data_range: Width of the range of values.
        prior_stds: Standard deviations of the Gaussian priors in the interior; by default 0.03, 0.1, 0.3 and 1 times
            ``data_range``.
        delta: Probability at which epsilon is reported.

    Returns:
        The corridor, with one guarantee for identification and two for an adversary who knows only the norm.

    Raises:
        InvalidInput: If not exactly one threshold is given, or if another argument is out of range.

    Assumes: the assumptions of the guarantees; each lists its own.
    Guarantee: the ends are guarantees with their own scopes. ``from_scratch`` covers the release x/|x| plus noise only;
    the sentence uses ``known_norm``, which covers any release. Attack and interior are no guarantees, and tables name
    their kind of evidence.
    Edge cases: the from-scratch end may be larger than the identification end, because a permissive threshold is easier
    than naming a record (riess2025, Section V-A). The law of the attack crosses the identification end at the error
    discount.
    Reference: Section IV-D, Figures 1 and 3, riess2025.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> run = dp_sgd(noise_multiplier=1.1, sampling_probability=0.01, steps=10_000)
    >>> corridor = risk(run, dimension=3072, norm=20.0, psnr=20, prior_success=0.001)
    >>> corridor.identification.value < 0.05, corridor.from_scratch.value < 1e-300
    (True, True)
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    size = check_whole("dimension", dimension)
    check_probability("prior_success", prior_success, "It is the best success without any release.")
    widths = tuple(width * data_range for width in _PRIOR_WIDTHS) if prior_stds is None else tuple(prior_stds)
    for width in widths:
        check_positive("prior_stds", width, "A prior of standard deviation 0 knows the record.")
    named = success_upper_bound(mechanism, prior_success=prior_success)
    law = _law(mechanism, size, norm)
    noise, hits = dominating_phase(mechanism)
    return RiskCorridor(
        mechanism=mechanism,
        dimension=size,
        norm=norm,
        data_range=data_range,
        mse=threshold,
        prior_success=prior_success,
        identification=named,
        known_norm=known_norm_success(mechanism, dimension=size, norm=norm, mse=threshold),
        from_scratch=from_scratch_success(mechanism, dimension=size, norm=norm, mse=threshold),
        attack=law.attack,
        attack_log_success=law.log_success(mse=threshold),
        # The error at which the attack succeeds as often as identification may; no finite error is reached surely.
        error_discount=law.quantile(named.value) if named.value < 1 else math.inf,
        interior=tuple(
            InteriorPoint(width, *_interior_log_successes(mechanism, size, norm, width, threshold)) for width in widths
        ),
        simple_guesses=compare_simple_guesses(
            Gaussian(noise_multiplier=noise),
            dimension=size,
            norm=norm,
            mse=threshold,
            data_range=data_range,
            observations=max(1, round(hits.attempts * hits.probability)),  # expected releases with the record
        ),
        epsilon=epsilon_of_training(mechanism, delta),
        delta=delta,
    )


def corridor_curve(corridor: RiskCorridor, *, points: int = 41) -> CorridorCurve:
    """Evaluate the corridor from a thousandth of its threshold up to the error of guessing zero.

    Args:
        corridor: Corridor to evaluate.
        points: Number of thresholds, spaced geometrically; at least 2.

    Returns:
        Success probabilities at each threshold.

    Raises:
        InvalidInput: If ``points`` is below 2.

    >>> corridor = risk(Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0, mse=0.05, prior_success=0.1)
    >>> curve = corridor_curve(corridor, points=3)
    >>> curve.from_scratch[-1], len(curve.mse)
    (1.0, 3)
    """
    count = check_whole("points", points, minimum=2)
    size, norm, mechanism = corridor.dimension, corridor.norm, corridor.mechanism
    top = max(norm * norm / size, 2 * corridor.mse)  # guessing zero has the first error, so the curve reaches 1
    # The lower end stays positive for a threshold of 0, which a geometric grid cannot reach.
    errors = np.geomspace(max(min(corridor.mse, top) / 1000, top * 1e-9), top, count)
    scratch = [log_from_scratch_success(mechanism, dimension=size, norm=norm, mse=float(error)) for error in errors]
    known = [known_norm_success(mechanism, dimension=size, norm=norm, mse=float(error)).value for error in errors]
    inside = tuple(
        tuple(
            math.exp(_interior_log_successes(mechanism, size, norm, point.prior_std, float(error))[1])
            for error in errors
        )
        for point in corridor.interior
    )
    attack = _law(mechanism, size, norm).cdf(errors)
    return CorridorCurve(
        mse=tuple(errors.tolist()),
        attack=tuple(attack.tolist()),
        known_norm=tuple(known),
        from_scratch=tuple(np.exp(scratch).tolist()),
        interior=inside,
    )


def crossover_mse(*, success: float, prior_success: float, dimension: int, norm: float) -> float:
    r"""Error threshold above which limiting riess2025's attack takes more noise than limiting identification.

    .. math:: \eta^* = \frac{2 \sigma^2 \|x\|^2}{d} P^{-1}\bigl(\tfrac d2, \gamma\bigr), \quad
              \sigma = 1 / (\Phi^{-1}(\gamma) - \Phi^{-1}(\kappa))

    Here :math:`\sigma` is the noise multiplier at which identification with the prior success :math:`\kappa` succeeds
    with probability :math:`\gamma` from one Gaussian release.

    Args:
        success: Success probability to which both the attack and identification are limited (:math:`\gamma`).
        prior_success: Success probability of identification without the release (:math:`\kappa`).
        dimension: Number of values in a record (d).
        norm: Euclidean norm of the record.

    Returns:
        The threshold on the mean squared error (:math:`\eta^*`).

    Raises:
        InvalidInput: If not ``0 < prior_success < success < 1``, or if ``norm`` or ``dimension`` is not positive.

    Reference: Figure 1 and Section V-A, riess2025.

    >>> round(crossover_mse(success=0.1, prior_success=1 / 11, dimension=1, norm=1.0), 2)
    5.49
    """
    check_positive("norm", norm)
    if not 0 < check_probability("prior_success", prior_success) < check_probability("success", success) < 1:
        raise invalid_input(
            "success", success, f"in ({prior_success}, 1)", "Pass a number above prior_success and below 1."
        )
    noise = 1 / float(ndtri(success) - ndtri(prior_success))  # solves gamma = Phi(Phi^-1(kappa) + 1 / sigma)
    shape = check_whole("dimension", dimension) / 2
    return (noise * norm) ** 2 / shape * log_gammainc_inverse(shape, math.log(success))


@dataclass(frozen=True)
class RiskSurface:
    """Success probabilities over a grid of noise multipliers and thresholds.

    Attributes:
        noise_multipliers: Noise multipliers, the rows of the grid.
        mse: Thresholds on the mean squared error, the columns of the grid.
        attack: Success of riess2025's attack on the grid.
        from_scratch: Guarantee for an adversary who knows only the norm and sees x/|x| plus noise, on the grid.
        identification: Guarantee for an adversary with the prior, one for each noise multiplier.
    """

    noise_multipliers: NDArray[np.float64]
    mse: NDArray[np.float64]
    attack: NDArray[np.float64]
    from_scratch: NDArray[np.float64]
    identification: NDArray[np.float64]


def risk_surface(
    *,
    noise_multipliers: NDArray[np.float64],
    mse: NDArray[np.float64],
    dimension: int,
    norm: float,
    prior_success: float,
) -> RiskSurface:
    """Compute success by noise and threshold, as in Figure 3 of riess2025, with the guarantee for comparison.

    Args:
        noise_multipliers: Noise multipliers of one Gaussian release.
        mse: Thresholds on the mean squared error.
        dimension: Number of values in a record.
        norm: Euclidean norm of the record.
        prior_success: Best success probability without the release, for the identification end.

    Returns:
        The law of the attack, the guarantee from scratch, and the guarantee for identification.

    Raises:
        InvalidInput: If an argument is out of range.

    Reference: Figure 3, riess2025.

    >>> surface = risk_surface(noise_multipliers=np.array([0.5, 1.0]), mse=np.array([0.1, 0.5]), dimension=1, norm=1.0,
    ...                        prior_success=0.1)
    >>> bool((surface.from_scratch >= surface.attack).all())
    True
    """
    noises, errors = np.atleast_1d(np.asarray(noise_multipliers, float)), np.atleast_1d(np.asarray(mse, float))
    mechanisms = [Gaussian(noise_multiplier=float(noise)) for noise in noises]
    laws = [analytic_inversion_law(each, dimension=dimension, norm=norm) for each in mechanisms]
    scratch = [
        [from_scratch_success(each, dimension=dimension, norm=norm, mse=float(error)).value for error in errors]
        for each in mechanisms
    ]
    named = [success_upper_bound(each, prior_success=prior_success).value for each in mechanisms]
    return RiskSurface(noises, errors, np.stack([law.cdf(errors) for law in laws]), np.array(scratch), np.array(named))


def _law(mechanism: NoiseMechanism, dimension: int, norm: float) -> Law:
    """Law of the attack over the training run; several phases are replaced by one that releases at least as much."""
    noise, hits = dominating_phase(mechanism)
    one = Gaussian(noise_multiplier=noise)
    if hits.attempts == 1 and hits.probability == 1:
        return analytic_inversion_law(one, dimension=dimension, norm=norm)
    return training_run_law(
        one, dimension=dimension, norm=norm, attempts=hits.attempts, hit_probability=hits.probability
    )


def _interior_log_successes(
    mechanism: NoiseMechanism, dimension: int, norm: float, prior_std: float, threshold: float
) -> tuple[float, float]:
    """Log success without and with the release, for an adversary who is given the steps with the record."""
    noise, hits = dominating_phase(mechanism)
    shape = dimension / 2

    def log_success_after(counts: NDArray[np.int64]) -> NDArray[np.float64]:
        # Posterior precision 1/s^2 after that many releases of noise variance (sigma |x|)^2 each.
        precisions = counts / noise / noise / norm / norm + 1 / prior_std / prior_std
        return log_gammainc(shape, shape * threshold * precisions)

    return float(log_success_after(np.array([0]))[0]), log_average_upper_bound(hits, log_success_after)


def format_probability(log_probability: float) -> str:
    """Format a probability rounded up; as a power of ten if it is too small for a float.

    Args:
        log_probability: Natural logarithm of the probability.

    Returns:
        The probability as text, with three significant digits.

    >>> format_probability(math.log(0.0256)), format_probability(-5000.0), format_probability(-math.inf)
    ('0.0256', '1e-2171', '0')
    """
    if log_probability == -math.inf:
        return "0"
    if log_probability > -600:  # about 1e-261, safely a normal float
        return format_rounded_up(math.exp(log_probability), 3)
    return f"1e{math.ceil(log_probability / math.log(10))}"  # the next power of ten above


def _log_value(guarantee: Guarantee) -> float:
    return -math.inf if guarantee.log_value is None else guarantee.log_value
