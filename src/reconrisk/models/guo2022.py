"""ConvNets of guo2022: smooth everywhere, because Fisher information leakage needs derivatives."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.models.building import (
    Activation,
    build_with_rng,
    check_classes,
    check_shape,
    dense,
    flat_features,
    redraw,
)


def guo2022_mnist(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    activation: Activation = nn.Tanh,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the tanh ConvNet with average pooling that guo2022 trains on MNIST.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 16 x 16.

    Size: 26,010 parameters.
    Initialisation: Glorot normal as in the authors' code, biases zero (there normal of scale at most 0.01).
    Differs from Table 1 as printed in guo2022: the table puts tanh on the 10 outputs too. The authors' code does not,
    and logits in [-1, 1] could not fit, so the last layer is linear here. The code pads the first convolution by 3,
    Table 1 by 2 as here; both give the same sizes afterwards.
    Edge cases: the smallest images are 16 x 16.
    Reference: Table 1, guo2022; the network of Papernot et al. (2020) with another activation and pooling.

    >>> guo2022_mnist()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        body = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=8, stride=2, padding=2),
            activation(),
            nn.AvgPool2d(2, stride=1),  # average pooling is smooth, unlike max-pooling
            nn.Conv2d(16, 32, kernel_size=4, stride=2),
            activation(),
            nn.AvgPool2d(2, stride=1),
        )
        return _with_head(body, (flat_features(body, shape), 32, classes), activation)

    return build_with_rng(build, rng)


def guo2022_cifar10(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    *,
    activation: Activation = nn.Tanh,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the tanh ConvNet with average pooling that guo2022 trains on CIFAR-10.

    It has three blocks of two 3x3 convolutions and pooling, with 32, 64 and 128 filters, then 128 units.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 8 x 8.

    Size: 550,570 parameters.
    Initialisation and output: as in :func:`guo2022_mnist`.
    Edge cases: the smallest images are 8 x 8.
    Reference: Table 2, guo2022; the network of Papernot et al. (2020) with another activation and pooling.

    >>> guo2022_cifar10()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        layers: list[nn.Module] = []
        for fan_in, fan_out in ((channels, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(fan_in, fan_out, kernel_size=3, padding=1), activation()]
            layers += [nn.Conv2d(fan_out, fan_out, kernel_size=3, padding=1), activation(), nn.AvgPool2d(2)]
        body = nn.Sequential(*layers)
        return _with_head(body, (flat_features(body, shape), 128, classes), activation)

    return build_with_rng(build, rng)


def _with_head(body: nn.Sequential, widths: Sequence[int], activation: Activation) -> nn.Sequential:
    model = nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), head=dense(widths, activation)))
    # Glorot normal initialisation, as in the authors' code.
    return redraw(model, (nn.Conv2d, nn.Linear), nn.init.xavier_normal_)
