"""Whose updates are attacked: the model a client is sent, and how it trains on its records."""

from __future__ import annotations

import copy
from dataclasses import dataclass

from torch import Tensor, nn

from reconrisk.attacks.server import sent_alone, sent_with
from reconrisk.audit.training_loss import first_outputs, training_loss
from reconrisk.core.observation import Attack
from reconrisk.core.validation import check_positive, check_whole, refuse
from reconrisk.data.dataset import Dataset
from reconrisk.releases.gradient import GradientRelease
from reconrisk.releases.local_update import LocalUpdateRelease
from reconrisk.releases.release import Release
from reconrisk.releases.state import LossFunction


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
