"""Records that explain a linear model, the most plausible first.

:func:`outcomes` lists the exact solutions. :func:`_most_likely` finds the most likely record if the coefficients were
released with Gaussian noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.attacks.informed.glm.accuracy import Accuracy, accuracy
from reconrisk.attacks.informed.glm.arguments import Given
from reconrisk.attacks.informed.glm.equations import TargetEquations, target_row
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.releases.fitted_estimators.estimators import LinearModel
from reconrisk.releases.fitted_estimators.objective import GlmObjective, minimise

_MOST_COEFFICIENTS = 4000  # their Hessian has 128 MB
_STEPS = 20
_HALVINGS = 6
_CONVERGED = 1e-5  # of the noise, in the coefficients
_SETTLED = 1e-4  # of the distance that is left
_SLOW = 0.99  # of the distance before a step: more steps would not change which record is likeliest
_FARTHEST = 1e6  # times the known records: beyond it rounding decides


@dataclass(frozen=True, eq=False)
class MostLikely:
    """A record, the label as a row of targets, how far the released coefficients are from theirs, and covariances.

    ``covariance`` is that of the estimate to first order in the noise, of the unknown features only;
    ``known_label_covariance`` the same for who knows the label: the inverse of the Fisher information.
    """

    record: Tensor
    target: Tensor
    misfit: float
    covariance: Tensor
    known_label_covariance: Tensor
    converged: bool


def _most_likely(
    equations: TargetEquations, start: Tensor, target: Tensor, *, free: Tensor, free_label: bool, noise_std: float
) -> MostLikely:
    r"""The record whose model is nearest to the released one, by damped Gauss-Newton steps from ``start``.

    .. math:: \min_{x, y} |\theta - \theta(x, y)|^2, \qquad
              \frac{\partial\theta}{\partial x} = -H^{-1} w [r \otimes 1 + \tilde x \otimes A W], \quad
              \frac{\partial\theta}{\partial y} = H^{-1} w (1 \otimes \tilde x)

    Notation: ``free`` marks the features that are not known; with ``free_label`` the label is estimated too.
    Guarantee: the models of candidates are exact minimisers; a step is taken only where it lowers the distance.
    """
    if equations.theta.numel() > _MOST_COEFFICIENTS:
        raise invalid_input(
            "model", f"of {equations.theta.numel()} coefficients", f"to have at most {_MOST_COEFFICIENTS} under noise"
        )
    record, label, converged = start.clone(), target.clone(), False
    point = minimise(_with_target(equations, start, target), equations.theta)
    for _ in range(_STEPS):
        by_record, by_label = _derivatives(equations, record, label, point)
        columns = torch.cat([by_record[:, free], by_label], dim=1) if free_label else by_record[:, free]
        gap = (equations.theta - point).reshape(-1)
        step = torch.linalg.lstsq(columns, gap[:, None]).solution[:, 0]
        if float((columns @ step).norm()) <= max(_CONVERGED * noise_std, _SETTLED * float(gap.norm())):
            converged = True
            break
        moved = _moved(equations, record, label, point, step, free)
        if moved is None:
            break
        slow = float((equations.theta - moved[2]).norm()) > _SLOW * float(gap.norm())
        record, label, point = moved
        if slow:
            converged = True
            break
    by_record, by_label = _derivatives(equations, record, label, point)
    features = by_record[:, free]
    own = _covariance(features, noise_std)
    covariance = own
    if free_label:
        covariance = _covariance(torch.cat([features, by_label], dim=1), noise_std)[: len(own), : len(own)]
    misfit = float((equations.theta - point).norm()) / noise_std
    return MostLikely(record, label, misfit, covariance, own, converged)


def _covariance(columns: Tensor, noise_std: float) -> Tensor:
    r"""``noise_std^2 (J^T J)^{-1}`` by the singular values of J itself, whose products would lose half the digits.

    Columns are brought to one length first, so that units of features do not matter. A direction in which the model
    does not move leaves the features that have a part in it without bound: inf on their diagonal.
    """
    lengths = columns.norm(dim=0)
    scales = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    _, values, rows = torch.linalg.svd(columns / scales, full_matrices=False)
    found = values > torch.finfo(values.dtype).eps * max(columns.shape) * values.max()
    spread = rows[found] / values[found, None]
    covariance: Tensor = noise_std**2 * (spread.T @ spread) / torch.outer(scales, scales)
    lost = 1 - rows[found].square().sum(0) > torch.finfo(values.dtype).eps ** 0.5
    covariance.diagonal()[lost] = torch.inf
    return covariance


def _moved(
    equations: TargetEquations, record: Tensor, label: Tensor, point: Tensor, step: Tensor, free: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The first halving of a step whose model is nearer to the released one; None if no part of it is."""
    before = float((equations.theta - point).norm())
    count = int(free.sum())
    reach = _FARTHEST * float(equations.scales.norm())
    for halvings in range(_HALVINGS):
        part = step / 2**halvings
        candidate = record.clone()
        candidate[free] += part[:count]
        candidate_label = label + part[count:] if len(part) > count else label
        if not float(candidate.norm()) <= reach:
            continue
        try:
            solved = minimise(_with_target(equations, candidate, candidate_label), point)
        except InvalidInput:  # a candidate so far off that its model has no minimum in floats
            continue
        if float((equations.theta - solved).norm()) < before:
            return candidate, candidate_label, solved
    return None


