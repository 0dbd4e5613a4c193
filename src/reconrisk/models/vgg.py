"""VGG-16 with the layout and layer names of torchvision, so that its weight files fit."""

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
    build_with_rng,
    check_classes,
    check_shape,
    he_normal,
    norm_layers,
    redraw,
    smallest_side,
)

# Filters of the convolutions in each block: configuration D of Simonyan and Zisserman (2014).
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
    """Build VGG-16.

    It has thirteen 3x3 convolutions in five blocks with max-pooling, then two layers of 4096 units with dropout. The
    output of the blocks is averaged to a fixed size, so the number of parameters does not depend on the image.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        pooled_side: Side of the averaged output of the blocks, in pixels.
        dropout: Probability of dropout between the last layers.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        norm: Constructor of the normalisation for a number of channels, or None for no normalisation.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range, or if images are smaller than 32 x 32.

    Size: 134,260,544 + 4,097 ``classes`` parameters for three channels; 138,357,544 for 1000 classes.
    ``pooled_side=1``, which loses nothing at 32 x 32, has 33,597,248 + 4,097 ``classes``.
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
                layers += [nn.Conv2d(fan_in, width, kernel_size=3, padding=1), *norm_layers(norm, width), activation()]
                fan_in = width
            layers.append(nn.MaxPool2d(2))
        features = redraw(nn.Sequential(*layers), nn.Conv2d, he_normal)
        check_shape(shape, smallest_side(features))  # a clear message in place of an error inside the pooling
        classifier = nn.Sequential(
            nn.Linear(512 * side * side, 4096),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(4096, 4096),
            activation(),
            nn.Dropout(dropout),
            nn.Linear(4096, classes),
        )
        redraw(classifier, nn.Linear, partial(nn.init.normal_, std=0.01))  # as in torchvision
        pool = nn.AdaptiveAvgPool2d(side)
        return nn.Sequential(
            OrderedDict(features=features, avgpool=pool, flatten=nn.Flatten(), classifier=classifier),
        )

    return build_with_rng(build, rng)
