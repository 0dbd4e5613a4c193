"""Training in units of the noise on its result, and maximum likelihood within the data range."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.attacks.informed.invert_training.problem import Problem, WrappedProblem
from reconrisk.attacks.informed.invert_training.tangents import Tangents

_HALVINGS = 12  # shortest part of a step that is tried: 1/2048
_ACTIVE_SETS = 60  # changes of the set of values held at an end of the range at most
_STATIONARY = 1e-4  # gain in chi-square per step: far below the effect of the noise


class WeightedProblem(WrappedProblem):
    """Another problem whose released values are multiplied by ``weights``: one over their noise, 0 if not sent."""

    def __init__(self, inner: Problem, weights: Tensor) -> None:
        super().__init__(inner)
        self._weights = weights.double()
        self._even = bool((weights == weights[0]).all())  # a common factor keeps the structure of the tangents

    def values(self, records: Tensor, labels: Tensor) -> Tensor:
        """Return the released values in units of their noise."""
        return self._inner.values(records, labels) * self._weights.to(records.dtype)

    def push(self, record: Tensor, label: Tensor, directions: Tensor) -> Tensor:
        """Return the derivative in units of the noise."""
        return self._inner.push(record, label, directions) * self._weights.to(record.dtype)

    def jacobian(self, record: Tensor, label: Tensor) -> Tensor:
        """Return the whole derivative in units of the noise, in double precision."""
        return self._inner.jacobian(record, label) * self._weights

    def tangents(self, records: Tensor, labels: Tensor, directions: int) -> Tangents:
        """Return few tangents if all values have the same noise, else all of them."""
        if self._even:
            return self._inner.tangents(records, labels, directions).scale(float(self._weights[0]))
        return super().tangents(records, labels, directions)


@dataclass(eq=False)
class LikelihoodFit:
    r"""Maximum likelihood record within the data range, with exact derivatives at each step.

    .. math:: \hat x = \arg\min_{low \le x \le high} |\Sigma^{-1/2} (\theta - F(x))|^2

    Here :math:`\theta` is the released model, F(x) the model trained with record x, and :math:`\Sigma` the covariance
    of the noise.
    """

    problem: Problem
    observed: Tensor
    label: Tensor
    data_range: tuple[float, float]
    in_time: Callable[[], bool]

    def run(self, record: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
        """Return the record and its residual (p,) in units of the noise, never worse than ``record``."""
        record, residual = record.double(), self._residual(record.double())
        for _ in range(iterations):
            if not self.in_time():
                break
            jacobian = self.problem.jacobian(record, self.label)
            goal = minimise_within_range(jacobian, residual, record, self.data_range)
            found = self._line_search(record, goal, residual)
            if found is None:
                break
            gain = float(residual.square().sum() - found[1].square().sum())
            record, residual = found
            if gain < _STATIONARY:  # further steps are below the statistical accuracy
                break
        return record, residual

    def _line_search(self, record: Tensor, goal: Tensor, residual: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the first point on the way to ``goal``, halving, that fits better; None if none does."""
        for halving in range(_HALVINGS):
            proposal = record + (goal - record) * 0.5**halving
            found = self._residual(proposal)
            if float(found.norm()) < float(residual.norm()):
                return proposal, found
        return None

    def _residual(self, record: Tensor) -> Tensor:
        values = self.problem.values(record[None], self.label[None])[0]
        return (self.observed - values).nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)


def minimise_within_range(
    jacobian: Tensor, residual: Tensor, record: Tensor, data_range: tuple[float, float]
) -> Tensor:
    r"""Minimise the linearised misfit within the data range, by projected Newton steps.

    .. math:: \arg\min_{low \le z \le high} |r - J^T (z - x)|^2

    Args:
        jacobian: Derivative J (d, p), one row per value of the record.
        residual: Residual r (p,).
        record: Current record x (d,).
        data_range: The ends low and high.

    Returns:
        The minimiser z (d,).

    Reference: Section 2, `Bertsekas (1982) <https://doi.org/10.1137/0320018>`_.

    >>> whole = torch.eye(2, dtype=torch.float64)
    >>> minimise_within_range(whole, torch.tensor([0.3, 2.0]).double(), torch.zeros(2).double(), (0.0, 1.0))
    tensor([0.3000, 1.0000], dtype=torch.float64)
    """
    low, high = data_range
    matrix, right = jacobian @ jacobian.T, jacobian @ residual
    # keeps Cholesky going on null directions, far below the accuracy of the solution
    matrix.diagonal().add_(1e-14 * float(matrix.diagonal().max().clamp_min(torch.finfo(torch.float64).tiny)))
    point = record.clamp(low, high)
    for _ in range(_ACTIVE_SETS):
        slope = matrix @ (point - record) - right
        # values at an end of the range whose slope points outwards stay there; Newton moves the others
        outward = ((point <= low) & (slope > 0)) | ((point >= high) & (slope < 0))
        free = (~outward).nonzero()[:, 0]
        step = torch.zeros_like(point)
        factor, failed = torch.linalg.cholesky_ex(matrix[free][:, free])
        if int(failed):
            break
        step[free] = -torch.cholesky_solve(slope[free, None], factor)[:, 0]
        moved = _projected_line_search(matrix, right, record, point, step, data_range)
        if moved is None:
            break
        point = moved
    return point


def _projected_line_search(
    matrix: Tensor, right: Tensor, origin: Tensor, point: Tensor, step: Tensor, data_range: tuple[float, float]
) -> Tensor | None:
    """Return the first point along the projected step, halving, that lowers the quadratic beyond rounding; or None."""

    def height(at: Tensor) -> float:
        change = at - origin
        return float(change @ (matrix @ change) / 2 - right @ change)

    before = height(point)
    for halving in range(_HALVINGS):
        moved = (point + step * 0.5**halving).clamp(*data_range)
        if height(moved) < before - 1e-14 * abs(before):  # more than rounding
            return moved
    return None
