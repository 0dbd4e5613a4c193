"""Noisy steps of an Opacus optimizer on chosen records, taken again and again from the same weights."""

from __future__ import annotations

import copy
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from reconrisk.core.errors import InvalidInput
from reconrisk.core.validation import check_positive, invalid_input
from reconrisk.integrations.opacus.step import check_installed, unwrap
from reconrisk.releases.model_state import LossFunction


def is_private_optimizer(subject: object) -> bool:
    """Return True for an optimizer of Opacus, without importing Opacus.

    Args:
        subject: Any object.

    Returns:
        True if a base class of its type is the ``DPOptimizer`` of Opacus.

    >>> is_private_optimizer(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    False
    """
    kinds = type(subject).__mro__
    return any(kind.__name__ == "DPOptimizer" and kind.__module__.split(".")[0] == "opacus" for kind in kinds)


class RepeatedSteps:
    """Steps of an Opacus optimizer that all begin at the same weights; at the end everything is as before.

    Use it as a context manager. The step hook of the optimizer is off inside, so that no accountant counts these steps:
    their results must not be published. Dropout is off, because its randomness is no noise of the mechanism.

    Args:
        optimizer: The ``DPOptimizer`` that ``make_private`` returned, or a subclass.
        model: The model that it trains, as ``make_private`` returned it.
        loss_fn: Training loss of a batch, a function of outputs and labels.

    Raises:
        MissingExtra: If Opacus is not installed.
        InvalidInput: If the optimizer or the model has another type, or the optimizer adds no noise.
    """

    def __init__(self, optimizer: Any, model: nn.Module, loss_fn: LossFunction) -> None:
        check_installed("verify_mechanism")
        if not is_private_optimizer(optimizer):
            remedy = "Pass the optimizer that PrivacyEngine.make_private returned."
            raise invalid_input("type(optimizer)", type(optimizer).__name__, "to be DPOptimizer", remedy)
        if not isinstance(model, nn.Module) or unwrap(model) is model:
            remedy = "Pass the model that PrivacyEngine.make_private returned."
            raise invalid_input("type(model)", type(model).__name__, "to be wrapped by Opacus", remedy)
        check_positive("optimizer.noise_multiplier", optimizer.noise_multiplier, "Train with noise.")
        self._optimizer, self._model, self._loss_fn = optimizer, model, loss_fn
        self._hook: Any = None
        self._inner_state: Any = None
        self._weights: dict[str, Tensor] = {}
        self._modes: dict[str, bool] = {}

    @property
    def divisor(self) -> float:
        """Number that turns the gradient of a step back into the noisy sum over records."""
        mean = self._optimizer.loss_reduction == "mean"
        return float(self._optimizer.expected_batch_size) if mean else 1.0

    def noisy_sum(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Take a step on a batch and return its noisy sum of gradients; the weights are restored.

        Every parameter that requires gradients counts as released, also one that the optimizer does not have.

        Args:
            inputs: Records of the batch.
            labels: Their labels.

        Returns:
            The gradient that the inner optimizer used, times :attr:`divisor`, by parameter name.

        Raises:
            InvalidInput: If a parameter that requires gradients got none.
        """
        model = unwrap(self._model)
        # gradients of parameters that the optimizer lacks would otherwise add up from step to step
        self._model.zero_grad(set_to_none=True)
        self._optimizer.zero_grad()
        loss = self._loss_fn(self._model(inputs), labels)
        loss.backward()
        self._optimizer.step()
        released = {}
        for name, value in model.named_parameters():
            if not value.requires_grad:
                continue
            if value.grad is None:
                remedy = "Call requires_grad_(False) on parameters that are not trained."
                raise InvalidInput(f"Expected a gradient of {name} after the step, but it has none. {remedy}")
            released[name] = value.grad.detach().double() * self.divisor
        self._restore_weights()
        return released

    def _restore_weights(self) -> None:
        with torch.no_grad():
            for name, value in unwrap(self._model).state_dict(keep_vars=True).items():
                value.copy_(self._weights[name])

    def __enter__(self) -> RepeatedSteps:
        self._hook = self._optimizer.step_hook
        self._optimizer.step_hook = None
        self._inner_state = copy.deepcopy(self._optimizer.original_optimizer.state_dict())
        self._weights = {name: value.detach().clone() for name, value in unwrap(self._model).state_dict().items()}
        self._modes = {name: module.training for name, module in self._model.named_modules()}
        self._model.train()  # Opacus computes gradients of records only in training mode
        for module in self._model.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.eval()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore_weights()
        self._optimizer.original_optimizer.load_state_dict(self._inner_state)
        self._optimizer.zero_grad(set_to_none=True)
        self._model.zero_grad(set_to_none=True)
        self._optimizer.step_hook = self._hook
        for name, module in self._model.named_modules():
            module.training = self._modes[name]
