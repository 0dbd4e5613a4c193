"""Whose updates are attacked: the model a client is sent, and how it trains on its records.

The loss a model is trained with, told by its outputs and the labels, after a check that they fit each other.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.attacks.malicious_server.server import sent_alone, sent_with
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Attack
from reconrisk.core.validation import check_positive, check_whole, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction, check_mode, model_state
from reconrisk.releases.release import Release
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.releases.updates.local_update import LocalUpdateRelease


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


@dataclass(frozen=True, eq=False)
class Client:
    """A client that sends the gradient at ``model``, or the change that some ``steps`` of SGD make of it."""

    model: nn.Module
    loss_fn: LossFunction
    steps: int | None = None
    learning_rate: float | None = None

    def __post_init__(self) -> None:
        given = (self.steps, self.learning_rate)
        if (self.steps is None) != (self.learning_rate is None):
            remedy = "Local training needs both, a gradient neither."
            raise refuse("(local_steps, local_learning_rate)", given, "to be two numbers or none", remedy)
        if self.steps is not None:
            check_whole("local_steps", self.steps)
            check_positive("local_learning_rate", self.learning_rate)

    def release(self, inputs: Tensor, labels: Tensor) -> Release:
        """The update of these records."""
        if self.steps is None:
            return GradientRelease(self.model, self.loss_fn, inputs, labels)
        return LocalUpdateRelease(
            self.model, self.loss_fn, inputs, labels, steps=self.steps, learning_rate=self.learning_rate
        )

    def __str__(self) -> str:
        """What is sent, in words."""
        loss = getattr(self.loss_fn, "__name__", type(self.loss_fn).__name__)
        mode = "training" if self.model.training else "evaluation"
        if self.steps is None:
            return f"gradient of {loss} in {mode} mode"
        return f"change by {self.steps} steps of SGD, learning rate {self.learning_rate:g}, on {loss} in {mode} mode"


def client_for(
    attack: Attack,
    model: nn.Module | None,
    dataset: Dataset,
    *,
    loss_fn: LossFunction | None = None,
    steps: int | None = None,
    learning_rate: float | None = None,
) -> Client:
    """A client that trains ``model`` on records of ``dataset``, with the layer in it that the attack plants, if any.

    Edge cases: without a model only a planted layer is trained, if the attack has one that can stand alone. Records
    that the model cannot take and labels without an output are refused.
    """
    if model is None:
        alone = sent_alone(attack, dataset.shape)
        return Client(alone.model, alone.loss_fn, steps, learning_rate)
    quiet = copy.deepcopy(model).eval()  # the loss does not depend on the mode, and a single record can be tried in it
    if loss_fn is None:
        loss_fn = training_loss(quiet, dataset)
    else:
        first_outputs(quiet, dataset)
    sent = sent_with(attack, model, loss_fn, dataset.shape)
    return Client(sent.model, sent.loss_fn, steps, learning_rate)
