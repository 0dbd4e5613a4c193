"""How near an exact formula comes on a model that a solver left near its minimum, not at it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from reconrisk.attacks.informed.glm.equations import TargetEquations

_PARTS = (0.975, 0.025, 0.001)  # of the chi-square: a range of 95 %, and the end that one in a thousand exceeds
_DOUBLE = float(np.finfo(float).eps)
_CAUTION = 2.0
_LARGEST_ROUNDING = 100.0  # solvers that are as exact as floats lose two more digits to the condition of the problem
_USUAL_ROUNDING = 10.0  # and one as a rule
_SELDOM = 0.9999  # of the chi-square: what one in ten thousand exceeds by chance
_CLEAR = 10.0  # times what a solver may leave: a pull that is some record's, not the solver's
_COMPELLING = 1e-3  # of the pull, or of a whole number: agreement that one wrong record in a thousand has by chance
_TYPICAL = 3.0  # a gradient whose largest entry meets a limit has a root mean square of about a third of it


@dataclass(frozen=True)
class Accuracy:
    """The root mean square error to expect per feature, a range for it, and the part of rho that may be rounding.

    ``expected`` is NaN where nothing tells, ``high`` infinite where the leftover gradient may hide the target.
    ``sure`` is an upper end that one record in a thousand exceeds: what words such as exact rest on. The equations may
    hold more numbers than unknowns: then the estimate ``is_checked``; it ``is_contradicted`` where they disagree by
    more than the solver's rule allows, and ``is_compelling`` where they agree by far better than chance would have it.
    """

    expected: float
    low: float
    high: float
    sure: float
    rounding: float
    is_checked: bool = True
    is_contradicted: bool = False
    is_compelling: bool = False


def accuracy(equations: TargetEquations, record: Tensor, pulls: Tensor, target: Tensor | None) -> Accuracy:
    r"""The error that the gradient g which a solver left over causes: ``x_hat - x = (g_x - g_b x) / rho``.

    g is taken as random with entries of standard deviation tau times the scale of their feature. Tau is the larger of
    what rounding leaves and of what is seen: rows of Z that are not parallel, and a pull that differs from what the
    record found and its label cause; where neither can be seen, of what the solver's rule allows.

    What is seen rests on few numbers, often on one, and may be small by chance: ``expected`` is the geometric mean of
    it and the upper end, about the root mean square over what is possible. A record whose features are beyond those of
    all known ones is taken to err by that, as far as chance allows; if it is beyond them by more than they differ and
    nothing confirms it, however much that is. Where all of Z is within what the solver's rule leaves, and what is seen
    does not exclude it, Z may be nothing but g, which then is taken to be as large. Where tau as it is seen exceeds
    what the solver's rule allows, no one record explains the model.

    Notation: ``target`` is the label as a row of targets, None if it was read from the equations themselves.
    """
    squares = equations.scales[: equations.features].square()
    size = float((squares.mean() + record.square().mean()).sqrt() / pulls.norm()) / _steepness(equations, record, pulls)
    rounding, influence = _from_rounding(equations), float(pulls.norm())
    ceiling = _ceiling(equations, rounding)
    seen = _seen(equations, record, pulls, target) if equations.has_intercept else None
    if seen is None:
        expected, low, high, sure = _allowed(equations, rounding, ceiling)
    else:
        expected, low, high, sure = _bounded(*seen, rounding, ceiling)
    compelling = seen is not None and max(seen[0], ceiling) < _COMPELLING * min(influence, 1.0)
    beyond, most = equations.outside(record), math.inf
    if compelling or beyond <= equations.spread(torch.ones_like(record, dtype=torch.bool)):
        most = sure
    expected, high = max(expected, min(beyond / size, sure)), max(high, min(_CAUTION * beyond / size, most))
    if high >= influence and float(equations.moments.abs().max()) <= (equations.model.optimisation.gradient_limit or 0):
        expected = max(expected, influence)
    worst, surely = (math.inf if end >= influence else end * size for end in (high, sure))
    reached = Accuracy(expected * size, min(low * size, worst), worst, surely, rounding, seen is not None)
    if seen is not None and _excess(*seen, rounding) > ceiling and influence > _CLEAR * ceiling:
        return replace(reached, expected=math.nan, high=math.inf, sure=math.inf, is_contradicted=True)
    return replace(reached, is_compelling=compelling)


def _ceiling(equations: TargetEquations, rounding: float) -> float:
    """The largest tau that the solver's rule allows; infinite where it has none."""
    limit = _limit(equations)
    if limit is None:
        return math.inf
    if limit == 0:
        drawn = _TYPICAL if equations.input_precision > _DOUBLE else 1.0  # one draw of rounding is not another
        # a direct solver leaves the rounding of sums over records, all of one sign at worst
        moved = float((equations.scales * equations.theta.abs()).sum(1).max())
        solved = equations.model.precision * float(equations.objective.weights.sum()) * moved
        return max(drawn * rounding, solved)
    return max(limit, equations.model.optimisation.objective_limit, rounding)


def _limit(equations: TargetEquations) -> float | None:
    limit = equations.model.optimisation.gradient_limit
    return None if limit is None else limit / float(equations.scales.max())


