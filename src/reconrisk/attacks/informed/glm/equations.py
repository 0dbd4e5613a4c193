r"""What the optimality of a linear model leaves for the one record that is not known.

At the minimum the gradients of all records and of the penalty add up to zero. Those that are known leave, for a target
of weight w, features x (and a one for the intercept) and label y,

.. math:: Z = \rho \tilde x^T, \qquad \rho = w (y - g^{-1}(W \tilde x)),

one row per output: the record is the direction of Z, and its length follows from any column that is known.
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

_SMALLEST_SCALE = 1e-3  # of the largest: a column that is nearly empty in known records is not known for nothing
_SCAN = np.geomspace(1e-6, 1e12, 3600)


@dataclass(frozen=True, eq=False)
class TargetEquations:
    """The equations for the target that a released model and the known records leave."""

    model: LinearModel
    objective: GlmObjective[Tensor]
    theta: Tensor
    target_weight: float
    input_precision: float = 0.0

    @cached_property
    def moments(self) -> Tensor:
        """Z, (outputs, columns); the intercept's column last."""
        return self.objective.gradient(self.theta)

    @cached_property
    def squares(self) -> Tensor:
        """Mean square of each column over the known records."""
        design = self.objective.design.numpy()
        return torch.as_tensor(np.einsum("ij,ij->j", design, design) / len(design))

    @cached_property
    def scales(self) -> Tensor:
        """Root mean square of each column over the known records: in what proportion gradients are left over."""
        scales = self.squares.sqrt()
        return scales.clamp_min(_SMALLEST_SCALE * float(scales.max()))

    def spread(self, free: Tensor) -> float:
        """The root mean square error of guessing the known records' mean for these features."""
        design = self.objective.design
        means = design.T @ design.new_full((len(design),), 1 / len(design))
        variances = (self.squares - means.square())[: self.features].clamp_min(0.0)
        return float(variances[free].mean().sqrt())

    @cached_property
    def ranges(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each feature over the known records."""
        known = self.objective.design[:, : self.features]
        return known.amin(0), known.amax(0)

    def outside(self, record: Tensor) -> float:
        """How far the features of a record are beyond those of known records, root mean square."""
        low, high = self.ranges
        return float((record - record.clamp(low, high)).square().mean().sqrt())

    @property
    def has_intercept(self) -> bool:
        """Whether the last column is a one in every record."""
        return self.objective.has_intercept

    @property
    def features(self) -> int:
        """The dimension of a record."""
        return self.objective.features

    def known_columns(self, known: Tensor) -> Tensor:
        """What is known of the target's row of the design: ``known`` features, NaN where not, and the one."""
        return torch.cat([known, known.new_ones(1)]) if self.has_intercept else known

    def predictors(self, record: Tensor) -> Tensor:
        """The linear predictors of a record, (outputs,)."""
        return self.theta @ self.known_columns(record)

    def means(self, record: Tensor) -> Tensor:
        """What the model expects of the label of a record, (outputs,)."""
        return self.objective.means(self.predictors(record)[None])[0]

    def curvature(self, record: Tensor) -> Tensor:
        """The second derivative of a record's loss by its predictors, (outputs, outputs), without its weight."""
        return self.objective.curvatures(self.predictors(record)[None])[0]

    def pulls(self, known: Tensor) -> Tensor | None:
        """rho, (outputs,), from the columns that are known by least squares; None where all of these are zero."""
        row = self.known_columns(known)
        sure = ~row.isnan() & (row != 0)
        if not bool(sure.any()):
            return None
        weighted = row[sure] / self.scales[sure].square()
        return self.moments[:, sure] @ weighted / (weighted @ row[sure])

    def record(self, pulls: Tensor, known: Tensor) -> Tensor:
        """The features that Z shows at these pulls, those that are known as they are."""
        found = pulls @ self.moments[:, : self.features] / pulls.square().sum()
        return torch.where(known.isnan(), found, known)

    def roots(self, target: Tensor) -> list[Tensor]:
        r"""Every record that a label explains where no column is known: ``x = a m`` along ``m = v^T Z``.

        .. math:: a\, w\, v^T (y - g^{-1}(a W m)) = 1

        For one output v = 1, and the squared loss gives the quadratic ``a^2 w m^T theta - a w y + 1 = 0``.
        """
        left = torch.linalg.svd(self.moments, full_matrices=False)[0][:, 0]
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
    """The equations for the target from a model whose ``labels`` are those of the known ``inputs``."""
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
    """A label as the model's family counts it, as one row of targets."""
    values = torch.as_tensor(np.asarray(label, dtype=float)).reshape(-1)
    if model.family == "multinomial":
        return torch.eye(len(model.weight), dtype=torch.float64)[int(values[0])]
    if model.family == "squared" and len(values) != len(model.weight):
        raise invalid_input("label", label, f"to be {len(model.weight)} numbers, one per output")
    return values


def _quadratic(curvature: float, slope: float) -> list[float]:
    """Real roots of ``curvature a^2 - slope a + 1 = 0``, without cancellation; the double one where they just meet."""
    if curvature == 0:
        return [] if slope == 0 else [1 / slope]
    discriminant = slope * slope - 4 * curvature
    if discriminant < -1e-9 * slope * slope:
        return []
    half = (slope + np.copysign(np.sqrt(max(discriminant, 0.0)), slope)) / 2
    return sorted({1 / half, half / curvature}, key=abs)


def _scan(equation: Callable[[np.ndarray], np.ndarray], sign: float, weight: float) -> list[float]:
    """Positive roots of ``equation(sign * a)``, also two that lie between points of the scan."""
    grid = _SCAN / weight
    with np.errstate(over="ignore", invalid="ignore"):
        values = equation(sign * grid)

    def at(a: float) -> float:
        return float(np.clip(equation(np.array([sign * a]))[0], -1e300, 1e300))

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
