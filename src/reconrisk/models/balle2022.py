"""Released models of balle2022: a small perceptron for MNIST and a small convolutional network for CIFAR-10."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.core.validation import check_whole
from reconrisk.models.building import (
    Activation,
    build_with_rng,
    check_classes,
    check_shape,
    dense,
    flat_features,
    lecun_normal,
    redraw,
)
from reconrisk.models.linear import mlp


def balle2022_mlp(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    hidden: int = 10,
    activation: Activation = nn.ELU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the 784-10-10 perceptron with ELU that balle2022 trains on MNIST.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        hidden: Number of hidden units.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``shape``, ``classes`` or ``hidden`` is out of range.

    Size: 7,960 parameters; 805 and 79,510 with ``hidden`` 1 and 100. (Table IV of balle2022 states 79,420 for 100
    hidden units, but its two layers have 78,500 and 1,010.)
    Initialisation: scale 1 / sqrt(fan-in), biases zero, as in the authors' notebook. An adversary who does not know the
    initial weights fails (Table II, "random initialization").
    Edge cases: ReLU in place of ELU makes the attack harder (Table II, "activation").
    Reference: Table V, balle2022.

    >>> balle2022_mlp()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    features, hidden = math.prod(check_shape(shape)), check_whole("hidden", hidden)
    classes = check_classes(classes)
    # The haiku default of the authors' code replaces the default of torch.
    return build_with_rng(
        lambda: redraw(mlp(features, (hidden,), classes, activation=activation), nn.Linear, lecun_normal),
        rng,
    )


def balle2022_cnn(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    *,
    hidden: int = 10,
    activation: Activation = nn.ELU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the convolutional network with ELU that balle2022 trains on CIFAR-10.

    It has 4x4 convolutions with 16 filters (stride 2) and 32 filters (stride 1), a hidden layer, and the logits.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        hidden: Number of hidden units.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 10 x 10.

    Size: 55,208 parameters ("55K", Figure 1). Table VI does not state the padding. Without padding the convolutions
    hold 16 % of the parameters (using them alone reduces the size "by 84%", section VI-B); with padding they would hold
    10 % of 91K. The larger model of section VI-B ("increasing the width of the first linear layer") is ``hidden=20``,
    101,398.
    Initialisation: scale 1 / sqrt(fan-in), biases zero, the default of the library that the authors use.
    Edge cases: the smallest images are 10 x 10.
    Reference: Table VI, balle2022.

    >>> balle2022_cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, hidden, classes = check_shape(shape)[0], check_whole("hidden", hidden), check_classes(classes)

    def build() -> nn.Sequential:
        body = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=4, stride=2),  # no padding, see Size above
            activation(),
            nn.Conv2d(16, 32, kernel_size=4),
            activation(),
        )
        head = dense((flat_features(body, shape), hidden, classes), activation)
        model = nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), head=head))
        return redraw(model, (nn.Conv2d, nn.Linear), lecun_normal)

    return build_with_rng(build, rng)
