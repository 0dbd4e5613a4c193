"""Records that are consistent with a linear model, the most plausible first.

:func:`find_outcomes` lists the exact solutions. :func:`refine_under_noise` finds the most likely records if the
coefficients were released with Gaussian noise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.attacks.informed.glm.accuracy import Accuracy, estimate_accuracy
from reconrisk.attacks.informed.glm.arguments import GlmArguments
from reconrisk.attacks.informed.glm.equations import TargetEquations, target_row
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input
from reconrisk.releases.fitted_estimators.estimators import LinearModel
from reconrisk.releases.fitted_estimators.objective import GlmObjective, minimise

_MOST_COEFFICIENTS = 4000  # their Hessian takes 128 MB
_STEPS = 20  # Gauss-Newton steps at most
_HALVINGS = 6  # shortest part of a step that is tried: 1/32
_CONVERGED = 1e-5  # length of a step relative to the noise on the coefficients
_SETTLED = 1e-4  # length of a step relative to the remaining distance
_SLOW = 0.99  # ratio of distances after and before a step: further steps would not change the most likely record
_FARTHEST = 1e6  # times the scale of the known records: beyond it rounding dominates


@dataclass(frozen=True, eq=False)
class LikelihoodEstimate:
    """Most likely record under noise on the coefficients.

    Attributes:
        record: Estimated features.
        target: Estimated or known label, as a row of targets.
        misfit: Distance from the released coefficients to the coefficients fitted with the record, in units of the
            noise.
        covariance: Covariance of the unknown features to first order in the noise.
        known_label_covariance: Covariance for an adversary who knows the label: the inverse Fisher information.
        converged: True if the search converged before its last step.
    """

    record: Tensor
    target: Tensor
    misfit: float
    covariance: Tensor
    known_label_covariance: Tensor
    converged: bool


def _maximise_likelihood(
    equations: TargetEquations, start: Tensor, target: Tensor, *, free: Tensor, free_label: bool, noise_std: float
) -> LikelihoodEstimate:
    r"""Find the record whose model is nearest to the released one by damped Gauss-Newton steps from ``start``.

    .. math:: \min_{x, y} |\theta - \theta(x, y)|^2, \qquad
              \frac{\partial\theta}{\partial x} = -H^{-1} w [r \otimes 1 + \tilde x \otimes A W], \quad
              \frac{\partial\theta}{\partial y} = H^{-1} w (1 \otimes \tilde x)

    Here :math:`\theta` are the released coefficients and :math:`\theta(x, y)` those fitted with the record x and its
    label y. H is the Hessian of the objective and w the weight of the target. :math:`\tilde x` is x with a one for the
    intercept, r the predicted mean minus the label, A the derivative of the mean in the linear predictors, and W are
    the coefficients of the features.

    ``free`` marks the unknown features. With ``free_label`` the label is estimated too.

    Guarantee: the models of candidates are exact minimisers; a step is taken only where it lowers the distance.
    """
    if equations.theta.numel() > _MOST_COEFFICIENTS:
        raise invalid_input(
            "coefficients of the model",
            equations.theta.numel(),
            f"<= {_MOST_COEFFICIENTS} under noise",
            "Use a model of fewer features.",
        )
    record, label, converged = start.clone(), target.clone(), False
    point = minimise(_objective_with_target(equations, start, target), equations.theta)
    for _ in range(_STEPS):
        by_record, by_label = _derivatives(equations, record, label, point)
        columns = torch.cat([by_record[:, free], by_label], dim=1) if free_label else by_record[:, free]
        gap = (equations.theta - point).reshape(-1)
        step = torch.linalg.lstsq(columns, gap[:, None]).solution[:, 0]
        if float((columns @ step).norm()) <= max(_CONVERGED * noise_std, _SETTLED * float(gap.norm())):
            converged = True
            break
        moved = _shorten_step(equations, record, label, point, step, free)
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
    return LikelihoodEstimate(record, label, misfit, covariance, own, converged)


def _covariance(columns: Tensor, noise_std: float) -> Tensor:
    """Return ``noise_std^2 (J^T J)^{-1}`` from the singular values of J; the product would lose half of the digits.

    J (``columns``) is the derivative of the coefficients with respect to the unknown features. Its columns are
    normalised first, so that the units of features do not matter. If the coefficients do not change along a direction,
    every feature with a component in it has infinite variance: inf on the diagonal.
    """
    lengths = columns.norm(dim=0)
    scales = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    _, values, rows = torch.linalg.svd(columns / scales, full_matrices=False)
    found = values > torch.finfo(values.dtype).eps * max(columns.shape) * values.max()  # numerical rank, as NumPy's
    spread = rows[found] / values[found, None]
    covariance: Tensor = noise_std**2 * (spread.T @ spread) / torch.outer(scales, scales)
    # a feature is lost if a null direction contains it: its row of the projection onto the found ones is shorter
    lost = 1 - rows[found].square().sum(0) > torch.finfo(values.dtype).eps ** 0.5
    covariance.diagonal()[lost] = torch.inf
    return covariance


def _shorten_step(
    equations: TargetEquations, record: Tensor, label: Tensor, point: Tensor, step: Tensor, free: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Halve a step until its model is nearer to the released one; None if no part of it is."""
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
            solved = minimise(_objective_with_target(equations, candidate, candidate_label), point)
        except InvalidInput:  # no minimum within floating point range for this candidate
            continue
        if float((equations.theta - solved).norm()) < before:
            return candidate, candidate_label, solved
    return None


