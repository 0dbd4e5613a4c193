"""The gradient of a training loss: as a forward map from candidate records, and released at private ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from reconrisk.core.progress import check_cancelled
from reconrisk.core.validation import check_not_empty, invalid_input
from reconrisk.releases.model_state import LossFunction, ModelState, check_mode, model_state, record_losses
from reconrisk.releases.release import Linearized, Release, check_labels, check_records
from reconrisk.releases.updates.clipped_gradient import linearizations
from reconrisk.releases.updates.clipping import Clip, HardClip, SmoothClip
from reconrisk.releases.updates.per_example import gradient_norms

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class GradientMap:
    r"""Records and labels to the gradient of their loss with respect to the parameters of ``model``.

    .. math:: g(x, y) = \nabla_\theta \, \ell(f_\theta(x), y), \quad\text{clipped:}\quad \sum_i s(|g_i|)\, g_i

    Assumes: the parameters stay as they are; ``loss_fn`` maps outputs and labels to one number for the batch.
    Notation: without ``reduction`` the loss of the batch is what ``loss_fn`` makes of it; with "mean" or "sum" it is
    that of the records' own losses. ``parameters`` names the released ones or their layers. With ``clip`` each record's
    gradient is clipped before they are added ("sum") or averaged ("mean").
    Edge cases: frozen parameters (``requires_grad=False``) are not part of the release unless named; batch norm in
    training mode uses the statistics of the batch and leaves the running ones alone, but cannot be clipped per record;
    dropout must be in eval mode.

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
                "clip", self.clip, "to be a HardClip or SmoothClip", "Write clip=rr.releases.HardClip(1.0)."
            )
        if not callable(self.loss_fn):
            raise invalid_input("loss_fn", self.loss_fn, "to be a function of outputs and labels")
        if self.clip is not None and self.reduction is None:
            raise invalid_input(
                "reduction", None, "to be stated with clip", 'Clipped gradients are added: reduction="sum".'
            )

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The gradient, differentiable with respect to ``inputs``."""
        check_cancelled()
        check_not_empty("inputs", inputs)
        check_labels(inputs, labels)
        check_mode(self.model, batch_norm=self.clip is None)
        state = self.state(inputs.dtype)
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

        gradient: dict[str, Tensor] = torch.func.grad(loss)(state.released)
        return gradient

    def state(self, dtype: torch.dtype) -> ModelState:
        """The released parameters and everything else, in the precision of the records."""
        return model_state(self.model, dtype, parameters=self.parameters)


@dataclass(frozen=True, eq=False)
class GradientRelease(Release):
    """The gradient of ``model`` on private records: what a client sends, or a step of training uses.

    ``reduction``, ``parameters`` and ``clip`` are those of :class:`GradientMap`: "what does the last layer alone leak?"
    is ``parameters=["head"]``, the sum of DP-SGD before noise ``clip=HardClip(1.0), reduction="sum"``.

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
        self.forward.state(self.inputs.dtype)

    @property
    def forward(self) -> GradientMap:
        """The map from candidate records to their gradient."""
        return GradientMap(self.model, self.loss_fn, self.reduction, self.parameters, self.clip)

    def template(self) -> dict[str, Tensor]:
        """The released parameters: their gradient has the same shapes."""
        return self.forward.state(self.inputs.dtype).released

    def blocks(self, size: int | None = None) -> Iterator[Linearized]:
        """The derivative for groups of records, since each moves only its own term of the sum.

        Edge cases: without a stated ``reduction``, or where batch norm mixes the records, all are one group.
        """
        norms = (layer for layer in self.model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm))
        mixed = any(layer.training or not layer.track_running_stats for layer in norms)
        if self.reduction is None or mixed:
            yield self.linearized()
            return
        scale = 1 / len(self.inputs) if self.reduction == "mean" else 1.0
        state = self.forward.state(self.inputs.dtype)
        groups = linearizations(state, self.loss_fn, self.inputs, self.labels, clip=self.clip, size=size, norms=False)
        for group in groups:
            yield group.linearized(scale)
