"""Estimated error of the exact formula on a model that the solver left near its minimum, not at it.

In this file g is the gradient of the objective that the solver left over. Tau is its size: entries of g have standard
deviation tau times the scale of their feature (root mean square over the known records). Z is the matrix of the
equations for the target, and rho the residual of the target (see ``equations.py``). The misfit is the part of the
equations that no record solves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.attacks.informed.glm.equations import TargetEquations

# Chi-square probabilities: the two ends of a 95 % range, and the upper end that one record in a thousand exceeds.
_PARTS = (0.975, 0.025, 0.001)
_DOUBLE = float(np.finfo(float).eps)
_CAUTION = 2.0  # safety factor on estimated rounding and on thresholds derived from it
# A solver that stops at floating point accuracy loses usually one, at most two more digits to the condition number.
_USUAL_ROUNDING = 10.0
_LARGEST_ROUNDING = 100.0
_SELDOM = 0.9999  # chi-square probability: one in ten thousand exceeds it by chance
_CLEAR = 10.0  # times the solver's tolerance: a larger pull is that of a record, not a leftover gradient
_COMPELLING = 1e-3  # of the pull, or of a whole number: one wrong record in a thousand agrees so well by chance
_TYPICAL = 3.0  # a gradient whose largest entry meets a limit has a root mean square of about a third of it


@dataclass(frozen=True)
class Accuracy:
    """Expected root mean square error per feature, and a range for it.

    Attributes:
        expected: Expected error in the units of the features, NaN if it cannot be estimated.
        low: Lower end of a 95 % range.
        high: Upper end of a 95 % range, inf if the leftover gradient may hide the target.
        sure: Upper end that one record in a thousand exceeds. The attack reports "exact" only if this end is small.
        rounding: Part of the target's residual rho that may be rounding, in the units of rho.
        is_checked: True if there are more equations than unknowns, so that the estimate can be checked.
        is_contradicted: True if the equations disagree by more than the solver's stopping rule allows.
        is_compelling: True if the equations agree far better than they would by chance.
    """

    expected: float
    low: float
    high: float
    sure: float
    rounding: float
    is_checked: bool = True
    is_contradicted: bool = False
    is_compelling: bool = False


def estimate_accuracy(equations: TargetEquations, record: Tensor, pulls: Tensor, target: Tensor | None) -> Accuracy:
    """Estimate the error that the solver's leftover gradient g causes: ``x_hat - x = (g_x - g_b x) / rho``.

    Here :math:`g_x` and :math:`g_b` are the entries of g for the features and for the intercept, and x_hat is the
    estimate of the record x. The entries of g are modelled as random, with standard deviation tau times the scale of
    their feature. Tau is the larger of the rounding level and the observed misfit. The misfit is the part of Z that is
    not parallel to the record, and the difference between rho and the residual of the record found. If no misfit can be
    observed, tau is the largest value that the solver's stopping rule allows.

    The observed misfit rests on few numbers, often on one, and may be small by chance. ``expected`` is therefore the
    geometric mean of the observed misfit and its upper end, which is about the root mean square over all possible
    values. A record with features outside the range of all known ones is assumed to err by that distance, as far as
    chance allows. If the distance exceeds the spread of the known records and nothing confirms the record, there is no
    such limit. If all of Z is within the tolerance of the solver and the misfit does not exclude it, Z may be nothing
    but g. If the observed tau exceeds the tolerance, no single record is consistent with the model.

    Args:
        equations: Equations for the target.
        record: Estimated features (features,).
        pulls: Residual rho of the target (outputs,).
        target: Label as a row of targets; None if it was read from the equations themselves.

    Returns:
        The expected error, its range, and checks of the estimate.
    """
    # size converts tau to the error of a feature: g_x has scale tau * scales, g_b has scale tau and multiplies x
    squares = equations.scales[: equations.features].square()
    size = float((squares.mean() + record.square().mean()).sqrt() / pulls.norm()) / _steepness(equations, record, pulls)
    rounding, influence = _rounding_level(equations), float(pulls.norm())
    ceiling = _largest_tau(equations, rounding)
    misfit = _observed_misfit(equations, record, pulls, target) if equations.has_intercept else None
    if misfit is None:
        expected, low, high, sure = _tau_from_solver_rule(equations, rounding, ceiling)
    else:
        expected, low, high, sure = _tau_from_misfit(*misfit, rounding, ceiling)
    compelling = misfit is not None and max(misfit[0], ceiling) < _COMPELLING * min(influence, 1.0)
    beyond, most = equations.distance_outside(record), math.inf
    if compelling or beyond <= equations.spread(torch.ones_like(record, dtype=torch.bool)):
        most = sure
    expected, high = max(expected, min(beyond / size, sure)), max(high, min(_CAUTION * beyond / size, most))
    # All of Z is within the solver's tolerance and may be nothing but g: tau is then as large as the pull.
    if high >= influence and float(equations.moments.abs().max()) <= (equations.model.optimisation.gradient_limit or 0):
        expected = max(expected, influence)
    worst, surely = (math.inf if end >= influence else end * size for end in (high, sure))
    reached = Accuracy(expected * size, min(low * size, worst), worst, surely, rounding, misfit is not None)
    if misfit is not None and _excess(*misfit, rounding) > ceiling and influence > _CLEAR * ceiling:
        return replace(reached, expected=math.nan, high=math.inf, sure=math.inf, is_contradicted=True)
    return replace(reached, is_compelling=compelling)


def _largest_tau(equations: TargetEquations, rounding: float) -> float:
    """Largest tau that the solver's stopping rule allows; infinite if it has none."""
    limit = _scaled_gradient_limit(equations)
    if limit is None:
        return math.inf
    if limit == 0:
        drawn = (
            _TYPICAL if equations.input_precision > _DOUBLE else 1.0
        )  # one random draw of rounding may understate another
        # a direct solver leaves the rounding errors of sums over records, all of the same sign at worst
        moved = float((equations.scales * equations.theta.abs()).sum(1).max())
        solved = equations.model.precision * float(equations.objective.weights.sum()) * moved
        return max(drawn * rounding, solved)
    return max(limit, equations.model.optimisation.objective_limit, rounding)


