"""Shapes of records and what a chain of convolutions and pooling leaves of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from torch import nn

from reconrisk.core.validation import check_whole, refuse

Shape: TypeAlias = tuple[int, int, int]
"""Channels, height and width of one image."""

_WINDOWED = (nn.Conv2d, nn.MaxPool2d, nn.AvgPool2d)


def check_shape(shape: Sequence[int], smallest: int = 1) -> Shape:
    """Channels, height and width as whole numbers, the sides at least ``smallest``.

    >>> check_shape((3, 32, 32.0))
    (3, 32, 32)
    """
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise refuse("shape", shape, "to be (channels, height, width)", "Leave out the batch, write 1 for grey.")
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
