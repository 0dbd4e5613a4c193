"""Lower bounds on the mean squared error as guarantees: capped by what a constant guess reaches, and saying so."""

from __future__ import annotations

import math

import numpy as np

from reconrisk.core.guarantee import Guarantee, Quantity, Scope
from reconrisk.core.mechanism import Mechanism
from reconrisk.core.papers import Reference
from reconrisk.core.threat import ThreatModel
from reconrisk.core.validation import check_real, refuse

_ROUNDING = 64 * float(np.finfo(float).eps)


def mse_guarantee(
    bound: float,
    *,
    constant_guess_mse: float,
    mechanism: Mechanism,
    scope: Scope,
    threat: ThreatModel,
    reference: Reference,
    assumptions: tuple[str, ...],
) -> Guarantee:
    """A lower bound on the mean squared error, never above that of a constant guess, and with both numbers in words.

    An attacker who ignores the release reaches the constant guess whatever the bound for unbiased ones says, so a
    larger number would promise too much.

    >>> from reconrisk.bounds.premises import KNOWS_THE_REST, UNSTATED
    >>> mse_guarantee(3.0, constant_guess_mse=0.25, mechanism=UNSTATED, scope=Scope.UNBIASED_ESTIMATORS,
    ...               threat=KNOWS_THE_REST, reference=Reference("Theorem 2", "guo2022"), assumptions=()).value
    0.25
    """
    if check_real("constant_guess_mse", constant_guess_mse) < 0:
        raise refuse(
            "constant_guess_mse", constant_guess_mse, ">= 0", "Compute it with constant_guess_mse(low=, high=)."
        )
    beside: tuple[str, ...] = ()
    if math.isfinite(constant_guess_mse):
        beside = (f"a constant guess has mean squared error {constant_guess_mse:.6g}, whatever is released",)
    if bound > constant_guess_mse:
        beside = (*beside, f"the value is that of the constant guess: the bound by itself is {bound:.6g}")
    return Guarantee(
        quantity=Quantity.MEAN_SQUARED_ERROR,
        value=min(bound * (1 - _ROUNDING), constant_guess_mse),
        mechanism=mechanism,
        scope=scope,
        threat=threat,
        reference=reference,
        assumptions=(*assumptions, *beside),
    )
