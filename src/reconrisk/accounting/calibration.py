"""Calibration of DP-SGD: noise, steps or sampling probability that keep the success of any adversary below a target.

Each answer is a setting at which the certified bound was computed and meets the target. A coarse lattice finds the
neighbourhood of the answer; two or three bounds at full accuracy refine it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from scipy.special import ndtri_exp

from reconrisk.accounting.solver import SafeSetting, largest_safe, largest_safe_count, smallest_safe
from reconrisk.accounting.subsampled import DEFAULT_ACCURACY, log_success_of_training
from reconrisk.core.errors import InvalidInput
from reconrisk.core.mechanism import NoiseMechanism, dp_sgd
from reconrisk.core.validation import check_positive, check_real, check_whole, invalid_input

_COARSE_ACCURACY = 1e-3  # of the success probability; such lattices are about seven times coarser than the default
_COARSE_TOLERANCE = 3e-3  # relative, of the setting; matches the coarse accuracy
_TOLERANCE = 5e-5  # relative, of the setting that is returned; documented as a guarantee
_SLOPE_STEP = 0.02  # relative step of the finite difference; far above the coarse tolerance
_NOISE_RANGE = (1e-2, 1e8)  # less noise hides nothing; more is cut to 1e8 by phases.py
_RATE_RANGE = (1e-12, 1.0)
_LARGEST_EXPONENT = 300.0  # keeps expm1 finite; start values need no precision


def smallest_noise_multiplier(
    *,
    sampling_probability: float,
    steps: int,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
) -> SafeSetting:
    """Return the smallest noise multiplier at which no adversary succeeds with more than the target probability.

    Args:
        sampling_probability: Probability with which a record enters a batch.
        steps: Number of steps.
        log_prior: Natural logarithm of the success probability without any release.
        log_target: Natural logarithm of the largest acceptable success probability.
        accuracy: Requested excess of the bound over the true success probability.

    Returns:
        The noise multiplier, with the logarithm of the bound at it as ``risk``.

    Raises:
        InvalidInput: If an argument is outside its domain, or no noise multiplier up to 1e8 meets the target.

    Guarantee: the bound was computed at the value returned and is at most the target. The value is within a relative
    5e-5 of the noise multiplier at which the bound equals the target, and not below the smallest safe one.
    Edge cases: a target at or below the prior is rejected, because an adversary reaches it without any release.

    >>> safe = smallest_noise_multiplier(
    ...     sampling_probability=0.01, steps=1000, log_prior=math.log(0.1), log_target=math.log(0.2))
    >>> round(safe.value, 3)
    0.97
    """
    check_positive("accuracy", accuracy)
    mu = _shift_to_target(log_prior, log_target)
    run = _Run(1.0, sampling_probability, steps, log_prior)
    # Central limit theorem: the steps amount to a Gaussian of shift q sqrt(T (e^(1/s^2) - 1)); solve for s.
    start = 1 / math.sqrt(math.log1p((mu / sampling_probability) ** 2 / steps))

    def risk(noise: float, accuracy: float) -> float:
        return replace(run, noise_multiplier=noise).log_success(accuracy)

    return _solve_coarse_then_fine(risk, smallest_safe, start, _NOISE_RANGE, log_target, accuracy, "noise_multiplier")


def largest_sampling_probability(
    *,
    noise_multiplier: float,
    steps: int,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
) -> SafeSetting:
    """Return the largest sampling probability at which no adversary succeeds with more than the target probability.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clip norm.
        steps: Number of steps.
        log_prior: Natural logarithm of the success probability without any release.
        log_target: Natural logarithm of the largest acceptable success probability.
        accuracy: Requested excess of the bound over the true success probability.

    Returns:
        The sampling probability, with the logarithm of the bound at it as ``risk``.

    Raises:
        InvalidInput: If an argument is outside its domain, or no sampling probability from 1e-12 meets the target.

    Guarantee: as in :func:`smallest_noise_multiplier`, but the value is not above the largest safe one.
    Edge cases: as in :func:`smallest_noise_multiplier`; 1 if even the full batch is safe.

    >>> safe = largest_sampling_probability(
    ...     noise_multiplier=1.0, steps=1000, log_prior=math.log(0.1), log_target=math.log(0.2))
    >>> round(safe.value, 4)
    0.0105
    """
    check_positive("accuracy", accuracy)
    mu = _shift_to_target(log_prior, log_target)
    run = _Run(noise_multiplier, 1.0, steps, log_prior)
    start = mu / math.sqrt(steps * math.expm1(min(noise_multiplier**-2, _LARGEST_EXPONENT)))  # as above, for q

    def risk(rate: float, accuracy: float) -> float:
        return replace(run, sampling_probability=rate).log_success(accuracy)

    return _solve_coarse_then_fine(risk, largest_safe, start, _RATE_RANGE, log_target, accuracy, "sampling_probability")


def largest_steps(
    *,
    noise_multiplier: float,
    sampling_probability: float,
    log_prior: float,
    log_target: float,
    accuracy: float = DEFAULT_ACCURACY,
    high: int = 10**9,
) -> SafeSetting:
    """Return the largest number of steps after which no adversary succeeds with more than the target probability.

    Args:
        noise_multiplier: Standard deviation of the noise in units of the clip norm.
        sampling_probability: Probability with which a record enters a batch.
        log_prior: Natural logarithm of the success probability without any release.
        log_target: Natural logarithm of the largest acceptable success probability.
        accuracy: Requested excess of the bound over the true success probability.
        high: Largest number of steps to consider.

    Returns:
        The number of steps, with the logarithm of the bound at it as ``risk``.

    Raises:
        InvalidInput: If an argument is outside its domain.

    Guarantee: as in :func:`smallest_noise_multiplier`; one more step was computed and exceeds the target, unless the
    number is ``high``.
    Edge cases: if one step already exceeds the target, the error message states its risk.

    >>> largest_steps(noise_multiplier=1.0, sampling_probability=0.01,
    ...               log_prior=math.log(0.1), log_target=math.log(0.2)).value
    1105.0
    """
    check_positive("accuracy", accuracy)
    mu = _shift_to_target(log_prior, log_target)
    run = _Run(noise_multiplier, sampling_probability, 1, log_prior)
    start = (mu / sampling_probability) ** 2 / math.expm1(min(noise_multiplier**-2, _LARGEST_EXPONENT))  # as above
    first = max(1, round(min(start, check_whole("high", high))))
    coarse = max(accuracy, _COARSE_ACCURACY)
    # If even one step is unsafe for the coarse bound, only the fine one can tell.
    if run.log_success(coarse) <= log_target:
        first = int(largest_safe_count(lambda n: replace(run, steps=n).log_success(coarse),
                                       target=log_target, start=first, high=high).value)  # fmt: skip
    return largest_safe_count(
        lambda n: replace(run, steps=n).log_success(accuracy), target=log_target, start=first, high=high, name="steps"
    )


@dataclass(frozen=True)
class _Run:
    """A DP-SGD run, and the prior success that its bound starts from."""

    noise_multiplier: float
    sampling_probability: float
    steps: int
    log_prior: float

    def __post_init__(self) -> None:
        self.mechanism()  # rejects settings outside their domain

    def mechanism(self) -> NoiseMechanism:
        return dp_sgd(
            noise_multiplier=self.noise_multiplier, sampling_probability=self.sampling_probability, steps=self.steps
        )

    def log_success(self, accuracy: float) -> float:
        return log_success_of_training(self.mechanism(), self.log_prior, accuracy)


def _shift_to_target(log_prior: float, log_target: float) -> float:
    """Return the shift of the Gaussian DP mechanism whose success equals the target, for the start of a search."""
    prior = math.exp(check_real("log_prior", log_prior))
    if not -math.inf < log_prior < 0:
        raise invalid_input(
            "log_prior", log_prior, "in (-inf, 0)", "Pass the natural logarithm of a prior success in (0, 1)."
        )
    if not log_prior < check_real("log_target", log_target) < 0:
        remedy = "Pass a target above the prior success, which needs no release, and below 1."
        raise invalid_input("target", math.exp(log_target), f"in ({prior:.6g}, 1)", remedy)
    return float(ndtri_exp(log_target) - ndtri_exp(log_prior))


def _solve_coarse_then_fine(
    risk: Callable[[float, float], float],
    solve: Callable[..., SafeSetting],
    start: float,
    bounds: tuple[float, float],
    log_target: float,
    accuracy: float,
    name: str,
) -> SafeSetting:
    """Solve on a coarse lattice, then on the requested one, starting from that solution and its slope.

    Risks are compared as normal quantiles, which are nearly linear in the logarithm of the setting.
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
        slope = None  # the coarse bound cannot meet the target; the fine one decides
    else:
        ahead = min(max(near * (1 + _SLOPE_STEP), low), high)
        rise = ndtri_exp(risk(ahead, coarse)) - ndtri_exp(risk(near, coarse))
        slope = rise / math.log(ahead / near) if ahead != near and math.isfinite(rise) and rise else None
    safe = solve(lambda x: ndtri_exp(risk(x, accuracy)), start=near, tolerance=_TOLERANCE, slope=slope, **shared)
    return SafeSetting(safe.value, risk(safe.value, accuracy))
