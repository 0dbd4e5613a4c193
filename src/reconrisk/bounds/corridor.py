"""The risk corridor of riess2025: between an adversary with a prior and one who knows nothing but the norm.

:func:`what_simple_guesses_reach` shows why the law of one attack is no bound: attackers who guess without looking, or
shrink their observation, can do better.
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
from reconrisk.bounds.known_norm import from_scratch_success, log_from_scratch_success
from reconrisk.bounds.numerics.chi_square import log_gammainc, log_gammainc_inverse
from reconrisk.bounds.numerics.hits import dominating_phase, log_average_upper_bound, phases
from reconrisk.bounds.success import success_upper_bound
from reconrisk.core.guarantee import Guarantee, Law, mse_threshold, probability_from_log, psnr_from_mse, rounded_up
from reconrisk.core.mechanism import Gaussian, Mechanism, NoiseMechanism
from reconrisk.core.storage.result import Result, Row
from reconrisk.core.storage.serialization import serializable
from reconrisk.core.validation import check_positive, check_probability, check_whole, invalid_input

_GRID = 400
_LARGEST_NOISE = 1e100
_LARGEST_SUM = 1e8


@serializable("simple-guesses")
@dataclass(frozen=True)
class SimpleGuesses(Result):
    """Errors and success at one threshold of a zero guess, a mid-range guess, shrinkage, and riess2025's attack.

    ``zero_guess_mse`` is exact for the norm; ``centre_guess_mse`` is the largest over records in a box of the data
    range; ``shrinkage_success`` is a numerical value to about three digits.
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
        """Whether a guess that ignores the release is always within the threshold."""
        return self.mse >= min(self.zero_guess_mse, self.centre_guess_mse)

    @property
    def sentence(self) -> str:
        """The numbers as two sentences."""
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
        """Return one row for each attacker; the success of a constant guess is 1, or None where it is not certain."""
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


def what_simple_guesses_reach(
    mechanism: Mechanism,
    *,
    dimension: int,
    norm: float,
    mse: float | None = None,
    psnr: float | None = None,
    data_range: float = 1.0,
    observations: int = 1,
) -> SimpleGuesses:
    r"""What a constant guess and James-Stein shrinkage reach at a threshold, beside riess2025's attack.

    .. math:: E\,\mathrm{MSE}_{JS} = v \Bigl(1 - \frac{(d-2)^2}d E \frac1{d-2+2J}\Bigr), \quad
              J \sim \mathrm{Poisson}\bigl(\|x\|^2/(2v)\bigr)

    for the shrunk estimate :math:`(1 - (d-2) v/|y|^2) y` of :math:`y \sim N(x, vI)`, :math:`v = \sigma^2\|x\|^2/k`.

    Assumes: as :func:`reconrisk.bounds.analytic_inversion.analytic_inversion_law`; records in a box of side
    ``data_range`` for the mid-range guess.
    Guarantee: none; these are attackers, and the best of them may still be beaten.
    Edge cases: below three dimensions shrinkage does not help and equals the attack.
    Reference: `James and Stein (1961) <https://projecteuclid.org/euclid.bsmsp/1200512173>`_.

    >>> from reconrisk.core.mechanism import Gaussian
    >>> reach = what_simple_guesses_reach(Gaussian(noise_multiplier=0.2), dimension=64, norm=4.6, mse=0.26)
    >>> round(reach.attack_mse, 2), round(reach.shrinkage_mse, 2), reach.attack_success < 1e-6
    (0.85, 0.26, True)
    """
    threshold = mse_threshold(mse=mse, psnr=psnr, data_range=data_range)
    law = analytic_inversion_law(mechanism, dimension=dimension, norm=norm, observations=observations)
    shrunk = law.dimension > 2  # Stein's paradox needs three dimensions
    return SimpleGuesses(
        mse=threshold,
        zero_guess_mse=norm * norm / law.dimension,
        centre_guess_mse=data_range * data_range / 4,
        attack_mse=law.expected_mse,
        attack_success=law.success(mse=threshold),
        shrinkage_mse=_james_stein_mse(law.dimension, norm, law.variance) if shrunk else law.expected_mse,
        shrinkage_success=_james_stein_success(law.dimension, norm, law.variance, threshold)
        if shrunk
        else law.success(mse=threshold),
        observations=observations,
    )


