"""Residual networks with the layout and layer names of torchvision, so that its weight files fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.models.building import Activation, Norm, build_with_rng, check_classes, check_shape, he_normal, redraw


def resnet18(
    shape: Sequence[int],
    classes: int,
    *,
    activation: Activation = nn.ReLU,
    norm: Norm | None = nn.BatchNorm2d,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build ResNet-18.

    It has a 7x7 convolution, max-pooling, and four stages of two residual blocks of two 3x3 convolutions.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        norm: Constructor of the normalisation for a number of channels, or None for no normalisation.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``shape`` or ``classes`` is out of range.

    Size: 11,176,512 + 513 ``classes`` parameters for three channels; 11,689,512 for 1000 classes.
    Initialisation: He normal (fan-out) convolutions, torch's default for the last layer.
    Edge cases: images of any size. Batch normalisation in training mode mixes the records of a batch; for per-example
    gradients pass ``norm=group_norm`` or ``norm=None``. ``norm=None`` gives the convolutions biases and scales the last
    convolution of each of the B branches by 1 / sqrt(B), which keeps the scale of the output.
    Reference: appendix B.2, meng2025; `He et al. (2016) <https://arxiv.org/abs/1512.03385>`_.

    >>> resnet18((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    return _resnet(BasicBlock, (2, 2, 2, 2), shape, classes, _Parts(activation, norm), rng)


def resnet101(
    shape: Sequence[int],
    classes: int,
    *,
    activation: Activation = nn.ReLU,
    norm: Norm | None = nn.BatchNorm2d,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """Build ResNet-101: as ResNet-18, with stages of 3, 4, 23 and 3 blocks of 1x1, 3x3 and 1x1 convolutions.

    Args:
        shape: Shape of a record (channels, height, width).
        classes: Number of classes, at least 2.
        activation: Constructor of the activation, such as ``nn.ReLU``; it must not work in place.
        norm: Constructor of the normalisation for a number of channels, or None for no normalisation.
        rng: Generator that determines the initial weights; by default the global generator.

    Returns:
        The model, from a batch of records to logits.

    Raises:
        InvalidInput: If ``shape`` or ``classes`` is out of range.

    Size: 42,500,160 + 2,049 ``classes`` parameters for three channels; 44,549,160 for 1000 classes ("about 45M", Figure
    4, riess2025).
    Initialisation and edge cases: as :func:`resnet18`.
    Reference: appendix C.3, riess2025; `He et al. (2016) <https://arxiv.org/abs/1512.03385>`_.

    >>> with torch.device("meta"):
    ...     resnet101((1, 2, 2), 10)(torch.zeros(2, 1, 2, 2)).shape
    torch.Size([2, 10])
    """
    return _resnet(Bottleneck, (3, 4, 23, 3), shape, classes, _Parts(activation, norm), rng)


@dataclass(frozen=True)
class _Parts:
    """Constructors that all layers of one network share."""

    activation: Activation
    norm: Norm | None

    def convolution(self, fan_in: int, fan_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """Build a convolution that keeps the size up to its stride; the shift of the norm replaces the bias."""
        return nn.Conv2d(fan_in, fan_out, kernel, stride, padding=kernel // 2, bias=self.norm is None)

    def normalisation(self, channels: int) -> nn.Module:
        """Build the normalisation of a number of channels, or the identity."""
        # The identity keeps the layer names of torchvision without a norm too.
        return nn.Identity() if self.norm is None else self.norm(channels)

    def shortcut(self, fan_in: int, fan_out: int, stride: int) -> nn.Module:
        """Build the shortcut around a block: the identity, or a 1x1 convolution if sizes differ."""
        if stride == 1 and fan_in == fan_out:
            return nn.Identity()
        return nn.Sequential(self.convolution(fan_in, fan_out, 1, stride), self.normalisation(fan_out))


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions."""

    expansion = 1

    def __init__(self, fan_in: int, width: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.conv1, self.bn1 = parts.convolution(fan_in, width, 3, stride), parts.normalisation(width)
        self.conv2, self.bn2 = parts.convolution(width, width, 3), parts.normalisation(width)
        self.downsample = parts.shortcut(fan_in, width, stride)
        self.activation = parts.activation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the activation of the sum of branch and shortcut."""
        hidden = self.activation(self.bn1(self.conv1(inputs)))
        outputs: Tensor = self.activation(self.bn2(self.conv2(hidden)) + self.downsample(inputs))
        return outputs


class Bottleneck(nn.Module):
    """Residual block of 1x1, 3x3 and 1x1 convolutions, the last four times as wide."""

    expansion = 4

    def __init__(self, fan_in: int, width: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.conv1, self.bn1 = parts.convolution(fan_in, width, 1), parts.normalisation(width)
        # The stride is in the 3x3 convolution, as in torchvision; He et al. (2016) put it in the first 1x1.
        self.conv2, self.bn2 = parts.convolution(width, width, 3, stride), parts.normalisation(width)
        self.conv3, self.bn3 = parts.convolution(width, 4 * width, 1), parts.normalisation(4 * width)
        self.downsample = parts.shortcut(fan_in, 4 * width, stride)
        self.activation = parts.activation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the activation of the sum of branch and shortcut."""
        hidden = self.activation(self.bn1(self.conv1(inputs)))
        hidden = self.activation(self.bn2(self.conv2(hidden)))
        outputs: Tensor = self.activation(self.bn3(self.conv3(hidden)) + self.downsample(inputs))
        return outputs


def _resnet(
    block: type[BasicBlock] | type[Bottleneck],
    depths: Sequence[int],
    shape: Sequence[int],
    classes: int,
    parts: _Parts,
    rng: torch.Generator | None,
) -> nn.Sequential:
    """Build a residual network of ``depths`` blocks per stage."""
    channels, classes = check_shape(shape)[0], check_classes(classes)

    def build() -> nn.Sequential:
        layers = OrderedDict[str, nn.Module](
            conv1=parts.convolution(channels, 64, 7, stride=2),
            bn1=parts.normalisation(64),
            activation=parts.activation(),
            maxpool=nn.MaxPool2d(3, stride=2, padding=1),
        )
        fan_in = 64
        for stage, depth in enumerate(depths):
            width, blocks = 64 * 2**stage, []
            for place in range(depth):
                # The first block of every stage but the first halves the side.
                blocks.append(block(fan_in, width, 2 if stage > 0 and place == 0 else 1, parts))
                fan_in = width * block.expansion
            layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        layers.update(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(fan_in, classes))
        model = redraw(nn.Sequential(layers), nn.Conv2d, he_normal)
        if parts.norm is None:
            # Each block would double the variance, to 2^33 after the 33 blocks of ResNet-101. With the last convolution
            # of B branches scaled by 1 / sqrt(B), the factor is (1 + 1/B)^B < e in total.
            with torch.no_grad():
                for layer in model.modules():
                    if isinstance(layer, (BasicBlock, Bottleneck)):
                        last = layer.conv2 if isinstance(layer, BasicBlock) else layer.conv3
                        last.weight.div_(sum(depths) ** 0.5)
        return model

    return build_with_rng(build, rng)