def _scaled_gradient_limit(equations: TargetEquations) -> float | None:
    """Limit of the stopping rule on the gradient, per unit of the largest feature scale."""
    limit = equations.model.optimisation.gradient_limit
    return None if limit is None else limit / float(equations.scales.max())


def _tau_from_solver_rule(
    equations: TargetEquations, rounding: float, ceiling: float
) -> tuple[float, float, float, float]:
    """Expected tau, its 95 % range and its 99.9 % end if no misfit can be observed, from the stopping rule."""
    limit = _scaled_gradient_limit(equations)
    expected = math.nan if limit is None else max(limit / _TYPICAL, rounding)
    if limit == 0:
        expected = math.sqrt(rounding * ceiling)  # geometric mean of the two ends
    return expected, rounding, ceiling, ceiling


def _tau_from_misfit(tau: float, freedom: float, rounding: float, ceiling: float) -> tuple[float, float, float, float]:
    """Expected tau, its 95 % range and its 99.9 % end from the misfit, at most the limit of the stopping rule."""
    ends = (tau * math.sqrt(freedom / chi2.ppf(part, freedom)) for part in _PARTS)
    low, high, sure = (max(end, rounding) for end in ends)
    high, sure = min(high, ceiling), min(sure, ceiling)  # the solver's rule holds even if the misfit is large
    expected = math.sqrt(min(max(tau, rounding), ceiling) * high)
    return expected, low, max(high, _USUAL_ROUNDING * rounding), max(sure, _USUAL_ROUNDING * rounding)


def _excess(tau: float, freedom: float, rounding: float) -> float:
    """Least tau that is consistent with the observed misfit; zero if the rounding of a hard problem can cause it."""
    least = tau * math.sqrt(freedom / chi2.ppf(_SELDOM, freedom)) / _CAUTION
    return least if least > _LARGEST_ROUNDING * rounding else 0.0


