"""Divergence between the predictions of a classifier for the target and for the estimate."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from reconrisk.core.metric import Metric
from reconrisk.core.validation import check_all_finite, invalid_input
from reconrisk.metrics.records import check_records, finite_rows


def judge_kl(judge: Callable[[Tensor], Tensor]) -> Metric:
    r"""Kullback-Leibler divergence between a judge's predictions for the target and for the estimate.

    .. math:: \mathrm{KL}(p_x \,\|\, p_{\hat{x}}) = \sum_c p_x(c) \log \frac{p_x(c)}{p_{\hat{x}}(c)}

    balle2022 says "the Kullback-Leibler divergence between predicted class probabilities" on "the target and
    reconstructed image", without stating the direction. The target comes first here, as in that sentence. In this
    direction it is the information lost, in nats, when the estimate is judged in place of the target.

    Args:
        judge: Classifier that maps a batch of records to logits (records, classes), each record independently. A module
            must be in evaluation mode, because dropout and batch statistics would change its predictions.

    Returns:
        The metric; 0 is best, infinity worst.

    Raises:
        InvalidInput: If ``judge`` is not callable or is in training mode; when called, if its output for a target is
            not finite or does not have one row of logits for each record.

    Assumes: the judge treats each record by itself. A module gets integer records in the type of its parameters, any
    other callable in the default type.
    Guarantee: at least zero; zero if the judge sees no difference. The softmax is computed in float64.
    Edge cases: an estimate for which the judge overflows gets the worst score.
    Reference: Section V-B c), balle2022.

    >>> import torch
    >>> judge_kl(torch.nn.Identity().eval())(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([0.1109], dtype=torch.float64)
    """
    if not callable(judge):
        raise invalid_input(
            "judge", judge, "to be callable with records and return logits", "Pass a trained classifier."
        )
    name = getattr(judge, "__name__", type(judge).__name__)
    function = partial(_divergence, judge=_check_evaluation_mode(judge))
    return Metric("judge_kl", function, best=0.0, worst=math.inf, settings=(("judge", name),))


def _check_evaluation_mode(judge: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    if isinstance(judge, nn.Module) and judge.training:
        raise invalid_input("judge.training", True, "to be False", "Call judge.eval() first.")
    return judge


def _divergence(estimates: Tensor, targets: Tensor, *, judge: Callable[[Tensor], Tensor]) -> Tensor:
    judge = _check_evaluation_mode(judge)  # again at every call: the mode of a module can change
    # Gradients are kept only if the caller differentiates by the estimates.
    with torch.set_grad_enabled(torch.is_grad_enabled() and estimates.requires_grad):
        of_estimates, of_targets = (_logits(judge, each) for each in (estimates, targets))
    check_all_finite("judge(targets)", of_targets, "Pass records like the judge's training data, or another judge.")
    usable = finite_rows(of_estimates)
    log_estimates, log_targets = (
        each.double().log_softmax(1) for each in (of_estimates.where(usable[:, None], 0.0), of_targets)
    )
    divergence = (log_targets.exp() * (log_targets - log_estimates)).sum(1)
    # A divergence is never negative; rounding can make it so.
    return divergence.clamp_min(0.0).masked_fill(~usable, math.inf)


def _logits(judge: Callable[[Tensor], Tensor], records: Tensor) -> Tensor:
    records = check_records("records", records)
    parameter = next(judge.parameters(), None) if isinstance(judge, nn.Module) else None
    if parameter is not None:
        records = records.to(parameter.dtype)
    elif not records.is_floating_point():
        records = records.to(torch.get_default_dtype())
    logits = judge(records)
    if logits.ndim != 2 or len(logits) != len(records) or logits.shape[1] < 2:
        raise invalid_input(
            "judge(records).shape",
            tuple(logits.shape),
            f"to be ({len(records)}, classes) with at least two classes",
            "Wrap the judge so that it returns one row of logits per record.",
        )
    return logits
