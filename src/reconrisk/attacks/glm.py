"""The exact attack on generalised linear models: all records but one and the fitted model give that one."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from reconrisk.attacks.glm_arguments import Given, known_features, known_records, precision_of
from reconrisk.attacks.glm_outcome import Outcome, outcomes, under_noise
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_positive
from reconrisk.releases.glm_objective import Family

Floats = NDArray[np.float64]

_EXACT = 1e-6
_CHECK = "Check that known records, weights and penalty are those it was fitted with, and only the target is missing"

NEEDS = ThreatModel(sees=Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS}))
"""The weakest adversary who can run it; without intercept the label must be known too."""


@dataclass(frozen=True, eq=False)
class GlmReconstruction:
    """A record read from a linear model, its label, and how near it may be.

    ``label`` is in the terms of the estimator. ``expected_error`` is the root mean square error per feature to expect
    of how well the model was optimised, or of its noise; NaN where nothing tells. ``error_range`` holds it with 95 %
    confidence, with inf where the model is too far from its minimum to tell. ``alternatives`` are other records, one
    per row, that explain the model as well. ``influence`` is the length of the target's pull on the coefficients'
    optimality: the error is what the solver left over, divided by it. Under noise, ``covariance`` is that of the
    estimate and ``cramer_rao_mse`` the least mean squared error of an unbiased estimate for who knows the label.
    """

    record: Floats
    label: Any
    expected_error: float
    error_range: tuple[float, float]
    alternatives: Floats
    influence: float
    covariance: Floats | None
    cramer_rao_mse: float | None
    account: Account

    @property
    def status(self) -> Status:
        """How the attack ended."""
        return self.account.status

    @property
    def reconstruction(self) -> Reconstruction:
        """The record as estimates that metrics and reports take."""
        return Reconstruction(torch.as_tensor(self.record)[None], self.account)

    def __repr__(self) -> str:
        """Sizes and status instead of values."""
        low, high = self.error_range
        error = f"expected error {self.expected_error:.2g} [{low:.2g}, {high:.2g}]"
        others = f", {len(self.alternatives)} alternatives" if len(self.alternatives) else ""
        return f"GlmReconstruction({len(self.record)} features, {error}{others}, {self.status})"


def glm(
    model: Any,
    known_inputs: ArrayLike | Tensor,
    known_labels: ArrayLike | Tensor,
    *,
    label: Any = None,
    known_values: ArrayLike | None = None,
    noise_std: float | None = None,
    sample_weight: ArrayLike | None = None,
    target_weight: float = 1.0,
    family: Family | None = None,
    penalty: float | None = None,
    intercept: ArrayLike | None = None,
    intercept_penalty: float | None = None,
    loss_fn: nn.Module | None = None,
    weight_decay: float | None = None,
    decay_bias: bool | None = None,
) -> GlmReconstruction:
    r"""Read the one unknown training record from a fitted linear model and all other records.

    .. math:: x = \frac{\bar X^T r + \lambda\theta}{1^T r + \lambda_0 b}, \qquad
              y = g^{-1}(\langle x, \theta\rangle + b) + 1^T r + \lambda_0 b, \qquad
              r = g^{-1}(\bar X\theta + b) - \bar y

    with several outputs by least squares over them. ``model`` is a fitted ``LogisticRegression``, ``Ridge``,
    ``LinearRegression`` or ``PoissonRegressor``; a linear torch model with ``loss_fn`` and ``weight_decay``; or plain
    coefficients with ``family``, ``penalty`` and ``intercept`` (penalties of sums over n records: 1 / C, alpha
    of Ridge, n times alpha of PoissonRegressor). Without an intercept the length of x solves an equation in its label,
    which has up to two roots: pass ``label``; one of two is never called exact. ``known_values`` are features of the
    target that are known, NaN for the others. With ``noise_std`` on every coefficient the estimate is
    the most likely record.

    Assumes: the model minimises its objective over the known records and the target.
    Guarantee: exact up to the gradient g that the solver left: the error is ``(g_x - g_b x) / (1^T r + lambda_0 b)``,
    which ``expected_error`` estimates from what the solver's rule allows and what does not fit in the equations.
    Edge cases: a target that is fitted exactly leaves no trace, and a model that is too far from its minimum hides it:
    the status then is ``not applicable``. So it is where the equations show that no one record explains the model, as
    with wrong known records, weights or penalty. A squared loss whose label is not known has no equation to spare that
    could show it: only an estimate that is far from all known records is then doubted. Class weights
    that depend on the label try every class.
    Reference: Theorems 1 and 8, balle2022, whose label formula prints a product for the sum.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> found = glm(Ridge().fit(x, y), x[:3], y[:3])
    >>> found.record.round(6).tolist(), round(float(found.label), 6), found.status.ending.value
    ([3.0, 1.0], 4.0, 'exact')
    """
    begun = time.monotonic()
    inputs, labels = known_records(known_inputs, known_labels)
    settings = {
        "family": family,
        "penalty": penalty,
        "intercept": intercept,
        "intercept_penalty": intercept_penalty,
        "loss_fn": loss_fn,
        "weight_decay": weight_decay,
        "decay_bias": decay_bias,
    }
    given = Given(model, inputs, labels, settings, sample_weight, target_weight, precision_of(known_inputs))
    known = known_features(known_values, inputs.shape[1])
    found = outcomes(given, known, label)
    if noise_std is not None:
        found = under_noise(found, given, known, label, check_positive("noise_std", noise_std))
    spread = found[0].equations.spread(known.isnan())
    return _result(found, given, spread, noise_std, time.monotonic() - begun)


def _result(
    found: list[Outcome], given: Given, spread: float, noise_std: float | None, seconds: float
) -> GlmReconstruction:
    best = found[0]
    name = type(given.model).__name__ if given.reads_itself else given.settings["family"]
    number = isinstance(best.label, (int, float, np.number)) and float(best.label).is_integer()
    account = Account(
        attack=f"glm({name}, known={len(given.inputs)}, noise_std={noise_std})",
        status=_status(best, len(found), spread, noise_std),
        objective=(best.misfit,),
        cost=Cost(seconds, 1),
        labels=(int(best.label),) if number else None,
    )
    others = [outcome.record.numpy() for outcome in found[1:]]
    return GlmReconstruction(
        record=best.record.numpy(),
        label=best.label,
        expected_error=best.accuracy.expected,
        error_range=(best.accuracy.low, best.accuracy.high),
        alternatives=np.stack(others) if others else np.empty((0, len(best.record))),
        influence=best.influence,
        covariance=None if best.covariance is None else best.covariance.numpy(),
        cramer_rao_mse=best.cramer_rao_mse,
        account=account,
    )


def _status(best: Outcome, records: int, spread: float, noise_std: float | None) -> Status:
    """In words, against what a guess of the known records' mean errs."""
    expected, origin = best.accuracy.expected, best.origin
    refit = "Fit with a smaller tol and a larger max_iter, or look at a target that the model fits less well"
    if best.influence == 0 or (math.isinf(expected) and noise_std is None):
        return Status(Ending.NOT_APPLICABLE, f"the target leaves no trace in the model ({origin})", refit)
    said = f"expected error {expected:.2g} per feature where a guess errs by {spread:.2g}; {origin}"
    if noise_std is not None:
        if not expected < spread:
            return Status(Ending.NOT_APPLICABLE, said, "The noise hides the record: lower it to see more")
        return Status(Ending.CONVERGED if best.converged else Ending.BUDGET_SPENT, said)
    return _without_noise(best, records, spread, said, refit)


