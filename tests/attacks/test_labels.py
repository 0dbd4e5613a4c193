import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.attacks.labels import infer_label
from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientMap


@given(seed=st.integers(0, 1000), label=st.integers(0, 4), bias=st.booleans())
def test_the_label_of_one_record_is_always_read_off_the_last_layer(seed, label, bias):
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 5, bias=bias))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    gradient = GradientMap(model)(torch.rand(1, 6, generator=rng), torch.tensor([label]))
    assert int(infer_label(gradient)) == label


def test_a_release_without_an_output_layer_is_refused():
    with pytest.raises(InvalidInput, match="output layer"):
        infer_label({"convolution": torch.zeros(2, 1, 3, 3)})
