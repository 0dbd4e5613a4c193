r"""Conversion of privacy guarantees to success bounds, in log space.

Each function maps log kappa to an upper bound on log gamma. Kappa is the prior success. Gamma is the largest
probability under the law with the record of an event that has probability at most kappa under the law without it. Gamma
bounds the success of a reconstruction: if the release has the law without the record, an adversary succeeds with
probability at most kappa. Gamma is a concave function of kappa.
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
_LARGEST_LOGIT = 800.0  # 1 - gamma underflows beyond a logit of 745
_LARGEST_MU = 1e100  # keeps mu^2 far from overflow


def log_complement(log_probability: float) -> float:
    """Return log(1 - p) from log p, accurate for p near 0 and near 1.

    Args:
        log_probability: Natural logarithm of p.

    Returns:
        The natural logarithm of 1 - p.

    Edge cases: p of 1 or more gives -inf.

    >>> log_complement(math.log(0.25)) == math.log(0.75), log_complement(-1e4), log_complement(0.0)
    (True, -0.0, -inf)
    """
    if log_probability >= 0:
        return -math.inf
    if log_probability > -math.log(2):  # p > 1/2: expm1 keeps the digits of 1 - p
        return math.log(-math.expm1(log_probability))
    return math.log1p(-math.exp(log_probability))


def log_sum_exp(logs: Array) -> Array:
    """Return the logarithm of a sum of exponentials along the last axis.

    Args:
        logs: Natural logarithms of the terms.

    Returns:
        The logarithms of the sums.
    """
    # scipy.special.logsumexp has an overhead that is comparable to an FFT at these sizes.
    largest = logs.max(-1, keepdims=True)
    return np.asarray(largest[..., 0] + np.log(np.exp(logs - largest).sum(-1)))


def log_success_from_posterior_odds(epsilon: float, log_prior: float) -> float:
    r"""Success bound from pure DP under replacement: posterior odds grow by at most :math:`e^\varepsilon`.

    .. math:: \gamma = \frac{\kappa e^\varepsilon}{1 + \kappa(e^\varepsilon - 1)}

    Args:
        epsilon: Privacy parameter.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The natural logarithm of :math:`\gamma`.

    Guarantee: attained by randomised response.

    >>> round(math.exp(log_success_from_posterior_odds(2.0, math.log(0.1))), 3)
    0.451
    """
    if log_prior == -math.inf:
        return -math.inf
    raised = log_prior + epsilon
    return _clip_log_success(raised - float(np.logaddexp(log_complement(log_prior), raised)), log_prior)


def log_success_from_approximate(epsilon: float, delta: float, log_prior: float) -> float:
    r"""Success bound from (epsilon, delta)-DP; ``delta = 0`` is pure DP under adding or removing a record.

    .. math:: \gamma = \min(\kappa e^\varepsilon + \delta,\; 1 - e^{-\varepsilon}(1 - \delta - \kappa))

    Args:
        epsilon: Privacy parameter.
        delta: Probability with which the guarantee may fail.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The natural logarithm of :math:`\gamma`.

    >>> round(math.exp(log_success_from_approximate(1.0, 0.0, math.log(0.1))), 4)
    0.2718
    """
    log_delta = math.log(delta) if delta > 0 else -math.inf
    first = float(np.logaddexp(log_prior + epsilon, log_delta))
    log_rest = log_complement(min(float(np.logaddexp(log_prior, log_delta)), 0.0))
    return _clip_log_success(min(first, log_complement(log_rest - epsilon)), log_prior)


def log_success_from_gaussian(mu: float, log_prior: float) -> float:
    r"""Success bound from Gaussian DP.

    .. math:: \gamma = \Phi(\Phi^{-1}(\kappa) + \mu)

    Args:
        mu: Privacy parameter.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The natural logarithm of :math:`\gamma`.

    >>> round(math.exp(log_success_from_gaussian(1.0, math.log(0.1))), 4)
    0.3891
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    return _clip_log_success(float(log_ndtr(ndtri_exp(log_prior) + mu)), log_prior)


