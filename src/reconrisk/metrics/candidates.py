"""Identification of the target among candidates by the nearest one."""

from __future__ import annotations

import torch
from torch import Tensor

from reconrisk.core.guarantee import Estimate
from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.metrics.records import (
    check_finite_records,
    check_records,
    check_same_records,
    finite_rows,
    pairwise_mse,
    rounding_error,
    rows,
)
from reconrisk.statistics.intervals import clopper_pearson

_VALUES_AT_ONCE = 2**22  # numbers held in a block, 32 MB of float64
_EQUAL = 1e-12  # relative difference below which two squared distances count as equal


def identification(estimates: Tensor, candidates: Tensor, target_indices: Tensor) -> Tensor:
    r"""Probability that an adversary who picks the candidate nearest to the estimate picks the target.

    .. math:: \frac{\mathbb{1}[t \in M]}{|M|}, \quad M = \arg\min_j \lVert \hat{x} - c_j \rVert

    Here :math:`\hat{x}` is the estimate and :math:`c_j` are the candidates. Among ``k`` equally near candidates a
    random choice is right with probability ``1/k``, so an uninformative estimate succeeds no more often than chance.

    Args:
        estimates: Reconstructed records, records first.
        candidates: Candidate records of the same shape.
        target_indices: Index :math:`t` of the true candidate of each estimate.

    Returns:
        One probability for each estimate.

    Raises:
        InvalidInput: If shapes differ, if candidates are not finite, or if an index is not the index of a candidate.

    Guarantee: 1 if only the true candidate is nearest, 0 if another is nearer, ``1/k`` if it ties with k - 1 others.
    The result does not depend on the order of the candidates. Distances that agree to twelve digits count as equal.
    Edge cases: an estimate with NaN or infinities is a failure, 0. A copy of the target among the candidates is a tie.

    >>> import torch
    >>> candidates = torch.tensor([[0.0], [4.0], [10.0], [10.0]])
    >>> identification(torch.tensor([[1.0], [9.0], [2.0], [9.9]]), candidates, torch.tensor([0, 1, 0, 3]))
    tensor([1.0000, 0.0000, 0.5000, 0.5000], dtype=torch.float64)
    """
    check_records("estimates", estimates)
    check_same_records("estimates", estimates, "candidates", check_finite_records("candidates", candidates))
    truth = _check_indices(target_indices, len(estimates), len(candidates)).to(estimates.device)
    usable = finite_rows(estimates).nonzero().squeeze(1)
    at_once = max(1, _VALUES_AT_ONCE // max(len(candidates), candidates[0].numel()))
    result = torch.zeros(len(estimates), dtype=torch.float64, device=estimates.device)
    for start in range(0, len(usable), at_once):
        some = usable[start : start + at_once]
        result[some] = _success(estimates[some], candidates, truth[some])
    return result


def identification_rate(identified: Tensor, *, confidence: float = 0.95) -> Estimate:
    """Rate of identification over independent records, with its Clopper-Pearson interval.

    Args:
        identified: Result of :func:`identification`, or of several runs concatenated.
        confidence: Confidence level of the interval.

    Returns:
        The mean, with an interval for the expected rate.

    Raises:
        InvalidInput: If ``identified`` is empty or has values outside [0, 1].

    Assumes: records (or noise draws) are independent of each other.
    Guarantee: covers the expected rate with probability at least ``confidence``. For the lower end all ties count as
    failures, for the upper end all as successes.

    >>> import torch
    >>> print(identification_rate(torch.tensor([1.0, 1.0, 0.5, 0.0])))
    0.625 [0.06759, 0.9937] (95% Clopper-Pearson, 4 samples)
    """
    check_not_empty("identified", identified)
    if not bool(((identified >= 0) & (identified <= 1)).all()):
        worst = (float(identified.min()), float(identified.max()))
        raise invalid_input("(min, max) of identified", worst, "in [0, 1]", "Pass the result of identification.")
    trials = len(identified)
    # Ties have scores strictly between 0 and 1, so they are not certain but possible.
    certain, possible = int((identified == 1).sum()), int((identified > 0).sum())
    low = clopper_pearson(certain, trials, confidence)
    high = clopper_pearson(possible, trials, confidence)
    return Estimate(float(identified.double().mean()), low.low, high.high, low.confidence, trials, low.method)


def _check_indices(target_indices: Tensor, records: int, candidates: int) -> Tensor:
    """Return the indices as int64, after checking type, number and range."""
    if target_indices.is_floating_point() or target_indices.is_complex() or target_indices.dtype == torch.bool:
        raise invalid_input(
            "target_indices.dtype", target_indices.dtype, "to be an integer type", "Pass target_indices.long()."
        )
    if tuple(target_indices.shape) != (records,):
        raise invalid_input(
            "target_indices.shape", tuple(target_indices.shape), f"to be ({records},), one per estimate"
        )
    least, most = int(target_indices.min()), int(target_indices.max())
    if least < 0 or most >= candidates:
        condition = f"in [0, {candidates - 1}], the indices of the candidates"
        raise invalid_input("(min, max) of target_indices", (least, most), condition)
    return target_indices.long()


def _success(estimates: Tensor, candidates: Tensor, truth: Tensor) -> Tensor:
    """Success of each finite estimate; exact differences decide between nearly equal distances."""
    errors = pairwise_mse(estimates, candidates)
    # Rounding in the matrix product can separate equal distances. It only preselects the candidates that may be
    # nearest; exact differences decide among them.
    close = errors <= (errors.amin(1) + 2 * rounding_error(estimates, candidates))[:, None]
    record, candidate = close.nonzero().unbind(1)
    one, other = rows(estimates), rows(candidates)
    at_once = max(1, _VALUES_AT_ONCE // one.shape[1])
    pairs = zip(torch.split(record, at_once), torch.split(candidate, at_once), strict=True)
    exact = torch.cat([(one[i] - other[j]).square().mean(1) for i, j in pairs])
    least = torch.full_like(errors[:, 0], torch.inf).scatter_reduce(0, record, exact, "amin")
    nearest = exact <= least[record] * (1 + _EQUAL)
    equals = torch.bincount(record[nearest], minlength=len(estimates))
    hits = torch.bincount(record[nearest & (candidate == truth[record])], minlength=len(estimates))
    return hits.double() / equals
