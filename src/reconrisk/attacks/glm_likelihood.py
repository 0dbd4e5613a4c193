"""The most likely record behind a linear model that was released with Gaussian noise on its coefficients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.glm_equations import TargetEquations
from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import refuse
from reconrisk.releases.glm_objective import GlmObjective, factorise, minimiser

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


def most_likely(
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
        raise refuse(
            "model", f"of {equations.theta.numel()} coefficients", f"to have at most {_MOST_COEFFICIENTS} under noise"
        )
    record, label, point = start.clone(), target.clone(), _solved(equations, start, target, equations.theta)
    converged = False
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
            solved = _solved(equations, candidate, candidate_label, point)
        except InvalidInput:  # a candidate so far off that its model has no minimum in floats
            continue
        if float((equations.theta - solved).norm()) < before:
            return candidate, candidate_label, solved
    return None


def _with_target(equations: TargetEquations, record: Tensor, target: Tensor) -> GlmObjective:
    """The objective of the known records and a candidate."""
    known = equations.objective
    weights = known.design.new_ones(len(known.design)) if known.weights is None else known.weights
    return GlmObjective(
        torch.cat([known.design, equations.known_columns(record)[None]]),
        torch.cat([known.targets, target[None]]),
        known.penalties,
        known.family,
        torch.cat([weights, weights.new_full((1,), equations.target_weight)]),
    )


def _solved(equations: TargetEquations, record: Tensor, target: Tensor, start: Tensor) -> Tensor:
    return minimiser(_with_target(equations, record, target), start)


def _derivatives(equations: TargetEquations, record: Tensor, target: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of the minimiser by the features and by the label, one row per coefficient."""
    whole = _with_target(equations, record, target)
    outputs, columns = point.shape
    row = whole.design[-1]
    last = GlmObjective(whole.design[-1:], whole.targets[-1:], whole.penalties, whole.family)
    pulled = last.curvatures(point)[0] @ point[:, : equations.features]
    mixed = row[None, :, None] * pulled[:, None, :]
    diagonal = torch.arange(equations.features)
    mixed[:, diagonal, diagonal] += last.residuals(point)[0][:, None]
    by_label = -torch.kron(torch.eye(outputs, dtype=row.dtype), row[:, None])
    sides = torch.cat([mixed.reshape(outputs * columns, -1), by_label], dim=1)
    solved = -equations.target_weight * torch.cholesky_solve(sides, factorise(whole.hessian(point)))
    return solved[:, : equations.features], solved[:, equations.features :]
