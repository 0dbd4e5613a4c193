"""Success bound of subsampled training: q=.01, T=10,000, sigma=1, prior success .1.

The truth, by inversion of the characteristic function, is 0.5050742; a bound below it is unsafe.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from reconrisk.accounting.subsampled import _compose_cached, log_success_of_training
from reconrisk.core.mechanism import dp_sgd

RUN = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10_000)


def _ours(accuracy: float) -> Callable[[], object]:
    def work() -> float:
        _compose_cached.cache_clear()  # the time of a first question, not of a remembered answer
        return math.exp(log_success_of_training(RUN, math.log(0.1), accuracy))

    return work


def ours() -> Callable[[], object]:
    """At the default accuracy, 2e-5."""
    return _ours(2e-5)


def ours_coarse() -> Callable[[], object]:
    """At accuracy 1e-4."""
    return _ours(1e-4)


def riskcal() -> Callable[[], object]:
    """The trade-off curve of riskcal, at its default grid."""
    from riskcal.calibration import get_beta_for_dpsgd

    return lambda: 1 - float(get_beta_for_dpsgd(alpha=0.1, noise_multiplier=1.0, sample_rate=0.01, num_steps=10_000))


def dp_accounting() -> Callable[[], object]:
    """The privacy loss distribution of dp-accounting, and the same minimum over its profile."""
    import numpy as np
    from dp_accounting.pld import privacy_loss_distribution

    def work() -> float:
        pld = privacy_loss_distribution.from_gaussian_mechanism(
            1.0, sampling_prob=0.01, value_discretization_interval=1e-3
        ).self_compose(10_000)
        epsilons = np.linspace(0, 8, 400)
        deltas = np.asarray(pld._pmf_remove.get_delta_for_epsilon(epsilons))
        return float(np.min(deltas + 0.1 * np.exp(epsilons)))

    return work


CONTENDERS = {
    "reconrisk": ours,
    "reconrisk, accuracy 1e-4": ours_coarse,
    "riskcal": riskcal,
    "dp-accounting": dp_accounting,
}
