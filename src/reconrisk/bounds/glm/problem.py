"""Regularised generalised linear models: objective, derivatives, and the minimiser by Newton's method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit, logsumexp, softmax

from reconrisk.bounds.numerics.matrices import finite_array, nonnegative_array
from reconrisk.core.validation import check_nonnegative, refuse

Floats = NDArray[np.float64]
Family = Literal["squared", "logistic", "multinomial", "poisson"]

_MAX_STEPS = 200
_CONVERGED = 1e-12
_STALLED = 1e-6


@dataclass(frozen=True, eq=False)
class GlmProblem:
    r"""The objective of a regularised generalised linear model, and its derivatives by the coefficients.

    .. math:: F(W) = \sum_i w_i\,\ell(W \tilde x_i, y_i) + \frac12 \sum_{cj} \lambda_j W_{cj}^2

    ``design`` holds the records, with a last column of ones where there is an intercept; ``targets`` one column per
    output. Losses: half the squared error, or the negative logarithm of the likelihood with its usual link.
    """

    design: Floats
    targets: Floats
    weights: Floats
    penalties: Floats
    family: Family
    has_intercept: bool

    @property
    def features(self) -> int:
        """The dimension of a record."""
        return int(self.design.shape[1]) - self.has_intercept

    @property
    def outputs(self) -> int:
        """The number of linear predictors."""
        return int(self.targets.shape[1])

    def value(self, theta: Floats) -> float:
        """The objective, up to a constant."""
        predictor = self.design @ theta.T
        if self.family == "squared":
            losses = 0.5 * ((predictor - self.targets) ** 2).sum(axis=1)
        elif self.family == "logistic":
            losses = (np.logaddexp(0, predictor) - self.targets * predictor).sum(axis=1)
        elif self.family == "multinomial":
            losses = logsumexp(predictor, axis=1) - (self.targets * predictor).sum(axis=1)
        else:
            with np.errstate(over="ignore"):  # a step too far is worth inf, and taken back
                losses = (np.exp(predictor) - self.targets * predictor).sum(axis=1)
        return float(self.weights @ losses + 0.5 * (self.penalties * theta**2).sum())

    def residuals(self, theta: Floats) -> Floats:
        """The derivative of each record's loss by its linear predictors, without its weight: (records, outputs)."""
        predictor = self.design @ theta.T
        if self.family == "squared":
            return np.asarray(predictor - self.targets)
        if self.family == "poisson":
            return np.asarray(np.exp(predictor) - self.targets)
        if self.family == "logistic":  # 1 - s would lose all digits of a record that is fitted well
            return np.asarray(np.where(self.targets == 1, -expit(-predictor), expit(predictor)))
        others = softmax(predictor, axis=1) * (1 - self.targets)
        return np.asarray(others - self.targets * others.sum(axis=1, keepdims=True))

    def curvatures(self, theta: Floats) -> Floats:
        """The second derivative of each record's loss by its linear predictors: (records, outputs, outputs)."""
        predictor = self.design @ theta.T
        if self.family == "multinomial":
            chance = softmax(predictor, axis=1)
            return np.asarray(chance[:, :, None] * np.eye(self.outputs) - chance[:, :, None] * chance[:, None, :])
        if self.family == "squared":
            slopes = np.ones_like(predictor)
        else:
            slopes = np.exp(predictor) if self.family == "poisson" else expit(predictor) * expit(-predictor)
        return np.asarray(slopes[:, :, None] * np.eye(self.outputs))

    def gradient(self, theta: Floats) -> Floats:
        """The derivative by the coefficients, shaped as they are."""
        weighted = self.weights[:, None] * self.residuals(theta)
        return np.asarray(weighted.T @ self.design + self.penalties * theta)

    def hessian(self, theta: Floats) -> Floats:
        """The second derivative, one row per coefficient (those of one output together).

        Predictors of a multinomial model are defined up to a common shift. Along coefficients without penalty this
        leaves the Hessian singular; there it is filled up, which changes no derivative of the centred solution.
        """
        k, m = self.outputs, self.design.shape[1]
        curvatures = self.curvatures(theta) * self.weights[:, None, None]
        blocks = np.zeros((k, m, k, m))
        for a in range(k):
            for b in range(a, k):
                if curvatures[:, a, b].any():
                    blocks[a, :, b, :] = (self.design.T * curvatures[:, a, b]) @ self.design
                    blocks[b, :, a, :] = blocks[a, :, b, :].T
            blocks[a, range(m), a, range(m)] += self.penalties
        if self.family == "multinomial":
            free = np.flatnonzero(self.penalties == 0)
            scale = float(np.einsum("ajaj->", blocks)) / (k * m)
            blocks[:, free, :, free] += scale / k
        return blocks.reshape(k * m, k * m)

    def newton_step(self, theta: Floats, factor: tuple[Floats, bool]) -> Floats:
        """The step to where the quadratic model of the objective vanishes, from the Hessian's factor."""
        return np.asarray(cho_solve(factor, self.gradient(theta).ravel()).reshape(theta.shape))


