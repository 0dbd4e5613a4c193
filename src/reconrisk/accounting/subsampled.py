"""Success and epsilon of Poisson-subsampled Gaussian training, certified: the engine behind the success bounds."""

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
"""Wanted excess of a success bound over the truth."""

_SMALLEST_ON_LATTICE = -60.0
_TILT_BELOW = math.log(1e-4)
_LADDER = 4.0
_LOG_TAIL = math.log(1e-17)
_LEAST_NOISE = 1e-3
_MOST_STEPS = 10**15


def log_success_of_training(mechanism: NoiseMechanism, log_prior: float, accuracy: float = DEFAULT_ACCURACY) -> float:
    r"""Log of the largest probability, with the record, of an event of probability kappa without it.

    .. math:: \gamma = \sup\{P(E): Q(E) \le \kappa\}

    with Q the law of all steps without the record and P with it, each step a mixture
    :math:`(1-q)N(0,\sigma^2) + qN(1,\sigma^2)` against :math:`N(0,\sigma^2)`.

    Assumes: Poisson sampling kept secret; noise multiplier and rate of each step fixed in advance.
    Notation: ``log_prior`` is log kappa.
    Guarantee: in [log kappa, 0] and not below the truth; above it by at most ``accuracy`` in probability (not proved,
    but found on a thousand random settings). Nondecreasing in kappa and, for one phase, in steps and in falling noise,
    up to round-off of 1e-13 times the steps; the same was found, though not proved, for the sampling probability.
    Edge cases: full batch and one subsampled step use their closed forms; kappa below 1e-4 also the Renyi form; where
    no lattice fits into memory, the Renyi form alone.
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
            return 0.0
        on_lattice = _log_success_on_lattice(phases, log_prior, accuracy)
        bounds += [] if on_lattice is None else [on_lattice]
        if on_lattice is None or log_prior < _TILT_BELOW:
            bounds.append(log_success_from_renyi(ORDERS, renyi_curve(mechanism), log_prior))
    return min(0.0, max(min(bounds), log_prior))


def epsilon_of_training(mechanism: NoiseMechanism, delta: float, accuracy: float = DEFAULT_ACCURACY) -> float:
    r"""Epsilon with which the training is (epsilon, delta)-DP under adding or removing a record.

    Guarantee: not below the true epsilon; the same certified profiles as :func:`log_success_of_training`, in both
    directions.
    Edge cases: inf for ``delta = 0``: the Gaussian has no pure epsilon.

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
    epsilon = epsilon_from_gaussian(unsampled, delta)  # sampling only helps
    if _is_extreme(phases) or all(phase.is_full_batch for phase in phases):
        return epsilon
    epsilon = min(epsilon, epsilon_from_renyi(ORDERS, renyi_curve(mechanism), delta))
    spacing = spacing_for(phases, accuracy, min(math.log(delta), math.log(0.5)))
    profiles = [_profile(phases, spacing, _rung(math.log(delta)), direction, math.inf) for direction in Direction]
    on_lattice = max(math.inf if profile is None else profile.epsilon(delta) for profile in profiles)
    return min(epsilon, on_lattice)


def _is_extreme(phases: tuple[Phase, ...]) -> bool:
    """Whether there is so little noise, or are so many steps, that only bounds without a lattice make sense."""
    return any(phase.noise_multiplier < _LEAST_NOISE or phase.steps > _MOST_STEPS for phase in phases)


def _log_success_without_noise(phases: tuple[Phase, ...], log_prior: float) -> float:
    """A record that is never sampled leaves the law without it: gamma <= 1 - (1-q)^T (1 - kappa), at any noise."""
    if any(phase.is_full_batch for phase in phases):
        return 0.0
    log_never = sum(phase.steps * math.log1p(-phase.sampling_probability) for phase in phases)
    return log_complement(log_never + log_complement(log_prior))


def _log_success_of_one_step(phase: Phase, log_prior: float) -> float:
    """The likelihood ratio grows with x, so the best event is a half-line: (1-q) kappa + q Phi(z + 1/s)."""
    q = phase.sampling_probability
    sampled = math.log(q) + log_success_from_gaussian(1 / phase.noise_multiplier, log_prior)
    return min(0.0, float(np.logaddexp(math.log1p(-q) + log_prior, sampled)))


def _power_of_largest_outcome(phases: tuple[Phase, ...], log_prior: float) -> float:
    """Power of the test that rejects for a large outcome in any one step: a lower bound on success.

    Where it is almost one, so is every bound, and at little noise the lattice would be huge.
    """
    steps = sum(phase.steps for phase in phases)
    level = -float(ndtri_exp(min(log_prior - math.log(steps), -1e-300)))  # union bound: size at most kappa
    log_miss = 0.0
    for phase in phases:
        q = phase.sampling_probability
        hit = (1 - q) * float(ndtr(-level)) + q * float(ndtr(1 / phase.noise_multiplier - level))
        log_miss += phase.steps * math.log1p(-min(hit, 1 - 1e-16))
    return -math.expm1(log_miss)


def _log_success_on_lattice(phases: tuple[Phase, ...], log_prior: float, accuracy: float) -> float | None:
    if log_prior < _SMALLEST_ON_LATTICE:
        return None
    spacing = spacing_for(phases, accuracy, log_prior)
    rung = _rung(log_prior)
    profile = _profile(phases, spacing, rung, Direction.WITH_RECORD, _largest_relevant_loss(phases, rung))
    return None if profile is None else math.log(profile.success(math.exp(log_prior)))


def _largest_relevant_loss(phases: tuple[Phase, ...], rung: float) -> float:
    """Loss of one step above which the sum exceeds every epsilon of interest by far, whatever the other steps do.

    An event of Q-mass kappa begins below -log kappa; other steps lower the sum by at most their infima. Counting such a
    loss as infinite costs a factor 1 + exp(-24).
    """
    if any(phase.is_full_batch for phase in phases):
        return math.inf
    infima = sum(phase.steps * math.log1p(-phase.sampling_probability) for phase in phases)
    return 24.0 - infima - min(rung, _TILT_BELOW)


def _rung(log_smallest: float) -> float:
    """A probability at most the given one, from a short list, so that near priors share one profile."""
    return 0.0 if log_smallest > _TILT_BELOW else _LADDER * math.floor(log_smallest / _LADDER)


@lru_cache(maxsize=4)
def _profile(
    phases: tuple[Phase, ...], spacing: float, log_smallest: float, direction: Direction, largest: float
) -> PrivacyProfile | None:
    """``largest`` caps the loss of one step; beyond it, it counts as infinite."""
    steps = sum(phase.steps for phase in phases)
    log_tail = min(_LOG_TAIL, log_smallest - 30) - math.log(steps)
    cuts = Cuts(log_tail, largest)
    return compose(phases, spacing=spacing, cuts=cuts, direction=direction, log_smallest=log_smallest)
