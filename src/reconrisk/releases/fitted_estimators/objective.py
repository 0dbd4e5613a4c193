"""The objective of a regularised generalised linear model, its derivatives and its minimiser: the only implementation.

It works on NumPy arrays and torch tensors. Most of the work is done by operators; :class:`Arrays` lists the few
functions that the two libraries name differently. Bounds pass :data:`NUMPY`, so that they need no torch. Releases and
attacks pass :data:`reconrisk.releases.fitted_estimators.glm.TORCH`, so that the gradient can be differentiated with
respect to the records.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from scipy.special import expit, logsumexp, softmax

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import invalid_input

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float64]
Array = TypeVar("Array", Floats, "Tensor")
Family = Literal["squared", "logistic", "multinomial", "poisson"]

_MAX_STEPS = 200  # Newton steps, far more than convergence needs
_CONVERGED = 1e-12  # relative length of a Newton step that is taken as the last
_STALLED = 1e-6  # relative length below which a step that no longer halves has met rounding
_MOST_HALVINGS = 60  # of a step: beyond, it is below the rounding of the coefficients
_ARMIJO = 1e-4  # share of the decrease predicted by the gradient that a step must achieve (Nocedal and Wright, 3.1)
_OBJECTIVE_ROUNDING = 1e-12  # relative rounding of the objective, by which a good step may seem to increase it


@dataclass(frozen=True)
class Arrays(Generic[Array]):
    """Functions of an array library that :class:`GlmObjective` needs besides operators, in double precision.

    Attributes:
        exp: Elementwise; infinite without a warning on overflow.
        sigmoid: Elementwise, 1 / (1 + exp(-x)).
        softplus: Elementwise, log(1 + exp(x)).
        softmax: Of each row.
        logsumexp: Of each row.
        diagonal: The last axis as the diagonal of a square matrix.
        zeros: Zeros of a shape, like another array.
        cholesky: The Cholesky factor of a matrix; None if the matrix is not positive definite.
        solve: The solution of a linear system of several columns, from the Cholesky factor.
    """

    exp: Callable[[Array], Array]
    sigmoid: Callable[[Array], Array]
    softplus: Callable[[Array], Array]
    softmax: Callable[[Array], Array]
    logsumexp: Callable[[Array], Array]
    diagonal: Callable[[Array], Array]
    zeros: Callable[[tuple[int, ...], Array], Array]
    cholesky: Callable[[Array], Array | None]
    solve: Callable[[Array, Array], Array]


def _exp(values: Floats) -> Floats:
    with np.errstate(over="ignore"):  # a Newton step that is too long has an infinite objective, and is halved
        return np.asarray(np.exp(values))


def _cholesky(matrix: Floats) -> Floats | None:
    try:
        return np.asarray(cho_factor(matrix)[0])
    except LinAlgError:
        return None


NUMPY: Arrays[Floats] = Arrays(
    exp=_exp,
    sigmoid=lambda values: np.asarray(expit(values)),
    softplus=lambda values: np.asarray(np.logaddexp(0, values)),
    softmax=lambda rows: np.asarray(softmax(rows, axis=1)),
    logsumexp=lambda rows: np.asarray(logsumexp(rows, axis=1)),
    diagonal=lambda values: np.asarray(values[..., None] * np.eye(values.shape[-1])),
    zeros=lambda shape, like: np.zeros(shape),
    cholesky=_cholesky,
    solve=lambda factor, columns: np.asarray(cho_solve((factor, False), columns)),
)
"""The functions of NumPy and SciPy."""


@dataclass(frozen=True, eq=False)
class GlmObjective(Generic[Array]):
    r"""The objective of a regularised generalised linear model as a sum over records.

    .. math:: F(W) = \sum_i w_i\,\ell(W \tilde x_i, y_i) + \frac12 \sum_{cj} \lambda_j W_{cj}^2

    Here W are the coefficients, :math:`\tilde x_i` is row i of the design, :math:`y_i` its label, :math:`w_i` its
    weight, and :math:`\lambda_j` the penalty of column j. Training losses :math:`\ell`: half the squared error, or the
    negative log-likelihood with its usual link.

    Attributes:
        design: The records, (records, columns), with a last column of ones if there is an intercept.
        targets: One column per linear predictor, (records, outputs).
        weights: Weight of each record in the sum, (records,).
        penalties: Weight of the squared coefficients of each column of the design, (columns,).
        family: Training loss: ``squared``, ``logistic``, ``multinomial`` or ``poisson``.
        arrays: Functions of NumPy or torch, whichever made the arrays.
        has_intercept: True if the last column of the design is one in every record.

    >>> one = np.ones((1, 1))
    >>> ridge = GlmObjective(one, one, np.ones(1), np.ones(1), "squared", NUMPY)
    >>> minimise(ridge, np.zeros((1, 1)))
    array([[0.5]])
    """

    design: Array
    targets: Array
    weights: Array
    penalties: Array
    family: Family
    arrays: Arrays[Array]
    has_intercept: bool = False

    @property
    def features(self) -> int:
        """Number of features of a record."""
        return int(self.design.shape[1]) - self.has_intercept

    @property
    def outputs(self) -> int:
        """Number of linear predictors."""
        return int(self.targets.shape[1])

    def value(self, theta: Array) -> float:
        """Return the objective, up to a constant."""
        predictor = self.design @ theta.T
        if self.family == "squared":
            losses = 0.5 * ((predictor - self.targets) ** 2).sum(1)
        elif self.family == "multinomial":
            losses = self.arrays.logsumexp(predictor) - (self.targets * predictor).sum(1)
        else:
            normaliser = self.arrays.softplus if self.family == "logistic" else self.arrays.exp
            losses = (normaliser(predictor) - self.targets * predictor).sum(1)
        return float(self.weights @ losses + 0.5 * (self.penalties * theta**2).sum())

    def means(self, predictor: Array) -> Array:
        """Return the expected labels at linear predictors (records, outputs)."""
        if self.family == "squared":
            return predictor
        if self.family == "logistic":
            return self.arrays.sigmoid(predictor)
        return self.arrays.softmax(predictor) if self.family == "multinomial" else self.arrays.exp(predictor)

    def residuals(self, theta: Array) -> Array:
        """Return the derivative of each record's unweighted loss with respect to its predictors: (records, outputs)."""
        predictor = self.design @ theta.T
        if self.family == "logistic":  # s - 1 cancels for a record that is fitted well; -s(-x) does not
            sign = 1 - 2 * self.targets
            return sign * self.arrays.sigmoid(sign * predictor)
        if self.family == "multinomial":
            # The residual of the true class as minus the sum of the others, for the same reason.
            others = self.arrays.softmax(predictor) * (1 - self.targets)
            residuals: Array = others - self.targets * others.sum(1)[:, None]
            return residuals
        return self.means(predictor) - self.targets

    def curvatures(self, predictor: Array) -> Array:
        """Return the second derivative of the loss at linear predictors: (records, outputs, outputs)."""
        means = self.means(predictor)
        if self.family == "multinomial":
            return self.arrays.diagonal(means) - means[:, :, None] * means[:, None, :]
        if self.family == "squared":
            return self.arrays.diagonal(means * 0 + 1)  # ones in the library of the arrays
        # s (1 - s) = s(x) s(-x), without cancellation
        slopes = means if self.family == "poisson" else means * self.arrays.sigmoid(-predictor)
        return self.arrays.diagonal(slopes)

    def gradient(self, theta: Array) -> Array:
        """Return the derivative with respect to the coefficients, in their shape; differentiable in the design."""
        weighted = self.residuals(theta) * self.weights[:, None]
        return weighted.T @ self.design + self.penalties * theta

    def hessian(self, theta: Array) -> Array:
        """Return the second derivative, one row per coefficient; the coefficients of one output are consecutive.

        Predictors of a multinomial model are defined up to a common shift. Along coefficients without penalty this
        makes the Hessian singular. A constant is added there, which changes no derivative of the centred solution.
        """
        k, m = theta.shape
        curvatures = self.curvatures(self.design @ theta.T) * self.weights[:, None, None]
        blocks = self.arrays.zeros((k, m, k, m), self.design)
        penalties = self.arrays.diagonal(self.penalties)
        for a in range(k):
            blocks[a, :, a, :] = (self.design.T * curvatures[:, a, a]) @ self.design + penalties
            for b in range(a) if self.family == "multinomial" else ():
                blocks[a, :, b, :] = (self.design.T * curvatures[:, a, b]) @ self.design
                blocks[b, :, a, :] = blocks[a, :, b, :].T
        if self.family == "multinomial":
            free = 0 * self.penalties + (self.penalties == 0)  # ones at columns without penalty
            # The mean diagonal entry over k: any positive scale fills the null space; this one is well conditioned.
            scale = float(blocks.reshape(k * m, k * m).trace()) / (k * k * m)
            blocks = blocks + scale * self.arrays.diagonal(free)[None, :, None, :]
        return blocks.reshape(k * m, k * m)

    def factorise(self, hessian: Array) -> Array:
        """Return the Cholesky factor of a Hessian.

        Args:
            hessian: Symmetric matrix, such as the Hessian of this objective.

        Returns:
            Cholesky factor, in the form that ``arrays.solve`` takes.

        Raises:
            InvalidInput: If the Hessian is not positive definite.
        """
        factor = self.arrays.cholesky(hessian)
        if factor is None:
            remedy = "Raise the penalty, or drop collinear features."
            raise InvalidInput(
                f"Expected a positive definite Hessian of the training loss, got a singular one. {remedy}"
            )
        return factor

    def newton_step(self, theta: Array, factor: Array) -> Array:
        """Return the step to the minimum of the quadratic model, which is to be subtracted from ``theta``."""
        return self.solve(factor, self.gradient(theta))

    def solve(self, factor: Array, gradient: Array) -> Array:
        """Return the inverse of a Hessian times a gradient, shaped as the gradient, from the Hessian's factor."""
        return self.arrays.solve(factor, gradient.reshape(-1, 1)).reshape(gradient.shape)

    def mixed_derivative(self, theta: Array, index: int) -> Array:
        """Return the derivative of one record's gradient with respect to its features, without its weight.

        One row per coefficient, those of one output consecutive; one column per feature.
        """
        one = replace(self, design=self.design[[index]], targets=self.targets[[index]], weights=self.weights[[index]])
        row, d = one.design[0], self.features
        pulled = one.curvatures(one.design @ theta.T)[0] @ theta[:, :d]
        mixed = row[None, :, None] * pulled[:, None, :]
        own = list(range(d))
        mixed[:, own, own] += one.residuals(theta)[0][:, None]
        derivative: Array = mixed.reshape(-1, d)
        return derivative