def _allowed(equations: TargetEquations, rounding: float, ceiling: float) -> tuple[float, float, float, float]:
    """Tau to expect, its range and sure end where nothing is seen: what the solver's rule allows."""
    limit = _limit(equations)
    expected = math.nan if limit is None else max(limit / _TYPICAL, rounding)
    if limit == 0:
        expected = math.sqrt(rounding * ceiling)
    return expected, rounding, ceiling, ceiling


def _bounded(tau: float, freedom: float, rounding: float, ceiling: float) -> tuple[float, float, float, float]:
    """Tau to expect, its range and sure end from what is seen, as far as the solver's rule allows."""
    ends = (tau * math.sqrt(freedom / chi2.ppf(part, freedom)) for part in _PARTS)
    low, high, sure = (max(end, rounding) for end in ends)
    high, sure = min(high, ceiling), min(sure, ceiling)
    expected = math.sqrt(min(max(tau, rounding), ceiling) * high)
    return expected, low, max(high, _USUAL_ROUNDING * rounding), max(sure, _USUAL_ROUNDING * rounding)


def _excess(tau: float, freedom: float, rounding: float) -> float:
    """The least tau that what is seen leaves, in caution; zero where rounding of a hard problem explains it."""
    least = tau * math.sqrt(freedom / chi2.ppf(_SELDOM, freedom)) / _CAUTION
    return least if least > _LARGEST_ROUNDING * rounding else 0.0


def leftover_limit(equations: TargetEquations) -> float:
    """Root mean square of the gradient, in the scales of features, that rounding and the solver's rule may leave."""
    solver = equations.model.optimisation
    rule = max((solver.gradient_limit or 0.0) / float(equations.scales.max()), solver.objective_limit)
    return max(_LARGEST_ROUNDING * _from_rounding(equations), rule)


def _steepness(equations: TargetEquations, record: Tensor, pulls: Tensor) -> float:
    """At most one: how steeply the equation for a record's length crosses zero, where no column is known."""
    if equations.has_intercept:
        return 1.0
    bent = equations.curvature(record) @ equations.predictors(record)
    steep = 1 - equations.target_weight * float(pulls @ bent / pulls.square().sum())
    return max(min(abs(steep), 1.0), float(np.finfo(float).eps))


def _from_rounding(equations: TargetEquations) -> float:
    """Tau of the gradient that remains because coefficients and sums over records are floats."""
    theta, objective, precision = equations.theta, equations.objective, equations.model.precision
    signs = 1.0 - 2.0 * (torch.arange(theta.numel()) % 3 == 1).reshape(theta.shape)  # a pattern that no feature has
    moved = objective.gradient(theta * (1 + precision * signs)) - equations.moments
    terms = objective.residuals(theta).square()
    if objective.family in ("squared", "poisson"):  # residuals are differences of numbers of this size
        terms = terms + objective.targets.square()
    summed = _DOUBLE * float((objective.weights.square()[:, None] * terms).sum().sqrt())
    tau = float((moved / equations.scales).square().mean().sqrt()) + summed
    return _CAUTION * (tau + _from_copies(equations))


def _from_copies(equations: TargetEquations) -> float:
    """Tau of what known records change that were rounded more coarsely than doubles, by one draw of such rounding."""
    if equations.input_precision <= _DOUBLE:
        return 0.0
    design = equations.objective.design
    draws = torch.rand(design.shape, generator=torch.Generator().manual_seed(0), dtype=design.dtype) - 0.5
    draws[:, equations.features :] = 0.0  # the one of the intercept is exact
    rounded = replace(equations.objective, design=design * (1 + equations.input_precision * draws))
    moved = rounded.gradient(equations.theta) - equations.moments
    return float((moved / equations.scales).square().mean().sqrt())


def _seen(
    equations: TargetEquations, record: Tensor, pulls: Tensor, target: Tensor | None
) -> tuple[float, float] | None:
    """Tau from what should vanish and does not, and how many independent numbers it rests on."""
    total, expected, freedom = 0.0, 0.0, 0.0
    outputs, weight = len(pulls), equations.target_weight
    squares = equations.scales[: equations.features].square()
    spare = outputs - (2 if equations.model.family == "multinomial" else 1)
    if spare > 0:
        rest = equations.moments[:, : equations.features] - pulls[:, None] * record
        spread = squares + record.square()
        total += float(rest.square().sum())
        expected += spare * float(spread.sum())
        freedom += spare * float(spread.sum() ** 2 / spread.square().sum())
    if target is not None:
        gap = pulls - weight * (target - equations.means(record))
        bent = weight * equations.curvature(record) @ equations.theta[:, : equations.features]
        own = torch.eye(outputs).double() - (bent @ record)[:, None] * pulls / pulls.square().sum()
        total += float(gap.square().sum())
        expected += float(own.square().sum() + (bent.square() @ squares).sum() / pulls.square().sum())
        freedom += max(1, outputs - 1)
    if freedom == 0 or not np.isfinite(total + expected):
        return None
    return math.sqrt(total / expected), freedom
