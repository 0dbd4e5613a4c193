"""VGG-16 in the layout and with the names of torchvision, so that its weight files fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from reconrisk.core.validation import check_probability, check_whole
from reconrisk.models.building import (
    Activation,
    Norm,
    check_classes,
    check_shape,
    he_normal,
    initialised,
    normalised,
    redraw,
    smallest_side,
)

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    shape: Sequence[int],
    classes: int,
    *,
    pooled_side: int = 7,
    dropout: float = 0.5,
    activation: Activation = nn.ReLU,
    norm: Norm | None = None,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """VGG-16: thirteen 3x3 convolutions in five blocks with max-pooling, then two layers of 4096 units with dropout.

    What the blocks leave is averaged to ``pooled_side`` x ``pooled_side``, so the parameters do not depend on the size.

    Parameters: 134,260,544 + 4,097 ``classes`` for three channels; 138,357,544 for 1000 classes. ``pooled_side=1``,
    which loses nothing at 32 x 32, has 33,597,248 + 4,097 ``classes``.
    Initialisation: He normal (fan-out) convolutions, linear layers normal with scale 0.01, biases zero.
    Edge cases: the smallest images are 32 x 32. ``norm=nn.BatchNorm2d`` is torchvision's ``vgg16_bn``. Dropout draws
    from the global generator in training mode; ``dropout=0`` or evaluation mode is deterministic.
    Reference: appendix B.2, meng2025; `Simonyan and Zisserman (2014) <https://arxiv.org/abs/1409.1556>`_.

    >>> vgg16((3, 32, 32), 10, pooled_side=1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)
    side, dropout = check_whole("pooled_side", pooled_side), check_probability("dropout", dropout)

    def build() -> nn.Sequential:
        layers: list[nn.Module] = []
        fan_in = channels
        for block in _WIDTHS:
            for width in block:
                layers += [nn.Conv2d(fan_in, width, kernel_size=3, padding=1), *normalised(norm, width), activation()]
                fan_in = width
            layers.append(nn.MaxPool2d(2))
        features = redraw(nn.Sequential(*layers), nn.Conv2d, he_normal)
        check_shape(shape, smallest_side(features))
        classifier = nn.Sequential(
            nn.Linear(512 * side * side, 4096),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )
        redraw(classifier, nn.Linear, partial(nn.init.normal_, std=0.01))
        pool = nn.AdaptiveAvgPool2d(side)
        return nn.Sequential(
            OrderedDict(features=features, avgpool=pool, flatten=nn.Flatten(), classifier=classifier),
        )

    return initialised(build, rng)