def _objective_with_target(equations: TargetEquations, record: Tensor, target: Tensor) -> GlmObjective[Tensor]:
    """Objective over the known records and a candidate."""
    known = equations.objective
    return replace(
        known,
        design=torch.cat([known.design, equations.known_columns(record)[None]]),
        targets=torch.cat([known.targets, target[None]]),
        weights=torch.cat([known.weights, known.weights.new_full((1,), equations.target_weight)]),
    )


def _derivatives(equations: TargetEquations, record: Tensor, target: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives of the minimiser with respect to the features and the label, one row per coefficient."""
    whole = _objective_with_target(equations, record, target)
    row = whole.design[-1]
    # implicit function theorem at the minimum: H dtheta = -w d(gradient), with both right-hand sides in one solve
    by_label = -torch.kron(torch.eye(len(point), dtype=row.dtype), row[:, None])
    sides = torch.cat([whole.mixed_derivative(point, -1), by_label], dim=1)
    solved = -equations.target_weight * whole.arrays.solve(whole.factorise(whole.hessian(point)), sides)
    return solved[:, : equations.features], solved[:, equations.features :]


_CLASSIFIERS = ("logistic", "multinomial")
_NO_TRACE = Accuracy(math.inf, math.inf, math.inf, math.inf, math.inf)
_AS_GOOD = 10.0  # times the smallest misfit: a root with a smaller misfit counts as an equally good solution
_ROUNDING = 1e-9  # relative misfit that rounding alone may leave
_OUTLIER = 3.0  # times the largest pull of a known record: the largest pull that is plausible for the target
_STRANGE = 10.0  # times the range of known labels: a label beyond it rather indicates wrong weights or penalty
_IMPLAUSIBLE = 3.0  # times the expected length of the noise, the root of the number of coefficients


@dataclass(frozen=True, eq=False)
class Outcome:
    """Reconstructed record with its label, its misfit and its accuracy.

    Attributes:
        equations: Equations that the record solves.
        record: Features.
        target: Label as a row of targets.
        label: Label in the terms of the estimator.
        accuracy: Estimated root mean square error per feature, with its range.
        influence: Length of the target's residual rho.
        misfit: Size of the part of the equations that the record does not solve.
        origin: Description of the optimisation or of the noise, for the status.
        covariance: Covariance of the features under noise, None without noise.
        cramer_rao_mse: Cramer-Rao bound under noise with known label, None without noise.
        converged: False if the search under noise ended before it converged.
    """

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
        """Return True if the record or its label is outside the known ones by far more than these differ."""
        system = self.equations
        everywhere = torch.ones(system.features, dtype=torch.bool)
        low, high = system.objective.targets.amin(0), system.objective.targets.amax(0)
        beyond = (self.target - self.target.clamp(low, high)).abs()
        counted = system.model.family not in _CLASSIFIERS
        return system.distance_outside(self.record) > system.spread(everywhere) or (
            counted and bool((beyond > _STRANGE * (high - low)).any())
        )


def find_outcomes(given: GlmArguments, known: Tensor, label: object | None) -> list[Outcome]:
    """List every record that solves the equations, the best first.

    Args:
        given: Released model and known records.
        known: Known features of the target, NaN for unknown ones.
        label: Label of the target, None if it is unknown.

    Returns:
        At least one outcome. A target without a trace gives the mean of the known records.
    """
    if label is None and given.depends_on_label:
        classes = np.unique(getattr(given.model, "classes_", ()))
        # class weights make the objective depend on the label: solve for every class and keep the best
        each = [one for value in classes for one in _solve_equations(given.equations(value), known, value)]
        return sorted(each, key=lambda one: one.misfit)[:1]
    return _solve_equations(given.equations(label), known, label)


def _solve_equations(equations: TargetEquations, known: Tensor, label: object | None) -> list[Outcome]:
    """List the records for one label."""
    model = equations.model
    target = None if label is None else target_row(model, label_index(model, label))
    pulls = equations.pulls(known)
    if pulls is None:
        return _solve_without_intercept(equations, known, target)
    if not bool(pulls.any()):
        return [_untraceable_outcome(equations, known, target)]
    record = equations.record(pulls, known)
    read = _read_label(equations, record, pulls) if target is None else target
    certain = target is not None or model.family in _CLASSIFIERS or has_count_labels(model)
    reached = estimate_accuracy(equations, record, pulls, read if certain else None)
    misfit = float((pulls - equations.target_weight * (read - equations.means(record))).norm())
    if float(pulls.norm()) <= reached.rounding:  # indistinguishable from rounding
        return [_untraceable_outcome(equations, known, target)]
    return [_make_outcome(equations, record, read, reached, float(pulls.norm()), misfit)]


def _make_outcome(
    equations: TargetEquations, record: Tensor, target: Tensor, reached: Accuracy, influence: float, misfit: float
) -> Outcome:
    model = equations.model
    return Outcome(
        equations,
        record,
        target,
        _label_from_target(model, target),
        reached,
        influence,
        misfit,
        model.optimisation.words,
    )


def _solve_without_intercept(equations: TargetEquations, known: Tensor, target: Tensor | None) -> list[Outcome]:
    """List one outcome per root of each possible label, the nearest to a known record first."""
    model = equations.model
    if target is None and model.family not in _CLASSIFIERS:
        raise invalid_input(
            "label",
            None,
            "to be given for a model without intercept",
            "Pass label=, or a feature in known_values=: coefficients alone do not determine both length and label.",
        )
    rows = _possible_targets(model) if target is None else [target]
    found = []
    # without an intercept no equation is spare: every root of every label is a candidate, and the misfit decides
    for row in rows:
        for record in equations.roots(row):
            pulls = equations.moments @ record / record.square().sum()
            misfit = float((pulls - equations.target_weight * (row - equations.means(record))).norm() / pulls.norm())
            reached = estimate_accuracy(equations, record, pulls, None)
            found.append(_make_outcome(equations, record, row, reached, float(pulls.norm()), misfit))
    if not found:
        return [_untraceable_outcome(equations, known, target)]
    best = min(one.misfit for one in found)
    fitting = [one for one in found if one.misfit <= max(_AS_GOOD * best, _ROUNDING)]
    inputs = equations.objective.design[:, : equations.features]
    return sorted(fitting, key=lambda one: float(torch.cdist(one.record[None], inputs).min()))


def _untraceable_outcome(equations: TargetEquations, known: Tensor, target: Tensor | None) -> Outcome:
    """Outcome for a target that leaves no trace: the mean of the known records."""
    mean = equations.objective.design[:, : equations.features].mean(0)
    record = torch.where(known.isnan(), mean, known)
    row = equations.means(record) if target is None else target
    if target is None and equations.model.family in _CLASSIFIERS:
        row = max(_possible_targets(equations.model), key=lambda each: float(-(each - row).norm()))
    return _make_outcome(equations, record, row, _NO_TRACE, 0.0, math.inf)


def _read_label(equations: TargetEquations, record: Tensor, pulls: Tensor) -> Tensor:
    """Label that follows from the residual rho of the record, as a row of targets."""
    model = equations.model
    if model.family == "logistic":
        return (pulls > 0).double()
    if model.family == "multinomial":
        return torch.eye(len(pulls), dtype=torch.float64)[int(pulls.argmax())]
    number = equations.means(record) + pulls / equations.target_weight
    return number.round().clamp_min(0.0) if has_count_labels(model) else number


def has_count_labels(model: LinearModel) -> bool:
    """Return True if the family is Poisson and all known labels are whole numbers.

    Args:
        model: Released model with the known labels.

    Returns:
        True if the label of the target can be rounded to a whole number.
    """
    return model.family == "poisson" and bool((model.labels == np.floor(model.labels)).all())


def _possible_targets(model: LinearModel) -> list[Tensor]:
    """List every label of a classifier as rows of targets."""
    return [target_row(model, index) for index in range(2 if model.family == "logistic" else len(model.weight))]


def label_index(model: LinearModel, label: Any) -> Any:
    """Convert a label from the terms of the estimator to the encoding of its family.

    Args:
        model: Released model.
        label: Class name, class index or number.

    Returns:
        The class index of a classifier, else the label itself.

    Raises:
        InvalidInput: If the label is not a class of the model.
    """
    if model.classes is None:
        allowed = {"logistic": 2, "multinomial": len(model.weight)}.get(model.family)
        if allowed is not None and label not in range(allowed):
            raise invalid_input("label", label, f"to be a whole number from 0 to {allowed - 1}")
        return label
    places = np.flatnonzero(model.classes == label)
    if len(places) != 1:
        raise invalid_input("label", label, f"to be one of the classes {model.classes.tolist()} of the model")
    return int(places[0])


def _label_from_target(model: LinearModel, target: Tensor) -> Any:
    """Convert a row of targets to the terms of the estimator."""
    if model.family in _CLASSIFIERS:
        index = int(target.argmax()) if model.family == "multinomial" else int(target[0])
        return index if model.classes is None else model.classes[index]
    return float(target[0]) if len(target) == 1 else np.asarray(target.numpy())


def refine_under_noise(
    found: list[Outcome], given: GlmArguments, known: Tensor, label: object | None, noise_std: float
) -> list[Outcome]:
    """Find the most likely records under noise, starting from the records of the exact formula.

    Args:
        found: Outcomes of the exact formula.
        given: Released model and known records.
        known: Known features of the target, NaN for unknown ones.
        label: Label of the target, None if it is unknown; each possible label is then tried.
        noise_std: Standard deviation of the noise on every coefficient.

    Returns:
        The outcomes, the most likely first.
    """
    first = found[0]
    classifier = first.equations.model.family in _CLASSIFIERS
    if label is None and classifier and first.equations.has_intercept:
        rows, pulls = _possible_targets(first.equations.model), first.equations.pulls(known)
        if pulls is not None and len(pulls) > 1:  # only the two classes of largest pull are plausible
            rows = [rows[index] for index in pulls.argsort(descending=True)[:2].tolist()]
        names = [_label_from_target(first.equations.model, row) for row in rows]
        systems = [given.equations(name) for name in names] if given.depends_on_label else [first.equations] * len(rows)
        starts = [(system, first.record, row) for system, row in zip(systems, rows, strict=True)]
    else:
        starts = [(one.equations, one.record, one.target) for one in found]
    free_label = label is None and not classifier
    refined = [_refine(*start, known.isnan(), free_label, noise_std) for start in starts]
    # a poor fit may be a local minimum: search again from the mean of the known records
    if min(one.misfit for one in refined) > _IMPLAUSIBLE * math.sqrt(first.equations.theta.numel()):
        mean = torch.where(known.isnan(), given.inputs.mean(0), known)
        refined += [_refine(system, mean, row, known.isnan(), free_label, noise_std) for system, _, row in starts]
    several = len(refined) > 1 and not first.equations.has_intercept
    return refined if several else sorted(refined, key=lambda one: one.misfit)[:1]


def _refine(
    equations: TargetEquations, record: Tensor, target: Tensor, free: Tensor, free_label: bool, noise_std: float
) -> Outcome:
    best = _maximise_likelihood(equations, record, target, free=free, free_label=free_label, noise_std=noise_std)
    pulls = equations.target_weight * (best.target - equations.means(best.record))
    reached = _accuracy_from_covariance(best.covariance * _optimism(equations, float(pulls.norm()), noise_std) ** 2)
    outcome = _make_outcome(equations, best.record, best.target, reached, float(pulls.norm()), best.misfit)
    bound = float(best.known_label_covariance.diagonal().mean())
    words = f"most likely record under noise of {noise_std:g}"
    return replace(outcome, covariance=best.covariance, cramer_rao_mse=bound, origin=words, converged=best.converged)


def _optimism(equations: TargetEquations, pull: float, noise_std: float) -> float:
    """Factor by which the covariance at the estimate may understate errors.

    The pull is the weighted residual of the target, and errors are proportional to one over the pull. Noise changes the
    pull by up to two standard deviations of the intercept's derivative. Noise alone produces estimates that pull much
    harder than any known record does.
    """
    known, count = equations.objective, equations.objective.design.shape[1]
    largest = float(known.residuals(equations.theta).norm(dim=1).max()) * equations.target_weight
    if equations.has_intercept:  # the intercept's row of Z is the pull itself
        rows = known.hessian(equations.theta)[count - 1 :: count]
        certain = pull - 2 * noise_std * float(rows.norm())
    else:
        certain = pull
    # a pull beyond that of any plausible record is an effect of the noise
    certain = min(certain, _OUTLIER * largest) if largest > 0 else certain
    return max(1.0, pull / certain) if certain > 0 else math.inf


def _accuracy_from_covariance(covariance: Tensor) -> Accuracy:
    """Root mean square error under a covariance, and its range by Satterthwaite's chi-square approximation."""
    mean = float(covariance.diagonal().mean())
    if not math.isfinite(mean):
        return _NO_TRACE
    # a sum of squares with unequal variances is about a scaled chi-square with these degrees of freedom
    freedom = float(covariance.trace() ** 2 / covariance.square().sum())
    # 95 % range, and the end that one in a thousand exceeds
    low, high, sure = (math.sqrt(mean * chi2.ppf(part, freedom) / freedom) for part in (0.025, 0.975, 0.999))
    return Accuracy(math.sqrt(mean), low, high, sure, 0.0)
