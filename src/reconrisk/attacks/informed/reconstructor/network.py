"""Networks of balle2022: reconstructors from features to records, and the discriminator of patches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from reconrisk.attacks.informed.reconstructor.settings import ReconstructorSettings
from reconrisk.core.validation import check_whole, invalid_input

_PATCHES = ((64, 2), (128, 2), (256, 2), (512, 1), (1, 1))  # filters and stride of each layer, Table VIII
_CHANNELS = (64, 32)  # of the transposed convolutions, Table VII


def built_network(
    settings: ReconstructorSettings,
    features: int,
    shape: tuple[int, ...],
    data_range: tuple[float, float],
    maps: int | None = None,
) -> nn.Module:
    """The network that settings name, untrained: from features, or behind a linear start of so many ``maps``."""
    if maps is not None:
        return ResidualReconstructor(maps, shape, settings.hidden)
    if settings.network == "transposed":
        return transposed_reconstructor(features, shape, data_range)
    return dense_reconstructor(features, shape, data_range, settings.hidden)


class Squash(nn.Module):
    """Any number into the range of the data, smoothly: low + (high - low) sigmoid(u)."""

    def __init__(self, data_range: tuple[float, float]) -> None:
        super().__init__()
        self.low, self.high = data_range

    def forward(self, values: Tensor) -> Tensor:
        """Values between the ends of the range."""
        return self.low + (self.high - self.low) * torch.sigmoid(values)


def dense_reconstructor(
    features: int, shape: Sequence[int], data_range: tuple[float, float], hidden: Sequence[int] = (1000, 1000)
) -> nn.Sequential:
    """The perceptron with ReLU that balle2022 attacks MNIST with: two layers of 1,000 units.

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
    """The network of transposed convolutions that balle2022 attacks CIFAR-10 with.

    4,096 units as 64 maps of 8 x 8, then transposed 5 x 5 convolutions of stride 2 to 32 and to the image's channels.
    Table VII prints "64 x 64" for the maps, which only 8 x 8 images of 64 channels turn into 32 x 32 ones.
    Reference: Table VII, balle2022.

    >>> transposed_reconstructor(10, (3, 32, 32), (0.0, 1.0))(torch.zeros(2, 10)).shape
    torch.Size([2, 3, 32, 32])
    """
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise invalid_input(
            "shape", tuple(shape), "to be an image whose sides are multiples of 4", 'Use network="dense".'
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
    """A convolutional network that says of each patch of an image whether it is one of a real record.

    Reference: Table VIII, balle2022; paddings and the slope of the activation are those of Isola et al. (2017).

    >>> patch_discriminator((3, 32, 32))(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 1, 2, 2])
    """
    if len(shape) != 3 or min(shape[1:]) < 24:
        raise invalid_input("shape", tuple(shape), "to be an image of at least 24 x 24", "Set adversarial=0.")
    layers: list[nn.Module] = []
    channels = shape[0]
    for filters, stride in _PATCHES:
        layers += [nn.Conv2d(channels, filters, kernel_size=4, stride=stride, padding=1), nn.LeakyReLU(0.2)]
        channels = filters
    return nn.Sequential(*layers[:-1])


class ResidualReconstructor(nn.Module):
    """A perceptron that adds to a first estimate what it learned that estimates of its class lack; it begins with 0.

    Features are the estimate, flat, followed by one column per class.
    """

    def __init__(self, classes: int, shape: Sequence[int], hidden: Sequence[int]) -> None:
        super().__init__()
        self.shape = tuple(shape)
        values = math.prod(shape)
        widths = [values + classes, *hidden]
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
        last = nn.Linear(widths[-1], values)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.body = nn.Sequential(*layers, last)

    def forward(self, features: Tensor) -> Tensor:
        """Estimates ``(n, *shape)``, not yet clipped to the range of the data."""
        better: Tensor = features[:, : math.prod(self.shape)] + self.body(features)
        return better.reshape(-1, *self.shape)
