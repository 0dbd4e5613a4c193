"""How much of what the adversary did not know the attack found out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reconrisk.core.metric import Metric
from reconrisk.core.validation import refuse
from reconrisk.metrics.records import check_finite_records, check_records


def relative_leakage(metric: Metric, estimates: Tensor, targets: Tensor, prior_guess: Tensor) -> Tensor:
    r"""Share of the gap between the prior-only guess and a perfect score that the attack closed, for each record.

    .. math:: \frac{s - s_0}{s^* - s_0}

    Assumes: estimates in the order of the targets (see :func:`match_records`); ``prior_guess``, one record for all
    targets or one for each, is made without the release.
    Notation: :math:`s` is the score of the estimate, :math:`s_0` of the prior guess, :math:`s^*` is ``metric.best``.
    Guarantee: at most 1; 1 for an exact estimate, 0 if no better than the guess, below 0 if worse.
    Edge cases: a guess that is already perfect leaves nothing to leak: 0. An estimate with NaN gets minus infinity
    where the worst score is infinite. A guess of infinitely bad score gives 1 to every estimate of a finite one.
    Metrics whose best score is infinite are refused: no share of an infinite gap can be told.

    >>> import torch
    >>> from reconrisk.metrics import mse
    >>> relative_leakage(mse(), torch.tensor([[0.5], [3.0]]), torch.tensor([[0.0], [1.0]]), torch.tensor([1.0]))
    tensor([0.7500, 0.0000], dtype=torch.float64)
    """
    if not math.isfinite(metric.best):
        raise refuse(
            f"{metric.name}.best", metric.best, "to be finite", "Use a metric with a finite best score, such as mse()."
        )
    check_records("targets", targets)
    scores, prior = metric(estimates, targets), metric(_for_each(prior_guess, targets), targets)
    closed = (scores - prior) / (metric.best - prior)
    closed = torch.where(prior.isinf(), (scores != prior).double(), closed)
    return torch.where(prior == metric.best, 0.0, closed)


def _for_each(prior_guess: Tensor, targets: Tensor) -> Tensor:
    if prior_guess.shape == targets.shape[1:]:
        prior_guess = prior_guess.expand(targets.shape)
    if prior_guess.shape != targets.shape:
        raise refuse(
            "prior_guess.shape",
            tuple(prior_guess.shape),
            f"to be one record {tuple(targets.shape[1:])} or one for each target {tuple(targets.shape)}",
        )
    return check_finite_records("prior_guess", prior_guess)
