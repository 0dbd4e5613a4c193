"""Update rules of training as pure functions of parameters, gradients and state, differentiable in all three.

They compute the same values as ``torch.optim`` but change nothing in place, so that the trained parameters can be
differentiated with respect to the records behind the gradients.
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
    """The memory of an update rule.

    Attributes:
        steps: Number of steps taken.
        averages: Running averages, by their name and the name of the parameter.
    """

    steps: int = 0
    averages: Mapping[str, NamedTensors] = field(default_factory=dict)


class UpdateRule(ABC):
    """One step of training as a pure function."""

    @abstractmethod
    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return parameters and state after one step.

        Args:
            parameters: Values before the step, by name.
            gradients: Gradients of the loss, by name.
            state: Memory of the rule; ``OptimizerState()`` before the first step.

        Returns:
            New parameters by name, and the memory of the rule for the next step.
        """


@dataclass(frozen=True)
class StochasticGradientDescent(UpdateRule):
    """Gradient descent with momentum; use :func:`sgd` to make one.

    Attributes:
        learning_rate: Step size.
        momentum: Weight of the previous average.
        weight_decay: Multiple of the parameters that is added to the gradient.
        nesterov: True for Nesterov's momentum.
        dampening: One minus the weight of a new gradient in the average.
    """

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
                "(momentum, dampening)",
                given,
                "to be (> 0, 0) for Nesterov's momentum",
                "Pass momentum > 0 and dampening=0, as torch.optim.SGD requires.",
            )

    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return parameters and state after one step along the averaged gradient."""
        gradients = _add_weight_decay(parameters, gradients, self.weight_decay)
        if self.momentum == 0:
            return self._descend(parameters, gradients), OptimizerState(state.steps + 1)
        average = dict(gradients)  # the first gradient enters undampened, as in torch.optim
        if state.steps:
            before = state.averages["momentum"]
            average = {k: self.momentum * before[k] + (1 - self.dampening) * g for k, g in gradients.items()}
        direction: NamedTensors = average
        if self.nesterov:
            direction = {name: g + self.momentum * average[name] for name, g in gradients.items()}
        return self._descend(parameters, direction), OptimizerState(state.steps + 1, {"momentum": average})

    def _descend(self, parameters: NamedTensors, direction: NamedTensors) -> dict[str, Tensor]:
        return {name: value - self.learning_rate * direction[name] for name, value in parameters.items()}


@dataclass(frozen=True)
class Adam(UpdateRule):
    """Adam; use :func:`adam` to make one.

    Attributes:
        learning_rate: Step size.
        betas: Decay rates of the averages of gradients and squared gradients.
        eps: Constant that is added to the root of the average square.
        weight_decay: Multiple of the parameters that is added to the gradient.
    """

    learning_rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float

    def __post_init__(self) -> None:
        check_positive("learning_rate", self.learning_rate)
        check_positive("eps", self.eps, "Without it a parameter with zero gradient has no derivative.")
        check_nonnegative("weight_decay", self.weight_decay)
        if len(self.betas) != 2 or not all(0 <= check_real("betas", beta) < 1 for beta in self.betas):
            raise invalid_input(
                "betas", self.betas, "to be two numbers in [0, 1)", "Pass betas=(0.9, 0.999), for instance."
            )

    def step(
        self, parameters: NamedTensors, gradients: NamedTensors, state: OptimizerState
    ) -> tuple[dict[str, Tensor], OptimizerState]:
        """Return parameters and state after one step along the mean gradient over the root of the mean square."""
        gradients, steps = _add_weight_decay(parameters, gradients, self.weight_decay), state.steps + 1
        zeros = {name: torch.zeros_like(value) for name, value in parameters.items()}
        first = _update_average(self.betas[0], state.averages.get("first", zeros), gradients)
        squares = {name: gradient * gradient for name, gradient in gradients.items()}
        second = _update_average(self.betas[1], state.averages.get("second", zeros), squares)
        # Bias corrections of both averages, which start at zero.
        rate = self.learning_rate / (1 - self.betas[0] ** steps)
        scale = (1 - self.betas[1] ** steps) ** 0.5
        moved = {
            name: value - rate * first[name] / (_safe_root(second[name]) / scale + self.eps)
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
    r"""Return the update rule of stochastic gradient descent, as in ``torch.optim.SGD``.

    .. math:: b_t = \mu b_{t-1} + (1 - \tau) (g_t + \lambda \theta_{t-1}), \quad \theta_t = \theta_{t-1} - \eta b_t

    Here :math:`\theta` are the parameters, g the gradients and b the average of gradients.

    Args:
        learning_rate: Step size (:math:`\eta`).
        momentum: Weight of the previous average (:math:`\mu`).
        weight_decay: Multiple of the parameters that is added to the gradient (:math:`\lambda`).
        nesterov: True for Nesterov's momentum.
        dampening: One minus the weight of a new gradient in the average (:math:`\tau`).

    Returns:
        The update rule.

    Raises:
        InvalidInput: If a number is out of range, or Nesterov's momentum is used without momentum or with dampening.

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
    r"""Return the update rule of Adam, as in ``torch.optim.Adam``.

    .. math:: \theta_t = \theta_{t-1} - \eta \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon}

    Here m and v are running averages of gradients and squared gradients with weights ``betas``.

    Args:
        learning_rate: Step size (:math:`\eta`).
        betas: Decay rates of the two averages (:math:`\beta_1, \beta_2`).
        eps: Constant in the denominator (:math:`\epsilon`), above zero.
        weight_decay: Multiple of the parameters that is added to the gradient.

    Returns:
        The update rule.

    Raises:
        InvalidInput: If a number is out of range.

    Guarantee: the derivative is correct, not NaN, for a parameter whose gradients were all zero: it is that of the
    first average times :math:`\eta / \epsilon`.
    Edge cases: ``eps`` must be above zero. For small gradients, derivatives are far larger than those of SGD.

    >>> rule = adam(0.1)
    >>> parameters, state = rule.step({"w": torch.tensor(1.0)}, {"w": torch.tensor(5.0)}, OptimizerState())
    >>> round(float(parameters["w"]), 6)
    0.9
    """
    return Adam(learning_rate, betas, eps, weight_decay)


def _add_weight_decay(parameters: NamedTensors, gradients: NamedTensors, weight_decay: float) -> NamedTensors:
    if weight_decay == 0:
        return gradients
    return {name: gradient + weight_decay * parameters[name] for name, gradient in gradients.items()}


def _update_average(keep: float, before: NamedTensors, new: NamedTensors) -> dict[str, Tensor]:
    return {name: keep * before[name] + (1 - keep) * value for name, value in new.items()}


def _safe_root(square: Tensor) -> Tensor:
    """Return the square root with derivative 0 at 0: m is 0 there too, and m / root needs no derivative of the root."""
    positive = square > 0
    # Replace 0 by 1 before the root: its infinite derivative times the mask's 0 would be NaN.
    return torch.where(positive, square, 1.0).sqrt() * positive
