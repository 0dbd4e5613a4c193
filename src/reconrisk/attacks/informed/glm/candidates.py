"""Comparison of given records with a linear model: membership and attribute inference."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from reconrisk.attacks.informed.glm.accuracy import leftover_limit
from reconrisk.attacks.informed.glm.arguments import (
    GlmArguments,
    LinearObjective,
    check_finite_labels,
    known_records,
    read_known_features,
    rounding_unit,
)
from reconrisk.attacks.informed.glm.equations import TargetEquations, target_row
from reconrisk.attacks.informed.glm.outcomes import label_index
from reconrisk.core.validation import check_positive, invalid_input

Floats = NDArray[np.float64]

MembershipAnswer = Literal["in", "not in", "undecided"]

_DECIDED = math.log(100.0)  # a likelihood ratio of 100 to 1 counts as an answer
_CLEAR_EVIDENCE = 3.0  # times the solver's tolerance: a smaller gradient is consistent with the known records alone
_SHARE = 1e-6  # of the gradient that the known records leave: a candidate that reduces it so far does not by chance


@dataclass(frozen=True, eq=False)
class GlmMatch:
    """Misfit of each candidate record with a linear model.

    A misfit is a length. Under noise it is the distance from the released coefficients to the minimiser with the
    candidate, in units of the noise. Without noise it is the gradient at the released coefficients, in units of the
    solver's tolerance, or of rounding where the tolerance is unknown.

    Attributes:
        misfits: Misfit of each candidate.
        without: Misfit of the known records alone.
        fits: True for each candidate whose misfit is within noise or tolerance. If the tolerance is unknown, the
            candidate must remove nearly all of the gradient that the known records leave.
        posterior: Probability of each candidate under noise and equal prior probabilities, None without noise.
        excludes: False if the tolerance is unknown and neither a candidate nor the known records alone fit. Candidates
            that do not fit may then have been trained on nevertheless.
    """

    misfits: Floats
    without: float
    fits: NDArray[np.bool_]
    posterior: Floats | None
    excludes: bool = True

    @property
    def index(self) -> int:
        """Index of the candidate with the smallest misfit."""
        return int(np.argmin(self.misfits))

    @property
    def is_member(self) -> bool:
        """Return True if the best candidate fits the model and the known records alone do not; False if undecided."""
        return self.membership(self.index) == "in"

    def membership(self, index: int = 0) -> MembershipAnswer:
        """Answer if a candidate was trained on; undecided where the known records alone fit the model as well."""
        if not bool(self.fits[index]):
            return "not in" if self.excludes else "undecided"
        if self.posterior is None:
            return "in" if self.without > _CLEAR_EVIDENCE else "undecided"
        evidence = (self.without**2 - float(self.misfits[index]) ** 2) / 2  # logarithm of the likelihood ratio
        return "in" if evidence > _DECIDED else "undecided"


def glm_candidates(
    model: Any,
    known_inputs: ArrayLike | Tensor,
    known_labels: ArrayLike | Tensor,
    records: ArrayLike | Tensor,
    labels: ArrayLike,
    *,
    noise_std: float | None = None,
    sample_weight: ArrayLike | None = None,
    target_weight: float = 1.0,
    intercept: ArrayLike | None = None,
    objective: LinearObjective | None = None,
) -> GlmMatch:
    r"""Compare a fitted linear model with each candidate record, without fitting any model.

    .. math:: G_c = Z - \rho_c \tilde x_c^T, \qquad |\theta - \theta_c| \approx |H_c^{-1} G_c|

    :math:`G_c` is the gradient, at the released coefficients :math:`\theta`, of the objective over the known records
    and candidate c. Z is the part of the known records, :math:`\rho_c` the residual of the candidate,
    :math:`\tilde x_c` its features with a one for the intercept, and :math:`H_c` the Hessian. The length of the Newton
    step is, up to second order, the distance to the coefficients :math:`\theta_c` that minimise this objective.

    Args:
        model: Fitted estimator, linear torch model or array of coefficients, as for :func:`glm`.
        known_inputs: Training records except the target, (n, features).
        known_labels: Labels of the known records, as the model was fitted to them.
        records: Candidate records (candidates, features).
        labels: Labels of the candidates.
        noise_std: Standard deviation of the noise on every coefficient, None for a model without noise.
        sample_weight: Weights of the known records in the fit, 1 by default.
        target_weight: Weight of the target in the fit.
        intercept: Intercept of plain coefficients, None if the model has none.
        objective: Training objective of a torch model or of plain coefficients. Estimators carry their own.

    Returns:
        The misfit of each candidate and of the known records alone.

    Raises:
        InvalidInput: If records, labels and model do not fit together, or the objective is missing or superfluous.

    Assumes: at most one of the candidates was trained on in addition to the known records.
    Edge cases: a candidate that the model fits exactly cannot be distinguished from no candidate. A model whose
    distance from its minimum is unknown excludes a candidate only if another candidate, or the known records alone, fit
    far better.
    Reference: the informed membership test of Section II-D, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> found = glm_candidates(Ridge().fit(x, y), x[:3], y[:3], [[3.0, 0.0], [3.0, 1.0]], [4.0, 4.0])
    >>> found.fits.tolist(), found.is_member
    ([False, True], True)
    """
    inputs, known = known_records(known_inputs, known_labels)
    stated = LinearObjective() if objective is None else objective
    precision = rounding_unit(known_inputs)
    given = GlmArguments(model, inputs, known, stated, intercept, sample_weight, target_weight, precision)
    features = inputs.shape[1]
    rows = torch.as_tensor(np.asarray(records, dtype=float))
    rows = rows.reshape(len(rows), -1) if rows.ndim > 1 else rows[None]
    if rows.shape[1] != features or not bool(rows.isfinite().all()):
        raise invalid_input("records.shape", tuple(rows.shape), f"to be (candidates, {features}), with finite numbers")
    values = np.asarray(labels)
    if len(values) != len(rows):
        raise invalid_input("len(labels)", len(values), f"to be {len(rows)}, the number of records")
    names = list(check_finite_labels("labels", values))  # in the terms of the estimator
    systems = {label: given.equations(label) for label in set(names)} if given.depends_on_label else {}
    common = None if systems else given.equations(None)
    pieces = [common or systems[label] for label in names]
    gradients = [_gradient(*each) for each in zip(pieces, rows, names, strict=True)]
    alone = given.without_target()
    if noise_std is None:
        misfits = np.array([_scaled_gradient(g, system) for g, system in zip(gradients, pieces, strict=True)])
        has_tolerance = alone.model.optimisation.gradient_limit is not None
        without = _scaled_gradient(alone.moments, alone)
        fits = misfits <= (1.0 if has_tolerance else max(1.0, _SHARE * without))
        # known records that fit far better, alone or with one candidate, show that the model is at its minimum
        shown = bool(fits.any()) or without <= max(1.0, _SHARE * float(misfits.min()))
        return GlmMatch(misfits, without, fits, None, excludes=has_tolerance or shown)
    noise = check_positive("noise_std", noise_std)
    steps = {id(system): _NewtonSteps(system) for system in pieces}  # one factorisation per distinct system
    each = zip(gradients, pieces, rows, strict=True)
    misfits = np.array([steps[id(system)].length(g, row) / noise for g, system, row in each])
    without = _NewtonSteps(alone).length(alone.moments, None) / noise
    weights = torch.as_tensor(-0.5 * misfits**2).softmax(0).numpy()  # Gaussian likelihoods, equal priors
    usual = math.sqrt(alone.theta.numel()) + 3.0  # length of the noise on all coefficients, plus three deviations
    return GlmMatch(misfits, without, misfits <= usual, weights)


def glm_attributes(
    model: Any,
    known_inputs: ArrayLike | Tensor,
    known_labels: ArrayLike | Tensor,
    record: ArrayLike,
    label: Any,
    values: ArrayLike,
    *,
    noise_std: float | None = None,
    sample_weight: ArrayLike | None = None,
    target_weight: float = 1.0,
    intercept: ArrayLike | None = None,
    objective: LinearObjective | None = None,
) -> GlmMatch:
    """Compare possible values of a record's unknown attributes with a fitted linear model.

    If every real number is possible, use :func:`glm` with ``known_values`` instead.

    Args:
        model: Fitted estimator, linear torch model or array of coefficients, as for :func:`glm`.
        known_inputs: Training records except the target, (n, features).
        known_labels: Labels of the known records, as the model was fitted to them.
        record: Features of the target (features,), NaN for unknown ones.
        label: Label of the target.
        values: Possible values of the unknown features, one row per combination, in the order of the features.
        noise_std: Standard deviation of the noise on every coefficient, None for a model without noise.
        sample_weight: Weights of the known records in the fit, 1 by default.
        target_weight: Weight of the target in the fit.
        intercept: Intercept of plain coefficients, None if the model has none.
        objective: Training objective of a torch model or of plain coefficients. Estimators carry their own.

    Returns:
        The misfit of each row of ``values``; ``index`` is the best one.

    Raises:
        InvalidInput: If ``values`` does not have one column per unknown feature, or as :func:`glm_candidates`.

    Reference: attribute inference as reconstruction with side knowledge, Section II-C, balle2022.

    >>> from sklearn.linear_model import Ridge
    >>> x, y = [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0], [3.0, 1.0]], [0.0, 1.0, 1.0, 4.0]
    >>> glm_attributes(Ridge().fit(x, y), x[:3], y[:3], [3.0, float("nan")], 4.0, [[0.0], [1.0]]).index
    1
    """
    inputs, _ = known_records(known_inputs, known_labels)
    known = read_known_features(record, inputs.shape[1])
    free = known.isnan()
    options = torch.as_tensor(np.asarray(values, dtype=float))
    if options.ndim != 2 or options.shape[1] != int(free.sum()):
        raise invalid_input(
            "values.shape",
            tuple(options.shape),
            f"to be (possibilities, {int(free.sum())}), one column per unknown feature",
        )
    records = known.repeat(len(options), 1)
    records[:, free] = options
    labels = np.full(len(options), label) if np.ndim(label) == 0 else np.tile(label, (len(options), 1))
    return glm_candidates(
        model,
        known_inputs,
        known_labels,
        records,
        labels,
        noise_std=noise_std,
        sample_weight=sample_weight,
        target_weight=target_weight,
        intercept=intercept,
        objective=objective,
    )


def _gradient(system: TargetEquations, row: Tensor, label: Any) -> Tensor:
    """Gradient of the objective with a candidate at the released coefficients."""
    pulls = system.target_weight * (target_row(system.model, label_index(system.model, label)) - system.means(row))
    return system.moments - pulls[:, None] * system.known_columns(row)


def _scaled_gradient(gradient: Tensor, system: TargetEquations) -> float:
    """Length of a gradient in units of the solver's tolerance: per scale of the features, or by its largest entry."""
    scaled = float((gradient / system.scales).square().mean().sqrt()) / leftover_limit(system)
    limit = system.model.optimisation.gradient_limit
    return min(scaled, float(gradient.abs().max()) / limit) if limit else scaled


class _NewtonSteps:
    """Lengths of Newton steps at the released coefficients, from one factor of the known records' Hessian."""

    def __init__(self, equations: TargetEquations) -> None:
        self._equations = equations
        objective = equations.objective
        self._factor = objective.factorise(objective.hessian(equations.theta))

    def length(self, gradient: Tensor, record: Tensor | None) -> float:
        """Return the length of the step for a gradient, with the curvature of a candidate added to the Hessian."""
        system, step = self._equations, torch.cholesky_solve(gradient.reshape(-1, 1), self._factor)
        if record is not None:
            # side side^T is the Hessian of the candidate's loss: a low-rank update of the factor (Woodbury)
            values, vectors = torch.linalg.eigh(system.curvature(record))
            root = vectors * values.clamp_min(0.0).sqrt() * math.sqrt(system.target_weight)
            side = torch.kron(root.contiguous(), system.known_columns(record)[:, None].contiguous())
            turned = torch.cholesky_solve(side, self._factor)
            inner = torch.eye(side.shape[1], dtype=side.dtype) + side.T @ turned
            step = step - turned @ torch.linalg.solve(inner, side.T @ step)
        return float(step.norm())