def log_success_from_zero_concentrated(rho: float, log_prior: float) -> float:
    r"""Success bound from zero-concentrated DP.

    It is the smaller of the closed form below and of :func:`log_success_from_renyi` at many orders.

    .. math:: \gamma = \exp(-(\sqrt{\log 1/\kappa} - \sqrt\rho)^2) \text{ if } \rho < \log 1/\kappa, \text{ else } 1

    Args:
        rho: Privacy parameter.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The natural logarithm of :math:`\gamma`.

    >>> round(math.exp(log_success_from_zero_concentrated(0.5, math.log(0.1))), 3)
    0.484
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    closed = -((math.sqrt(-log_prior) - math.sqrt(rho)) ** 2) if rho < -log_prior else 0.0
    # Any order gives a valid bound. The grid covers the usual orders, and the neighbourhood of the order at which the
    # closed form is attained, sqrt(log(1/kappa) / rho).
    best = math.sqrt(-log_prior / rho) if rho > 0 else math.inf
    spread = np.geomspace(1e-3, 1e3, 241)
    orders = 1 + np.concatenate([spread, min(max(best - 1, 1e-6), 1e12) * np.geomspace(0.25, 4, 61)])
    return _clip_log_success(min(closed, log_success_from_renyi(orders, rho * orders, log_prior)), log_prior)


def log_success_from_renyi(orders: Array, epsilons: Array, log_prior: float) -> float:
    r"""Success bound from Renyi DP: the least over the orders of the largest gamma that satisfies both inequalities.

    .. math:: \gamma^a\kappa^{1-a} + (1-\gamma)^a(1-\kappa)^{1-a} \le e^{(a-1)\varepsilon}, \qquad
              \kappa^a\gamma^{1-a} + (1-\kappa)^a(1-\gamma)^{1-a} \le e^{(a-1)\varepsilon}

    Args:
        orders: Orders a of the divergence, above 1.
        epsilons: Bound :math:`\varepsilon` on the divergence at each order.
        log_prior: Natural logarithm of the prior success :math:`\kappa`.

    Returns:
        The natural logarithm of :math:`\gamma`.

    Assumes: ``epsilons`` bound the divergence of the law with the record from the law without it, and the divergence in
    the other direction.
    Guarantee: never above (kappa e^epsilon)^((a-1)/a), which keeps the first term only.

    >>> round(math.exp(log_success_from_renyi(np.array([2.0, 3.0]), np.array([1.0, 1.5]), math.log(0.1))), 4)
    0.4932
    """
    if log_prior in (0.0, -math.inf):
        return log_prior
    log_rest = log_complement(log_prior)
    budgets = (orders - 1) * epsilons * (1 + 4 * _EPS)  # rounded up by more than the round-off of two products

    def forward(log_success: Array, log_failure: Array) -> tuple[Array, Array]:
        return orders * log_success + (1 - orders) * log_prior, orders * log_failure + (1 - orders) * log_rest

    def reverse(log_success: Array, log_failure: Array) -> tuple[Array, Array]:
        return orders * log_prior + (1 - orders) * log_success, orders * log_rest + (1 - orders) * log_failure

    def exceeds(terms: _Terms, logit: Array) -> NDArray[np.bool_]:
        log_success, log_failure = -np.logaddexp(0, -logit), -np.logaddexp(0, logit)
        first, second = terms(log_success, log_failure)
        # The sum of both terms is compared as "first <= budget - second": for tiny priors the second term is about one
        # and would absorb the first. The added terms exceed the round-off of either side.
        gap = budgets - second + 8 * _EPS * orders * -(log_failure + log_rest) + 1e-300
        slack = 8 * _EPS * orders * -(log_success + log_prior)
        room = second + np.maximum(gap, 0.0) + np.log(-np.expm1(-np.maximum(gap, 0.0)))
        return np.asarray((gap < 0) | (first > room + slack))

    largest = min(_largest_log_success(partial(exceeds, form), log_prior - log_rest) for form in (forward, reverse))
    return _clip_log_success(largest, log_prior)


_Terms: TypeAlias = Callable[[Array, Array], tuple[Array, Array]]


def epsilon_from_gaussian(mu: float, delta: float) -> float:
    r"""Upper bound on the epsilon of Gaussian DP at a given delta, by bisection.

    .. math:: \delta = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu)

    Args:
        mu: Privacy parameter of Gaussian DP.
        delta: Probability with which the guarantee may fail, in (0, 1).

    Returns:
        The epsilon.

    Edge cases: inf for ``mu`` above 1e100.

    >>> round(epsilon_from_gaussian(1.0, 1e-5), 4)
    4.3772
    """

    def log_delta(epsilon: float) -> float:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        # log(e^first - e^second); round-off may make the second term the larger one, where the difference is about 0
        return first + log_complement(min(second - first, 0.0))

    if mu > _LARGEST_MU:
        return math.inf
    if mu == 0 or log_delta(0.0) <= math.log(delta):
        return 0.0
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1.0  # the Renyi form, hence safe
    for _ in range(100):  # more than the bits of a float
        middle = (low + high) / 2
        low, high = (low, middle) if log_delta(middle) <= math.log(delta) else (middle, high)
    return high * (1 + 1e-12)  # covers the round-off of log_delta


def epsilon_from_renyi(orders: Array, epsilons: Array, delta: float) -> float:
    r"""Upper bound on the epsilon at a given delta from Renyi DP: the least over the orders.

    .. math:: \varepsilon + \log\frac{a-1}{a} - \frac{\log\delta + \log a}{a-1}

    Args:
        orders: Orders a of the divergence, above 1.
        epsilons: Bound :math:`\varepsilon` on the divergence at each order.
        delta: Probability with which the guarantee may fail, in (0, 1).

    Returns:
        The epsilon; inf if no order gives a finite one.

    Reference: Proposition 12, `Canonne, Kamath, Steinke (2020) <https://arxiv.org/abs/2004.00010>`_.

    >>> round(epsilon_from_renyi(np.array([8.0]), np.array([4.0]), 1e-5), 4)
    5.2141
    """
    values = epsilons + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    # NaN must not become the minimum; inf is the safe value.
    return max(0.0, float(np.min(np.where(np.isnan(values), np.inf, values))) * (1 + 1e-12))


def _largest_log_success(exceeds: Callable[[Array], NDArray[np.bool_]], prior_logit: float) -> float:
    """Return the least over the orders of the largest feasible log gamma, by bisection in the logit from above.

    A comparison with NaN is False, so such a gamma counts as feasible, which is the safe side.
    """
    ends = np.array([prior_logit, max(_LARGEST_LOGIT, prior_logit + 1)])
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        bounded = exceeds(ends[1:])
        low, high = np.full(len(bounded), ends[0]), np.full(len(bounded), ends[1])
        for _ in range(64):  # the bracket shrinks to about 1600 / 2^64 = 1e-16
            middle = (low + high) / 2
            over = exceeds(middle)
            low, high = np.where(over, low, middle), np.where(over, middle, high)
    return float(np.min(np.where(bounded, -np.logaddexp(0, -high), 0.0)))


def _clip_log_success(log_success: float, log_prior: float) -> float:
    """Clip a bound to [log_prior, 0]; NaN becomes the trivial bound 0."""
    if math.isnan(log_success):
        return 0.0
    return min(0.0, max(log_success, log_prior))
