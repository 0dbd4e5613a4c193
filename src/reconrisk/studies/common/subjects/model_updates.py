"""Updates of clients who train a model: gradients, or weight changes of local steps."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.attacks.malicious_server.planting import PlantsLayer
from reconrisk.core.digest import network_digest
from reconrisk.core.errors import InvalidInput
from reconrisk.core.observation import Attack
from reconrisk.core.threat import Sees
from reconrisk.core.validation import invalid_input
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction, check_mode, model_state
from reconrisk.releases.release import Release
from reconrisk.studies.common.subjects.subject import ONE_GRADIENT, Subject, UpdateRecipe, as_dataset


@dataclass(frozen=True, eq=False)
class Client:
    """A client of federated training.

    Attributes:
        model: Network that the client trains.
        loss_fn: Loss of outputs and labels.
        recipe: Training before an update.
    """

    model: nn.Module
    loss_fn: LossFunction
    recipe: UpdateRecipe

    def release(self, inputs: Tensor, labels: Tensor) -> Release:
        """Return the update of these records."""
        return self.recipe.release(self.model, self.loss_fn, inputs, labels)

    def __str__(self) -> str:
        """Describe the update."""
        return self.recipe.describe(self.model, self.loss_fn)


def client_for(
    attack: Attack, model: nn.Module | None, dataset: Dataset, recipe: UpdateRecipe = ONE_GRADIENT
) -> Client:
    """Return a client for an attack, with the layer that the attack plants, if any.

    Args:
        attack: A configured attack.
        model: The network; None only for attacks that plant a whole model of their own.
        dataset: Records that the model must be able to take.
        recipe: Training of the client.

    Returns:
        The client.

    Raises:
        InvalidInput: If the model cannot take the records, or a label has no output.
    """
    loss_fn = recipe.loss_fn or nn.functional.cross_entropy
    if model is not None:
        # In evaluation mode a batch of one record works; the choice of the loss does not depend on the mode.
        quiet = copy.deepcopy(model).eval()
        if recipe.loss_fn is None:
            loss_fn = training_loss(quiet, dataset)
        else:
            first_outputs(quiet, dataset)
    if isinstance(attack, PlantsLayer):
        sent = attack.sent_model(model, loss_fn, dataset.shape)
        return Client(sent.model, sent.loss_fn, recipe)
    if model is None:
        raise invalid_input(
            "model",
            None,
            "to be a network",
            "Pass a network: only the attack optimal_analytic() plants a model of its own.",
        )
    return Client(model, loss_fn, recipe)


@dataclass(frozen=True, eq=False)
class ModelUpdates(Subject):
    """A model that clients train on their records.

    Attributes:
        model: The network.
        dataset: Records that targets are drawn from.
        recipe: Training of a client.
    """

    model: nn.Module
    dataset: Dataset
    recipe: UpdateRecipe = ONE_GRADIENT
    # Clients by the id of their attack. The attack is kept alive: Python reuses the id of a deleted object.
    _clients: dict[int, tuple[Attack, Client]] = field(default_factory=dict, init=False, repr=False)

    sees = (Sees.ONE_UPDATE,)

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for a torch module."""
        return isinstance(subject, nn.Module)

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> ModelUpdates:
        """Build the subject from a module and records."""
        return cls(subject, as_dataset(data), recipe)

    @property
    def name(self) -> str:
        """Class of the model."""
        return type(self.model).__name__

    @cached_property
    def fingerprint(self) -> str:
        """Digest of layers, mode and weights."""
        return network_digest(self.model)

    def describe(self, attack: Attack) -> str:
        """Describe the update."""
        return str(self.client(attack))

    def release(self, rows: tuple[int, ...], attack: Attack, rng: torch.Generator | None = None) -> Release:
        """Return the update of these rows."""
        del rng
        return self.client(attack).release(*self.batch(rows))

    def client(self, attack: Attack) -> Client:
        """Return the client that trains the model; the same one for the same attack."""
        if id(attack) not in self._clients:
            self._clients[id(attack)] = (attack, client_for(attack, self.model, self.dataset, self.recipe))
        return self._clients[id(attack)][1]


