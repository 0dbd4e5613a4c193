"""The way a simulated client computes the update that it sends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from reconrisk.core.validation import check_positive, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.release import Release
from reconrisk.releases.updates.gradient import GradientRelease
from reconrisk.releases.updates.local_update import LocalUpdateRelease


@dataclass(frozen=True)
class UpdateRecipe:
    """The way a client trains before it sends an update.

    Attributes:
        batch_size: Records that share one update.
        loss_fn: Loss of outputs and labels; by default the one that fits the outputs and labels.
        local_steps: Local SGD steps, after which the weight change is sent; by default one gradient is sent.
        local_learning_rate: Learning rate of the local steps; stated with ``local_steps`` and only then.

    Raises:
        InvalidInput: If one of the local settings is stated without the other, or a number is out of range.

    >>> UpdateRecipe(batch_size=4)
    UpdateRecipe(batch_size=4, loss_fn=None, local_steps=None, local_learning_rate=None)
    """

    batch_size: int = 1
    loss_fn: LossFunction | None = None
    local_steps: int | None = None
    local_learning_rate: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", check_whole("batch_size", self.batch_size))
        given = (self.local_steps, self.local_learning_rate)
        if (self.local_steps is None) != (self.local_learning_rate is None):
            remedy = "Local training needs both, a gradient neither."
            raise invalid_input("(local_steps, local_learning_rate)", given, "to be two numbers or none", remedy)
        if self.local_steps is not None:
            check_whole("local_steps", self.local_steps)
            check_positive("local_learning_rate", self.local_learning_rate)

    def release(self, model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> Release:
        """Return the update of some records as a release: a gradient, or the weight change of local steps.

        Args:
            model: The network that the client trains.
            loss_fn: Loss of outputs and labels; :attr:`loss_fn` may be None and is not used here.
            inputs: Records of the client, (n, *shape).
            labels: One label per record.

        Returns:
            A gradient release without local steps, otherwise the release of the weight change.
        """
        if self.local_steps is None:
            return GradientRelease(model, loss_fn, inputs, labels)
        return LocalUpdateRelease(
            model, loss_fn, inputs, labels, steps=self.local_steps, learning_rate=self.local_learning_rate
        )

    def describe(self, model: nn.Module, loss_fn: LossFunction) -> str:
        """Return one phrase about the update, for reports.

        Args:
            model: The network that the client trains; its mode is part of the phrase.
            loss_fn: Loss that the client uses; named by its function or class.

        Returns:
            A phrase with the kind of update, the loss and the mode of the model.
        """
        loss = getattr(loss_fn, "__name__", type(loss_fn).__name__)
        mode = "training" if model.training else "evaluation"
        if self.local_steps is None:
            return f"gradient of {loss} in {mode} mode"
        rate = f"learning rate {self.local_learning_rate:g}"
        return f"change by {self.local_steps} steps of SGD, {rate}, on {loss} in {mode} mode"


ONE_GRADIENT = UpdateRecipe()
"""The default: the gradient of one record."""


def check_recipe(update: object) -> None:
    """Refuse anything but an :class:`UpdateRecipe`.

    Args:
        update: The value that the user passed as ``update``.

    Raises:
        InvalidInput: If it is not an :class:`UpdateRecipe`.
    """
    if not isinstance(update, UpdateRecipe):
        remedy = "Pass rr.UpdateRecipe(batch_size=8), for instance."
        raise invalid_input("update", update, "to be an UpdateRecipe", remedy)
