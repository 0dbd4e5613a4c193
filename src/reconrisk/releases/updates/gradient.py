"""The gradient of a training loss: as a forward map of candidate records, and as a release of private ones.

:class:`UpdateRecipe` describes a client that sends such a gradient, or the weight change of local steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from reconrisk.core.progress import check_cancelled
from reconrisk.core.validation import check_callable, check_not_empty, check_positive, check_whole, invalid_input
from reconrisk.releases.model_state import LossFunction, ModelState, check_mode, model_state, record_losses
from reconrisk.releases.release import Linearized, Release, check_labels, check_records
from reconrisk.releases.updates.clipped_gradient import linearizations
from reconrisk.releases.updates.clipping import Clip, HardClip, SmoothClip
from reconrisk.releases.updates.per_example import gradient_norms

Reduction = Literal["mean", "sum"]

_FEW_TO_CHECK = 2  # records that show a broken derivative, if records do not interact
_MANY_TO_CHECK = 8  # if they do; batch norm over two records would have outputs of 1 and -1 only


@dataclass(frozen=True, eq=False)
class GradientMap:
    r"""Forward map from records and labels to the gradient of their loss with respect to the parameters.

    .. math:: g(x, y) = \nabla_\theta \, \ell(f_\theta(x), y), \quad\text{clipped:}\quad \sum_i s(|g_i|)\, g_i

    Here :math:`\ell` is the training loss, :math:`f_\theta` the network with parameters :math:`\theta`, :math:`g_i` the
    gradient of record i, and s the factor of the clipping rule.

    Attributes:
        model: The network; its parameters stay constant.
        loss_fn: Loss of the outputs and labels of a batch, one number.
        reduction: "mean" or "sum" of the losses of single records; None applies ``loss_fn`` to the whole batch.
        parameters: Names of the released parameters or layers; by default all that require gradients.
        clip: Clipping of each record's gradient before they are combined; needs ``reduction``.

    Edge cases: frozen parameters (``requires_grad=False``) are not released unless named. Batch norm in training mode
    uses the statistics of the batch, does not change the running ones, and cannot be clipped per record. Dropout must
    be in eval mode.

    >>> model = nn.Linear(2, 2)
    >>> gradient = GradientMap(model, nn.functional.cross_entropy)(torch.ones(1, 2), torch.tensor([0]))
    >>> {name: tuple(value.shape) for name, value in gradient.items()}
    {'weight': (2, 2), 'bias': (2,)}
    """

    model: nn.Module
    loss_fn: LossFunction = nn.functional.cross_entropy
    reduction: Reduction | None = None
    parameters: Sequence[str] | None = None
    clip: Clip | None = None

    def __post_init__(self) -> None:
        if self.reduction not in (None, "mean", "sum"):
            raise invalid_input("reduction", self.reduction, 'to be "mean", "sum" or None')
        if not (self.clip is None or isinstance(self.clip, (HardClip, SmoothClip))):
            raise invalid_input(
                "clip", self.clip, "to be a HardClip or SmoothClip", "Pass clip=rr.releases.HardClip(1.0)."
            )
        if not callable(self.loss_fn):
            raise invalid_input(
                "loss_fn",
                self.loss_fn,
                "to be a function of outputs and labels",
                "Pass torch.nn.functional.cross_entropy, for instance.",
            )
        if self.clip is not None and self.reduction is None:
            raise invalid_input(
                "reduction",
                None,
                "to be stated if clip is given",
                'Pass reduction="sum" to add clipped gradients, as DP-SGD.',
            )

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the gradient by parameter name, differentiable with respect to ``inputs``."""
        check_cancelled()  # attacks call this map in their inner loop
        check_not_empty("inputs", inputs)
        check_labels(inputs, labels)
        check_mode(self.model, batch_norm=self.clip is None)
        state = self.state(inputs.dtype)
        # Weighting the loss of record i by s(|g_i|) clips its gradient, without forming gradients per record.
        if self.clip is None:
            factors = inputs.new_ones(len(inputs))
        else:
            factors = self.clip.factor(gradient_norms(state, self.loss_fn, inputs, labels))
        if self.reduction == "mean":
            factors = factors / len(inputs)

        def loss(values: dict[str, Tensor]) -> Tensor:
            outputs = state.outputs(inputs, values)
            if self.reduction is None:
                return self.loss_fn(outputs, labels)
            return (factors * record_losses(self.loss_fn, outputs, labels)).sum()

        return state.gradient(loss)

    def state(self, dtype: torch.dtype) -> ModelState:
        """Return the released parameters and all other tensors, in precision ``dtype``."""
        return model_state(self.model, dtype, parameters=self.parameters)


