from __future__ import annotations

import pytest
import torch
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.models import balle2022_cnn, balle2022_mlp, parameter_count


@pytest.mark.parametrize(("hidden", "printed"), [(1, 805), (10, 7960)])
def test_perceptrons_have_the_parameters_of_table_iv(hidden: int, printed: int) -> None:
    """Table IV, "Number of trainable parameters"."""
    assert parameter_count(balle2022_mlp(hidden=hidden)) == printed


@pytest.mark.parametrize(("hidden", "layers"), [(10, (7850, 110)), (100, (78_500, 1010))])
def test_layers_of_the_perceptron_as_in_appendix_f(hidden: int, layers: tuple[int, int]) -> None:
    """ "7850 parameters in the first layer and 110 in the second"; Table IV, width 100: 1010 in the second alone.

    The sum for width 100 is 79,510; Table IV prints 79,420, which no pair of layers with these biases has.
    """
    model = balle2022_mlp(hidden=hidden)
    assert tuple(parameter_count(layer) for layer in model.layers if isinstance(layer, nn.Linear)) == layers
    assert parameter_count(model) == sum(layers) != 79_420


def test_network_has_55k_parameters_of_which_the_convolutions_are_16_percent() -> None:
    """Figure 1: "55K parameter CNN"; section VI-B: keeping the convolutions only reduces the size "by 84%"."""
    model = balle2022_cnn()
    assert parameter_count(model) == 784 + 8_224 + 10 * (32 * 12 * 12 + 1) + 110 == 55_208
    assert round(1 - parameter_count(model.body) / parameter_count(model), 2) == 0.84


def test_wider_network_of_section_vi_b_has_100k_parameters() -> None:
    """ "double the size from 50K to 100K by increasing the width of the first linear layer"."""
    assert parameter_count(balle2022_cnn(hidden=20)) == 784 + 8_224 + 20 * 4_609 + 210 == 101_398


@pytest.mark.parametrize("build", [balle2022_mlp, balle2022_cnn])
def test_elu_everywhere_but_at_the_output_and_biases_begin_at_zero(build: type[nn.Module]) -> None:
    model = build()
    assert (
        sum(isinstance(layer, nn.ELU) for layer in model.modules())
        == sum(isinstance(layer, (nn.Conv2d, nn.Linear)) for layer in model.modules()) - 1
    )
    biases = [value for name, value in model.named_parameters() if name.endswith("bias")]
    assert biases
    assert all(torch.equal(bias, torch.zeros_like(bias)) for bias in biases)
    assert not any(isinstance(layer, nn.ELU) for layer in build(activation=nn.ReLU).modules())


def test_a_hidden_width_of_zero_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Expected hidden=0 >= 1"):
        balle2022_mlp(hidden=0)
    with pytest.raises(InvalidInput, match="Expected hidden=0 >= 1"):
        balle2022_cnn(hidden=0)
