"""Two networks named LeNet: the sigmoid network of gradient inversion, and the classifier that judges digits."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from reconrisk.core.validation import check_positive
from reconrisk.models.building import Activation, build_with_rng, check_classes, check_shape, flat_features, redraw
from reconrisk.models.weights import load_weights


def lenet(
    shape: Sequence[int] = (3, 32, 32),
    classes: int = 100,
    *,
    initial_limit: float | None = None,
    activation: Activation = nn.Sigmoid,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build the sigmoid LeNet of Deep Leakage from Gradients.

    It has three 5x5 convolutions with 12 filters and strides 2, 2, 1.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        initial_limit: Draw every weight and bias uniformly from [-initial_limit, initial_limit]; the authors' code uses
            0.5. By default torch's initialisation.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If an argument is out of range.

    Size: 85,036 parameters (13,426 for 1 x 28 x 28 and 10 classes); layer names are taken from the authors' code.
    Edge cases: images of any size.
    Reference: the authors' code for `Zhu et al. (2019) <https://arxiv.org/abs/1906.08935>`_.

    >>> lenet((1, 28, 28), 10)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)
    limit = None if initial_limit is None else check_positive("initial_limit", initial_limit)

    def build() -> nn.Sequential:
        body = nn.Sequential(
            nn.Conv2d(channels, 12, kernel_size=5, padding=2, stride=2),
            activation(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2, stride=2),
            activation(),
            nn.Conv2d(12, 12, kernel_size=5, padding=2),
            activation(),
        )
        head = nn.Sequential(nn.Linear(flat_features(body, shape), classes))
        model = nn.Sequential(OrderedDict(body=body, flatten=nn.Flatten(), fc=head))  # names of the authors' code
        if limit is None:
            return model
        uniform = partial(nn.init.uniform_, a=-limit, b=limit)
        return redraw(model, (nn.Conv2d, nn.Linear), uniform, uniform)

    return build_with_rng(build, rng)


def lenet5(
    shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    *,
    activation: Activation = nn.ReLU,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build LeNet-5 with ReLU and max-pooling, after a bilinear resize of the record to 32 x 32.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``shape`` or ``classes`` is out of range.

    Size: 61,706 parameters for one channel and 10 classes.
    Initialisation: torch's default.
    Edge cases: images of any size are resized; large ones without smoothing.
    Reference: section V-B(c), balle2022, uses such a classifier as judge; LeCun et al. (1998).

    >>> lenet5()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        # Layer names are those of the public weight file that judge_lenet reads.
        convolutions = OrderedDict[str, nn.Module](
            c1=nn.Conv2d(channels, 6, kernel_size=5),
            relu1=activation(),
            s2=nn.MaxPool2d(2),
            c3=nn.Conv2d(6, 16, kernel_size=5),
            relu3=activation(),
            s4=nn.MaxPool2d(2),
            c5=nn.Conv2d(16, 120, kernel_size=5),  # covers the remaining 5 x 5 pixels: a dense layer
            relu5=activation(),
        )
        head = OrderedDict[str, nn.Module](f6=nn.Linear(120, 84), relu6=activation(), f7=nn.Linear(84, classes))
        return nn.Sequential(
            OrderedDict(
                resize=nn.Upsample(size=(32, 32), mode="bilinear", align_corners=False),
                convnet=nn.Sequential(convolutions),
                flatten=nn.Flatten(),
                fc=nn.Sequential(head),
            )
        )

    return build_with_rng(build, rng)


def judge_lenet(weights: str | Path) -> nn.Sequential:
    """Load a trained LeNet-5 that judges MNIST digits in [0, 1] of any size.

    The usual public weights (MIT licence, csinva/gan-vae-pretrained-pytorch) classify 99.08 % of the MNIST test set;
    balle2022 uses a judge of 99.4 %.

    Args:
        weights: File with the keys ``convnet.c1.weight`` to ``fc.f7.bias``, trained on digits resized to 32 x 32.

    Returns:
        The model from digits to logits, in evaluation mode, without trainable parameters.

    Raises:
        InvalidFile: If the file is missing or does not fit.

    Reference: section V-B(c), balle2022.

    >>> from reconrisk.core.errors import InvalidFile
    >>> try:
    ...     judge_lenet("absent.safetensors")
    ... except InvalidFile as error:
    ...     print(error.path)
    absent.safetensors
    """
    return load_weights(lenet5(), weights).eval().requires_grad_(False)
