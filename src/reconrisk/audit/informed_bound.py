"""How near unbiased estimates of a record can come under known noise, at the record itself, which an audit knows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from reconrisk.releases.estimators import LinearModel
from reconrisk.releases.fisher import fisher_matrix
from reconrisk.releases.glm import GlmRelease

LARGEST = 4096
"""Values of a record up to which a bound is computed: it takes as many derivatives, and a matrix of them."""


def least_unbiased_mse(information: Tensor) -> float:
    r"""The Cramer-Rao bound on the mean squared error of unbiased estimates.

    .. math:: \mathrm{tr}(I^{-1}) / d

    Edge cases: inf where the information is singular up to rounding: no unbiased estimate exists.

    >>> least_unbiased_mse(torch.diag(torch.tensor([1.0, 4.0])))
    0.625
    """
    values = torch.linalg.eigvalsh(information.double())
    if not float(values[0]) > len(values) * torch.finfo(torch.float64).eps * float(values[-1]):
        return math.inf
    return float(values.reciprocal().mean())


def linear_bound(
    model: LinearModel, known: Tensor, target: Tensor, *, noise_std: float, sought: Tensor | None = None
) -> float | None:
    """The bound for a linear model fitted to known records and, last, ``target``, with noise on each coefficient.

    ``model`` holds the labels of all of them; ``sought`` marks coordinates that are not known, by default all.

    Edge cases: None for records of more than 4096 values and for weighted records.
    """
    weights = torch.as_tensor(model.sample_weights.copy())
    if target.numel() > LARGEST or bool((weights != 1).any()):
        return None
    labels = torch.as_tensor(model.labels)
    labels = labels.long() if model.family == "multinomial" else labels
    release = GlmRelease(
        target.double().flatten()[None],
        labels[-1:],
        known_inputs=known.double().flatten(1),
        known_labels=labels[:-1],
        family=model.family,
        penalty=model.penalty,
        intercept=model.bias is not None,
        intercept_penalty=model.intercept_penalty,
        classes=len(model.weight) if model.family == "multinomial" else None,
    )
    information = fisher_matrix(release, noise_std=noise_std)
    return least_unbiased_mse(information if sought is None else information[sought][:, sought])