def leftover_limit(equations: TargetEquations) -> float:
    """Return the largest gradient that rounding and the solver's stopping rule may leave.

    Args:
        equations: Equations for the target.

    Returns:
        Root mean square of the gradient, in units of the scales of the features.
    """
    solver = equations.model.optimisation
    rule = max((solver.gradient_limit or 0.0) / float(equations.scales.max()), solver.objective_limit)
    return max(_LARGEST_ROUNDING * _rounding_level(equations), rule)


def _steepness(equations: TargetEquations, record: Tensor, pulls: Tensor) -> float:
    """Slope, at most one, at which the equation for the length of a record crosses zero if no column is known."""
    if equations.has_intercept:
        return 1.0
    bent = equations.curvature(record) @ equations.predictors(record)
    steep = 1 - equations.target_weight * float(pulls @ bent / pulls.square().sum())
    return max(min(abs(steep), 1.0), float(np.finfo(float).eps))  # avoids division by zero at a double root


def _rounding_level(equations: TargetEquations) -> float:
    """Tau of the gradient that remains because coefficients and sums over records are floating point numbers."""
    theta, objective, precision = equations.theta, equations.objective, equations.model.precision
    # perturb coefficients by one unit of rounding, with a pattern of signs that no feature is likely to share
    signs = 1.0 - 2.0 * (torch.arange(theta.numel()) % 3 == 1).reshape(theta.shape)
    moved = objective.gradient(theta * (1 + precision * signs)) - equations.moments
    terms = objective.residuals(theta).square()
    if objective.family in ("squared", "poisson"):  # residuals are differences of numbers of this size
        terms = terms + objective.targets.square()
    summed = _DOUBLE * float((objective.weights.square()[:, None] * terms).sum().sqrt())
    tau = float((moved / equations.scales).square().mean().sqrt()) + summed
    return _CAUTION * (tau + _input_rounding_level(equations))


def _input_rounding_level(equations: TargetEquations) -> float:
    """Tau caused by known records of lower than double precision, estimated by one random draw of their rounding."""
    if equations.input_precision <= _DOUBLE:
        return 0.0
    design = equations.objective.design
    draws = torch.rand(design.shape, generator=torch.Generator().manual_seed(0), dtype=design.dtype) - 0.5
    draws[:, equations.features :] = 0.0  # the constant column of the intercept is exact
    rounded = replace(equations.objective, design=design * (1 + equations.input_precision * draws))
    moved = rounded.gradient(equations.theta) - equations.moments
    return float((moved / equations.scales).square().mean().sqrt())


def _observed_misfit(
    equations: TargetEquations, record: Tensor, pulls: Tensor, target: Tensor | None
) -> tuple[float, float] | None:
    """Tau from quantities that vanish at the exact minimum, and its degrees of freedom; None if there are none."""
    total, expected, freedom = 0.0, 0.0, 0.0
    outputs, weight = len(pulls), equations.target_weight
    squares = equations.scales[: equations.features].square()
    # rows of Z beyond those that determine the record; multinomial rows add up to zero, so one more is dependent
    spare = outputs - (2 if equations.model.family == "multinomial" else 1)
    if spare > 0:
        rest = equations.moments[:, : equations.features] - pulls[:, None] * record
        spread = squares + record.square()
        total += float(rest.square().sum())
        expected += spare * float(spread.sum())
        freedom += spare * float(spread.sum() ** 2 / spread.square().sum())  # Satterthwaite: unequal variances
    if target is not None:
        gap = pulls - weight * (target - equations.means(record))
        bent = weight * equations.curvature(record) @ equations.theta[:, : equations.features]
        # first-order effect of g on the gap: directly through rho, and through the record by the curvature
        own = torch.eye(outputs).double() - (bent @ record)[:, None] * pulls / pulls.square().sum()
        total += float(gap.square().sum())
        expected += float(own.square().sum() + (bent.square() @ squares).sum() / pulls.square().sum())
        freedom += max(1, outputs - 1)
    if freedom == 0 or not np.isfinite(total + expected):
        return None
    return math.sqrt(total / expected), freedom
