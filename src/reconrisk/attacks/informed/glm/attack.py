"""Exact attack on generalised linear models: the fitted model and all records but one give that one.

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
from torch import Tensor, nn

from reconrisk.attacks.informed.glm.arguments import Given, known_features, known_records, precision_of
from reconrisk.attacks.informed.glm.outcomes import Outcome, outcomes, under_noise
from reconrisk.attacks.informed.invert_training.problem import adds_noise_alone
from reconrisk.core.observation import Observation
from reconrisk.core.reconstruction import Account, Cost, Ending, Reconstruction, Status
from reconrisk.core.threat import Knows, Sees, ThreatModel
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.releases.fitted_estimators.estimator_release import EstimatorMap
from reconrisk.releases.fitted_estimators.objective import Family
from reconrisk.releases.observe import DefendedMap

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
    best = found[0]
    name = type(model).__name__ if given.reads_itself else family
    number = isinstance(best.label, (int, float, np.number)) and float(best.label).is_integer()
    account = Account(
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


_ROUNDING = 1e-6


@dataclass(frozen=True)
class GlmObserved:
    """The configured attack that :func:`glm_observed` returns."""

    needs: ThreatModel = NEEDS
    name: str = "glm"

    def __call__(self, observation: Observation, *, rng: torch.Generator) -> Reconstruction:
        """The record behind one fitted estimator; ``rng`` is not used, the attack is deterministic."""
        del rng
        observation.check_covers(self.needs)
        known = _known(observation)
        label = None if observation.labels is None else known.names(observation.labels)[0]
        if label is None and "intercept" not in observation.released and not hasattr(known.estimator, "classes_"):
            remedy = "Without an intercept, coefficients do not tell the length of a record from its label."
            raise invalid_input("threat", observation.threat, "to know the labels", remedy)
        noise_std = None
        if observation.noise_std is not None:
            stds = torch.cat([value.double().flatten() for value in observation.noise_std.values()])
            low, high = (float(end) for end in stds.aminmax())
            if high > low * (1 + 1e-6):
                raise invalid_input("noise_std", f"{low:g} to {high:g}", "to be one number for all")
            noise_std = float(stds[0])
        found = glm(
            known.shown(observation.released),
            known.known_inputs,
            known.names(known.known_labels),
            label=label,
            noise_std=noise_std,
            sample_weight=known.known_weights,
            target_weight=known.target_weight,
        )
        record = _likeliest(found, known, observation.data_range).clamp(*observation.data_range)
        estimates = record.view(1, *observation.input_shape).to(torch.get_default_dtype())
        status = found.status
        if noise_std is not None and status.ending is Ending.NOT_APPLICABLE:
            # what known noise hides is a finding, not a failure
            status = Status(Ending.CONVERGED, status.cause, status.remedy)
        return Reconstruction(estimates, replace(found.account, attack=repr(self), status=status))

    def __repr__(self) -> str:
        """It has no settings."""
        return "glm()"


def glm_observed() -> GlmObserved:
    """Read the one unknown record from the coefficients of a fitted scikit-learn estimator.

    :func:`reconrisk.attacks.informed.glm.attack.glm` with everything from the observation of an
    :class:`reconrisk.releases.fitted_estimators.estimator_release.EstimatorRelease`: known records, conventions, the
    noise of a known defense, the label if the threat knows it.

    Assumes: as ``glm``.
    Guarantee: as ``glm``; the estimate is clipped to the data range. Of several records that explain a model without
    intercept, one within the range is taken, the nearest to a known record.
    Edge cases: where known noise hides the record the attack has converged, and its estimate stands. Where the solver
    stopped too early to tell, it does not apply. Defenses that do more than add noise of one size are refused.
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


def _known(observation: Observation) -> EstimatorMap:
    forward = observation.forward
    inner = forward.undefended if isinstance(forward, DefendedMap) else forward
    if not isinstance(inner, EstimatorMap):
        remedy = "For others use rr.attacks.glm(model, known_inputs, known_labels)."
        raise invalid_input("observation", type(inner).__name__, "to be of a fitted estimator of scikit-learn", remedy)
    changed = isinstance(forward, DefendedMap) and not adds_noise_alone(forward.defense, observation.released)
    if isinstance(forward, DefendedMap) and (changed or observation.kept is not None):
        remedy = "Coefficients that are clipped or left out are no minimum any more."
        raise invalid_input("defense", type(forward.defense).__name__, "to add noise and do nothing else", remedy)
    return inner


def _likeliest(found: GlmReconstruction, known: EstimatorMap, data_range: tuple[float, float]) -> Tensor:
    """Of all records that explain the model alike, one within the range, nearest to a known record."""
    rows = known.scaled(torch.cat([torch.as_tensor(found.record)[None], torch.as_tensor(found.alternatives)]))
    outside = (rows - rows.clamp(*data_range)).square().mean(1).sqrt()
    within = outside <= max(_ROUNDING * (data_range[1] - data_range[0]), float(outside.min()))
    distances = torch.cdist(rows, known.scaled(known.known_inputs)).min(1).values
    return rows[int(distances.masked_fill(~within, torch.inf).argmin())]
