"""The gradient of a training loss as a forward map from candidate records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_not_empty, refuse

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class GradientMap:
    r"""Records and labels to the gradient of their loss with respect to the parameters of ``model``.

    .. math:: g(x, y) = \nabla_\theta \, \ell(f_\theta(x), y)

    Assumes: the parameters stay as they are; ``loss_fn`` maps outputs and labels to one number for the batch.
    Edge cases: frozen parameters (``requires_grad=False``) are not part of the release; batch norm and dropout must be
    in eval mode.

    >>> model = nn.Linear(2, 2)
    >>> gradient = GradientMap(model, nn.functional.cross_entropy)(torch.ones(1, 2), torch.tensor([0]))
    >>> {name: tuple(value.shape) for name, value in gradient.items()}
    {'weight': (2, 2), 'bias': (2,)}
    """

    model: nn.Module
    loss_fn: LossFunction = nn.functional.cross_entropy

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The gradient, differentiable with respect to ``inputs``."""
        check_not_empty("inputs", inputs)
        if len(inputs) != len(labels):
            raise InvalidInput(f"Expected one label per record, {len(inputs)} records came with {len(labels)} labels.")
        _check_mode(self.model)
        released, fixed = self._state(inputs.dtype)

        def loss(values: dict[str, Tensor]) -> Tensor:
            return self.loss_fn(functional_call(self.model, {**fixed, **values}, (inputs,)), labels)

        gradient: dict[str, Tensor] = torch.func.grad(loss)(released)
        return gradient

    def _state(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters whose gradient is released, and everything else, in the precision of the records."""

        def cast(value: Tensor) -> Tensor:
            return value.detach().to(dtype) if value.is_floating_point() else value.detach()

        parameters = dict(self.model.named_parameters())
        released = {name: cast(value) for name, value in parameters.items() if value.requires_grad}
        everything = {**parameters, **dict(self.model.named_buffers())}
        return released, {name: cast(value) for name, value in everything.items() if name not in released}


def _check_mode(model: nn.Module) -> None:
    """Layers that change or draw something in training mode are no function of the record."""
    for name, layer in model.named_modules():
        tracks = getattr(layer, "track_running_stats", False)
        drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
        if layer.training and (tracks or drops):
            raise refuse(
                f"{name or 'model'}.training",
                True,
                f"to be False for {type(layer).__name__}",
                "Call model.eval() first.",
            )
