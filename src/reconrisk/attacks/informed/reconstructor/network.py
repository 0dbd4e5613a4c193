"""Networks of balle2022: reconstructors from features to records, and the patch discriminator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from reconrisk.attacks.informed.reconstructor.settings import ReconstructorSettings
from reconrisk.core.validation import check_whole, invalid_input

_PATCHES = ((64, 2), (128, 2), (256, 2), (512, 1), (1, 1))  # filters and stride of each layer, Table VIII of balle2022
_CHANNELS = (64, 32)  # inputs of the two transposed convolutions, Table VII of balle2022


def build_network(
    settings: ReconstructorSettings,
    features: int,
    shape: tuple[int, ...],
    data_range: tuple[float, float],
    maps: int | None = None,
) -> nn.Module:
    """Build the untrained network that the settings describe.

    Args:
        settings: Settings of the reconstructor.
        features: Number of input features.
        shape: Shape of a record.
        data_range: Range of the outputs.
        maps: Number of class maps of a linear start that the network corrects, None without a linear start.

    Returns:
        The network.
    """
    if maps is not None:
        return ResidualReconstructor(maps, shape, settings.hidden)
    if settings.network == "transposed":
        return transposed_reconstructor(features, shape, data_range)
    return dense_reconstructor(features, shape, data_range, settings.hidden)


class Squash(nn.Module):
    """Smooth map of any number into the data range: low + (high - low) sigmoid(u)."""

    def __init__(self, data_range: tuple[float, float]) -> None:
        super().__init__()
        self.low, self.high = data_range

    def forward(self, values: Tensor) -> Tensor:
        """Return values between the ends of the range."""
        return self.low + (self.high - self.low) * torch.sigmoid(values)


def dense_reconstructor(
    features: int, shape: Sequence[int], data_range: tuple[float, float], hidden: Sequence[int] = (1000, 1000)
) -> nn.Sequential:
    """Build the ReLU perceptron of balle2022 for MNIST: two layers of 1,000 units.

    Args:
        features: Number of input features.
        shape: Shape of a record.
        data_range: Range of the outputs.
        hidden: Widths of the hidden layers.

    Returns:
        The network.

    Reference: Table V, balle2022.

    >>> sum(value.numel() for value in dense_reconstructor(7960, (1, 28, 28), (0.0, 1.0)).parameters())
    9746784
    """
    widths = [check_whole("features", features), *(check_whole("hidden", width) for width in hidden)]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    layers += [nn.Linear(widths[-1], math.prod(shape)), Squash(data_range), nn.Unflatten(1, tuple(shape))]
    return nn.Sequential(*layers)


def transposed_reconstructor(features: int, shape: Sequence[int], data_range: tuple[float, float]) -> nn.Sequential:
    """Build the network of transposed convolutions of balle2022 for CIFAR-10.

    4,096 units become 64 maps of 8 x 8. Transposed 5 x 5 convolutions of stride 2 lead to 32 channels and to those of
    the image. Table VII of balle2022 states "64 x 64" for the maps, but only 8 x 8 maps of 64 channels lead to 32 x 32
    images.

    Args:
        features: Number of input features.
        shape: Shape of an image, whose sides are multiples of 4.
        data_range: Range of the outputs.

    Returns:
        The network.

    Raises:
        InvalidInput: If ``shape`` is not (channels, height, width) with such sides.

    Reference: Table VII, balle2022.

    >>> transposed_reconstructor(10, (3, 32, 32), (0.0, 1.0))(torch.zeros(2, 10)).shape
    torch.Size([2, 3, 32, 32])
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise invalid_input(
            "shape",
            tuple(shape),
            "to be (channels, height, width) with sides that are multiples of 4",
            'Use network="dense".',
        )
    channels, height, width = shape
    first, second = _CHANNELS
    doubled = partial(nn.ConvTranspose2d, kernel_size=5, stride=2, padding=2, output_padding=1)
    return nn.Sequential(
        nn.Linear(features, first * (height // 4) * (width // 4)),
        nn.ReLU(),
        nn.Unflatten(1, (first, height // 4, width // 4)),
        doubled(first, second),
        nn.ReLU(),
        doubled(second, channels),
        Squash(data_range),
    )


def patch_discriminator(shape: Sequence[int]) -> nn.Sequential:
    """Build a convolutional network that scores each patch of an image as real or reconstructed.

    Args:
        shape: Shape of an image of at least 24 x 24.

    Returns:
        The network.

    Raises:
        InvalidInput: If ``shape`` is not (channels, height, width) with such sides.

    Reference: Table VIII, balle2022; paddings and the slope of the activation are from Isola et al. (2017).

    >>> patch_discriminator((3, 32, 32))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1, 2, 2])
    """
    if len(shape) != 3 or min(shape[1:]) < 24:
        raise invalid_input(
            "shape", tuple(shape), "to be (channels, height, width) with sides >= 24", "Set adversarial=0."
        )
    layers: list[nn.Module] = []
    channels = shape[0]
    for filters, stride in _PATCHES:
        layers += [nn.Conv2d(channels, filters, kernel_size=4, stride=stride, padding=1), nn.LeakyReLU(0.2)]
        channels = filters
    return nn.Sequential(*layers[:-1])  # no activation after the last layer


class ResidualReconstructor(nn.Module):
    """Perceptron that corrects a first estimate; before training the correction is zero.

    The features are the flat estimate, followed by one column per class.
    """

    def __init__(self, classes: int, shape: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        values = math.prod(shape)
        widths = [values + classes, *hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        last = nn.Linear(widths[-1], values)  # zero: the first output is the estimate of the closed form
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.body = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """Return estimates ``(n, *shape)``, not yet clipped to the data range."""
        better: Tensor = features[:, : math.prod(self.shape)] + self.body(features)
        return better.reshape(-1, *self.shape)