def _james_stein_mse(dimension: int, norm: float, variance: float) -> float:
    mean = norm * norm / (2 * variance)
    if mean > _LARGEST_SUM:  # the Poisson spread is below 1e-4 of the mean there
        expectation = 1 / (dimension - 2 + 2 * mean)
    else:
        spread = 12 * math.sqrt(mean) + 40
        counts = np.arange(max(0, math.floor(mean - spread)), math.ceil(mean + spread))
        logs = special.xlogy(counts, mean) - mean - special.gammaln(counts + 1)
        expectation = float((np.exp(logs) / (dimension - 2 + 2 * counts)).sum())
    return variance * (1 - (dimension - 2) ** 2 / dimension * expectation)


def _james_stein_success(dimension: int, norm: float, variance: float, threshold: float) -> float:
    """Share of an even grid of quantiles, noise along the record times noise across it, that reaches the threshold."""
    levels = (np.arange(_GRID) + 0.5) / _GRID
    noise = min(math.sqrt(variance) / norm, _LARGEST_NOISE)  # in units of the norm; more changes nothing
    along = 1 + noise * special.ndtri(levels)[:, None]
    across = 2 * special.gammaincinv((dimension - 1) / 2, levels) * noise * noise
    shrink = 1 - (dimension - 2) * noise * noise / (along**2 + across)
    errors = ((shrink * along - 1) ** 2 + shrink**2 * across) / dimension
    return float(np.mean(np.sqrt(errors) <= math.sqrt(threshold) / norm))


_PRIOR_WIDTHS = (0.03, 0.1, 0.3, 1.0)


@serializable("interior-point")
@dataclass(frozen=True)
class InteriorPoint:
    """What the best adversary with a Gaussian prior of this spread reaches at the threshold.

    Exact for the record plus Gaussian noise; for the normalised release of riess2025, whose noise scales with the
    unknown norm, a guide and no guarantee.
    """

    prior_std: float
    log_prior_success: float
    log_success: float

    @property
    def success(self) -> float:
        """Success probability with the release."""
        return probability_from_log(self.log_success)


@serializable("corridor-curve")
@dataclass(frozen=True)
class CorridorCurve:
    """Success probabilities at a range of thresholds, for the figure."""

    mse: tuple[float, ...]
    attack: tuple[float, ...]
    from_scratch: tuple[float, ...]
    interior: tuple[tuple[float, ...], ...]


