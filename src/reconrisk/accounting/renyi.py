"""Renyi divergences of the subsampled Gaussian mechanism, rounded to the safe side.

:func:`renyi_curve` covers whole and fractional orders when a record is added or removed. :func:`replace_one_order_two`
is the divergence of order 2 when a record is replaced, which lower bounds on the mean squared error need.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from reconrisk.accounting.phases import Phase, phases_of
from reconrisk.accounting.trade_off import log_sum_exp
from reconrisk.core.mechanism import NoiseMechanism
from reconrisk.core.validation import invalid_input

Array = NDArray[np.float64]

_FRACTIONS = (1.01, 1.02, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.25, 2.5, 2.75, 3.5, 4.5)
ORDERS: Array = np.unique(np.concatenate([_FRACTIONS, np.arange(2, 33), np.rint(np.geomspace(32, 4096, 29))]))
"""Default orders of a Renyi curve."""

_MAX_NODES = 2**13  # bounds time and memory; little noise would need more nodes
_LARGEST_QUADRATURE_ORDER = 64.0  # larger fractional orders use the chord; the default orders above 4.5 are whole
_MARGIN = 1e-12  # relative; covers the round-off of the log moments
_LEAST_NOISE = 1e-100  # divergences overflow for less noise

OVERFLOW = 1e290
"""Divergences from this value on are reported as infinite."""
_ROUND_OFF = 1e-14  # round-off of a sum of thousands of terms, and the truncated tails


def renyi_curve(mechanism: NoiseMechanism, orders: Array = ORDERS) -> Array:
    r"""Return upper bounds on the Renyi divergences of all steps, with the record against without it.

    .. math:: \varepsilon(a) = \sum_{steps} \frac{1}{a-1} \log E_Q\left(1 - q + q e^{(2x-1)/2\sigma^2}\right)^a

    Here a is the order, q the sampling probability, :math:`\sigma` the noise multiplier, and x has the law
    :math:`Q = N(0, \sigma^2)`.

    Args:
        mechanism: A mechanism of subsampled Gaussian steps.
        orders: Finite orders above 1.

    Returns:
        The divergence at each order; inf where it overflows.

    Raises:
        InvalidInput: If there is no order, an order is not a finite number above 1, or the mechanism has no phases.

    Assumes: Poisson sampling; add-or-remove neighbours. The divergence in the other direction is not larger
    (Mironov, Talwar, Zhang 2019, Theorem 5).
    Guarantee: not below the divergence. Whole orders use their finite sum. Fractional orders use a trapezoidal rule
    plus its error bound or, if that needs too many nodes, the chord between whole orders (the log moment is convex in
    the order).

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> curve = renyi_curve(dp_sgd(noise_multiplier=2.0, steps=8), np.array([2.0, 3.5]))
    >>> curve.round(6).tolist()
    [2.0, 3.5]
    """
    orders = np.asarray(orders, dtype=float)
    if orders.ndim != 1 or not len(orders) or not np.all((orders > 1) & np.isfinite(orders)):
        raise invalid_input("orders", orders.tolist(), "to be finite numbers > 1")
    total = np.zeros(len(orders))
    for phase in phases_of(mechanism):
        total += phase.steps * (_log_moments(phase, orders) if phase.noise_multiplier > _LEAST_NOISE else np.inf)
    curve = total / (orders - 1) * (1 + _MARGIN)
    return np.where(curve < OVERFLOW, curve, np.inf)


def _log_moments(phase: Phase, orders: Array) -> Array:
    """Return log E_Q (dP/dQ)^order of one step."""
    if phase.is_full_batch:
        return orders * (orders - 1) / 2 / phase.noise_multiplier / phase.noise_multiplier
    below, above = np.floor(orders), np.ceil(orders)
    whole = np.unique(np.concatenate([below, above]))
    values = np.array([_whole_log_moment(phase, int(order)) for order in whole])
    share = orders - below
    chord = (1 - share) * values[np.searchsorted(whole, below)] + share * values[np.searchsorted(whole, above)]
    fractional = (share > 0) & (orders <= _LARGEST_QUADRATURE_ORDER)
    if fractional.any():
        chord[fractional] = np.minimum(chord[fractional], _quadrature(phase, orders[fractional]))
    return np.asarray(chord)


def _whole_log_moment(phase: Phase, order: int) -> float:
    """Return the binomial sum (Mironov, Talwar, Zhang 2019, section 3.3) in log space; all terms are positive."""
    if order == 1:
        return 0.0
    q = phase.sampling_probability
    k = np.arange(order + 1)
    choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    logs = choose + (order - k) * math.log1p(-q) + k * math.log(q)
    gain = k * (k - 1) / 2 / phase.noise_multiplier / phase.noise_multiplier
    with np.errstate(divide="ignore"):
        # The binomial weights sum to one. Summing only the excess over one keeps digits of a tiny divergence.
        log_excess = gain + np.log(-np.expm1(-gain))
    return float(np.logaddexp(0.0, log_sum_exp(logs + log_excess))) * (1 + 1e-11)  # covers the error of gammaln


def _quadrature(phase: Phase, orders: Array) -> Array:
    r"""Compute log E_Q R^a for the likelihood ratio R by the trapezoidal rule; inf if it needs too many nodes.

    Here a is the order, s the noise multiplier and x the variable of integration. The integrand is analytic for
    |Im x| < pi s^2. There it is at most :math:`e^{b^2/2s^2}` times its value on the real line, with b = Im x. With
    nodes at distance :math:`2\pi b/(36 + b^2/2s^2)` the relative error is therefore at most 3e-16.
    """
    s, q = phase.noise_multiplier, phase.sampling_probability
    width = min(math.pi * s * s, 6 * s)
    step = 2 * math.pi * width / (36 + width * width / 2 / s / s)
    largest = float(orders.max())
    # The integrand has its mass between 0 and the order; _ROUND_OFF covers the truncated tails.
    low, high = -9 * s, largest + s * math.sqrt(2 * (40 + largest * math.log(1 / q)))
    nodes = math.ceil((high - low) / step)
    if nodes > _MAX_NODES:
        return np.full(len(orders), np.inf)
    x = low + step * np.arange(nodes + 1)
    ratio = np.logaddexp(math.log1p(-q), math.log(q) + (x - 0.5) / s / s)
    log_density = -((x / s) ** 2) / 2 - math.log(s * math.sqrt(2 * math.pi) / step)
    return log_sum_exp(np.multiply.outer(orders, ratio) + log_density) + _ROUND_OFF


def replace_one_order_two(mechanism: NoiseMechanism) -> float:
    r"""Upper bound on the Renyi divergence of order 2 between data sets that differ in one record.

    .. math:: \varepsilon_2 = \sum_{steps} \log\Big(1 + \frac{q^2}{(1-q)/A + q/B}\Big), \quad
              A = 2(e^{1/\sigma^2} - e^{-1/\sigma^2}),\; B = e^{4/\sigma^2} - 1

    Here q is the sampling probability and :math:`\sigma` the noise multiplier of a step.

    Args:
        mechanism: A mechanism of subsampled Gaussian steps.

    Returns:
        The bound.

    Raises:
        InvalidInput: If the mechanism has no phases.

    Assumes: Poisson sampling; the two records contribute vectors of norm at most the clip norm, opposite at worst.
    Guarantee: not below the divergence, adaptive composition included; exact for full batches, (2/sigma)^2 each.
    Edge cases: a bound of 1e290 or more becomes inf.
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
    log_a = math.log(2) - inverse + _log_expm1(2 * inverse)  # A = 2 e^(-1/s^2) (e^(2/s^2) - 1)
    log_denominator = float(np.logaddexp(math.log1p(-q) - log_a, math.log(q) - log_b))
    return float(np.logaddexp(0.0, 2 * math.log(q) - log_denominator))


def _log_expm1(x: float) -> float:
    """Return log(e^x - 1) without overflow."""
    return x + math.log(-math.expm1(-x))
