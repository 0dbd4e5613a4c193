"""Derivatives of many trainings, kept as few tangents and a direct part, and least squares with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Tangents:
    r"""The derivative of training by the record, for each of n records.

    .. math:: J = P^T B + (c \otimes I)(I - B^T B)

    ``basis`` B (k, d) has orthonormal rows, along which ``pushed`` P (n, k, p) is the derivative. Along all other
    directions v the first weights, u x d values from ``begin`` on, change by the outer product of ``direct`` c (n, u)
    and v. Without ``direct`` the basis is whole.
    """

    basis: Tensor
    pushed: Tensor
    direct: Tensor | None = None
    begin: int = 0

    @staticmethod
    def joined(parts: Sequence[Tangents]) -> Tangents:
        """The derivatives of several groups of records as one."""
        direct = [part.direct for part in parts if part.direct is not None]
        pushed = torch.cat([part.pushed for part in parts])
        return Tangents(parts[0].basis, pushed, torch.cat(direct) if direct else None, parts[0].begin)

    def repeated(self, rows: Tensor) -> Tangents:
        """The derivatives of the records with these numbers, in this order."""
        direct = None if self.direct is None else self.direct[rows]
        return Tangents(self.basis, self.pushed[rows], direct, self.begin)

    def scaled(self, factor: float) -> Tangents:
        """The derivatives of a multiple of what is released."""
        direct = None if self.direct is None else factor * self.direct
        return Tangents(self.basis, factor * self.pushed, direct, self.begin)

    def replaced(self, rows: Tensor, others: Tangents) -> Tangents:
        """These with the derivatives of some records renewed."""
        pushed = self.pushed.index_copy(0, rows, others.pushed)
        direct = self.direct
        if direct is not None and others.direct is not None:
            direct = direct.index_copy(0, rows, others.direct)
        return Tangents(self.basis, pushed, direct, self.begin)

    def solve(self, residuals: Tensor) -> Tensor:
        """The changes (n, d) that explain ``residuals`` (n, p) best: least squares, shortest where not unique."""
        inner = torch.bmm(self.pushed, residuals.to(self.pushed.dtype)[:, :, None])[:, :, 0].double()
        values, vectors = self._factor
        if self.direct is None:
            return _applied(values, vectors, inner) @ self.basis
        outer = torch.einsum("nu,nud->nd", self.direct, self._first(residuals.double()))
        outer = self._across(outer)
        scale = self._scale[:, None]
        along = _applied(values, vectors, inner - torch.einsum("nkd,nd->nk", self._mixed, outer) / scale)
        beside: Tensor = (outer - torch.einsum("nkd,nk->nd", self._mixed, along)) / scale
        return along @ self.basis + beside

    def spread(self) -> Tensor:
        r"""Root mean square error of a value of the record for unit errors of each released one, (n,).

        .. math:: \sqrt{\mathrm{tr}\,(J^T J)^{-1} / d}

        Edge cases: directions that leave no trace make it infinite.
        """
        values, vectors = self._factor
        inverse = torch.where(values.isinf(), torch.inf, 1 / values)
        total, d = inverse.sum(1), self.basis.shape[1]
        if self.direct is not None:
            turned = torch.einsum("nkj,nkd->njd", vectors, self._mixed).square().sum(2)
            beside = torch.where(values.isinf(), torch.inf, turned / values).sum(1) / self._scale.square()
            total = total + (d - len(self.basis)) / self._scale + beside
        return (total / d).sqrt()

    @cached_property
    def _factor(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues and vectors of J^T J along the basis, once what the other directions explain is taken out."""
        matrix = torch.bmm(self.pushed, self.pushed.mT).double().nan_to_num(nan=0.0, posinf=0.0)
        largest = matrix.diagonal(dim1=1, dim2=2).amax(1)
        if self.direct is not None:
            matrix = matrix - torch.bmm(self._mixed, self._mixed.mT) / self._scale[:, None, None]
        values, vectors = torch.linalg.eigh(matrix)
        floor = 10 * torch.finfo(self.pushed.dtype).eps * largest.clamp_min(torch.finfo(torch.float64).tiny)
        return torch.where(values > floor[:, None], values, torch.inf), vectors

    @cached_property
    def _scale(self) -> Tensor:
        size = torch.ones(0) if self.direct is None else self.direct.square().sum(1)
        return size.clamp_min(torch.finfo(torch.float64).tiny)

    @cached_property
    def _mixed(self) -> Tensor:
        """Products of J's columns along the basis with those beside it, (n, k, d)."""
        if self.direct is None:
            return self.pushed[:, :, :0]
        pairs = torch.einsum("nu,nkud->nkd", self.direct.to(self.pushed.dtype), self._first(self.pushed))
        return self._across(pairs.double())

    def _first(self, rows: Tensor) -> Tensor:
        """The first weights of rows (..., p) as (..., u, d)."""
        units, features = 0 if self.direct is None else self.direct.shape[1], self.basis.shape[1]
        first: Tensor = rows[..., self.begin : self.begin + units * features].unflatten(-1, (units, features))
        return first

    def _across(self, vectors: Tensor) -> Tensor:
        return vectors - (vectors @ self.basis.T) @ self.basis


def _applied(values: Tensor, vectors: Tensor, right: Tensor) -> Tensor:
    inner = torch.einsum("nkj,nk->nj", vectors, right) / values
    found: Tensor = torch.einsum("nkj,nj->nk", vectors, inner)
    return found
