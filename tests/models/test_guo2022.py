from __future__ import annotations

import pytest
import torch
from torch import nn

from reconrisk.models import guo2022_cifar10, guo2022_mnist, parameter_count


def test_mnist_network_of_table_1() -> None:
    """Filters, windows and units of Table 1: 28 -> 13 -> 12 -> 5 -> 4 pixels."""
    counted = (64 + 1) * 16 + (16 * 16 + 1) * 32 + (32 * 4 * 4 + 1) * 32 + 33 * 10
    assert parameter_count(guo2022_mnist()) == counted == 26_010
    sides = []
    inputs = torch.zeros(1, 1, 28, 28)
    for layer in guo2022_mnist().body:
        inputs = layer(inputs)
        sides.append(inputs.shape[-1])
    assert sides == [13, 13, 12, 5, 5, 4]


def test_cifar_network_of_table_2() -> None:
    convolutions = [(3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    counted = sum((9 * fan_in + 1) * fan_out for fan_in, fan_out in convolutions) + (2048 + 1) * 128 + 129 * 10
    assert parameter_count(guo2022_cifar10()) == counted == 550_570


@pytest.mark.parametrize("build", [guo2022_mnist, guo2022_cifar10])
def test_smooth_layers_only_and_no_activation_on_the_logits(build: type[nn.Module]) -> None:
    """Tables 1 and 2 print tanh on the output; the authors' code has none, and logits must leave [-1, 1]."""
    model = build()
    kinds = {type(layer) for layer in model.modules() if not list(layer.children())}
    assert kinds == {nn.Conv2d, nn.Tanh, nn.AvgPool2d, nn.Flatten, nn.Linear}
    assert isinstance(list(model.modules())[-1], nn.Linear)


def test_weights_begin_as_glorot() -> None:
    weight = guo2022_cifar10(rng=torch.Generator().manual_seed(0)).head[0].weight
    # 262,144 draws of variance 2 / (fan_in + fan_out): relative error of the std 0.14 %; 4 of those.
    scale = (2 / (2048 + 128)) ** 0.5
    assert weight.std().item() == pytest.approx(scale, rel=0.006)
    assert weight.abs().max() > 3 * scale  # normal; uniform weights of this variance end at 1.73
