"""The released models of balle2022: a small perceptron on MNIST, a small convolutional network on CIFAR-10."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.core.validation import check_whole
from reconrisk.models.building import (
    Activation,
    check_classes,
    check_shape,
    dense,
    flat_features,
    initialised,
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
    """The 784-10-10 perceptron with ELU that balle2022 trains on MNIST.

    Parameters: 7,960, with ``hidden`` 1 and 100 805 and 79,510. (Table IV prints 79,420 for the last, though its layers
    have 78,500 and the 1,010 printed below it.)
    Initialisation: scale 1 / sqrt(fan-in), biases zero, as in the authors' notebook; an adversary who does not know it
    fails (Table II, "random initialization").
    Edge cases: ReLU in place of ELU makes the attack harder (Table II, "activation").
    Reference: Table V, balle2022.

    >>> balle2022_mlp()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    features, hidden = math.prod(check_shape(shape)), check_whole("hidden", hidden)
    classes = check_classes(classes)
    return initialised(
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
    """The convolutional network with ELU that balle2022 trains on CIFAR-10.

    4x4 convolutions with 16 filters (stride 2) and 32 filters (stride 1), then ``hidden`` units, then the logits.

    Parameters: 55,208 ("55K", Figure 1). Table VI leaves the padding open; without padding the convolutions hold 16 %
    of the parameters (using them alone reduces the size "by 84%", section VI-B), with padding they would hold 10 % of
    91K. The larger model of section VI-B ("increasing the width of the first linear layer") is ``hidden=20``, 101,398.
    Initialisation: scale 1 / sqrt(fan-in), biases zero, the default of the library the authors use.
    Edge cases: the smallest images are 10 x 10.
    Reference: Table VI, balle2022.

    >>> balle2022_cnn()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, hidden, classes = check_shape(shape)[0], check_whole("hidden", hidden), check_classes(classes)

    def build() -> nn.Sequential:
        body = nn.Sequential(
            nn.Conv2d(channels, 16, kernel_size=4, stride=2),
            activation(),
            nn.Conv2d(16, 32, kernel_size=4),
            activation(),
        )
        head = dense((flat_features(body, shape), hidden, classes), activation)
        model = nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), head=head))
        return redraw(model, (nn.Conv2d, nn.Linear), lecun_normal)

    return initialised(build, rng)
