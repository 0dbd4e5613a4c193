"""Perceptrons and the convolutional network of meng2025; its ResNet-18 and VGG-16 are the standard ones."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import nn

from reconrisk.core.validation import check_whole, invalid_input
from reconrisk.models.building import Activation, build_with_rng, check_classes, check_shape, dense, flat_features
from reconrisk.models.linear import mlp

# Hidden widths by number of layers; 1028 is what appendix B.2 prints.
_HIDDEN = {3: (512, 128), 4: (512, 256, 64), 5: (1028, 512, 256, 64)}


def meng2025_mlp(
    shape: Sequence[int],
    classes: int,
    *,
    layers: int = 3,
    activation: Activation = nn.ReLU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build MLP-3, MLP-4 or MLP-5 of meng2025.

    Their hidden widths are 512-128, 512-256-64 and 1028-512-256-64, with ReLU.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        layers: Number of layers: 3, 4 or 5.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``layers`` is not 3, 4 or 5, or if another argument is out of range.

    Size: not stated in the paper, nor the number of classes; for 3 x 256 x 256 and 10 classes MLP-3 has 100,730,762
    parameters, MLP-4 100,812,234 and MLP-5 202,789,326. (1028 is the paper's number, not 1024.)
    Initialisation: not stated in the paper; as ``nn.Linear``.
    Reference: appendix B.2, meng2025.

    >>> meng2025_mlp((3, 8, 8), 10, layers=4)(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    layers = check_whole("layers", layers)
    if layers not in _HIDDEN:
        raise invalid_input("layers", layers, "to be 3, 4 or 5", "Use mlp(features, hidden, classes) for other depths.")
    return mlp(math.prod(check_shape(shape)), _HIDDEN[layers], classes, activation=activation, rng=rng)


def meng2025_cnn(
    shape: Sequence[int],
    classes: int,
    *,
    activation: Activation = nn.ReLU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the CNN of meng2025, its default target.

    It has two 3x3 convolutions with ReLU and max-pooling, then 256 units.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 4 x 4.

    Size: not stated in the paper. For records of shape (c, h, w) the model has
    64 (9 c + 1) + 73,856 + 256 (128 (h // 4) (w // 4) + 1) + 257 ``classes`` parameters.
    Initialisation: not stated in the paper; torch's default. Outputs are logits; the paper's softmax belongs to the
    training loss.
    Edge cases: the smallest images are 4 x 4.
    Reference: appendix B.2, meng2025.

    >>> meng2025_cnn((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        body = nn.Sequential(
            nn.Conv2d(channels, 64, kernel_size=3, padding=1),
            activation(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, kernel_size=3, padding=1),
            activation(),
            nn.MaxPool2d(2),
        )
        head = dense((flat_features(body, shape), 256, classes), activation)
        return nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), head=head))

    return build_with_rng(build, rng)
