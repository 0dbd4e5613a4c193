"""What a server that chooses the model sends its clients to train: the layer that an attack plants, if it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from reconrisk.attacks.malicious_server.imprint import Imprint
from reconrisk.attacks.malicious_server.optimal_analytic import OptimalAnalytic
from reconrisk.attacks.malicious_server.trap_weights import TrapWeights
from reconrisk.core.observation import Attack
from reconrisk.core.validation import refuse
from reconrisk.releases.model_state import LossFunction


@dataclass(frozen=True, eq=False)
class Sent:
    """The model that clients train, and the loss they train it with."""

    model: nn.Module
    loss_fn: LossFunction


def sent_alone(attack: Attack, shape: Sequence[int]) -> Sent:
    """What a server without a model of its own sends; only attacks that plant a whole model can do without one.

    >>> from reconrisk.attacks.malicious_server.optimal_analytic import optimal_analytic
    >>> type(sent_alone(optimal_analytic(), (4,)).model).__name__
    'PlantedLayer'
    """
    if not isinstance(attack, OptimalAnalytic):
        raise refuse("model", None, "to be a network", "Only optimal_analytic() plants a whole model of its own.")
    alone = attack.plant(shape)
    return Sent(alone.module, alone.loss_fn)


def sent_with(attack: Attack, model: nn.Module, loss_fn: LossFunction, shape: Sequence[int]) -> Sent:
    """The model with the layer that the attack plants before or beside it; unchanged for attacks that plant none.

    >>> from reconrisk.attacks.analytic.attack import analytic
    >>> layer = nn.Linear(4, 2)
    >>> sent_with(analytic(), layer, nn.functional.cross_entropy, (4,)).model is layer
    True
    """
    if isinstance(attack, OptimalAnalytic):
        beside = attack.plant(shape, model=model, loss_fn=loss_fn)
        return Sent(beside.module, beside.loss_fn)
    if isinstance(attack, (Imprint, TrapWeights)):
        return Sent(attack.plant(model, shape), loss_fn)
    return Sent(model, loss_fn)
