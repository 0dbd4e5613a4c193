"""Parts that several models share: layers, initial weights, and checks of shapes.

:func:`initialised` is the one place where a generator becomes a reproducible model. :func:`flat_features` and
:func:`smallest_side` say what a chain of convolutions and pooling leaves of a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from reconrisk.core.validation import check_whole, invalid_input

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of one image."""

_WINDOWED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


def check_shape(shape: Sequence[int], smallest: int = 1) -> Shape:
    """Channels, height and width as whole numbers, the sides at least ``smallest``.

    >>> check_shape((3, 32, 32.0))
    (3, 32, 32)
    """
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise invalid_input("shape", shape, "to be (channels, height, width)", "Leave out the batch, write 1 for grey.")
    remedy = "Pass shape=(channels, height, width)."
    if smallest > 1:
        remedy = f"The smallest images this model takes are {smallest} x {smallest}: pooling leaves nothing of others."
    return (
        check_whole("channels", shape[0], remedy="Pass shape=(channels, height, width)."),
        check_whole("height", shape[1], minimum=smallest, remedy=remedy),
        check_whole("width", shape[2], minimum=smallest, remedy=remedy),
    )


def check_classes(classes: int) -> int:
    """At least two classes."""
    return check_whole("classes", classes, minimum=2, remedy="Cross-entropy over one class has no gradient.")


def smallest_side(body: nn.Sequential) -> int:
    """Shortest side of an image of which ``body`` leaves at least one pixel.

    A window of k pixels, stride s and padding p makes (n + 2p - k) // s + 1 of n; this walks the chain backwards.

    >>> smallest_side(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)))
    4
    """
    side = 1
    for kernel, stride, padding in reversed(_windows(body)):
        side = max(1, (side - 1) * stride + kernel - 2 * padding)
    return side


def flat_features(body: nn.Sequential, shape: Sequence[int]) -> int:
    """Length of the flattened output of ``body`` for one image; refuses images too small for it.

    Assumes: at least one convolution, square windows, nothing else that changes sizes.

    >>> flat_features(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), (1, 8, 10))
    48
    """
    _, height, width = check_shape(shape, smallest_side(body))
    for kernel, stride, padding in _windows(body):
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    channels = [layer.out_channels for layer in body if isinstance(layer, nn.Conv2d)][-1]
    return channels * height * width


def _windows(body: nn.Sequential) -> list[tuple[int, int, int]]:
    layers = [layer for layer in body if isinstance(layer, _WINDOWED)]
    return [(_side(layer.kernel_size), _side(layer.stride), _side(layer.padding)) for layer in layers]


def _side(extent: int | tuple[int, ...] | str) -> int:
    return int(extent if isinstance(extent, (int, str)) else extent[0])


M = TypeVar("M", bound=nn.Module)


def initialised(build: Callable[[], M], rng: torch.Generator | None) -> M:
    """The model that ``build`` makes, its random weights fixed by the state of ``rng``.

    Modules draw their weights from the global generator, so that generator is seeded from ``rng`` and put back.

    Guarantee: with ``rng`` the weights depend on its state alone, not on the device (they are drawn on the CPU and
    moved to the default device), ``rng`` moves on by one draw, and the global generator is as before, also when
    ``build`` fails.
    Edge cases: without ``rng`` it is ``build()``, which draws from the global generator as every module does.

    >>> from torch import nn
    >>> one = initialised(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> two = initialised(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    if rng is None:
        return build()
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Make one with torch.Generator().manual_seed(0).")
    device = torch.get_default_device()
    seed = int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators too
        model = build()
    return model.to(device)


def redraw(
    model: M,
    kind: type[nn.Module] | tuple[type[nn.Module], ...],
    weight: Callable[[Tensor], object],
    bias: Callable[[Tensor], object] = nn.init.zeros_,
) -> M:
    """``model`` with the weights and biases of its layers of one ``kind`` drawn anew."""
    for layer in model.modules():
        if isinstance(layer, kind):
            weight(layer.get_parameter("weight"))
            if layer.bias is not None:
                bias(layer.get_parameter("bias"))
    return model


def he_normal(weight: Tensor) -> None:
    """Normal with variance 2 / fan-out: keeps gradients of ReLU networks in scale (He et al. 2015)."""
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def lecun_normal(weight: Tensor) -> None:
    """Normal with scale 1 / sqrt(fan-in) cut at two scales: the default of the JAX library haiku."""
    scale = 1 / math.sqrt(weight[0].numel())
    nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)


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
