"""Smallest noise at which identification from prior .1 stays below .2: q=.01, T=10,000.

The truth is 2.37942; a smaller answer is unsafe. riskcal is given brackets: with its default one it takes minutes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from reconrisk.accounting.calibration import smallest_noise_multiplier
from reconrisk.accounting.subsampled import _compose_cached


def ours() -> Callable[[], object]:
    """Coarse lattice first, then the certified one."""

    def work() -> float:
        _compose_cached.cache_clear()
        return smallest_noise_multiplier(
            sampling_probability=0.01, steps=10_000, log_prior=math.log(0.1), log_target=math.log(0.2)
        ).value

    return work


def _riskcal(low: float, high: float) -> Callable[[], object]:
    from riskcal.calibration import find_noise_multiplier_for_err_rates_dpsgd

    return lambda: float(
        find_noise_multiplier_for_err_rates_dpsgd(
            alpha=0.1, beta=0.8, sample_rate=0.01, num_steps=10_000, noise_min=low, noise_max=high
        )
    )


def riskcal_wide() -> Callable[[], object]:
    """The call of riskcal for somebody who knows the order of magnitude."""
    return _riskcal(1.0, 10.0)


def riskcal_narrow() -> Callable[[], object]:
    """The call of riskcal for somebody who knows the answer already."""
    return _riskcal(1.5, 4.0)


CONTENDERS = {"reconrisk": ours, "riskcal in [1, 10]": riskcal_wide, "riskcal in [1.5, 4]": riskcal_narrow}
