"""The gradient of a training loss as a forward map from candidate records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_not_empty

LossFunction = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class GradientMap:
    r"""Records and labels to the gradient of their loss with respect to the parameters of ``model``.

    .. math:: g(x, y) = \nabla_\theta \, \ell(f_\theta(x), y)

    Assumes: the parameters stay as they are; ``loss_fn`` maps outputs and labels to one number for the batch.
    Edge cases: frozen parameters (``requires_grad=False``) are not part of the release.

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
        parameters = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        cast = {name: value.detach().to(inputs.dtype) for name, value in parameters.items()}

        def loss(values: dict[str, Tensor]) -> Tensor:
            return self.loss_fn(functional_call(self.model, values, (inputs,)), labels)

        gradient: dict[str, Tensor] = torch.func.grad(loss)(cast)
        return gradient
