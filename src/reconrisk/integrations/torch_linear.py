"""Linear models of torch: what their noisy weights tell about each training record."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from reconrisk.bounds.glm import Family, GlmFit, fit_glm
from reconrisk.bounds.glm_information import GlmInformation, glm_information
from reconrisk.core.validation import check_all_finite, check_nonnegative, refuse

_FAMILIES: dict[type[nn.Module], Family] = {
    nn.MSELoss: "squared",
    nn.BCEWithLogitsLoss: "logistic",
    nn.CrossEntropyLoss: "multinomial",
    nn.PoissonNLLLoss: "poisson",
}


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
    layer = _layer(model)
    family = _family(loss_fn, layer)
    scale = _scale(loss_fn, family, len(labels), layer.out_features)
    decay = scale * check_nonnegative("weight_decay", weight_decay)
    setting: dict[str, Any] = {
        "features": inputs.detach().flatten(1).double().cpu().numpy(),
        "labels": _labels(labels, family),
        "family": family,
        "penalty": decay,
        "intercept_penalty": decay if decay_bias else 0.0,
    }
    weight = _numpy(layer.weight)
    flat = layer.out_features == 1 and family != "multinomial"
    fit = GlmFit(weight[0] if flat else weight, None if layer.bias is None else _numpy(layer.bias))
    if polish:
        fit = fit_glm(**setting, intercept=fit.intercept is not None, start=fit)
    return glm_information(
        fit.coefficients, intercept=fit.intercept, noise_std=noise_std, tolerance=tolerance, **setting
    )


def _layer(model: nn.Module) -> nn.Linear:
    """The one linear layer of a model that does nothing else to a record than to flatten it."""
    layers = list(model) if isinstance(model, nn.Sequential) else [model]
    rest = [layer for layer in layers if not isinstance(layer, (nn.Flatten, nn.Identity))]
    if len(rest) != 1 or not isinstance(rest[0], nn.Linear):
        kinds = [type(layer).__name__ for layer in layers]
        raise refuse("model", kinds, "to be one nn.Linear", "For other models use rr.fisher_trace of a release.")
    return rest[0]


def _family(loss_fn: nn.Module, layer: nn.Linear) -> Family:
    family = _FAMILIES.get(type(loss_fn))
    if family is None:
        names = ", ".join(kind.__name__ for kind in _FAMILIES)
        raise refuse("loss_fn", type(loss_fn).__name__, f"to be an instance of one of {names}")
    for name, plain in (("weight", None), ("pos_weight", None), ("label_smoothing", 0.0), ("ignore_index", -100)):
        if getattr(loss_fn, name, plain) != plain:
            raise refuse(f"loss_fn.{name}", getattr(loss_fn, name), f"to be {plain}", "Weights are not supported here.")
    if isinstance(loss_fn, nn.PoissonNLLLoss) and not loss_fn.log_input:
        raise refuse("loss_fn.log_input", False, "to be True", "The mean must be the exponential of the output.")
    if family in ("logistic", "poisson") and layer.out_features != 1:
        raise refuse(
            "model.out_features", layer.out_features, "to be 1", "Use nn.CrossEntropyLoss for several classes."
        )
    return family


def _scale(loss_fn: nn.Module, family: Family, records: int, outputs: int) -> float:
    """By what the objective in torch must be multiplied to be the sum of losses of the family."""
    if loss_fn.reduction not in ("mean", "sum"):
        raise refuse("loss_fn.reduction", loss_fn.reduction, "to be 'mean' or 'sum'")
    values = records * outputs if family == "squared" else records  # nn.MSELoss averages over outputs too
    count = values if loss_fn.reduction == "mean" else 1
    return count / 2 if family == "squared" else float(count)  # and it does not halve the square


def _labels(labels: Tensor, family: Family) -> NDArray[np.float64]:
    numbers = _numpy(labels)
    return numbers[:, 0] if family != "squared" and numbers.ndim == 2 and numbers.shape[1] == 1 else numbers


def _numpy(tensor: Tensor) -> NDArray[np.float64]:
    return np.asarray(tensor.detach().double().cpu().numpy())
