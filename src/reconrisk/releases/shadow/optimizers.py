"""The update rules of training, in place and for many models at once; values are those of ``optimizers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reconrisk.releases.training.optimizers import Adam, StochasticGradientDescent, UpdateRule

Update = Callable[[Sequence[Tensor]], None]
TangentUpdate = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


def is_elementwise(rule: UpdateRule) -> bool:
    """Whether a rule moves each parameter by its own gradients alone, so that models can be stacked."""
    return type(rule) in (StochasticGradientDescent, Adam)


def updater(rule: UpdateRule, values: Sequence[Tensor]) -> Update:
    """A function of gradients that moves ``values`` one step and may write to the gradients."""
    if isinstance(rule, Adam):
        return _adam(rule, values)
    if isinstance(rule, StochasticGradientDescent):
        return _descent(rule, values)
    raise TypeError(f"Expected a known update rule, not {type(rule).__name__}.")


def _descent(rule: StochasticGradientDescent, values: Sequence[Tensor]) -> Update:
    averages: list[Tensor] = []

    def update(gradients: Sequence[Tensor]) -> None:
        for value, gradient in zip(values, gradients, strict=True):
            if rule.weight_decay:
                gradient.add_(value, alpha=rule.weight_decay)
        if not rule.momentum:
            directions: Sequence[Tensor] = gradients
        elif not averages:
            averages.extend(gradient.clone() for gradient in gradients)  # the first enters undampened
            directions = averages
        else:
            for average, gradient in zip(averages, gradients, strict=True):
                average.mul_(rule.momentum).add_(gradient, alpha=1 - rule.dampening)
            directions = averages
        if rule.nesterov:
            directions = [g.add_(average, alpha=rule.momentum) for g, average in zip(gradients, averages, strict=True)]
        for value, direction in zip(values, directions, strict=True):
            value.add_(direction, alpha=-rule.learning_rate)

    return update


def _adam(rule: Adam, values: Sequence[Tensor]) -> Update:
    first, second = ([torch.zeros_like(value) for value in values] for _ in range(2))
    keep, keep_squares = rule.betas
    steps = 0

    def update(gradients: Sequence[Tensor]) -> None:
        nonlocal steps
        steps += 1
        rate, scale = rule.learning_rate / (1 - keep**steps), (1 - keep_squares**steps) ** 0.5
        for value, gradient, mean, square in zip(values, gradients, first, second, strict=True):
            if rule.weight_decay:
                gradient.add_(value, alpha=rule.weight_decay)
            mean.mul_(keep).add_(gradient, alpha=1 - keep)
            square.mul_(keep_squares).addcmul_(gradient, gradient, value=1 - keep_squares)
            value.addcdiv_(mean, torch.sqrt(square, out=gradient).div_(scale).add_(rule.eps), value=-rate)

    return update


def tangent_updater(rule: UpdateRule, values: Sequence[Tensor], tangents: Sequence[Tensor]) -> TangentUpdate:
    """A function of gradients and their tangents that moves ``values`` and ``tangents`` one step."""
    if isinstance(rule, Adam):
        return _adam_tangents(rule, values, tangents)
    update, update_tangents = updater(rule, values), updater(rule, tangents)  # descent is linear

    def both(gradients: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
        update(gradients)
        update_tangents(changes)

    return both


def _adam_tangents(rule: Adam, values: Sequence[Tensor], tangents: Sequence[Tensor]) -> TangentUpdate:
    first, second = ([torch.zeros_like(value) for value in values] for _ in range(2))
    moved_first, moved_second = ([torch.zeros_like(value) for value in tangents] for _ in range(2))
    keep, keep_squares = rule.betas
    steps = 0

    def update(gradients: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
        nonlocal steps
        steps += 1
        rate, scale = rule.learning_rate / (1 - keep**steps), (1 - keep_squares**steps) ** 0.5
        for place, (gradient, change) in enumerate(zip(gradients, changes, strict=True)):
            gradient.add_(values[place], alpha=rule.weight_decay)
            change.add_(tangents[place], alpha=rule.weight_decay)
            mean, square = first[place], second[place]
            moved_mean, moved_square = moved_first[place], moved_second[place]
            moved_mean.mul_(keep).add_(change, alpha=1 - keep)
            moved_square.mul_(keep_squares).addcmul_(gradient, change, value=2 * (1 - keep_squares))
            mean.mul_(keep).add_(gradient, alpha=1 - keep)
            square.mul_(keep_squares).addcmul_(gradient, gradient, value=1 - keep_squares)
            root, below = square.sqrt(), square.sqrt() / scale + rule.eps
            slope = torch.where(root > 0, mean / (2 * scale * root * below.square()), 0.0)  # m is 0 where v is
            tangents[place].sub_(moved_mean / below - moved_square * slope, alpha=rate)
            values[place].addcdiv_(mean, below, value=-rate)

    return update