def training_loss(model: nn.Module, dataset: Dataset) -> LossFunction:
    """Return the usual loss for the outputs of a model and the labels of its records.

    Args:
        model: Network in evaluation mode.
        dataset: Records with labels.

    Returns:
        Cross-entropy for classes, its form for one logit if the model has one output, or the squared error for real
        labels.

    Raises:
        InvalidInput: If the model cannot take the records, a label has no output, or the data have no labels.

    >>> training_loss(nn.Linear(2, 3), Dataset("toy", torch.zeros(4, 2), torch.tensor([0, 1, 2, 0]))).__name__
    'cross_entropy'
    >>> training_loss(nn.Linear(2, 1), Dataset("toy", torch.zeros(2, 2), torch.tensor([0, 1]))).__name__
    'binary_cross_entropy'
    >>> training_loss(nn.Linear(2, 1), Dataset("toy", torch.zeros(2, 2), torch.tensor([0.5, 2.0]))).__name__
    'squared_error'
    """
    outputs, labels = first_outputs(model, dataset), require_labels(dataset)
    if labels.is_floating_point():
        if outputs.numel() != labels[0].numel():
            remedy = f"Build the model with outputs of this shape: the labels of {dataset.name} are real numbers."
            raise invalid_input(
                "outputs.shape",
                tuple(outputs.shape[1:]),
                f"to be {tuple(labels.shape[1:])}, the shape of a label",
                remedy,
            )
        return squared_error
    if outputs.ndim != 2:
        raise invalid_input(
            "outputs.shape",
            tuple(outputs.shape[1:]),
            "to be (classes,), one number per class",
            "Pass update=rr.UpdateRecipe(loss_fn=...) for other outputs.",
        )
    classes = max(outputs.shape[1], 2)  # one logit stands for two classes
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        remedy = "Build the model with one output per class of the data."
        raise invalid_input(
            "(min(labels), max(labels))",
            (int(labels.min()), int(labels.max())),
            f"to be from 0 to {classes - 1}, the outputs of the model",
            remedy,
        )
    return nn.functional.cross_entropy if outputs.shape[1] > 1 else binary_cross_entropy


def first_outputs(model: nn.Module, dataset: Dataset) -> Tensor:
    """Return the outputs of a model for the first record.

    Args:
        model: Network in evaluation mode.
        dataset: Records.

    Returns:
        One row of outputs.

    Raises:
        InvalidInput: If the model raises, or returns anything but one row; the message holds its error.
    """
    check_mode(model)
    state = model_state(model, dataset.inputs.dtype)
    try:
        with torch.no_grad():
            outputs = state.outputs(dataset.inputs[:1])
    except Exception as error:  # a module of the user may raise anything
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        problem = f"Expected a model that takes records of shape {dataset.shape}, those of {dataset.name}."
        raise InvalidInput(f"{problem} It raised {type(error).__name__}: {first_line}") from error
    if not isinstance(outputs, Tensor) or len(outputs) != 1:
        found = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise invalid_input(
            "model(record)", found, "to be one row of outputs", "Return one tensor of shape (records, outputs)."
        )
    return outputs


def require_labels(dataset: Dataset) -> Tensor:
    """Return the labels of a data set, or refuse a data set without labels.

    Args:
        dataset: Records.

    Returns:
        The labels.

    Raises:
        InvalidInput: If there are none.
    """
    if dataset.labels is None:
        raise invalid_input(
            "dataset",
            dataset.name,
            "to have labels",
            "Pass records with labels: the gradient of a training loss needs them.",
        )
    return dataset.labels


def binary_cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of one logit per record.

    Args:
        outputs: Logits, one column.
        labels: Labels 0 and 1.

    Returns:
        The mean over the records.
    """
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], labels.to(outputs.dtype))


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared difference of outputs and labels.

    Args:
        outputs: Outputs of the model.
        labels: Real labels, as many as outputs.

    Returns:
        The mean over all outputs.
    """
    return nn.functional.mse_loss(outputs.flatten(), labels.flatten())
