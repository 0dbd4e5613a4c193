"""Lower bounds from canaries, 1,000 and 10,000 runs at level .05, against the values of an independent program.

Each number is a mean, followed by its reference value and the difference; asked for are 5 %, and a larger bound is a
better one. One step is stated as mu (true 0.5, 1 and 2); 100 steps with sampling probability 0.1 and noise multiplier 1
as epsilon at delta 1e-5 (true 7.05). A bound inside a family holds for mechanisms of that family; only the last holds
for any mechanism. Means are exact over the binomial number of right guesses, except the last, which needs the scores of
simulated runs. Its thresholds are the defaults, which were chosen on simulations that include this training.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import binom

from reconrisk.accounting.subsampled import epsilon_of_training, log_success_of_training
from reconrisk.core.mechanism import dp_sgd
from reconrisk.statistics.betting import CANARY_PRIOR, count_limits
from reconrisk.statistics.intervals import clopper_pearson
from reconrisk.statistics.privacy_lower_bounds import (
    LIKELIHOOD_THRESHOLDS,
    accuracy_cap,
    gaussian_cap,
    gaussian_epsilon,
    gaussian_mu_lower,
    shape_free_epsilon,
)

RUNS = (1_000, 10_000)
ALPHA, DELTA = 0.05, 1e-5
STEPS, RATE = 100, 0.1
REPEATS = {1_000: 100, 10_000: 20}


def beside(measured: float, reference: float) -> str:
    """A number, its reference value, and the difference in percent."""
    return f"{measured:.4g} ({reference:g}, {100 * (measured / reference - 1):+.1f} %)"


def mean_bound(bound: Callable[[int, int], float], accuracy: float, runs: int) -> float:
    """The mean over the number of right guesses, up to eight standard deviations."""
    width = 8 * math.sqrt(runs * accuracy * (1 - accuracy))
    counts = np.arange(max(0, int(runs * accuracy - width)), min(runs, int(runs * accuracy + width)) + 1)
    return float(sum(binom.pmf(counts, runs, accuracy) * [bound(int(count), runs) for count in counts]))


def training_cap(noise_multiplier: float) -> float:
    """The largest share of right guesses about one canary in every step, from the certified loss distribution."""
    run = dp_sgd(noise_multiplier=noise_multiplier, sampling_probability=RATE, steps=STEPS)

    def trade_off(alarm: float) -> float:
        return max(0.0, -math.expm1(log_success_of_training(run, math.log(alarm)))) if alarm else 1.0

    return accuracy_cap(trade_off)


def one_step(references: dict[float, tuple[float, float]], anytime: bool) -> Callable[[], str]:
    """Mean lower bounds on mu for canaries of one step."""

    def bound(right: int, runs: int) -> float:
        return gaussian_mu_lower(right, runs, alpha=ALPHA, anytime=anytime)

    def work() -> str:
        return "; ".join(
            ", ".join(
                beside(mean_bound(bound, gaussian_cap(mu), runs), each)
                for runs, each in zip(RUNS, expected, strict=True)
            )
            for mu, expected in references.items()
        )

    return work


def one_step_anytime() -> Callable[[], str]:
    """One step, and one may stop at will."""
    return one_step({0.5: (0.25, 0.42), 1.0: (0.74, 0.915), 2.0: (1.71, 1.90)}, anytime=True)


def one_step_fixed() -> Callable[[], str]:
    """One step, and the number of runs is fixed in advance."""
    return one_step({0.5: (0.37, 0.46), 1.0: (0.86, 0.957), 2.0: (1.83, 1.95)}, anytime=False)


def of_family(anytime: bool, references: tuple[float, float]) -> Callable[[], str]:
    """Epsilon of the training with the least noise that has at most this share of right guesses."""
    noises = np.geomspace(0.5, 30.0, 80)
    caps = np.array([training_cap(noise) for noise in noises])
    epsilons = [
        epsilon_of_training(dp_sgd(noise_multiplier=noise, sampling_probability=RATE, steps=STEPS), DELTA)
        for noise in noises
    ]
    accuracy = training_cap(1.0)

    def bound(right: int, runs: int) -> float:
        if anytime:
            share = count_limits(right, runs, alpha=ALPHA, prior=CANARY_PRIOR)[0]
        else:
            share = clopper_pearson(right, runs, 1 - 2 * ALPHA).low
        return float(np.interp(share, caps[::-1], epsilons[::-1], left=0.0))

    return lambda: ", ".join(
        beside(mean_bound(bound, accuracy, runs), each) for runs, each in zip(RUNS, references, strict=True)
    )


def family_anytime() -> Callable[[], str]:
    """Subsampled Gaussian training, and one may stop at will."""
    return of_family(anytime=True, references=(4.9, 6.3))


def family_fixed() -> Callable[[], str]:
    """Subsampled Gaussian training, and the number of runs is fixed in advance."""
    return of_family(anytime=False, references=(5.9, 6.6))


def gaussian_family() -> Callable[[], str]:
    """As if the training had the shape of Gaussian DP, and one may stop at will."""
    accuracy = training_cap(1.0)

    def bound(right: int, runs: int) -> float:
        return gaussian_epsilon(gaussian_mu_lower(right, runs, alpha=ALPHA), DELTA)

    return lambda: ", ".join(
        beside(mean_bound(bound, accuracy, runs), each) for runs, each in zip(RUNS, (3.9, 4.75), strict=True)
    )


def simulate_runs(runs: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihood ratios of training with noise multiplier 1, and the coins."""
    truths = rng.random(runs) < 0.5
    scores = np.zeros(runs)
    for _ in range(STEPS):
        outcomes = rng.normal(size=runs) + (truths & (rng.random(runs) < RATE))
        scores += np.log1p(RATE * np.expm1(outcomes - 0.5))
    return scores, truths


def any_mechanism() -> Callable[[], str]:
    """Five preset thresholds, and one may stop at will."""
    rng = np.random.default_rng(0)
    simulated = {runs: [simulate_runs(runs, rng) for _ in range(REPEATS[runs])] for runs in RUNS}

    def work() -> str:
        means = []
        for runs in RUNS:
            bounds = [
                shape_free_epsilon(scores, truths, thresholds=LIKELIHOOD_THRESHOLDS, delta=DELTA, alpha=ALPHA)
                for scores, truths in simulated[runs]
            ]
            means.append(float(np.mean(bounds)))
        return ", ".join(beside(mean, each) for mean, each in zip(means, (1.50, 2.50), strict=True))

    return work


CONTENDERS = {
    "one step, anytime": one_step_anytime,
    "one step, fixed number": one_step_fixed,
    "100 steps, anytime": family_anytime,
    "100 steps, fixed number": family_fixed,
    "100 steps, Gaussian shape": gaussian_family,
    "100 steps, any mechanism": any_mechanism,
}
