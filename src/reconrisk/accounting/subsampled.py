"""Certified success bounds and epsilon of Poisson-subsampled Gaussian training."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import ndtr, ndtri_exp

from reconrisk.accounting.composition import compose, spacing_for
from reconrisk.accounting.loss import Cuts, Direction, PrivacyProfile
from reconrisk.accounting.phases import Phase, gaussian_mu, phases_of
from reconrisk.accounting.renyi import ORDERS, renyi_curve
from reconrisk.accounting.trade_off import (
    epsilon_from_gaussian,
    epsilon_from_renyi,
    log_complement,
    log_success_from_gaussian,
    log_success_from_renyi,
)
from reconrisk.core.mechanism import NoiseMechanism
from reconrisk.core.validation import check_probability

DEFAULT_ACCURACY = 2e-5
"""Default excess of a success bound over the true success probability."""

_SMALLEST_ON_LATTICE = -60.0  # log prior below which only the Renyi form is used
_TILT_BELOW = math.log(1e-4)  # smaller priors need relative accuracy, hence tilted masses
_LADDER = 4.0  # step of the log priors at which profiles are tilted
_LOG_TAIL = math.log(1e-17)  # truncated mass of all steps together; below the precision of a float
_LEAST_NOISE = 1e-3  # less noise hides nothing, and its lattice would not fit into memory
_MOST_STEPS = 10**15  # the allowance for round-off, about 1e-13 per step, makes a lattice useless


def log_success_of_training(mechanism: NoiseMechanism, log_prior: float, accuracy: float = DEFAULT_ACCURACY) -> float:
    r"""Upper bound on the log probability, with the record, of an event of probability kappa without it.

    .. math:: \gamma = \sup\{P(E): Q(E) \le \kappa\}

    Here E is an event, P the law of all steps with the record and Q the law without it. One step has the law
    :math:`(1-q)N(0,\sigma^2) + qN(1,\sigma^2)` under P and :math:`N(0,\sigma^2)` under Q, with the sampling probability
    q and the noise multiplier :math:`\sigma`.

    Args:
        mechanism: A mechanism of subsampled Gaussian steps.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.
        accuracy: Requested excess of the bound over the true probability.

    Returns:
        The natural logarithm of the bound on :math:`\gamma`.

    Raises:
        InvalidInput: If the mechanism has no phases.

    Assumes: Poisson sampling kept secret; noise multiplier and rate of each step fixed in advance.
    Guarantee: in [log kappa, 0] and not below the true value. The excess in probability is at most ``accuracy`` (not
    proved, but observed on a thousand random settings). Nondecreasing in kappa. For one phase also nondecreasing in the
    steps and nonincreasing in the noise, up to round-off of 1e-13 times the steps. The same was observed, but not
    proved, for the sampling probability.
    Edge cases: full batch and one subsampled step use closed forms. For kappa below 1e-4 the smaller of this bound and
    the Renyi form is used. If no lattice fits into memory, the Renyi form is used alone.
    Reference: `Hayes, Mahloujifar, Balle (2023) <https://arxiv.org/abs/2302.07225>`_, Theorem 2, computed without
    sampling.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000)
    >>> round(math.exp(log_success_of_training(run, math.log(0.1))), 4)
    0.1942
    """
    phases = phases_of(mechanism)
    if log_prior in (0.0, -math.inf):
        return log_prior
    if len(phases) == 1 and phases[0].is_full_batch:
        return log_success_from_gaussian(gaussian_mu(phases[0]), log_prior)
    if len(phases) == 1 and phases[0].steps == 1:
        return _log_success_of_one_step(phases[0], log_prior)
    bounds = [_log_success_without_noise(phases, log_prior)]
    if not _is_extreme(phases):
        if _power_of_largest_outcome(phases, log_prior) >= 1 - accuracy / 2:
            return 0.0  # a test of this power exists, so the trivial bound is within the accuracy
        on_lattice = _log_success_on_lattice(phases, log_prior, accuracy)
        bounds += [] if on_lattice is None else [on_lattice]
        if on_lattice is None or log_prior < _TILT_BELOW:
            bounds.append(log_success_from_renyi(ORDERS, renyi_curve(mechanism), log_prior))
    return min(0.0, max(min(bounds), log_prior))


def epsilon_of_training(mechanism: NoiseMechanism, delta: float, accuracy: float = DEFAULT_ACCURACY) -> float:
    r"""Upper bound on the epsilon of a training run at a given delta, under adding or removing a record.

    Args:
        mechanism: A mechanism of subsampled Gaussian steps.
        delta: Probability with which the guarantee may fail, in [0, 1].
        accuracy: Requested excess of the success bound on the same lattice.

    Returns:
        The epsilon.

    Raises:
        InvalidInput: If ``delta`` is not in [0, 1], or the mechanism has no phases.

    Guarantee: not below the true epsilon. It uses the certified profiles of :func:`log_success_of_training`, in both
    directions.
    Edge cases: ``delta = 0`` gives inf, because the Gaussian has no pure epsilon; ``delta = 1`` gives 0.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> round(epsilon_of_training(dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=1000), 1e-5), 2)
    1.83
    """
    check_probability("delta", delta)
    phases = phases_of(mechanism)
    if delta == 0:
        return math.inf
    if delta == 1:
        return 0.0
    unsampled = math.sqrt(sum(phase.steps / phase.noise_multiplier / phase.noise_multiplier for phase in phases))
    epsilon = epsilon_from_gaussian(unsampled, delta)  # the same steps on full batches reveal at least as much
    if _is_extreme(phases) or all(phase.is_full_batch for phase in phases):
        return epsilon
    epsilon = min(epsilon, epsilon_from_renyi(ORDERS, renyi_curve(mechanism), delta))
    spacing = spacing_for(phases, accuracy, min(math.log(delta), math.log(0.5)))
    log_smallest = _round_down_to_ladder(math.log(delta))
    profiles = [_compose_cached(phases, spacing, log_smallest, direction, math.inf) for direction in Direction]
    on_lattice = max(math.inf if profile is None else profile.epsilon(delta) for profile in profiles)
    return min(epsilon, on_lattice)


def _is_extreme(phases: tuple[Phase, ...]) -> bool:
    """Return True if there is too little noise, or are too many steps, for a lattice."""
    return any(phase.noise_multiplier < _LEAST_NOISE or phase.steps > _MOST_STEPS for phase in phases)


def _log_success_without_noise(phases: tuple[Phase, ...], log_prior: float) -> float:
    """Bound the log success at any noise by log(1 - (1-q)^T (1 - kappa)), since T steps may never sample the record."""
    if any(phase.is_full_batch for phase in phases):
        return 0.0
    log_never = sum(phase.steps * math.log1p(-phase.sampling_probability) for phase in phases)
    return log_complement(log_never + log_complement(log_prior))


def _log_success_of_one_step(phase: Phase, log_prior: float) -> float:
    """Return the log of (1-q) kappa + q Phi(z + 1/s), with noise multiplier s and Phi(z) = kappa.

    The likelihood ratio increases with the outcome, so the best event is "the outcome exceeds a threshold".
    """
    q = phase.sampling_probability
    sampled = math.log(q) + log_success_from_gaussian(1 / phase.noise_multiplier, log_prior)
    return min(0.0, float(np.logaddexp(math.log1p(-q) + log_prior, sampled)))


def _power_of_largest_outcome(phases: tuple[Phase, ...], log_prior: float) -> float:
    """Return the power of the test that rejects for a large outcome in any step: a lower bound on success.

    If this power is almost one, every upper bound is almost one too. This case needs no lattice, which would be huge at
    little noise.
    """
    steps = sum(phase.steps for phase in phases)
    level = -float(ndtri_exp(min(log_prior - math.log(steps), -1e-300)))  # union bound: size at most kappa
    log_miss = 0.0
    for phase in phases:
        q = phase.sampling_probability
        hit = (1 - q) * float(ndtr(-level)) + q * float(ndtr(1 / phase.noise_multiplier - level))
        log_miss += phase.steps * math.log1p(-min(hit, 1 - 1e-16))  # keeps the logarithm finite
    return -math.expm1(log_miss)


def _log_success_on_lattice(phases: tuple[Phase, ...], log_prior: float, accuracy: float) -> float | None:
    if log_prior < _SMALLEST_ON_LATTICE:
        return None
    spacing = spacing_for(phases, accuracy, log_prior)
    log_smallest = _round_down_to_ladder(log_prior)
    largest = _largest_relevant_loss(phases, log_smallest)
    profile = _compose_cached(phases, spacing, log_smallest, Direction.WITH_RECORD, largest)
    return None if profile is None else math.log(profile.success(math.exp(log_prior)))


def _largest_relevant_loss(phases: tuple[Phase, ...], log_smallest: float) -> float:
    """Return the privacy loss of one step above which the sum over all steps far exceeds every relevant epsilon.

    The optimal event of probability kappa without the record contains the losses above a threshold that is below
    -log kappa. Other steps lower the sum by at most their infima. Counting a larger loss as infinite raises the bound
    by a factor of 1 + exp(-24) at most.
    """
    if any(phase.is_full_batch for phase in phases):
        return math.inf
    infima = sum(phase.steps * math.log1p(-phase.sampling_probability) for phase in phases)
    return 24.0 - infima - min(log_smallest, _TILT_BELOW)


def _round_down_to_ladder(log_smallest: float) -> float:
    """Return a log probability from a short list, at most the given one, so that similar priors share a profile."""
    return 0.0 if log_smallest > _TILT_BELOW else _LADDER * math.floor(log_smallest / _LADDER)


@lru_cache(maxsize=4)
def _compose_cached(
    phases: tuple[Phase, ...], spacing: float, log_smallest: float, direction: Direction, largest: float
) -> PrivacyProfile | None:
    """Compose all steps; losses of one step above ``largest`` count as infinite."""
    steps = sum(phase.steps for phase in phases)
    log_tail = min(_LOG_TAIL, log_smallest - 30) - math.log(steps)  # e^-30: negligible against the smallest prior
    cuts = Cuts(log_tail, largest)
    return compose(phases, spacing=spacing, cuts=cuts, direction=direction, log_smallest=log_smallest)
