"""Update rules of training as pure functions of parameters, gradients and state, differentiable in all three.

They compute what ``torch.optim`` computes, but change nothing in place, so that the trained parameters can be
differentiated by the records behind the gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from torch import Tensor

from reconrisk.core.validation import check_nonnegative, check_positive, check_real, invalid_input

NamedTensors: TypeAlias = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class OptimizerState:
    """What an update rule remembers: the number of steps taken, and averages by their name and the parameter's."""

    steps: int = 0
    averages: Mapping[str, NamedTensors] = field(default_factory=dict)


class UpdateRule(ABC):
    """One step of training as a function: nothing is changed in place."""

    @abstractmethod
    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """The parameters and the state after one step; training begins with ``OptimizerState()``."""


@dataclass(frozen=True)
class StochasticGradientDescent(UpdateRule):
    """Gradient descent with momentum; made by :func:`sgd`."""

    learning_rate: float
    momentum: float
    weight_decay: float
    nesterov: bool
    dampening: float

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_nonnegative("momentum", self.momentum)
        check_nonnegative("weight_decay", self.weight_decay)
        check_real("dampening", self.dampening)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            given = (self.momentum, self.dampening)
            raise invalid_input(
                "(momentum, dampening)", given, "to be (> 0, 0) for Nesterov's momentum", "As torch.optim.SGD."
            )

    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """One step down the averaged gradient."""
        gradients = _decayed(parameters, gradients, self.weight_decay)
        if self.momentum == 0:
            return self._moved(parameters, gradients), OptimizerState(state.steps + 1)
        average = dict(gradients)  # the first gradient enters undampened, as in torch.optim
        if state.steps:
            before = state.averages["momentum"]
            average = {k: self.momentum * before[k] + (1 - self.dampening) * g for k, g in gradients.items()}
        direction: NamedTensors = average
        if self.nesterov:
            direction = {name: g + self.momentum * average[name] for name, g in gradients.items()}
        return self._moved(parameters, direction), OptimizerState(state.steps + 1, {"momentum": average})

    def _moved(self, parameters: NamedTensors, direction: NamedTensors) -> dict[str, Tensor]:
        return {name: value - self.learning_rate * direction[name] for name, value in parameters.items()}


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam; made by :func:`adam`."""

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("eps", self.eps, "Without it a parameter with zero gradient has no derivative.")
        check_nonnegative("weight_decay", self.weight_decay)
        if len(self.betas) != 2 or not all(0 <= check_real("betas", beta) < 1 for beta in self.betas):
            raise invalid_input("betas", self.betas, "to be two numbers in [0, 1)")

    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """One step along the average gradient divided by the root of the average square."""
        gradients, steps = _decayed(parameters, gradients, self.weight_decay), state.steps + 1
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        first = _averaged(self.betas[0], state.averages.get("first", zeros), gradients)
        squares = {name: gradient * gradient for name, gradient in gradients.items()}
        second = _averaged(self.betas[1], state.averages.get("second", zeros), squares)
        rate = self.learning_rate / (1 - self.betas[0] ** steps)
        scale = (1 - self.betas[1] ** steps) ** 0.5
        moved = {
            name: value - rate * first[name] / (_root(second[name]) / scale + self.eps)
            for name, value in parameters.items()
        }
        return moved, OptimizerState(steps, {"first": first, "second": second})


def sgd(
    learning_rate: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
) -> UpdateRule:
    r"""Stochastic gradient descent, as ``torch.optim.SGD``.

    .. math:: b_t = \mu b_{t-1} + (1 - \tau) (g_t + \lambda \theta_{t-1}), \quad \theta_t = \theta_{t-1} - \eta b_t

    Notation: ``learning_rate`` is :math:`\eta`, ``momentum`` :math:`\mu`, ``dampening`` :math:`\tau`, ``weight_decay``
    :math:`\lambda`.
    Edge cases: the first gradient enters the average undampened, as in torch.

    >>> rule = sgd(0.5)
    >>> parameters, state = rule.step({"w": torch.tensor(1.0)}, {"w": torch.tensor(0.2)}, OptimizerState())
    >>> float(parameters["w"])
    0.8999999761581421
    """
    return StochasticGradientDescent(learning_rate, momentum, weight_decay, nesterov, dampening)


def adam(
    learning_rate: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
) -> UpdateRule:
    r"""Adam, as ``torch.optim.Adam``; ``weight_decay`` is added to the gradient.

    .. math:: \theta_t = \theta_{t-1} - \eta \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon}

    Notation: m and v average gradients and their squares with weights ``betas``; ``learning_rate`` is :math:`\eta`.
    Guarantee: where all gradients of a parameter were zero, the derivative is the true one, not NaN: that of the first
    average times :math:`\eta / \epsilon`.
    Edge cases: ``eps`` must be above zero. Where gradients are small, derivatives are far larger than those of SGD.

    >>> rule = adam(0.1)
    >>> parameters, state = rule.step({"w": torch.tensor(1.0)}, {"w": torch.tensor(5.0)}, OptimizerState())
    >>> round(float(parameters["w"]), 6)
    0.9
    """
    return Adam(learning_rate, betas, eps, weight_decay)


def _decayed(parameters: NamedTensors, gradients: NamedTensors, weight_decay: float) -> NamedTensors:
    if weight_decay == 0:
        return gradients
    return {name: gradient + weight_decay * parameters[name] for name, gradient in gradients.items()}


def _averaged(keep: float, before: NamedTensors, new: NamedTensors) -> dict[str, Tensor]:
    return {name: keep * before[name] + (1 - keep) * value for name, value in new.items()}


def _root(square: Tensor) -> Tensor:
    """The square root, with derivative 0 at 0: there m is 0 too, and the derivative of m / root needs none."""
    positive = square > 0
    return torch.where(positive, square, 1.0).sqrt() * positive
