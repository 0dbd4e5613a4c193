"""Linear models of torch: what their noisy weights tell about each training record."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from reconrisk.bounds.glm import GlmFit, fit_glm
from reconrisk.bounds.glm_information import GlmInformation, glm_information
from reconrisk.core.validation import check_all_finite, refuse
from reconrisk.releases.estimators import read_linear


def information_from_linear(
    model: nn.Module,
    loss_fn: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    weight_decay: float,
    noise_std: float,
    decay_bias: bool = True,
    tolerance: float = 1e-6,
    polish: bool = False,
) -> GlmInformation:
    r"""Exact Fisher information about every training record in a linear torch model released with Gaussian noise.

    .. math:: \text{loss}(W x + b, y) + \tfrac12\,\text{decay}\,(|W|^2 + |b|^2)

    Assumes: ``model`` is an ``nn.Linear``, or a ``nn.Sequential`` that flattens first, trained to the minimum of
    ``loss_fn`` over all ``inputs`` at once, with ``weight_decay`` as SGD and Adam of ``torch.optim`` have it (AdamW's
    is no part of the objective); labels are public; each weight and bias has independent noise of ``noise_std``.
    Notation: ``loss_fn`` is ``nn.MSELoss``, ``nn.BCEWithLogitsLoss`` (one output), ``nn.CrossEntropyLoss`` or
    ``nn.PoissonNLLLoss`` (logarithmic input), whose ``reduction`` sets the scale of the decay; ``decay_bias`` is False
    where the bias is in a parameter group without decay.
    Guarantee: weights that are not the minimiser are refused; with ``polish`` Newton's method ends their way in double
    precision, and the result's ``coefficients`` and ``intercept`` are then those to release.
    Edge cases: losses with class weights, label smoothing or ignored labels are refused by name.

    >>> import torch
    >>> model, x = nn.Linear(2, 1), torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    >>> records = (x, torch.tensor([0.0, 1.0, 1.0]))
    >>> information_from_linear(
    ...     model, nn.BCEWithLogitsLoss(), *records, weight_decay=0.1, noise_std=0.1, polish=True
    ... ).traces.shape
    (3,)
    """
    given: dict[str, Any] = {"inputs": inputs, "labels": labels}
    for name, values in given.items():
        if not isinstance(values, Tensor):
            raise refuse(
                name, type(values).__name__, "to be a tensor", f"Pass the {name} it was trained on by torch.as_tensor."
            )
        check_all_finite(name, values, "Remove or impute what is missing, then train again.")
    given_labels = np.asarray(labels.detach().double().cpu().numpy())
    read = read_linear(model, loss_fn, given_labels, weight_decay=weight_decay, decay_bias=decay_bias)
    setting: dict[str, Any] = {
        "features": inputs.detach().flatten(1).double().cpu().numpy(),
        "labels": read.labels,
        "family": read.family,
        "penalty": read.penalty,
        "intercept_penalty": read.intercept_penalty,
    }
    flat = len(read.weight) == 1 and read.family != "multinomial"
    fit = GlmFit(read.weight[0] if flat else read.weight, read.bias)
    if polish:
        fit = fit_glm(**setting, intercept=fit.intercept is not None, start=fit)
    return glm_information(
        fit.coefficients, intercept=fit.intercept, noise_std=noise_std, tolerance=tolerance, **setting
    )
