"""Parts that several models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from torch import nn

Activation: TypeAlias = Callable[[], nn.Module]
"""Makes an activation, such as ``nn.ReLU``; it must not work in place."""

Norm: TypeAlias = Callable[[int], nn.Module]
"""Makes a normalisation of so many channels, such as ``nn.BatchNorm2d`` or :func:`group_norm`."""


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with at most 32 groups: each record by itself, so it works in per-example gradients.

    Edge cases: channel counts that 32 does not divide get the largest number of groups below 32 that divides them.
    Reference: `Wu and He (2018) <https://arxiv.org/abs/1803.08494>`_.

    >>> group_norm(48).num_groups
    24
    """
    groups = max(count for count in range(1, 33) if channels % count == 0)
    return nn.GroupNorm(groups, channels)


def normalised(norm: Norm | None, channels: int) -> list[nn.Module]:
    """The normalisation of so many channels as a list: empty where there is none."""
    return [] if norm is None else [norm(channels)]


def dense(widths: Sequence[int], activation: Activation) -> nn.Sequential:
    """Fully connected layers from width to width, with an activation between two of them."""
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for fan_in, fan_out in pairwise(widths[1:]):
        layers += [activation(), nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


def parameter_count(model: nn.Module) -> int:
    """Number of trainable parameters.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
