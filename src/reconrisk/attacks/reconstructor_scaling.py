"""Standardised features: what varies from one shadow model to the next, in units of that variation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_all_finite, refuse

_ROUNDING = 4 * torch.finfo(torch.float32).eps  # relative spread that float32 weights show though nothing varies
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, eq=False)
class Scaling:
    r"""Zero mean and unit variance over the shadow models, coordinate by coordinate, constant coordinates dropped.

    .. math:: \phi_j = (\theta_j - \mu_j) / \sigma_j

    Guarantee: fitted to shadow models alone. Differences are taken in float64: weights of size 1 that differ by 1e-6
    keep all digits that they have.
    """

    kept: Tensor
    mean: Tensor
    std: Tensor

    @property
    def size(self) -> int:
        """Number of features."""
        return len(self.kept)

    def __call__(self, rows: Tensor) -> Tensor:
        """Features (n, size) in float32 of rows (n, values)."""
        parts = rows.split(_ROWS_AT_ONCE)
        return torch.cat([((part[:, self.kept].double() - self.mean) / self.std).float() for part in parts])

    def rows(self, features: Tensor) -> Tensor:
        """The kept coordinates behind features: the inverse of calling it, up to rounding."""
        return features.double() * self.std + self.mean


def scaling(rows: Tensor) -> Scaling:
    """The scaling that standardises ``rows`` (n, values).

    Edge cases: coordinates that differ by no more than float32 rounding are dropped; if all do, rows are refused.

    >>> fitted = scaling(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
    >>> fitted.kept, fitted(torch.tensor([[4.0, 9.0]]))
    (tensor([0]), tensor([[2.]]))
    """
    if rows.ndim != 2 or len(rows) < 2:
        raise refuse("rows.shape", tuple(rows.shape), "to be (models, values) of at least two models")
    check_all_finite("rows", rows, "A shadow model diverged: lower the learning rate of its training.")
    total = sum(part.double().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    mean = torch.as_tensor(total) / len(rows)
    squares = sum((part.double() - mean).square().sum(0) for part in rows.split(_ROWS_AT_ONCE))
    std = (torch.as_tensor(squares) / len(rows)).sqrt()
    largest = rows.abs().amax(0).double()
    kept = (std > _ROUNDING * largest).nonzero().flatten()
    if not len(kept):
        problem = "nothing that is read differs between them"
        raise InvalidInput(f"Expected shadow models to depend on their targets, {problem}. Read other parameters.")
    return Scaling(kept, mean[kept], std[kept])
