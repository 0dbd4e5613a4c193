"""The loss a model is trained with, chosen by its outputs and the labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import refuse
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction, check_mode, model_state


def training_loss(model: nn.Module, dataset: Dataset) -> LossFunction:
    """Cross-entropy for classes, of one logit where the model has one output, and the squared error for real labels.

    Edge cases: records that the model cannot take, labels without an output and data without labels are refused.

    >>> training_loss(nn.Linear(2, 3), Dataset("toy", torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))).__name__
    'cross_entropy'
    >>> training_loss(nn.Linear(2, 1), Dataset("toy", torch.zeros(2, 2), torch.tensor([0, 1]))).__name__
    'binary_cross_entropy'
    >>> training_loss(nn.Linear(2, 1), Dataset("toy", torch.zeros(2, 2), torch.tensor([0.5, 2.0]))).__name__
    'squared_error'
    """
    outputs, labels = first_outputs(model, dataset), given_labels(dataset)
    if labels.is_floating_point():
        if outputs.numel() != labels[0].numel():
            remedy = f"The labels of {dataset.name} are real numbers, {labels[0].numel()} a record."
            raise refuse("outputs.shape", tuple(outputs.shape[1:]), "to be that of a label", remedy)
        return squared_error
    if outputs.ndim != 2:
        raise refuse("outputs.shape", tuple(outputs.shape[1:]), "to be one number per class", "Pass loss_fn=.")
    classes = max(outputs.shape[1], 2)
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        remedy = "Build the model with the classes of the data."
        raise refuse("labels", int(labels.max()), f"from 0 to {classes - 1}, the outputs of the model", remedy)
    return nn.functional.cross_entropy if outputs.shape[1] > 1 else binary_cross_entropy


def first_outputs(model: nn.Module, dataset: Dataset) -> Tensor:
    """What the model makes of the first record; refused with what it says where it cannot take it."""
    check_mode(model)
    state = model_state(model, dataset.inputs.dtype)
    try:
        with torch.no_grad():
            outputs = state.outputs(dataset.inputs[:1])
    except Exception as error:  # a module of the user may raise anything
        said = (str(error).splitlines() or [type(error).__name__])[0]
        problem = f"Expected a model that takes records of shape {dataset.shape}, those of {dataset.name}."
        raise InvalidInput(f"{problem} It raised {type(error).__name__}: {said}") from error
    if not isinstance(outputs, Tensor) or len(outputs) != 1:
        came = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise refuse("model(record)", came, "to be one row of outputs", "Return a tensor, records first.")
    return outputs


def given_labels(dataset: Dataset) -> Tensor:
    """The labels, which a gradient needs."""
    if dataset.labels is None:
        raise refuse("dataset", dataset.name, "to have labels", "The gradient of a loss needs them.")
    return dataset.labels


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of one logit per record with labels 0 and 1."""
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs.dtype))


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The mean squared difference of outputs and labels."""
    return nn.functional.mse_loss(outputs.flatten(), labels.flatten())
