"""Networks of chen2025, with LeakyReLU so that no gradient vanishes identically."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from reconrisk.core.validation import check_whole
from reconrisk.models.building import (
    Activation,
    Norm,
    build_with_rng,
    check_classes,
    check_shape,
    dense,
    flat_features,
    norm_layers,
)


def chen2025_mnist(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    activation: Activation = nn.LeakyReLU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the SimpleConvNet that chen2025 trains on MNIST.

    It has two 3x3 convolutions with max-pooling, then 32 units.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 4 x 4.

    Size: 119,530 parameters ("120k", appendix C.1); layer names and sizes are taken from Table 1.
    Initialisation: torch's default, as in the paper's listing.
    Edge cases: the smallest images are 4 x 4.
    Reference: appendix D.4 (listing and Table 1), chen2025.

    >>> chen2025_mnist()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        # Names conv_layers and fc_layers, and all sizes, are those of the paper's listing.
        convolutions = nn.Sequential(
            nn.Conv2d(channels, 32, kernel_size=3, padding=1),
            activation(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, kernel_size=3, padding=1),
            activation(),
            nn.MaxPool2d(2),
        )
        head = dense((flat_features(convolutions, shape), 32, classes), activation)
        return nn.Sequential(
            OrderedDict(conv_layers=convolutions, fc_layers=nn.Sequential(nn.Flatten(), *head)),
        )

    return build_with_rng(build, rng)


def chen2025_cifar10(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    *,
    width: int = 64,
    activation: Activation = nn.LeakyReLU,
    norm: Norm | None = nn.BatchNorm2d,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the 2.9M ConvNet with LeakyReLU that chen2025 trains on CIFAR-10.

    It has eight 3x3 convolutions and two 3x3 max-pooling layers.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        width: Number of filters of the first convolution; later ones have 2 or 4 times as many.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        norm: Constructor of the normalisation for a number of channels, or None for no normalisation.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 9 x 9.

    Size: 2,904,970 parameters ("2.9M", appendix C.2); 2,901,770 without ``norm``. The paper does not list the layers.
    This is the ConvNet of width 64 from the attack that it uses (Geiping et al. 2020), which has this count.
    Initialisation: torch's default.
    Edge cases: the smallest images are 9 x 9. Batch normalisation in training mode mixes the records of a batch; for
    per-example gradients pass ``norm=group_norm`` or ``norm=None``.
    Reference: appendix C.2, chen2025; `Geiping et al. (2020) <https://arxiv.org/abs/2003.14053>`_.

    >>> chen2025_cifar10()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, width, classes = check_shape(shape)[0], check_whole("width", width), check_classes(classes)
    # Filters of the eight convolutions as multiples of width, from the ConvNet of Geiping et al. (2020).
    widths = [channels, *(width * factor for factor in (1, 2, 2, 4, 4, 4, 4, 4))]

    def build() -> nn.Sequential:
        layers: list[nn.Module] = []
        for place, (fan_in, fan_out) in enumerate(pairwise(widths)):
            layers += [nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1)]
            layers += [*norm_layers(norm, fan_out), activation()]
            layers += [nn.MaxPool2d(3)] if place in (5, 7) else []  # after the sixth and the eighth convolution
        body = nn.Sequential(*layers)
        head = nn.Linear(flat_features(body, shape), classes)
        return nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), head=head))

    return build_with_rng(build, rng)
