import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from reconrisk.core.errors import InvalidInput
from reconrisk.releases import GradientMap


@given(seed=st.integers(0, 1000), batch=st.integers(1, 4))
def test_it_equals_the_gradient_that_backward_leaves(seed, batch):
    rng = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    inputs, labels = torch.rand(batch, 5, generator=rng), torch.randint(3, (batch,), generator=rng)
    released = GradientMap(model)(inputs, labels)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(released[name], parameter.grad)


def test_frozen_parameters_are_not_released_and_the_model_is_untouched():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert list(GradientMap(model)(torch.ones(1, 2), torch.tensor([0]))) == ["weight"]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert model.weight.grad is None


def test_it_is_differentiable_in_the_records():
    inputs = torch.rand(1, 2, dtype=torch.float64, requires_grad=True)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    assert torch.autograd.gradcheck(lambda x: GradientMap(model)(x, torch.tensor([1]))["0.weight"], inputs)


def test_empty_batches_and_missing_labels_are_refused():
    with pytest.raises(InvalidInput, match="inputs with at least one"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64))
    with pytest.raises(InvalidInput, match="2 records came with 1 labels"):
        GradientMap(nn.Linear(2, 2))(torch.zeros(2, 2), torch.tensor([0]))
