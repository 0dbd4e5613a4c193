"""Updates that clients make of a model: gradients, or changes by local steps."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.attacks.malicious_server.planting import model_for_clients
from reconrisk.core.observation import Attack
from reconrisk.core.threat import Sees
from reconrisk.data.dataset import Dataset
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import Release
from reconrisk.releases.updates.recipe import ONE_GRADIENT, UpdateRecipe
from reconrisk.studies.common.identity import hash_of_model
from reconrisk.studies.common.subjects.subject import Subject, records_of
from reconrisk.studies.common.subjects.training_loss import first_outputs, training_loss


@dataclass(frozen=True, eq=False)
class Client:
    """A client that trains ``model`` with ``loss_fn`` and sends what ``recipe`` says."""

    model: nn.Module
    loss_fn: LossFunction
    recipe: UpdateRecipe

    def release(self, inputs: Tensor, labels: Tensor) -> Release:
        """Return the update of these records."""
        return self.recipe.release(self.model, self.loss_fn, inputs, labels)

    def __str__(self) -> str:
        """Describe what is sent."""
        return self.recipe.describe(self.model, self.loss_fn)


def client_for(
    attack: Attack, model: nn.Module | None, dataset: Dataset, recipe: UpdateRecipe = ONE_GRADIENT
) -> Client:
    """Return a client that trains on records of ``dataset``, with the layer that the attack plants, if any.

    Args:
        attack: A configured attack.
        model: The network; None only for attacks that plant a whole model of their own.
        dataset: Records that the model must be able to take.
        recipe: How the client trains.

    Raises:
        InvalidInput: If the model cannot take the records, or a label has no output.
    """
    loss_fn = recipe.loss_fn or nn.functional.cross_entropy
    if model is not None:
        quiet = copy.deepcopy(model).eval()  # the loss does not depend on the mode; one record can be tried in this one
        if recipe.loss_fn is None:
            loss_fn = training_loss(quiet, dataset)
        else:
            first_outputs(quiet, dataset)
    sent = model_for_clients(attack, model, loss_fn, dataset.shape)
    return Client(sent.model, sent.loss_fn, recipe)


@dataclass(frozen=True, eq=False)
class ModelUpdates(Subject):
    """A model that clients train on their records."""

    model: nn.Module
    dataset: Dataset
    recipe: UpdateRecipe = ONE_GRADIENT

    sees = (Sees.ONE_UPDATE,)

    @classmethod
    def supports(cls, subject: object) -> bool:
        """Return True for a torch module."""
        return isinstance(subject, nn.Module)

    @classmethod
    def of(cls, subject: Any, data: Any, recipe: UpdateRecipe) -> ModelUpdates:
        """Build it from a module and records."""
        return cls(subject, records_of(data), recipe)

    @property
    def name(self) -> str:
        """The class of the model."""
        return type(self.model).__name__

    @cached_property
    def fingerprint(self) -> str:
        """Digest of layers, mode and weights."""
        return hash_of_model(self.model)

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

    @cached_property
    def _clients(self) -> dict[int, tuple[Attack, Client]]:
        """Clients with their attacks, which are kept so that no other object gets their id."""
        return {}
