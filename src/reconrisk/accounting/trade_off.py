r"""From a privacy guarantee to the largest probability of an event that had probability kappa: numbers, in log space.

Each function maps log kappa to an upper bound on log gamma, where gamma is the largest probability, with the record, of
an event of probability at most kappa without it. For a reconstruction this is the success bound, because against any
fixed reference law an adversary succeeds with probability at most kappa, and trade-off functions are concave.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

Array = NDArray[np.float64]

_EPS = float(np.finfo(np.float64).eps)
_LARGEST_LOGIT = 800.0
_LARGEST_MU = 1e100


def log_complement(log_probability: float) -> float:
    """log(1 - p) from log p, accurate at both ends.

    >>> log_complement(math.log(0.25)) == math.log(0.75), log_complement(-1e4), log_complement(0.0)
    (True, -0.0, -inf)
    """
    if log_probability >= 0:
        return -math.inf
    if log_probability > -math.log(2):
        return math.log(-math.expm1(log_probability))
    return math.log1p(-math.exp(log_probability))


def log_sum_exp(logs: Array) -> Array:
    """Logarithm of a sum of exponentials along the last axis; scipy's own costs as much as a transform here."""
    largest = logs.max(-1, keepdims=True)
    return np.asarray(largest[..., 0] + np.log(np.exp(logs - largest).sum(-1)))


def log_success_from_posterior_odds(epsilon: float, log_prior: float) -> float:
    r"""Pure DP under replacement: posterior odds grow by at most :math:`e^\varepsilon`.

    .. math:: \gamma = \frac{\kappa e^\varepsilon}{1 + \kappa(e^\varepsilon - 1)}

    Guarantee: attained by randomised response.

    >>> round(math.exp(log_success_from_posterior_odds(2.0, math.log(0.1))), 3)
    0.451
    """
    if log_prior == -math.inf:
        return -math.inf
    raised = log_prior + epsilon
    return _clamped(raised - float(np.logaddexp(log_complement(log_prior), raised)), log_prior)


def log_success_from_approximate(epsilon: float, delta: float, log_prior: float) -> float:
    r"""(epsilon, delta)-DP, and epsilon-DP under adding or removing a record for delta = 0.

    .. math:: \gamma = \min(\kappa e^\varepsilon + \delta,\; 1 - e^{-\varepsilon}(1 - \delta - \kappa))

    >>> round(math.exp(log_success_from_approximate(1.0, 0.0, math.log(0.1))), 4)
    0.2718
    """
    log_delta = math.log(delta) if delta > 0 else -math.inf
    first = float(np.logaddexp(log_prior + epsilon, log_delta))
    log_rest = log_complement(min(float(np.logaddexp(log_prior, log_delta)), 0.0))
    return _clamped(min(first, log_complement(log_rest - epsilon)), log_prior)


def log_success_from_gaussian(mu: float, log_prior: float) -> float:
    r"""Gaussian DP.

    .. math:: \gamma = \Phi(\Phi^{-1}(\kappa) + \mu)

    >>> round(math.exp(log_success_from_gaussian(1.0, math.log(0.1))), 4)
    0.3891
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    return _clamped(float(log_ndtr(ndtri_exp(log_prior) + mu)), log_prior)


def log_success_from_zero_concentrated(rho: float, log_prior: float) -> float:
    r"""rho-zCDP: the closed form, or the two-point form at the best of many orders where that is smaller.

    .. math:: \gamma = \exp(-(\sqrt{\log 1/\kappa} - \sqrt\rho)^2) \text{ if } \rho < \log 1/\kappa, \text{ else } 1

    >>> round(math.exp(log_success_from_zero_concentrated(0.5, math.log(0.1))), 3)
    0.484
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    closed = -((math.sqrt(-log_prior) - math.sqrt(rho)) ** 2) if rho < -log_prior else 0.0
    best = math.sqrt(-log_prior / rho) if rho > 0 else math.inf
    spread = np.geomspace(1e-3, 1e3, 241)
    orders = 1 + np.concatenate([spread, min(max(best - 1, 1e-6), 1e12) * np.geomspace(0.25, 4, 61)])
    return _clamped(min(closed, log_success_from_renyi(orders, rho * orders, log_prior)), log_prior)