@serializable("risk-corridor")
@dataclass(frozen=True)
class RiskCorridor(Result):
    """Both ends of the corridor at one threshold, its interior, and the numbers that relate them.

    ``identification`` bounds any adversary with the prior; ``from_scratch`` any who knows the norm alone;
    ``attack_success`` is what riess2025's attack reaches over the training. ``error_discount`` is the error that attack
    must tolerate to be as successful as identification may be (riess2025, IV-D); there the two curves cross.
    """

    mechanism: NoiseMechanism
    dimension: int
    norm: float
    data_range: float
    mse: float
    prior_success: float
    identification: Guarantee
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
        """Whether noise and rate are the same in every step."""
        return len(phases(self.mechanism)) == 1

    @property
    def crossover_mse(self) -> float:
        """Where the attack's success meets that of identification: the error discount."""
        return self.error_discount

    @property
    def attack_success(self) -> float:
        """What riess2025's attack reaches: the law of one attack, not a bound."""
        return math.exp(self.attack_log_success)

    @property
    def psnr(self) -> float:
        """The threshold in decibel."""
        return psnr_from_mse(self.mse, data_range=self.data_range)

    def adversaries(self) -> tuple[tuple[str, str, str], ...]:
        """Return adversary, success probability for reading, and what kind of number it is."""
        return tuple((who, readable_probability(success), kind) for who, success, kind in self._lines())

    def _lines(self) -> tuple[tuple[str, float, str], ...]:
        """Adversary, logarithm of the success probability, and what kind of number it is."""
        inside = tuple(
            (
                f"has a Gaussian prior of spread {point.prior_std:.3g}",
                point.log_success,
                "best adversary, additive noise",
            )
            for point in self.interior
        )
        who = "knows the norm, finds every direction equally likely, uses any attack"
        from_scratch = (who, _log_of(self.from_scratch), "guarantee")
        if self.simple_guesses.constant_guess_succeeds:
            from_scratch = ("guesses a constant", 0.0, "certain")
        return (
            (
                "knows nothing and uses riess2025's attack",
                self.attack_log_success,
                "law of one attack, no bound"
                if self.is_one_phase
                else "as if all phases had the least noise, no bound",
            ),
            from_scratch,
            *inside,
            (
                f"has a prior that succeeds with {self.prior_success:.3g}, uses any attack",
                _log_of(self.identification),
                "guarantee",
            ),
        )

    @property
    def sentence(self) -> str:
        """The corridor for someone who has never heard of epsilon."""
        quality = f"to {self.psnr:.3g} dB (mean squared error {self.mse:.3g})"
        if self.simple_guesses.constant_guess_succeeds:
            first = f"Anybody rebuilds a record {quality} without looking: a constant guess is that near."
        else:
            first = (
                "Somebody who knows nothing of a record but its norm, to whom every direction is equally likely, "
                f"rebuilds it {quality} with probability at most {readable_probability(_log_of(self.from_scratch))}."
            )
        return (
            f"{first} Somebody who would succeed with probability {self.prior_success:.3g} by guessing does so with "
            f"probability at most {readable_probability(_log_of(self.identification))} after the release."
        )

    def table(self) -> str:
        """Return the success of each adversary, and how simple guesses compare."""
        rows = [f"  {value:<12} {who} ({kind})" for who, value, kind in self.adversaries()]
        return "\n".join(["success      adversary", *rows, self.comparison()])

    def to_rows(self) -> tuple[Row, ...]:
        """Return one row for each adversary."""
        return tuple(
            {"adversary": who, "success": probability_from_log(log), "log_success": log, "evidence": kind}
            for who, log, kind in self._lines()
        )

    def comparison(self) -> str:
        """What simple guesses reach, and the error discount, in words."""
        return (
            f"{self.simple_guesses.sentence} To succeed as often as the last adversary may, riess2025's attack must "
            f"tolerate a mean squared error of {self.error_discount:.4g}."
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
    """Both ends of the risk corridor of a mechanism, its interior, and how they compare.

    Assumes: what the two guarantees assume; they are listed in each.
    Notation: ``prior_stds`` are the spreads of the Gaussian priors inside; by default some shares of ``data_range``;
    ``delta`` is what epsilon is stated at.
    Guarantee: the ends are guarantees with their own scopes; attack and interior are not and say so.
    Edge cases: the from-scratch end may lie above the other: a permissive threshold is easier than naming a record
    (riess2025, Section V-A), and the error discount tells where they cross.
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
        check_positive("prior_stds", width, "A prior without spread knows the record.")
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
        from_scratch=from_scratch_success(mechanism, dimension=size, norm=norm, mse=threshold),
        attack=law.attack,
        attack_log_success=law.log_success(mse=threshold),
        error_discount=law.quantile(named.value) if named.value < 1 else math.inf,
        interior=tuple(InteriorPoint(width, *_inside(mechanism, size, norm, width, threshold)) for width in widths),
        simple_guesses=what_simple_guesses_reach(
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
    """The corridor over a range of thresholds, from a thousandth of its own to where guessing zero succeeds.

    >>> corridor = risk(Gaussian(noise_multiplier=0.5), dimension=4, norm=1.0, mse=0.05, prior_success=0.1)
    >>> curve = corridor_curve(corridor, points=3)
    >>> curve.from_scratch[-1], len(curve.mse)
    (1.0, 3)
    """
    count = check_whole("points", points, minimum=2)
    size, norm, mechanism = corridor.dimension, corridor.norm, corridor.mechanism
    top = max(norm * norm / size, 2 * corridor.mse)
    errors = np.geomspace(max(min(corridor.mse, top) / 1000, top * 1e-9), top, count)
    scratch = [log_from_scratch_success(mechanism, dimension=size, norm=norm, mse=float(error)) for error in errors]
    inside = tuple(
        tuple(math.exp(_inside(mechanism, size, norm, point.prior_std, float(error))[1]) for error in errors)
        for point in corridor.interior
    )
    attack = _law(mechanism, size, norm).cdf(errors)
    return CorridorCurve(tuple(errors.tolist()), tuple(attack.tolist()), tuple(np.exp(scratch).tolist()), inside)


def crossover_mse(*, success: float, prior_success: float, dimension: int, norm: float) -> float:
    r"""The error threshold beyond which riess2025's attack needs more noise than identification to be held down.

    .. math:: \eta^* = \frac{2 \sigma^2 \|x\|^2}{d} P^{-1}\bigl(\tfrac d2, \gamma\bigr), \quad
              \sigma = 1 / (\Phi^{-1}(\gamma) - \Phi^{-1}(\kappa))

    for one Gaussian release that holds identification from a prior success of kappa at gamma.

    Notation: ``success`` is gamma, ``prior_success`` kappa.
    Reference: Figure 1 and Section V-A, riess2025.

    >>> round(crossover_mse(success=0.1, prior_success=1 / 11, dimension=1, norm=1.0), 2)
    5.49
    """
    check_positive("norm", norm)
    if not 0 < check_probability("prior_success", prior_success) < check_probability("success", success) < 1:
        raise invalid_input("success", success, f"in (prior_success, 1) = ({prior_success}, 1)")
    noise = 1 / float(ndtri(success) - ndtri(prior_success))
    shape = check_whole("dimension", dimension) / 2
    return (noise * norm) ** 2 / shape * log_gammainc_inverse(shape, math.log(success))


@dataclass(frozen=True)
class RiskSurface:
    """Success over a grid of noise multipliers (rows) and thresholds (columns), and that of identification by noise."""

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
    """The surface of riess2025's Figure 3: success by noise and threshold, with the guarantee beside the attack's law.

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
    """Of the attack over the whole training; several phases count as one that releases at least as much."""
    noise, hits = dominating_phase(mechanism)
    one = Gaussian(noise_multiplier=noise)
    if hits.attempts == 1 and hits.probability == 1:
        return analytic_inversion_law(one, dimension=dimension, norm=norm)
    return training_run_law(
        one, dimension=dimension, norm=norm, attempts=hits.attempts, hit_probability=hits.probability
    )


def _inside(
    mechanism: NoiseMechanism, dimension: int, norm: float, prior_std: float, threshold: float
) -> tuple[float, float]:
    """Log success without and with the release, the adversary being told which steps contain the record."""
    noise, hits = dominating_phase(mechanism)
    shape = dimension / 2

    def given(counts: NDArray[np.int64]) -> NDArray[np.float64]:
        precisions = counts / noise / noise / norm / norm + 1 / prior_std / prior_std
        return log_gammainc(shape, shape * threshold * precisions)

    return float(given(np.array([0]))[0]), log_average_upper_bound(hits, given)


def readable_probability(log_probability: float) -> str:
    """A probability for reading, from its natural logarithm, rounded up; powers of ten where it is no float.

    >>> readable_probability(math.log(0.0256)), readable_probability(-5000.0), readable_probability(-math.inf)
    ('0.0256', '1e-2171', '0')
    """
    if log_probability == -math.inf:
        return "0"
    if log_probability > -600:
        return rounded_up(math.exp(log_probability), 3)
    return f"1e{math.ceil(log_probability / math.log(10))}"


def _log_of(guarantee: Guarantee) -> float:
    return -math.inf if guarantee.log_value is None else guarantee.log_value
