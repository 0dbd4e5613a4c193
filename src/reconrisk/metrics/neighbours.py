"""Nearest-neighbour oracle: the best score within the data that the adversary already has."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from reconrisk.core.metric import Metric
from reconrisk.core.validation import check_whole
from reconrisk.metrics.elementwise import mse, squared_error
from reconrisk.metrics.records import check_finite_records, check_same_records, pairwise_mse


class NearestNeighbours(NamedTuple):
    """Best score of each target among the known records.

    Attributes:
        scores: Score of the nearest known record, one for each target.
        indices: Index of that record among the known ones.
    """

    scores: Tensor
    indices: Tensor


def nearest_neighbour_oracle(
    targets: Tensor, known: Tensor, metric: Metric | None = None, *, values_at_once: int = 2**22
) -> NearestNeighbours:
    r"""Best score that a guess from the known records can reach, for each target.

    .. math:: \min_{z \in D_- \cup \bar{D}} \ell(z, x)

    An attack that scores better has learned something about the target from the release. An attack that scores worse
    may still be a faithful reconstruction. The oracle sees the target, so no guess among the known records is better.

    Args:
        targets: True records.
        known: Records that the adversary already has, fixed and shadow records together (:math:`D_- \cup \bar{D}`).
        metric: Metric to optimise; by default the mean squared error, which uses matrix products. Any other metric is
            evaluated on all pairs.
        values_at_once: Largest number of values that are compared at a time, which limits the memory.

    Returns:
        The best score and the index of the known record, for each target.

    Raises:
        InvalidInput: If records are empty, not finite or of different shapes.

    Guarantee: each score is the metric of that pair. No known record scores better; for the mean squared error, not by
    more than the rounding of a float64 matrix product.
    Edge cases: a target that is itself known scores ``metric.best``.
    Reference: Section V-B d), balle2022.

    >>> import torch
    >>> nearest_neighbour_oracle(torch.tensor([[0.0], [5.0]]), torch.tensor([[4.0], [9.0], [0.0]]))
    NearestNeighbours(scores=tensor([0., 1.], dtype=torch.float64), indices=tensor([2, 0]))
    """
    check_finite_records("targets", targets)
    check_same_records("known", check_finite_records("known", known), "targets", targets)
    values_at_once = check_whole("values_at_once", values_at_once)
    metric = mse() if metric is None else metric
    size = targets[0].numel()
    if metric.function is squared_error:  # one matrix product per block: rows of both sides, and a block of errors
        targets_at_once = max(
            1, min(len(targets), values_at_once // size, 1024)
        )  # more rows no longer speed up the product
        known_at_once = max(1, values_at_once // max(size, targets_at_once))
        indices = _nearest(targets, known, pairwise_mse, targets_at_once, known_at_once)
    else:  # every pair is materialised
        pairs = max(1, values_at_once // size)
        known_at_once = min(len(known), pairs)
        indices = _nearest(targets, known, partial(_losses, metric), pairs // known_at_once, known_at_once)
    return NearestNeighbours(metric(known[indices], targets), indices)


def _nearest(
    targets: Tensor,
    known: Tensor,
    losses: Callable[[Tensor, Tensor], Tensor],
    targets_at_once: int,
    known_at_once: int,
) -> Tensor:
    """Return the index of the best scoring known record for each target, computed for a few records at a time."""
    found = []
    for some_targets in torch.split(targets, targets_at_once):
        least = torch.full((len(some_targets),), math.inf, dtype=torch.float64, device=targets.device)
        index = torch.zeros(len(some_targets), dtype=torch.long, device=targets.device)
        for start in range(0, len(known), known_at_once):
            loss, place = losses(some_targets, known[start : start + known_at_once]).min(1)
            nearer = loss < least  # strict, so that the first of equal records is kept
            least, index = torch.where(nearer, loss, least), torch.where(nearer, place + start, index)
        found.append(index)
    return torch.cat(found)


def _losses(metric: Metric, targets: Tensor, known: Tensor) -> Tensor:
    """Score every pair of a target and a known record, with smaller meaning better."""
    pairs = (len(targets), len(known), *targets.shape[1:])
    estimates, repeated = known[None].expand(pairs).flatten(0, 1), targets[:, None].expand(pairs).flatten(0, 1)
    scores = metric(estimates, repeated).double().view(pairs[:2])
    return -scores if metric.higher_is_better else scores  # the search minimises
