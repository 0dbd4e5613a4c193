"""The update rules of training, in place and for many models at once; values equal those of ``training.optimizers``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from reconrisk.releases.training.optimizers import Adam, StochasticGradientDescent, UpdateRule

Update = Callable[[Sequence[Tensor]], None]
TangentUpdate = Callable[[Sequence[Tensor], Sequence[Tensor]], None]


def is_elementwise(rule: UpdateRule) -> bool:
    """Return True if a rule moves each parameter by its own gradients alone, so that models can be stacked.

    Args:
        rule: Update rule.

    Returns:
        True for SGD and Adam.
    """
    return type(rule) in (StochasticGradientDescent, Adam)


def make_updater(rule: UpdateRule, values: Sequence[Tensor]) -> Update:
    """Return a function that moves parameters one step in place.

    Args:
        rule: Update rule.
        values: Parameters, which the function changes.

    Returns:
        A function of the gradients, to which it may write.
    """
    if isinstance(rule, Adam):
        return _adam_updater(rule, values)
    if isinstance(rule, StochasticGradientDescent):
        return _sgd_updater(rule, values)
    raise TypeError(f"Expected a known update rule, not {type(rule).__name__}.")


def _sgd_updater(rule: StochasticGradientDescent, values: Sequence[Tensor]) -> Update:
    averages: list[Tensor] = []

    def update(gradients: Sequence[Tensor]) -> None:
        for value, gradient in zip(values, gradients, strict=True):
            if rule.weight_decay:
                gradient.add_(value, alpha=rule.weight_decay)
        if not rule.momentum:
            directions: Sequence[Tensor] = gradients
        elif not averages:
            averages.extend(gradient.clone() for gradient in gradients)  # the first enters undampened, as in torch
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


def _adam_updater(rule: Adam, values: Sequence[Tensor]) -> Update:
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
            # The gradient is no longer needed, so its memory takes the denominator.
            value.addcdiv_(mean, torch.sqrt(square, out=gradient).div_(scale).add_(rule.eps), value=-rate)

    return update


def make_tangent_updater(rule: UpdateRule, values: Sequence[Tensor], tangents: Sequence[Tensor]) -> TangentUpdate:
    """Return a function that moves parameters and their tangents one step in place.

    Args:
        rule: Update rule.
        values: Parameters, which the function changes.
        tangents: Derivatives of the parameters, which the function changes.

    Returns:
        A function of the gradients and their tangents, to which it may write.
    """
    if isinstance(rule, Adam):
        return _adam_tangent_updater(rule, values, tangents)
    update, update_tangents = make_updater(rule, values), make_updater(rule, tangents)  # SGD is linear

    def both(gradients: Sequence[Tensor], changes: Sequence[Tensor]) -> None:
        update(gradients)
        update_tangents(changes)

    return both


def _adam_tangent_updater(rule: Adam, values: Sequence[Tensor], tangents: Sequence[Tensor]) -> TangentUpdate:
    """Return Adam's step together with its derivative."""
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
            # d(m / below) = dm / below - m dv / (2 scale sqrt(v) below^2); where v is 0, so are m and dv.
            slope = torch.where(root > 0, mean / (2 * scale * root * below.square()), 0.0)
            tangents[place].sub_(moved_mean / below - moved_square * slope, alpha=rate)
            values[place].addcdiv_(mean, below, value=-rate)

    return update
