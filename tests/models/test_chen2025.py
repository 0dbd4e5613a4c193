from __future__ import annotations

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import chen2025_cifar10, chen2025_mnist, group_norm, parameter_count

TABLE_1 = {
    "conv_layers.0.weight": 288,
    "conv_layers.0.bias": 32,
    "conv_layers.3.weight": 18_432,
    "conv_layers.3.bias": 64,
    "fc_layers.1.weight": 100_352,
    "fc_layers.1.bias": 32,
    "fc_layers.3.weight": 320,
    "fc_layers.3.bias": 10,
}


def test_simple_conv_net_has_the_layers_of_table_1() -> None:
    """Table 1, "Number of parameters in the neural network"; appendix C.1: "120k parameters"."""
    model = chen2025_mnist()
    assert {name: value.numel() for name, value in model.named_parameters()} == TABLE_1
    assert parameter_count(model) == 119_530


def test_conv_net_has_2_9_million_parameters() -> None:
    """Appendix C.2: "a 2.9M parameter ConvNet with the LeakyReLU activation"."""
    widths = [3, 64, 128, 128, 256, 256, 256, 256, 256]
    convolutions = sum((9 * widths[i] + 1) * widths[i + 1] for i in range(8))
    last = (256 * 3 * 3 + 1) * 10
    assert parameter_count(chen2025_cifar10()) == convolutions + 2 * sum(widths[1:]) + last == 2_904_970
    assert parameter_count(chen2025_cifar10(norm=None)) == convolutions + last == 2_901_770
    assert parameter_count(chen2025_cifar10(norm=group_norm)) == 2_904_970


def test_conv_net_pools_after_its_sixth_and_eighth_convolution() -> None:
    kinds = [type(layer) for layer in chen2025_cifar10(norm=None).body]
    step = [nn.Conv2d, nn.LeakyReLU]
    assert kinds == [*step * 6, nn.MaxPool2d, *step * 2, nn.MaxPool2d]


@pytest.mark.parametrize("build", [chen2025_mnist, chen2025_cifar10])
def test_leaky_relu_with_torch_slope(build: type[nn.Module]) -> None:
    """The listing writes nn.LeakyReLU() without a slope."""
    slopes = [layer.negative_slope for layer in build().modules() if isinstance(layer, nn.LeakyReLU)]
    assert slopes
    assert set(slopes) == {0.01}


def test_group_norm_lets_per_record_gradients_through_in_training_mode() -> None:
    model = chen2025_cifar10((3, 9, 9), 2, width=4, norm=group_norm, rng=torch.Generator().manual_seed(0)).train()
    inputs = torch.rand(3, 3, 9, 9, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(inputs)[:1], model(inputs[:1]))


def test_a_width_of_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Expected width=0 >= 1"):
        chen2025_cifar10(width=0)
