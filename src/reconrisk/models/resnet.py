"""Residual networks in the layout and with the names of torchvision, so that its weight files fit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reconrisk.models.building import Activation, Norm, check_classes, check_shape, he_normal, initialised, redraw


def resnet18(
    shape: Sequence[int],
    classes: int,
    *,
    activation: Activation = nn.ReLU,
    norm: Norm | None = nn.BatchNorm2d,
    rng: torch.Generator | None = None,
) -> nn.Sequential:
    """ResNet-18: a 7x7 convolution, max-pooling, then four stages of two residual blocks of two 3x3 convolutions.

    Parameters: 11,176,512 + 513 ``classes`` for three channels; 11,689,512 for 1000 classes.
    Initialisation: He normal (fan-out) convolutions, the last layer torch's default.
    Edge cases: images of any size. Batch normalisation in training mode mixes the records of a batch; for per-example
    gradients take ``norm=group_norm``, or ``norm=None``, which gives the convolutions biases and scales the last one of
    each of the B branches by 1 / sqrt(B), so that the output stays in scale.
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
    """ResNet-101: as ResNet-18, with stages of 3, 4, 23 and 3 blocks of 1x1, 3x3 and 1x1 convolutions.

    Parameters: 42,500,160 + 2,049 ``classes`` for three channels; 44,549,160 for 1000 classes ("about 45M",
    Figure 4, riess2025).
    Initialisation and edge cases: as :func:`resnet18`.
    Reference: appendix C.3, riess2025; `He et al. (2016) <https://arxiv.org/abs/1512.03385>`_.

    >>> with torch.device("meta"):
    ...     resnet101((1, 2, 2), 10)(torch.zeros(2, 1, 2, 2)).shape
    torch.Size([2, 10])
    """
    return _resnet(Bottleneck, (3, 4, 23, 3), shape, classes, _Parts(activation, norm), rng)


@dataclass(frozen=True)
class _Parts:
    """What every layer of one network is made of."""

    activation: Activation
    norm: Norm | None

    def convolution(self, fan_in: int, fan_out: int, kernel: int, stride: int = 1) -> nn.Conv2d:
        """A convolution that keeps the size up to its stride; the norm's shift, if there is one, serves as bias."""
        return nn.Conv2d(fan_in, fan_out, kernel, stride, padding=kernel // 2, bias=self.norm is None)

    def normalisation(self, channels: int) -> nn.Module:
        """The norm of so many channels, or nothing."""
        return nn.Identity() if self.norm is None else self.norm(channels)

    def shortcut(self, fan_in: int, fan_out: int, stride: int) -> nn.Module:
        """The way around a block: the identity, or a 1x1 convolution where sizes differ."""
        if stride == 1 and fan_in == fan_out:
            return nn.Identity()
        return nn.Sequential(self.convolution(fan_in, fan_out, 1, stride), self.normalisation(fan_out))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the way around them."""

    expansion = 1

    def __init__(self, fan_in: int, width: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.conv1, self.bn1 = parts.convolution(fan_in, width, 3, stride), parts.normalisation(width)
        self.conv2, self.bn2 = parts.convolution(width, width, 3), parts.normalisation(width)
        self.downsample = parts.shortcut(fan_in, width, stride)
        self.activation = parts.activation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Activation of the sum of both ways."""
        hidden = self.activation(self.bn1(self.conv1(inputs)))
        outputs: Tensor = self.activation(self.bn2(self.conv2(hidden)) + self.downsample(inputs))
        return outputs


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide, and the way around them."""

    expansion = 4

    def __init__(self, fan_in: int, width: int, stride: int, parts: _Parts) -> None:
        super().__init__()
        self.conv1, self.bn1 = parts.convolution(fan_in, width, 1), parts.normalisation(width)
        self.conv2, self.bn2 = parts.convolution(width, width, 3, stride), parts.normalisation(width)
        self.conv3, self.bn3 = parts.convolution(width, 4 * width, 1), parts.normalisation(4 * width)
        self.downsample = parts.shortcut(fan_in, 4 * width, stride)
        self.activation = parts.activation()

    def forward(self, inputs: Tensor) -> Tensor:
        """Activation of the sum of both ways."""
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
                blocks.append(block(fan_in, width, 2 if stage > 0 and place == 0 else 1, parts))
                fan_in = width * block.expansion
            layers[f"layer{stage + 1}"] = nn.Sequential(*blocks)
        layers.update(avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(fan_in, classes))
        model = redraw(nn.Sequential(layers), nn.Conv2d, he_normal)
        if parts.norm is None:
            # Each block would double the variance: 2^33 in ResNet-101. Scaled, all blocks together give e.
            with torch.no_grad():
                for layer in model.modules():
                    if isinstance(layer, (BasicBlock, Bottleneck)):
                        last = layer.conv2 if isinstance(layer, BasicBlock) else layer.conv3
                        last.weight.div_(sum(depths) ** 0.5)
        return model

    return initialised(build, rng)
