"""The objective of a regularised generalised linear model, its derivatives, and its minimiser, in double precision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from reconrisk.core.validation import refuse

Family = Literal["squared", "logistic", "multinomial", "poisson"]

_MAX_STEPS = 200
_CONVERGED = 1e-12
_STALLED = 1e-6


@dataclass(frozen=True, eq=False)
class GlmObjective:
    r"""What a regularised generalised linear model minimises, as a sum over records.

    .. math:: F(W) = \sum_i w_i\,\ell(W \tilde x_i, y_i) + \tfrac12 \sum_{cj} \lambda_j W_{cj}^2

    ``design`` holds the records, with a last column of ones where there is an intercept; ``targets`` one column per
    output; ``penalties`` one number per column of the design. Losses: half the squared error, or the negative logarithm
    of the likelihood with its usual link.

    >>> ridge = GlmObjective(torch.ones(1, 1).double(), torch.ones(1, 1).double(), torch.ones(1).double(), "squared")
    >>> minimiser(ridge, torch.zeros(1, 1).double())
    tensor([[0.5000]], dtype=torch.float64)
    """

    design: Tensor
    targets: Tensor
    penalties: Tensor
    family: Family
    weights: Tensor | None = None

    @property
    def outputs(self) -> int:
        """The number of linear predictors."""
        return int(self.targets.shape[1])

    def value(self, theta: Tensor) -> float:
        """The objective, up to a constant."""
        predictor = self.design @ theta.T
        if self.family == "squared":
            losses = 0.5 * (predictor - self.targets).square().sum(1)
        elif self.family == "logistic":
            losses = (functional.softplus(predictor) - self.targets * predictor).sum(1)
        elif self.family == "multinomial":
            losses = predictor.logsumexp(1) - (self.targets * predictor).sum(1)
        else:
            losses = (predictor.exp() - self.targets * predictor).sum(1)
        total = losses.sum() if self.weights is None else self.weights @ losses
        return float(total + 0.5 * (self.penalties * theta.square()).sum())

    def means(self, predictor: Tensor) -> Tensor:
        """What the model expects of labels whose linear predictors these are."""
        if self.family == "squared":
            return predictor
        if self.family == "logistic":
            return predictor.sigmoid()
        return predictor.softmax(1) if self.family == "multinomial" else predictor.exp()

    def residuals(self, theta: Tensor) -> Tensor:
        """The derivative of each record's loss by its predictors, without its weight: (records, outputs)."""
        predictor = self.design @ theta.T
        if self.family == "logistic":  # 1 - s would lose all digits of a record that is fitted well
            sign = 1 - 2 * self.targets
            return sign * (sign * predictor).sigmoid()
        if self.family == "multinomial":
            others = predictor.softmax(1) * (1 - self.targets)
            return others - self.targets * others.sum(1, keepdim=True)
        return self.means(predictor) - self.targets

    def curvatures(self, theta: Tensor) -> Tensor:
        """The second derivative of each record's loss by its predictors: (records, outputs, outputs)."""
        predictor = self.design @ theta.T
        means = self.means(predictor)
        if self.family == "multinomial":
            return means.diag_embed() - means[:, :, None] * means[:, None, :]
        if self.family == "squared":
            return torch.ones_like(means).diag_embed()
        slopes = means if self.family == "poisson" else means * (-predictor).sigmoid()
        return slopes.diag_embed()

    def gradient(self, theta: Tensor) -> Tensor:
        """The derivative by the coefficients, shaped as they are."""
        residuals = self.residuals(theta)
        weighted = residuals if self.weights is None else residuals * self.weights[:, None]
        return weighted.T @ self.design + self.penalties * theta

    def hessian(self, theta: Tensor) -> Tensor:
        """The second derivative, one row per coefficient (those of one output together).

        Predictors of a multinomial model are defined up to a common shift. Along coefficients without penalty this
        leaves the Hessian singular; there it is filled up, which changes no derivative of the centred solution.
        """
        k, m = theta.shape
        curvatures = self.curvatures(theta)
        if self.weights is not None:
            curvatures = curvatures * self.weights[:, None, None]
        blocks = self.design.new_zeros(k, m, k, m)
        for a in range(k):
            blocks[a, :, a, :] = (self.design.T * curvatures[:, a, a]) @ self.design + self.penalties.diag()
            for b in range(a) if self.family == "multinomial" else ():
                blocks[a, :, b, :] = (self.design.T * curvatures[:, a, b]) @ self.design
                blocks[b, :, a, :] = blocks[a, :, b, :].T
        matrix = blocks.reshape(k * m, k * m)
        if self.family == "multinomial":
            common = (self.penalties == 0).double().diag() * (matrix.trace() / (k * k * m))
            matrix = matrix + common.repeat(k, k)
        return matrix


def factorise(hessian: Tensor) -> Tensor:
    """The Cholesky factor of a Hessian; one that is not positive definite is refused."""
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(hessian)
    if int(failed):
        raise refuse("hessian", "singular", "to be positive definite", "Raise the penalty, or drop collinear features.")
    return factor


def minimiser(objective: GlmObjective, start: Tensor) -> Tensor:
    """The coefficients of least objective, by damped Newton steps from ``start`` until they are at the rounding.

    Edge cases: refuses where there is no minimum, as for separable classes without penalty.
    """
    theta, previous = start, float("inf")
    for _ in range(_MAX_STEPS):
        gradient = objective.gradient(theta)
        step = torch.cholesky_solve(gradient.reshape(-1, 1), factorise(objective.hessian(theta))).reshape(theta.shape)
        length = float(step.norm() / (1 + theta.norm()))
        if length <= _CONVERGED or (length <= _STALLED and length >= previous / 2):
            return theta - step
        theta, previous = _shortened(objective, theta, step, float((gradient * step).sum())), length
    raise refuse(
        "penalty", float(objective.penalties[0]), "to leave a minimum", "Raise it: the coefficients grow for ever."
    )


def _shortened(objective: GlmObjective, theta: Tensor, step: Tensor, decrease: float) -> Tensor:
    """The point along a Newton step that lowers the objective enough (Armijo), up to its rounding."""
    before = objective.value(theta)
    slack = 1e-12 * (1 + abs(before))
    for halvings in range(60):
        part = 0.5**halvings
        if objective.value(theta - part * step) <= before - 1e-4 * part * decrease + slack:
            return theta - part * step
    return theta
