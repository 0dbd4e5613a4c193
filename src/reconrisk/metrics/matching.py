"""Which estimate is of which target, when a batch comes back in no particular order."""

from __future__ import annotations

import math

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from reconrisk.metrics.distances import pairwise_mse
from reconrisk.metrics.records import check_finite_records, check_records, check_same_records, finite_rows, rows

_HOPELESS = 1e6


def match_indices(estimates: Tensor, targets: Tensor) -> Tensor:
    r"""For each target the index of its estimate, -1 where none is left.

    .. math:: \min_\pi \sum_i \mathrm{MSE}(\hat{x}_{\pi(i)}, x_i)

    over one-to-one assignments, by the Hungarian method.

    Guarantee: no other assignment of as many estimates has a smaller total error, except for hopeless estimates below;
    unchanged, up to equals, if either side is permuted.
    Edge cases: an estimate with NaN or infinities is never assigned, even if a target stays without one. With fewer
    estimates than targets the rest get -1; with more, the worst fitting are left over. An estimate is
    hopeless for targets from which its error exceeds a million times the mean square of the largest target: it
    counts as equally wrong for them all, because its digits would drown those of the others.

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
        errors = _bounded(pairwise_mse(estimates[usable], targets), targets)
        chosen, of_target = (torch.from_numpy(side).to(usable.device) for side in linear_sum_assignment(errors.numpy()))
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


def _bounded(errors: Tensor, targets: Tensor) -> Tensor:
    largest = float(rows(targets).square().mean(1).max())
    limit = min(_HOPELESS * largest, 1e300) if largest > 0 else 1e300
    return errors.detach().cpu().clamp_max(limit)
