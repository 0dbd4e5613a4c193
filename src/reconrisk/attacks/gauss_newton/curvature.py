"""Normal matrix of a least-squares problem, assembled once where matrix-free products converge too slowly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from reconrisk.attacks.gauss_newton.problem import Point, Product

LARGEST = 4096
"""Largest number of coordinates for which the matrix is assembled: 130 MB, one second per factorisation."""

_SMALL = 1024  # coordinates up to which everything is cheap enough for double precision
_SKETCH = 4  # sketched rows of the Jacobian per coordinate; the matrix is known within a factor of nine
_COARSE_SKETCH = 2  # the same for large problems, within a factor of 34
_AT_ONCE = 128  # columns per vectorised call; more do not run faster
_VALUES_AT_ONCE = 2**23  # released values per vectorised call, over all its columns


class Curvature:
    """Approximation of J^T J, with the Jacobian J, as a preconditioner: it changes the speed, not the solution."""

    def __init__(self, matrix: Tensor) -> None:
        self._matrix = matrix.double()
        vector = torch.ones(len(matrix), dtype=torch.float64, device=matrix.device)
        for _ in range(10):  # power iteration; the largest eigenvalue is needed to an order of magnitude only
            vector = self._matrix @ (vector / vector.norm())
        # Eigenvalues below the floor are rounding: of double precision, or of single precision for large matrices.
        self._floor = (1e-15 if len(matrix) <= _SMALL else 2e-8) * float(vector.norm())
        self._shift, self._solve = 0.0, lambda vector: vector

    def solver(self, damping: float) -> Product | None:
        """Return multiplication with the inverse of the damped matrix; None if rounding has made it singular."""
        shift = max(damping, self._floor)
        if not 0.2 < self._shift / shift < 5:  # reuse a factorisation for a damping within a factor of 5
            solve = _solver(self._matrix, shift)
            if solve is None:
                return None
            self._shift, self._solve = shift, solve
        return self._solve

    def solver_within(self, free: Tensor) -> Product | None:
        """Return the same for changes that are zero where ``free`` is false, with minimal damping."""
        chosen = free.flatten().nonzero()[:, 0]
        inner = _solver(self._matrix[chosen][:, chosen], self._floor)
        if inner is None:
            return None

        def solve(vector: Tensor) -> Tensor:
            found = torch.zeros_like(vector).flatten()
            found[chosen] = inner(vector.flatten()[chosen])
            return found.view_as(vector)

        return solve


def _solver(matrix: Tensor, shift: float) -> Product | None:
    """Factor the shifted matrix and return the solver; None if the factorisation fails."""
    damped = matrix.clone()
    damped.diagonal().add_(shift)
    factor, failed = torch.linalg.cholesky_ex(damped)
    if int(failed):
        return None
    lower = factor if len(factor) <= _SMALL else factor.float()

    def solve(vector: Tensor) -> Tensor:  # two triangular solves: cholesky_solve takes ten times as long
        half = torch.linalg.solve_triangular(lower, vector.reshape(-1, 1).to(lower.dtype), upper=False)
        whole: Tensor = torch.linalg.solve_triangular(lower.mT, half, upper=True)
        return whole.to(vector.dtype).view_as(vector)

    return solve


def assemble_curvature(point: Point, *, rng: torch.Generator, in_time: Callable[[], bool]) -> Curvature | None:
    """Assemble the matrix at a point from all columns of the Jacobian, hashed into fewer rows.

    Args:
        point: The point at which the Jacobian is taken.
        rng: Source of randomness of the hashing.
        in_time: Returns False once the time is up.

    Returns:
        The matrix; None if the time is up or it is not finite.

    Reference: sketch-and-precondition, `Rokhlin and Tygert (2008) <https://doi.org/10.1073/pnas.0804869105>`_, by the
    hashing of `Clarkson and Woodruff (2013) <https://arxiv.org/abs/1207.6365>`_.
    """
    size, rows = point.inputs.numel(), len(point.residual)
    kept = (_SKETCH if size <= _SMALL else _COARSE_SKETCH) * size
    columns = _fastest_product(point)
    # Count sketch: each row of the Jacobian is added to a random bucket with a random sign.
    bucket = torch.randint(kept, (rows,), generator=rng, device=rng.device).to(point.inputs.device)
    sign = 2.0 * torch.randint(2, (rows,), generator=rng, device=rng.device).to(point.inputs.device) - 1
    sketched = []
    at_once = max(1, min(_AT_ONCE, _VALUES_AT_ONCE // rows))
    for chosen in torch.arange(size, device=point.inputs.device).split(at_once):
        if not in_time():
            return None
        basis = point.inputs.new_zeros(len(chosen), size)
        basis[torch.arange(len(chosen), device=chosen.device), chosen] = 1
        block = columns(basis.view(len(chosen), *point.inputs.shape)).float()
        # Hashing pays off only if it shortens the columns by more than half.
        hashed = block if rows <= 2 * kept else block.new_zeros(len(block), kept).index_add_(1, bucket, block * sign)
        sketched.append(hashed)
    matrix = _gram(torch.cat(sketched))
    return Curvature(matrix) if bool(matrix.isfinite().all() & matrix.any()) else None


def _gram(rows: Tensor) -> Tensor:
    """Return products of all pairs of rows, each pair of blocks once; large matrices in single precision."""
    if len(rows) <= _SMALL:
        return rows.double() @ rows.double().T
    # Six blocks: the symmetric half saves almost half of the products.
    matrix, edges = rows.new_empty(len(rows), len(rows)), torch.linspace(0, len(rows), 7).long().tolist()
    spans = [slice(*ends) for ends in itertools.pairwise(edges)]
    for one, other in itertools.combinations_with_replacement(spans, 2):
        matrix[one, other] = rows[one] @ rows[other].T
        matrix[other, one] = matrix[one, other].T
    return matrix


def _fastest_product(point: Point) -> Product:
    """Return vectorised forward mode in single precision if torch does it correctly, else single products."""

    def push_together(basis: Tensor) -> Tensor:
        place = (point.inputs.float(),)
        push = torch.func.vmap(lambda tangent: torch.func.jvp(point.likelihood, place, (tangent,))[1])
        columns: Tensor = push(basis.float())
        return columns

    def push_one_by_one(basis: Tensor) -> Tensor:
        return torch.stack([point.push(tangent) for tangent in basis])

    direction = torch.ones_like(point.inputs) / math.sqrt(point.inputs.numel())
    try:
        found, expected = push_together(direction[None])[0].double(), point.push(direction)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        NotImplementedError,
    ):  # functorch cannot trace or differentiate the forward map
        return push_one_by_one
    # The preconditioner only needs a rough matrix, so 1e-3 in single precision is close enough.
    close = bool((found - expected).norm() <= 1e-3 * expected.norm())
    return push_together if close else push_one_by_one
