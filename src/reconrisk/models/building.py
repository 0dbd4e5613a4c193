"""Shared parts of the models: layers, initial weights, and validation of shapes.

:func:`build_with_rng` makes a model reproducible from a generator. :func:`flat_features` and :func:`smallest_side`
compute the output size of a chain of convolutions and pooling.
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
    """Return channels, height and width as whole numbers, with sides of at least ``smallest``.

    Args:
        shape: Shape of a record (channels, height, width).
        smallest: Smallest side in pixels.

    Returns:
        The shape as a tuple of three integers.

    Raises:
        InvalidInput: If there are not three whole numbers, or if a side is too small.

    >>> check_shape((3, 32, 32.0))
    (3, 32, 32)
    """
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise invalid_input(
            "shape", shape, "to be (channels, height, width)", "Leave out the batch axis; grey images have 1 channel."
        )
    remedy = "Pass shape=(channels, height, width)."
    if smallest > 1:
        remedy = f"Pass images of at least {smallest} x {smallest} pixels."
    return (
        check_whole("channels", shape[0], remedy="Pass shape=(channels, height, width)."),
        check_whole("height", shape[1], minimum=smallest, remedy=remedy),
        check_whole("width", shape[2], minimum=smallest, remedy=remedy),
    )


def check_classes(classes: int) -> int:
    """Return the number of classes, after checking that there are at least two.

    Args:
        classes: Number of classes.

    Returns:
        The number as an integer.

    Raises:
        InvalidInput: If it is no whole number of at least 2.
    """
    return check_whole("classes", classes, minimum=2, remedy="Cross-entropy over one class has no gradient.")


def smallest_side(body: nn.Sequential) -> int:
    """Return the smallest side of an image of which ``body`` leaves at least one pixel.

    A window of k pixels, stride s and padding p turns n pixels into (n + 2p - k) // s + 1. The chain is walked
    backwards from one pixel.

    Args:
        body: Chain of convolutions, pooling and activations.

    Returns:
        The side in pixels.

    >>> smallest_side(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)))
    4
    """
    side = 1
    for kernel, stride, padding in reversed(_windows(body)):
        side = max(1, (side - 1) * stride + kernel - 2 * padding)  # smallest input that yields `side` outputs
    return side


def flat_features(body: nn.Sequential, shape: Sequence[int]) -> int:
    """Return the length of the flattened output of ``body`` for one image.

    Args:
        body: Chain of convolutions, pooling and activations.
        shape: Shape of a record (channels, height, width).

    Returns:
        The number of features.

    Raises:
        InvalidInput: If the image is too small for ``body``.

    Assumes: at least one convolution, square windows, and no other layer that changes sizes.

    >>> flat_features(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), (1, 8, 10))
    48
    """
    _, height, width = check_shape(shape, smallest_side(body))
    for kernel, stride, padding in _windows(body):
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
    channels = [layer.out_channels for layer in body if isinstance(layer, nn.Conv2d)][-1]
    return channels * height * width


def _windows(body: nn.Sequential) -> list[tuple[int, int, int]]:
    """Kernel size, stride and padding of each convolution and pooling layer."""
    layers = [layer for layer in body if isinstance(layer, _WINDOWED)]
    return [(_side(layer.kernel_size), _side(layer.stride), _side(layer.padding)) for layer in layers]


def _side(extent: int | tuple[int, ...] | str) -> int:
    return int(extent if isinstance(extent, (int, str)) else extent[0])


M = TypeVar("M", bound=nn.Module)


def build_with_rng(build: Callable[[], M], rng: torch.Generator | None) -> M:
    """Build a model whose random weights are determined by the state of ``rng``.

    Modules draw their weights from the global generator. That generator is seeded from ``rng`` and then restored.

    Args:
        build: Function that builds the model.
        rng: Generator that determines the weights, or None for the global generator.

    Returns:
        The model, on the default device.

    Raises:
        InvalidInput: If ``rng`` is not a ``torch.Generator``.

    Guarantee: with ``rng`` the weights depend only on its state, not on the device (they are drawn on the CPU and moved
    to the default device). ``rng`` advances by one draw, and the global generator does not change, even if ``build``
    fails.
    Edge cases: without ``rng`` the result is ``build()``, which draws from the global generator.

    >>> from torch import nn
    >>> one = build_with_rng(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> two = build_with_rng(lambda: nn.Linear(2, 1), torch.Generator().manual_seed(0))
    >>> torch.equal(one.weight, two.weight)
    True
    """
    if rng is None:
        return build()
    if not isinstance(rng, torch.Generator):
        raise invalid_input("rng", rng, "to be a torch.Generator", "Pass torch.Generator().manual_seed(0).")
    device = torch.get_default_device()
    # One draw from rng seeds the global generator, whichever number of weights the model has.
    seed = int(torch.randint(2**63 - 1, (), generator=rng, device=rng.device))
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):  # restores the CPU generator; no other is touched
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the accelerators too
        model = build()
    return model.to(device)


def redraw(
    model: M,
    kind: type[nn.Module] | tuple[type[nn.Module], ...],
    weight: Callable[[Tensor], object],
    bias: Callable[[Tensor], object] = nn.init.zeros_,
) -> M:
    """Draw the weights and biases of all layers of one kind again, in place.

    Args:
        model: Model to change.
        kind: Layer type, or several.
        weight: Initialiser of weights, in place.
        bias: Initialiser of biases, in place; by default zeros.

    Returns:
        The same model.
    """
    for layer in model.modules():
        if isinstance(layer, kind):
            weight(layer.get_parameter("weight"))
            if layer.bias is not None:
                bias(layer.get_parameter("bias"))
    return model


def he_normal(weight: Tensor) -> None:
    """Fill with normal values of variance 2 / fan-out, which keeps the gradients of ReLU networks in scale.

    Args:
        weight: Tensor to fill.

    Reference: `He et al. (2015) <https://arxiv.org/abs/1502.01852>`_.
    """
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def lecun_normal(weight: Tensor) -> None:
    """Fill with normal values of scale 1 / sqrt(fan-in), cut at two scales: the default of the JAX library haiku.

    Args:
        weight: Tensor to fill.
    """
    scale = 1 / math.sqrt(weight[0].numel())  # weight[0] holds the inputs of one output: the fan-in
    nn.init.trunc_normal_(weight, std=scale, a=-2 * scale, b=2 * scale)


Activation: TypeAlias = Callable[[], nn.Module]
"""Constructor of an activation, such as ``nn.ReLU``; it must not work in place."""

Norm: TypeAlias = Callable[[int], nn.Module]
"""Constructor of a normalisation for a number of channels, such as ``nn.BatchNorm2d`` or :func:`group_norm`."""


def group_norm(channels: int) -> nn.GroupNorm:
    """Group normalisation with at most 32 groups.

    It treats each record by itself, so it works with per-example gradients.

    Args:
        channels: Number of channels to normalise.

    Returns:
        The normalisation layer.

    Edge cases: if 32 does not divide the number of channels, the number of groups is its largest divisor below 32.
    Reference: `Wu and He (2018) <https://arxiv.org/abs/1803.08494>`_.

    >>> group_norm(48).num_groups
    24
    """
    groups = max(count for count in range(1, 33) if channels % count == 0)  # 32 groups, as in Wu and He
    return nn.GroupNorm(groups, channels)


def norm_layers(norm: Norm | None, channels: int) -> list[nn.Module]:
    """Return the normalisation of a number of channels as a list, empty if there is none.

    Args:
        norm: Constructor of the normalisation, or None.
        channels: Number of channels.

    Returns:
        A list with at most one layer.
    """
    return [] if norm is None else [norm(channels)]


def dense(widths: Sequence[int], activation: Activation) -> nn.Sequential:
    """Stack fully connected layers with an activation between each two.

    Args:
        widths: Number of inputs, hidden units and outputs, at least two numbers.
        activation: Constructor of the activation.

    Returns:
        The layers.
    """
    layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
    for fan_in, fan_out in pairwise(widths[1:]):
        layers += [activation(), nn.Linear(fan_in, fan_out)]
    return nn.Sequential(*layers)


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable parameters of a model.

    Args:
        model: Any module.

    Returns:
        The number of parameters that require gradients.

    >>> parameter_count(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
