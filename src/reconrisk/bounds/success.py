"""Upper bounds on the probability that any adversary with a prior reconstructs the target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from reconrisk.accounting.phases import WITH_PHASES, phases_of
from reconrisk.accounting.subsampled import DEFAULT_ACCURACY, log_success_of_training
from reconrisk.accounting.trade_off import (
    log_success_from_approximate,
    log_success_from_gaussian,
    log_success_from_posterior_odds,
    log_success_from_renyi,
    log_success_from_zero_concentrated,
)
from reconrisk.bounds.prior_success import PriorSuccess
from reconrisk.core.guarantee import (
    IDEAL_NOISE,
    INDEPENDENT_RECORDS,
    Guarantee,
    Quantity,
    Scope,
    probability_from_log,
)
from reconrisk.core.mechanism import (
    ApproximateDP,
    GaussianDP,
    Mechanism,
    Neighbouring,
    NoiseMechanism,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
)
from reconrisk.core.papers import Reference
from reconrisk.core.threat import STRONGEST
from reconrisk.core.validation import (
    check_nonnegative,
    check_positive,
    check_probability,
    check_real,
    check_whole,
    invalid_input,
)

_PRIOR = "prior_success is the best success of an adversary who knows everything except the release"
_STATED = "the stated privacy guarantee covers everything released"
_CLIPPED = "each record adds at most clip_norm to the release, under noise of noise_multiplier times clip_norm"
_SAMPLED = "each record enters each step by its own secret coin (Poisson sampling), not by fixed batches or shuffling"


@dataclass(frozen=True)
class _Bound:
    """Bound on the log success probability, with its reference and assumptions."""

    log_success: float
    reference: Reference
    assumptions: tuple[str, ...]


def success_upper_bound(
    mechanism: Mechanism,
    *,
    prior_success: float | PriorSuccess | None = None,
    log_prior_success: float | None = None,
    accuracy: float = DEFAULT_ACCURACY,
    group_size: int = 1,
) -> Guarantee:
    r"""Upper bound on the probability that any adversary reconstructs the target.

    .. math:: \gamma = \sup\{P(E): Q(E) \le \kappa\}

    Here E is an event, P the law of the release with the record, and Q the law without it (or with another record). The
    bound uses the tightest known formula for each kind of mechanism. mu is the parameter of Gaussian DP:

    ==================================  =====================================================================
    Gaussian, full batch, Gaussian DP   Phi(Phi^-1(kappa) + mu)
    Poisson-subsampled, schedules       certified composition of privacy losses
    epsilon-DP, replaced record         kappa e^eps / (1 + kappa (e^eps - 1))
    epsilon-DP, added or removed        min(kappa e^eps, 1 - e^-eps (1 - kappa))
    (epsilon, delta)-DP, curves of it   min(kappa e^eps + delta, 1 - e^-eps (1 - delta - kappa)), least over the curve
    Renyi DP                            two-point form at the best order
    rho-zCDP                            exp(-(sqrt(log 1/kappa) - sqrt rho)^2), or the two-point form if smaller
    ==================================  =====================================================================

    Args:
        mechanism: Mechanism that produced the release.
        prior_success: Best success probability without any release (:math:`\kappa`): a number, or a result of
            :mod:`reconrisk.bounds.prior_success`.
        log_prior_success: Natural logarithm of ``prior_success``. Pass it instead when the probability is too small for
            a float.
        accuracy: Target accuracy of the numerical composition for subsampled mechanisms. Smaller is slower and tighter;
            every value gives a valid bound.
        group_size: Number of records that may depend on the target, the target included: 2 if the data may hold one
            duplicate of it. Each record of the group applies the bound once more, as in group privacy.

    Returns:
        A guarantee on the success probability, with ``log_value`` as its natural logarithm.

    Raises:
        InvalidInput: If not exactly one of ``prior_success`` and ``log_prior_success`` is given, if it is no
            probability, if ``accuracy`` or ``group_size`` is not positive, or if the kind of mechanism is unknown.

    Assumes: success is judged by a fixed criterion, and ``prior_success`` is its best probability without the release.
    All records outside the group are independent of the target, or ``prior_success`` is conditional on them. An unknown
    duplicate of the target breaks this: one release with noise multiplier 1 then has the success of noise multiplier
    1/2, which ``group_size=2`` covers.
    Guarantee: never below the prior, never above 1, never below the true value; nondecreasing in the prior.
    Edge cases: a prior of 1 gives 1; a prior of 0 gives 0, or delta for (epsilon, delta)-DP.
    Reference: Theorem 2, Corollaries 3 and 4, balle2022; hayes2023; kaissis2023.

    >>> from reconrisk.core.mechanism import dp_sgd
    >>> round(success_upper_bound(dp_sgd(noise_multiplier=1.0), prior_success=0.1).value, 4)
    0.3891
    >>> run = dp_sgd(noise_multiplier=1.0, sampling_probability=0.01, steps=10_000)
    >>> round(success_upper_bound(run, prior_success=0.1).value, 4)
    0.5051
    >>> round(success_upper_bound(PureDP(2.0, Neighbouring.REPLACE_ONE), prior_success=0.1).value, 3)
    0.451
    """
    check_positive("accuracy", accuracy, "The default is 2e-5.")
    log_prior = _log_prior(prior_success, log_prior_success)
    rule = _RULES.get(type(mechanism))
    if rule is None:
        known = ", ".join(kind.__name__ for kind in _RULES)
        raise invalid_input(
            "mechanism", mechanism, f"to be one of {known}", "Convert a DpEvent with rr.mechanisms.from_event."
        )
    log_success = log_prior
    for _ in range(check_whole("group_size", group_size)):  # removes one record of the group after the other
        bound = rule(mechanism, log_success, accuracy)
        log_success = min(0.0, max(bound.log_success, log_success))  # ignoring the release reaches the prior
    return Guarantee(
        quantity=Quantity.SUCCESS_PROBABILITY,
        value=probability_from_log(log_success),
        mechanism=mechanism,
        scope=Scope.ANY_ADVERSARY_WITH_PRIOR,
        threat=STRONGEST,
        reference=bound.reference,
        assumptions=(*bound.assumptions, _PRIOR, _independence(group_size), IDEAL_NOISE),
        log_value=log_success,
    )


def _independence(group_size: int) -> str:
    """Return the assumption on the other records."""
    if group_size == 1:
        return INDEPENDENT_RECORDS
    return (
        f"all but {group_size} records, the target included, are independent of the target, or the prior success is "
        "conditional on them"
    )


def dp_from_reconstruction_robustness(success: float, *, epsilon: float) -> ApproximateDP:
    r"""Differential privacy implied by robustness to guessing which of two records was used.

    .. math:: \delta = \max(0, (e^\varepsilon + 1)\gamma - e^\varepsilon)

    Args:
        success: Largest probability with which any adversary names the right record (:math:`\gamma`).
        epsilon: Privacy parameter at which delta is computed.

    Returns:
        The (epsilon, delta)-DP guarantee under replacement of one record.

    Raises:
        InvalidInput: If ``success`` is no probability, if ``epsilon`` is negative, or if ``success`` is below
            e^eps/(e^eps + 1), which no mechanism attains.

    Assumes: for every pair of records, under the prior that gives one of them 1/(e^epsilon + 1), no adversary names the
    right one with probability above ``success`` (ReRo of balle2022 for 0/1 error).
    Guarantee: (epsilon, delta)-DP when a record is replaced.
    Edge cases: the smallest possible ``success``, e^eps/(e^eps + 1), gives pure DP.
    Reference: Theorem 5, balle2022.

    >>> dp_from_reconstruction_robustness(0.8, epsilon=0.0).delta
    0.6000000000000001
    """
    check_probability("success", success)
    check_nonnegative("epsilon", epsilon)
    least = 1 / (1 + math.exp(-epsilon))
    if success < least * (1 - 1e-12):  # tolerance for a value that the caller computed by another formula
        remedy = f"Pass at least {least!r}: naming the likelier record succeeds that often at this epsilon."
        raise invalid_input("success", success, f">= {least:.6g}, which is e^epsilon/(e^epsilon + 1)", remedy)
    # gamma - e^eps (1 - gamma) instead of the form as printed in balle2022, whose two powers of e cancel and overflow
    # for large epsilon. exp overflows above 709; at 700 the difference is already hugely negative unless success is 1.
    delta = success - math.exp(min(epsilon, 700.0)) * (1 - success)
    return ApproximateDP(epsilon, min(1.0, max(0.0, delta)), Neighbouring.REPLACE_ONE)


def _log_prior(prior_success: float | PriorSuccess | None, log_prior_success: float | None) -> float:
    if (prior_success is None) == (log_prior_success is None):
        given = (prior_success, log_prior_success)
        remedy = "Pass prior_success=... or log_prior_success=..., not both."
        raise invalid_input("(prior_success, log_prior_success)", given, "to have exactly one value", remedy)
    if isinstance(prior_success, PriorSuccess):
        return prior_success.log_value
    if prior_success is not None:
        value = check_probability("prior_success", prior_success, "It is the best success without any release.")
        return math.log(value) if value > 0 else -math.inf
    if not check_real("log_prior_success", log_prior_success) <= 0:
        remedy = "Pass the natural logarithm of a probability."
        raise invalid_input("log_prior_success", log_prior_success, "<= 0", remedy)
    return float(log_prior_success)  # type: ignore[arg-type]  # check_real above rejects None


def _from_phases(mechanism: NoiseMechanism, log_prior: float, accuracy: float) -> _Bound:
    log_success = log_success_of_training(mechanism, log_prior, accuracy)
    if all(phase.is_full_batch for phase in phases_of(mechanism)):
        return _Bound(log_success, Reference("closed form of the Gaussian mechanism", "kaissis2023"), (_CLIPPED,))
    return _Bound(log_success, Reference("blow-up function of DP-SGD", "hayes2023"), (_CLIPPED, _SAMPLED))


def _from_pure(mechanism: PureDP, log_prior: float, accuracy: float) -> _Bound:
    if mechanism.neighbouring is Neighbouring.REPLACE_ONE:
        log_success = log_success_from_posterior_odds(mechanism.epsilon, log_prior)
        return _Bound(log_success, Reference("Corollary 3, by posterior odds", "balle2022"), (_STATED,))
    log_success = log_success_from_approximate(mechanism.epsilon, 0.0, log_prior)
    # "Both directions": the divergence of P from Q and that of Q from P each give a bound; the smaller one counts.
    return _Bound(log_success, Reference("Corollary 3, both directions", "balle2022"), (_STATED,))


def _from_approximate(mechanism: ApproximateDP, log_prior: float, accuracy: float) -> _Bound:
    log_success = log_success_from_approximate(mechanism.epsilon, mechanism.delta, log_prior)
    return _Bound(log_success, Reference("Corollary 3 with delta, both directions", "balle2022"), (_STATED,))


def _from_curve(mechanism: PrivacyCurve, log_prior: float, accuracy: float) -> _Bound:
    pairs = zip(mechanism.epsilons, mechanism.deltas, strict=True)
    # Every point of the curve gives a valid bound, so the smallest is valid too.
    log_success = min(log_success_from_approximate(epsilon, delta, log_prior) for epsilon, delta in pairs)
    if mechanism.renyi is not None:
        renyi = _from_renyi(mechanism.renyi, log_prior, accuracy)
        if renyi.log_success < log_success:
            return renyi
    return _Bound(log_success, Reference("Corollary 3 with delta at the best epsilon", "balle2022"), (_STATED,))


def _from_renyi(mechanism: RenyiDP, log_prior: float, accuracy: float) -> _Bound:
    orders, epsilons = np.array(mechanism.orders), np.array(mechanism.epsilons)
    log_success = log_success_from_renyi(orders, epsilons, log_prior)
    return _Bound(log_success, Reference("Theorem 2, two-point form", "balle2022"), (_STATED,))


def _from_zero_concentrated(mechanism: ZeroConcentratedDP, log_prior: float, accuracy: float) -> _Bound:
    log_success = log_success_from_zero_concentrated(mechanism.rho, log_prior)
    return _Bound(log_success, Reference("Corollary 4", "balle2022"), (_STATED,))


def _from_gaussian_dp(mechanism: GaussianDP, log_prior: float, accuracy: float) -> _Bound:
    log_success = log_success_from_gaussian(mechanism.mu, log_prior)
    return _Bound(log_success, Reference("closed form of Gaussian DP", "kaissis2023"), (_STATED,))


# One rule for each kind of mechanism, looked up by its exact type. Each takes the mechanism, the log prior success and
# the accuracy, which only the numerical composition of phases uses.
_RULES: dict[type, Callable[[Any, float, float], _Bound]] = {
    **dict.fromkeys(WITH_PHASES, _from_phases),
    PureDP: _from_pure,
    ApproximateDP: _from_approximate,
    PrivacyCurve: _from_curve,
    RenyiDP: _from_renyi,
    ZeroConcentratedDP: _from_zero_concentrated,
    GaussianDP: _from_gaussian_dp,
}
