"""The trace of the inverse information about every record, for models with one output, without a solve per record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reconrisk.bounds.glm import GlmProblem

Floats = NDArray[np.float64]

_DOUBTFUL = 0.1


@dataclass(frozen=True, eq=False)
class _Frame:
    """What all records share: the Hessian's columns after projection off that of the intercept, applied to W."""

    shift: Floats
    kappa: float
    square: float
    turned: Floats
    stretched: float
    whole: float


def inverse_traces_of_one_output(
    problem: GlmProblem, theta: Floats, hessian: Floats, traces: Floats, unit: float
) -> Floats:
    r"""``tr (J^T J)^-1`` for each record at unit noise, rounded down and never below ``d^2 / tr(J^T J)``.

    Let h be the intercept's column of H, K the others after projection off h, :math:`\kappa = 1/|h|^2`, u the shift of
    that projection (without intercept: K = H, kappa = 0, u = 0). Then with g = A W, y = x + u, t = K^T K g

    .. math:: J^T J = N^T (K^T K)^{-1} N + \kappa g g^T, \quad N = r 1 + y g^T, \quad \delta = r + g^T y,

    .. math:: r^2 \mathrm{tr}(J^T J)^{-1} = |K|^2 + \frac{|Kg|^2 |y|^2 - 2 \delta y^T t - \kappa |t|^2}
              {\delta^2 + \kappa |Kg|^2}.

    Notation: ``traces`` are those of J^T J rounded up, ``unit`` the relative rounding of a product.
    """
    d, w = problem.features, theta[0, : problem.features]
    with np.errstate(divide="ignore"):
        floor = d * d / traces
    if d == 1:
        return np.asarray(floor)
    frame = _frame(problem, hessian, w)
    r, a = problem.residuals(theta)[:, 0], problem.curvatures(theta)[:, 0, 0]
    y = problem.design[:, :d] + frame.shift
    delta = r + a * (y @ w)
    lengths = np.linalg.norm(y, axis=1) + 2 * float(np.linalg.norm(frame.shift))
    slip = unit * (a * (1 + np.abs(problem.design @ theta[0]) + 2 * lengths * np.linalg.norm(w)) + np.abs(r))
    numerator = a**2 * frame.stretched * (y**2).sum(axis=1) - 2 * delta * a * (y @ frame.turned)
    numerator -= frame.kappa * a**2 * float(frame.turned @ frame.turned)
    denominator = delta**2 + frame.kappa * a**2 * frame.stretched
    slips = _slips(frame, float(np.linalg.norm(w)), a, delta, lengths, slip, unit)
    with np.errstate(divide="ignore", invalid="ignore"):  # what is not a number falls to the floor below
        doubt = slips[1] / denominator
        squares = frame.square + numerator / denominator - 4 * unit * frame.whole
        squares -= (slips[0] + 2 * doubt * np.abs(numerator)) / denominator
        value = squares / ((np.abs(r) + slip) ** 2 * problem.weights**2)
    return np.where((doubt < _DOUBTFUL) & (value > floor), value, floor)


def _frame(problem: GlmProblem, hessian: Floats, w: Floats) -> _Frame:
    d = problem.features
    kept, kappa, shift = hessian[:, :d], 0.0, np.zeros(d)
    if problem.has_intercept:
        column = hessian[:, d]
        kappa = 1 / float(column @ column)
        shift = -kappa * (kept.T @ column)
        kept = kept + np.outer(column, shift)
    moved = kept @ w
    whole = float((hessian[:, :d] ** 2).sum())
    return _Frame(shift, kappa, float((kept**2).sum()), kept.T @ moved, float(moved @ moved), whole)


def _slips(
    frame: _Frame, length: float, a: Floats, delta: Floats, lengths: Floats, slip: Floats, unit: float
) -> tuple[Floats, Floats]:
    """How far rounding may have moved numerator and denominator, from the sizes of their factors."""
    turned = float(np.linalg.norm(frame.turned))
    reach = a * frame.whole * length  # no less than the norm of what cancels in t
    products = a**2 * frame.stretched * lengths**2 + 2 * np.abs(delta) * lengths * reach + frame.kappa * reach**2
    numerator = 4 * unit * products + 2 * slip * lengths * (a * turned + unit * reach)
    denominator = 2 * np.abs(delta) * slip + slip**2 + unit * frame.kappa * reach * a * length
    return numerator, denominator
