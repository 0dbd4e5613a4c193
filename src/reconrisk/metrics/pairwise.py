"""Mean squared errors between all pairs of two batches, by matrix products."""

from __future__ import annotations

import math

from torch import Tensor

from reconrisk.metrics.records import rows


def pairwise_mse(left: Tensor, right: Tensor) -> Tensor:
    r"""Mean squared error of every record of ``left`` against every record of ``right``, shape (left, right).

    .. math:: \frac{1}{d} (\lVert a \rVert^2 + \lVert b \rVert^2 - 2 \langle a, b \rangle)

    after both sides are shifted by the mean of ``right``, in float64.

    Guarantee: within :func:`rounding_error` of the error computed by differences; never below zero.
    Edge cases: pairs whose squares overflow are infinitely far apart.

    >>> import torch
    >>> pairwise_mse(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    tensor([[0., 2.]], dtype=torch.float64)
    """
    centre = rows(right).mean(0)
    one, other = rows(left) - centre, rows(right) - centre
    norms = one.square().sum(1, keepdim=True) + other.square().sum(1)
    squares = norms.addmm_(one, other.T, alpha=-2)
    return (squares / one.shape[1]).clamp_min_(0).nan_to_num_(nan=math.inf, posinf=math.inf)


def rounding_error(left: Tensor, right: Tensor) -> Tensor:
    """How far an entry of :func:`pairwise_mse` can be off, one bound for each record of ``left``.

    A sum of d products, in any order, is off by at most d/2 machine epsilons of the sum of their magnitudes. The three
    sums have magnitudes of at most twice the two squared norms, and the mean divides by d: one machine epsilon of the
    squared norms. Eight cover the shift as well.
    """
    centre = rows(right).mean(0)
    one, other = (rows(each) - centre for each in (left, right))
    largest = one.square().sum(1) + other.square().sum(1).max()
    return 8 * 2.0**-52 * largest
