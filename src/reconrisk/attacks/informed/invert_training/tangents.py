"""Derivatives of many trainings, stored as a few tangents and a direct part, and least squares with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tangents:
    r"""Derivative of training with respect to the record, for each of n records.

    .. math:: J = P^T B + (c \otimes I)(I - B^T B)

    Along directions v outside the basis, the first weights change by the outer product of c and v.

    Attributes:
        basis: Orthonormal rows B (k, d).
        pushed: Derivative P (n, k, p) along the basis.
        direct: Coefficients c (n, u) of the first weights; None if the basis is complete.
        begin: Offset of the u x d first weights in a row.
    """

    basis: Tensor
    pushed: Tensor
    direct: Tensor | None = None
    begin: int = 0

    @staticmethod
    def concatenate(parts: Sequence[Tangents]) -> Tangents:
        """Concatenate the derivatives of several groups of records."""
        direct = [part.direct for part in parts if part.direct is not None]
        pushed = torch.cat([part.pushed for part in parts])
        return Tangents(parts[0].basis, pushed, torch.cat(direct) if direct else None, parts[0].begin)

    def select(self, rows: Tensor) -> Tangents:
        """Return the derivatives of the records with these indices, in this order."""
        direct = None if self.direct is None else self.direct[rows]
        return Tangents(self.basis, self.pushed[rows], direct, self.begin)

    def scale(self, factor: float) -> Tangents:
        """Return the derivatives of a multiple of the released values."""
        direct = None if self.direct is None else factor * self.direct
        return Tangents(self.basis, factor * self.pushed, direct, self.begin)

    def replace_rows(self, rows: Tensor, others: Tangents) -> Tangents:
        """Return a copy with the derivatives of some records replaced."""
        pushed = self.pushed.index_copy(0, rows, others.pushed)
        direct = self.direct
        if direct is not None and others.direct is not None:
            direct = direct.index_copy(0, rows, others.direct)
        return Tangents(self.basis, pushed, direct, self.begin)

    def solve(self, residuals: Tensor) -> Tensor:
        """Solve for the changes (n, d) that fit ``residuals`` (n, p) by least squares; the shortest if not unique."""
        inner = torch.bmm(self.pushed, residuals.to(self.pushed.dtype)[:, :, None])[:, :, 0].double()
        values, vectors = self._factor
        if self.direct is None:
            return _apply_inverse(values, vectors, inner) @ self.basis
        # Block elimination: outside the basis J^T J is the scale |c|^2 times the identity.
        outer = torch.einsum("nu,nud->nd", self.direct, self._first_weights(residuals.double()))
        outer = self._project_out_basis(outer)
        scale = self._scale[:, None]
        along = _apply_inverse(values, vectors, inner - torch.einsum("nkd,nd->nk", self._cross_products, outer) / scale)
        outside: Tensor = (outer - torch.einsum("nkd,nk->nd", self._cross_products, along)) / scale
        return along @ self.basis + outside

    def spread(self) -> Tensor:
        r"""Root mean square error of a value of the record for unit errors of each released value, (n,).

        .. math:: \sqrt{\mathrm{tr}((J^T J)^{-1}) / d}

        Here J is the derivative of the released values with respect to the d values of the record.

        Edge cases: infinite if a direction does not change the released values.
        """
        values, vectors = self._factor
        inverse = torch.where(values.isinf(), torch.inf, 1 / values)
        total, d = inverse.sum(1), self.basis.shape[1]
        if self.direct is not None:
            # trace of the inverse by blocks: Schur complement on the basis, 1 / scale and its correction outside
            turned = torch.einsum("nkj,nkd->njd", vectors, self._cross_products).square().sum(2)
            outside = torch.where(values.isinf(), torch.inf, turned / values).sum(1) / self._scale.square()
            total = total + (d - len(self.basis)) / self._scale + outside
        return (total / d).sqrt()

    @cached_property
    def _factor(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of the Schur complement of J^T J on the basis; inf marks null directions."""
        # a training that diverged has no usable derivative: its rows become null directions
        matrix = torch.bmm(self.pushed, self.pushed.mT).double().nan_to_num(nan=0.0, posinf=0.0)
        largest = matrix.diagonal(dim1=1, dim2=2).amax(1)
        if self.direct is not None:
            matrix = matrix - torch.bmm(self._cross_products, self._cross_products.mT) / self._scale[:, None, None]
        values, vectors = torch.linalg.eigh(matrix)
        # eigenvalues within rounding of zero are null directions: inf makes their part of the solution zero
        floor = 10 * torch.finfo(self.pushed.dtype).eps * largest.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(values > floor[:, None], values, torch.inf), vectors

    @cached_property
    def _scale(self) -> Tensor:
        size = torch.ones(0) if self.direct is None else self.direct.square().sum(1)
        return size.clamp_min(torch.finfo(torch.float64).tiny)

    @cached_property
    def _cross_products(self) -> Tensor:
        """Products of J's columns along the basis with those outside it, (n, k, d)."""
        if self.direct is None:
            return self.pushed[:, :, :0]
        pairs = torch.einsum("nu,nkud->nkd", self.direct.to(self.pushed.dtype), self._first_weights(self.pushed))
        return self._project_out_basis(pairs.double())

    def _first_weights(self, rows: Tensor) -> Tensor:
        """The first weights of rows (..., p) as (..., u, d)."""
        units, features = 0 if self.direct is None else self.direct.shape[1], self.basis.shape[1]
        first: Tensor = rows[..., self.begin : self.begin + units * features].unflatten(-1, (units, features))
        return first

    def _project_out_basis(self, vectors: Tensor) -> Tensor:
        return vectors - (vectors @ self.basis.T) @ self.basis


def _apply_inverse(values: Tensor, vectors: Tensor, right: Tensor) -> Tensor:
    inner = torch.einsum("nkj,nk->nj", vectors, right) / values
    found: Tensor = torch.einsum("nkj,nj->nk", vectors, inner)
    return found
