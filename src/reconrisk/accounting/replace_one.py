"""Renyi divergence of order 2 when a record is replaced: what lower bounds on the mean squared error need."""

from __future__ import annotations

import math

import numpy as np

from reconrisk.accounting.phases import Phase, phases_of
from reconrisk.accounting.renyi import OVERFLOW
from reconrisk.core.mechanism import NoiseMechanism


def replace_one_order_two(mechanism: NoiseMechanism) -> float:
    r"""Upper bound on the Renyi divergence of order 2 between data sets that differ in one record.

    .. math:: \varepsilon_2 = \sum_{steps} \log\Big(1 + \frac{q^2}{(1-q)/A + q/B}\Big), \quad
              A = 2(e^{1/\sigma^2} - e^{-1/\sigma^2}),\; B = e^{4/\sigma^2} - 1

    Assumes: Poisson sampling; the two records contribute vectors of norm at most the clip norm, opposite at worst.
    Guarantee: not below the divergence, adaptive composition included; exact for full batches, (2/sigma)^2 each.
    Edge cases: inf from 1e290 on.
    Reference: Theorem 1, guo2022, which needs this neighbouring relation; its experiments use the smaller
    add-or-remove value T log(1 + q^2(e^(1/sigma^2) - 1)).

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> round(replace_one_order_two(dp_sgd(noise_multiplier=2.0, steps=3)), 12)
    3.0
    >>> round(replace_one_order_two(dp_sgd(noise_multiplier=1.0, sampling_probability=0.1)), 4)
    0.0504
    """
    total = float(sum(phase.steps * _log_one_plus_chi_square(phase) for phase in phases_of(mechanism)))
    return total if total < OVERFLOW else math.inf


def _log_one_plus_chi_square(phase: Phase) -> float:
    q, inverse = phase.sampling_probability, 1 / phase.noise_multiplier / phase.noise_multiplier
    if phase.is_full_batch or inverse == math.inf:
        return 4 * inverse
    log_b = _log_expm1(4 * inverse)
    log_a = math.log(2) - inverse + _log_expm1(2 * inverse)
    log_denominator = float(np.logaddexp(math.log1p(-q) - log_a, math.log(q) - log_b))
    return float(np.logaddexp(0.0, 2 * math.log(q) - log_denominator))


def _log_expm1(x: float) -> float:
    """log(e^x - 1) without overflow."""
    return x + math.log(-math.expm1(-x))