def factorise(hessian: Floats) -> tuple[Floats, bool]:
    """The Cholesky factor of a Hessian; one that is not positive definite is refused."""
    try:
        factor, lower = cho_factor(hessian)
    except LinAlgError as error:
        raise refuse(
            "hessian", "singular", "to be positive definite", "Raise the penalty, or drop collinear features."
        ) from error
    return factor, bool(lower)


def minimiser(problem: GlmProblem, start: Floats) -> Floats:
    """The coefficients of least objective, by damped Newton steps from ``start`` to the precision of floats.

    Edge cases: refuses where there is no minimum, as for separable classes without penalty.
    """
    theta, previous = start, np.inf
    for _ in range(_MAX_STEPS):
        gradient = problem.gradient(theta)
        step = problem.newton_step(theta, factorise(problem.hessian(theta)))
        length = float(np.linalg.norm(step)) / (1 + float(np.linalg.norm(theta)))
        if not np.isfinite(length):
            break
        if length <= _CONVERGED or (length <= _STALLED and length >= previous / 2):
            return theta - step
        theta, previous = _shortened(problem, theta, step, float((gradient * step).sum())), length
    raise refuse(
        "penalty", float(problem.penalties[0]), "to leave a minimum", "Raise it: the coefficients grow for ever."
    )


def _shortened(problem: GlmProblem, theta: Floats, step: Floats, decrease: float) -> Floats:
    """The point along a Newton step that lowers the objective enough (Armijo), up to its rounding."""
    before = problem.value(theta)
    slack = 1e-12 * (1 + abs(before))
    for halvings in range(60):
        part = 0.5**halvings
        moved = theta - part * step
        if problem.value(moved) <= before - 1e-4 * part * decrease + slack:
            return moved
    return theta


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
        raise refuse("start", begin.shape, f"to have {shape} coefficients, the intercept included")
    return split(minimiser(problem, begin), problem)


def glm_problem(
    features: ArrayLike,
    labels: ArrayLike,
    family: Family,
    penalty: float,
    intercept: bool,
    intercept_penalty: float,
    sample_weight: ArrayLike | None,
    classes: int | None = None,
) -> GlmProblem:
    """The checked problem behind the public functions."""
    if family not in get_args(Family):
        raise refuse("family", family, f"to be one of {', '.join(get_args(Family))}")
    x = finite_array("features", features, dimensions=(2,), remedy="Flatten each record to a row.")
    targets = _targets(labels, family, classes)
    if len(targets) != len(x):
        raise refuse("features.shape", x.shape, f"to be (records, features) with {len(targets)} records, as labels")
    weights = np.ones(len(x))
    if sample_weight is not None:
        weights = nonnegative_array("sample_weight", sample_weight, dimensions=(1,))
        if len(weights) != len(x):
            raise refuse("sample_weight.shape", weights.shape, f"to be {(len(x),)}, one per record")
    penalties = np.full(x.shape[1], check_nonnegative("penalty", penalty))
    if intercept:
        x = np.column_stack([x, np.ones(len(x))])
        penalties = np.append(penalties, check_nonnegative("intercept_penalty", intercept_penalty))
    return GlmProblem(x, targets, weights, penalties, family, intercept)


def _targets(labels: ArrayLike, family: Family, classes: int | None) -> Floats:
    """Labels as one column per linear predictor."""
    y = finite_array("labels", labels, dimensions=(1, 2) if family == "squared" else (1,))
    if family == "logistic" and not np.isin(y, (0.0, 1.0)).all():
        raise refuse("labels", sorted(set(y.tolist()))[:5], "to be 0 or 1", "Map the two classes to 0 and 1.")
    if family == "poisson":
        nonnegative_array("labels", y, dimensions=(1,), remedy="A Poisson model describes counts.")
    if family != "multinomial":
        return y.reshape(len(y), -1)
    if (y < 0).any() or (y != np.floor(y)).any():
        raise refuse("labels", sorted(set(y.tolist()))[:5], "to be class indices", "Number the classes from 0.")
    count = int(y.max()) + 1 if classes is None else classes
    if y.max() >= count:
        raise refuse("labels", int(y.max()), f"< {count}, the number of classes")
    return np.asarray(np.eye(count)[y.astype(int)])


def stacked(coefficients: ArrayLike, intercept: ArrayLike | None) -> Floats:
    """Coefficients as (outputs, features), with the intercept as last column where there is one."""
    theta = np.atleast_2d(finite_array("coefficients", coefficients, dimensions=(1, 2)))
    if intercept is None:
        return theta
    offsets = np.atleast_1d(finite_array("intercept", intercept, dimensions=(0, 1)))
    if len(offsets) != len(theta):
        raise refuse("intercept.shape", offsets.shape, f"to be {(len(theta),)}, one per row of coefficients")
    return np.column_stack([theta, offsets])


def split(theta: Floats, problem: GlmProblem) -> GlmFit:
    """Stacked coefficients as users know them."""
    coefficients = theta[:, : problem.features]
    flat = problem.outputs == 1 and problem.family != "multinomial"
    return GlmFit(coefficients[0] if flat else coefficients, theta[:, -1] if problem.has_intercept else None)