def log_success_from_renyi(orders: Array, epsilons: Array, log_prior: float) -> float:
    r"""Renyi DP at several orders: the least of their two-point forms, in both orders of the divergence.

    .. math:: \gamma^a\kappa^{1-a} + (1-\gamma)^a(1-\kappa)^{1-a} \le e^{(a-1)\varepsilon}, \qquad
              \kappa^a\gamma^{1-a} + (1-\kappa)^a(1-\gamma)^{1-a} \le e^{(a-1)\varepsilon}

    Assumes: the divergence is bounded both of with against without the record and of without against with.
    Guarantee: never above (kappa e^epsilon)^((a-1)/a), which keeps the first term only.

    >>> round(math.exp(log_success_from_renyi(np.array([2.0, 3.0]), np.array([1.0, 1.5]), math.log(0.1))), 4)
    0.4932
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    log_rest = log_complement(log_prior)
    budgets = (orders - 1) * epsilons * (1 + 4 * _EPS)

    def forward(log_success: Array, log_failure: Array) -> tuple[Array, Array]:
        return orders * log_success + (1 - orders) * log_prior, orders * log_failure + (1 - orders) * log_rest

    def reverse(log_success: Array, log_failure: Array) -> tuple[Array, Array]:
        return orders * log_prior + (1 - orders) * log_success, orders * log_rest + (1 - orders) * log_failure

    def exceeds(terms: _Terms, logit: Array) -> NDArray[np.bool_]:
        log_success, log_failure = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
        first, second = terms(log_success, log_failure)
        # The sum as "first <= budget - second": second is about one for tiny priors and would drown it. What is added
        # is more than the round-off of either side.
        gap = budgets - second + 8 * _EPS * orders * -(log_failure + log_rest) + 1e-300
        slack = 8 * _EPS * orders * -(log_success + log_prior)
        room = second + np.maximum(gap, 0.0) + np.log(-np.expm1(-np.maximum(gap, 0.0)))
        return np.asarray((gap < 0) | (first > room + slack))

    largest = min(_largest_log_success(partial(exceeds, form), log_prior - log_rest) for form in (forward, reverse))
    return _clamped(largest, log_prior)


_Terms: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]


def epsilon_from_gaussian(mu: float, delta: float) -> float:
    r"""Epsilon of mu-Gaussian DP at delta, from above.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)

    >>> round(epsilon_from_gaussian(1.0, 1e-5), 4)
    4.3772
    """

    def log_delta(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        return first + log_complement(min(second - first, 0.0))

    if mu > _LARGEST_MU:
        return math.inf
    if mu == 0 or log_delta(0.0) <= math.log(delta):
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if log_delta(middle) <= math.log(delta) else (middle, high)
    return high * (1 + 1e-12)


def epsilon_from_renyi(orders: Array, epsilons: Array, delta: float) -> float:
    r"""Epsilon at delta from Renyi DP, the least over the orders.

    .. math:: \varepsilon + \log\frac{a-1}{a} - \frac{\log\delta + \log a}{a-1}

    Reference: Proposition 12, `Canonne, Kamath, Steinke (2020) <https://arxiv.org/abs/2004.00010>`_.

    >>> round(epsilon_from_renyi(np.array([8.0]), np.array([4.0]), 1e-5), 4)
    5.2141
    """
    values = epsilons + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(np.where(np.isnan(values), np.inf, values))) * (1 + 1e-12))


def _largest_log_success(exceeds: Callable[[Array], NDArray[np.bool_]], prior_logit: float) -> float:
    """Least over the orders of the largest log gamma that does not exceed, by bisection in the logit; upper end.

    What is no number does not exceed: it counts as reachable, which is the safe side.
    """
    ends = np.array([prior_logit, max(_LARGEST_LOGIT, prior_logit + 1)])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bounded = exceeds(ends[1:])
        low, high = np.full(len(bounded), ends[0]), np.full(len(bounded), ends[1])
        for _ in range(64):
            middle = (low + high) / 2
            over = exceeds(middle)
            low, high = np.where(over, low, middle), np.where(over, middle, high)
    return float(np.min(np.where(bounded, -np.logaddexp(0, -high), 0.0)))


def _clamped(log_success: float, log_prior: float) -> float:
    """Never below the prior, never above one, and the trivial bound for what could not be computed."""
    if math.isnan(log_success):
        return 0.0
    return min(0.0, max(log_success, log_prior))