def minimise(objective: GlmObjective[Array], start: Array) -> Array:
    """Return the minimiser of an objective, by damped Newton steps down to rounding.

    Args:
        objective: The objective.
        start: Initial coefficients, (outputs, columns).

    Returns:
        The coefficients, (outputs, columns).

    Raises:
        InvalidInput: If there is no minimum, as for separable classes without penalty.
    """
    theta, previous = start, math.inf
    for _ in range(_MAX_STEPS):
        gradient = objective.gradient(theta)
        step = objective.solve(objective.factorise(objective.hessian(theta)), gradient)
        length = math.sqrt(float((step**2).sum())) / (1 + math.sqrt(float((theta**2).sum())))
        if not math.isfinite(length):  # the coefficients diverge
            break
        if length <= _CONVERGED or (length <= _STALLED and length >= previous / 2):
            return theta - step
        theta, previous = _backtrack(objective, theta, step, float((gradient * step).sum())), length
    raise invalid_input(
        "penalty",
        float(objective.penalties[0]),
        "to be large enough for a minimum to exist",
        "Raise the penalty: the coefficients diverge.",
    )


def _backtrack(objective: GlmObjective[Array], theta: Array, step: Array, decrease: float) -> Array:
    """Return the point along a Newton step that lowers the objective enough (Armijo), up to its rounding."""
    before = objective.value(theta)
    slack = _OBJECTIVE_ROUNDING * (1 + abs(before))
    for halvings in range(_MOST_HALVINGS):
        part = 0.5**halvings
        moved = theta - part * step
        if objective.value(moved) <= before - _ARMIJO * part * decrease + slack:
            return moved
    return theta
