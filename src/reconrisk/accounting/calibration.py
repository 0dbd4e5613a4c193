"""Noise, steps or rate of DP-SGD at which the success of any adversary stays below a target, on the safe side.

Each answer is a setting at which the certified bound was computed and holds. A coarse lattice finds the neighbourhood,
two or three bounds at full accuracy settle it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.special import ndtri_exp

from reconrisk.accounting.solver import Safe, largest_safe, largest_safe_count, smallest_safe
from reconrisk.accounting.subsampled import DEFAULT_ACCURACY, log_success_of_training
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import NoiseMechanism, dp_sgd
from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input

_COARSE_ACCURACY = 1e-3
_COARSE_TOLERANCE = 3e-3
_TOLERANCE = 5e-5
_SLOPE_STEP = 0.02
_NOISE_RANGE = (1e-2, 1e8)
_RATE_RANGE = (1e-12, 1.0)


def smallest_noise_multiplier(
    *,
    sampling_probability: float,
    steps: int,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
) -> Safe:
    """Smallest noise multiplier at which no adversary succeeds with more than the target probability.

    Guarantee: the bound was computed at the value returned and is at most the target (``risk`` is its logarithm). The
    value is within a relative 5e-5 of where the bound meets the target, and not below the true answer.
    Edge cases: a target at or below the prior is refused: that success needs no release.

    >>> safe = smallest_noise_multiplier(
    ...     sampling_probability=0.01, steps=1000, log_prior=math.log(0.1), log_target=math.log(0.2))
    >>> round(safe.value, 3)
    0.97
    """
    check_positive("accuracy", accuracy)
    mu = _shift(log_prior, log_target)
    run = _Run(1.0, sampling_probability, steps, log_prior)
    start = 1 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))

    def risk(noise: float, accuracy: float) -> float:
        return replace(run, noise_multiplier=noise).log_success(accuracy)

    return _refined(risk, smallest_safe, start, _NOISE_RANGE, log_target, accuracy, "noise_multiplier")


def largest_sampling_probability(
    *,
    noise_multiplier: float,
    steps: int,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
) -> Safe:
    """Largest sampling probability at which no adversary succeeds with more than the target probability.

    Guarantee, edge cases: as in :func:`smallest_noise_multiplier`; 1 if even the full batch is safe.

    >>> safe = largest_sampling_probability(
    ...     noise_multiplier=1.0, steps=1000, log_prior=math.log(0.1), log_target=math.log(0.2))
    >>> round(safe.value, 4)
    0.0105
    """
    check_positive("accuracy", accuracy)
    mu = _shift(log_prior, log_target)
    run = _Run(noise_multiplier, 1.0, steps, log_prior)
    start = mu / math.sqrt(steps * math.expm1(min(noise_multiplier**-2, 300.0)))

    def risk(rate: float, accuracy: float) -> float:
        return replace(run, sampling_probability=rate).log_success(accuracy)

    return _refined(risk, largest_safe, start, _RATE_RANGE, log_target, accuracy, "sampling_probability")


def largest_steps(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
    high: int = 10**9,
) -> Safe:
    """Largest number of steps after which no adversary succeeds with more than the target probability.

    Guarantee: as in :func:`smallest_noise_multiplier`; one more step was computed and exceeds the target, unless the
    number is ``high``.
    Edge cases: an error naming the risk of one step if that already exceeds the target.

    >>> largest_steps(noise_multiplier=1.0, sampling_probability=0.01,
    ...               log_prior=math.log(0.1), log_target=math.log(0.2)).value
    1105.0
    """
    check_positive("accuracy", accuracy)
    mu = _shift(log_prior, log_target)
    run = _Run(noise_multiplier, sampling_probability, 1, log_prior)
    start = (mu / sampling_probability) ** 2 / math.expm1(min(noise_multiplier**-2, 300.0))
    first = max(1, round(min(start, check_whole("high", high))))
    coarse = max(accuracy, _COARSE_ACCURACY)
    if run.log_success(coarse) <= log_target:
        first = int(largest_safe_count(lambda n: replace(run, steps=n).log_success(coarse),
                                       target=log_target, start=first, high=high).value)  # fmt: skip
    return largest_safe_count(
        lambda n: replace(run, steps=n).log_success(accuracy), target=log_target, start=first, high=high, name="steps"
    )


@dataclass(frozen=True)
class _Run:
    """A DP-SGD run and the prior against which it is judged."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    log_prior: float

    def __post_init__(self) -> None:
        self.mechanism()

    def mechanism(self) -> NoiseMechanism:
        return dp_sgd(
            noise_multiplier=self.noise_multiplier, sampling_probability=self.sampling_probability, steps=self.steps
        )

    def log_success(self, accuracy: float) -> float:
        return log_success_of_training(self.mechanism(), self.log_prior, accuracy)


def _shift(log_prior: float, log_target: float) -> float:
    """The shift of the one Gaussian whose success meets the target: the scale of the answer."""
    prior = math.exp(check_real("log_prior", log_prior))
    if not -math.inf < log_prior < 0:
        raise invalid_input(
            "log_prior", log_prior, "in (-inf, 0)", "A certain or impossible success needs no calibration."
        )
    if not log_prior < check_real("log_target", log_target) < 0:
        remedy = f"Success {prior:.6g} needs no release: the target must exceed it, and below 1 to say anything."
        raise invalid_input("target", math.exp(log_target), f"in (prior_success, 1) = ({prior:.6g}, 1)", remedy)
    return float(ndtri_exp(log_target) - ndtri_exp(log_prior))


def _refined(
    risk: Callable[[float, float], float],
    solve: Callable[..., Safe],
    start: float,
    bounds: tuple[float, float],
    log_target: float,
    accuracy: float,
    name: str,
) -> Safe:
    """Solve on a coarse lattice, then from there, with the slope found, on the wanted one.

    Risks are compared as normal quantiles, in which they are nearly linear in the logarithm of the setting.
    """
    goal = float(ndtri_exp(log_target))
    low, high = bounds
    start = min(max(start, low), high)
    coarse = max(accuracy, _COARSE_ACCURACY)
    shared = {"target": goal, "low": low, "high": high, "name": name}
    near = start
    try:
        near = solve(lambda x: ndtri_exp(risk(x, coarse)), start=start, tolerance=_COARSE_TOLERANCE, **shared).value
    except InvalidInput:
        slope = None  # out of reach for the coarse bound; the fine one decides
    else:
        ahead = min(max(near * (1 + _SLOPE_STEP), low), high)
        rise = ndtri_exp(risk(ahead, coarse)) - ndtri_exp(risk(near, coarse))
        slope = rise / math.log(ahead / near) if ahead != near and math.isfinite(rise) and rise else None
    safe = solve(lambda x: ndtri_exp(risk(x, accuracy)), start=near, tolerance=_TOLERANCE, slope=slope, **shared)
    return Safe(safe.value, risk(safe.value, accuracy))
