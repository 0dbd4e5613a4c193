"""Which estimate is of which target, when a batch comes back in no particular order."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from reconrisk.metrics.pairwise import pairwise_mse
from reconrisk.metrics.records import check_finite_records, check_records, check_same_records, finite_rows, rows


def match_indices(estimates: Tensor, targets: Tensor) -> Tensor:
    r"""For each target the index of its estimate, -1 where none is left.

    .. math:: \min_\pi \sum_i \frac{d_{\pi(i) i}}{d_{\pi(i) i} + s}, \quad
              d_{ji} = \sqrt{\mathrm{MSE}(\hat{x}_j, x_i)}

    over one-to-one assignments, by the Hungarian method, with :math:`s` the root mean square distance of the targets
    from their mean (1 if they are all equal). The sum of the errors themselves would let one stray estimate take the
    target of an exact one, whenever that shortens its own long way: an audit would miss the leak.

    Guarantee: an exact estimate of a target is matched to it, or to a copy of it, whatever the others are; no other
    assignment of as many estimates has a smaller sum; unchanged, up to equals, if either side is permuted.
    Edge cases: an estimate with NaN or infinities is never assigned, even if a target stays without one. With fewer
    estimates than targets the rest get -1; with more, the worst fitting are left over.

    >>> import torch
    >>> match_indices(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [5.0], [8.0]]))
    tensor([ 1, -1,  0])
    """
    check_finite_records("targets", targets)
    if isinstance(estimates, Tensor) and estimates.ndim > 0 and len(estimates) == 0:
        return torch.full((len(targets),), -1)
    check_same_records("estimates", check_records("estimates", estimates), "targets", targets)
    usable = finite_rows(estimates).nonzero().squeeze(1)
    matched = torch.full((len(targets),), -1, device=usable.device)
    if len(usable):
        costs = _costs(estimates[usable].detach(), targets).cpu().numpy()
        chosen, of_target = (torch.from_numpy(side).to(usable.device) for side in linear_sum_assignment(costs))
        matched[of_target] = usable[chosen]
    return matched


def match_records(estimates: Tensor, targets: Tensor) -> Tensor:
    """The estimates in the order of the targets, by :func:`match_indices`; a target without one gets a row of NaN.

    A metric scores such a row as worst, so that a record nobody rebuilt does not drop out.

    Edge cases: integers become float64, which can hold the NaN.

    >>> import torch
    >>> match_records(torch.tensor([[9.0], [1.0]]), torch.tensor([[0.0], [5.0], [8.0]])).squeeze(1)
    tensor([1., nan, 9.])
    """
    return reordered(estimates, match_indices(estimates, targets), targets)


def reordered(estimates: Tensor, indices: Tensor, targets: Tensor) -> Tensor:
    """The estimates at ``indices``, with NaN where the index is -1."""
    values = estimates if estimates.is_floating_point() else estimates.double()
    result = values.new_full((len(indices), *targets.shape[1:]), math.nan)
    found = indices >= 0
    result[found] = values[indices[found]]
    return result


def _costs(estimates: Tensor, targets: Tensor) -> Tensor:
    """A bounded, strictly concave function of the distance, so that the triangle inequality holds strictly."""
    values = rows(targets)
    spread = float((values - values.mean(0)).square().mean().sqrt()) or 1.0
    return 1 - spread / (pairwise_mse(estimates, targets).sqrt() + spread)