def _with_target(equations: TargetEquations, record: Tensor, target: Tensor) -> GlmObjective[Tensor]:
    """The objective of the known records and a candidate."""
    known = equations.objective
    return replace(
        known,
        design=torch.cat([known.design, equations.known_columns(record)[None]]),
        targets=torch.cat([known.targets, target[None]]),
        weights=torch.cat([known.weights, known.weights.new_full((1,), equations.target_weight)]),
    )


def _derivatives(equations: TargetEquations, record: Tensor, target: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of the minimiser by the features and by the label, one row per coefficient."""
    whole = _with_target(equations, record, target)
    row = whole.design[-1]
    by_label = -torch.kron(torch.eye(len(point), dtype=row.dtype), row[:, None])
    sides = torch.cat([whole.mixed_derivative(point, -1), by_label], dim=1)
    solved = -equations.target_weight * whole.arrays.solve(whole.factorise(whole.hessian(point)), sides)
    return solved[:, : equations.features], solved[:, equations.features :]


_CLASSIFIERS = ("logistic", "multinomial")
_NO_TRACE = Accuracy(math.inf, math.inf, math.inf, math.inf, math.inf)
_AS_GOOD = 10.0  # times the smallest misfit, up to which a root explains the model as well
_ROUNDING = 1e-9
_OUTLIER = 3.0  # times the largest pull of a known record: what another may have
_STRANGE = 10.0  # times the range of known labels: beyond it a label is rather of wrong weights or a wrong penalty
_IMPLAUSIBLE = 3.0  # times the root of the number of coefficients, in units of the noise


@dataclass(frozen=True, eq=False)
class Outcome:
    """A record with its label, how it fits, and how near it may be."""

    equations: TargetEquations
    record: Tensor
    target: Tensor
    label: Any
    accuracy: Accuracy
    influence: float
    misfit: float
    origin: str
    covariance: Tensor | None = None
    cramer_rao_mse: float | None = None
    converged: bool = True

    @property
    def is_far(self) -> bool:
        """Whether record or label lie beyond all known ones by far more than these differ."""
        system = self.equations
        everywhere = torch.ones(system.features, dtype=torch.bool)
        low, high = system.objective.targets.amin(0), system.objective.targets.amax(0)
        beyond = (self.target - self.target.clamp(low, high)).abs()
        counted = system.model.family not in _CLASSIFIERS
        return system.outside(self.record) > system.spread(everywhere) or (
            counted and bool((beyond > _STRANGE * (high - low)).any())
        )


def outcomes(given: Given, known: Tensor, label: object | None) -> list[Outcome]:
    """Every record that explains the model, best first; never empty: one without a trace is the known records' mean."""
    if label is None and given.depends_on_label:
        classes = np.unique(getattr(given.model, "classes_", ()))
        each = [one for value in classes for one in _of(given.equations(value), known, value)]
        return sorted(each, key=lambda one: one.misfit)[:1]
    return _of(given.equations(label), known, label)


def _of(equations: TargetEquations, known: Tensor, label: object | None) -> list[Outcome]:
    model = equations.model
    target = None if label is None else target_row(model, index_of(model, label))
    pulls = equations.pulls(known)
    if pulls is None:
        return _from_roots(equations, known, target)
    if not bool(pulls.any()):
        return [_no_trace(equations, known, target)]
    record = equations.record(pulls, known)
    read = _read_label(equations, record, pulls) if target is None else target
    certain = target is not None or model.family in _CLASSIFIERS or counts(model)
    reached = accuracy(equations, record, pulls, read if certain else None)
    misfit = float((pulls - equations.target_weight * (read - equations.means(record))).norm())
    if float(pulls.norm()) <= reached.rounding:
        return [_no_trace(equations, known, target)]
    return [_outcome(equations, record, read, reached, float(pulls.norm()), misfit)]


def _outcome(
    equations: TargetEquations, record: Tensor, target: Tensor, reached: Accuracy, influence: float, misfit: float
) -> Outcome:
    model = equations.model
    return Outcome(
        equations,
        record,
        target,
        _label_of(model, target),
        reached,
        influence,
        misfit,
        model.optimisation.words,
    )


def _from_roots(equations: TargetEquations, known: Tensor, target: Tensor | None) -> list[Outcome]:
    """One outcome per root of each possible label, nearest to a known record first."""
    model = equations.model
    if target is None and model.family not in _CLASSIFIERS:
        raise invalid_input(
            "label",
            None,
            "to be given for a model without intercept",
            "Coefficients then do not tell length and label apart: pass label= or a known feature in known_values=.",
        )
    rows = _possible_targets(model) if target is None else [target]
    found = []
    for row in rows:
        for record in equations.roots(row):
            pulls = equations.moments @ record / record.square().sum()
            misfit = float((pulls - equations.target_weight * (row - equations.means(record))).norm() / pulls.norm())
            reached = accuracy(equations, record, pulls, None)
            found.append(_outcome(equations, record, row, reached, float(pulls.norm()), misfit))
    if not found:
        return [_no_trace(equations, known, target)]
    best = min(one.misfit for one in found)
    fitting = [one for one in found if one.misfit <= max(_AS_GOOD * best, _ROUNDING)]
    inputs = equations.objective.design[:, : equations.features]
    return sorted(fitting, key=lambda one: float(torch.cdist(one.record[None], inputs).min()))


def _no_trace(equations: TargetEquations, known: Tensor, target: Tensor | None) -> Outcome:
    mean = equations.objective.design[:, : equations.features].mean(0)
    record = torch.where(known.isnan(), mean, known)
    row = equations.means(record) if target is None else target
    if target is None and equations.model.family in _CLASSIFIERS:
        row = max(_possible_targets(equations.model), key=lambda each: float(-(each - row).norm()))
    return _outcome(equations, record, row, _NO_TRACE, 0.0, math.inf)


def _read_label(equations: TargetEquations, record: Tensor, pulls: Tensor) -> Tensor:
    """The label that the pull of the record shows, as a row of targets."""
    model = equations.model
    if model.family == "logistic":
        return (pulls > 0).double()
    if model.family == "multinomial":
        return torch.eye(len(pulls), dtype=torch.float64)[int(pulls.argmax())]
    number = equations.means(record) + pulls / equations.target_weight
    return number.round().clamp_min(0.0) if counts(model) else number


def counts(model: LinearModel) -> bool:
    """Whether labels are whole numbers that a family demands."""
    return model.family == "poisson" and bool((model.labels == np.floor(model.labels)).all())


def _possible_targets(model: LinearModel) -> list[Tensor]:
    """Every label of a classifier, as rows of targets."""
    return [target_row(model, index) for index in range(2 if model.family == "logistic" else len(model.weight))]


def index_of(model: LinearModel, label: Any) -> Any:
    """A label in the terms of the estimator as its family counts it."""
    if model.classes is None:
        allowed = {"logistic": 2, "multinomial": len(model.weight)}.get(model.family)
        if allowed is not None and label not in range(allowed):
            raise invalid_input("label", label, f"to be a class index below {allowed}")
        return label
    places = np.flatnonzero(model.classes == label)
    if len(places) != 1:
        raise invalid_input("label", label, "to be one of estimator.classes_", f"It knows {model.classes.tolist()}.")
    return int(places[0])


def _label_of(model: LinearModel, target: Tensor) -> Any:
    """A row of targets in the terms of the estimator."""
    if model.family in _CLASSIFIERS:
        index = int(target.argmax()) if model.family == "multinomial" else int(target[0])
        return index if model.classes is None else model.classes[index]
    return float(target[0]) if len(target) == 1 else np.asarray(target.numpy())


def under_noise(
    found: list[Outcome], given: Given, known: Tensor, label: object | None, noise_std: float
) -> list[Outcome]:
    """The most likely records from those of the exact formula, for each label that is possible."""
    first = found[0]
    classifier = first.equations.model.family in _CLASSIFIERS
    if label is None and classifier and first.equations.has_intercept:
        rows, pulls = _possible_targets(first.equations.model), first.equations.pulls(known)
        if pulls is not None and len(pulls) > 1:  # the two of several classes whose pull is the most like a label's
            rows = [rows[index] for index in pulls.argsort(descending=True)[:2].tolist()]
        names = [_label_of(first.equations.model, row) for row in rows]
        systems = [given.equations(name) for name in names] if given.depends_on_label else [first.equations] * len(rows)
        starts = [(system, first.record, row) for system, row in zip(systems, rows, strict=True)]
    else:
        starts = [(one.equations, one.record, one.target) for one in found]
    free_label = label is None and not classifier
    refined = [_refined(*start, known.isnan(), free_label, noise_std) for start in starts]
    if min(one.misfit for one in refined) > _IMPLAUSIBLE * math.sqrt(first.equations.theta.numel()):
        mean = torch.where(known.isnan(), given.inputs.mean(0), known)
        refined += [_refined(system, mean, row, known.isnan(), free_label, noise_std) for system, _, row in starts]
    several = len(refined) > 1 and not first.equations.has_intercept
    return refined if several else sorted(refined, key=lambda one: one.misfit)[:1]


def _refined(
    equations: TargetEquations, record: Tensor, target: Tensor, free: Tensor, free_label: bool, noise_std: float
) -> Outcome:
    best = _most_likely(equations, record, target, free=free, free_label=free_label, noise_std=noise_std)
    pulls = equations.target_weight * (best.target - equations.means(best.record))
    reached = _spread(best.covariance * _flattered(equations, float(pulls.norm()), noise_std) ** 2)
    outcome = _outcome(equations, best.record, best.target, reached, float(pulls.norm()), best.misfit)
    bound = float(best.known_label_covariance.diagonal().mean())
    words = f"most likely under noise of {noise_std:g}"
    return replace(outcome, covariance=best.covariance, cramer_rao_mse=bound, origin=words, converged=best.converged)


def _flattered(equations: TargetEquations, pull: float, noise_std: float) -> float:
    r"""How many times too good the covariance at the estimate may be: errors go as one over the pull of the record.

    Noise changes the pull by up to two standard deviations, those of the intercept's derivative, and alone makes
    estimates that pull much harder than any known record does.
    """
    known, count = equations.objective, equations.objective.design.shape[1]
    largest = float(known.residuals(equations.theta).norm(dim=1).max()) * equations.target_weight
    if equations.has_intercept:
        rows = known.hessian(equations.theta)[count - 1 :: count]
        certain = pull - 2 * noise_std * float(rows.norm())
    else:
        certain = pull
    certain = min(certain, _OUTLIER * largest) if largest > 0 else certain
    return max(1.0, pull / certain) if certain > 0 else math.inf


def _spread(covariance: Tensor) -> Accuracy:
    """The root mean square error under a covariance, and its range by Satterthwaite's chi-square."""
    mean = float(covariance.diagonal().mean())
    if not math.isfinite(mean):
        return _NO_TRACE
    freedom = float(covariance.trace() ** 2 / covariance.square().sum())
    low, high, sure = (math.sqrt(mean * chi2.ppf(part, freedom) / freedom) for part in (0.025, 0.975, 0.999))
    return Accuracy(math.sqrt(mean), low, high, sure, 0.0)