@dataclass(frozen=True, eq=False)
class GradientRelease(Release):
    """The gradient of a network on private records, as a client sends it or a step of training uses it.

    Attributes:
        model: The network.
        loss_fn: Loss of the outputs and labels of a batch.
        inputs: Private records, ``(n, *shape)``.
        labels: Private labels, one per record.
        reduction: "mean" or "sum" of the losses of single records; None applies ``loss_fn`` to the whole batch.
        parameters: Names of the released parameters or layers; ``["head"]`` releases the last layer alone.
        clip: Clipping of each record's gradient; the sum of DP-SGD before noise is ``HardClip(1.0)`` with "sum".

    >>> release = GradientRelease(nn.Linear(2, 2), nn.functional.cross_entropy, torch.ones(1, 2), torch.tensor([0]))
    >>> sorted(release.value())
    ['bias', 'weight']
    """

    model: nn.Module
    loss_fn: LossFunction
    inputs: Tensor
    labels: Tensor
    reduction: Reduction | None = None
    parameters: Sequence[str] | None = None
    clip: Clip | None = None

    def __post_init__(self) -> None:
        check_records(self.inputs, self.labels)
        check_mode(self.model, batch_norm=self.clip is None)
        self.forward.state(self.inputs.dtype)  # refuses unknown names of parameters

    @property
    def forward(self) -> GradientMap:
        """The map from candidate records to their gradient."""
        return GradientMap(self.model, self.loss_fn, self.reduction, self.parameters, self.clip)

    def template(self) -> dict[str, Tensor]:
        """Return the released parameters, which have the shapes of their gradient."""
        return self.forward.state(self.inputs.dtype).released

    def _blocks(self, size: int | None = None) -> Iterator[Linearized]:
        """Yield the derivative in groups of records, since each record moves only its own term of the sum.

        Edge cases: all records are one group without a stated ``reduction``, or if batch norm mixes them.
        """
        if self._mixes_records():
            yield self._linearize()
            return
        scale = 1 / len(self.inputs) if self.reduction == "mean" else 1.0
        state = self.forward.state(self.inputs.dtype)
        groups = linearizations(state, self.loss_fn, self.inputs, self.labels, clip=self.clip, size=size, norms=False)
        for group in groups:
            yield group.linearize(scale)

    def _mixes_records(self) -> bool:
        """Return True if the loss may be of the whole batch, or batch norm uses the statistics of the batch."""
        norms = (layer for layer in self.model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
        return self.reduction is None or any(layer.training or not layer.track_running_stats for layer in norms)

    def _records_to_check(self) -> int:
        return _MANY_TO_CHECK if self._mixes_records() else _FEW_TO_CHECK


@dataclass(frozen=True)
class UpdateRecipe:
    """The way a client trains before it sends an update.

    Attributes:
        batch_size: Records that share one update.
        loss_fn: Training loss of outputs and labels. By default cross-entropy for classes, the squared error for real
            labels.
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
        if self.loss_fn is not None:
            check_callable("loss_fn", self.loss_fn, "Pass torch.nn.functional.cross_entropy, for instance.")
        given = (self.local_steps, self.local_learning_rate)
        if (self.local_steps is None) != (self.local_learning_rate is None):
            remedy = "Pass both for local training, or neither for a gradient."
            raise invalid_input("(local_steps, local_learning_rate)", given, "to be two numbers or none", remedy)
        if self.local_steps is not None:
            check_whole("local_steps", self.local_steps)
            check_positive("local_learning_rate", self.local_learning_rate)

    def release(self, model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> Release:
        """Return the update of some records as a release: a gradient, or the weight change of local steps.

        Args:
            model: The network that the client trains.
            loss_fn: Loss of outputs and labels; :attr:`loss_fn` may be None and is not used here.
            inputs: Records of the client, ``(n, *shape)``.
            labels: One label per record.

        Returns:
            A gradient release without local steps, otherwise the release of the weight change.
        """
        if self.local_steps is None:
            return GradientRelease(model, loss_fn, inputs, labels)
        from reconrisk.releases.updates.local_update import LocalUpdateRelease  # imports this module

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