def _without_noise(best: Outcome, records: int, spread: float, said: str, refit: str) -> Status:
    """How the attack ended on a model without noise; one of several records that explain it alike is not exact."""
    expected = best.accuracy.expected
    if best.accuracy.is_contradicted:
        return Status(Ending.NOT_APPLICABLE, f"no one record explains the model; {best.origin}", _CHECK)
    if math.isnan(expected):
        return Status(Ending.BUDGET_SPENT, f"nothing tells how near the estimate is; {best.origin}", "Pass label=")
    if not expected < spread:
        return Status(Ending.NOT_APPLICABLE, said, refit)
    if not best.accuracy.is_checked:
        said = f"if these are its records, {said}"
    if best.is_far and not best.accuracy.is_compelling:
        return Status(Ending.BUDGET_SPENT, f"the estimate is far from all known records; {said}", _CHECK)
    if not best.accuracy.sure < spread:
        return Status(Ending.BUDGET_SPENT, f"{said}, which may hide the record", refit)
    if records > 1:
        cause = f"one of {records} records that explain the model alike; {said}"
        return Status(Ending.CONVERGED, cause, "Know a feature of the record, or fit an intercept")
    is_exact = best.accuracy.high <= _EXACT * max(spread, float(best.record.square().mean().sqrt()))
    return Status(Ending.EXACT if is_exact else Ending.CONVERGED, said)
