r"""Equations for the unknown record that the optimality of a linear model implies.

At the minimum the gradients of all records and of the penalty add up to zero. The known gradients leave, for a target
of weight w, features x (and a one for the intercept) and label y,

.. math:: Z = \rho \tilde x^T, \qquad \rho = w (y - g^{-1}(W \tilde x)),

with one row per output; g is the link function and W are the coefficients with the intercept as last column. The record
is the direction of Z, and its length follows from any known column. The code calls :math:`\rho`, the weighted residual
of the target, its *pull*.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.optimize import brentq, minimize_scalar
from torch import Tensor

from reconrisk.core.validation import invalid_input
from reconrisk.releases.fitted_estimators.estimators import LinearModel
from reconrisk.releases.fitted_estimators.glm import TORCH
from reconrisk.releases.fitted_estimators.objective import GlmObjective

_SMALLEST_SCALE = 1e-3  # of the largest scale: a column that is nearly zero in the known records still has an error
_SCAN = np.geomspace(1e-6, 1e12, 3600)  # lengths of a record, 200 per decade, at which roots are bracketed


@dataclass(frozen=True, eq=False)
class TargetEquations:
    """Equations for the target that a released model and the known records imply.

    Attributes:
        model: The released model and its objective.
        objective: Objective over the known records.
        theta: Released coefficients (outputs, columns), the intercept last.
        target_weight: Weight of the target in the fit.
        input_precision: Relative rounding error of the known records, such as 1.2e-7 for float32; 0 if they are exact.
    """

    model: LinearModel
    objective: GlmObjective[Tensor]
    theta: Tensor
    target_weight: float
    input_precision: float = 0.0

    @cached_property
    def moments(self) -> Tensor:
        """Z (outputs, columns), the column of the intercept last."""
        return self.objective.gradient(self.theta)

    @cached_property
    def squares(self) -> Tensor:
        """Mean square of each column over the known records."""
        design = self.objective.design.numpy()
        return torch.as_tensor(np.einsum("ij,ij->j", design, design) / len(design))

    @cached_property
    def scales(self) -> Tensor:
        """Root mean square of each column over the known records, to which leftover gradients are proportional."""
        scales = self.squares.sqrt()
        return scales.clamp_min(_SMALLEST_SCALE * float(scales.max()))

    def spread(self, free: Tensor) -> float:
        """Return the root mean square error of guessing the known records' mean for these features."""
        design = self.objective.design
        means = design.T @ design.new_full((len(design),), 1 / len(design))
        variances = (self.squares - means.square())[: self.features].clamp_min(0.0)
        return float(variances[free].mean().sqrt())

    @cached_property
    def feature_ranges(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each feature over the known records."""
        known = self.objective.design[:, : self.features]
        return known.amin(0), known.amax(0)

    def distance_outside(self, record: Tensor) -> float:
        """Return the root mean square distance of a record from the feature ranges of the known records."""
        low, high = self.feature_ranges
        return float((record - record.clamp(low, high)).square().mean().sqrt())

    @property
    def has_intercept(self) -> bool:
        """Return True if the last column is the constant one of an intercept."""
        return self.objective.has_intercept

    @property
    def features(self) -> int:
        """Number of features of a record."""
        return self.objective.features

    def known_columns(self, known: Tensor) -> Tensor:
        """Return the target's row of the design matrix from its ``known`` features, NaN for unknown ones."""
        return torch.cat([known, known.new_ones(1)]) if self.has_intercept else known

    def predictors(self, record: Tensor) -> Tensor:
        """Return the linear predictors of a record, (outputs,)."""
        return self.theta @ self.known_columns(record)

    def means(self, record: Tensor) -> Tensor:
        """Return the model's expected label of a record, (outputs,)."""
        return self.objective.means(self.predictors(record)[None])[0]

    def curvature(self, record: Tensor) -> Tensor:
        """Return the Hessian of a record's unweighted loss in its predictors, (outputs, outputs)."""
        return self.objective.curvatures(self.predictors(record)[None])[0]

    def pulls(self, known: Tensor) -> Tensor | None:
        """Return rho (outputs,) from the known columns by least squares; None if all known columns are zero."""
        row = self.known_columns(known)
        sure = ~row.isnan() & (row != 0)
        if not bool(sure.any()):
            return None
        weighted = row[sure] / self.scales[sure].square()  # columns of larger scale have larger leftover gradients
        return self.moments[:, sure] @ weighted / (weighted @ row[sure])

    def record(self, pulls: Tensor, known: Tensor) -> Tensor:
        """Return the features that solve Z for these pulls; known features are kept."""
        found = pulls @ self.moments[:, : self.features] / pulls.square().sum()
        return torch.where(known.isnan(), found, known)

    def roots(self, target: Tensor) -> list[Tensor]:
        r"""Return every record that solves the equations for a label if no column is known.

        Here v is the leading left singular vector of Z, w and y are weight and label of the target, g is the link
        function, and W are the coefficients. A record is ``x = a m`` along ``m = v^T Z``, where the number a solves

        .. math:: a\, w\, v^T (y - g^{-1}(a W m)) = 1

        For one output v = 1, and the squared loss gives the quadratic ``a^2 w m^T theta - a w y + 1 = 0``.
        """
        left = torch.linalg.svd(self.moments, full_matrices=False)[0][:, 0]  # v: Z has rank one up to its error
        direction = left @ self.moments
        if not bool(direction.any()):
            return []
        slope, weight = self.theta @ direction, self.target_weight

        def equation(lengths: np.ndarray) -> np.ndarray:
            means = self.objective.means(torch.as_tensor(lengths, dtype=torch.float64)[:, None] * slope)
            return np.asarray(lengths * weight * ((target - means) @ left).numpy() - 1)

        if self.model.family == "squared":
            lengths = _quadratic(weight * float(left @ slope), weight * float(left @ target))
        else:
            lengths = [sign * a for sign in (1.0, -1.0) for a in _scan(equation, sign, weight)]
        return [length * direction for length in lengths]


def equations(
    model: LinearModel, inputs: Tensor, target_weight: float, input_precision: float = 0.0
) -> TargetEquations:
    """Build the equations for the target.

    Args:
        model: Released model; its ``labels`` and ``sample_weights`` belong to ``inputs``.
        inputs: Known records (n, features), double precision.
        target_weight: Weight of the target in the fit.
        input_precision: Relative rounding error of the known records, such as 1.2e-7 for float32; 0 if they are exact.

    Returns:
        The equations.
    """
    ones = inputs.new_ones(len(inputs), 1)
    design = inputs if model.bias is None else torch.cat([inputs, ones], dim=1)
    penalties = torch.full((design.shape[1],), model.penalty, dtype=torch.float64)
    theta = torch.as_tensor(model.weight)
    if model.bias is not None:
        penalties[-1] = model.intercept_penalty
        theta = torch.cat([theta, torch.as_tensor(model.bias)[:, None]], dim=1)
    weights = torch.as_tensor(np.ascontiguousarray(model.sample_weights))
    labels = torch.as_tensor(model.labels)
    if model.family == "multinomial":
        targets = torch.eye(len(model.weight), dtype=torch.float64)[labels.long()]
    else:
        targets = labels.reshape(len(labels), -1)
    objective = GlmObjective(design, targets, weights, penalties, model.family, TORCH, model.bias is not None)
    return TargetEquations(model, objective, theta, float(target_weight), input_precision)


def target_row(model: LinearModel, label: object) -> Tensor:
    """Convert a label to one row of targets.

    Args:
        model: Released model.
        label: Class index, number, or numbers of a multi-output regression, as the model's family encodes it.

    Returns:
        The targets (outputs,): one-hot for a multinomial model, else the label.

    Raises:
        InvalidInput: If the label of a multi-output regression does not have one number per output.
    """
    values = torch.as_tensor(np.asarray(label, dtype=float)).reshape(-1)
    if model.family == "multinomial":
        return torch.eye(len(model.weight), dtype=torch.float64)[int(values[0])]
    if model.family == "squared" and len(values) != len(model.weight):
        raise invalid_input("label", label, f"to have {len(model.weight)} numbers, one per output of the model")
    return values


def _quadratic(curvature: float, slope: float) -> list[float]:
    """Real roots of ``curvature a^2 - slope a + 1 = 0`` without cancellation; the double root where two just meet."""
    if curvature == 0:
        return [] if slope == 0 else [1 / slope]
    discriminant = slope * slope - 4 * curvature
    if discriminant < -1e-9 * slope * slope:  # rounding may leave a double root slightly negative
        return []
    half = (slope + np.copysign(np.sqrt(max(discriminant, 0.0)), slope)) / 2
    return sorted({1 / half, half / curvature}, key=abs)


def _scan(equation: Callable[[np.ndarray], np.ndarray], sign: float, weight: float) -> list[float]:
    """Positive roots of ``equation(sign * a)``, including pairs that lie between two points of the scan."""
    grid = _SCAN / weight
    with np.errstate(over="ignore", invalid="ignore"):
        values = equation(sign * grid)

    def at(a: float) -> float:
        return float(np.clip(equation(np.array([sign * a]))[0], -1e300, 1e300))  # brentq needs finite ends

    # Two roots may lie between neighbouring points without a change of sign; the minimum between them brackets both.
    sides, near = np.sign(values), np.abs(values)
    brackets = [(grid[i], grid[i + 1]) for i in np.flatnonzero(sides[:-1] * sides[1:] < 0)]
    turns = (
        (near[1:-1] < near[:-2]) & (near[1:-1] <= near[2:]) & (sides[:-2] == sides[1:-1]) & (sides[1:-1] == sides[2:])
    )
    for i in np.flatnonzero(turns) + 1:
        side = float(sides[i])
        top = minimize_scalar(lambda a, side=side: side * at(a), bounds=(grid[i - 1], grid[i + 1]), method="bounded")
        if side * at(top.x) < 0:
            brackets += [(grid[i - 1], top.x), (top.x, grid[i + 1])]
    return [float(brentq(at, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps)) for low, high in brackets]
