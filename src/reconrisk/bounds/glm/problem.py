"""Regularised generalised linear models as users state them: checked arrays, and the exact fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_array
from reconrisk.core.validation import check_nonnegative, invalid_input
from reconrisk.releases.fitted_estimators.objective import NUMPY, Family, Floats, GlmObjective, minimise


@dataclass(frozen=True, eq=False)
class GlmFit:
    """Coefficients, (features,) or (outputs, features), and the intercept (outputs,) or None."""

    coefficients: Floats
    intercept: Floats | None


def fit_glm(
    *,
    features: ArrayLike,
    labels: ArrayLike,
    family: Family,
    penalty: float,
    intercept: bool = False,
    intercept_penalty: float = 0.0,
    sample_weight: ArrayLike | None = None,
    start: GlmFit | None = None,
) -> GlmFit:
    r"""The exact minimiser of a regularised generalised linear model, by Newton's method.

    .. math:: \sum_i w_i\,\ell(W x_i + b, y_i) + \tfrac12\lambda|W|^2 + \tfrac12\lambda_0|b|^2

    Notation: ``penalty`` lambda, ``intercept_penalty`` lambda_0; ``family`` names the loss: ``squared`` (half of it),
    ``logistic`` (labels 0 and 1), ``multinomial`` (class indices), ``poisson`` (counts, exponential mean).
    Guarantee: the last Newton step is at the rounding of floats. ``start`` shortens the way and changes no result.
    Edge cases: refuses a problem without a unique minimum (separable classes, collinear features) at penalty zero.

    >>> fit = fit_glm(features=[[1.0], [2.0]], labels=[1.0, 2.0], family="squared", penalty=5.0)
    >>> fit.coefficients.round(9).tolist()
    [0.5]
    """
    problem = glm_problem(features, labels, family, penalty, intercept, intercept_penalty, sample_weight)
    shape = (problem.outputs, problem.design.shape[1])
    begin = np.zeros(shape) if start is None else stacked(start.coefficients, start.intercept)
    if begin.shape != shape:
        raise invalid_input("start", begin.shape, f"to have {shape} coefficients, the intercept included")
    return split(minimise(problem, begin), problem)


def glm_problem(
    features: ArrayLike,
    labels: ArrayLike,
    family: Family,
    penalty: float,
    intercept: bool,
    intercept_penalty: float,
    sample_weight: ArrayLike | None,
    classes: int | None = None,
) -> GlmObjective[Floats]:
    """The checked problem behind the public functions."""
    if family not in get_args(Family):
        raise invalid_input("family", family, f"to be one of {', '.join(get_args(Family))}")
    x = finite_array("features", features, dimensions=(2,), remedy="Flatten each record to a row.")
    targets = _targets(labels, family, classes)
    if len(targets) != len(x):
        raise invalid_input(
            "features.shape", x.shape, f"to be (records, features) with {len(targets)} records, as labels"
        )
    weights = np.ones(len(x))
    if sample_weight is not None:
        weights = nonnegative_array("sample_weight", sample_weight, dimensions=(1,))
        if len(weights) != len(x):
            raise invalid_input("sample_weight.shape", weights.shape, f"to be {(len(x),)}, one per record")
    penalties = np.full(x.shape[1], check_nonnegative("penalty", penalty))
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])
        penalties = np.append(penalties, check_nonnegative("intercept_penalty", intercept_penalty))
    return GlmObjective(x, targets, weights, penalties, family, NUMPY, intercept)


def _targets(labels: ArrayLike, family: Family, classes: int | None) -> Floats:
    """Labels as one column per linear predictor."""
    y = finite_array("labels", labels, dimensions=(1, 2) if family == "squared" else (1,))
    if family == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise invalid_input("labels", sorted(set(y.tolist()))[:5], "to be 0 or 1", "Map the two classes to 0 and 1.")
    if family == "poisson":
        nonnegative_array("labels", y, dimensions=(1,), remedy="A Poisson model describes counts.")
    if family != "multinomial":
        return y.reshape(len(y), -1)
    if (y < 0).any() or (y != np.floor(y)).any():
        raise invalid_input("labels", sorted(set(y.tolist()))[:5], "to be class indices", "Number the classes from 0.")
    count = int(y.max()) + 1 if classes is None else classes
    if y.max() >= count:
        raise invalid_input("labels", int(y.max()), f"< {count}, the number of classes")
    return np.asarray(np.eye(count)[y.astype(int)])


def stacked(coefficients: ArrayLike, intercept: ArrayLike | None) -> Floats:
    """Coefficients as (outputs, features), with the intercept as last column where there is one."""
    theta = np.atleast_2d(finite_array("coefficients", coefficients, dimensions=(1, 2)))
    if intercept is None:
        return theta
    offsets = np.atleast_1d(finite_array("intercept", intercept, dimensions=(0, 1)))
    if len(offsets) != len(theta):
        raise invalid_input("intercept.shape", offsets.shape, f"to be {(len(theta),)}, one per row of coefficients")
    return np.column_stack([theta, offsets])


def split(theta: Floats, problem: GlmObjective[Floats]) -> GlmFit:
    """Stacked coefficients as users know them."""
    coefficients = theta[:, : problem.features]
    flat = problem.outputs == 1 and problem.family != "multinomial"
    return GlmFit(coefficients[0] if flat else coefficients, theta[:, -1] if problem.has_intercept else None)
