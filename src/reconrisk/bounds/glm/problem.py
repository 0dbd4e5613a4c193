"""Regularised generalised linear models: validation of the arguments, and the exact fit."""

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
    """Coefficients of a fitted generalised linear model.

    Attributes:
        coefficients: Shape (features,), or (outputs, features) for several outputs.
        intercept: Shape (outputs,), or None for a model without intercept.
    """

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
    r"""Fit a regularised generalised linear model exactly, by Newton's method.

    .. math:: \sum_i w_i\,\ell(W x_i + b, y_i) + \tfrac12\lambda|W|^2 + \tfrac12\lambda_0|b|^2

    Here :math:`x_i`, :math:`y_i` and :math:`w_i` are features, label and weight of record i, W are the coefficients, b
    is the intercept, and :math:`\ell` the training loss.

    Args:
        features: Training records, shape (records, features).
        labels: One label for each record: numbers for ``squared``, 0 or 1 for ``logistic``, class indices for
            ``multinomial``, counts for ``poisson``.
        family: Training loss: ``squared`` (half the squared error), ``logistic``, ``multinomial``, or ``poisson`` (with
            the exponential of the linear predictor as mean).
        penalty: Weight :math:`\lambda` of the penalty on the coefficients.
        intercept: True to fit an intercept.
        intercept_penalty: Weight :math:`\lambda_0` of the penalty on the intercept.
        sample_weight: Weight of each record; by default 1.
        start: Fit to start from; it saves iterations and does not change the result.

    Returns:
        The minimiser.

    Raises:
        InvalidInput: If an argument is invalid, or if a problem without penalty has no unique minimum (separable
            classes, collinear features).

    Guarantee: the last Newton step is not longer than the rounding error of floats.

    >>> fit = fit_glm(features=[[1.0], [2.0]], labels=[1.0, 2.0], family="squared", penalty=5.0)
    >>> fit.coefficients.round(9).tolist()
    [0.5]
    """
    problem = build_glm_problem(features, labels, family, penalty, intercept, intercept_penalty, sample_weight)
    shape = (problem.outputs, problem.design.shape[1])
    begin = np.zeros(shape) if start is None else stack_coefficients(start.coefficients, start.intercept)
    if begin.shape != shape:
        raise invalid_input(
            "shape of start", begin.shape, f"to be {shape}, the intercept included", "Pass a fit of the same features."
        )
    return split_coefficients(minimise(problem, begin), problem)


def build_glm_problem(
    features: ArrayLike,
    labels: ArrayLike,
    family: Family,
    penalty: float,
    intercept: bool,
    intercept_penalty: float,
    sample_weight: ArrayLike | None,
    classes: int | None = None,
) -> GlmObjective[Floats]:
    """Validate the arguments of the public functions and return the problem that they state.

    Args:
        features: Training records, shape (records, features).
        labels: One label for each record.
        family: Name of the training loss, see :func:`fit_glm`.
        penalty: Weight of the penalty on the coefficients.
        intercept: True for a model with intercept.
        intercept_penalty: Weight of the penalty on the intercept.
        sample_weight: Weight of each record, or None for equal weights.
        classes: Number of classes of a multinomial model; by default the largest label plus 1.

    Returns:
        The objective, with the intercept as last column of its design.

    Raises:
        InvalidInput: If an argument is invalid.
    """
    if family not in get_args(Family):
        raise invalid_input("family", family, f"to be one of {', '.join(get_args(Family))}")
    x = finite_array("features", features, dimensions=(2,), remedy="Flatten each record to a row.")
    targets = _targets(labels, family, classes)
    if len(targets) != len(x):
        raise invalid_input("features.shape", x.shape, f"to be ({len(targets)}, features), one row per label")
    weights = np.ones(len(x))
    if sample_weight is not None:
        weights = nonnegative_array("sample_weight", sample_weight, dimensions=(1,))
        if len(weights) != len(x):
            raise invalid_input("sample_weight.shape", weights.shape, f"to be {(len(x),)}, one per record")
    penalties = np.full(x.shape[1], check_nonnegative("penalty", penalty))
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])  # the intercept is the coefficient of a last, constant feature
        penalties = np.append(penalties, check_nonnegative("intercept_penalty", intercept_penalty))
    return GlmObjective(x, targets, weights, penalties, family, NUMPY, intercept)


def _targets(labels: ArrayLike, family: Family, classes: int | None) -> Floats:
    """Return labels as a matrix with one column for each linear predictor."""
    y = finite_array("labels", labels, dimensions=(1, 2) if family == "squared" else (1,))
    if family == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise invalid_input("labels", sorted(set(y.tolist()))[:5], "to be 0 or 1", "Map the two classes to 0 and 1.")
    if family == "poisson":
        nonnegative_array("labels", y, dimensions=(1,), remedy="A Poisson model describes counts.")
    if family != "multinomial":
        return y.reshape(len(y), -1)
    if (y < 0).any() or (y != np.floor(y)).any():
        raise invalid_input("labels", sorted(set(y.tolist()))[:5], "to be class indices", "Number the classes from 0.")
    # Released coefficients state the number of classes, of which some may have no record.
    count = int(y.max()) + 1 if classes is None else classes
    if y.max() >= count:
        raise invalid_input("max(labels)", int(y.max()), f"< {count}, the number of classes")
    return np.asarray(np.eye(count)[y.astype(int)])  # one-hot rows


def stack_coefficients(coefficients: ArrayLike, intercept: ArrayLike | None) -> Floats:
    """Stack coefficients as (outputs, features), with the intercept as last column if there is one.

    Args:
        coefficients: Shape (features,) or (outputs, features).
        intercept: One value for each output, or None.

    Returns:
        The stacked coefficients.

    Raises:
        InvalidInput: If the intercept does not have one value for each output.
    """
    theta = np.atleast_2d(finite_array("coefficients", coefficients, dimensions=(1, 2)))
    if intercept is None:
        return theta
    offsets = np.atleast_1d(finite_array("intercept", intercept, dimensions=(0, 1)))
    if len(offsets) != len(theta):
        raise invalid_input("intercept.shape", offsets.shape, f"to be {(len(theta),)}, one per row of coefficients")
    return np.column_stack([theta, offsets])


def split_coefficients(theta: Floats, problem: GlmObjective[Floats]) -> GlmFit:
    """Split stacked coefficients into coefficients and intercept, the inverse of stacking.

    Args:
        theta: Stacked coefficients, shape (outputs, columns of the design).
        problem: Problem that the coefficients belong to.

    Returns:
        The coefficients and the intercept.
    """
    coefficients = theta[:, : problem.features]
    flat = problem.outputs == 1 and problem.family != "multinomial"  # one-output models have a vector, as in sklearn
    return GlmFit(coefficients[0] if flat else coefficients, theta[:, -1] if problem.has_intercept else None)
