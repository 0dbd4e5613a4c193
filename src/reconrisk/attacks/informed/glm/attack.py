"""Exact attack on generalised linear models: the fitted model and all records but one determine that record.

:func:`glm` is the public function on arrays. :func:`glm_observed` is the same attack in the form that audits run, on an
observation of a fitted estimator.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reconrisk.attacks.informed.glm.arguments import (
    GlmArguments,
    LinearObjective,
    known_records,
    read_known_features,
    rounding_unit,
)
from reconrisk.attacks.informed.glm.outcomes import Outcome, find_outcomes, refine_under_noise
from reconrisk.attacks.informed.invert_training.problem import only_adds_noise
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import AttackReport, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.releases.fitted_estimators.estimator_release import EstimatorMap
from reconrisk.releases.observe import DefendedMap

Floats = NDArray[np.float64]

_EXACT = 1e-6  # relative error below which a reconstruction counts as exact
_CHECK = "Check that the known records, weights and penalty are those of the fit, and that only the target is missing"

NEEDS = ThreatModel(sees=Sees.FINAL_MODEL, knows=frozenset({Knows.OTHER_RECORDS}))
"""The weakest adversary who can run it; without intercept the label must be known too."""


@dataclass(frozen=True, eq=False)
class GlmReconstruction:
    """Record reconstructed from a linear model, its label, and an estimate of its error.

    Attributes:
        record: Reconstructed features (features,).
        label: Label of the record, in the terms of the estimator.
        expected_error: Expected root mean square error per feature, from the accuracy of the solver or from the noise;
            NaN if it cannot be estimated.
        error_range: 95 % range of that error; its upper end is inf if the model is too far from its minimum.
        alternatives: Other records that fit the model equally well, one per row.
        influence: Length of the target's residual in the optimality conditions. The error of the record is the gradient
            that the solver left over, divided by this length.
        covariance: Covariance of the estimate under noise, None without noise.
        cramer_rao_mse: Least mean squared error of an unbiased estimate under noise if the label is known; None without
            noise.
        account: Attack, status, objective and cost.
    """

    record: Floats
    label: Any
    expected_error: float
    error_range: tuple[float, float]
    alternatives: Floats
    influence: float
    covariance: Floats | None
    cramer_rao_mse: float | None
    account: AttackReport

    @property
    def status(self) -> Status:
        """Status of the attack: its ending, the cause and a remedy."""
        return self.account.status

    @property
    def reconstruction(self) -> Reconstruction:
        """The record as a :class:`Reconstruction`, the form that metrics and reports take."""
        return Reconstruction(torch.as_tensor(self.record)[None], self.account)

    def __repr__(self) -> str:
        """Return sizes, expected error and status, no values of the record."""
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
    intercept: ArrayLike | None = None,
    objective: LinearObjective | None = None,
) -> GlmReconstruction:
    r"""Reconstruct the one unknown training record from a fitted linear model and all other records.

    .. math:: x = \frac{\bar X^T r + \lambda\theta}{1^T r + \lambda_0 b}, \qquad
              y = g^{-1}(\langle x, \theta\rangle + b) + 1^T r + \lambda_0 b, \qquad
              r = g^{-1}(\bar X\theta + b) - \bar y

    Here x and y are features and label of the unknown record, :math:`\bar X` and :math:`\bar y` features and labels of
    the known records, and r are the residuals of the known records. The model has coefficients :math:`\theta`,
    intercept b, link function g and the penalties :math:`\lambda` and :math:`\lambda_0` on coefficients and intercept.

    With several outputs the record solves these equations by least squares. Without an intercept the length of x solves
    an equation in its label that has up to two roots; one of two roots is never reported as exact.

    Args:
        model: Fitted ``LogisticRegression``, ``Ridge``, ``LinearRegression`` or ``PoissonRegressor``; a linear torch
            model; or an array of coefficients, (features,) or (outputs, features).
        known_inputs: Training records except the target, (n, features).
        known_labels: Labels of the known records, as the model was fitted to them.
        label: Label of the target if it is known. Regressions without intercept need it.
        known_values: Known features of the target, NaN for unknown ones; None if all are unknown.
        noise_std: Standard deviation of the noise on every coefficient; the estimate is then the most likely record.
            None for a model without noise.
        sample_weight: Weights of the known records in the fit, 1 by default.
        target_weight: Weight of the target in the fit.
        intercept: Intercept of plain coefficients, None if the model has none.
        objective: Training objective of a torch model or of plain coefficients. Estimators carry their own.

    Returns:
        The record with its label, expected error and status.

    Raises:
        InvalidInput: If records, labels and model do not fit together, or the objective is missing or superfluous.

    Assumes: the model minimises its objective over the known records and the target.
    Guarantee: exact up to the gradient that the solver left: with its entries g_x for the features and g_b for the
    intercept, the error is ``(g_x - g_b x) / (1^T r + lambda_0 b)``. ``expected_error`` estimates this error from the
    solver's stopping rule and from the misfit of the equations.
    Edge cases: a target that the model fits exactly does not change the model, and a model that is too far from its
    minimum hides the target. The status is then ``not applicable``. The status is the same if the equations show that
    no single record is consistent with the model, as with wrong known records, weights or penalty. A squared loss with
    unknown label has no spare equation to show this: only an estimate that is far from all known records is then
    doubted. If class weights depend on the label, every class is tried.
    Reference: Theorems 1 and 8, balle2022; the formula for the label, as printed there, has a product in place of the
    sum.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> found = glm(Ridge().fit(x, y), x[:3], y[:3])
    >>> found.record.round(6).tolist(), round(float(found.label), 6), found.status.ending.value
    ([3.0, 1.0], 4.0, 'exact')
    """
    begun = time.monotonic()
    inputs, labels = known_records(known_inputs, known_labels)
    stated = LinearObjective() if objective is None else objective
    precision = rounding_unit(known_inputs)
    given = GlmArguments(model, inputs, labels, stated, intercept, sample_weight, target_weight, precision)
    known = read_known_features(known_values, inputs.shape[1])
    found = find_outcomes(given, known, label)
    if noise_std is not None:
        found = refine_under_noise(found, given, known, label, check_positive("noise_std", noise_std))
    best = found[0]
    name = type(model).__name__ if given.carries_objective else stated.family
    number = isinstance(best.label, (int, float, np.number)) and float(best.label).is_integer()
    account = AttackReport(
        attack=f"glm({name}, known={len(inputs)}, noise_std={noise_std})",
        status=_status(best, len(found), best.equations.spread(known.isnan()), noise_std),
        objective=(best.misfit,),
        cost=Cost(time.monotonic() - begun, 1),
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
    """Status of the attack, by comparison with the error of guessing the mean of the known records."""
    expected, origin = best.accuracy.expected, best.origin
    refit = "Fit with a smaller tol and a larger max_iter, or attack a target that the model fits less well"
    if best.influence == 0 or (math.isinf(expected) and noise_std is None):
        return Status(Ending.NOT_APPLICABLE, f"the target leaves no trace in the model ({origin})", refit)
    cause = f"expected error {expected:.2g} per feature, {spread:.2g} for a guess of the mean; {origin}"
    if noise_std is not None:
        if not expected < spread:
            return Status(Ending.NOT_APPLICABLE, cause, "The noise hides the record: only less noise would reveal it")
        return Status(Ending.CONVERGED if best.converged else Ending.BUDGET_SPENT, cause)
    return _noiseless_status(best, records, spread, cause, refit)


def _noiseless_status(best: Outcome, records: int, spread: float, cause: str, refit: str) -> Status:
    """Status without noise; a record is not called exact if others fit the model equally well."""
    expected = best.accuracy.expected
    if best.accuracy.is_contradicted:
        return Status(Ending.NOT_APPLICABLE, f"no single record is consistent with the model; {best.origin}", _CHECK)
    if math.isnan(expected):
        return Status(Ending.BUDGET_SPENT, f"the error of the estimate is unknown; {best.origin}", "Pass label=")
    if not expected < spread:
        return Status(Ending.NOT_APPLICABLE, cause, refit)
    if not best.accuracy.is_checked:
        cause = f"if the known records are right, {cause}"
    if best.is_far and not best.accuracy.is_compelling:
        return Status(Ending.BUDGET_SPENT, f"the estimate is far from all known records; {cause}", _CHECK)
    if not best.accuracy.sure < spread:
        return Status(Ending.BUDGET_SPENT, f"{cause}; the solver's leftover gradient may hide the record", refit)
    if records > 1:
        cause = f"one of {records} records that fit the model equally well; {cause}"
        return Status(
            Ending.CONVERGED, cause, "Pass a known feature of the record as known_values, or fit an intercept"
        )
    is_exact = best.accuracy.high <= _EXACT * max(spread, float(best.record.square().mean().sqrt()))
    return Status(Ending.EXACT if is_exact else Ending.CONVERGED, cause)


_ROUNDING = 1e-6  # of the width of the data range: a value this far outside still counts as within it


@dataclass(frozen=True)
class GlmObserved:
    """Configured attack that :func:`glm_observed` returns."""

    needs: ThreatModel = NEEDS
    name: str = "glm"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """Reconstruct the record behind one fitted estimator; ``rng`` is not used, the attack is deterministic."""
        del rng
        observation.check_covers(self.needs)
        known = _check_observation(observation)
        label = None if observation.labels is None else known.names(observation.labels)[0]
        if label is None and "intercept" not in observation.released and not hasattr(known.estimator, "classes_"):
            remedy = "Add Knows.LABELS to the threat model: without an intercept the label cannot be computed."
            raise invalid_input(
                "threat.knows", sorted(each.value for each in observation.threat.knows), "to contain the labels", remedy
            )
        noise_std = None
        if observation.noise_std is not None:
            stds = torch.cat([value.double().flatten() for value in observation.noise_std.values()])
            low, high = (float(end) for end in stds.aminmax())
            if high > low * (1 + 1e-6):  # single precision of a common value
                raise invalid_input(
                    "noise_std",
                    f"{low:g} to {high:g}",
                    "to be one number for all coefficients",
                    "Use noise of one standard deviation.",
                )
            noise_std = float(stds[0])
        found = glm(
            known.with_coefficients(observation.released),
            known.known_inputs,
            known.names(known.known_labels),
            label=label,
            noise_std=noise_std,
            sample_weight=known.known_weights,
            target_weight=known.target_weight,
        )
        record = _choose_within_range(found, known, observation.data_range).clamp(*observation.data_range)
        estimates = record.view(1, *observation.input_shape).to(torch.get_default_dtype())
        status = found.status
        if noise_std is not None and status.ending is Ending.NOT_APPLICABLE:
            # a record hidden by known noise is a result about the noise, not a failure of the attack
            status = Status(Ending.CONVERGED, status.cause, status.remedy)
        return Reconstruction(estimates, replace(found.account, attack=repr(self), status=status))

    def __repr__(self) -> str:
        """Return the name; there are no settings."""
        return "glm()"


def glm_observed() -> GlmObserved:
    """Reconstruct the one unknown record from the coefficients of a fitted scikit-learn estimator.

    This is :func:`reconrisk.attacks.informed.glm.attack.glm` with all arguments from the observation of an
    :class:`reconrisk.releases.fitted_estimators.estimator_release.EstimatorRelease`: the known records, the objective,
    the noise of a known defense, and the label if the threat model includes it.

    Returns:
        The attack, to be called with an observation.

    Assumes: as ``glm``.
    Guarantee: as ``glm``; the estimate is clipped to the data range. If several records fit a model without intercept,
    the attack returns one within the range, the nearest to a known record.
    Edge cases: where known noise hides the record the status is ``converged``, and the estimate counts. If the solver
    stopped too early, the status is ``not applicable``. Defenses that do more than add noise of one size are refused.
    Reference: Theorems 1 and 8, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> from reconrisk.core.threat import INFORMED
    >>> from reconrisk.releases.fitted_estimators.estimator_release import EstimatorRelease
    >>> from reconrisk.releases.observe import observe
    >>> x = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.5, 0.25], [0.75, 1.0]]).double()
    >>> y = torch.tensor([0.0, 1.0, 1.0, 4.0]).double()
    >>> fitted = Ridge().fit(x.numpy(), y.numpy())
    >>> release = EstimatorRelease(fitted, x[3:], y[3:], known_inputs=x[:3], known_labels=y[:3])
    >>> glm_observed()(observe(release, threat=INFORMED), rng=torch.Generator()).estimates
    tensor([[0.7500, 1.0000]])
    """
    return GlmObserved()


def _check_observation(observation: Observation) -> EstimatorMap:
    """Return the forward map of an observed estimator; refuse other observations and other defenses than noise."""
    forward = observation.forward
    inner = forward.undefended if isinstance(forward, DefendedMap) else forward
    if not isinstance(inner, EstimatorMap):
        remedy = "Use rr.attacks.glm(model, known_inputs, known_labels) for other models."
        raise invalid_input(
            "observation.forward", type(inner).__name__, "to belong to a fitted scikit-learn estimator", remedy
        )
    changed = isinstance(forward, DefendedMap) and not only_adds_noise(forward.defense, observation.released)
    if isinstance(forward, DefendedMap) and (changed or observation.kept is not None):
        remedy = "Use rr.defenses.gaussian_noise: clipped or missing coefficients do not minimise the objective."
        raise invalid_input("defense", type(forward.defense).__name__, "to add noise and do nothing else", remedy)
    return inner


def _choose_within_range(found: GlmReconstruction, known: EstimatorMap, data_range: tuple[float, float]) -> Tensor:
    """Choose a record within the range among all that fit the model equally well, the nearest to a known record."""
    rows = known.to_record_units(torch.cat([torch.as_tensor(found.record)[None], torch.as_tensor(found.alternatives)]))
    outside = (rows - rows.clamp(*data_range)).square().mean(1).sqrt()
    within = outside <= max(_ROUNDING * (data_range[1] - data_range[0]), float(outside.min()))
    distances = torch.cdist(rows, known.to_record_units(known.known_inputs)).min(1).values
    return rows[int(distances.masked_fill(~within, torch.inf).argmin())]
